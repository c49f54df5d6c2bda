/* Random shapes: every fast variant against the double reference, forward and backward, all results. */
#include "support/operator.h"

#include "support/device_memory.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static uint64_t draw_state;

static int64_t draw(int64_t low, int64_t high)
{
    double u = op_random(&draw_state) * 0.5 + 0.5;
    int64_t x = low + (int64_t)(u * (double)(high - low + 1));
    return x > high ? high : x;
}

static double draw_period(int64_t S, int grid_relative)
{
    static const double wide[] = {30, 100, 1000, 1e6};
    double s = (double)S;
    switch (draw(0, 7)) {
    case 0:
        return s;
    case 1:
        return 2 * s;
    case 2:
        return s * (double)draw(1, 6);
    case 3:
        return s + (double)draw(0, 3 * S);
    case 4:
        return s * wide[draw(0, grid_relative ? 1 : 3)];
    case 5:
        return s * 0.5; /* raised */
    default:
        return s * (1 + 4 * (op_random(&draw_state) * 0.5 + 0.5));
    }
}

static op_case draw_case(int index)
{
    static const int64_t positions[] = {
        0, 0, 0, 1, 17, 1000, 1000003, 1000000007, 999999999937, 1000000000000};
    op_case c = {
        .B = draw(1, 3), .Dk = draw(1, 24), .Dv = draw(1, 24), .M = draw(1, 24), .seed = (uint64_t)index};
    if (draw(0, 9) == 0) c.Dk = c.Dv = 64;
    if (draw(0, 11) == 0) c.M = draw(25, 80);
    c.Hkv = draw(1, 3), c.H = c.Hkv * draw(1, 2);
    c.relative = draw(0, 3) == 0, c.decay = c.relative ? 0 : (int)draw(0, 1);
    int64_t S = 2 * c.M - 1;
    const int64_t lengths[] = {0, 1, S - 1, S, S + 1, 2 * S + 3, draw(1, 90), draw(100, 250)};
    c.L = lengths[draw(0, 7)];
    for (int64_t h = 0; h < c.Hkv; h++) c.period[h] = draw_period(S, c.relative);
    if (draw(0, 2) == 0)
        for (int64_t h = 1; h < c.Hkv; h++) c.period[h] = c.period[0];
    c.position = positions[draw(0, 9)];
    c.with_state = (int)draw(0, 1);
    c.threads = (int)draw(1, 4);
    if (draw(0, 3) == 0) {
        c.packed = 1;
        for (int64_t b = 0; b < c.B; b++) c.offsets[b + 1] = c.offsets[b] + lengths[draw(0, 7)] % 200;
    }
    if (draw(0, 5) == 0) c.scale = 0.05 + fabs(op_random(&draw_state));
    return c;
}

static void check(int first, int count)
{
    static const op_variant reference = {BLURRY_F64, 1, CPU_ISA_BASE};
    op_variant all[16];
    int n = op_variants(all, 16, 1);
    for (int i = first; i < first + count; i++) {
        draw_state = (uint64_t)i * 1000003;
        op_case c = draw_case(i);
        op_tensors want, got;
        op_tensors_init(&c, &want);
        op_tensors_init(&c, &got);
        op_run(&c, &reference, &want);
        for (int v = 0; v < n; v++) {
            if (all[v].reference && all[v].dtype == BLURRY_F64) continue;
            op_run(&c, &all[v], &got);
            op_compare(&c, &all[v], &got, &want, OP_FORWARD | OP_GRADIENTS | OP_CONDITIONED);
        }
        op_tensors_free(&want);
        op_tensors_free(&got);
    }
}

static void random_shapes(void **state)
{
    (void)state;
    check(0, TEST_EMULATED ? 10 : 210);
}

/* ---- outputs of some tokens only ---- */
/* Rows of `all` [tokens, width] that the case wants. */
static void pick(const op_case *c, int64_t width, const double *from, double *to)
{
    for (int64_t i = 0; i < c->row_count; i++)
        memcpy(to + i * width, from + c->rows[i] * width, (size_t)width * sizeof(double));
}

/* Equal to all outputs, of which only the wanted rows have a gradient. */
static void check_rows(const op_case *c, const op_variant *variants, int n)
{
    static const op_variant reference = {BLURRY_F64, 1, CPU_ISA_BASE};
    op_case whole = *c;
    whole.rows = NULL, whole.row_count = 0;
    op_tensors every, want, got;
    op_tensors_init(&whole, &every);
    op_tensors_init(&whole, &want); /* larger than needed; the same inputs but for q and d_o */
    op_tensors_init(&whole, &got);
    int64_t q = c->H * c->Dk, o = c->H * c->Dv, tokens = op_tokens(c);
    pick(c, q, every.q, want.q), pick(c, o, every.d_o, want.d_o);
    pick(c, q, every.q, got.q), pick(c, o, every.d_o, got.d_o);
    memset(every.d_o, 0, (size_t)(tokens * o) * sizeof(double));
    for (int64_t i = 0; i < c->row_count; i++)
        memcpy(every.d_o + c->rows[i] * o, want.d_o + i * o, (size_t)o * sizeof(double));
    op_run(&whole, &reference, &every);
    pick(c, o, every.o, every.o), pick(c, q, every.d_q, every.d_q); /* rows move towards the start */
    op_run(c, &reference, &want);
    op_compare(c, &reference, &want, &every, OP_FORWARD | OP_GRADIENTS);
    for (int v = 0; v < n; v++) {
        op_run(c, &variants[v], &got);
        op_compare(c, &variants[v], &got, &want, OP_FORWARD | OP_GRADIENTS | OP_CONDITIONED);
    }
    op_tensors_free(&every);
    op_tensors_free(&want);
    op_tensors_free(&got);
}

/* On CUDA there is no such thing yet, and it says so. */
static void refuse_rows(const op_variant *variant)
{
    static const int64_t rows[] = {3};
    op_case c = {.B = 1, .L = 10, .H = 1, .Hkv = 1, .Dk = 8, .Dv = 8, .M = 4, .period = {14}};
    blurry_attn_plan *plan = op_plan(&c, variant, 0);
    size_t bytes = blurry_attn_forward_workspace(plan);
    void *workspace = op_guarded(bytes);
    assert_fails(blurry_attn_forward(plan, &(blurry_attn_forward_args){.workspace = workspace,
                                                                       .workspace_bytes = bytes,
                                                                       .rows = rows,
                                                                       .row_count = 1}),
                 BLURRY_E_UNSUPPORTED, "rows is not NULL");
    op_guarded_free(workspace);
    blurry_attn_plan_destroy(&plan);
}

static void some_rows(void **state)
{
    (void)state;
    op_variant all[16];
    int n = op_variants(all, 16, 0);
    for (int v = 0; v < n && TEST_ON_CUDA; v++) refuse_rows(&all[v]);
    for (int i = 0; i < 35 && !TEST_ON_CUDA; i++) {
        draw_state = (uint64_t)i * 7000003;
        op_case c = draw_case(5000 + i);
        int64_t tokens = op_tokens(&c), one_in = (int64_t[]){1, 2, 8, 40, 1 << 20}[i % 5];
        int64_t *rows = calloc((size_t)tokens + 1, sizeof *rows);
        for (int64_t t = 0; t < tokens; t++)
            if (draw(1, one_in) == 1) rows[c.row_count++] = t;
        c.rows = rows;
        check_rows(&c, all, n);
        free(rows);
    }
}

/* Shapes around the sizes of blocks, chunks and vectors. */
static void edges(void **state)
{
    (void)state;
    static const op_variant reference = {BLURRY_F64, 1, CPU_ISA_BASE};
    static const int64_t lengths[] = {15, 17, 32, 33, 64, 65, 129};
    static const int64_t modes[] = {1, 2, 8, 9, 16, 32, 33, 64};
    op_variant all[16];
    int n = op_variants(all, 16, 0);
    for (int i = 0; i < 7; i++)
        for (int m = 0; m < 8; m++) {
            if (TEST_EMULATED && (i + 3 * m) % 7) continue;
            op_case c = {.B = 1,
                         .L = lengths[i],
                         .H = 1,
                         .Hkv = 1,
                         .Dk = 8 + (i + m) % 3,
                         .Dv = 16 - m % 4,
                         .M = modes[m],
                         .decay = (i + m) % 2,
                         .with_state = m % 2,
                         .seed = 1000 + (uint64_t)i};
            c.period[0] = (double)op_slots(&c) * (1 + (i * m) % 5 * 0.5);
            op_tensors want, got;
            op_tensors_init(&c, &want);
            op_tensors_init(&c, &got);
            op_run(&c, &reference, &want);
            for (int v = 0; v < n; v++) {
                op_run(&c, &all[v], &got);
                op_compare(&c, &all[v], &got, &want, OP_FORWARD | OP_GRADIENTS | OP_CONDITIONED);
            }
            op_tensors_free(&want);
            op_tensors_free(&got);
        }
}

int main(void)
{
    const char *first = getenv("BLURRY_TEST_FIRST"), *count = getenv("BLURRY_TEST_COUNT");
    if (first && count) { /* longer runs by hand: another range of random shapes */
        check(atoi(first), atoi(count));
        return 0;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(random_shapes), cmocka_unit_test(edges),
                                       cmocka_unit_test(some_rows)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
