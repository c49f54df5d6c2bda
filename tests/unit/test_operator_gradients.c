/* Every gradient against central differences in double: q, k, v, slots on entry, periods; all forms of the
 * operator. */
#include "support/operator.h"

#include <math.h>
#include <stdlib.h>

static const op_variant reference = {BLURRY_F64, 1, CPU_ISA_BASE};

static double dot(const double *a, const double *b, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

static double loss(const op_case *c, const op_variant *v, op_tensors *t)
{
    int64_t slots = c->B * c->Hkv * op_slots(c);
    op_forward(c, v, t);
    return dot(t->o, t->d_o, op_tokens(c) * c->H * c->Dv) + dot(t->k_out, t->d_k_out, slots * c->Dk) +
           dot(t->v_out, t->d_v_out, slots * c->Dv);
}

/* A fourth-order central difference, good to about 1e-10 of the loss's size. */
static double difference(const op_case *c, const op_variant *v, op_tensors *t, double *x, double h)
{
    double old = *x, f[4];
    const double at[4] = {-2, -1, 1, 2};
    for (int i = 0; i < 4; i++) {
        *x = old + at[i] * h;
        f[i] = loss(c, v, t);
    }
    *x = old;
    return (f[0] - 8 * f[1] + 8 * f[2] - f[3]) / (12 * h);
}

static void check_tensor(const op_case *c, const op_variant *v, op_tensors *t, const char *name, double *x,
                         const double *gradient, int64_t n)
{
    uint64_t pick = 99;
    double size = 0;
    for (int64_t i = 0; i < n; i++) size = fmax(size, fabs(gradient[i]));
    for (int64_t trial = 0; trial < 12 && trial < n; trial++) {
        int64_t i = n <= 12 ? trial : (int64_t)((op_random(&pick) * 0.5 + 0.5) * (double)n) % n;
        double numeric = difference(c, v, t, &x[i], 1e-3);
        if (fabs(numeric - gradient[i]) > 1e-7 * (1 + size))
            fail_msg("%s: %s: d_%s[%lld] is %.12g, differences say %.12g", op_describe(c), op_variant_name(v),
                     name, (long long)i, gradient[i], numeric);
    }
}

static void check_case(op_case c, const op_variant *v)
{
    op_tensors t, g;
    op_tensors_init(&c, &t);
    op_tensors_init(&c, &g);
    op_run(&c, v, &g);
    int64_t n = op_tokens(&c), slots = c.B * c.Hkv * op_slots(&c);
    check_tensor(&c, v, &t, "q", t.q, g.d_q, n * c.H * c.Dk);
    check_tensor(&c, v, &t, "k", t.k, g.d_k, n * c.Hkv * c.Dk);
    check_tensor(&c, v, &t, "v", t.v, g.d_v, n * c.Hkv * c.Dv);
    if (c.with_state) {
        check_tensor(&c, v, &t, "k_in", t.k_in, g.d_k_in, slots * c.Dk);
        check_tensor(&c, v, &t, "v_in", t.v_in, g.d_v_in, slots * c.Dv);
    }
    for (int64_t h = 0; h < c.Hkv; h++) {
        if (c.period[h] <= (double)op_slots(&c)) continue;
        /* The step shrinks with the position: phi depends on t/T. */
        double numeric = difference(&c, v, &t, &c.period[h], 1e-3 / (1 + (double)c.position));
        if (fabs(numeric - g.d_period[h]) > 2e-7 * (g.d_period_abs[h] + 1))
            fail_msg("%s: %s: d_period[%lld] is %.12g, differences say %.12g", op_describe(&c),
                     op_variant_name(v), (long long)h, g.d_period[h], numeric);
        assert_true(fabs(g.d_period[h]) <= g.d_period_abs[h] * (1 + 1e-12));
    }
    op_tensors_free(&t);
    op_tensors_free(&g);
}

/* Periods off the ties of rint(j*T/S), where a difference would cross a mask. */
static const op_case cases[] = {
    {.B = 1,
     .L = 20,
     .H = 1,
     .Hkv = 1,
     .Dk = 4,
     .Dv = 5,
     .M = 4,
     .period = {9.3},
     .decay = 1,
     .with_state = 1},
    {.B = 1,
     .L = 20,
     .H = 1,
     .Hkv = 1,
     .Dk = 4,
     .Dv = 5,
     .M = 4,
     .period = {9.3},
     .decay = 0,
     .with_state = 1},
    {.B = 2,
     .L = 13,
     .H = 4,
     .Hkv = 2,
     .Dk = 3,
     .Dv = 2,
     .M = 3,
     .period = {7.1, 11.9},
     .decay = 1,
     .seed = 1},
    {.B = 2,
     .L = 17,
     .H = 2,
     .Hkv = 1,
     .Dk = 3,
     .Dv = 4,
     .M = 5,
     .period = {13.6},
     .relative = 1,
     .with_state = 1},
    {.B = 1, .L = 9, .H = 3, .Hkv = 3, .Dk = 2, .Dv = 3, .M = 2, .period = {3.2, 8.7, 50.3}, .relative = 1},
    {.B = 1,
     .L = 30,
     .H = 1,
     .Hkv = 1,
     .Dk = 4,
     .Dv = 4,
     .M = 1,
     .period = {2.7},
     .decay = 1,
     .with_state = 1},
    {.B = 3,
     .H = 2,
     .Hkv = 2,
     .Dk = 3,
     .Dv = 3,
     .M = 3,
     .period = {6.2, 5.4},
     .decay = 1,
     .packed = 1,
     .offsets = {0, 7, 7, 20},
     .with_state = 1,
     .position = 12},
    {.B = 1, .L = 12, .H = 1, .Hkv = 1, .Dk = 3, .Dv = 3, .M = 4, .period = {14.0}, .decay = 1, .scale = 0.3},
    {.B = 1,
     .L = 80,
     .H = 1,
     .Hkv = 1,
     .Dk = 3,
     .Dv = 3,
     .M = 9,
     .period = {35.3},
     .decay = 1,
     .with_state = 1},
    {.B = 1,
     .L = 80,
     .H = 1,
     .Hkv = 1,
     .Dk = 3,
     .Dv = 3,
     .M = 9,
     .period = {35.3},
     .decay = 0,
     .with_state = 1},
};

static void reference_gradients(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) check_case(cases[i], &reference);
}

static void fast_gradients(void **state)
{
    (void)state;
    op_variant all[16];
    int n = op_variants(all, 16, 0);
    for (int v = 0; v < n; v++)
        for (size_t i = 0; all[v].dtype == BLURRY_F64 && i < sizeof cases / sizeof cases[0]; i++)
            check_case(cases[i], &all[v]);
}

/* A period below S counts as S, and its gradient is 0. */
static void raised_period(void **state)
{
    (void)state;
    op_variant all[16];
    int n = op_variants(all, 16, 1);
    for (int v = 0; v < n; v++)
        for (int decay = 0; decay < 2; decay++) {
            op_case low = {.B = 1,
                           .L = 20,
                           .H = 2,
                           .Hkv = 2,
                           .Dk = 4,
                           .Dv = 4,
                           .M = 4,
                           .period = {2.5, 7},
                           .decay = decay};
            op_case at = low;
            at.period[0] = 7;
            op_tensors a, b;
            op_tensors_init(&low, &a);
            op_tensors_init(&at, &b);
            op_run(&low, &all[v], &a);
            op_run(&at, &all[v], &b);
            assert_memory_equal(a.o, b.o, 20 * 2 * 4 * sizeof(double));
            assert_true(a.d_period[0] == 0 && a.d_period_abs[0] == 0);
            assert_true(a.d_period[1] == b.d_period[1] && b.d_period[0] != 0);
            op_tensors_free(&a);
            op_tensors_free(&b);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reference_gradients),
        cmocka_unit_test(fast_gradients),
        cmocka_unit_test(raised_period),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
