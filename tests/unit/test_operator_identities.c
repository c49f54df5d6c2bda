/* What the operator must equal: sliding-window and full attention, its own relative form, direct sums. */
#include "support/operator.h"

#include "base/dirichlet.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static op_variant all[16];
static int n_all;

static int setup(void **state)
{
    (void)state;
    n_all = op_variants(all, 16, 1);
    return 0;
}

/* o of softmax attention of one head over keys first(t) .. t; tensors are [B, L, 1, D]. */
static void window_attention(const op_case *c, const op_tensors *t, int64_t window, double *o)
{
    double *p = calloc((size_t)c->L, sizeof(double));
    for (int64_t b = 0; b < c->B; b++) {
        for (int64_t i = 0; i < c->L; i++) {
            int64_t first = i - window + 1 < 0 ? 0 : i - window + 1;
            double top = -INFINITY, sum = 0;
            for (int64_t u = first; u <= i; u++) {
                p[u] = 0;
                for (int64_t d = 0; d < c->Dk; d++)
                    p[u] += t->q[(b * c->L + i) * c->Dk + d] * t->k[(b * c->L + u) * c->Dk + d];
                p[u] /= sqrt((double)c->Dk);
                top = fmax(top, p[u]);
            }
            for (int64_t u = first; u <= i; u++) sum += p[u] = exp(p[u] - top);
            for (int64_t d = 0; d < c->Dv; d++) {
                double value = 0;
                for (int64_t u = first; u <= i; u++) value += p[u] / sum * t->v[(b * c->L + u) * c->Dv + d];
                o[(b * c->L + i) * c->Dv + d] = value;
            }
        }
    }
    free(p);
}

static void check_window(op_case c, int64_t window)
{
    op_tensors t;
    op_tensors_init(&c, &t);
    int64_t n = c.B * c.L * c.Dv;
    double *want = calloc((size_t)n, sizeof(double));
    window_attention(&c, &t, window, want);
    for (int i = 0; i < n_all; i++) {
        op_forward(&c, &all[i], &t);
        double error = op_error(t.o, want, n);
        if (!(error <= op_tolerance(&all[i])))
            fail_msg("%s: %s: error %g", op_describe(&c), op_variant_name(&all[i]), error);
    }
    free(want);
    op_tensors_free(&t);
}

static void sliding_window(void **state)
{
    (void)state;
    for (int64_t M = 1; M <= 9; M += 2)
        check_window((op_case){.B = 2,
                               .L = 75,
                               .H = 1,
                               .Hkv = 1,
                               .Dk = 7,
                               .Dv = 9,
                               .M = M,
                               .period = {2.0 * (double)M - 1},
                               .decay = 1,
                               .seed = 1},
                     2 * M - 1);
    check_window(
        (op_case){.B = 1, .L = 300, .H = 1, .Hkv = 1, .Dk = 16, .Dv = 16, .M = 32, .period = {1}, .decay = 1},
        63);
}

static void full_causal(void **state)
{
    (void)state;
    check_window((op_case){.B = 2, .L = 63, .H = 1, .Hkv = 1, .Dk = 8, .Dv = 5, .M = 32, .period = {63}}, 63);
    check_window((op_case){.B = 1, .L = 50, .H = 1, .Hkv = 1, .Dk = 8, .Dv = 5, .M = 32, .period = {63}}, 50);
    check_window(
        (op_case){
            .B = 1, .L = 50, .H = 1, .Hkv = 1, .Dk = 8, .Dv = 5, .M = 32, .period = {63}, .relative = 1},
        50);
}

/* T = r S: the grids agree at t = 0 mod r, and for r > 1 not elsewhere. */
static void grids_agree(void **state)
{
    (void)state;
    for (int r = 1; r <= 3; r++) {
        op_case c = {
            .B = 1, .L = 60, .H = 2, .Hkv = 1, .Dk = 6, .Dv = 4, .M = 4, .period = {7.0 * r}, .seed = 3};
        op_case rel = c;
        rel.relative = 1;
        op_tensors a, b;
        op_tensors_init(&c, &a);
        op_tensors_init(&rel, &b);
        for (int i = 0; i < n_all; i++) {
            op_forward(&c, &all[i], &a);
            op_forward(&rel, &all[i], &b);
            int64_t row = c.H * c.Dv;
            double elsewhere = 0;
            for (int64_t t = 0; t < c.L; t++) {
                double error = op_error(a.o + t * row, b.o + t * row, row);
                if (t % r != 0)
                    elsewhere = fmax(elsewhere, error);
                else if (!(error <= 10 * op_tolerance(&all[i])))
                    fail_msg("r=%d t=%lld %s: %g", r, (long long)t, op_variant_name(&all[i]), error);
            }
            if (r > 1) assert_true(elsewhere > 0.01);
        }
        op_tensors_free(&a);
        op_tensors_free(&b);
    }
}

/* T = S without decay: slot j holds the sum of all keys at positions congruent to j. */
static void slots_hold_congruent_sums(void **state)
{
    (void)state;
    op_case c = {.B = 1, .L = 50, .H = 1, .Hkv = 1, .Dk = 5, .Dv = 3, .M = 4, .period = {7}, .seed = 5};
    op_tensors t;
    op_tensors_init(&c, &t);
    double want[7 * 5] = {0};
    for (int64_t i = 0; i < c.L; i++)
        for (int64_t d = 0; d < 5; d++) want[i % 7 * 5 + d] += t.k[i * 5 + d];
    for (int i = 0; i < n_all; i++) {
        op_forward(&c, &all[i], &t);
        assert_true(op_error(t.k_out, want, 35) <= op_tolerance(&all[i]));
    }
    op_tensors_free(&t);
}

/* D(x) from its cosine sum, an independent formula. */
static double cosine_sum(int64_t S, double x)
{
    double sum = 1;
    for (int64_t m = 1; m <= (S - 1) / 2; m++) sum += 2 * cos(2 * M_PI * (double)m * x / (double)S);
    return sum / (double)S;
}

/* Relative slots by their definition, sum_t' D((t-t')S/T - j) k_t', and by the rotating cosine and sine
 * states. */
static void relative_oracle(const op_case *c, const op_tensors *in, double T, int rotating, double *o)
{
    int64_t S = op_slots(c), M = c->M, D = c->Dk;
    double *K = calloc((size_t)(S * D), 8), *V = calloc((size_t)(S * D), 8), *p = calloc((size_t)S, 8);
    double *states = calloc((size_t)(4 * M * D), 8); /* K cos, K sin, V cos, V sin, each [M, D] */
    for (int64_t t = 0; t < c->L; t++) {
        for (int64_t m = 0; m < M; m++) {
            double cm = cos(2 * M_PI * (double)m / T), sm = sin(2 * M_PI * (double)m / T);
            for (int64_t d = 0; d < D; d++)
                for (int which = 0; which < 2; which++) {
                    double *cosine = states + ((2 * which) * M + m) * D + d, *sine = cosine + M * D,
                           old = *cosine;
                    *cosine = cm * old - sm * *sine + (which ? in->v : in->k)[t * D + d];
                    *sine = sm * old + cm * *sine;
                }
        }
        memset(K, 0, (size_t)(S * D) * 8);
        memset(V, 0, (size_t)(S * D) * 8);
        for (int64_t j = 0; j < S; j++) {
            for (int64_t u = 0; !rotating && u <= t; u++) {
                double w = cosine_sum(S, (double)(t - u) * (double)S / T - (double)j);
                for (int64_t d = 0; d < D; d++)
                    K[j * D + d] += w * in->k[u * D + d], V[j * D + d] += w * in->v[u * D + d];
            }
            for (int64_t m = 0; rotating && m < M; m++) {
                double angle = 2 * M_PI * (double)m * (double)j / (double)S,
                       scale = (m ? 2.0 : 1.0) / (double)S;
                double A = scale * cos(angle), B = scale * sin(angle);
                for (int64_t d = 0; d < D; d++) {
                    K[j * D + d] += A * states[m * D + d] + B * states[(M + m) * D + d];
                    V[j * D + d] += A * states[(2 * M + m) * D + d] + B * states[(3 * M + m) * D + d];
                }
            }
        }
        double top = -INFINITY, sum = 0;
        for (int64_t j = 0; j < S; j++) {
            p[j] = -INFINITY;
            if (t < dirichlet_visible_from(S, T, j)) continue;
            p[j] = 0;
            for (int64_t d = 0; d < D; d++) p[j] += in->q[t * D + d] * K[j * D + d];
            top = fmax(top, p[j] /= sqrt((double)D));
        }
        for (int64_t j = 0; j < S; j++) sum += p[j] = exp(p[j] - top);
        for (int64_t d = 0; d < D; d++) {
            o[t * D + d] = 0;
            for (int64_t j = 0; j < S; j++) o[t * D + d] += p[j] / sum * V[j * D + d];
        }
    }
    free(K);
    free(V);
    free(p);
    free(states);
}

static void relative_equals_its_definitions(void **state)
{
    (void)state;
    const double periods[] = {9, 18, 23.7, 200};
    for (int i = 0; i < 4; i++) {
        op_case c = {.B = 1,
                     .L = 70,
                     .H = 1,
                     .Hkv = 1,
                     .Dk = 6,
                     .Dv = 6,
                     .M = 5,
                     .period = {periods[i]},
                     .relative = 1};
        op_tensors t;
        op_tensors_init(&c, &t);
        double want[70 * 6];
        for (int rotating = 0; rotating < 2; rotating++) {
            relative_oracle(&c, &t, periods[i], rotating, want);
            for (int n = 0; n < n_all; n++) {
                op_forward(&c, &all[n], &t);
                double error = op_error(t.o, want, 70 * 6);
                if (!(error <= 10 * op_tolerance(&all[n])))
                    fail_msg("T=%g %s %s: %g", periods[i], rotating ? "rotating" : "direct",
                             op_variant_name(&all[n]), error);
            }
        }
        op_tensors_free(&t);
    }
}

static void weights_have_their_properties(void **state)
{
    (void)state;
    const int64_t starts[] = {0, 1, 1000, 1000000007, 999999999989};
    const double periods[] = {15, 30, 37.5, 15.000001, 1e6 + 1.0 / 3};
    double phi[15], slope[15], later[15], earlier[15];
    for (int p = 0; p < 5; p++)
        for (int i = 0; i < 5; i++)
            for (int64_t t = starts[i]; t < starts[i] + 40; t++) {
                double T = periods[p], sum = 0;
                assert_ok(blurry_weights(8, T, t, 1, phi));
                for (int j = 0; j < 15; j++) {
                    double x = fmod((double)t, T) * 15 / T - j;
                    /* The rounding of t/T, allowed early for periods that are not integers (dirichlet.c). */
                    double phase = T != rint(T) && t < 1 << 21 ? 4e-16 * (double)t : 0;
                    assert_true(fabs(phi[j] - cosine_sum(15, x)) < 1e-13 + phase);
                    sum += phi[j];
                }
                assert_true(fabs(sum - 1) < 1e-13);
            }
    for (int p = 0; p < 5; p++)
        for (int64_t t = 0; t < 200; t += 7) {
            double T = periods[p] + 0.25, h = 1e-6;
            dirichlet_weights_dT(15, T, t, phi, slope);
            dirichlet_weights(15, T + h, t, later);
            dirichlet_weights(15, T - h, t, earlier);
            for (int j = 0; j < 15; j++)
                assert_true(fabs(slope[j] - (later[j] - earlier[j]) / (2 * h)) < 1e-7 * (1 + fabs(slope[j])));
        }
    /* One-hot at T = S, everywhere; one period of an integer T sums to r in each slot. */
    assert_ok(blurry_weights(8, 15, 1000000000000, 1, phi));
    for (int j = 0; j < 15; j++) assert_true(phi[j] == (j == 1000000000000 % 15));
    double total[15] = {0};
    for (int64_t t = 0; t < 45; t++) {
        assert_ok(blurry_weights(8, 45, 1000 + t, 1, phi));
        for (int j = 0; j < 15; j++) total[j] += phi[j];
    }
    for (int j = 0; j < 15; j++) assert_true(fabs(total[j] - 3) < 1e-12);
    /* Periods beyond all positions, up to the largest double, and many slots. */
    assert_ok(blurry_weights(8, 1.7e308, 1000000, 1, phi));
    assert_true(phi[0] == 1 && fabs(phi[1]) < 1e-200);
    double *many = calloc(4095, sizeof *many), sum = 0;
    assert_ok(blurry_weights(2048, 12345.678, 987654321, 1, many));
    for (int j = 0; j < 4095; j++) sum += many[j];
    assert_true(fabs(sum - 1) < 1e-12);
    free(many);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sliding_window),
        cmocka_unit_test(full_causal),
        cmocka_unit_test(grids_agree),
        cmocka_unit_test(slots_hold_congruent_sums),
        cmocka_unit_test(relative_equals_its_definitions),
        cmocka_unit_test(weights_have_their_properties),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
