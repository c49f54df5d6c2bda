#include "support/operator.h"

#include "support/device_memory.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int64_t op_tokens(const op_case *c)
{
    return c->packed ? c->offsets[c->B] : c->B * c->L;
}

int64_t op_slots(const op_case *c)
{
    return 2 * c->M - 1;
}

int64_t op_rows(const op_case *c)
{
    return c->rows ? c->row_count : op_tokens(c);
}

size_t op_element(blurry_dtype dtype)
{
    return dtype == BLURRY_BF16 ? 2 : dtype == BLURRY_F32 ? sizeof(float) : sizeof(double);
}

double op_tolerance(const op_variant *v)
{
    if (v->state == BLURRY_BF16) return 5e-2; /* slots are rounded at every fold, and may grow in between */
    if (v->dtype == BLURRY_BF16) return 2e-2;
    return v->dtype == BLURRY_F32 ? 2e-5 : 1e-12;
}

/* One rounding of an element, relative to a float's. */
static double rounding(const op_variant *v)
{
    if (v->dtype == BLURRY_BF16 || v->state == BLURRY_BF16) return 0x1p16;
    return v->dtype == BLURRY_F32 ? 1 : 0x1p-29;
}

blurry_dtype op_slot_type(const op_variant *v)
{
    return v->device == BLURRY_DEVICE_CUDA ? BLURRY_F32 : v->dtype;
}

static uint16_t to_bf16(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if (isnan(x)) return 0x7fff;
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16); /* to nearest, ties to even */
}

static float from_bf16(uint16_t x)
{
    uint32_t bits = (uint32_t)x << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

double op_random(uint64_t *state)
{
    uint64_t x = *state += 0x9e3779b97f4a7c15u; /* splitmix64 */
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    x ^= x >> 31;
    return (double)(int64_t)x * 0x1p-63;
}

char *op_describe(const op_case *c)
{
    static char text[256];
    snprintf(text, sizeof text,
             "B=%lld L=%lld H=%lld Hkv=%lld Dk=%lld Dv=%lld M=%lld T=%g,%g,%g decay=%d %s t0=%lld %s%s %s",
             (long long)c->B, (long long)c->L, (long long)c->H, (long long)c->Hkv, (long long)c->Dk,
             (long long)c->Dv, (long long)c->M, c->period[0], c->period[1], c->period[2], c->decay,
             c->relative ? "relative" : "absolute", (long long)c->position, c->with_state ? "state " : "",
             c->packed ? "packed" : "", c->rows ? "rows" : "");
    return text;
}

/* ---- variants
 * ----------------------------------------------------------------------------------------------- */

int op_variants(op_variant *list, int max, int with_reference)
{
    int n = 0;
    if (TEST_ON_CUDA) {
        static const blurry_dtype types[][2] = {
            {BLURRY_F32, BLURRY_F32}, {BLURRY_BF16, BLURRY_F32}, {BLURRY_F32, BLURRY_BF16}};
        for (; n < 3 && n < max; n++)
            list[n] = (op_variant){types[n][0], 0, CPU_ISA_BASE, BLURRY_DEVICE_CUDA, types[n][1]};
        return n;
    }
    for (int type = 0; type < 2; type++) {
        if (with_reference && n < max) list[n++] = (op_variant){(blurry_dtype)type, 1, CPU_ISA_BASE};
        for (int isa = 0; isa < CPU_ISA_COUNT; isa++)
            if (cpu_isa_supported((cpu_isa)isa) && n < max)
                list[n++] = (op_variant){(blurry_dtype)type, 0, (cpu_isa)isa};
    }
    return n;
}

const char *op_variant_name(const op_variant *v)
{
    static char text[32];
    static const char *const types[] = {"f32", "f64", "bf16"};
    const char *kernel = v->device == BLURRY_DEVICE_CUDA ? "cuda"
                         : v->reference                  ? "ref"
                                                         : cpu_isa_name(v->isa);
    snprintf(text, sizeof text, "%s_%s%s", kernel, types[v->dtype],
             v->state == BLURRY_BF16 ? "_state_bf16" : "");
    return text;
}

blurry_attn_plan *op_plan(const op_case *c, const op_variant *v, int64_t fold)
{
    blurry_attn_desc d;
    blurry_attn_desc_init(&d);
    d.batch = c->B, d.length = c->packed ? (op_tokens(c) + c->B - 1) / c->B : c->L;
    d.heads = c->H, d.heads_kv = c->Hkv, d.dim_k = c->Dk, d.dim_v = c->Dv, d.modes = c->M;
    d.period = c->period, d.scale = c->scale, d.decay = c->decay;
    d.grid = c->relative ? BLURRY_GRID_RELATIVE : BLURRY_GRID_ABSOLUTE;
    d.dtype = v->dtype, d.reference = v->reference, d.threads = c->threads ? c->threads : 2, d.fold = fold;
    d.device = v->device, d.state_dtype = v->state;
    setenv("BLURRY_ISA", cpu_isa_name(v->isa), 1);
    blurry_attn_plan *plan;
    assert_ok(blurry_attn_plan_create(&plan, &d));
    unsetenv("BLURRY_ISA");
    return plan;
}

/* ---- buffers
 * ------------------------------------------------------------------------------------------------ */

enum { GUARD = 256 };
static const device here = {.kind = TEST_ON_CUDA ? DEVICE_CUDA : DEVICE_CPU};

/* [size_t bytes, padding to GUARD - all guard pattern after the size] [bytes] [GUARD of pattern] */
void *op_guarded(size_t bytes)
{
    size_t whole = (2 * GUARD + bytes + 63) / 64 * 64;
    unsigned char *memory = test_device_memory(&here, whole);
    assert_non_null(memory);
    memset(memory, 0xA5, whole);
    memcpy(memory, &bytes, sizeof bytes);
    memset(memory + GUARD, 0xFF, bytes); /* all ones is NaN in every type */
    return memory + GUARD;
}

void op_guarded_free(void *memory)
{
    if (!memory) return;
    unsigned char *start = (unsigned char *)memory - GUARD;
    size_t bytes;
    memcpy(&bytes, start, sizeof bytes);
    for (size_t i = sizeof bytes; i < GUARD; i++)
        if (start[i] != 0xA5)
            fail_msg("byte %zu before a buffer of %zu bytes was overwritten", GUARD - i, bytes);
    for (size_t i = 0; i < GUARD; i++)
        if (start[GUARD + bytes + i] != 0xA5)
            fail_msg("byte %zu after a buffer of %zu bytes was overwritten", i, bytes);
    test_device_free(&here, start);
}

void op_wait(const blurry_attn_plan *plan)
{
    assert_ok(blurry_attn_sync(plan, NULL));
}

void op_to(blurry_dtype dtype, const double *from, void *to, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (dtype == BLURRY_F32)
            ((float *)to)[i] = (float)from[i];
        else if (dtype == BLURRY_BF16)
            ((uint16_t *)to)[i] = to_bf16((float)from[i]);
        else
            ((double *)to)[i] = from[i];
}

void op_from(blurry_dtype dtype, const void *from, double *to, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        to[i] = dtype == BLURRY_F32    ? (double)((const float *)from)[i]
                : dtype == BLURRY_BF16 ? (double)from_bf16(((const uint16_t *)from)[i])
                                       : ((const double *)from)[i];
}

/* ---- tensors
 * ------------------------------------------------------------------------------------------------ */

typedef struct tensor_info {
    const char *name;
    size_t offset;
    int input;
} tensor_info;

#define TENSOR(field, input)                                                                                 \
    {                                                                                                        \
#field, offsetof(op_tensors, field), input                                                           \
    }
static const tensor_info tensors[] = {
    TENSOR(q, 1),      TENSOR(k, 1),        TENSOR(v, 1),           TENSOR(d_o, 1), TENSOR(k_in, 1),
    TENSOR(v_in, 1),   TENSOR(d_k_out, 1),  TENSOR(d_v_out, 1),     TENSOR(o, 0),   TENSOR(k_out, 0),
    TENSOR(v_out, 0),  TENSOR(d_q, 0),      TENSOR(d_k, 0),         TENSOR(d_v, 0), TENSOR(d_k_in, 0),
    TENSOR(d_v_in, 0), TENSOR(d_period, 0), TENSOR(d_period_abs, 0)};
enum { TENSOR_COUNT = sizeof tensors / sizeof tensors[0] };

static double **field(const op_tensors *t, int i)
{
    return (double **)((char *)(uintptr_t)t + tensors[i].offset);
}

static int64_t tensor_size(const op_case *c, int i)
{
    int64_t n = op_tokens(c), slots = c->B * c->Hkv * op_slots(c);
    const char *name = tensors[i].name;
    if (!strcmp(name, "q") || !strcmp(name, "d_q")) return op_rows(c) * c->H * c->Dk;
    if (!strcmp(name, "o") || !strcmp(name, "d_o")) return op_rows(c) * c->H * c->Dv;
    if (!strcmp(name, "k") || !strcmp(name, "d_k")) return n * c->Hkv * c->Dk;
    if (!strcmp(name, "v") || !strcmp(name, "d_v")) return n * c->Hkv * c->Dv;
    if (strstr(name, "period")) return c->Hkv;
    return slots * (strstr(name, "k_") ? c->Dk : c->Dv);
}

void op_tensors_init(const op_case *c, op_tensors *t)
{
    uint64_t state = c->seed * 7919 + 17;
    for (int i = 0; i < TENSOR_COUNT; i++) {
        int64_t n = tensor_size(c, i);
        double *x = *field(t, i) = calloc((size_t)n + 1, sizeof(double));
        assert_non_null(x);
        if (!tensors[i].input) continue;
        for (int64_t e = 0; e < n; e++) {
            float y = (float)op_random(&state);
            x[e] = (double)(TEST_ON_CUDA ? from_bf16(to_bf16(y)) : y);
        }
        if (!c->with_state && (!strcmp(tensors[i].name, "k_in") || !strcmp(tensors[i].name, "v_in")))
            memset(x, 0, (size_t)n * sizeof(double));
    }
}

void op_tensors_free(op_tensors *t)
{
    for (int i = 0; i < TENSOR_COUNT; i++) free(*field(t, i));
    memset(t, 0, sizeof *t);
}

double op_error(const double *a, const double *b, int64_t n)
{
    double difference = 0, size = 0;
    for (int64_t i = 0; i < n; i++) {
        if (!isfinite(a[i]) || !isfinite(b[i])) return INFINITY;
        difference = fmax(difference, fabs(a[i] - b[i]));
        size = fmax(size, fabs(b[i]));
    }
    return difference / fmax(size, OP_SIZE_FLOOR);
}

static double tensor_error(const op_case *c, int i, const op_tensors *a, const op_tensors *b)
{
    const double *x = *field(a, i), *y = *field(b, i);
    int64_t n = tensor_size(c, i);
    if (strcmp(tensors[i].name, "d_period") != 0) return op_error(x, y, n);
    double error = 0;
    for (int64_t h = 0; h < n; h++) {
        if (!isfinite(x[h])) return INFINITY;
        if (x[h] != y[h]) error = fmax(error, fabs(x[h] - y[h]) / fmax(b->d_period_abs[h], 1e-300));
    }
    return error;
}

/* How far result i of the double reference moves when every input moves by one rounding of a float, at
 * random. */
static double sensitivity(const op_case *c, const op_tensors *b, int i)
{
    static const op_variant reference = {BLURRY_F64, 1, CPU_ISA_BASE};
    uint64_t state = 4711;
    op_tensors moved;
    op_tensors_init(c, &moved);
    for (int k = 0; k < TENSOR_COUNT; k++)
        for (int64_t e = 0; tensors[k].input && e < tensor_size(c, k); e++)
            (*field(&moved, k))[e] = (*field(b, k))[e] * (1 + (op_random(&state) > 0 ? 0x1p-24 : -0x1p-24));
    op_run(c, &reference, &moved);
    double error = tensor_error(c, i, &moved, b);
    op_tensors_free(&moved);
    return error;
}

void op_compare(const op_case *c, const op_variant *v, const op_tensors *a, const op_tensors *b, int parts)
{
    double tolerance = op_tolerance(v);
    for (int i = 0; i < TENSOR_COUNT; i++) {
        if (tensors[i].input || (!(parts & OP_GRADIENTS) && !strncmp(tensors[i].name, "d_", 2))) continue;
        double error = tensor_error(c, i, a, b), allowed = tolerance;
        if (error <= allowed) continue;
        if (parts & OP_CONDITIONED) allowed = OP_CONDITION * sensitivity(c, b, i) * rounding(v);
        if (!(error <= allowed))
            fail_msg("%s: %s: error of %s is %.3g, allowed %.3g", op_describe(c), op_variant_name(v),
                     tensors[i].name, error, fmax(allowed, tolerance));
    }
}

/* ---- runs
 * --------------------------------------------------------------------------------------------------- */

static void *input(blurry_dtype dtype, const double *from, int64_t n)
{
    void *to = op_guarded((size_t)n * op_element(dtype));
    op_to(dtype, from, to, n);
    return to;
}

static void output(blurry_dtype dtype, void *from, double *to, int64_t n)
{
    op_from(dtype, from, to, n);
    op_guarded_free(from);
}

/* B states at the case's position. */
static void *make_states(const op_case *c, const blurry_attn_plan *plan, blurry_dtype dtype,
                         const op_tensors *t)
{
    size_t bytes = blurry_attn_state_bytes(plan), e = op_element(dtype);
    char *states = op_guarded((size_t)c->B * bytes);
    int64_t nk = c->Hkv * op_slots(c) * c->Dk, nv = c->Hkv * op_slots(c) * c->Dv;
    void *k = malloc((size_t)nk * e), *v = malloc((size_t)nv * e);
    for (int64_t b = 0; b < c->B; b++) {
        op_to(dtype, t->k_in + b * nk, k, nk);
        op_to(dtype, t->v_in + b * nv, v, nv);
        assert_ok(blurry_attn_state_set(plan, states + (size_t)b * bytes, c->position, k, v));
    }
    free(k);
    free(v);
    return states;
}

static void read_states(const op_case *c, const blurry_attn_plan *plan, blurry_dtype dtype,
                        const char *states, op_tensors *t)
{
    size_t bytes = blurry_attn_state_bytes(plan), e = op_element(dtype);
    int64_t nk = c->Hkv * op_slots(c) * c->Dk, nv = c->Hkv * op_slots(c) * c->Dv;
    void *k = op_guarded((size_t)nk * e), *v = op_guarded((size_t)nv * e);
    for (int64_t b = 0; b < c->B; b++) {
        int64_t position;
        assert_ok(blurry_attn_state_get(plan, states + (size_t)b * bytes, &position, k, v));
        int64_t count = c->packed ? c->offsets[b + 1] - c->offsets[b] : c->L;
        assert_int_equal(position, c->position + count);
        op_from(dtype, k, t->k_out + b * nk, nk);
        op_from(dtype, v, t->v_out + b * nv, nv);
    }
    op_guarded_free(k);
    op_guarded_free(v);
}

static void run(const op_case *c, const op_variant *variant, op_tensors *t, int with_backward)
{
    blurry_dtype type = variant->dtype, slot = op_slot_type(variant);
    size_t e = op_element(type), f_e = op_element(slot);
    int64_t n = op_tokens(c), r = op_rows(c), slots = c->B * c->Hkv * op_slots(c);
    blurry_attn_plan *plan = op_plan(c, variant, 0);
    void *q = input(type, t->q, r * c->H * c->Dk), *k = input(type, t->k, n * c->Hkv * c->Dk);
    void *v = input(type, t->v, n * c->Hkv * c->Dv), *o = op_guarded((size_t)(r * c->H * c->Dv) * e);
    int given = c->position > 0 || c->with_state;
    void *state_in = given ? make_states(c, plan, slot, t) : NULL;
    void *state_out = op_guarded((size_t)c->B * blurry_attn_state_bytes(plan));
    void *saved = op_guarded(blurry_attn_saved_bytes(plan));
    size_t bytes = blurry_attn_forward_workspace(plan);
    void *workspace = op_guarded(bytes);
    blurry_attn_forward_args f = {.q = q,
                                  .k = k,
                                  .v = v,
                                  .o = o,
                                  .offsets = c->packed ? c->offsets : NULL,
                                  .state_in = state_in,
                                  .state_out = state_out,
                                  .saved = with_backward ? saved : NULL,
                                  .workspace = workspace,
                                  .workspace_bytes = bytes,
                                  .rows = c->rows,
                                  .row_count = c->row_count};
    assert_ok(blurry_attn_forward(plan, &f));
    op_wait(plan);
    op_guarded_free(workspace);
    output(type, o, t->o, r * c->H * c->Dv);
    read_states(c, plan, slot, state_out, t);
    op_guarded_free(state_out);
    if (with_backward) {
        bytes = blurry_attn_backward_workspace(plan);
        void *d_o = input(type, t->d_o, r * c->H * c->Dv);
        void *d_k_out = input(slot, t->d_k_out, slots * c->Dk),
             *d_v_out = input(slot, t->d_v_out, slots * c->Dv);
        void *d_q = op_guarded((size_t)(r * c->H * c->Dk) * e),
             *d_k = op_guarded((size_t)(n * c->Hkv * c->Dk) * e);
        void *d_v = op_guarded((size_t)(n * c->Hkv * c->Dv) * e);
        void *d_k_in = op_guarded((size_t)(slots * c->Dk) * f_e),
             *d_v_in = op_guarded((size_t)(slots * c->Dv) * f_e);
        double *d_period = op_guarded((size_t)c->Hkv * sizeof(double));
        double *d_period_abs = op_guarded((size_t)c->Hkv * sizeof(double));
        workspace = op_guarded(bytes);
        blurry_attn_backward_args g = {.q = q,
                                       .k = k,
                                       .v = v,
                                       .d_o = d_o,
                                       .offsets = f.offsets,
                                       .state_in = state_in,
                                       .saved = saved,
                                       .d_k_state_out = d_k_out,
                                       .d_v_state_out = d_v_out,
                                       .d_q = d_q,
                                       .d_k = d_k,
                                       .d_v = d_v,
                                       .d_k_state_in = d_k_in,
                                       .d_v_state_in = d_v_in,
                                       .d_period = d_period,
                                       .d_period_abs = d_period_abs,
                                       .workspace = workspace,
                                       .workspace_bytes = bytes,
                                       .rows = c->rows,
                                       .row_count = c->row_count};
        assert_ok(blurry_attn_backward(plan, &g));
        op_wait(plan);
        /* Without the notes of forward the result is the same. */
        void *again = op_guarded((size_t)(n * c->Hkv * c->Dk) * e);
        g.saved = NULL, g.d_k = again;
        assert_ok(blurry_attn_backward(plan, &g));
        op_wait(plan);
        double *with_notes = calloc((size_t)(n * c->Hkv * c->Dk) + 1, sizeof(double));
        output(type, d_k, with_notes, n * c->Hkv * c->Dk);
        output(type, again, t->d_k, n * c->Hkv * c->Dk);
        if (!(op_error(with_notes, t->d_k, n * c->Hkv * c->Dk) <= op_tolerance(variant)))
            fail_msg("%s: %s: d_k differs with and without saved notes", op_describe(c),
                     op_variant_name(variant));
        free(with_notes);
        op_guarded_free(workspace);
        output(type, d_q, t->d_q, r * c->H * c->Dk);
        output(type, d_v, t->d_v, n * c->Hkv * c->Dv);
        output(slot, d_k_in, t->d_k_in, slots * c->Dk);
        output(slot, d_v_in, t->d_v_in, slots * c->Dv);
        output(BLURRY_F64, d_period, t->d_period, c->Hkv);
        output(BLURRY_F64, d_period_abs, t->d_period_abs, c->Hkv);
        op_guarded_free(d_o);
        op_guarded_free(d_k_out);
        op_guarded_free(d_v_out);
    }
    op_guarded_free(saved);
    op_guarded_free(state_in);
    op_guarded_free(q);
    op_guarded_free(k);
    op_guarded_free(v);
    blurry_attn_plan_destroy(&plan);
    assert_null(plan);
}

void op_run(const op_case *c, const op_variant *v, op_tensors *t)
{
    run(c, v, t, 1);
}

void op_forward(const op_case *c, const op_variant *v, op_tensors *t)
{
    run(c, v, t, 0);
}
