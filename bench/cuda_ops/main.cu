/* Times the memory-bound operations and the output head of the CUDA tables on a GPU, each checked against the
 * double reference on the CPU first:
 *     cuda_ops [FILTER] [--check]      operations whose name contains FILTER; --check: no times
 * Sizes are those of the MQAR training step (batch 32, length 512, width 128, vocabulary 8192, 2048 labels).
 * A time is the median over replays of a graph of 20 calls; the floor is the bytes that must move, each once,
 * at 4.2 TB/s (arrays of this size stay in the second-level cache, so it can be beaten). Exits 1 where a
 * check fails. */
#include "base/rng.h"
#include "cases.h"
#include "kernels/cuda_blas.h"

#include <algorithm>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const double floor_rate = 4.2e12;

/* ---- elements of tensors ---- */
static size_t bytes_of(const tensor &x, type t)
{
    switch (x.is) {
    case INT32:
        return 4;
    case INT64:
    case DOUBLE:
        return 8;
    case FLOATS:
        return t == F64 ? 8 : 4;
    default:
        return t == F64 ? 8 : t == F32 ? 4 : 2;
    }
}

static float rounded(double x) /* to bf16, so that all tables see the same inputs */
{
    return from_bf16(to_bf16((float)x));
}

static void put(const tensor &x, type t, char *to, int64_t i, double v)
{
    size_t size = bytes_of(x, t);
    if (x.is == INT32)
        *(int32_t *)(to + i * 4) = (int32_t)v;
    else if (x.is == INT64)
        *(int64_t *)(to + i * 8) = (int64_t)v;
    else if (size == 8)
        *(double *)(to + i * 8) = v;
    else if (size == 4)
        *(float *)(to + i * 4) = (float)v;
    else
        *(bf16 *)(to + i * 2) = to_bf16((float)v);
}

static double get(const tensor &x, type t, const char *from, int64_t i)
{
    size_t size = bytes_of(x, t);
    if (x.is == INT32) return *(const int32_t *)(from + i * 4);
    if (x.is == INT64) return (double)*(const int64_t *)(from + i * 8);
    if (size == 8) return *(const double *)(from + i * 8);
    return size == 4 ? *(const float *)(from + i * 4) : from_bf16(*(const bf16 *)(from + i * 2));
}

static void ok(cudaError_t e, const char *what)
{
    if (e == cudaSuccess) return;
    fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(e));
    exit(1);
}

static std::vector<char> host_of(const tensor &x, type t)
{
    std::vector<char> h((size_t)x.count * bytes_of(x, t));
    for (int64_t i = 0; i < x.count; i++)
        put(x, t, h.data(), i, x.written == 1 && x.is != INT32 && x.is != INT64 ? NAN : x.values[(size_t)i]);
    return h;
}

static void fill(bench_case &c)
{
    uint64_t stream = 0;
    for (tensor &x : c.tensors) {
        rng random = rng_stream(5, RNG_TEST, stream++);
        if (x.values.size()) continue;
        x.values.resize((size_t)x.count);
        double low = x.low, high = x.high;
        if (low == 0 && high == 0) low = -1, high = 1;
        for (double &v : x.values)
            v = x.is == INT32 || x.is == INT64 ? 0 : rounded(low + (high - low) * rng_double(&random));
    }
}

/* ---- running ---- */
struct gpu {
    cudaStream_t stream;
    kernel_run run;
};

static double time_of(const gpu &g, const bench_case &c, type t, void **x)
{
    enum { CALLS = 20, REPLAYS = 15 };
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaEvent_t start, stop;
    ok(cudaStreamBeginCapture(g.stream, cudaStreamCaptureModeThreadLocal), "capture");
    for (int i = 0; i < CALLS; i++) c.call(t, &g.run, x, 0);
    ok(cudaStreamEndCapture(g.stream, &graph), "capture");
    ok(cudaGraphInstantiate(&exec, graph, 0), "graph");
    ok(cudaEventCreate(&start), "event");
    ok(cudaEventCreate(&stop), "event");
    std::vector<float> ms;
    for (int i = 0; i < REPLAYS + 3; i++) {
        float one = 0;
        ok(cudaEventRecord(start, g.stream), "record");
        ok(cudaGraphLaunch(exec, g.stream), "launch");
        ok(cudaEventRecord(stop, g.stream), "record");
        ok(cudaEventSynchronize(stop), "wait");
        ok(cudaEventElapsedTime(&one, start, stop), "time");
        if (i >= 3) ms.push_back(one / CALLS);
    }
    std::sort(ms.begin(), ms.end());
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
    cudaEventDestroy(start);
    cudaEventDestroy(stop);
    return ms[ms.size() / 2] * 1e-3;
}

/* Largest difference of any output, relative to the output's largest value; NaN counts as infinite. */
static double error_of(const bench_case &c, type t, const std::vector<std::vector<char>> &got,
                       const std::vector<std::vector<char>> &want, const char **worst_name)
{
    double worst = 0;
    static const char *names[] = {"0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12"};
    for (size_t k = 0; k < c.tensors.size(); k++) {
        const tensor &x = c.tensors[k];
        double most = 1e-30, off = 0;
        if (!x.written) continue;
        for (int64_t i = 0; i < x.count; i++) {
            double a = get(x, t, got[k].data(), i), b = get(x, F64, want[k].data(), i);
            if (isnan(a) && isnan(b)) continue; /* labels beyond the checked ones */
            double d = isnan(a - b) ? INFINITY : fabs(a - b);
            if (x.is == INT32) d = d != 0;
            off = fmax(off, d);
            most = fmax(most, x.is == INT32 ? 1e3 : fabs(b));
        }
        if (off / most >= worst) worst = off / most, *worst_name = names[k];
    }
    return worst;
}

enum { TENSORS_MOST = 16 };

static int run_case(gpu &g, const bench_case &c, int check_only)
{
    static const double allowed[] = {2e-2, 1e-4};
    static const char *const type_name[] = {"bf16", "f32"};
    int failed = 0;
    std::vector<std::vector<char>> want, got;
    std::vector<void *> x;
    for (const tensor &one : c.tensors) want.push_back(host_of(one, F64));
    for (auto &h : want) x.push_back(h.data());
    x.resize(TENSORS_MOST);
    std::vector<double> scratch(1 << 20);
    kernel_run cpu = {};
    cpu.threads = 1, cpu.scratch = scratch.data(), cpu.scratch_bytes = scratch.size() * 8, cpu.element = 8;
    c.call(F64, &cpu, x.data(), c.checked);
    for (int t = BF16; t <= F32; t++) {
        got.clear(), x.clear();
        for (const tensor &one : c.tensors) {
            void *d;
            got.push_back(host_of(one, (type)t));
            ok(cudaMalloc(&d, got.back().size() + 64), "cudaMalloc");
            ok(cudaMemcpy(d, got.back().data(), got.back().size(), cudaMemcpyHostToDevice), "copy");
            x.push_back(d);
        }
        x.resize(TENSORS_MOST); /* cases name more than some of their operations use */
        g.run.element = t == BF16 ? 2 : 4;
        c.call((type)t, &g.run, x.data(), c.checked);
        ok(cudaStreamSynchronize(g.stream), c.name);
        ok(cudaGetLastError(), c.name);
        for (size_t k = 0; k < got.size(); k++)
            ok(cudaMemcpy(got[k].data(), x[k], got[k].size(), cudaMemcpyDeviceToHost), "copy");
        const char *where = "";
        double error = error_of(c, (type)t, got, want, &where);
        int bad = !(error <= allowed[t]);
        failed += bad;
        printf("%-20s %-4s  error %8.2e%s", c.name, type_name[t], error, bad ? " WRONG " : "");
        if (bad) printf(" (tensor %s)", where);
        if (!check_only) {
            double s = time_of(g, c, (type)t, x.data());
            printf("  %8.2f us  %6.2f TB/s  %5.1fx floor", s * 1e6, c.bytes[t] / s * 1e-12,
                   s * floor_rate / c.bytes[t]);
            if (c.flop > 0) printf("  %6.1f TFLOP/s", c.flop / s * 1e-12);
        }
        printf("\n");
        fflush(stdout);
        for (void *d : x) cudaFree(d);
    }
    return failed;
}

int main(int argc, char **argv)
{
    const char *filter = "";
    int check_only = 0, failed = 0, ran = 0;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--check"))
            check_only = 1;
        else
            filter = argv[i];
    }
    gpu g = {};
    ok(cudaStreamCreate(&g.stream), "cudaStreamCreate");
    char message[256];
    g.run.stream = g.stream;
    g.run.blas = cuda_blas_create(0, message, sizeof message);
    if (!g.run.blas) return fprintf(stderr, "%s\n", message), 1;
    g.run.scratch_bytes = std::max(head_scratch(&g.run), (size_t)KERNEL_SCRATCH_CUDA);
    ok(cudaMalloc(&g.run.scratch, g.run.scratch_bytes), "cudaMalloc");
    ok(cudaMemset(g.run.scratch, 0xff, g.run.scratch_bytes), "cudaMemset");
    case_list all;
    elementwise_cases(all), norm_cases(all), sequence_cases(all), embedding_cases(all), gate_cases(all);
    head_cases(all);
    for (bench_case &c : all) {
        if (!strstr(c.name, filter)) continue;
        fill(c);
        failed += run_case(g, c, check_only);
        ran++;
    }
    printf("%d cases, %d failed\n", ran, failed);
    cuda_blas_destroy(g.run.blas);
    cudaFree(g.run.scratch);
    return failed > 0 || !ran;
}
