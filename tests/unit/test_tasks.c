/* The task interface: same samples in any order, batch and thread; pinned hashes; refusals. */
#include "support/tasks.h"
#include "support/test.h"

#include "base/rng.h"
#include "base/threads.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A text that every machine has: made here. */
static char *make_text(size_t size)
{
    char *bytes = malloc(size);
    rng r = rng_stream(5, RNG_TEST, 0);
    for (size_t i = 0; i < size; i++) bytes[i] = "etaoin shrdlu\n"[rng_below(&r, 14)];
    char *path = temporary_file(bytes, size);
    free(bytes);
    return path;
}

static const char *const task_settings[] = {
    "task=mqar length=64 pairs=8 vocab=64 train_samples=300 val_samples=40 test_samples=30",
    "task=mqar length=64 pairs=8 vocab=64 filler=random train_samples=300 val_samples=40 test_samples=30",
    "task=regbench automata=200 val_samples=40 test_samples=30",
    "task=text length=50",
};
enum { TASKS = sizeof task_settings / sizeof task_settings[0] };

static blurry_task *make_case(int index, const char *text)
{
    char settings[1024];
    snprintf(settings, sizeof settings, "%s %s%s", task_settings[index], index == 3 ? "file=" : "",
             index == 3 ? text : "");
    return task_of(settings);
}

/* ---- any order, any batch, any thread ---- */

typedef struct shuffled {
    const blurry_task *task;
    blurry_samples *reference; /* all training samples in order, padded to the longest of all */
    int64_t *order;
    blurry_samples *mine[4]; /* one per worker */
    int bad;
} shuffled;

/* Task number `batch` fills 7 samples of the shuffled order and compares each with the reference. */
static void fill_and_compare(void *context, int64_t batch, int worker)
{
    shuffled *c = context;
    blurry_samples *s = c->mine[worker], *all = c->reference;
    int64_t total = all->count, n = total - 7 * batch < 7 ? total - 7 * batch : 7;
    if (blurry_task_fill(c->task, BLURRY_TRAIN, c->order + 7 * batch, n, 0, s) != BLURRY_OK) c->bad = 1;
    for (int64_t b = 0; b < n; b++) {
        int64_t i = c->order[7 * batch + b], rows = s->row_offsets[b + 1] - s->row_offsets[b];
        const int32_t *got = s->tokens + b * s->length, *want = all->tokens + i * all->length;
        if (s->lengths[b] != all->lengths[i] || rows != all->row_offsets[i + 1] - all->row_offsets[i]) {
            c->bad = 1;
            continue;
        }
        for (int64_t t = 0; t < s->length; t++)
            if (got[t] != want[t] || (t >= s->lengths[b] && got[t] != 0)) c->bad = 1;
        for (int64_t r = 0; r < rows; r++) {
            int64_t mine = s->row_offsets[b] + r, theirs = all->row_offsets[i] + r;
            if (s->rows[mine] - b * s->length != all->rows[theirs] - i * all->length ||
                s->labels[mine] != all->labels[theirs] || (s->legal && s->legal[mine] != all->legal[theirs]))
                c->bad = 1;
        }
    }
}

static void samples_do_not_depend_on_order_or_threads(void **state)
{
    (void)state;
    char *text = make_text(9000);
    for (int k = 0; k < TASKS; k++) {
        blurry_task *task = make_case(k, text);
        blurry_task_info info;
        blurry_task_describe(task, &info);
        int64_t total = info.samples[BLURRY_TRAIN];
        shuffled c = {.task = task, .order = malloc((size_t)total * sizeof *c.order)};
        assert_ok(blurry_samples_create(&c.reference, task, total));
        for (int64_t i = 0; i < total; i++) c.order[i] = i;
        assert_ok(blurry_task_fill(task, BLURRY_TRAIN, c.order, total, info.length, c.reference));
        assert_int_equal(c.reference->length, info.length);
        for (int w = 0; w < 4; w++) assert_ok(blurry_samples_create(&c.mine[w], task, 7));
        for (uint64_t round = 0; round < 5; round++) {
            rng r = rng_stream(round, RNG_TEST, 1);
            rng_permutation(&r, c.order, total);
            threads_run(round % 2 ? 1 : 4, (total + 6) / 7, fill_and_compare, &c);
            assert_false(c.bad);
        }
        for (int w = 0; w < 4; w++) blurry_samples_destroy(&c.mine[w]);
        blurry_samples_destroy(&c.reference);
        blurry_task_destroy(&task);
        free(c.order);
    }
    unlink(text);
    free(text);
}

/* ---- pinned data ---- */

static void hashes_are_pinned(void **state)
{
    (void)state;
    static const char *const want[TASKS] = {
        "b6a9f10e022d8db412cf6fdbb4c4c8ddf3d05e01b759f58223186c4620b1c519",
        "31f408ddb9e2b8ef00f39d54efebe90ba612b5e76186fc309795343bd508f09b",
        "32a4a1036cf6a9590bcae8cf805b9cf668db226b290d65db86e4d54cbdab7c1e",
        "e71d26386b995bb1ce53156b258053b3f839bf735fb5759883d8beae411296bc"};
    char *text = make_text(9000), hex[65], other[65];
    for (int k = 0; k < TASKS; k++) {
        blurry_task *task = make_case(k, text);
        assert_ok(blurry_task_hash(task, hex));
        blurry_task_destroy(&task);
        assert_string_equal(hex, want[k]);
    }
    unlink(text);
    free(text);
    /* Another seed, another length or one sample more is other data. */
    const char *const variants[] = {"data_seed=1", "train_samples=301", "power=0.5", "vocab=66", "seed=3"};
    for (int i = 0; i < 5; i++) {
        char settings[512];
        snprintf(settings, sizeof settings, "%s %s", task_settings[0], variants[i]);
        blurry_task *task = task_of(settings);
        assert_ok(blurry_task_hash(task, other));
        if (i < 4)
            assert_string_not_equal(other, want[0]);
        else
            assert_string_equal(other, want[0]); /* the seed of the weights does not touch the data */
        blurry_task_destroy(&task);
    }
}

/* ---- refusals ---- */

static void bad_settings_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *settings, *message;
    } cases[] = {
        {"task=mqra", "task is 'mqra': use mqar, regbench or text"},
        {"task=mqar length=511", "length is 511: mqar needs an even length"},
        {"task=mqar length=1 pairs=1", "length is 1"},
        {"task=mqar length=254 pairs=64", "length is 254: 64 pairs need at least 256"},
        {"task=mqar length=2 pairs=1", "length is 2: 1 pairs need at least 4"},
        {"task=mqar pairs=64 vocab=129", "vocab is 129: 64 distinct keys need at least 130"},
        {"task=mqar length=64 pairs=1 vocab=3", "vocab is 3"},
        {"task=mqar length=64 pairs=1 vocab=2", "vocab is 2"},
        {"task=mqar pairs=0", "pairs"},
        {"task=mqar pairs=-1", "pairs"},
        {"task=mqar length=0", "length"},
        {"task=mqar length=1e30", "length"},
        {"task=mqar power=-0.1", "power"},
        {"task=mqar power=nan", "power"},
        {"task=mqar filler=none", "filler"},
        {"task=mqar train_samples=-5", "train_samples"},
        {"task=mqar data_seed=-1", "data_seed"},
        {"task=regbench automata=0", "automata"},
        {"task=regbench automata=-3", "automata"},
        {"task=regbench val_samples=99999999", "val automata are 99999999: give at most"},
        {"task=text", "file is empty: name the text"},
        {"task=text file=/nonexistent/text", "/nonexistent/text"},
        {"task=text file=/tmp", "/tmp"},
        {"task=text file=/dev/null", "/dev/null"},
        {"task=mqar data=/nonexistent/data", "/nonexistent/data"},
        {"task=mqar data=/tmp", "data is /tmp"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        blurry_task *task = (blurry_task *)1;
        blurry_status status = task_from(&task, cases[i].settings);
        if (status != BLURRY_E_INVALID && status != BLURRY_E_FORMAT)
            fail_msg("%s: status %d", cases[i].settings, status);
        if (!strstr(blurry_last_error(), cases[i].message))
            fail_msg("%s: message is %s", cases[i].settings, blurry_last_error());
        assert_null(task);
    }
}

static void bad_calls_are_refused(void **state)
{
    (void)state;
    blurry_task *task = task_of(task_settings[2]);
    blurry_samples *s;
    blurry_settings *settings;
    blurry_statistic list[BLURRY_STATISTICS_MAX];
    int count;
    int64_t zero[3] = {0}, high = 30, low = -1;
    assert_ok(blurry_settings_create(&settings));
    assert_fails(blurry_task_create(NULL, settings), BLURRY_E_INVALID, "task is NULL");
    assert_fails(blurry_task_create(&(blurry_task *){NULL}, NULL), BLURRY_E_INVALID, "settings is NULL");
    assert_fails(blurry_samples_create(&s, task, 0), BLURRY_E_INVALID, "capacity is 0");
    assert_fails(blurry_samples_create(&s, task, -1), BLURRY_E_INVALID, "capacity is -1");
    assert_fails(blurry_samples_create(&s, task, INT64_MAX), BLURRY_E_MEMORY, "capacity");
    assert_fails(blurry_samples_create(&s, NULL, 1), BLURRY_E_INVALID, "task is NULL");
    assert_fails(blurry_samples_create(NULL, task, 1), BLURRY_E_INVALID, "samples is NULL");
    assert_ok(blurry_samples_create(&s, task, 2));
    assert_fails(blurry_task_fill(task, BLURRY_TEST, &high, 1, 0, s), BLURRY_E_INVALID,
                 "index is 30: test of regbench has 30");
    assert_fails(blurry_task_fill(task, BLURRY_TEST, &low, 1, 0, s), BLURRY_E_INVALID, "index is -1");
    assert_fails(blurry_task_fill(task, BLURRY_TEST, zero, 3, 0, s), BLURRY_E_INVALID, "count is 3");
    assert_fails(blurry_task_fill(task, BLURRY_TEST, zero, -1, 0, s), BLURRY_E_INVALID, "count is -1");
    assert_fails(blurry_task_fill(task, BLURRY_TEST, zero, 1, 5, s), BLURRY_E_INVALID, "length is 5");
    assert_fails(blurry_task_fill(task, BLURRY_TEST, zero, 1, 100000, s), BLURRY_E_INVALID,
                 "length is 100000");
    assert_fails(blurry_task_fill(task, BLURRY_SPLITS, zero, 1, 0, s), BLURRY_E_INVALID, "split is 3");
    assert_fails(blurry_task_fill(task, (blurry_split)-1, zero, 1, 0, s), BLURRY_E_INVALID, "split is -1");
    assert_fails(blurry_task_fill(NULL, BLURRY_TEST, zero, 1, 0, s), BLURRY_E_INVALID, "task is NULL");
    assert_fails(blurry_task_fill(task, BLURRY_TEST, NULL, 1, 0, s), BLURRY_E_INVALID, "indices is NULL");
    assert_fails(blurry_task_fill(task, BLURRY_TEST, zero, 1, 0, NULL), BLURRY_E_INVALID, "samples is NULL");
    assert_ok(blurry_task_fill(task, BLURRY_TEST, NULL, 0, 0, s));
    assert_int_equal(s->row_count, 0);
    assert_fails(blurry_task_statistics(task, BLURRY_TEST, -1, list, &count), BLURRY_E_INVALID,
                 "samples is -1");
    assert_fails(blurry_task_statistics(task, BLURRY_SPLITS, 0, list, &count), BLURRY_E_INVALID,
                 "split is 3");
    assert_fails(blurry_task_save(task, NULL), BLURRY_E_INVALID, "path is NULL");
    assert_fails(blurry_task_hash(task, NULL), BLURRY_E_INVALID, "hex is NULL");
    blurry_split split;
    assert_ok(blurry_split_parse("val", &split));
    assert_int_equal(split, BLURRY_VAL);
    assert_fails(blurry_split_parse("valid", &split), BLURRY_E_INVALID, "split is 'valid'");
    assert_null(blurry_split_name(BLURRY_SPLITS));
    assert_null(blurry_task_name(-1));
    assert_null(blurry_task_name(blurry_task_count()));
    blurry_samples_destroy(&s);
    blurry_task_destroy(&task);
    blurry_task_destroy(&task);
    blurry_settings_destroy(&settings);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(samples_do_not_depend_on_order_or_threads),
        cmocka_unit_test(hashes_are_pinned),
        cmocka_unit_test(bad_settings_are_refused),
        cmocka_unit_test(bad_calls_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
