/* `blurry bench decode --device cuda`: one token for each of a batch of sequences on a GPU, by replays of a
 * graph that holds several steps, first checked against the double reference. */
#include "cli/bench_cuda.h"
#include "cli/cli.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct decoder {
    blurry_attn_desc desc;
    blurry_attn_plan *plan;
    void *q, *k, *v, *o, *states, *workspace;
    size_t state_bytes, workspace_bytes;
} decoder;

static int64_t elements(const decoder *x)
{
    return x->desc.batch * x->desc.heads * x->desc.dim_k;
}

static void decoder_close(decoder *x)
{
    void *memory[] = {x->q, x->k, x->v, x->o, x->states, x->workspace};
    for (size_t i = 0; i < sizeof memory / sizeof memory[0]; i++)
        blurry_device_free(BLURRY_DEVICE_CUDA, memory[i]);
    blurry_attn_plan_destroy(&x->plan);
}

static blurry_status decoder_open(decoder *x, const blurry_attn_desc *desc)
{
    memset(x, 0, sizeof *x);
    blurry_status status = blurry_attn_plan_create(&x->plan, desc);
    if (status != BLURRY_OK) return status;
    blurry_attn_plan_desc(x->plan, &x->desc);
    x->state_bytes = blurry_attn_state_bytes(x->plan),
    x->workspace_bytes = blurry_attn_step_workspace(x->plan);
    void **tensors[] = {&x->q, &x->k, &x->v, &x->o};
    for (int i = 0; i < 4 && status == BLURRY_OK; i++)
        status = bench_gpu_tensor(tensors[i], elements(x), desc->dtype, i < 3 ? 31 + (uint64_t)i : 0);
    if (status == BLURRY_OK)
        status = blurry_device_alloc(BLURRY_DEVICE_CUDA, x->state_bytes * (size_t)desc->batch, &x->states);
    if (status == BLURRY_OK)
        status = blurry_device_alloc(BLURRY_DEVICE_CUDA, x->workspace_bytes, &x->workspace);
    if (status != BLURRY_OK) decoder_close(x);
    return status;
}

/* All sequences at `position`, with the same slots of random numbers, which are left in k and v [S * Dk ...].
 */
static blurry_status decoder_place(decoder *x, int64_t position, float *k, float *v)
{
    int64_t slots = x->desc.heads * (2 * x->desc.modes - 1) * x->desc.dim_k;
    bench_random(k, slots, 41);
    bench_random(v, slots, 42);
    blurry_status status = blurry_attn_state_set(x->plan, x->states, position, k, v);
    for (int64_t b = 1; b < x->desc.batch && status == BLURRY_OK; b++)
        status = blurry_device_copy(BLURRY_DEVICE_CUDA, (char *)x->states + (size_t)b * x->state_bytes,
                                    x->states, x->state_bytes);
    return status;
}

static blurry_status decoder_step(void *context, blurry_stream stream)
{
    decoder *x = context;
    blurry_attn_step_args a = {.count = x->desc.batch,
                               .q = x->q,
                               .k = x->k,
                               .v = x->v,
                               .o = x->o,
                               .state_batch = x->states,
                               .workspace = x->workspace,
                               .workspace_bytes = x->workspace_bytes,
                               .stream = stream};
    return blurry_attn_step(x->plan, &a);
}

/* ---- the check ---- */

/* The reference's own decoder, in double on the CPU, over the same tensors. */
typedef struct exact_decoder {
    blurry_attn_plan *plan;
    double *q, *k, *v, *o;
    char *states;
    void *workspace;
    size_t workspace_bytes, state_bytes;
} exact_decoder;

static double *doubles(const float *from, int64_t n)
{
    double *to = bench_alloc((size_t)n * sizeof(double));
    for (int64_t i = 0; from && i < n; i++) to[i] = from[i];
    return to;
}

static blurry_status exact_open(exact_decoder *e, const decoder *x, int64_t position, const float *k,
                                const float *v)
{
    blurry_attn_desc d = x->desc;
    int64_t slots = d.heads * (2 * d.modes - 1) * d.dim_k, n = elements(x);
    memset(e, 0, sizeof *e);
    d.dtype = d.state_dtype = BLURRY_F64, d.device = BLURRY_DEVICE_CPU, d.reference = 1;
    blurry_status status = blurry_attn_plan_create(&e->plan, &d);
    if (status != BLURRY_OK) return status;
    e->state_bytes = blurry_attn_state_bytes(e->plan),
    e->workspace_bytes = blurry_attn_step_workspace(e->plan);
    e->states = bench_alloc(e->state_bytes * (size_t)d.batch);
    e->workspace = bench_alloc(e->workspace_bytes);
    float *single = bench_alloc((size_t)n * sizeof(float));
    const void *from[3] = {x->q, x->k, x->v};
    double **to[3] = {&e->q, &e->k, &e->v};
    for (int i = 0; i < 3 && status == BLURRY_OK; i++) {
        status = bench_gpu_read(single, from[i], n, x->desc.dtype);
        *to[i] = doubles(single, n);
    }
    e->o = doubles(NULL, n);
    free(single);
    double *wide_k = doubles(k, slots), *wide_v = doubles(v, slots);
    for (int64_t b = 0; b < d.batch && status == BLURRY_OK; b++)
        status =
            blurry_attn_state_set(e->plan, e->states + (size_t)b * e->state_bytes, position, wide_k, wide_v);
    free(wide_k);
    free(wide_v);
    return status;
}

static void exact_close(exact_decoder *e)
{
    void *memory[] = {e->q, e->k, e->v, e->o, e->states, e->workspace};
    for (size_t i = 0; i < sizeof memory / sizeof memory[0]; i++) free(memory[i]);
    blurry_attn_plan_destroy(&e->plan);
}

/* The largest relative error of o over some steps with the same tokens, from `position` on. */
static blurry_status follow(decoder *x, int64_t position, double *worst)
{
    enum { STEPS = 24 };
    int64_t slots = x->desc.heads * (2 * x->desc.modes - 1) * x->desc.dim_k, n = elements(x);
    float *k = bench_alloc((size_t)slots * sizeof *k), *v = bench_alloc((size_t)slots * sizeof *v);
    float *o = bench_alloc((size_t)n * sizeof *o);
    exact_decoder e = {0};
    blurry_status status = decoder_place(x, position, k, v);
    if (status == BLURRY_OK) status = exact_open(&e, x, position, k, v);
    for (int i = 0; i < STEPS && status == BLURRY_OK; i++) {
        blurry_attn_step_args a = {.count = x->desc.batch,
                                   .q = e.q,
                                   .k = e.k,
                                   .v = e.v,
                                   .o = e.o,
                                   .state_batch = e.states,
                                   .workspace = e.workspace,
                                   .workspace_bytes = e.workspace_bytes};
        status = blurry_attn_step(e.plan, &a);
        if (status == BLURRY_OK) status = decoder_step(x, NULL);
        if (status == BLURRY_OK) status = blurry_attn_sync(x->plan, NULL);
        if (status == BLURRY_OK) status = bench_gpu_read(o, x->o, n, x->desc.dtype);
        double error = bench_error(o, e.o, n);
        if (!(error <= *worst)) *worst = error;
    }
    exact_close(&e);
    free(k), free(v), free(o);
    return status;
}

static blurry_status check(const blurry_attn_desc *desc, double *worst)
{
    blurry_attn_desc d = *desc;
    d.batch = d.batch < 2 ? d.batch : 2;
    decoder x;
    *worst = 0;
    blurry_status status = decoder_open(&x, &d);
    if (status != BLURRY_OK) return status;
    status = follow(&x, 5, worst);
    if (status == BLURRY_OK) status = follow(&x, 1000000007, worst);
    decoder_close(&x);
    return status;
}

/* ---- times ---- */

static blurry_status measure(const blurry_attn_desc *d, int json, json_t *list, int *bad)
{
    enum { STEPS = 16, REPEATS = 31, NEAR = 1000, FAR = 1000000007 };
    int64_t slots = d->heads * (2 * d->modes - 1) * d->dim_k;
    double error = NAN, near = 0, far = 0,
           bytes = 2.0 * (double)(slots * d->batch) * (double)bench_element(d->state_dtype);
    decoder x;
    blurry_status status = check(d, &error);
    if (status == BLURRY_OK) status = decoder_open(&x, d);
    if (status != BLURRY_OK) return status;
    float *k = bench_alloc((size_t)slots * sizeof *k), *v = bench_alloc((size_t)slots * sizeof *v);
    status = decoder_place(&x, NEAR, k, v);
    if (status == BLURRY_OK) status = bench_gpu_time(decoder_step, &x, REPEATS, STEPS, &near);
    if (status == BLURRY_OK) status = decoder_place(&x, FAR, k, v);
    if (status == BLURRY_OK) status = bench_gpu_time(decoder_step, &x, REPEATS, STEPS, &far);
    if (status == BLURRY_OK) status = blurry_attn_sync(x.plan, NULL);
    free(k), free(v);
    decoder_close(&x);
    if (status != BLURRY_OK) return status;
    *bad |= !(error <= bench_tolerance(d->dtype == BLURRY_BF16 ? BLURRY_BF16 : d->state_dtype));
    if (!json)
        printf("%6lld  %10.4f  %10.4f  %12.0f  %9.1f  %8.2f  %.1e\n", (long long)d->batch, 1e3 * near,
               1e3 * far, (double)d->batch / near, 1e-6 * bytes, 1e-12 * bytes / near, error);
    fflush(stdout);
    json_array_append_new(list, json_pack("{s:I, s:f, s:f, s:f, s:f}", "batch", (json_int_t)d->batch,
                                          "step_ms", 1e3 * near, "far_step_ms", 1e3 * far, "slot_bytes",
                                          bytes, "error", isfinite(error) ? error : -1.0));
    return BLURRY_OK;
}

int bench_decode_cuda(const bench_target *target, const int64_t *batches, int count, int64_t heads,
                      int64_t dim, int64_t modes, int decay, int json)
{
    char name[128];
    int bad = 0;
    blurry_status status = blurry_device_check(BLURRY_DEVICE_CUDA);
    if (status == BLURRY_OK) status = blurry_device_name(BLURRY_DEVICE_CUDA, name, sizeof name);
    if (status != BLURRY_OK) return cli_report(status, "bench decode");
    blurry_attn_desc d;
    blurry_attn_desc_init(&d);
    d.length = 1, d.heads = heads, d.dim_k = dim, d.modes = modes, d.decay = decay;
    d.device = BLURRY_DEVICE_CUDA, d.dtype = target->dtype, d.state_dtype = target->state_dtype;
    json_t *list = json_array();
    if (!json)
        printf("blurry %s, decode on %s, %s tokens, %s state: H=%lld D=%lld S=%lld, %s, graph replays\n"
               "%6s  %10s  %10s  %12s  %9s  %8s  %s\n",
               blurry_version(), name, bench_type_name(d.dtype), bench_type_name(d.state_dtype),
               (long long)heads, (long long)dim, (long long)(2 * modes - 1), decay ? "decay" : "no decay",
               "batch", "ms at 10^3", "ms at 10^9", "tokens/s", "slots MB", "TB/s", "error");
    for (int i = 0; i < count && status == BLURRY_OK; i++) {
        d.batch = batches[i];
        status = measure(&d, json, list, &bad);
    }
    json_t *root =
        json_pack("{s:s, s:s, s:s, s:s, s:o}", "device", name, "version", blurry_version(), "precision",
                  bench_type_name(d.dtype), "state", bench_type_name(d.state_dtype), "rows", list);
    if (status == BLURRY_OK && json) json_dumpf(root, stdout, JSON_INDENT(1)), printf("\n");
    json_decref(root);
    if (status != BLURRY_OK) return cli_report(status, "bench decode");
    if (!bad) return CLI_OK;
    fprintf(stderr, "blurry: bench decode: an error is above %.0e; see above\n", bench_tolerance(d.dtype));
    return CLI_FAILED;
}
