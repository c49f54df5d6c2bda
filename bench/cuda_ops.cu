/* Times the memory-bound operations and the output head of the CUDA tables on a GPU, each checked against the
 * double reference on the CPU first:
 *     cuda_ops [FILTER] [--check]      operations whose name contains FILTER; --check: no times
 * Sizes are those of the MQAR training step (batch 32, length 512, width 128, vocabulary 8192, 2048 labels).
 * A time is the median over replays of a graph of 20 calls; the floor is the bytes that must move, each once,
 * at 4.2 TB/s (arrays of this size stay in the second-level cache, so it can be beaten). Exits 1 where a
 * check fails. */
#include "base/rng.h"
#include "kernels/conv/conv.h"
#include "kernels/cuda.h"
#include "kernels/cuda_blas.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/embed/embed.h"
#include "kernels/gates/gates.h"
#include "kernels/norm/norm.h"
#include "kernels/rope/rope.h"
#include "kernels/xent/xent.h"

#include <algorithm>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <vector>

enum type { BF16, F32, F64 }; /* tables: two on the GPU, the reference */
static const double floor_rate = 4.2e12;

/* ---- the operations of the three tables ---- */
#define DECLARE(name, args)                                                                                  \
    extern "C" void name##_cuda_bf16(const kernel_run *, const args *);                                      \
    extern "C" void name##_cuda_f32(const kernel_run *, const args *);                                       \
    extern "C" void name##_ref_f64(const kernel_run *, const args *);                                        \
    static void call_##name(type t, const kernel_run *run, const args &a)                                    \
    {                                                                                                        \
        (t == BF16 ? name##_cuda_bf16 : t == F32 ? name##_cuda_f32 : name##_ref_f64)(run, &a);               \
    }
DECLARE(add, add_args)
DECLARE(unary_forward, unary_args)
DECLARE(unary_backward, unary_args)
DECLARE(swiglu_forward, swiglu_args)
DECLARE(swiglu_backward, swiglu_args)
DECLARE(rmsnorm_forward, norm_args)
DECLARE(rmsnorm_backward, norm_args)
DECLARE(layernorm_forward, norm_args)
DECLARE(layernorm_backward, norm_args)
DECLARE(headnorm_forward, headnorm_args)
DECLARE(headnorm_backward, headnorm_args)
DECLARE(l2norm_forward, l2norm_args)
DECLARE(l2norm_backward, l2norm_args)
DECLARE(rope_table, rope_args)
DECLARE(rope_forward, rope_args)
DECLARE(rope_backward, rope_args)
DECLARE(conv_forward, conv_args)
DECLARE(conv_backward, conv_args)
DECLARE(embed_forward, embed_args)
DECLARE(embed_backward, embed_args)
DECLARE(slots_gate_forward, slots_gate_args)
DECLARE(slots_gate_backward, slots_gate_args)
DECLARE(gdn_gate_forward, gdn_gate_args)
DECLARE(gdn_gate_backward, gdn_gate_args)
DECLARE(xent_forward, xent_args)
DECLARE(xent_backward, xent_args)
extern "C" void xent_sizes_cuda_bf16(const kernel_run *, const xent_args *, kernel_sizes *);
extern "C" void xent_sizes_cuda_f32(const kernel_run *, const xent_args *, kernel_sizes *);

/* ---- tensors ---- */
enum kind { ACTIVATION, COPIED /* a weight read as activation */, FLOATS, INT32, INT64, DOUBLE };
struct tensor {
    kind is;
    int64_t count;
    double low, high; /* of random inputs */
    int written;      /* 1: an output; 2: added to */
    std::vector<double> values;
};

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

/* One operation at one shape: call runs it on x, the tensors in order. */
struct bench_case {
    const char *name;
    void (*call)(type t, const kernel_run *run, void **x, int64_t checked);
    std::vector<tensor> tensors;
    double bytes[2]; /* that must move, for bf16 and float */
    double flop;
    int64_t checked; /* labels the check uses where the reference is too slow for all; 0: all */
};

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

/* ---- cases ---- */
enum : int64_t { B = 32, L = 512, D = 128, ROWS = B * L, V = 8192, LABELS = 2048, H = 8, SLOTS = 64 };

static tensor act(int64_t n, double low = 0, double high = 0)
{
    return {ACTIVATION, n, low, high, 0, {}};
}
static tensor act_out(int64_t n)
{
    return {ACTIVATION, n, 0, 0, 1, {}};
}
static tensor par(int64_t n, double low = 0, double high = 0)
{
    return {FLOATS, n, low, high, 0, {}};
}
static tensor par_sum(int64_t n)
{
    return {FLOATS, n, 0, 0, 2, {}};
}
static tensor stat_out(int64_t n)
{
    return {FLOATS, n, 0, 0, 1, {}};
}
static tensor ints(kind is, int64_t n, double (*value)(int64_t))
{
    tensor x = {is, n, 0, 0, 0, {}};
    for (int64_t i = 0; i < n; i++) x.values.push_back(value(i));
    return x;
}

/* Three in five tokens are the filler 0, as in MQAR. */
static double token_at(int64_t i)
{
    uint32_t word[4];
    rng_block(3, RNG_TEST, 99, (uint64_t)i, word);
    return word[0] % 5 < 3 ? 0 : word[1] % V;
}
static double key_at(int64_t i)
{
    return i ? 3 : 11;
}
static double label_row_at(int64_t i)
{
    return (double)(i * (ROWS / LABELS) + i % 7);
}
static double target_at(int64_t i)
{
    return (double)(i * 37 % V);
}
static double zero_at(int64_t)
{
    return 0;
}

static norm_args norm_of(void **x)
{
    norm_args a = {};
    a.rows = ROWS, a.width = D, a.eps = 1e-5, a.x = x[0], a.weight = x[1], a.bias = x[2], a.y = x[3];
    a.mean = x[4], a.rstd = x[5], a.d_y = x[6], a.d_x = x[7], a.d_weight = x[8], a.d_bias = x[9];
    a.d_residual = x[10];
    return a;
}
static std::vector<tensor> norm_tensors(int backward)
{
    std::vector<tensor> t = {act(ROWS * D),  par(D),         par(D),        act_out(ROWS * D),
                             stat_out(ROWS), stat_out(ROWS), act(ROWS * D), act_out(ROWS * D),
                             par_sum(D),     par_sum(D),     act(ROWS * D)};
    if (backward) { /* statistics are inputs: any numbers serve */
        t[4] = par(ROWS, -0.1, 0.1), t[5] = par(ROWS, 0.5, 2);
        t[3].written = 0;
    } else {
        t[7].written = t[8].written = t[9].written = 0;
    }
    return t;
}

static headnorm_args headnorm_of(void **x)
{
    headnorm_args a = {};
    a.rows = ROWS, a.heads = 2, a.width = D / 2, a.eps = 1e-5, a.x = x[0], a.gate = x[1], a.weight = x[2];
    a.y = x[3], a.rstd = x[4], a.d_y = x[5], a.d_x = x[6], a.d_gate = x[7], a.d_weight = x[8];
    return a;
}

static embed_args embed_of(void **x, double dropout)
{
    embed_args a = {};
    a.batch = B, a.length = L, a.width = D, a.vocab = V, a.id = (const int32_t *)x[0], a.weight = x[1];
    a.dropout = dropout, a.key = (const uint64_t *)x[2], a.y = x[3], a.d_y = x[4], a.d_weight = x[5];
    return a;
}

static conv_args conv_of(void **x)
{
    conv_args a = {};
    a.batch = B, a.length = L, a.channels = D, a.kernel = 4, a.silu = 1, a.x = x[0], a.weight = x[1],
    a.y = x[2];
    a.d_y = x[3], a.d_x = x[4], a.d_weight = x[5];
    return a;
}

static rope_args rope_of(void **x)
{
    rope_args a = {};
    a.batch = B, a.length = L, a.heads = 1, a.dim = D, a.base = 10000, a.table = x[1], a.x = x[0], a.y = x[2];
    a.d_y = x[0], a.d_x = x[2];
    return a;
}

static slots_gate_args slots_gate_of(void **x)
{
    slots_gate_args a = {};
    a.batch = B, a.length = L, a.channels = SLOTS, a.s = x[0], a.g = x[1], a.d_g = x[2], a.d_s = x[3];
    return a;
}

static gdn_gate_args gdn_gate_of(void **x)
{
    gdn_gate_args a = {};
    a.rows = ROWS, a.heads = H, a.x = x[0], a.A = x[1], a.dt_bias = x[2], a.g = x[3], a.d_g = x[4],
    a.d_x = x[5];
    a.d_A = x[6], a.d_dt_bias = x[7];
    return a;
}

static xent_args xent_of(void **x, int64_t checked)
{
    xent_args a = {};
    a.labels = LABELS, a.n_hidden = ROWS, a.width = D, a.vocab = V, a.hidden = x[0], a.weight = x[1];
    a.row = (const int64_t *)x[2], a.target = (const int32_t *)x[3], a.log_prob = x[4],
    a.argmax = (int32_t *)x[5];
    a.grad_scale = (const double *)x[6], a.d_hidden = x[7], a.d_weight = x[8];
    if (checked) a.count = (const int64_t *)x[9];
    return a;
}

static std::vector<bench_case> all_cases(void)
{
    std::vector<bench_case> all;
    const double N = (double)(ROWS * D);
    auto two = [](double activations, double floats) {
        return std::pair<double, double>(activations * 2 + floats * 4, activations * 4 + floats * 4);
    };
    auto push = [&](const char *name, void (*call)(type, const kernel_run *, void **, int64_t),
                    std::vector<tensor> tensors, std::pair<double, double> bytes, double flop = 0,
                    int64_t checked = 0) {
        all.push_back({name, call, tensors, {bytes.first, bytes.second}, flop, checked});
    };
    push(
        "add",
        [](type t, const kernel_run *r, void **x, int64_t) {
            add_args a = {};
            a.count = ROWS * D, a.alpha = 0.5, a.beta = 2, a.a = x[0], a.b = x[1], a.y = x[2];
            call_add(t, r, a);
        },
        {act(ROWS * D), act(ROWS * D), act_out(ROWS * D)}, two(3 * N, 0));
    push(
        "unary_forward gelu",
        [](type t, const kernel_run *r, void **x, int64_t) {
            unary_args a = {};
            a.kind = UNARY_GELU, a.count = ROWS * D, a.x = x[0], a.y = x[1];
            call_unary_forward(t, r, a);
        },
        {act(ROWS * D, -4, 4), act_out(ROWS * D)}, two(2 * N, 0));
    push(
        "unary_backward gelu",
        [](type t, const kernel_run *r, void **x, int64_t) {
            unary_args a = {};
            a.kind = UNARY_GELU, a.count = ROWS * D, a.x = x[0], a.d_y = x[1], a.d_x = x[2];
            call_unary_backward(t, r, a);
        },
        {act(ROWS * D, -4, 4), act(ROWS * D), act_out(ROWS * D)}, two(3 * N, 0));
    push(
        "swiglu_forward",
        [](type t, const kernel_run *r, void **x, int64_t) {
            swiglu_args a = {};
            a.count = ROWS * D, a.gate = x[0], a.up = x[1], a.y = x[2];
            call_swiglu_forward(t, r, a);
        },
        {act(ROWS * D, -4, 4), act(ROWS * D), act_out(ROWS * D)}, two(3 * N, 0));
    push(
        "swiglu_backward",
        [](type t, const kernel_run *r, void **x, int64_t) {
            swiglu_args a = {};
            a.count = ROWS * D, a.gate = x[0], a.up = x[1], a.d_y = x[2], a.d_gate = x[3], a.d_up = x[4];
            call_swiglu_backward(t, r, a);
        },
        {act(ROWS * D, -4, 4), act(ROWS * D), act(ROWS * D), act_out(ROWS * D), act_out(ROWS * D)},
        two(5 * N, 0));
    push(
        "rmsnorm_forward",
        [](type t, const kernel_run *r, void **x, int64_t) {
            norm_args a = norm_of(x);
            a.mean = NULL;
            call_rmsnorm_forward(t, r, a);
        },
        norm_tensors(0), two(2 * N, ROWS));
    push(
        "rmsnorm_backward",
        [](type t, const kernel_run *r, void **x, int64_t) { call_rmsnorm_backward(t, r, norm_of(x)); },
        norm_tensors(1), two(4 * N, ROWS));
    push(
        "layernorm_forward",
        [](type t, const kernel_run *r, void **x, int64_t) { call_layernorm_forward(t, r, norm_of(x)); },
        norm_tensors(0), two(2 * N, 2 * ROWS));
    push(
        "layernorm_backward",
        [](type t, const kernel_run *r, void **x, int64_t) { call_layernorm_backward(t, r, norm_of(x)); },
        norm_tensors(1), two(4 * N, 2 * ROWS));
    push(
        "headnorm_forward",
        [](type t, const kernel_run *r, void **x, int64_t) { call_headnorm_forward(t, r, headnorm_of(x)); },
        {act(ROWS * D), act(ROWS * D, -4, 4), par(D / 2), act_out(ROWS * D), stat_out(2 * ROWS)},
        two(3 * N, 2 * ROWS));
    push(
        "headnorm_backward",
        [](type t, const kernel_run *r, void **x, int64_t) { call_headnorm_backward(t, r, headnorm_of(x)); },
        {act(ROWS * D), act(ROWS * D, -4, 4), par(D / 2), act(ROWS * D), par(2 * ROWS, 0.5, 2), act(ROWS * D),
         act_out(ROWS * D), act_out(ROWS * D), par_sum(D / 2)},
        two(5 * N, 2 * ROWS));
    push(
        "l2norm_forward",
        [](type t, const kernel_run *r, void **x, int64_t) {
            l2norm_args a = {};
            a.rows = ROWS, a.width = D, a.eps = 1e-6, a.x = x[0], a.y = x[1];
            call_l2norm_forward(t, r, a);
        },
        {act(ROWS * D), act_out(ROWS * D)}, two(2 * N, 0));
    push(
        "l2norm_backward",
        [](type t, const kernel_run *r, void **x, int64_t) {
            l2norm_args a = {};
            a.rows = ROWS, a.width = D, a.eps = 1e-6, a.x = x[0], a.d_y = x[1], a.d_x = x[2];
            call_l2norm_backward(t, r, a);
        },
        {act(ROWS * D), act(ROWS * D), act_out(ROWS * D)}, two(3 * N, 0));
    tensor table = par(L * D);
    for (int64_t i = 0; i < L * D; i++) {
        double angle = (double)(i / D) * pow(10000, -2.0 * (double)(i % D / 2) / D);
        table.values.push_back((float)(i % 2 ? sin(angle) : cos(angle)));
    }
    push(
        "rope_table",
        [](type t, const kernel_run *r, void **x, int64_t) { call_rope_table(t, r, rope_of(x)); },
        {act(ROWS * D), stat_out(L * D), act(ROWS * D)}, two(0, L * D));
    push(
        "rope_forward",
        [](type t, const kernel_run *r, void **x, int64_t) { call_rope_forward(t, r, rope_of(x)); },
        {act(ROWS * D), table, act_out(ROWS * D)}, two(2 * N, L * D));
    push(
        "rope_backward",
        [](type t, const kernel_run *r, void **x, int64_t) { call_rope_backward(t, r, rope_of(x)); },
        {act(ROWS * D), table, act_out(ROWS * D)}, two(2 * N, L * D));
    push(
        "conv_forward",
        [](type t, const kernel_run *r, void **x, int64_t) { call_conv_forward(t, r, conv_of(x)); },
        {act(ROWS * D), par(4 * D), act_out(ROWS * D)}, two(2 * N, 4 * D));
    push(
        "conv_backward",
        [](type t, const kernel_run *r, void **x, int64_t) { call_conv_backward(t, r, conv_of(x)); },
        {act(ROWS * D), par(4 * D), act(ROWS * D), act(ROWS * D), act_out(ROWS * D), par_sum(4 * D)},
        two(3 * N, 4 * D));
    push(
        "embed_forward",
        [](type t, const kernel_run *r, void **x, int64_t) { call_embed_forward(t, r, embed_of(x, 0.1)); },
        {ints(INT32, ROWS, token_at), par(V * D), ints(INT64, 2, key_at), act_out(ROWS * D)},
        two(N, N + ROWS));
    push(
        "embed_backward",
        [](type t, const kernel_run *r, void **x, int64_t) { call_embed_backward(t, r, embed_of(x, 0)); },
        {ints(INT32, ROWS, token_at), par(V * D), ints(INT64, 2, key_at), act(ROWS * D), act(ROWS * D),
         par_sum(V * D)},
        two(N, 2 * V * D + ROWS));
    push(
        "slots_gate_forward",
        [](type t, const kernel_run *r, void **x, int64_t) {
            call_slots_gate_forward(t, r, slots_gate_of(x));
        },
        {act(ROWS * SLOTS), act_out(ROWS * SLOTS)}, two(2 * ROWS * SLOTS, 0));
    push(
        "slots_gate_backward",
        [](type t, const kernel_run *r, void **x, int64_t) {
            call_slots_gate_backward(t, r, slots_gate_of(x));
        },
        {act(ROWS * SLOTS), act(ROWS * SLOTS, -1, -0.001), act(ROWS * SLOTS), act_out(ROWS * SLOTS)},
        two(3 * ROWS * SLOTS, 0));
    push(
        "gdn_gate_forward",
        [](type t, const kernel_run *r, void **x, int64_t) { call_gdn_gate_forward(t, r, gdn_gate_of(x)); },
        {act(ROWS * H), par(H), par(H), act_out(ROWS * H)}, two(2 * ROWS * H, 0));
    push(
        "gdn_gate_backward",
        [](type t, const kernel_run *r, void **x, int64_t) { call_gdn_gate_backward(t, r, gdn_gate_of(x)); },
        {act(ROWS * H), par(H), par(H), act(ROWS * H), act(ROWS * H), act_out(ROWS * H), par_sum(H),
         par_sum(H)},
        two(3 * ROWS * H, 0));
    tensor weight = {COPIED, V * D, 0, 0, 0, {}}, scale = {DOUBLE, 1, 0.5, 0.5, 0, {}},
           count = ints(INT64, 1, zero_at);
    const int64_t checked = 130;
    count.values[0] = (double)checked;
    double product = 2.0 * LABELS * V * D;
    tensor argmax = ints(INT32, LABELS, zero_at);
    argmax.written = 1;
    std::vector<tensor> head = {act(ROWS * D),
                                weight,
                                ints(INT64, LABELS, label_row_at),
                                ints(INT32, LABELS, target_at),
                                stat_out(LABELS),
                                argmax,
                                scale,
                                act_out(ROWS * D),
                                par_sum(V * D),
                                count};
    std::vector<tensor> head_forward = head;
    head_forward[7].written = head_forward[8].written = 0;
    push(
        "xent_forward",
        [](type t, const kernel_run *r, void **x, int64_t n) { call_xent_forward(t, r, xent_of(x, n)); },
        head_forward, two(LABELS * D + V * D, LABELS), product, checked);
    push(
        "xent_backward",
        [](type t, const kernel_run *r, void **x, int64_t n) { call_xent_backward(t, r, xent_of(x, n)); },
        head, two(LABELS * D + 2 * V * D + N, 2 * V * D), 3 * product, checked);
    return all;
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
    xent_args head = {};
    head.labels = LABELS, head.n_hidden = ROWS, head.width = D, head.vocab = V;
    kernel_sizes one, two;
    xent_sizes_cuda_bf16(&g.run, &head, &one);
    xent_sizes_cuda_f32(&g.run, &head, &two);
    g.run.scratch_bytes = std::max({one.scratch, two.scratch, (size_t)KERNEL_SCRATCH_CUDA});
    ok(cudaMalloc(&g.run.scratch, g.run.scratch_bytes), "cudaMalloc");
    ok(cudaMemset(g.run.scratch, 0xff, g.run.scratch_bytes), "cudaMemset");
    for (bench_case &c : all_cases()) {
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
