/* The text task: every validation byte once, training windows that cover the text, bits per byte, refusals.
 */
#include "support/tasks.h"
#include "support/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Bytes whose value tells their place: byte i is i mod 251, all 256 values occur at the end. */
static char *counting_file(size_t size)
{
    unsigned char *bytes = malloc(size);
    for (size_t i = 0; i < size; i++) bytes[i] = (unsigned char)(i % 251);
    char *path = temporary_file(bytes, size);
    free(bytes);
    return path;
}

static blurry_task *text_task(const char *path, const char *more)
{
    char settings[1024];
    snprintf(settings, sizeof settings, "task=text file=%s %s", path, more);
    return task_of(settings);
}

static void validation_predicts_every_byte_once(void **state)
{
    (void)state;
    const struct {
        size_t size;
        const char *more;
        int64_t val_bytes, windows;
    } cases[] = {{1000, "length=30", 100, 4},
                 {1000, "length=50", 100, 2},
                 {1000, "length=1", 100, 100},
                 {1000, "length=700", 100, 1},
                 {1000, "length=30 val_share=0.5", 500, 17},
                 {20, "length=3 val_share=0.01", 1, 1},
                 {1000, "length=30 val_samples=3", 90, 3}};
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        char *path = counting_file(cases[c].size);
        blurry_task *task = text_task(path, cases[c].more);
        blurry_task_info info;
        blurry_task_describe(task, &info);
        assert_int_equal(info.vocabulary, 256);
        assert_int_equal(info.samples[BLURRY_VAL], cases[c].windows);
        assert_int_equal(info.samples[BLURRY_TEST], 0);
        blurry_samples *s;
        assert_ok(blurry_samples_create(&s, task, 1));
        /* The validation part starts after the first val_bytes' worth; with fewer windows asked for, it is
         * cut. */
        int64_t part = strstr(cases[c].more, "val_samples") ? 100 : cases[c].val_bytes;
        int64_t next = (int64_t)cases[c].size - part, first = next;
        for (int64_t i = 0; i < cases[c].windows; i++) {
            assert_ok(blurry_task_fill(task, BLURRY_VAL, &i, 1, 0, s));
            assert_int_equal(s->row_count, s->lengths[0]);
            for (int64_t r = 0; r < s->row_count; r++, next++) {
                assert_int_equal(s->rows[r], r);
                assert_int_equal(s->labels[r], next % 251);
                assert_int_equal(s->tokens[r], (next - 1) % 251);
            }
        }
        assert_int_equal(next - first, cases[c].val_bytes);
        blurry_samples_destroy(&s);
        blurry_task_destroy(&task);
        unlink(path);
        free(path);
    }
}

/* Windows stay inside the training part, follow each other's stretches, and together leave little out. */
static void training_windows_cover_the_text(void **state)
{
    (void)state;
    char *path = counting_file(20000);
    const char *const more[] = {"length=64", "length=64 train_samples=5000", "length=64 train_samples=50000",
                                "length=17999", "length=64 train_samples=1"};
    const int64_t samples[] = {281, 5000, 50000, 1, 1};
    for (int c = 0; c < 5; c++) {
        blurry_task *task = text_task(path, more[c]);
        blurry_task_info info;
        blurry_task_describe(task, &info);
        assert_int_equal(info.samples[BLURRY_TRAIN], samples[c]);
        blurry_samples *s;
        assert_ok(blurry_samples_create(&s, task, 1));
        char *covered = calloc(20000, 1);
        int64_t stretch = 18000 - info.length;
        for (int64_t i = 0; i < samples[c]; i++) {
            assert_ok(blurry_task_fill(task, BLURRY_TRAIN, &i, 1, 0, s));
            assert_int_equal(s->row_count, info.length);
            int64_t low = stretch * i / samples[c], high = stretch * (i + 1) / samples[c], start = low;
            while (start % 251 != s->tokens[0]) start++;
            assert_true(start <
                        (high > low ? high : low + 1)); /* the first start here that fits the tokens */
            for (int64_t r = 0; r < s->row_count; r++) {
                assert_int_equal(s->tokens[r], (s->tokens[0] + r) % 251);
                assert_int_equal(s->labels[r], (s->tokens[0] + r + 1) % 251);
                if (start + r < 18000) covered[start + r] = 1;
            }
        }
        int seen = 0;
        for (int i = 0; i < 20000; i++) seen += covered[i];
        assert_true(c == 4 ? seen == 64 : c == 0 ? seen > 12000 : seen > 17800);
        free(covered);
        blurry_samples_destroy(&s);
        blurry_task_destroy(&task);
    }
    unlink(path);
    free(path);
}

static void score_is_bits_per_byte(void **state)
{
    (void)state;
    char *path = counting_file(1000);
    blurry_task *task = text_task(path, "length=30");
    blurry_task_info info;
    blurry_task_describe(task, &info);
    assert_string_equal(info.metric, "bits_per_byte");
    assert_true(info.metric_descends);
    blurry_samples *s;
    assert_ok(blurry_samples_create(&s, task, 4));
    assert_ok(blurry_task_fill(task, BLURRY_VAL, (const int64_t[]){0, 1, 2, 3}, 4, 0, s));
    assert_int_equal(s->row_count, 100);
    int32_t argmax[100];
    for (int r = 0; r < 100; r++) argmax[r] = r < 25 ? s->labels[r] : (s->labels[r] + 1) % 256;
    blurry_score score = {0};
    assert_ok(blurry_task_score(task, s, argmax, NULL, 100 * 8 * log(2), &score));
    blurry_metrics m;
    blurry_task_metrics(task, &score, &m);
    assert_true(fabs(m.bits_per_byte - 8) < 1e-12 && m.accuracy == 0.25 && m.labels == 100);
    assert_true(isnan(m.l1));
    blurry_samples_destroy(&s);
    blurry_task_destroy(&task);
    unlink(path);
    free(path);
}

static void bytes_of_every_value_pass(void **state)
{
    (void)state;
    unsigned char bytes[2560];
    for (int i = 0; i < 2560; i++) bytes[i] = (unsigned char)(255 - i % 256);
    char *path = temporary_file(bytes, sizeof bytes);
    blurry_task *task = text_task(path, "length=256");
    assert_true(fabs(statistic_of(task, BLURRY_VAL, 0, "unigram_bits_per_byte") - 8) < 1e-9);
    assert_true(statistic_of(task, BLURRY_TRAIN, 0, "distinct_bytes") == 256);
    blurry_statistic list[BLURRY_STATISTICS_MAX];
    int count;
    assert_fails(blurry_task_statistics(task, BLURRY_TEST, 0, list, &count), BLURRY_E_INVALID, "no samples");
    blurry_task_destroy(&task);
    unlink(path);
    free(path);
}

static void unusable_files_are_refused(void **state)
{
    (void)state;
    const struct {
        size_t size;
        const char *more, *message;
    } cases[] = {{0, "length=10", "it is empty"},
                 {1, "length=1", "training part has 0 bytes"},
                 {2, "length=1", "training part has 1 bytes, length 1 needs at least 2"},
                 {100, "length=90", "training part has 90 bytes, length 90 needs at least 91"}};
    for (size_t c = 0; c < 4; c++) {
        char *path = counting_file(cases[c].size), settings[1024];
        snprintf(settings, sizeof settings, "task=text file=%s %s", path, cases[c].more);
        blurry_task *task;
        assert_fails(task_from(&task, settings), BLURRY_E_INVALID, cases[c].message);
        unlink(path);
        free(path);
    }
    char *path = counting_file(100);
    blurry_task *task = text_task(path, "length=89"); /* the longest that fits */
    blurry_task_destroy(&task);
    unlink(path);
    free(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(validation_predicts_every_byte_once),
        cmocka_unit_test(training_windows_cover_the_text),
        cmocka_unit_test(score_is_bits_per_byte),
        cmocka_unit_test(bytes_of_every_value_pass),
        cmocka_unit_test(unusable_files_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
