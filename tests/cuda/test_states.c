/* What is CUDA's own about states and steps: refusals found on the device, replays of captured steps, states
 * that travel as bytes, and descriptors a CUDA plan does not take. */
#include "support/device_memory.h"
#include "support/operator.h"

#include "blurry/device.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const op_case small = {.B = 2,
                              .L = 1,
                              .H = 4,
                              .Hkv = 2,
                              .Dk = 16,
                              .Dv = 12,
                              .M = 8,
                              .period = {30, 22.5},
                              .decay = 1,
                              .seed = 3};
/* The same for the kernel of width 64. */
static const op_case wide = {.B = 2,
                             .L = 1,
                             .H = 4,
                             .Hkv = 2,
                             .Dk = 64,
                             .Dv = 64,
                             .M = 8,
                             .period = {30, 22.5},
                             .decay = 1,
                             .seed = 3};
static const op_variant on_cuda = {BLURRY_F32, 0, CPU_ISA_BASE, BLURRY_DEVICE_CUDA, BLURRY_F32};

typedef struct setup {
    blurry_attn_plan *plan;
    float *q, *k, *v, *o;
    char *states;
    void *workspace;
    size_t bytes;
} setup;

static setup open_setup(const op_case *c, const op_variant *variant)
{
    setup s = {.plan = op_plan(c, variant, 0)};
    uint64_t random = 5;
    s.bytes = blurry_attn_state_bytes(s.plan);
    float **tensors[] = {&s.q, &s.k, &s.v, &s.o};
    for (int i = 0; i < 4; i++) {
        int64_t n = c->B * (i == 0 || i == 3 ? c->H : c->Hkv) * (i < 2 ? c->Dk : c->Dv);
        *tensors[i] = op_guarded((size_t)n * sizeof(float));
        for (int64_t e = 0; i < 3 && e < n; e++) (*tensors[i])[e] = (float)op_random(&random);
    }
    s.states = op_guarded((size_t)c->B * s.bytes);
    s.workspace = op_guarded(blurry_attn_step_workspace(s.plan));
    assert_ok(blurry_attn_states_init(s.plan, s.states, c->B, NULL));
    op_wait(s.plan);
    return s;
}

static void close_setup(setup *s)
{
    void *memory[] = {s->q, s->k, s->v, s->o, s->states, s->workspace};
    for (int i = 0; i < 6; i++) op_guarded_free(memory[i]);
    blurry_attn_plan_destroy(&s->plan);
}

static blurry_status step(void *context, blurry_stream stream)
{
    setup *s = context;
    blurry_attn_step_args a = {.count = small.B,
                               .q = s->q,
                               .k = s->k,
                               .v = s->v,
                               .o = s->o,
                               .state_batch = s->states,
                               .workspace = s->workspace,
                               .workspace_bytes = blurry_attn_step_workspace(s->plan),
                               .stream = stream};
    return blurry_attn_step(s->plan, &a);
}

/* A damaged state, a state of another plan, one at the last position: NaN, a message, and nothing changed;
 * the other sequence of the batch is not disturbed. */
static void check_refusals(const op_case *c)
{
    for (int kind = 0; kind < 3; kind++) {
        setup s = open_setup(c, &on_cuda);
        op_case other = *c;
        other.period[1] = 23;
        setup t = open_setup(&other, &on_cuda);
        if (kind == 0) s.states[24] ^= 1; /* position */
        if (kind == 1) memcpy(s.states, t.states, s.bytes);
        if (kind == 2) {
            float *zero = calloc((size_t)(c->Hkv * 15 * c->Dk), sizeof(float));
            assert_ok(blurry_attn_state_set(s.plan, s.states, (int64_t)1 << 53, zero, zero));
            free(zero);
        }
        char *before = malloc(s.bytes);
        memcpy(before, s.states, s.bytes);
        assert_ok(step(&s, NULL));
        assert_fails(blurry_attn_sync(s.plan, NULL), BLURRY_E_INVALID, "refused");
        op_wait(s.plan); /* reported once */
        assert_memory_equal(before, s.states, s.bytes);
        for (int64_t i = 0; i < c->H * c->Dv; i++) {
            assert_true(isnan(s.o[i]));
            assert_true(isfinite(s.o[c->H * c->Dv + i]));
        }
        if (kind < 2)
            assert_fails(blurry_attn_state_get(s.plan, s.states, NULL, NULL, NULL),
                         kind ? BLURRY_E_INVALID : BLURRY_E_FORMAT, kind ? "another shape" : "damaged");
        free(before);
        close_setup(&s);
        close_setup(&t);
    }
}

static void refusals(void **state)
{
    (void)state;
    check_refusals(&small);
    check_refusals(&wide);
}

/* Captured steps replayed equal steps called one by one, bit by bit. */
static void check_replays(const op_case *c)
{
    enum { CALLS = 3, REPEATS = 5, STEPS = 2 + CALLS * (1 + REPEATS) };
    setup s = open_setup(c, &on_cuda), t = open_setup(c, &on_cuda);
    blurry_timing how = {.warmup = 2, .repeats = REPEATS, .calls = CALLS, .graph = 1};
    double seconds[REPEATS];
    assert_ok(blurry_device_time(BLURRY_DEVICE_CUDA, &how, step, &s, seconds));
    for (int i = 0; i < STEPS; i++) assert_ok(step(&t, NULL));
    op_wait(s.plan);
    op_wait(t.plan);
    int64_t position;
    assert_ok(blurry_attn_state_get(s.plan, s.states, &position, NULL, NULL));
    assert_int_equal(position, STEPS);
    assert_memory_equal(s.states, t.states, (size_t)c->B * s.bytes);
    assert_memory_equal(s.o, t.o, (size_t)(c->B * c->H * c->Dv) * sizeof(float));
    close_setup(&s);
    close_setup(&t);
}

static void replays(void **state)
{
    (void)state;
    check_replays(&small);
    check_replays(&wide);
}

/* Slots go in and come out through host and device memory alike. */
static void slots_in_and_out(void **state)
{
    (void)state;
    setup s = open_setup(&small, &on_cuda);
    enum { K = 2 * 15 * 16, V = 2 * 15 * 12 };
    float k[K], v[V], *k_out = op_guarded(sizeof k), *v_out = op_guarded(sizeof v);
    uint64_t random = 9;
    for (int i = 0; i < K; i++) k[i] = (float)op_random(&random);
    for (int i = 0; i < V; i++) v[i] = (float)op_random(&random);
    int64_t position = 0;
    assert_ok(blurry_attn_state_set(s.plan, s.states, 123456789012, k, v));
    assert_ok(blurry_attn_state_get(s.plan, s.states, &position, k_out, v_out));
    assert_int_equal(position, 123456789012);
    assert_memory_equal(k, k_out, sizeof k);
    assert_memory_equal(v, v_out, sizeof v);
    op_guarded_free(k_out);
    op_guarded_free(v_out);
    close_setup(&s);
}

static void descriptors(void **state)
{
    (void)state;
    const struct {
        blurry_attn_desc d;
        blurry_status status;
        const char *text;
    } cases[] = {
        {{.dtype = BLURRY_F64}, BLURRY_E_INVALID, "dtype is 1"},
        {{.state_dtype = BLURRY_F64}, BLURRY_E_INVALID, "state_dtype is 1"},
        {{.reference = 1}, BLURRY_E_UNSUPPORTED, "reference is 1"},
        {{.fold = 33}, BLURRY_E_INVALID, "fold is 33"},
        {{.dim_k = 129}, BLURRY_E_UNSUPPORTED, "dim_k is 129"},
        {{.modes = 1 << 20}, BLURRY_E_UNSUPPORTED, "modes is"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        blurry_attn_desc d, wish = cases[i].d;
        blurry_attn_plan *plan;
        blurry_attn_desc_init(&d);
        d.device = BLURRY_DEVICE_CUDA, d.dtype = wish.dtype, d.state_dtype = wish.state_dtype;
        d.reference = wish.reference, d.fold = wish.fold;
        if (wish.dim_k) d.dim_k = wish.dim_k;
        if (wish.modes) d.modes = wish.modes;
        assert_fails(blurry_attn_plan_create(&plan, &d), cases[i].status, cases[i].text);
        assert_null(plan);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(refusals), cmocka_unit_test(replays),
                                       cmocka_unit_test(slots_in_and_out), cmocka_unit_test(descriptors)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
