/* Multi-query associative recall: every sample's structure, the statistics of its definition, and the draw
 * order. */
#include "support/tasks.h"
#include "support/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct shape {
    int64_t L, K, V;
    int random_filler;
} shape;

/* Everything that must hold for one sample, from its tokens and labels alone. */
static void check_sample(const blurry_samples *s, const shape *p)
{
    unsigned char *seen = calloc((size_t)p->V, 1), *asked = calloc((size_t)p->K, 1);
    assert_int_equal(s->length, p->L);
    assert_int_equal(s->row_count, p->K);
    for (int64_t j = 0; j < p->K; j++) {
        int32_t key = s->tokens[2 * j], value = s->tokens[2 * j + 1];
        assert_true(key >= 1 && key < p->V / 2 && value >= p->V / 2 && value < p->V);
        assert_true(!seen[key]++ && !seen[value]++);
    }
    int64_t r = 0;
    for (int64_t t = 2 * p->K; t < p->L; t++) {
        if (r < s->row_count && s->rows[r] == t) {
            int64_t pair = 0;
            while (pair < p->K && s->tokens[2 * pair] != s->tokens[t]) pair++;
            assert_true(pair < p->K && !asked[pair]++);
            assert_int_equal(s->labels[r++], s->tokens[2 * pair + 1]);
            assert_int_equal((t - 2 * p->K) % 2, 0);
        } else if (!p->random_filler) {
            assert_int_equal(s->tokens[t], 0);
        } else {
            assert_true(s->tokens[t] >= 0 && s->tokens[t] < p->V);
        }
    }
    assert_int_equal(r, p->K);
    free(seen);
    free(asked);
}

static void samples_have_the_structure(void **state)
{
    (void)state;
    const struct {
        const char *settings;
        shape shape;
    } cases[] = {
        {"task=mqar val_samples=300", {512, 64, 8192, 0}},
        {"task=mqar filler=random", {512, 64, 8192, 1}},
        {"task=mqar length=4 pairs=1 vocab=4", {4, 1, 4, 0}},
        {"task=mqar length=64 pairs=16 vocab=34", {64, 16, 34, 0}}, /* every place, every key, no slack */
        {"task=mqar length=66 pairs=16 vocab=35 filler=random", {66, 16, 35, 1}},
        {"task=mqar length=128 pairs=16 vocab=256 power=1", {128, 16, 256, 0}},
        {"task=mqar length=128 pairs=16 vocab=256 power=0", {128, 16, 256, 0}},
        {"task=mqar length=128 pairs=16 vocab=256 power=100", {128, 16, 256, 0}},
        {"task=mqar length=2048 pairs=500 vocab=100000", {2048, 500, 100000, 0}},
    };
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        blurry_task *task = task_of(cases[c].settings);
        blurry_samples *one;
        assert_ok(blurry_samples_create(&one, task, 1));
        for (int split = 0; split < BLURRY_SPLITS; split++)
            for (int64_t i = 0; i < 200; i++) {
                assert_ok(blurry_task_fill(task, (blurry_split)split, &i, 1, 0, one));
                check_sample(one, &cases[c].shape);
            }
        blurry_samples_destroy(&one);
        blurry_task_destroy(&task);
    }
}

static void assert_near(double got, double want, double tolerance)
{
    if (!(fabs(got - want) <= tolerance)) fail_msg("%g is not within %g of %g", got, tolerance, want);
}

/* The numbers of the definition at the paper's size. */
static void distances_are_as_defined(void **state)
{
    (void)state;
    blurry_task *task = task_of("task=mqar");
    blurry_task_info info;
    blurry_task_describe(task, &info);
    assert_int_equal(info.samples[BLURRY_TRAIN], 100000);
    assert_int_equal(info.samples[BLURRY_VAL], 3000);
    assert_int_equal(info.length, 512);
    assert_int_equal(info.vocabulary, 8192);
    assert_int_equal(info.max_labels, 64);
    assert_near(statistic_of(task, BLURRY_VAL, 0, "distance_median"), 155, 1.5);
    assert_near(statistic_of(task, BLURRY_VAL, 0, "distance_mean"), 187, 1);
    const struct {
        const char *name;
        double share, tolerance;
    } within[] = {{"within_16", .0003, .00015},
                  {"within_32", .006, .0007},
                  {"within_64", .054, .002},
                  {"within_128", .369, .004},
                  {"within_256", .757, .004}};
    for (int i = 0; i < 5; i++)
        assert_near(statistic_of(task, BLURRY_VAL, 0, within[i].name), within[i].share, within[i].tolerance);
    blurry_task_destroy(&task);
}

/* Places are drawn one after the other, and the j-th drawn belongs to pair j: the probability of (first,
 * second) is w_a / W * w_b / (W - w_a). Sorting the places, or drawing them independently, would fail. */
static void places_keep_their_draw_order(void **state)
{
    (void)state;
    enum { N = 60000, PLACES = 6 };
    blurry_task *task = task_of("task=mqar length=16 pairs=2 vocab=16 power=0.3");
    blurry_samples *one;
    assert_ok(blurry_samples_create(&one, task, 1));
    double weight[PLACES], total = 0, chi = 0;
    int count[PLACES][PLACES] = {0};
    for (int i = 0; i < PLACES; i++) total += weight[i] = pow(i + 1, 0.3 - 1);
    for (int64_t i = 0; i < N; i++) {
        assert_ok(blurry_task_fill(task, BLURRY_TRAIN, &i, 1, 0, one));
        int place[2] = {0};
        for (int r = 0; r < 2; r++)
            place[one->tokens[one->rows[r]] != one->tokens[0]] = (int)(one->rows[r] - 4) / 2;
        count[place[0]][place[1]]++;
    }
    for (int a = 0; a < PLACES; a++)
        for (int b = 0; b < PLACES; b++) {
            if (a == b) continue;
            double expect = N * weight[a] / total * weight[b] / (total - weight[a]);
            chi += (count[a][b] - expect) * (count[a][b] - expect) / expect;
        }
    assert_true(chi < 29 + 5 * sqrt(2 * 29.0)); /* 30 cells */
    blurry_samples_destroy(&one);
    blurry_task_destroy(&task);
}

/* Keys, values and filler are uniform over their ranges. */
static void tokens_are_uniform(void **state)
{
    (void)state;
    enum { N = 8000, V = 40, K = 8 };
    blurry_task *task = task_of("task=mqar length=64 pairs=8 vocab=40 filler=random");
    blurry_samples *one;
    assert_ok(blurry_samples_create(&one, task, 1));
    double keys[V] = {0}, values[V] = {0}, fill[V] = {0}, filled = 0;
    for (int64_t i = 0; i < N; i++) {
        assert_ok(blurry_task_fill(task, BLURRY_TRAIN, &i, 1, 0, one));
        for (int j = 0; j < K; j++) keys[one->tokens[2 * j]]++, values[one->tokens[2 * j + 1]]++;
        for (int t = 2 * K + 1; t < 64; t += 2) fill[one->tokens[t]]++, filled++;
    }
    for (int v = 0; v < V; v++) {
        assert_near(keys[v], v >= 1 && v < V / 2 ? N * K / 19.0 : 0, v >= 1 && v < V / 2 ? 260 : 0);
        assert_near(values[v], v >= V / 2 ? N * K / 20.0 : 0, v >= V / 2 ? 260 : 0);
        assert_near(fill[v], filled / V, 5 * sqrt(filled / V));
    }
    blurry_samples_destroy(&one);
    blurry_task_destroy(&task);
}

static void accuracy_is_mean_of_sequence_means(void **state)
{
    (void)state;
    blurry_task *task = task_of("task=mqar length=16 pairs=4 vocab=16");
    blurry_samples *s;
    assert_ok(blurry_samples_create(&s, task, 3));
    const int64_t indices[3] = {5, 1, 9};
    assert_ok(blurry_task_fill(task, BLURRY_VAL, indices, 3, 0, s));
    int32_t argmax[12];
    for (int r = 0; r < 12; r++) argmax[r] = s->labels[r];
    argmax[0] = argmax[5] = argmax[6] = 0; /* 3/4, 2/4, 4/4 right */
    blurry_score score = {0};
    assert_ok(blurry_task_score(task, s, argmax, NULL, 6.0, &score));
    blurry_metrics m;
    blurry_task_metrics(task, &score, &m);
    assert_true(m.accuracy == 0.75 && m.loss == 0.5 && m.exact_match == 0.75);
    assert_true(isnan(m.l1) && isnan(m.bits_per_byte));
    assert_int_equal(m.sequences, 3);
    assert_int_equal(m.labels, 12);
    /* Sequences of 1, 7 and 4 labels, 0, 5 and 4 of them right: each sequence counts the same. */
    s->row_offsets[1] = 1;
    s->row_offsets[2] = 8;
    score = (blurry_score){0};
    assert_ok(blurry_task_score(task, s, argmax, NULL, 6.0, &score));
    blurry_task_metrics(task, &score, &m);
    assert_true(fabs(m.accuracy - (0 + 5.0 / 7 + 1) / 3) < 1e-15 && m.exact_match == 0.75);
    argmax[3] = 16;
    assert_fails(blurry_task_score(task, s, argmax, NULL, 0, &score), BLURRY_E_INVALID, "argmax[3] is 16");
    argmax[3] = -1;
    assert_fails(blurry_task_score(task, s, argmax, NULL, 0, &score), BLURRY_E_INVALID, "argmax[3] is -1");
    blurry_samples_destroy(&s);
    blurry_task_destroy(&task);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(samples_have_the_structure),         cmocka_unit_test(distances_are_as_defined),
        cmocka_unit_test(places_keep_their_draw_order),       cmocka_unit_test(tokens_are_uniform),
        cmocka_unit_test(accuracy_is_mean_of_sequence_means),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
