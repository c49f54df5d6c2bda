/* Timing, random data, the sgemm everything is measured against, and one operator problem with its memory. */
#include "cli/bench.h"
#include "cli/cli.h"
#include "cli/options.h"

#include <cblas.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

int bench_whole(const char *bench, const char *option, const char *text, long long least, int64_t *to)
{
    long long value;
    if (!text) return CLI_OK;
    if (!options_integer(text, &value) || value < least || value > INT32_MAX)
        return options_usage(bench, "%s is '%s': give a whole number from %lld", option, text, least);
    *to = value;
    return CLI_OK;
}

double bench_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int bench_compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof *values, bench_compare);
    return count % 2 ? values[count / 2] : 0.5 * (values[count / 2 - 1] + values[count / 2]);
}

void bench_random(float *to, int64_t count, uint64_t seed)
{
    for (int64_t i = 0; i < count; i++) {
        uint64_t x = seed * 0xd1342543de82ef95u + ((uint64_t)i + 1) * 0x9e3779b97f4a7c15u; /* splitmix64 */
        x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
        x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
        to[i] = (float)((double)((x ^ (x >> 31)) >> 11) * 0x1p-52 - 1.0);
    }
}

double bench_error(const float *a, const double *b, int64_t count)
{
    double difference = 0, size = 0;
    for (int64_t i = 0; i < count; i++) {
        difference += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        size += b[i] * b[i];
    }
    return sqrt(difference / (size > 0 ? size : 1));
}

void *bench_alloc(size_t bytes)
{
    void *memory = aligned_alloc(64, (bytes + 127) / 64 * 64);
    if (!memory) {
        fprintf(stderr, "blurry: bench: no memory for %zu bytes; choose smaller sizes\n", bytes);
        exit(1);
    }
    memset(memory, 0, bytes); /* touched before it is timed */
    return memory;
}

double bench_sgemm(int threads)
{
    enum { N = 1024 };
    static float *a, *b, *c;
    if (!a) {
        a = bench_alloc(sizeof(float) * N * N), b = bench_alloc(sizeof(float) * N * N);
        c = bench_alloc(sizeof(float) * N * N);
        bench_random(a, N * N, 1);
        bench_random(b, N * N, 2);
    }
    openblas_set_num_threads(threads);
    double start = bench_now();
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, N, N, N, 1, a, N, b, N, 0, c, N);
    double seconds = bench_now() - start;
    /* OpenBLAS's threads go on waiting actively for some milliseconds and would slow down what is timed next.
     */
    nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    return 2e-9 * N * N * N / seconds;
}

json_t *bench_machine(int threads, const char *kernel)
{
    char line[256], model[256] = "unknown";
    FILE *info = fopen("/proc/cpuinfo", "r");
    while (info && fgets(line, sizeof line, info))
        if (sscanf(line, "model name : %255[^\n]", model) == 1) break;
    if (info) fclose(info);
    return json_pack("{s:s, s:i, s:s, s:s}", "cpu", model, "threads", threads, "kernel", kernel, "version",
                     blurry_version());
}

int bench_threads(void)
{
    blurry_attn_desc d;
    blurry_attn_plan *plan = NULL;
    blurry_attn_desc_init(&d);
    int threads = 1;
    if (blurry_attn_plan_create(&plan, &d) == BLURRY_OK) {
        blurry_attn_plan_desc(plan, &d);
        threads = d.threads;
    }
    blurry_attn_plan_destroy(&plan);
    return threads;
}

double bench_forward_macs(const blurry_attn_desc *d)
{
    const double C = 64;
    double S = 2.0 * (double)d->modes - 1, dims = 0.5 * (double)(d->dim_k + d->dim_v);
    return (4 * S * dims + (C + 1) * (dims + S)) * (double)(d->batch * d->length * d->heads);
}

blurry_status bench_problem_open(bench_problem *p, const blurry_attn_desc *desc, uint64_t seed)
{
    memset(p, 0, sizeof *p);
    blurry_status status = blurry_attn_plan_create(&p->plan, desc);
    if (status != BLURRY_OK) return status;
    blurry_attn_plan_desc(p->plan, &p->desc);
    const blurry_attn_desc *d = &p->desc;
    int64_t tokens = d->batch * d->length;
    struct {
        float **to;
        int64_t count;
    } tensors[] = {{&p->q, tokens * d->heads * d->dim_k},      {&p->k, tokens * d->heads_kv * d->dim_k},
                   {&p->v, tokens * d->heads_kv * d->dim_v},   {&p->o, tokens * d->heads * d->dim_v},
                   {&p->d_o, tokens * d->heads * d->dim_v},    {&p->d_q, tokens * d->heads * d->dim_k},
                   {&p->d_k, tokens * d->heads_kv * d->dim_k}, {&p->d_v, tokens * d->heads_kv * d->dim_v}};
    for (size_t i = 0; i < sizeof tensors / sizeof tensors[0]; i++) {
        *tensors[i].to = bench_alloc((size_t)tensors[i].count * sizeof(float));
        bench_random(*tensors[i].to, tensors[i].count, seed + i);
    }
    p->saved = bench_alloc(blurry_attn_saved_bytes(p->plan));
    p->workspace_bytes = blurry_attn_backward_workspace(p->plan);
    if (p->workspace_bytes < blurry_attn_forward_workspace(p->plan))
        p->workspace_bytes = blurry_attn_forward_workspace(p->plan);
    p->workspace = bench_alloc(p->workspace_bytes);
    return BLURRY_OK;
}

blurry_status bench_problem_forward(bench_problem *p)
{
    blurry_attn_forward_args args = {.q = p->q,
                                     .k = p->k,
                                     .v = p->v,
                                     .o = p->o,
                                     .saved = p->saved,
                                     .workspace = p->workspace,
                                     .workspace_bytes = p->workspace_bytes};
    return blurry_attn_forward(p->plan, &args);
}

blurry_status bench_problem_backward(bench_problem *p)
{
    blurry_attn_backward_args args = {.q = p->q,
                                      .k = p->k,
                                      .v = p->v,
                                      .d_o = p->d_o,
                                      .saved = p->saved,
                                      .d_q = p->d_q,
                                      .d_k = p->d_k,
                                      .d_v = p->d_v,
                                      .workspace = p->workspace,
                                      .workspace_bytes = p->workspace_bytes};
    return blurry_attn_backward(p->plan, &args);
}

blurry_status bench_reference(const blurry_attn_desc *desc, double *const exact[8])
{
    blurry_attn_desc d = *desc;
    d.dtype = d.state_dtype = BLURRY_F64, d.device = BLURRY_DEVICE_CPU, d.reference = 1;
    blurry_attn_plan *plan = NULL;
    blurry_status status = blurry_attn_plan_create(&plan, &d);
    if (status != BLURRY_OK) return status;
    size_t bytes = blurry_attn_forward_workspace(plan), more = blurry_attn_backward_workspace(plan);
    if (more > bytes) bytes = more;
    void *workspace = bench_alloc(bytes);
    blurry_attn_forward_args f = {.q = exact[0],
                                  .k = exact[1],
                                  .v = exact[2],
                                  .o = exact[4],
                                  .workspace = workspace,
                                  .workspace_bytes = bytes};
    blurry_attn_backward_args b = {.q = exact[0],
                                   .k = exact[1],
                                   .v = exact[2],
                                   .d_o = exact[3],
                                   .d_q = exact[5],
                                   .d_k = exact[6],
                                   .d_v = exact[7],
                                   .workspace = workspace,
                                   .workspace_bytes = bytes};
    status = blurry_attn_forward(plan, &f);
    if (status == BLURRY_OK) status = blurry_attn_backward(plan, &b);
    free(workspace);
    blurry_attn_plan_destroy(&plan);
    return status;
}

void bench_problem_close(bench_problem *p)
{
    blurry_attn_plan_destroy(&p->plan);
    float *tensors[] = {p->q, p->k, p->v, p->o, p->d_o, p->d_q, p->d_k, p->d_v};
    for (size_t i = 0; i < sizeof tensors / sizeof tensors[0]; i++) free(tensors[i]);
    free(p->saved);
    free(p->workspace);
    memset(p, 0, sizeof *p);
}
