/* Blurry attention: forward, backward and decode of every variant against the double reference, through the
 * public API. */
#include "base/memory.h"
#include "base/status.h"
#include "selftest/selftest.h"

#include <stdlib.h>
#include <string.h>

typedef struct shape {
    int64_t B, L, H, Hkv, Dk, Dv, M;
    double period[2];
    int decay, relative;
    int64_t position;
} shape;

static const shape shapes[] = {
    {2, 40, 2, 2, 8, 8, 4, {7, 14}, 1, 0, 0},
    {1, 130, 4, 2, 16, 24, 16, {62, 77.7}, 1, 0, 1000003},
    {2, 77, 2, 1, 33, 17, 20, {39, 0}, 0, 0, 5},
    {1, 300, 1, 1, 64, 64, 32, {126, 0}, 1, 0, 0},
    {1, 200, 2, 1, 64, 64, 64, {254, 0}, 0, 0, 999999999989},
    {1, 90, 2, 2, 12, 12, 9, {34, 20.5}, 0, 1, 0},
    {1, 20, 1, 1, 1, 1, 1, {1, 0}, 1, 0, 0},
    {3, 1, 2, 2, 5, 3, 3, {9.5, 11}, 1, 0, 12},
};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

/* Results as doubles; `all` is the one allocation they point into. */
typedef struct results {
    double *all, *q, *k, *v, *d_o, *slots_k, *slots_v; /* inputs */
    double *o, *d_q, *d_k, *d_v, *d_slots_k, *d_slots_v, *k_out, *v_out, *stepped;
    int64_t n_q, n_k, n_v, n_o, n_sk, n_sv;
} results;

static blurry_status results_init(const shape *s, results *r)
{
    int64_t n = s->B * s->L, slots = s->B * s->Hkv * (2 * s->M - 1);
    r->n_q = n * s->H * s->Dk, r->n_k = n * s->Hkv * s->Dk, r->n_v = n * s->Hkv * s->Dv,
    r->n_o = n * s->H * s->Dv;
    r->n_sk = slots * s->Dk, r->n_sv = slots * s->Dv;
    int64_t sizes[] = {r->n_q, r->n_k, r->n_v,  r->n_o,  r->n_sk, r->n_sv, r->n_o, r->n_q,
                       r->n_k, r->n_v, r->n_sk, r->n_sv, r->n_sk, r->n_sv, r->n_o};
    double **parts[] = {&r->q,         &r->k,         &r->v,     &r->d_o,   &r->slots_k,
                        &r->slots_v,   &r->o,         &r->d_q,   &r->d_k,   &r->d_v,
                        &r->d_slots_k, &r->d_slots_v, &r->k_out, &r->v_out, &r->stepped};
    int64_t total = 0;
    for (int i = 0; i < 15; i++) total += sizes[i];
    void *memory;
    STATUS_TRY(memory_alloc(&memory, (size_t)total, sizeof(double), "self test tensors"));
    r->all = memory;
    double *at = r->all;
    for (int i = 0; i < 15; i++) *parts[i] = at, at += sizes[i];
    uint64_t state = (uint64_t)(s->L * 131 + s->M);
    for (int64_t i = 0; r->q + i < r->o; i++) r->q[i] = selftest_random(&state);
    return BLURRY_OK;
}

static void convert(blurry_dtype dtype, int to_type, double *numbers, void *elements, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (dtype == BLURRY_F64)
            to_type ? (((double *)elements)[i] = numbers[i]) : (numbers[i] = ((double *)elements)[i]);
        else
            to_type ? (((float *)elements)[i] = (float)numbers[i]) : (numbers[i] = ((float *)elements)[i]);
}

/* A call's memory in the plan's type: one block, parts aligned to 64. */
typedef struct block {
    char *memory;
    size_t used, size, element;
    blurry_dtype dtype;
} block;

static void *part(block *m, size_t bytes)
{
    void *at = m->memory + m->used;
    m->used += (bytes + 63) / 64 * 64;
    return at;
}

static void *given(block *m, double *from, int64_t n)
{
    void *at = part(m, (size_t)n * m->element);
    convert(m->dtype, 1, from, at, n);
    return at;
}

static void *wanted(block *m, int64_t n)
{
    return part(m, (size_t)n * m->element);
}

static blurry_status run_step(const blurry_attn_plan *plan, const shape *s, results *r, char *states,
                              block *m)
{
    size_t bytes = blurry_attn_step_workspace(plan), state = blurry_attn_state_bytes(plan);
    void *q = wanted(m, s->B * s->H * s->Dk), *k = wanted(m, s->B * s->Hkv * s->Dk),
         *v = wanted(m, s->B * s->Hkv * s->Dv);
    void *o = wanted(m, s->B * s->H * s->Dv), *workspace = part(m, bytes);
    void **pointers = part(m, (size_t)s->B * sizeof(void *));
    for (int64_t b = 0; b < s->B; b++) pointers[b] = states + (size_t)b * state;
    for (int64_t i = 0; i < s->L; i++) {
        for (int64_t b = 0; b < s->B; b++) {
            int64_t n = b * s->L + i;
            convert(m->dtype, 1, r->q + n * s->H * s->Dk, (char *)q + (size_t)(b * s->H * s->Dk) * m->element,
                    s->H * s->Dk);
            convert(m->dtype, 1, r->k + n * s->Hkv * s->Dk,
                    (char *)k + (size_t)(b * s->Hkv * s->Dk) * m->element, s->Hkv * s->Dk);
            convert(m->dtype, 1, r->v + n * s->Hkv * s->Dv,
                    (char *)v + (size_t)(b * s->Hkv * s->Dv) * m->element, s->Hkv * s->Dv);
        }
        blurry_attn_step_args a = {s->B, q, k, v, o, pointers, workspace, bytes};
        STATUS_TRY(blurry_attn_step(plan, &a));
        for (int64_t b = 0; b < s->B; b++)
            convert(m->dtype, 0, r->stepped + (b * s->L + i) * s->H * s->Dv,
                    (char *)o + (size_t)(b * s->H * s->Dv) * m->element, s->H * s->Dv);
    }
    return BLURRY_OK;
}

static blurry_status run_whole(const blurry_attn_plan *plan, const shape *s, results *r, char *states,
                               block *m)
{
    size_t state = blurry_attn_state_bytes(plan), fb = blurry_attn_forward_workspace(plan);
    size_t bb = blurry_attn_backward_workspace(plan);
    void *q = given(m, r->q, r->n_q), *k = given(m, r->k, r->n_k), *v = given(m, r->v, r->n_v);
    void *d_o = given(m, r->d_o, r->n_o), *o = wanted(m, r->n_o);
    void *slots_k = given(m, r->slots_k, r->n_sk), *slots_v = given(m, r->slots_v, r->n_sv);
    void *d_q = wanted(m, r->n_q), *d_k = wanted(m, r->n_k), *d_v = wanted(m, r->n_v);
    void *d_sk = wanted(m, r->n_sk), *d_sv = wanted(m, r->n_sv),
         *saved = part(m, blurry_attn_saved_bytes(plan));
    char *out = part(m, (size_t)s->B * state);
    void *workspace = part(m, fb > bb ? fb : bb);
    for (int64_t b = 0; b < s->B; b++)
        STATUS_TRY(blurry_attn_state_set(plan, states + (size_t)b * state, s->position,
                                         (char *)slots_k + (size_t)(b * r->n_sk / s->B) * m->element,
                                         (char *)slots_v + (size_t)(b * r->n_sv / s->B) * m->element));
    blurry_attn_forward_args f = {.q = q,
                                  .k = k,
                                  .v = v,
                                  .o = o,
                                  .state_in = states,
                                  .state_out = out,
                                  .saved = saved,
                                  .workspace = workspace,
                                  .workspace_bytes = fb};
    STATUS_TRY(blurry_attn_forward(plan, &f));
    blurry_attn_backward_args g = {.q = q,
                                   .k = k,
                                   .v = v,
                                   .d_o = d_o,
                                   .state_in = states,
                                   .saved = saved,
                                   .d_k_state_out = slots_k,
                                   .d_v_state_out = slots_v,
                                   .d_q = d_q,
                                   .d_k = d_k,
                                   .d_v = d_v,
                                   .d_k_state_in = d_sk,
                                   .d_v_state_in = d_sv,
                                   .workspace = workspace,
                                   .workspace_bytes = bb};
    STATUS_TRY(blurry_attn_backward(plan, &g));
    convert(m->dtype, 0, r->o, o, r->n_o);
    convert(m->dtype, 0, r->d_q, d_q, r->n_q);
    convert(m->dtype, 0, r->d_k, d_k, r->n_k);
    convert(m->dtype, 0, r->d_v, d_v, r->n_v);
    convert(m->dtype, 0, r->d_slots_k, d_sk, r->n_sk);
    convert(m->dtype, 0, r->d_slots_v, d_sv, r->n_sv);
    for (int64_t b = 0; b < s->B; b++) {
        STATUS_TRY(blurry_attn_state_get(plan, out + (size_t)b * state, NULL, slots_k, slots_v));
        convert(m->dtype, 0, r->k_out + b * r->n_sk / s->B, slots_k, r->n_sk / s->B);
        convert(m->dtype, 0, r->v_out + b * r->n_sv / s->B, slots_v, r->n_sv / s->B);
    }
    return BLURRY_OK;
}

/* Forward, backward and steps of one shape by one kind of kernel. */
static blurry_status run_shape(const shape *s, blurry_dtype dtype, int reference, results *r)
{
    blurry_attn_desc d;
    blurry_attn_desc_init(&d);
    d.batch = s->B, d.length = s->L, d.heads = s->H, d.heads_kv = s->Hkv, d.dim_k = s->Dk, d.dim_v = s->Dv;
    d.modes = s->M, d.period = s->period, d.decay = s->decay, d.dtype = dtype, d.reference = reference;
    d.grid = s->relative ? BLURRY_GRID_RELATIVE : BLURRY_GRID_ABSOLUTE;
    blurry_attn_plan *plan;
    STATUS_TRY(blurry_attn_plan_create(&plan, &d));
    size_t fb = blurry_attn_forward_workspace(plan), bb = blurry_attn_backward_workspace(plan);
    block m = {.element = dtype == BLURRY_F32 ? 4 : 8, .dtype = dtype};
    m.size = 4 * (size_t)(r->n_q + r->n_k + r->n_v + r->n_o + r->n_sk + r->n_sv) * m.element +
             2 * (size_t)s->B * blurry_attn_state_bytes(plan) + (fb > bb ? fb : bb) +
             blurry_attn_saved_bytes(plan) + blurry_attn_step_workspace(plan) + 64 * 64;
    void *memory;
    blurry_status status = memory_alloc(&memory, m.size, 1, "self test memory");
    if (status == BLURRY_OK) {
        m.memory = memory;
        char *states = part(&m, (size_t)s->B * blurry_attn_state_bytes(plan));
        status = run_whole(plan, s, r, states, &m);
        if (status == BLURRY_OK) status = run_step(plan, s, r, states, &m);
        memory_free(memory);
    }
    blurry_attn_plan_destroy(&plan);
    return status;
}

/* One kernel over all shapes; the instruction set is chosen as a user would, by BLURRY_ISA. */
static blurry_status run_kernel(selftest *test, blurry_dtype dtype, int reference, cpu_isa isa)
{
    selftest_worst whole = {0}, decode = {0};
    blurry_status status = BLURRY_OK;
    for (int i = 0; i < SHAPES && status == BLURRY_OK; i++) {
        results want = {0}, got = {0};
        status = results_init(&shapes[i], &want);
        if (status == BLURRY_OK) status = results_init(&shapes[i], &got);
        if (status == BLURRY_OK) status = run_shape(&shapes[i], BLURRY_F64, 1, &want);
        if (status == BLURRY_OK) status = run_shape(&shapes[i], dtype, reference, &got);
        if (status == BLURRY_OK) {
            selftest_compare(&whole, "o", got.o, want.o, want.n_o);
            selftest_compare(&whole, "k_state", got.k_out, want.k_out, want.n_sk);
            selftest_compare(&whole, "v_state", got.v_out, want.v_out, want.n_sv);
            selftest_compare(&whole, "d_q", got.d_q, want.d_q, want.n_q);
            selftest_compare(&whole, "d_k", got.d_k, want.d_k, want.n_k);
            selftest_compare(&whole, "d_v", got.d_v, want.d_v, want.n_v);
            selftest_compare(&whole, "d_k_state", got.d_slots_k, want.d_slots_k, want.n_sk);
            selftest_compare(&whole, "d_v_state", got.d_slots_v, want.d_slots_v, want.n_sv);
            selftest_compare(&decode, "o", got.stepped, want.o, want.n_o);
            whole.cases++, decode.cases++;
        }
        memory_free(want.all);
        memory_free(got.all);
    }
    STATUS_TRY(status);
    const char *name = reference ? "ref" : cpu_isa_name(isa);
    STATUS_TRY(selftest_row(test, "attention", name, dtype, selftest_tolerance(dtype), &whole));
    return selftest_row(test, "decode", name, dtype, selftest_tolerance(dtype), &decode);
}

blurry_status selftest_attention(selftest *test)
{
    const char *wish = getenv("BLURRY_ISA");
    char *kept = wish ? strdup(wish) : NULL;
    blurry_status status = BLURRY_OK;
    for (int type = 0; type < 2 && status == BLURRY_OK; type++) {
        status = run_kernel(test, (blurry_dtype)type, 1, CPU_ISA_BASE);
        for (int isa = 0; isa < CPU_ISA_COUNT && status == BLURRY_OK; isa++) {
            if (!cpu_isa_supported((cpu_isa)isa)) continue;
            setenv("BLURRY_ISA", cpu_isa_name((cpu_isa)isa), 1);
            status = run_kernel(test, (blurry_dtype)type, 0, (cpu_isa)isa);
        }
    }
    if (kept)
        setenv("BLURRY_ISA", kept, 1);
    else
        unsetenv("BLURRY_ISA");
    free(kept);
    return status;
}
