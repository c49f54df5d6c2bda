/* Data files: the same samples come back; whatever was altered, cut or made up is refused. */
#include "support/tasks.h"
#include "support/test.h"

#include "base/file.h"
#include "base/rng.h"
#include "base/safetensors.h"
#include "tasks/regbench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static blurry_status load(blurry_task **task, const char *name, const char *path)
{
    char settings[1024];
    snprintf(settings, sizeof settings, "task=%s data=%s", name, path);
    return task_from(task, settings);
}

static void assert_same_sample(const blurry_task *a, const blurry_task *b, blurry_split split, int64_t index)
{
    blurry_samples *x, *y;
    assert_ok(blurry_samples_create(&x, a, 1));
    assert_ok(blurry_samples_create(&y, b, 1));
    assert_ok(blurry_task_fill(a, split, &index, 1, 0, x));
    assert_ok(blurry_task_fill(b, split, &index, 1, 0, y));
    assert_int_equal(x->length, y->length);
    assert_int_equal(x->row_count, y->row_count);
    assert_memory_equal(x->tokens, y->tokens, (size_t)x->length * sizeof *x->tokens);
    assert_memory_equal(x->rows, y->rows, (size_t)x->row_count * sizeof *x->rows);
    assert_memory_equal(x->labels, y->labels, (size_t)x->row_count * sizeof *x->labels);
    assert_int_equal(x->legal != NULL, y->legal != NULL);
    if (x->legal) {
        assert_memory_equal(x->legal, y->legal, (size_t)x->row_count * sizeof *x->legal);
        assert_memory_equal(x->states, y->states, (size_t)x->row_count * sizeof *x->states);
    }
    blurry_samples_destroy(&x);
    blurry_samples_destroy(&y);
}

static void samples_come_back(void **state)
{
    (void)state;
    char bytes[5000], *text, *path = temporary_file("", 0), *again = temporary_file("", 0);
    for (int i = 0; i < 5000; i++) bytes[i] = (char)(i * i % 127);
    text = temporary_file(bytes, sizeof bytes);
    char text_settings[1024];
    snprintf(text_settings, sizeof text_settings, "task=text length=40 file=%s", text);
    const char *const cases[] = {
        "task=mqar length=64 pairs=8 vocab=64 train_samples=200 val_samples=20 test_samples=10",
        "task=mqar length=64 pairs=8 vocab=64 filler=random train_samples=9 val_samples=1 test_samples=1",
        "task=regbench automata=50 val_samples=7 test_samples=3", text_settings};
    for (int c = 0; c < 4; c++) {
        blurry_task *made = task_of(cases[c]), *read;
        blurry_task_info info, back;
        char hex[65], hex_back[65];
        blurry_task_describe(made, &info);
        assert_ok(blurry_task_save(made, path));
        assert_ok(load(&read, info.name, path));
        blurry_task_describe(read, &back);
        assert_memory_equal(&info, &back, sizeof info);
        assert_ok(blurry_task_hash(made, hex));
        assert_ok(blurry_task_hash(read, hex_back));
        assert_string_equal(hex, hex_back);
        for (int split = 0; split < BLURRY_SPLITS; split++)
            for (int64_t i = 0; i < info.samples[split] && i < 20; i++)
                assert_same_sample(made, read, (blurry_split)split, i);
        if (c == 2)
            assert_true(statistic_of(made, BLURRY_TRAIN, 0, "true_state") ==
                        statistic_of(read, BLURRY_TRAIN, 0, "true_state"));
        /* What was read can be written again, to the very same bytes. */
        assert_ok(blurry_task_save(read, again));
        void *a, *b;
        size_t a_size, b_size;
        assert_ok(file_read(path, 1 << 30, &a, &a_size));
        assert_ok(file_read(again, 1 << 30, &b, &b_size));
        assert_int_equal(a_size, b_size);
        assert_memory_equal(a, b, a_size);
        free(a);
        free(b);
        blurry_task_destroy(&made);
        blurry_task_destroy(&read);
    }
    unlink(path), unlink(again), unlink(text);
    free(path), free(again), free(text);
}

/* A file in memory, so that thousands of versions of it cost no disk. */
static void replace_content(int file, const void *bytes, size_t size)
{
    assert_int_equal(ftruncate(file, 0), 0);
    assert_true(pwrite(file, bytes, size, 0) == (ssize_t)size);
}

/* Every cut, and one flipped bit at thousands of places: refused, or the samples are untouched. */
static void damage_is_found(void **state)
{
    (void)state;
    blurry_task *task = task_of("task=regbench automata=2 val_samples=1 test_samples=1"), *read;
    char *saved = temporary_file("", 0), path[64], hex[65], other[65];
    assert_ok(blurry_task_hash(task, hex));
    assert_ok(blurry_task_save(task, saved));
    uint8_t *bytes;
    size_t size;
    assert_ok(file_read(saved, 1 << 30, (void **)&bytes, &size));
    int file = memfd_create("damaged", 0);
    assert_true(file >= 0);
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    int refused = 0, flips = 4000;
    rng r = rng_stream(11, RNG_TEST, 0);
    for (int i = 0; i < flips; i++) {
        size_t at = i < 2000 ? (size_t)i % size : rng_below(&r, size);
        uint8_t bit = (uint8_t)(1 << rng_below(&r, 8));
        bytes[at] ^= bit;
        replace_content(file, bytes, size);
        bytes[at] ^= bit;
        blurry_status status = load(&read, "regbench", path);
        if (status == BLURRY_OK) {
            assert_ok(blurry_task_hash(read, other));
            assert_string_equal(hex, other);
            blurry_task_destroy(&read);
        } else {
            assert_true(status == BLURRY_E_FORMAT || status == BLURRY_E_INVALID);
            assert_non_null(strstr(blurry_last_error(), path));
            refused++;
        }
    }
    assert_true(refused > flips / 2);
    for (size_t cut = 0; cut < size; cut += cut < 1500 ? 1 : 97) {
        replace_content(file, bytes, cut);
        assert_fails(load(&read, "regbench", path), BLURRY_E_FORMAT, path);
    }
    free(bytes);
    close(file);
    unlink(saved);
    free(saved);
    blurry_task_destroy(&task);
}

/* ---- files made up by hand: valid safetensors, wrong content ---- */

typedef struct made_up {
    int64_t row_offsets[3], lengths[2];
    int32_t tokens[2][4], positions[3], labels[3], states[3];
    uint32_t legal[3];
    const char *format, *version, *task, *vocabulary, *settings;
    const char *leave_out;
    int64_t token_shape[2];
} made_up;

static const made_up sound = {.row_offsets = {0, 2, 3},
                              .lengths = {4, 2},
                              .tokens = {{1, 2, 19, 3}, {4, 4, 0, 0}},
                              .positions = {0, 2, 0},
                              .labels = {2, 3, 4},
                              .states = {0, 1, 0},
                              .legal = {4, 8, 16 + 2},
                              .format = "blurry-data",
                              .version = "1",
                              .task = "regbench",
                              .vocabulary = "20",
                              .settings = "task: regbench\n",
                              .token_shape = {2, 4}};

static void write_made_up(const made_up *m, const char *path)
{
    safetensors_tensor all[] = {
        {"train.row_offsets", SAFETENSORS_I64, 1, {3}, 3, m->row_offsets, 24},
        {"train.lengths", SAFETENSORS_I64, 1, {2}, 2, m->lengths, 16},
        {"train.tokens", SAFETENSORS_I32, 2, {m->token_shape[0], m->token_shape[1]}, 8, m->tokens, 32},
        {"train.positions", SAFETENSORS_I32, 1, {3}, 3, m->positions, 12},
        {"train.labels", SAFETENSORS_I32, 1, {3}, 3, m->labels, 12},
        {"train.legal", SAFETENSORS_U32, 1, {3}, 3, m->legal, 12},
        {"train.states", SAFETENSORS_I32, 1, {3}, 3, m->states, 12},
    };
    safetensors_tensor kept[7];
    size_t count = 0;
    for (int i = 0; i < 7; i++)
        if (!m->leave_out || strcmp(all[i].name, m->leave_out)) kept[count++] = all[i];
    const char *keys[] = {"format", "version", "task", "vocabulary", "settings", "sha256"};
    const char *values[] = {m->format, m->version, m->task, m->vocabulary, m->settings, "0000"};
    assert_ok(safetensors_save(path, kept, count, keys, values, 6));
}

static void wrong_content_is_refused(void **state)
{
    (void)state;
    made_up cases[32];
    const char *messages[32];
    int n = 0;
#define CASE(field, value, message) (cases[n] = sound, cases[n].field = value, messages[n++] = message)
    CASE(format, "blurry-data", "sha256 is 0000 but the content has"); /* sound but for the hash */
    CASE(format, "pt", "not a file of `blurry data`");
    CASE(version, "2", "version is '2'");
    CASE(task, "mqar", "it holds samples of 'mqar', but task is regbench");
    CASE(vocabulary, "21", "vocabulary is '21'");
    CASE(vocabulary, "x", "vocabulary is 'x'");
    CASE(settings, "task: regbench\nnonsense: 3\n", "nonsense");
    CASE(settings, "length: -4\n", "length");
    CASE(row_offsets[0], 1, "row_offsets does not run from 0");
    CASE(row_offsets[2], 4, "row_offsets does not run from 0 to 3");
    CASE(row_offsets[1], 4, "row_offsets[2] is 3: it descends");
    CASE(row_offsets[1], -1, "row_offsets[1] is -1");
    CASE(lengths[0], 5, "lengths[0] is 5");
    CASE(lengths[1], 0, "lengths[1] is 0");
    CASE(lengths[1], INT64_MIN, "lengths[1] is -9223372036854775808");
    CASE(tokens[0][1], 20, "tokens[1] is 20");
    CASE(tokens[1][3], -1, "tokens[7] is -1");
    CASE(positions[1], 0, "positions[1] is 0: not ascending");
    CASE(positions[1], 4, "positions[1] is 4");
    CASE(positions[2], 2, "positions[2] is 2");
    CASE(positions[0], -1, "positions[0] is -1");
    CASE(labels[0], 20, "labels[0] is 20");
    CASE(labels[2], -7, "labels[2] is -7");
    CASE(labels[1], 4, "labels[1] is 4: not legal there");
    CASE(legal[0], 0, "legal[0] is 0");
    CASE(legal[1], 8 + (1u << 20), "legal[1] is");
    CASE(states[0], 12, "states[0] is 12");
    CASE(states[0], -1, "states[0] is -1");
    CASE(leave_out, "train.legal", "train.legal is missing");
    CASE(leave_out, "train.tokens", "it holds no samples");
    CASE(leave_out, "train.labels", "train.positions has another type or shape");
    CASE(token_shape[0], 4, "another type or shape");
    cases[n - 1].token_shape[1] = 2;
#undef CASE
    char *path = temporary_file("", 0);
    for (int i = 0; i < n; i++) {
        write_made_up(&cases[i], path);
        blurry_task *task;
        blurry_status status = load(&task, "regbench", path);
        if (status != BLURRY_E_FORMAT && status != BLURRY_E_INVALID)
            fail_msg("case %d: status %d", i, status);
        if (!strstr(blurry_last_error(), messages[i]))
            fail_msg("case %d lacks '%s': %s", i, messages[i], blurry_last_error());
        assert_null(task);
    }
    unlink(path);
    free(path);
}

static void failed_saves_leave_the_old_file(void **state)
{
    (void)state;
    blurry_task *task =
        task_of("task=mqar length=64 pairs=8 vocab=64 train_samples=5 val_samples=2 test_samples=1");
    assert_fails(blurry_task_save(task, "/nonexistent/folder/data"), BLURRY_E_IO, "/nonexistent/folder");
    blurry_task_destroy(&task);
    /* More than a file may hold: refused before anything is made or written. */
    char *path = temporary_file("old", 3);
    task = task_of("task=mqar train_samples=1099511627776");
    assert_fails(blurry_task_save(task, path), BLURRY_E_INVALID, "train samples are 1099511627776");
    blurry_task_destroy(&task);
    void *bytes;
    size_t size;
    assert_ok(file_read(path, 100, &bytes, &size));
    assert_int_equal(size, 3);
    free(bytes);
    unlink(path);
    free(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(samples_come_back),
        cmocka_unit_test(damage_is_found),
        cmocka_unit_test(wrong_content_is_refused),
        cmocka_unit_test(failed_saves_leave_the_old_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
