/* RegBench: documents, splits without shared languages, metrics, and the predictors' anchors. */
#include "support/automata.h"
#include "support/tasks.h"
#include "support/test.h"

#include "tasks/regbench.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void assert_near(double got, double want, double tolerance)
{
    if (!(fabs(got - want) <= tolerance)) fail_msg("%g is not within %g of %g", got, tolerance, want);
}

/* Walks the document along its automaton: strings, separators, labels, legal letters and states. */
static void check_document(const blurry_samples *s, const automaton *a)
{
    int64_t n = s->lengths[0], r = 0, strings = 1, letters = 0;
    int at = 0;
    for (int64_t t = 0; t <= n; t++) { /* token n is the last label */
        int token = t < n ? s->tokens[t] : s->labels[s->row_count - 1];
        if (token == REGBENCH_SEPARATOR) {
            assert_true(letters >= 1 && letters <= 49);
            letters = at = 0;
            strings++;
            continue;
        }
        assert_true(token >= 1 && token <= 18);
        uint32_t legal = 0;
        for (int letter = 0; letter < 18; letter++) legal |= a->next[at][letter] >= 0 ? 2u << letter : 0;
        if (t > 0) {
            assert_int_equal(s->rows[r], t - 1);
            assert_int_equal(s->labels[r], token);
            assert_int_equal(s->legal[r], legal);
            assert_int_equal(s->states[r++], at);
        }
        at = a->next[at][token - 1];
        assert_true(at >= 0); /* the walk is legal */
        letters++;
    }
    assert_true(letters >= 1 && letters <= 49 && strings >= 10 && strings <= 19);
    assert_int_equal(r, s->row_count);
}

static void documents_are_legal_walks(void **state)
{
    (void)state;
    blurry_task *task = task_of("task=regbench automata=1000");
    blurry_task_info info;
    blurry_task_describe(task, &info);
    assert_int_equal(info.vocabulary, 20);
    blurry_samples *one;
    assert_ok(blurry_samples_create(&one, task, 1));
    for (int split = 0; split < BLURRY_SPLITS; split++)
        for (int64_t i = 0; i < info.samples[split]; i++) {
            assert_ok(blurry_task_fill(task, (blurry_split)split, &i, 1, 0, one));
            assert_int_equal(one->length, one->lengths[0]);
            check_document(one, &regbench_language_at(task->self, (blurry_split)split, i)->minimal);
        }
    blurry_samples_destroy(&one);
    blurry_task_destroy(&task);
}

/* The walk is uniform: over all documents each of the d legal letters of a state is taken with probability
 * 1/d. */
static void walks_are_uniform(void **state)
{
    (void)state;
    blurry_task *task = task_of("task=regbench automata=1");
    blurry_samples *one;
    assert_ok(blurry_samples_create(&one, task, 1));
    double taken[4][3] = {{0}};
    for (int64_t i = 0; i < 500; i++) {
        assert_ok(blurry_task_fill(task, BLURRY_TEST, &i, 1, 0, one));
        for (int64_t r = 0; r < one->row_count; r++) {
            int degree = __builtin_popcount(one->legal[r]);
            int rank = __builtin_popcount(one->legal[r] & ((1u << one->labels[r]) - 1));
            if (degree <= 3) taken[degree][rank]++;
        }
    }
    for (int d = 2; d <= 3; d++)
        for (int k = 0; k < d; k++) {
            double total = taken[d][0] + taken[d][1] + taken[d][2];
            assert_near(taken[d][k] / total, 1.0 / d, 5 * sqrt(0.25 / total));
        }
    blurry_samples_destroy(&one);
    blurry_task_destroy(&task);
}

/* Lengths, states and the four predictors at the paper's size. */
static void statistics_meet_the_definition(void **state)
{
    (void)state;
    blurry_task *task = task_of("task=regbench");
    blurry_statistic list[BLURRY_STATISTICS_MAX];
    int count;
    assert_ok(blurry_task_statistics(task, BLURRY_TRAIN, 0, list, &count));
    const struct {
        const char *name;
        double want, tolerance;
    } anchors[] = {{"sequences", 5000, 0},         {"length_mean", 374, 4},   {"length_p95", 529, 8},
                   {"length_max", 690, 40},        {"unigram", .475, .02},    {"bigram", .827, .02},
                   {"trigram", .937, .02},         {"true_state", .987, .02}, {"perfect_exact", .62, .01},
                   {"states_sampled_mean", 8, .2}, {"states_max", 12, 0}};
    for (size_t i = 0; i < sizeof anchors / sizeof anchors[0]; i++) {
        int k = 0;
        while (k < count && strcmp(list[k].name, anchors[i].name)) k++;
        if (k == count) fail_msg("no statistic %s", anchors[i].name);
        if (!(fabs(list[k].value - anchors[i].want) <= anchors[i].tolerance))
            fail_msg("%s is %g, not within %g of %g", anchors[i].name, list[k].value, anchors[i].tolerance,
                     anchors[i].want);
    }
    blurry_task_destroy(&task);
}

/* All pairs of all splits, by walking both automata at once; and each is the language that was sampled. */
static void no_language_appears_twice(void **state)
{
    (void)state;
    blurry_task *task = task_of("task=regbench automata=2000");
    enum { TOTAL = 3000 };
    const regbench_language **all = malloc(TOTAL * sizeof *all);
    int n = 0;
    for (int split = 0; split < BLURRY_SPLITS; split++)
        for (int64_t i = 0; i < task->info.samples[split]; i++) {
            const regbench_language *l = regbench_language_at(task->self, (blurry_split)split, i);
            automaton sampled;
            rng r = rng_stream(0, RNG_AUTOMATON + (uint32_t)split, (uint64_t)l->candidate);
            automaton_sample(&r, &automaton_regbench, &sampled);
            assert_int_equal(sampled.states, l->sampled_states);
            assert_true(same_language(&sampled, &l->minimal));
            all[n++] = l;
        }
    assert_int_equal(n, TOTAL);
    for (int a = 0; a < n; a++)
        for (int b = 0; b < a; b++) assert_false(same_language(&all[a]->minimal, &all[b]->minimal));
    free(all);
    blurry_task_destroy(&task);
}

/* A family so small that most candidates are repeats: they are skipped, also across splits, and running out
 * is an error, not a hang. */
static void repeats_are_skipped(void **state)
{
    (void)state;
    static const automaton_family small = {2, 3, 1, 1, 1, 1}; /* 18 one-letter languages a* */
    static const automaton_family medium = {2, 3, 2, 2, 1, 1};
    regbench *r;
    assert_ok(regbench_create(&r, &small, 7, (int64_t[]){10, 4, 4}));
    uint32_t letters = 0;
    for (int split = 0; split < BLURRY_SPLITS; split++)
        for (int i = 0; i < (split ? 4 : 10); i++)
            letters |= automaton_legal(&regbench_language_at(r, (blurry_split)split, i)->minimal, 0);
    assert_int_equal(letters, (1u << 18) - 1);
    regbench_destroy(r);
    assert_fails(regbench_create(&r, &small, 7, (int64_t[]){11, 4, 4}), BLURRY_E_UNSUPPORTED,
                 "train automata are 11: only 10 different languages");

    assert_ok(regbench_create(&r, &medium, 7, (int64_t[]){600, 100, 100}));
    const regbench_language *all[800];
    int n = 0;
    for (int split = 0; split < BLURRY_SPLITS; split++)
        for (int i = 0; i < (split ? 100 : 600); i++)
            all[n++] = regbench_language_at(r, (blurry_split)split, i);
    for (int a = 0; a < n; a++)
        for (int b = 0; b < a; b++) assert_false(same_language(&all[a]->minimal, &all[b]->minimal));
    assert_true(all[599]->candidate > 700);
    regbench_destroy(r);
}

/* The test and validation sets do not depend on the number of training automata, nor the first training
 * documents. */
static void sets_do_not_depend_on_size(void **state)
{
    (void)state;
    blurry_task *few = task_of("task=regbench automata=10"), *many = task_of("task=regbench automata=3000");
    blurry_samples *a, *b;
    assert_ok(blurry_samples_create(&a, few, 1));
    assert_ok(blurry_samples_create(&b, many, 1));
    for (int split = 0; split < BLURRY_SPLITS; split++)
        for (int64_t i = 0; i < 10; i++) {
            assert_ok(blurry_task_fill(few, (blurry_split)split, &i, 1, 0, a));
            assert_ok(blurry_task_fill(many, (blurry_split)split, &i, 1, 0, b));
            assert_int_equal(a->length, b->length);
            assert_memory_equal(a->tokens, b->tokens, (size_t)a->length * sizeof *a->tokens);
        }
    blurry_samples_destroy(&a);
    blurry_samples_destroy(&b);
    blurry_task_destroy(&few);
    blurry_task_destroy(&many);
}

static void metrics_follow_the_definition(void **state)
{
    (void)state;
    blurry_task *task = task_of("task=regbench automata=4");
    blurry_samples *s;
    assert_ok(blurry_samples_create(&s, task, 2));
    assert_ok(blurry_task_fill(task, BLURRY_VAL, (const int64_t[]){3, 8}, 2, 0, s));
    int64_t R = s->row_count;
    int32_t *argmax = calloc((size_t)R, sizeof *argmax);
    float *p = calloc((size_t)(20 * R), sizeof *p);
    double legal = 0, l1 = 0, exact = 0;
    for (int64_t r = 0; r < R; r++) {
        argmax[r] = (int32_t)(r % 20);
        p[20 * r + argmax[r]] = 1; /* sure of one token: 2 - 2/d where it is legal, 2 where it is not */
        int hit = s->legal[r] >> argmax[r] & 1;
        legal += hit;
        exact += argmax[r] == s->labels[r];
        l1 += 2 - (hit ? 2.0 / __builtin_popcount(s->legal[r]) : 0);
    }
    blurry_score score = {0};
    assert_ok(blurry_task_score(task, s, argmax, p, (double)R, &score));
    blurry_metrics m;
    blurry_task_metrics(task, &score, &m);
    assert_true(m.accuracy == legal / (double)R && m.exact_match == exact / (double)R && m.loss == 1);
    assert_near(m.l1, l1 / (double)R, 1e-6);
    /* The exact distribution: distance 0; without probabilities the distance is not known. */
    memset(p, 0, (size_t)(20 * R) * sizeof *p);
    for (int64_t r = 0; r < R; r++)
        for (int v = 0; v < 20; v++)
            if (s->legal[r] >> v & 1) p[20 * r + v] = 1.0f / (float)__builtin_popcount(s->legal[r]);
    score = (blurry_score){0};
    assert_ok(blurry_task_score(task, s, argmax, p, 0, &score));
    blurry_task_metrics(task, &score, &m);
    assert_near(m.l1, 0, 1e-6);
    score = (blurry_score){0};
    assert_ok(blurry_task_score(task, s, argmax, NULL, 0, &score));
    blurry_task_metrics(task, &score, &m);
    assert_true(isnan(m.l1) && isnan(m.bits_per_byte));
    free(argmax);
    free(p);
    blurry_samples_destroy(&s);
    blurry_task_destroy(&task);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(documents_are_legal_walks),
        cmocka_unit_test(walks_are_uniform),
        cmocka_unit_test(statistics_meet_the_definition),
        cmocka_unit_test(no_language_appears_twice),
        cmocka_unit_test(repeats_are_skipped),
        cmocka_unit_test(sets_do_not_depend_on_size),
        cmocka_unit_test(metrics_follow_the_definition),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
