/* Blurry attention: forward, backward and decode of every variant against the double reference, through the
 * public API. */
#include "base/memory.h"
#include "base/status.h"
#include "blurry/device.h"
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

/* ---- numbers ---- */
static uint16_t to_bf16(double x)
{
    float value = (float)x;
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16); /* to nearest, ties to even */
}

static double from_bf16(uint16_t x)
{
    uint32_t bits = (uint32_t)x << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return (double)value;
}

/* To bf16, so that all types see the same numbers. */
static double rounded(double x)
{
    return from_bf16(to_bf16(x));
}

static size_t element_of(blurry_dtype dtype)
{
    return dtype == BLURRY_BF16 ? 2 : dtype == BLURRY_F32 ? sizeof(float) : sizeof(double);
}

static void to_elements(blurry_dtype dtype, const double *numbers, void *elements, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (dtype == BLURRY_F64)
            ((double *)elements)[i] = numbers[i];
        else if (dtype == BLURRY_F32)
            ((float *)elements)[i] = (float)numbers[i];
        else
            ((uint16_t *)elements)[i] = to_bf16(numbers[i]);
}

static void from_elements(blurry_dtype dtype, const void *elements, double *numbers, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        numbers[i] = dtype == BLURRY_F64   ? ((const double *)elements)[i]
                     : dtype == BLURRY_F32 ? (double)((const float *)elements)[i]
                                           : from_bf16(((const uint16_t *)elements)[i]);
}

/* ---- results ---- */
/* Results as doubles; `all` is the one allocation they point into. */
typedef struct results {
    double *all, *q, *k, *v, *d_o, *slots_k, *slots_v; /* inputs */
    double *o, *d_q, *d_k, *d_v, *d_slots_k, *d_slots_v, *k_out, *v_out, *stepped;
    int64_t n_q, n_k, n_v, n_o, n_sk, n_sv;
} results;

/* What is compared with the reference. */
typedef struct variant {
    blurry_device device;
    blurry_dtype dtype;
    int reference;
    const char *name;
} variant;

static blurry_status results_init(const shape *s, blurry_dtype dtype, results *r)
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
    for (int64_t i = 0; r->q + i < r->o; i++)
        r->q[i] = dtype == BLURRY_BF16 ? rounded(selftest_random(&state)) : selftest_random(&state);
    return BLURRY_OK;
}

/* ---- memory ---- */
/* A call's memory on the plan's device: one block, parts aligned to 64. What goes wrong with a copy is kept.
 */
typedef struct block {
    blurry_device device;
    blurry_dtype dtype, slots; /* of tensors; of slots and their gradients */
    char *memory, *host;       /* host: as large as the block, what copies pass through */
    size_t used;
    blurry_status status;
} block;

static void *part(block *m, size_t bytes)
{
    void *at = m->memory + m->used;
    m->used += (bytes + 63) / 64 * 64;
    return at;
}

static void copy_to(block *m, blurry_dtype dtype, const double *from, void *to, int64_t n)
{
    to_elements(dtype, from, m->host, n);
    if (m->status == BLURRY_OK)
        m->status = blurry_device_copy(m->device, to, m->host, (size_t)n * element_of(dtype));
}

static void copy_from(block *m, blurry_dtype dtype, const void *from, double *to, int64_t n)
{
    if (m->status == BLURRY_OK)
        m->status = blurry_device_copy(m->device, m->host, from, (size_t)n * element_of(dtype));
    from_elements(dtype, m->host, to, n);
}

static void *given(block *m, blurry_dtype dtype, const double *from, int64_t n)
{
    void *at = part(m, (size_t)n * element_of(dtype));
    copy_to(m, dtype, from, at, n);
    return at;
}

static void *wanted(block *m, blurry_dtype dtype, int64_t n)
{
    return part(m, (size_t)n * element_of(dtype));
}

/* ---- calls ---- */
/* One token of every sequence at a time. */
static blurry_status run_step(const blurry_attn_plan *plan, const shape *s, results *r, char *states,
                              block *m)
{
    size_t bytes = blurry_attn_step_workspace(plan), element = element_of(m->dtype);
    int64_t nq = s->H * s->Dk, nk = s->Hkv * s->Dk, nv = s->Hkv * s->Dv, no = s->H * s->Dv;
    char *q = wanted(m, m->dtype, s->B * nq), *k = wanted(m, m->dtype, s->B * nk);
    char *v = wanted(m, m->dtype, s->B * nv), *o = wanted(m, m->dtype, s->B * no);
    void *workspace = part(m, bytes);
    for (int64_t i = 0; i < s->L; i++) {
        for (int64_t b = 0; b < s->B; b++) {
            int64_t n = b * s->L + i;
            copy_to(m, m->dtype, r->q + n * nq, q + (size_t)(b * nq) * element, nq);
            copy_to(m, m->dtype, r->k + n * nk, k + (size_t)(b * nk) * element, nk);
            copy_to(m, m->dtype, r->v + n * nv, v + (size_t)(b * nv) * element, nv);
        }
        blurry_attn_step_args a = {.count = s->B,
                                   .q = q,
                                   .k = k,
                                   .v = v,
                                   .o = o,
                                   .state_batch = states,
                                   .workspace = workspace,
                                   .workspace_bytes = bytes};
        STATUS_TRY(blurry_attn_step(plan, &a));
        STATUS_TRY(blurry_attn_sync(plan, NULL));
        for (int64_t b = 0; b < s->B; b++)
            copy_from(m, m->dtype, o + (size_t)(b * no) * element, r->stepped + (b * s->L + i) * no, no);
    }
    return m->status;
}

static blurry_status run_whole(const blurry_attn_plan *plan, const shape *s, results *r, char *states,
                               block *m)
{
    size_t state = blurry_attn_state_bytes(plan), fb = blurry_attn_forward_workspace(plan);
    size_t bb = blurry_attn_backward_workspace(plan), slot = element_of(m->slots);
    int64_t sk = r->n_sk / s->B, sv = r->n_sv / s->B;
    void *q = given(m, m->dtype, r->q, r->n_q), *k = given(m, m->dtype, r->k, r->n_k);
    void *v = given(m, m->dtype, r->v, r->n_v), *d_o = given(m, m->dtype, r->d_o, r->n_o);
    void *o = wanted(m, m->dtype, r->n_o);
    char *slots_k = given(m, m->slots, r->slots_k, r->n_sk),
         *slots_v = given(m, m->slots, r->slots_v, r->n_sv);
    void *d_q = wanted(m, m->dtype, r->n_q), *d_k = wanted(m, m->dtype, r->n_k);
    void *d_v = wanted(m, m->dtype, r->n_v);
    void *d_sk = wanted(m, m->slots, r->n_sk), *d_sv = wanted(m, m->slots, r->n_sv);
    void *saved = part(m, blurry_attn_saved_bytes(plan));
    char *out = part(m, (size_t)s->B * state);
    void *workspace = part(m, fb > bb ? fb : bb);
    for (int64_t b = 0; b < s->B; b++)
        STATUS_TRY(blurry_attn_state_set(plan, states + (size_t)b * state, s->position,
                                         slots_k + (size_t)(b * sk) * slot,
                                         slots_v + (size_t)(b * sv) * slot));
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
    STATUS_TRY(blurry_attn_sync(plan, NULL));
    copy_from(m, m->dtype, o, r->o, r->n_o);
    copy_from(m, m->dtype, d_q, r->d_q, r->n_q);
    copy_from(m, m->dtype, d_k, r->d_k, r->n_k);
    copy_from(m, m->dtype, d_v, r->d_v, r->n_v);
    copy_from(m, m->slots, d_sk, r->d_slots_k, r->n_sk);
    copy_from(m, m->slots, d_sv, r->d_slots_v, r->n_sv);
    for (int64_t b = 0; b < s->B; b++) {
        STATUS_TRY(blurry_attn_state_get(plan, out + (size_t)b * state, NULL, slots_k, slots_v));
        copy_from(m, m->slots, slots_k, r->k_out + b * sk, sk);
        copy_from(m, m->slots, slots_v, r->v_out + b * sv, sv);
    }
    return m->status;
}

static blurry_status run_plan(const blurry_attn_plan *plan, const shape *s, const variant *v, results *r)
{
    size_t fb = blurry_attn_forward_workspace(plan), bb = blurry_attn_backward_workspace(plan);
    block m = {.device = v->device,
               .dtype = v->dtype,
               .slots = v->device == BLURRY_DEVICE_CUDA ? BLURRY_F32 : v->dtype};
    int64_t numbers = r->n_q + r->n_k + r->n_v + r->n_o + r->n_sk + r->n_sv;
    size_t size = 4 * (size_t)numbers * sizeof(double) + 2 * (size_t)s->B * blurry_attn_state_bytes(plan) +
                  (fb > bb ? fb : bb) + blurry_attn_saved_bytes(plan) + blurry_attn_step_workspace(plan) +
                  64 * 64;
    void *memory = NULL, *host = NULL;
    blurry_status status = memory_alloc(&host, (size_t)numbers, sizeof(double), "self test memory");
    if (status == BLURRY_OK) status = blurry_device_alloc(v->device, size, &memory);
    if (status == BLURRY_OK) {
        m.memory = memory, m.host = host;
        char *states = part(&m, (size_t)s->B * blurry_attn_state_bytes(plan));
        status = run_whole(plan, s, r, states, &m);
        if (status == BLURRY_OK) status = run_step(plan, s, r, states, &m);
    }
    if (memory) blurry_device_free(v->device, memory);
    memory_free(host);
    return status;
}

/* Forward, backward and steps of one shape by one kind of kernel. */
static blurry_status run_shape(const shape *s, const variant *v, results *r)
{
    blurry_attn_desc d;
    blurry_attn_desc_init(&d);
    d.batch = s->B, d.length = s->L, d.heads = s->H, d.heads_kv = s->Hkv, d.dim_k = s->Dk, d.dim_v = s->Dv;
    d.modes = s->M, d.period = s->period, d.decay = s->decay, d.dtype = v->dtype, d.reference = v->reference;
    d.device = v->device, d.grid = s->relative ? BLURRY_GRID_RELATIVE : BLURRY_GRID_ABSOLUTE;
    blurry_attn_plan *plan;
    STATUS_TRY(blurry_attn_plan_create(&plan, &d));
    blurry_status status = run_plan(plan, s, v, r);
    blurry_attn_plan_destroy(&plan);
    return status;
}

/* One kernel over all shapes. */
static blurry_status run_kernel(selftest *test, const variant *v)
{
    static const variant reference = {BLURRY_DEVICE_CPU, BLURRY_F64, 1, "ref"};
    /* Gradients of slots that are forgotten altogether are 0 on the CPU, the rounding of sums of size 1 on a
     * GPU. */
    selftest_worst whole = {.floor = v->device == BLURRY_DEVICE_CUDA ? 1e-2 : 1e-3}, decode = whole;
    blurry_status status = BLURRY_OK;
    for (int i = 0; i < SHAPES && status == BLURRY_OK; i++) {
        results want = {0}, got = {0};
        status = results_init(&shapes[i], v->dtype, &want);
        if (status == BLURRY_OK) status = results_init(&shapes[i], v->dtype, &got);
        if (status == BLURRY_OK) status = run_shape(&shapes[i], &reference, &want);
        if (status == BLURRY_OK) status = run_shape(&shapes[i], v, &got);
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
    STATUS_TRY(selftest_row(test, "attention", v->name, v->dtype, selftest_tolerance(v->dtype), &whole));
    return selftest_row(test, "decode", v->name, v->dtype, selftest_tolerance(v->dtype), &decode);
}

/* The instruction set is chosen as a user would, by BLURRY_ISA. */
static blurry_status run_cpu(selftest *test)
{
    const char *wish = getenv("BLURRY_ISA");
    char *kept = wish ? strdup(wish) : NULL;
    blurry_status status = BLURRY_OK;
    for (int type = 0; type < 2 && status == BLURRY_OK; type++) {
        variant v = {BLURRY_DEVICE_CPU, (blurry_dtype)type, 1, "ref"};
        status = run_kernel(test, &v);
        v.reference = 0;
        for (int isa = 0; isa < CPU_ISA_COUNT && status == BLURRY_OK; isa++) {
            if (!cpu_isa_supported((cpu_isa)isa)) continue;
            v.name = cpu_isa_name((cpu_isa)isa);
            setenv("BLURRY_ISA", v.name, 1);
            status = run_kernel(test, &v);
        }
    }
    if (kept)
        setenv("BLURRY_ISA", kept, 1);
    else
        unsetenv("BLURRY_ISA");
    free(kept);
    return status;
}

blurry_status selftest_attention(selftest *test)
{
    STATUS_TRY(run_cpu(test));
    if (blurry_device_check(BLURRY_DEVICE_CUDA) != BLURRY_OK) return BLURRY_OK;
    STATUS_TRY(run_kernel(test, &(variant){BLURRY_DEVICE_CUDA, BLURRY_F32, 0, "cuda"}));
    return run_kernel(test, &(variant){BLURRY_DEVICE_CUDA, BLURRY_BF16, 0, "cuda"});
}
