/* `blurry bench op --device cuda`: the operator on whole sequences on a GPU, by graph replays, and how time
 * and memory grow with the length. Each shape is first checked, shortened, against the double reference. */
#include "cli/bench_cuda.h"
#include "cli/cli.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct row {
    int64_t batch, length, heads, dim, modes;
    int decay;
} row;

static const row rows[] = {
    {4, 4096, 16, 64, 64, 0},  {4, 4096, 16, 64, 64, 1},  {4, 4096, 16, 128, 32, 0},
    {4, 4096, 16, 128, 32, 1}, {1, 65536, 16, 64, 64, 0}, {1, 65536, 16, 64, 64, 1},
    {32, 512, 2, 64, 64, 0},   {32, 512, 2, 64, 64, 1},
};
enum { ROWS = sizeof rows / sizeof rows[0], QUICK_ROWS = 2, SWEEP_FROM = 4096, SWEEP_TO = 1048576 };

static blurry_attn_desc describe(const row *r, const bench_target *target)
{
    blurry_attn_desc d;
    blurry_attn_desc_init(&d);
    d.batch = r->batch, d.length = r->length, d.heads = r->heads, d.dim_k = r->dim, d.modes = r->modes;
    d.decay = r->decay, d.dtype = target->dtype, d.device = BLURRY_DEVICE_CUDA;
    d.state_dtype = target->state_dtype;
    return d;
}

/* ---- the check ---- */

/* The largest relative error of o, d_q, d_k, d_v over a shorter problem of the same kind. */
static blurry_status check(const row *r, const bench_target *target, double *worst)
{
    row small = *r;
    small.batch = r->batch < 2 ? r->batch : 2, small.heads = 2;
    small.length = r->length < 640 ? r->length : 640;
    blurry_attn_desc d = describe(&small, target);
    bench_gpu_problem p;
    blurry_status status = bench_gpu_open(&p, &d, 1);
    if (status != BLURRY_OK) return status;
    int64_t n = small.batch * small.length * small.heads * small.dim;
    const void *tensors[8] = {p.q, p.k, p.v, p.d_o, p.o, p.d_q, p.d_k, p.d_v};
    float *single = bench_alloc((size_t)n * sizeof(float));
    double *exact[8];
    for (int i = 0; i < 8; i++) {
        exact[i] = bench_alloc((size_t)n * sizeof(double));
        if (i < 4 && status == BLURRY_OK) status = bench_gpu_read(single, tensors[i], n, d.dtype);
        for (int64_t j = 0; i < 4 && j < n; j++) exact[i][j] = single[j];
    }
    if (status == BLURRY_OK) status = bench_reference(&p.desc, exact);
    if (status == BLURRY_OK) status = bench_gpu_pass(&p, NULL);
    if (status == BLURRY_OK) status = blurry_attn_sync(p.plan, NULL);
    *worst = 0;
    for (int i = 4; i < 8 && status == BLURRY_OK; i++) {
        status = bench_gpu_read(single, tensors[i], n, d.dtype);
        double error = bench_error(single, exact[i], n);
        if (!(error <= *worst)) *worst = error;
    }
    for (int i = 0; i < 8; i++) free(exact[i]);
    free(single);
    bench_gpu_close(&p);
    return status;
}

/* ---- rows ---- */

static blurry_status time_pass(const row *r, const bench_target *target, int with_backward, int repeats,
                               double *seconds, size_t *memory)
{
    blurry_attn_desc d = describe(r, target);
    bench_gpu_problem p;
    size_t before = 0, after = 0;
    blurry_status status = blurry_device_memory(BLURRY_DEVICE_CUDA, &before, NULL);
    if (status == BLURRY_OK) status = bench_gpu_open(&p, &d, with_backward);
    if (status != BLURRY_OK) return status;
    int64_t tokens = d.batch * d.length;
    status = bench_gpu_time(bench_gpu_pass, &p, repeats, tokens > 200000 ? 1 : 8, seconds);
    if (status == BLURRY_OK) status = blurry_attn_sync(p.plan, NULL);
    if (status == BLURRY_OK) status = blurry_device_memory(BLURRY_DEVICE_CUDA, &after, NULL);
    if (memory) *memory = before > after ? before - after : 0;
    bench_gpu_close(&p);
    return status;
}

static double teraflops(const row *r, const bench_target *target, double passes, double seconds)
{
    blurry_attn_desc d = describe(r, target);
    d.dim_v = d.dim_k;
    return 2e-12 * passes * bench_forward_macs(&d) / seconds;
}

static blurry_status measure(const row *r, const bench_target *target, int repeats, int json, json_t *list,
                             int *bad)
{
    double error, forward, both;
    blurry_status status = check(r, target, &error);
    if (status == BLURRY_OK) status = time_pass(r, target, 0, repeats, &forward, NULL);
    if (status == BLURRY_OK) status = time_pass(r, target, 1, repeats, &both, NULL);
    if (status != BLURRY_OK) return status;
    *bad |= !(error <= bench_tolerance(target->dtype));
    if (!json)
        printf("%3lld %6lld %3lld %4lld %4lld %-5s  %9.4f %7.1f  %9.4f %7.1f  %.1e\n", (long long)r->batch,
               (long long)r->length, (long long)r->heads, (long long)r->dim, (long long)(2 * r->modes - 1),
               r->decay ? "decay" : "none", 1e3 * forward, teraflops(r, target, 1, forward), 1e3 * both,
               teraflops(r, target, 3, both), error);
    fflush(stdout);
    json_array_append_new(list, json_pack("{s:I, s:I, s:I, s:I, s:I, s:b, s:f, s:f, s:f}", "batch",
                                          (json_int_t)r->batch, "length", (json_int_t)r->length, "heads",
                                          (json_int_t)r->heads, "dim", (json_int_t)r->dim, "slots",
                                          (json_int_t)(2 * r->modes - 1), "decay", r->decay, "forward_ms",
                                          1e3 * forward, "both_ms", 1e3 * both, "error",
                                          isfinite(error) ? error : -1.0));
    return BLURRY_OK;
}

/* Times at some lengths, and the line start + each L that is nearest to them in relative terms. */
typedef struct {
    int count;
    double length[8], seconds[8];
} times;
typedef struct {
    double start, each, farthest; /* seconds, seconds a token, the worst relative deviation */
} line;

static line line_through(const times *t)
{
    double xx = 0, xy = 0, yy = 0, x1 = 0, y1 = 0;
    for (int i = 0; i < t->count; i++) {
        double x = 1 / t->seconds[i], y = t->length[i] / t->seconds[i];
        xx += x * x, xy += x * y, yy += y * y, x1 += x, y1 += y;
    }
    double det = xx * yy - xy * xy;
    line fit = {(x1 * yy - y1 * xy) / det, (y1 * xx - x1 * xy) / det, 0};
    for (int i = 0; i < t->count; i++)
        fit.farthest = fmax(fit.farthest, fabs((fit.start + fit.each * t->length[i]) / t->seconds[i] - 1));
    return fit;
}

/* Forward for inference at growing lengths: time per token, device memory beyond the tensors, and how near
 * the times are to a line. Its start is what does not depend on the length: kernels that begin and end, a
 * chip that short sequences do not fill. */
static blurry_status sweep(const bench_target *target, int64_t heads, int repeats, int json, json_t *list)
{
    double first = 0;
    times all = {0};
    if (!json)
        printf("\nforward, B=1 H=%lld D=64 S=127, decay\n%8s %10s %10s %8s  %12s %14s\n", (long long)heads,
               "L", "ms", "ns/token", "of first", "tensors MB", "beyond them MB");
    for (int64_t L = SWEEP_FROM; L <= SWEEP_TO; L *= 4) {
        row r = {1, L, heads, 64, 64, 1};
        double seconds;
        size_t memory;
        blurry_status status = time_pass(&r, target, 0, repeats, &seconds, &memory);
        if (status != BLURRY_OK) return status;
        double tensors = 4.0 * (double)(L * heads * 64) * (double)bench_element(target->dtype);
        double beyond = (double)memory > tensors ? (double)memory - tensors : 0, each = seconds / (double)L;
        if (first == 0) first = each;
        all.length[all.count] = (double)L, all.seconds[all.count++] = seconds;
        if (!json)
            printf("%8lld %10.4f %10.3f %8.3f  %12.1f %14.1f\n", (long long)L, 1e3 * seconds, 1e9 * each,
                   each / first, 1e-6 * tensors, 1e-6 * beyond);
        fflush(stdout);
        json_array_append_new(list, json_pack("{s:I, s:I, s:f, s:f, s:f}", "heads", (json_int_t)heads,
                                              "length", (json_int_t)L, "forward_ms", 1e3 * seconds,
                                              "tensor_bytes", tensors, "beyond_bytes", beyond));
    }
    const line fit = line_through(&all);
    if (!json)
        printf("%.1f us + %.3f ns a token, every length within %.1f%% of it\n", 1e6 * fit.start,
               1e9 * fit.each, 100 * fit.farthest);
    return BLURRY_OK;
}

int bench_op_cuda(const bench_target *target, int repeats, int quick, int json)
{
    char name[128];
    int bad = 0;
    blurry_status status = blurry_device_check(BLURRY_DEVICE_CUDA);
    if (status == BLURRY_OK) status = blurry_device_name(BLURRY_DEVICE_CUDA, name, sizeof name);
    if (status != BLURRY_OK) return cli_report(status, "bench op");
    json_t *list = json_array(), *lengths = json_array();
    if (!json) {
        printf("blurry %s, operator on %s, %s, T = 2 S, medians of %d graph replays\n", blurry_version(),
               name, bench_type_name(target->dtype), repeats);
        printf("%3s %6s %3s %4s %4s %-5s  %9s %7s  %9s %7s  %s\n", "B", "L", "H", "D", "S", "decay", "fwd ms",
               "TFLOP/s", "f+b ms", "TFLOP/s", "error");
    }
    for (int i = 0; i < (quick ? QUICK_ROWS : ROWS) && status == BLURRY_OK; i++)
        status = measure(&rows[i], target, repeats, json, list, &bad);
    for (int64_t heads = 16; heads <= 64 && status == BLURRY_OK && !quick; heads *= 4)
        status = sweep(target, heads, repeats, json, lengths);
    json_t *root = json_pack("{s:s, s:s, s:s, s:o, s:o}", "device", name, "version", blurry_version(),
                             "precision", bench_type_name(target->dtype), "rows", list, "lengths", lengths);
    if (status == BLURRY_OK && json) json_dumpf(root, stdout, JSON_INDENT(1)), printf("\n");
    json_decref(root);
    if (status != BLURRY_OK) return cli_report(status, "bench op");
    if (!bad) return CLI_OK;
    fprintf(stderr, "blurry: bench op: an error is above %.0e; see above\n", bench_tolerance(target->dtype));
    return CLI_FAILED;
}
