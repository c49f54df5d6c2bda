/* Device memory and one operator problem for the benchmarks on CUDA. */
#include "cli/bench_cuda.h"
#include "cli/cli.h"
#include "cli/options.h"

#include <stdlib.h>
#include <string.h>

static int read_type(const char *bench, const char *option, const char *text, blurry_dtype *dtype)
{
    if (!text) return CLI_OK;
    if (!strcmp(text, "f32"))
        *dtype = BLURRY_F32;
    else if (!strcmp(text, "bf16"))
        *dtype = BLURRY_BF16;
    else
        return options_usage(bench, "%s is '%s': give f32 or bf16", option, text);
    return CLI_OK;
}

int bench_target_read(const char *bench, bench_target *t)
{
    if (t->device && strcmp(t->device, "cpu") != 0 && strcmp(t->device, "cuda") != 0)
        return options_usage(bench, "--device is '%s': give cpu or cuda", t->device);
    t->cuda = t->device && !strcmp(t->device, "cuda");
    t->dtype = t->cuda ? BLURRY_BF16 : BLURRY_F32, t->state_dtype = BLURRY_F32;
    if (read_type(bench, "--precision", t->precision, &t->dtype) != CLI_OK ||
        read_type(bench, "--state", t->state, &t->state_dtype) != CLI_OK)
        return CLI_USAGE;
    if (!t->cuda && (t->dtype != BLURRY_F32 || t->state_dtype != BLURRY_F32))
        return options_usage(bench, "bf16 is for --device cuda: the cpu measures f32");
    return CLI_OK;
}

const char *bench_type_name(blurry_dtype dtype)
{
    return dtype == BLURRY_BF16 ? "bf16" : "f32";
}

size_t bench_element(blurry_dtype dtype)
{
    return dtype == BLURRY_BF16 ? 2 : sizeof(float);
}

double bench_tolerance(blurry_dtype dtype)
{
    return dtype == BLURRY_BF16 ? 2e-2 : 1e-4;
}

/* ---- tensors ---- */

static uint16_t to_bf16(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* A piece of random elements, in host memory. */
static void *random_piece(int64_t count, blurry_dtype dtype, uint64_t seed)
{
    float *x = bench_alloc((size_t)count * sizeof(float));
    bench_random(x, count, seed);
    if (dtype != BLURRY_BF16) return x;
    uint16_t *y = bench_alloc((size_t)count * sizeof *y);
    for (int64_t i = 0; i < count; i++) y[i] = to_bf16(x[i]);
    free(x);
    return y;
}

blurry_status bench_gpu_tensor(void **to, int64_t count, blurry_dtype dtype, uint64_t seed)
{
    enum { PIECE = 1 << 22 };
    size_t e = bench_element(dtype);
    blurry_status status = blurry_device_alloc(BLURRY_DEVICE_CUDA, (size_t)count * e, to);
    if (status != BLURRY_OK || seed == 0) return status;
    int64_t piece = count < PIECE ? count : PIECE;
    void *host = random_piece(piece, dtype, seed);
    status = blurry_device_copy(BLURRY_DEVICE_CUDA, *to, host, (size_t)piece * e);
    for (int64_t at = piece; at < count && status == BLURRY_OK; at += piece) {
        int64_t n = count - at < piece ? count - at : piece;
        status = blurry_device_copy(BLURRY_DEVICE_CUDA, (char *)*to + (size_t)at * e, *to, (size_t)n * e);
    }
    free(host);
    return status;
}

blurry_status bench_gpu_read(float *to, const void *from, int64_t count, blurry_dtype dtype)
{
    if (dtype != BLURRY_BF16)
        return blurry_device_copy(BLURRY_DEVICE_CUDA, to, from, (size_t)count * sizeof(float));
    uint16_t *host = bench_alloc((size_t)count * sizeof *host);
    blurry_status status = blurry_device_copy(BLURRY_DEVICE_CUDA, host, from, (size_t)count * sizeof *host);
    for (int64_t i = 0; i < count; i++) {
        uint32_t bits = (uint32_t)host[i] << 16;
        memcpy(&to[i], &bits, sizeof to[i]);
    }
    free(host);
    return status;
}

/* ---- the operator ---- */

blurry_status bench_gpu_open(bench_gpu_problem *p, const blurry_attn_desc *desc, int with_backward)
{
    memset(p, 0, sizeof *p);
    p->with_backward = with_backward;
    blurry_status status = blurry_attn_plan_create(&p->plan, desc);
    if (status != BLURRY_OK) return status;
    blurry_attn_plan_desc(p->plan, &p->desc);
    const blurry_attn_desc *d = &p->desc;
    int64_t tokens = d->batch * d->length, wide = tokens * d->heads, narrow = tokens * d->heads_kv;
    const struct {
        void **to;
        int64_t count;
        uint64_t seed;
        int backward;
    } tensors[] = {{&p->q, wide * d->dim_k, 11, 0},    {&p->k, narrow * d->dim_k, 12, 0},
                   {&p->v, narrow * d->dim_v, 13, 0},  {&p->o, wide * d->dim_v, 0, 0},
                   {&p->d_o, wide * d->dim_v, 14, 1},  {&p->d_q, wide * d->dim_k, 0, 1},
                   {&p->d_k, narrow * d->dim_k, 0, 1}, {&p->d_v, narrow * d->dim_v, 0, 1}};
    for (size_t i = 0; i < sizeof tensors / sizeof tensors[0] && status == BLURRY_OK; i++)
        if (!tensors[i].backward || with_backward)
            status = bench_gpu_tensor(tensors[i].to, tensors[i].count, d->dtype, tensors[i].seed);
    p->workspace_bytes = blurry_attn_forward_workspace(p->plan);
    p->saved_bytes = with_backward ? blurry_attn_saved_bytes(p->plan) : 0;
    if (with_backward && p->workspace_bytes < blurry_attn_backward_workspace(p->plan))
        p->workspace_bytes = blurry_attn_backward_workspace(p->plan);
    if (status == BLURRY_OK)
        status = blurry_device_alloc(BLURRY_DEVICE_CUDA, p->workspace_bytes, &p->workspace);
    if (status == BLURRY_OK && with_backward)
        status = blurry_device_alloc(BLURRY_DEVICE_CUDA, p->saved_bytes, &p->saved);
    if (status != BLURRY_OK) bench_gpu_close(p);
    return status;
}

void bench_gpu_close(bench_gpu_problem *p)
{
    void *memory[] = {p->q, p->k, p->v, p->o, p->d_o, p->d_q, p->d_k, p->d_v, p->saved, p->workspace};
    for (size_t i = 0; i < sizeof memory / sizeof memory[0]; i++)
        blurry_device_free(BLURRY_DEVICE_CUDA, memory[i]);
    blurry_attn_plan_destroy(&p->plan);
    memset(p, 0, sizeof *p);
}

blurry_status bench_gpu_pass(void *problem, blurry_stream stream)
{
    const bench_gpu_problem *p = problem;
    blurry_attn_forward_args f = {.q = p->q,
                                  .k = p->k,
                                  .v = p->v,
                                  .o = p->o,
                                  .saved = p->saved,
                                  .workspace = p->workspace,
                                  .workspace_bytes = p->workspace_bytes,
                                  .stream = stream};
    blurry_status status = blurry_attn_forward(p->plan, &f);
    if (status != BLURRY_OK || !p->with_backward) return status;
    blurry_attn_backward_args b = {.q = p->q,
                                   .k = p->k,
                                   .v = p->v,
                                   .d_o = p->d_o,
                                   .saved = p->saved,
                                   .d_q = p->d_q,
                                   .d_k = p->d_k,
                                   .d_v = p->d_v,
                                   .workspace = p->workspace,
                                   .workspace_bytes = p->workspace_bytes,
                                   .stream = stream};
    return blurry_attn_backward(p->plan, &b);
}

blurry_status bench_gpu_time(blurry_work work, void *context, int repeats, int calls, double *seconds)
{
    double *all = bench_alloc((size_t)repeats * sizeof *all);
    blurry_timing how = {.warmup = 3, .repeats = repeats, .calls = calls, .graph = 1};
    blurry_status status = blurry_device_time(BLURRY_DEVICE_CUDA, &how, work, context, all);
    if (status == BLURRY_OK) *seconds = bench_median(all, repeats);
    free(all);
    return status;
}
