/* Every mixer by itself: gradients by finite differences, fast devices against the double reference, one
 * token at a time and in pieces against the whole, causality, state sizes, and refusals. */
#include "support/device_memory.h"
#include "support/mixer_case.h"
#include "support/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Every mixer with the options that change its code path. */
static const char *const variants[] = {
    "mixer=softmax width=8 heads=2",
    "mixer=softmax width=8 heads=4 kv_heads=2 conv=true",
    "mixer=softmax width=6 heads=1 rope=false expand_k=2 expand_v=0.5",
    "mixer=swa width=8 heads=2 window=3",
    "mixer=swa width=8 heads=4 kv_heads=1 window=5 conv=true",
    "mixer=abc width=8 heads=2 slots=3",
    "mixer=abc width=8 heads=1 slots=5 expand_k=1 conv=true rope=false",
    "mixer=gsa width=8 heads=2 slots=3",
    "mixer=gsa width=8 heads=1 slots=5 expand_k=0.5 expand_v=2 conv=true",
    "mixer=gla width=8 heads=2",
    "mixer=gla width=8 heads=1 expand_k=1 expand_v=2 conv=true",
    "mixer=gdn width=8 heads=2",
    "mixer=gdn width=8 heads=2 expand_k=0.5 expand_v=2 conv=true",
    "mixer=s4d width=8 state=6",
    "mixer=s4d width=6 state=2 conv=true",
    "mixer=blurry width=8 heads=2 modes=2",
    "mixer=blurry width=8 heads=2 modes=3 decay=true rope=false",
    "mixer=blurry width=8 heads=4 kv_heads=2 modes=3 period=5,8.5 decay=true conv=true",
    "mixer=blurry width=8 heads=2 modes=2 grid=relative resolution=1.7,2.5",
    "mixer=blurry width=8 heads=4 kv_heads=2 modes=2 learned_period=true decay=true",
    "mixer=blurry width=8 heads=2 modes=2 learned_period=true resolution=1.5,3",
    "mixer=blurry width=8 heads=1 modes=2 learned_period=true grid=relative",
    "mixer=blurry width=8 heads=1 modes=1 expand_k=0.5 expand_v=2",
};
enum { VARIANTS = sizeof variants / sizeof variants[0] };

static double dot(const double *a, const double *b, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

/* ---- finite differences ---- */
typedef struct difference {
    mixer_case c;
    int64_t B, L, count;
    double *x, *weight, *y;
} difference;

static double loss(difference *t)
{
    mixer_case_forward(&t->c, t->B, t->L, t->x, t->y);
    return dot(t->y, t->weight, t->count);
}

/* Slope of the loss in values[i]; parameter -1 is the input. */
static double slope(difference *t, int parameter, double *values, int64_t i)
{
    const double h = 1e-5, at = values[i];
    double side[2];
    for (int s = 0; s < 2; s++) {
        values[i] = at + (s ? h : -h);
        if (parameter >= 0) mixer_case_set(&t->c, parameter, values);
        side[s] = loss(t);
    }
    values[i] = at;
    if (parameter >= 0) mixer_case_set(&t->c, parameter, values);
    return (side[1] - side[0]) / (2 * h);
}

static void compare_slopes(difference *t, const char *variant, const char *name, int parameter,
                           double *values, const double *gradient, int64_t n)
{
    double *numeric = malloc((size_t)n * sizeof *numeric);
    for (int64_t i = 0; i < n; i++) numeric[i] = slope(t, parameter, values, i);
    double error = relative_error(gradient, numeric, n);
    if (!(error < 1e-6)) fail_msg("%s: gradient of %s: relative error %g", variant, name, error);
    free(numeric);
}

/* Every element of every parameter and of the input. */
static void gradients_are_slopes(void **state)
{
    (void)state;
    for (int v = 0; v < VARIANTS; v++) {
        difference t = {.B = 2, .L = 9};
        mixer_case_open(&t.c, CASE_REF_F64, variants[v], t.B, t.L, t.L);
        t.count = t.B * t.L * t.c.layer.config.width;
        t.x = draw_normal(t.count, 11);
        t.weight = draw_normal(t.count, 12);
        t.y = malloc((size_t)t.count * sizeof *t.y);
        double *d_x = malloc((size_t)t.count * sizeof *d_x), *gradient[MIXER_PARAMETER_COUNT];
        loss(&t);
        mixer_case_backward(&t.c, t.B, t.L, t.x, t.weight, d_x);
        for (int i = 0; i < t.c.list.count; i++) {
            gradient[i] = malloc((size_t)mixer_case_elements(&t.c, i) * sizeof(double));
            mixer_case_gradient(&t.c, i, gradient[i]);
        }
        compare_slopes(&t, variants[v], "x", -1, t.x, d_x, t.count);
        for (int i = 0; i < t.c.list.count; i++) {
            int64_t n = mixer_case_elements(&t.c, i);
            double *values = malloc((size_t)n * sizeof *values);
            mixer_case_values(&t.c, i, values);
            compare_slopes(&t, variants[v], t.c.list.spec[i].name, i, values, gradient[i], n);
            free(values), free(gradient[i]);
        }
        free(t.x), free(t.weight), free(t.y), free(d_x);
        mixer_case_close(&t.c);
    }
}

/* A second backward adds to the parameters' gradients and overwrites the input's. */
static void gradients_accumulate(void **state)
{
    (void)state;
    for (int v = 0; v < VARIANTS; v++) {
        mixer_case c;
        mixer_case_open(&c, CASE_FAST_F64, variants[v], 2, 9, 9);
        int64_t count = 2 * 9 * c.layer.config.width;
        double *x = draw_normal(count, 3), *d_y = draw_normal(count, 4);
        double *y = malloc((size_t)count * sizeof *y), *d_x = malloc((size_t)count * sizeof *d_x);
        double once[64], twice[64];
        for (int round = 0; round < 2; round++) {
            mixer_case_forward(&c, 2, 9, x, y);
            mixer_case_backward(&c, 2, 9, x, d_y, round ? y : d_x);
            for (int i = 0; i < c.list.count; i++) {
                int64_t n = mixer_case_elements(&c, i);
                double *all = malloc((size_t)n * sizeof *all);
                mixer_case_gradient(&c, i, all);
                (round ? twice : once)[i] = sqrt(dot(all, all, n));
                free(all);
            }
        }
        assert_true(relative_error(y, d_x, count) == 0);
        for (int i = 0; i < c.list.count; i++) assert_true(fabs(twice[i] - 2 * once[i]) <= 1e-12 * twice[i]);
        free(x), free(d_y), free(y), free(d_x);
        mixer_case_close(&c);
    }
}

/* ---- fast against reference ---- */
typedef struct results {
    double *tensor[MIXER_PARAMETER_COUNT + 2];
    int64_t count[MIXER_PARAMETER_COUNT + 2];
    char name[MIXER_PARAMETER_COUNT + 2][32];
    int tensors;
} results;

/* To 8 significant bits, as bf16 has them, and then off by half a unit of the last one, up or down at random,
 * where there is a seed. */
static void round_values(double *x, int64_t count, uint64_t seed)
{
    double *side = draw_normal(count, seed);
    for (int64_t i = 0; i < count; i++) {
        int exponent;
        double fraction = frexp(x[i], &exponent), moved = seed == 0 ? 0 : side[i] < 0 ? -0.5 : 0.5;
        x[i] = ldexp((rint(fraction * 256) + moved) / 256, exponent);
    }
    free(side);
}

static void round_weights(mixer_case *c, uint64_t seed)
{
    for (int i = 0; i < c->list.count; i++) {
        int64_t n = mixer_case_elements(c, i);
        double *values = malloc((size_t)n * sizeof *values);
        mixer_case_values(c, i, values);
        round_values(values, c->list.spec[i].rank == 2 ? n : 0, seed ? seed + 1 + (uint64_t)i : 0);
        mixer_case_set(c, i, values);
        free(values);
    }
}

/* How inputs and weights are: as drawn, as bf16 holds them, or moved from there by half a unit. */
enum { DRAWN = -1, ROUNDED = 0, MOVED = 100, MOVED_AGAIN = 200 };
static results run(case_device kind, const char *options, int64_t B, int64_t L, int how)
{
    results r = {0};
    mixer_case c;
    mixer_case_open(&c, kind, options, B, L, L);
    int64_t count = B * L * c.layer.config.width;
    double *x = draw_normal(count, 21), *d_y = draw_normal(count, 22);
    if (how != DRAWN) {
        round_values(x, count, (uint64_t)how);
        round_values(d_y, count, how ? (uint64_t)how + 50 : 0);
        round_weights(&c, (uint64_t)how);
    }
    r.tensors = c.list.count + 2;
    for (int i = 0; i < r.tensors; i++) {
        r.count[i] = i < 2 ? count : mixer_case_elements(&c, i - 2);
        r.tensor[i] = malloc((size_t)r.count[i] * sizeof(double));
        snprintf(r.name[i], sizeof r.name[i], "%s%s", i > 1 ? "d_" : "",
                 i == 0   ? "y"
                 : i == 1 ? "d_x"
                          : c.list.spec[i - 2].name);
    }
    mixer_case_forward(&c, B, L, x, r.tensor[0]);
    mixer_case_backward(&c, B, L, x, d_y, r.tensor[1]);
    for (int i = 2; i < r.tensors; i++) mixer_case_gradient(&c, i - 2, r.tensor[i]);
    free(x), free(d_y);
    mixer_case_close(&c);
    return r;
}

static void results_free(results *r)
{
    for (int i = 0; i < r->tensors; i++) free(r->tensor[i]);
}

/* As relative_error, but a tensor whose terms cancel (at length 1 a softmax has no gradient) counts as one of
 * size 0.02: inputs, parameters and weights are of size 1. */
static double error_of(const results *a, const results *b, int i)
{
    double size = 0.02, worst = 0;
    for (int64_t k = 0; k < b->count[i]; k++) {
        size = fmax(size, fabs(b->tensor[i][k]));
        double distance = fabs(a->tensor[i][k] - b->tensor[i][k]);
        worst = distance > worst || isnan(distance) ? distance : worst;
    }
    return worst / size;
}

/* In single precision: what the plain loops lose there, and more for another order of sums. gdn's two numbers
 * per head collect d_g of all tokens, which the chunked form gets as differences of sums over a chunk. */
static double single_limit(const char *name, double own)
{
    double least = !strcmp(name, "d_A") || !strcmp(name, "d_dt_bias") ? 1e-4 : 2e-5;
    return fmax(least, 8 * own);
}

/* In bf16 activations and factors have 8 bits: the truth is the exact result for inputs and weights so
 * rounded. The measure is what moving those by half a unit does to it: every stage on the way rounds again.
 * Terms of size 1 are rounded before they cancel, so a smaller tensor counts as one of size 1/2. */
static const double bf16_limit = 2e-2, bf16_least = 0.5;

static double bf16_distance(const results *a, const results *b, int i)
{
    return relative_distance(a->tensor[i], b->tensor[i], a->count[i], bf16_least);
}

/* Also over several chunks of every kernel, at odd lengths. */
static void fast_agrees_with_reference(void **state)
{
    (void)state;
    static const int64_t lengths[] = {1, 33, 2, 150};
    for (int v = 0; v < VARIANTS; v++)
        for (int l = 0; l < (TEST_EMULATED ? 2 : 4); l++) {
            results want = run(CASE_REF_F64, variants[v], 2, lengths[l], DRAWN);
            results single = run(CASE_REF_F32, variants[v], 2, lengths[l], DRAWN);
            results rounded = run(CASE_REF_F64, variants[v], 2, lengths[l], ROUNDED);
            results moved = run(CASE_REF_F64, variants[v], 2, lengths[l], MOVED);
            results again = run(CASE_REF_F64, variants[v], 2, lengths[l], MOVED_AGAIN);
            for (int kind = CASE_FIRST; kind < CASE_END; kind++) {
                results got = run((case_device)kind, variants[v], 2, lengths[l], DRAWN);
                for (int i = 0; i < want.tensors; i++) {
                    double own = error_of(&single, &want, i), limit = single_limit(want.name[i], own);
                    if (kind <= CASE_FAST_F64) limit = 1e-11;
                    double error = error_of(&got, &want, i);
                    if (kind == CASE_REF_F32) limit = 1e-3;
                    if (kind == CASE_CUDA_BF16) {
                        error = bf16_distance(&got, &rounded, i);
                        own = fmax(bf16_distance(&moved, &rounded, i), bf16_distance(&again, &rounded, i));
                        limit = fmax(bf16_limit, 2 * own);
                    }
                    if (!(error <= limit))
                        fail_msg("%s, length %lld, %s, %s: relative error %g, allowed %g (plain loops %g)",
                                 variants[v], (long long)lengths[l], case_device_name[kind], want.name[i],
                                 error, limit, own);
                }
                results_free(&got);
            }
            results_free(&want), results_free(&single), results_free(&rounded);
            results_free(&moved), results_free(&again);
        }
}

/* ---- y at some rows only ---- */
/* Rows 0 (of a sequence's start), some in the middle, none in the first chunk of the second sequence. */
enum { ROWS_LENGTH = 75, ROWS_WANTED = 9 };
static const int64_t some_rows[ROWS_WANTED] = {0, 5, 6, 7, 8, 33, 74, 145, 149};

/* As all of y of which only these rows have a gradient; picked: by asking for these rows alone. */
static results run_rows(case_device kind, const char *options, int picked)
{
    results r = {0};
    mixer_case c;
    mixer_case_open(&c, kind, options, 2, ROWS_LENGTH, ROWS_LENGTH);
    int64_t d = c.layer.config.width, count = 2 * ROWS_LENGTH * d;
    double *x = draw_normal(count, 21), *weight = draw_normal(ROWS_WANTED * d, 22);
    double *d_y = calloc((size_t)count, sizeof *d_y), *y = malloc((size_t)count * sizeof *y);
    if (picked) c.row_count = ROWS_WANTED, c.rows = some_rows;
    for (int64_t i = 0; i < ROWS_WANTED; i++)
        memcpy(d_y + (picked ? i : some_rows[i]) * d, weight + i * d, (size_t)d * sizeof *d_y);
    r.tensors = c.list.count + 2;
    for (int i = 0; i < r.tensors; i++) {
        r.count[i] = i == 0 ? ROWS_WANTED * d : i == 1 ? count : mixer_case_elements(&c, i - 2);
        r.tensor[i] = malloc((size_t)r.count[i] * sizeof(double));
        snprintf(r.name[i], sizeof r.name[i], "%s%s", i > 1 ? "d_" : "",
                 i == 0   ? "y"
                 : i == 1 ? "d_x"
                          : c.list.spec[i - 2].name);
    }
    mixer_case_forward(&c, 2, ROWS_LENGTH, x, y);
    for (int64_t i = 0; i < ROWS_WANTED; i++)
        memcpy(r.tensor[0] + i * d, y + (picked ? i : some_rows[i]) * d, (size_t)d * sizeof *y);
    mixer_case_backward(&c, 2, ROWS_LENGTH, x, d_y, r.tensor[1]);
    for (int i = 2; i < r.tensors; i++) mixer_case_gradient(&c, i - 2, r.tensor[i]);
    free(x), free(weight), free(d_y), free(y);
    mixer_case_close(&c);
    return r;
}

static void some_rows_equal_all(void **state)
{
    (void)state;
    for (int v = 0; v < VARIANTS; v++)
        for (int kind = CASE_FIRST; kind < CASE_END; kind++) {
            if (TEST_EMULATED && (v + kind) % 4) continue;
            results want = run_rows((case_device)kind, variants[v], 0);
            results got = run_rows((case_device)kind, variants[v], 1);
            for (int i = 0; i < want.tensors; i++) {
                double error = error_of(&got, &want, i), limit = kind <= CASE_FAST_F64 ? 1e-12 : 1e-5;
                if (kind == CASE_CUDA_BF16) limit = bf16_limit;
                if (!(error <= limit))
                    fail_msg("%s, %s, %s: relative error %g, allowed %g", variants[v], case_device_name[kind],
                             want.name[i], error, limit);
            }
            results_free(&want), results_free(&got);
        }
}

/* ---- states ---- */
enum { WHOLE = 41 };

/* Feeds WHOLE tokens in pieces of the given sizes (the last one repeats) and compares with one forward. */
static void check_pieces(case_device kind, const char *options, const int64_t *piece, int pieces)
{
    const int64_t B = 3;
    mixer_case c;
    mixer_case_open(&c, kind, options, B, WHOLE, WHOLE);
    int64_t d = c.layer.config.width, count = B * WHOLE * d;
    double *x = draw_normal(count, 31), *want = malloc((size_t)count * sizeof *want);
    double *got = malloc((size_t)count * sizeof *got), *part = malloc((size_t)count * sizeof *part);
    double *out = malloc((size_t)count * sizeof *out);
    mixer_case_forward(&c, B, WHOLE, x, want);
    for (int again = 0; again < 2; again++) { /* a state starts afresh */
        mixer_case_start(&c);
        for (int64_t from = 0, k = 0; from < WHOLE; k++) {
            int64_t n = piece[k < pieces ? k : pieces - 1];
            if (n > WHOLE - from) n = WHOLE - from;
            for (int64_t b = 0; b < B; b++)
                memcpy(part + b * n * d, x + (b * WHOLE + from) * d, (size_t)(n * d) * sizeof *x);
            mixer_case_continue(&c, n, part, out);
            for (int64_t b = 0; b < B; b++)
                memcpy(got + (b * WHOLE + from) * d, out + b * n * d, (size_t)(n * d) * sizeof *x);
            from += n;
        }
        double error = relative_error(got, want, count), limit = kind <= CASE_FAST_F64 ? 1e-12 : 5e-5;
        if (kind == CASE_CUDA_BF16) limit = bf16_limit; /* rounded at other places */
        if (!(error <= limit))
            fail_msg("%s, %s, first piece %lld: relative error %g, allowed %g", options,
                     case_device_name[kind], (long long)piece[0], error, limit);
    }
    free(x), free(want), free(got), free(part), free(out);
    mixer_case_close(&c);
}

static void steps_equal_forward(void **state)
{
    (void)state;
    for (int kind = CASE_FIRST; kind < CASE_END; kind++)
        for (int v = 0; v < VARIANTS && !TEST_EMULATED; v++)
            check_pieces((case_device)kind, variants[v], (int64_t[]){1}, 1);
}

static void pieces_equal_whole(void **state)
{
    (void)state;
    for (int kind = CASE_FIRST; kind < CASE_END; kind++)
        for (int v = 0; v < VARIANTS; v++) {
            if (!TEST_EMULATED) check_pieces((case_device)kind, variants[v], (int64_t[]){20, 21}, 2);
            check_pieces((case_device)kind, variants[v], (int64_t[]){7, 1, 1, 16, 3, 1}, 6);
        }
}

/* ---- causality, and passes smaller than planned ---- */
static void later_tokens_change_nothing(void **state)
{
    (void)state;
    const int64_t L = 70, B = 2;
    for (int kind = CASE_FIRST; kind < CASE_END; kind++)
        for (int v = 0; v < VARIANTS; v++) {
            mixer_case c;
            mixer_case_open(&c, (case_device)kind, variants[v], B, L, L);
            int64_t d = c.layer.config.width, count = B * L * d;
            double *x = draw_normal(count, 41), *y = malloc((size_t)count * sizeof *y),
                   *z = malloc((size_t)count * sizeof *z);
            mixer_case_forward(&c, B, L, x, y);
            for (int64_t t = 0; t < L; t += TEST_EMULATED ? 60 : 23) {
                double before = x[(L + t) * d]; /* the second sequence */
                x[(L + t) * d] += 1;
                mixer_case_forward(&c, B, L, x, z);
                x[(L + t) * d] = before;
                assert_memory_equal(y, z, (size_t)((L + t) * d) * sizeof *y);
                assert_memory_not_equal(y + (L + t) * d, z + (L + t) * d, (size_t)d * sizeof *y);
            }
            free(x), free(y), free(z);
            mixer_case_close(&c);
        }
}

static void smaller_passes_agree(void **state)
{
    (void)state;
    for (int v = 0; v < VARIANTS; v++) {
        mixer_case large, exact;
        mixer_case_open(&large, CASE_FAST_F64, variants[v], 4, 50, 50);
        mixer_case_open(&exact, CASE_FAST_F64, variants[v], 3, 19, 19);
        int64_t count = 3 * 19 * large.layer.config.width;
        double *x = draw_normal(count, 51), *d_y = draw_normal(count, 52), *buffer[4];
        for (int i = 0; i < 4; i++) buffer[i] = malloc((size_t)count * sizeof(double));
        mixer_case_forward(&large, 3, 19, x, buffer[0]);
        mixer_case_backward(&large, 3, 19, x, d_y, buffer[1]);
        mixer_case_forward(&exact, 3, 19, x, buffer[2]);
        mixer_case_backward(&exact, 3, 19, x, d_y, buffer[3]);
        assert_true(relative_error(buffer[0], buffer[2], count) < 1e-12);
        assert_true(relative_error(buffer[1], buffer[3], count) < 1e-12);
        for (int i = 0; i < 4; i++) free(buffer[i]);
        free(x), free(d_y);
        mixer_case_close(&large), mixer_case_close(&exact);
    }
}

/* ---- learned periods ---- */
/* A period below S acts as S, with gradient 0; one above is followed from pass to pass. */
static void short_periods_are_raised(void **state)
{
    (void)state;
    mixer_case c;
    mixer_case_open(&c, CASE_FAST_F64, "mixer=blurry width=8 heads=2 modes=3 learned_period=true decay=true",
                    2, 30, 30);
    int64_t count = 2 * 30 * 8;
    int place = 0;
    while (strcmp(c.list.spec[place].name, "period")) place++;
    double *x = draw_normal(count, 61), *low = malloc((size_t)count * sizeof *low),
           *at = malloc((size_t)count * sizeof *at);
    double gradient[2];
    mixer_case_set(&c, place, (double[]){-3, 4.9});
    mixer_case_forward(&c, 2, 30, x, low);
    mixer_case_backward(&c, 2, 30, x, x, at);
    mixer_case_gradient(&c, place, gradient);
    assert_true(gradient[0] == 0 && gradient[1] == 0);
    mixer_case_set(&c, place, (double[]){5, 5});
    mixer_case_forward(&c, 2, 30, x, at);
    assert_true(relative_error(low, at, count) < 1e-14);
    mixer_case_set(&c, place, (double[]){5, 9.5});
    mixer_case_forward(&c, 2, 30, x, low);
    assert_true(relative_error(low, at, count) > 1e-3);
    mixer_case_backward(&c, 2, 30, x, x, at);
    mixer_case_gradient(&c, place, gradient);
    assert_true(gradient[1] != 0);
    free(x), free(low), free(at);
    mixer_case_close(&c);
}

/* test_mixers [PATTERN]: only the tests whose names match. */
int main(int argc, char **argv)
{
    const struct CMUnitTest on_devices[] = {
        cmocka_unit_test(fast_agrees_with_reference),  cmocka_unit_test(some_rows_equal_all),
        cmocka_unit_test(steps_equal_forward),         cmocka_unit_test(pieces_equal_whole),
        cmocka_unit_test(later_tokens_change_nothing),
    };
    const struct CMUnitTest on_cpu[] = {
        cmocka_unit_test(gradients_are_slopes),
        cmocka_unit_test(gradients_accumulate),
        cmocka_unit_test(smaller_passes_agree),
        cmocka_unit_test(short_periods_are_raised),
    };
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    int failed = cmocka_run_group_tests(on_devices, NULL, NULL);
    if (!TEST_ON_CUDA) failed += cmocka_run_group_tests(on_cpu, NULL, NULL);
    return failed;
}
