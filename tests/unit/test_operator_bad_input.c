/* Bad input: a status, a message that names field and value, no crash and no write. Tables of single
 * mistakes. */
#include "support/operator.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- descriptors
 * -------------------------------------------------------------------------------------------- */

static const double period_good[2] = {14, 15.5}, period_nan[2] = {14, NAN}, period_inf[2] = {INFINITY, 14},
                    period_minus_inf[2] = {-INFINITY, 14}, period_negative[2] = {14, -3};

static blurry_attn_desc good_desc(void)
{
    blurry_attn_desc d;
    blurry_attn_desc_init(&d);
    d.batch = 2, d.length = 10, d.heads = 4, d.heads_kv = 2, d.dim_k = 8, d.dim_v = 4, d.modes = 4;
    d.period = period_good, d.dtype = BLURRY_F64, d.threads = 1;
    return d;
}

typedef struct desc_case {
    const char *text; /* must be in the message */
    blurry_status status;
    size_t offset;
    char kind; /* 'i' int64, 'n' int, 'd' double, 'p' pointer */
    int64_t integer;
    double number;
    const void *pointer;
} desc_case;

#define FIELD(f) offsetof(blurry_attn_desc, f)
#define BAD_I(f, x, t)                                                                                       \
    {                                                                                                        \
        t, BLURRY_E_INVALID, FIELD(f), 'i', x, 0, NULL                                                       \
    }
#define BAD_N(f, x, t)                                                                                       \
    {                                                                                                        \
        t, BLURRY_E_INVALID, FIELD(f), 'n', x, 0, NULL                                                       \
    }
#define BAD_D(f, x, t)                                                                                       \
    {                                                                                                        \
        t, BLURRY_E_INVALID, FIELD(f), 'd', 0, x, NULL                                                       \
    }
#define BAD_P(x, t)                                                                                          \
    {                                                                                                        \
        t, BLURRY_E_INVALID, FIELD(period), 'p', 0, 0, x                                                     \
    }

static const desc_case desc_cases[] = {
    BAD_I(batch, 0, "batch is 0"),
    BAD_I(batch, -1, "batch is -1"),
    BAD_I(batch, INT64_MIN, "batch is -9223372036854775808"),
    BAD_I(batch, INT64_MAX, "batch is 9223372036854775807"),
    BAD_I(length, -1, "length is -1"),
    BAD_I(length, INT64_MAX, "length is 9223372036854775807"),
    BAD_I(heads, 0, "heads is 0"),
    BAD_I(heads, -4, "heads is -4"),
    BAD_I(heads, 5, "heads is 5"),
    BAD_I(heads, INT64_MAX, "heads is 9223372036854775807"),
    BAD_I(heads_kv, 3, "heads_kv, 3"),
    BAD_I(heads_kv, -2, "heads_kv is -2"),
    BAD_I(heads_kv, 8, "heads_kv, 8"),
    BAD_I(dim_k, 0, "dim_k is 0"),
    BAD_I(dim_k, -8, "dim_k is -8"),
    BAD_I(dim_k, INT64_MAX, "dim_k is 9223372036854775807"),
    BAD_I(dim_v, -1, "dim_v is -1"),
    BAD_I(dim_v, INT64_MAX, "dim_v is"),
    BAD_I(modes, 0, "modes is 0"),
    BAD_I(modes, -1, "modes is -1"),
    BAD_I(modes, INT64_MAX, "modes is 9223372036854775807"),
    BAD_I(modes, INT64_MIN, "modes is"),
    BAD_I(fold, -1, "fold is -1"),
    BAD_I(fold, 100000, "fold is 100000"),
    BAD_N(decay, 2, "decay is 2"),
    BAD_N(decay, -1, "decay is -1"),
    BAD_N(grid, 7, "grid is 7"),
    BAD_N(grid, -1, "grid is -1"),
    BAD_N(dtype, 2, "dtype is 2"),
    BAD_N(dtype, -5, "dtype is -5"),
    BAD_N(threads, -1, "threads is -1"),
    BAD_N(threads, 100000, "threads is 100000"),
    BAD_N(reference, 3, "reference is 3"),
    BAD_D(scale, NAN, "scale is"),
    BAD_D(scale, INFINITY, "scale is inf"),
    BAD_D(scale, -1, "scale is -1"),
    BAD_P(period_nan, "period[1] is"),
    BAD_P(period_inf, "period[0] is inf"),
    BAD_P(period_minus_inf, "period[0] is -inf"),
    BAD_P(period_negative, "period[1] is -3"),
    {"relative", BLURRY_E_UNSUPPORTED, FIELD(grid), 'n', BLURRY_GRID_RELATIVE, 0, NULL}, /* with decay */
    {"batch", BLURRY_E_MEMORY, FIELD(length), 'i', (int64_t)1 << 40, 0,
     NULL}, /* with the batch below: too much */
};

static void descriptors(void **state)
{
    (void)state;
    blurry_attn_plan *plan;
    for (size_t i = 0; i < sizeof desc_cases / sizeof desc_cases[0]; i++) {
        const desc_case *c = &desc_cases[i];
        blurry_attn_desc d = good_desc();
        if (c->status == BLURRY_E_MEMORY) d.batch = (int64_t)1 << 31, d.heads = 1 << 20, d.heads_kv = 2;
        char *at = (char *)&d + c->offset;
        if (c->kind == 'i') memcpy(at, &c->integer, sizeof c->integer);
        if (c->kind == 'n') memcpy(at, &(int){(int)c->integer}, sizeof(int));
        if (c->kind == 'd') memcpy(at, &c->number, sizeof c->number);
        if (c->kind == 'p') memcpy(at, &c->pointer, sizeof c->pointer);
        plan = (blurry_attn_plan *)&d;
        assert_fails(blurry_attn_plan_create(&plan, &d), c->status, c->text);
        assert_null(plan);
    }
    assert_fails(blurry_attn_plan_create(&plan, NULL), BLURRY_E_INVALID, "desc is NULL");
    assert_fails(blurry_attn_plan_create(NULL, NULL), BLURRY_E_INVALID, "plan is NULL");
    blurry_attn_desc d = good_desc();
    d.period = NULL, d.resolution = NAN;
    assert_fails(blurry_attn_plan_create(&plan, &d), BLURRY_E_INVALID, "resolution is");
    d.resolution = 1e308;
    assert_fails(blurry_attn_plan_create(&plan, &d), BLURRY_E_INVALID, "resolution is 1e+308");
    blurry_attn_desc_init(NULL);
    blurry_attn_plan_destroy(NULL);
    blurry_attn_plan_destroy(&plan);
    blurry_attn_plan_desc(NULL, &d);
    blurry_attn_plan_desc(NULL, NULL);
    assert_string_equal(blurry_attn_plan_kernel(NULL), "");
    assert_true(blurry_attn_forward_workspace(NULL) == 0 && blurry_attn_state_bytes(NULL) == 0);
    double w[7];
    assert_fails(blurry_weights(0, 7, 0, 1, w), BLURRY_E_INVALID, "modes is 0");
    assert_fails(blurry_weights(4, NAN, 0, 1, w), BLURRY_E_INVALID, "period is");
    assert_fails(blurry_weights(4, 7, -1, 1, w), BLURRY_E_INVALID, "start is -1");
    assert_fails(blurry_weights(4, 7, 0, -1, w), BLURRY_E_INVALID, "count is -1");
    assert_fails(blurry_weights(4, 7, 0, 1, NULL), BLURRY_E_INVALID, "weights is NULL");
    assert_fails(blurry_weights(4, 7, INT64_MAX, INT64_MAX, w), BLURRY_E_INVALID, "start is");
}

/* ---- calls
 * -------------------------------------------------------------------------------------------------- */

/* Everything a call of the good plan needs, in one guarded block of memory per tensor. */
typedef struct bench {
    blurry_attn_plan *plan;
    void *q, *k, *v, *o, *d_o, *d_q, *d_k, *d_v, *state_in, *state_out, *saved, *workspace, *d_slots[4];
    double d_period[2];
    int64_t offsets[3];
    void *states[2];
    size_t bytes;
} bench;

static bench bench_open(void)
{
    bench b = {0};
    blurry_attn_desc d = good_desc();
    assert_ok(blurry_attn_plan_create(&b.plan, &d));
    size_t token = sizeof(double) * 20;
    void **parts[] = {&b.q,   &b.k,   &b.v,          &b.o,          &b.d_o,        &b.d_q,
                      &b.d_k, &b.d_v, &b.d_slots[0], &b.d_slots[1], &b.d_slots[2], &b.d_slots[3]};
    for (int i = 0; i < 12; i++) *parts[i] = op_guarded(token * 4 * 8);
    b.state_in = op_guarded(2 * blurry_attn_state_bytes(b.plan));
    b.state_out = op_guarded(2 * blurry_attn_state_bytes(b.plan));
    b.saved = op_guarded(blurry_attn_saved_bytes(b.plan) + 64);
    b.bytes = blurry_attn_forward_workspace(b.plan);
    if (b.bytes < blurry_attn_backward_workspace(b.plan)) b.bytes = blurry_attn_backward_workspace(b.plan);
    if (b.bytes < blurry_attn_step_workspace(b.plan)) b.bytes = blurry_attn_step_workspace(b.plan);
    b.workspace = op_guarded(b.bytes + 64);
    for (int i = 0; i < 2; i++) {
        b.states[i] = (char *)b.state_in + (size_t)i * blurry_attn_state_bytes(b.plan);
        assert_ok(blurry_attn_state_init(b.plan, b.states[i]));
    }
    memset(b.q, 0, token * 32), memset(b.k, 0, token * 32), memset(b.v, 0, token * 32),
        memset(b.d_o, 0, token * 32);
    b.offsets[1] = 4, b.offsets[2] = 20;
    return b;
}

static void bench_close(bench *b)
{
    void *parts[] = {b->q,          b->k,          b->v,          b->o,         b->d_o,   b->d_q,
                     b->d_k,        b->d_v,        b->state_in,   b->state_out, b->saved, b->workspace,
                     b->d_slots[0], b->d_slots[1], b->d_slots[2], b->d_slots[3]};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) op_guarded_free(parts[i]);
    blurry_attn_plan_destroy(&b->plan);
}

static blurry_attn_forward_args forward_args(bench *b)
{
    return (blurry_attn_forward_args){.q = b->q,
                                      .k = b->k,
                                      .v = b->v,
                                      .o = b->o,
                                      .state_in = b->state_in,
                                      .state_out = b->state_out,
                                      .workspace = b->workspace,
                                      .workspace_bytes = b->bytes};
}

/* The outputs still hold what op_guarded put there. */
static void assert_untouched(const void *memory, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) assert_int_equal(((const unsigned char *)memory)[i], 0xFF);
}

static void refuse_forward(bench *b, blurry_attn_forward_args a, const char *text)
{
    assert_fails(blurry_attn_forward(b->plan, &a), BLURRY_E_INVALID, text);
    assert_untouched(b->o, 640);
    assert_untouched(b->state_out, 2 * blurry_attn_state_bytes(b->plan));
    assert_untouched(b->workspace, b->bytes);
}

#define REFUSE(change, text)                                                                                 \
    do {                                                                                                     \
        blurry_attn_forward_args a = forward_args(&b);                                                       \
        change;                                                                                              \
        refuse_forward(&b, a, text);                                                                         \
    } while (0)

static void forward_calls(void **state)
{
    (void)state;
    bench b = bench_open();
    REFUSE(a.q = NULL, "q is NULL");
    REFUSE(a.k = NULL, "k is NULL");
    REFUSE(a.v = NULL, "v is NULL");
    REFUSE(a.o = NULL, "o is NULL");
    REFUSE(a.workspace = NULL, "workspace is NULL");
    REFUSE(a.workspace_bytes = 0, "workspace_bytes is 0");
    REFUSE(a.workspace_bytes = blurry_attn_forward_workspace(b.plan) - 1, "workspace_bytes is");
    REFUSE(a.workspace = (char *)a.workspace + 8, "align it to 64");
    REFUSE(a.q = (const char *)a.q + 1, "q is at");
    REFUSE(a.o = (char *)a.o + 4, "o is at");
    REFUSE(a.state_in = (const char *)a.state_in + 8, "align states to 64");
    REFUSE(a.state_out = (char *)a.state_out + 8, "state_out is at");
    REFUSE(a.o = b.q, "o at");
    REFUSE(a.state_out = (char *)b.state_in + 64, "overlaps");
    REFUSE(a.o = b.workspace, "overlaps");
    int64_t offsets[][3] = {{1, 4, 20},        {0, 5, 4},  {0, 4, 21},       {0, -1, 4},
                            {0, 0, INT64_MAX}, {-1, 0, 4}, {0, INT64_MAX, 4}};
    const char *texts[] = {"offsets[0] is 1", "offsets[2] is 4",  "offsets[2] is 21", "offsets[1] is -1",
                           "offsets[2] is",   "offsets[0] is -1", "offsets[2] is 4"};
    for (int i = 0; i < 7; i++) REFUSE(a.offsets = offsets[i], texts[i]);
    static const int64_t rows[][2] = {{-1, 3}, {3, 3}, {4, 2}, {0, 20}, {INT64_MIN, INT64_MAX}};
    const char *row_texts[] = {"rows[0] is -1", "rows[1] is 3", "rows[1] is 2", "rows[1] is 20",
                               "rows[0] is -9223372036854775808"};
    for (int i = 0; i < 5; i++) REFUSE((a.rows = rows[i], a.row_count = 2), row_texts[i]);
    REFUSE((a.rows = rows[0], a.row_count = -1), "row_count is -1");
    REFUSE((a.rows = rows[0], a.row_count = 21), "row_count is 21");
    assert_fails(blurry_attn_forward(NULL, &(blurry_attn_forward_args){0}), BLURRY_E_INVALID, "plan is NULL");
    assert_fails(blurry_attn_forward(b.plan, NULL), BLURRY_E_INVALID, "args is NULL");
    blurry_attn_forward_args a = forward_args(&b);
    a.offsets = b.offsets;
    assert_ok(blurry_attn_forward(b.plan, &a)); /* the bench itself is good */
    a.state_out = b.state_in;
    assert_ok(blurry_attn_forward(b.plan, &a));
    bench_close(&b);
}

static void backward_calls(void **state)
{
    (void)state;
    bench b = bench_open();
    const blurry_attn_backward_args good = {.q = b.q,
                                            .k = b.k,
                                            .v = b.v,
                                            .d_o = b.d_o,
                                            .d_q = b.d_q,
                                            .d_k = b.d_k,
                                            .d_v = b.d_v,
                                            .workspace = b.workspace,
                                            .workspace_bytes = b.bytes};
    struct {
        const char *text;
        blurry_attn_backward_args a;
    } cases[15];
    for (int i = 0; i < 15; i++) cases[i].a = good;
    int n = 0;
    cases[n].text = "d_o is NULL", cases[n++].a.d_o = NULL;
    cases[n].text = "d_q is NULL", cases[n++].a.d_q = NULL;
    cases[n].text = "d_k is NULL", cases[n++].a.d_k = NULL;
    cases[n].text = "d_v is NULL", cases[n++].a.d_v = NULL;
    cases[n].text = "q is NULL", cases[n++].a.q = NULL;
    cases[n].text = "workspace_bytes is 7", cases[n++].a.workspace_bytes = 7;
    cases[n].text = "workspace is at", cases[n++].a.workspace = (char *)b.workspace + 32;
    cases[n].text = "d_v_state_out is NULL", cases[n++].a.d_k_state_out = b.d_slots[0];
    cases[n].text = "d_k_state_out is NULL", cases[n++].a.d_v_state_out = b.d_slots[0];
    cases[n].text = "d_v_state_in is NULL", cases[n++].a.d_k_state_in = b.d_slots[1];
    cases[n].text = "d_k at", cases[n++].a.d_k = b.d_q;
    cases[n].text = "d_q at", cases[n++].a.d_q = (void *)(uintptr_t)b.q;
    cases[n].text = "d_period is at", cases[n++].a.d_period = (double *)((char *)b.d_slots[0] + 4);
    cases[n].text = "offsets[0] is 20", cases[n++].a.offsets = &b.offsets[2];
    static const int64_t descending[] = {4, 2};
    cases[n].text = "rows[1] is 2", cases[n].a.rows = descending, cases[n++].a.row_count = 2;
    for (int i = 0; i < n; i++) {
        assert_fails(blurry_attn_backward(b.plan, &cases[i].a), BLURRY_E_INVALID, cases[i].text);
        assert_untouched(b.d_q, 640);
        assert_untouched(b.d_k, 320);
        assert_untouched(b.workspace, b.bytes);
    }
    assert_fails(blurry_attn_backward(NULL, &good), BLURRY_E_INVALID, "plan is NULL");
    assert_fails(blurry_attn_backward(b.plan, NULL), BLURRY_E_INVALID, "args is NULL");
    assert_ok(blurry_attn_backward(b.plan, &good));
    bench_close(&b);
}

static void step_calls(void **state)
{
    (void)state;
    bench b = bench_open();
    const blurry_attn_step_args good = {.count = 2,
                                        .q = b.q,
                                        .k = b.k,
                                        .v = b.v,
                                        .o = b.o,
                                        .states = b.states,
                                        .workspace = b.workspace,
                                        .workspace_bytes = b.bytes};
    void *none[2] = {b.states[0], NULL}, *odd[2] = {(char *)b.states[0] + 8, b.states[1]},
         *twice[2] = {b.states[1], b.states[1]};
    struct {
        const char *text;
        blurry_attn_step_args a;
    } cases[13];
    for (int i = 0; i < 13; i++) cases[i].a = good;
    int n = 0;
    cases[n].text = "count is 3", cases[n++].a.count = 3;
    cases[n].text = "count is -1", cases[n++].a.count = -1;
    cases[n].text = "q is NULL", cases[n++].a.q = NULL;
    cases[n].text = "k is NULL", cases[n++].a.k = NULL;
    cases[n].text = "v is NULL", cases[n++].a.v = NULL;
    cases[n].text = "o is NULL", cases[n++].a.o = NULL;
    cases[n].text = "states is NULL", cases[n++].a.states = NULL;
    cases[n].text = "both given", cases[n++].a.state_batch = b.states[0];
    cases[n].text = "states[1] is NULL", cases[n++].a.states = none;
    cases[n].text = "states[0] is at", cases[n++].a.states = odd;
    cases[n].text = "given twice", cases[n++].a.states = twice;
    cases[n].text = "workspace_bytes is 1", cases[n++].a.workspace_bytes = 1;
    cases[n].text = "workspace is NULL", cases[n++].a.workspace = NULL;
    size_t bytes = 2 * blurry_attn_state_bytes(b.plan);
    void *before = malloc(bytes);
    memcpy(before, b.state_in, bytes);
    for (int i = 0; i < n; i++) {
        assert_fails(blurry_attn_step(b.plan, &cases[i].a), BLURRY_E_INVALID, cases[i].text);
        assert_untouched(b.o, 256);
        assert_memory_equal(before, b.state_in, bytes);
    }
    assert_fails(blurry_attn_step(NULL, &good), BLURRY_E_INVALID, "plan is NULL");
    assert_fails(blurry_attn_step(b.plan, NULL), BLURRY_E_INVALID, "args is NULL");
    assert_ok(blurry_attn_step(b.plan, &good));
    free(before);
    bench_close(&b);
}

/* Every single flipped byte of a header is noticed; states of other plans are refused; positions end. */
static void damaged_states(void **state)
{
    (void)state;
    bench b = bench_open();
    blurry_attn_forward_args a = forward_args(&b);
    for (int i = 0; i < 64; i++) {
        unsigned char *at = (unsigned char *)b.states[1] + i, old = *at;
        *at ^= 0x10;
        assert_true(blurry_attn_forward(b.plan, &a) != BLURRY_OK);
        assert_non_null(strstr(blurry_last_error(), "state_in[1]"));
        assert_untouched(b.o, 640);
        int64_t position = -7;
        assert_true(blurry_attn_state_get(b.plan, b.states[1], &position, NULL, NULL) != BLURRY_OK);
        assert_int_equal(position, -7);
        *at = old;
    }
    for (int i = 0; i < 7; i++) {
        blurry_attn_desc d = good_desc();
        if (i == 0) d.modes = 5;
        if (i == 1) d.dim_k = 9;
        if (i == 2) d.decay = 0;
        if (i == 3) d.dtype = BLURRY_F32;
        if (i == 4) d.period = NULL;
        if (i == 5) d.fold = 3;
        if (i == 6) d.heads_kv = 4, d.period = NULL, d.resolution = 2;
        blurry_attn_plan *other;
        assert_ok(blurry_attn_plan_create(&other, &d));
        int64_t position;
        assert_fails(blurry_attn_state_get(other, b.states[0], &position, NULL, NULL), BLURRY_E_INVALID,
                     "another shape");
        blurry_attn_plan_destroy(&other);
    }
    double *slots = calloc(2 * 7 * 8, sizeof(double));
    int64_t last = (int64_t)1 << 53;
    assert_fails(blurry_attn_state_set(b.plan, b.states[0], -1, slots, slots), BLURRY_E_INVALID,
                 "position is -1");
    assert_fails(blurry_attn_state_set(b.plan, b.states[0], INT64_MAX, slots, slots), BLURRY_E_INVALID,
                 "position is 9");
    assert_fails(blurry_attn_state_set(b.plan, b.states[0], 0, NULL, slots), BLURRY_E_INVALID,
                 "k_slots is NULL");
    assert_fails(blurry_attn_state_set(b.plan, NULL, 0, slots, slots), BLURRY_E_INVALID, "state is NULL");
    assert_fails(blurry_attn_state_init(b.plan, NULL), BLURRY_E_INVALID, "state is NULL");
    assert_fails(blurry_attn_state_init(NULL, b.states[0]), BLURRY_E_INVALID, "plan is NULL");
    assert_ok(blurry_attn_state_set(b.plan, b.states[0], last - 9, slots, slots));
    assert_fails(blurry_attn_forward(b.plan, &a), BLURRY_E_INVALID, "position 9007199254740983");
    assert_ok(blurry_attn_state_set(b.plan, b.states[0], last, slots, slots));
    blurry_attn_step_args s = {.count = 1,
                               .q = b.q,
                               .k = b.k,
                               .v = b.v,
                               .o = b.o,
                               .states = b.states,
                               .workspace = b.workspace,
                               .workspace_bytes = b.bytes};
    assert_fails(blurry_attn_step(b.plan, &s), BLURRY_E_INVALID, "no token can follow");
    free(slots);
    bench_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(descriptors), cmocka_unit_test(forward_calls),  cmocka_unit_test(backward_calls),
        cmocka_unit_test(step_calls),  cmocka_unit_test(damaged_states),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
