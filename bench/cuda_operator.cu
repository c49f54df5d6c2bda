/* Times the CUDA operator: forward, and forward with backward, each as a CUDA graph, medians after warm-up.
 *     cuda_operator [form=1|2] [queues=N] [period] [part of a case's name ...]
 * form: both passes in one or in two kernels where those cover the case; else as is estimated to be faster.
 * queues: forward with backward in so many streams at once, the time of each.
 * period: with the period's gradient.
 * Results are checked by tests/cuda/test_operator.cu; here only that they are finite. */
#include "kernels/blurry/cuda_fast.h"
#include "kernels/cuda.h"

#include <algorithm>
#include <chrono>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <vector>

struct bench_case {
    const char *name;
    blurry_dtype dtype;
    int64_t B, L, H, D, M;
    double ratio; /* T / S */
    int decay, backward;
};

static void must(cudaError_t error, const char *what)
{
    if (error == cudaSuccess) return;
    fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
    exit(1);
}

template <typename E> static __global__ void fill_kernel(E *x, int64_t n, uint32_t seed)
{
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * blockDim.x) {
        uint64_t z = (uint64_t)i * 0x9e3779b97f4a7c15u + seed;
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u, z = (z ^ z >> 27) * 0x94d049bb133111ebu, z ^= z >> 31;
        cuda_store(x + i, ((float)(z >> 40) / 16777216.0f - 0.5f) * 3.4f);
    }
}

static void *tensor(const bench_case &c, uint32_t seed)
{
    int64_t n = c.B * c.L * c.H * c.D;
    size_t bytes = (size_t)n * (c.dtype == BLURRY_BF16 ? 2 : 4);
    void *p;
    must(cudaMalloc(&p, bytes), "tensor");
    must(cudaMemset(p, 0xff, bytes), "poison");
    if (seed && c.dtype == BLURRY_BF16)
        cuda_launch(fill_kernel<bf16>, dim3(1024), dim3(256), 0, (cudaStream_t)0, (bf16 *)p, n, seed);
    if (seed && c.dtype == BLURRY_F32)
        cuda_launch(fill_kernel<float>, dim3(1024), dim3(256), 0, (cudaStream_t)0, (float *)p, n, seed);
    return p;
}

/* Median milliseconds of one replay. */
static double replay(cudaGraphExec_t graph, cudaStream_t stream)
{
    cudaEvent_t a, b;
    must(cudaEventCreate(&a), "event"), must(cudaEventCreate(&b), "event");
    std::vector<float> times;
    for (int i = 0; i < 23; i++) {
        must(cudaEventRecord(a, stream), "record");
        must(cudaGraphLaunch(graph, stream), "launch");
        must(cudaEventRecord(b, stream), "record");
        must(cudaEventSynchronize(b), "wait");
        float ms;
        must(cudaEventElapsedTime(&ms, a, b), "time");
        if (i >= 3) times.push_back(ms);
        if (ms > 200 && i >= 4) break;
    }
    std::sort(times.begin(), times.end());
    (void)cudaEventDestroy(a), (void)cudaEventDestroy(b);
    return times[times.size() / 2];
}

static cudaGraphExec_t record(cudaStream_t stream, const bla_kernel *k, const bla_shape *s, void *tables,
                              const bla_forward *f, const bla_backward *b)
{
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
    k->forward(s, tables, f);
    if (b) k->backward(s, tables, b);
    must(cudaStreamEndCapture(stream, &graph), "capture");
    must(cudaGraphInstantiate(&exec, graph, 0), "instantiate");
    (void)cudaGraphDestroy(graph);
    return exec;
}

static bool finite(const bench_case &c, const void *device)
{
    std::vector<uint16_t> host(4096);
    size_t element = c.dtype == BLURRY_BF16 ? 2 : 4, bytes = (size_t)(c.B * c.L * c.H * c.D) * element;
    must(cudaMemcpy(host.data(), (const char *)device + bytes - 8192, 8192, cudaMemcpyDeviceToHost), "copy");
    for (size_t i = element / 2 - 1; i < host.size(); i += element / 2)
        if ((host[i] & 0x7f80) == 0x7f80) return false;
    return true;
}

/* A case's shape; `room` holds what it points to. */
struct shape_room {
    std::vector<double> period;
    std::vector<uint8_t> raised;
};
static bla_shape shape_of(const bench_case &c, shape_room *room)
{
    int64_t S = 2 * c.M - 1;
    room->period.assign((size_t)c.H, c.ratio * (double)S), room->raised.assign((size_t)c.H, 0);
    return bla_shape{c.B,
                     c.B * c.L,
                     c.H,
                     c.H,
                     c.D,
                     c.D,
                     c.M,
                     S,
                     room->period.data(),
                     room->raised.data(),
                     1 / sqrt((double)c.D),
                     c.decay,
                     0,
                     1};
}

/* Ten calls of both passes, recorded, with memory of their own. */
static cudaGraphExec_t record_ten(const bench_case &c, const bla_kernel *k, const bla_shape *s, void *tables,
                                  cudaStream_t stream)
{
    bla_forward f = {};
    bla_backward b = {};
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    must(cudaMalloc(&f.workspace, std::max(k->forward_workspace(s), k->backward_workspace(s))), "workspace");
    must(cudaMalloc(&f.saved, k->saved_bytes(s) + 64), "saved");
    f.n_sequences = b.n_sequences = c.B, f.stream = b.stream = stream;
    b.workspace = f.workspace, b.saved = f.saved;
    b.q = f.q = tensor(c, 1), b.k = f.k = tensor(c, 2), b.v = f.v = tensor(c, 3), b.d_o = tensor(c, 4);
    f.o = tensor(c, 0), b.d_q = tensor(c, 0), b.d_k = tensor(c, 0), b.d_v = tensor(c, 0);
    must(cudaDeviceSynchronize(), "fill");
    must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
    for (int i = 0; i < 10; i++) k->forward(s, tables, &f), k->backward(s, tables, &b);
    must(cudaStreamEndCapture(stream, &graph), "capture");
    must(cudaGraphInstantiate(&exec, graph, 0), "instantiate");
    (void)cudaGraphDestroy(graph);
    return exec;
}

/* Memory is left to the end of the program. */
static void run_queues(const bench_case &c, int n)
{
    shape_room room;
    bla_shape s = shape_of(c, &room);
    const bla_kernel *k = bla_kernel_cuda(c.dtype);
    void *tables;
    if (!c.backward || k->prepare(&s, &tables) != BLURRY_OK) return;
    std::vector<cudaStream_t> streams((size_t)n);
    std::vector<cudaGraphExec_t> graphs;
    for (cudaStream_t &stream : streams) {
        must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
        graphs.push_back(record_ten(c, k, &s, tables, stream));
    }
    double least = INFINITY;
    for (int round = 0; round < 6; round++) {
        auto start = std::chrono::steady_clock::now();
        for (int i = 0; i < 5 * n; i++)
            must(cudaGraphLaunch(graphs[(size_t)(i % n)], streams[(size_t)(i % n)]), "launch");
        must(cudaDeviceSynchronize(), c.name);
        std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
        least = std::min(least, took.count() * 1e6 / (50.0 * n));
    }
    printf("%-32s decay=%d %2d queues: fwd+bwd %8.2f us each\n", c.name, c.decay, n, least);
    fflush(stdout);
    k->release(tables);
}

static void run(const bench_case &c, bool period)
{
    shape_room room;
    bla_shape s = shape_of(c, &room);
    const bla_kernel *k = bla_kernel_cuda(c.dtype);
    void *tables, *workspace, *saved;
    if (k->prepare(&s, &tables) != BLURRY_OK) {
        printf("%s: %s\n", c.name, blurry_last_error());
        return;
    }
    size_t need_f = k->forward_workspace(&s), need_b = c.backward ? k->backward_workspace(&s) : 0,
           need_s = k->saved_bytes(&s);
    must(cudaMalloc(&workspace, std::max(need_f, need_b)), "workspace");
    must(cudaMalloc(&saved, c.backward ? need_s + 64 : 64), "saved");
    cudaStream_t stream;
    must(cudaStreamCreate(&stream), "stream");
    bla_forward f = {};
    f.n_sequences = c.B, f.stream = stream, f.workspace = workspace;
    f.q = tensor(c, 1), f.k = tensor(c, 2), f.v = tensor(c, 3), f.o = tensor(c, 0);
    must(cudaDeviceSynchronize(), "fill");
    cudaGraphExec_t graph = record(stream, k, &s, tables, &f, NULL);
    double forward = replay(graph, stream), both = 0;
    bool good = finite(c, f.o);
    (void)cudaGraphExecDestroy(graph);
    if (c.backward) {
        bla_backward b = {};
        f.saved = saved;
        b.n_sequences = c.B, b.stream = stream, b.workspace = workspace, b.saved = saved;
        b.q = f.q, b.k = f.k, b.v = f.v, b.d_o = tensor(c, 4);
        b.d_q = tensor(c, 0), b.d_k = tensor(c, 0), b.d_v = tensor(c, 0);
        if (period) must(cudaMalloc((void **)&b.d_period, (size_t)c.H * sizeof(double)), "d_period");
        must(cudaDeviceSynchronize(), "fill");
        graph = record(stream, k, &s, tables, &f, &b);
        both = replay(graph, stream);
        good = good && finite(c, b.d_q) && finite(c, b.d_k) && finite(c, b.d_v);
        (void)cudaGraphExecDestroy(graph);
        (void)cudaFree((void *)b.d_o), (void)cudaFree(b.d_q), (void)cudaFree(b.d_k), (void)cudaFree(b.d_v),
            (void)cudaFree(b.d_period);
    }
    must(cudaGetLastError(), c.name);
    printf("%-32s decay=%d fwd %8.4f ms  fwd+bwd %8.4f ms  workspace %5.0f/%5.0f MB saved %5.0f MB%s\n",
           c.name, c.decay, forward, both, (double)need_f / 1e6, (double)need_b / 1e6, (double)need_s / 1e6,
           good ? "" : "  NOT FINITE");
    fflush(stdout);
    k->release(tables);
    (void)cudaFree(workspace), (void)cudaFree(saved), (void)cudaStreamDestroy(stream);
    (void)cudaFree((void *)f.q), (void)cudaFree((void *)f.k), (void)cudaFree((void *)f.v),
        (void)cudaFree(f.o);
}

int main(int count, char **arguments)
{
    static const bench_case cases[] = {
        {"main B4 L4096 H16 D64 S127", BLURRY_BF16, 4, 4096, 16, 64, 64, 2, 0, 1},
        {"main B4 L4096 H16 D64 S127", BLURRY_BF16, 4, 4096, 16, 64, 64, 2, 1, 1},
        {"real T B4 L4096 H16 D64 S127", BLURRY_BF16, 4, 4096, 16, 64, 64, 2.001, 0, 1},
        {"real T B4 L4096 H16 D64 S127", BLURRY_BF16, 4, 4096, 16, 64, 64, 2.001, 1, 1},
        {"wide B4 L4096 H16 D128 S63", BLURRY_BF16, 4, 4096, 16, 128, 32, 2, 0, 1},
        {"wide B4 L4096 H16 D128 S63", BLURRY_BF16, 4, 4096, 16, 128, 32, 2, 1, 1},
        {"both B4 L4096 H16 D128 S127", BLURRY_BF16, 4, 4096, 16, 128, 64, 2, 1, 1},
        {"d32 B4 L4096 H16 D32 S127", BLURRY_BF16, 4, 4096, 16, 32, 64, 2, 1, 1},
        {"long B1 L65536 H16 D64 S127", BLURRY_BF16, 1, 65536, 16, 64, 64, 2, 0, 1},
        {"long B1 L65536 H16 D64 S127", BLURRY_BF16, 1, 65536, 16, 64, 64, 2, 1, 1},
        {"short B32 L512 H2 D64 S127", BLURRY_BF16, 32, 512, 2, 64, 64, 2, 0, 1},
        {"short B32 L512 H2 D64 S127", BLURRY_BF16, 32, 512, 2, 64, 64, 2, 1, 1},
        {"mqar B32 L512 H1 D128 S63", BLURRY_BF16, 32, 512, 1, 128, 32, 2, 0, 1},
        {"mqar B32 L512 H1 D128 S63", BLURRY_BF16, 32, 512, 1, 128, 32, 2, 1, 1},
        {"sweep B32 L512 H1 D64 S31", BLURRY_BF16, 32, 512, 1, 64, 16, 2, 0, 1},
        {"sweep B32 L512 H1 D64 S31", BLURRY_BF16, 32, 512, 1, 64, 16, 2, 1, 1},
        {"mid B32 L1024 H1 D128 S63", BLURRY_BF16, 32, 1024, 1, 128, 32, 2, 0, 1},
        {"mid B8 L2048 H2 D64 S63", BLURRY_BF16, 8, 2048, 2, 64, 32, 2, 0, 1},
        {"linear B1 L4096 H16", BLURRY_BF16, 1, 4096, 16, 64, 64, 2, 0, 1},
        {"linear B1 L4096 H16", BLURRY_BF16, 1, 4096, 16, 64, 64, 2, 1, 1},
        {"linear B1 L16384 H16", BLURRY_BF16, 1, 16384, 16, 64, 64, 2, 0, 1},
        {"linear B1 L16384 H16", BLURRY_BF16, 1, 16384, 16, 64, 64, 2, 1, 1},
        {"linear B1 L262144 H16", BLURRY_BF16, 1, 262144, 16, 64, 64, 2, 0, 1},
        {"linear B1 L1048576 H16", BLURRY_BF16, 1, 1048576, 16, 64, 64, 2, 0, 1},
        {"linear B1 L1048576 H16", BLURRY_BF16, 1, 1048576, 16, 64, 64, 2, 1, 0},
        {"f32 B4 L4096 H16 D64 S127", BLURRY_F32, 4, 4096, 16, 64, 64, 2, 0, 1},
        {"f32 B4 L4096 H16 D64 S127", BLURRY_F32, 4, 4096, 16, 64, 64, 2, 1, 1},
        {"f32 real T B4 L4096 H16 D64", BLURRY_F32, 4, 4096, 16, 64, 64, 2.001, 1, 1},
        {"f32 wide B4 L4096 H16 D128 S63", BLURRY_F32, 4, 4096, 16, 128, 32, 2, 1, 1},
        {"f32 mqar B32 L512 H1 D128 S63", BLURRY_F32, 32, 512, 1, 128, 32, 2, 0, 1},
        {"f32 mqar B32 L512 H1 D128 S63", BLURRY_F32, 32, 512, 1, 128, 32, 2, 1, 1},
        {"f32 slots B4 L4096 H16 D64 S255", BLURRY_F32, 4, 4096, 16, 64, 128, 2, 1, 1},
        {"bf16 slots B4 L4096 H16 D64 S255", BLURRY_BF16, 4, 4096, 16, 64, 128, 2, 1, 1},
        {"f32 long B1 L65536 H16 D64 S127", BLURRY_F32, 1, 65536, 16, 64, 64, 2, 1, 1},
    };
    std::vector<const char *> names;
    int queues = 0;
    bool period = false;
    for (int i = 1; i < count; i++) {
        if (!strncmp(arguments[i], "form=", 5))
            fast_wished_form = atoi(arguments[i] + 5);
        else if (!strncmp(arguments[i], "queues=", 7))
            queues = atoi(arguments[i] + 7);
        else if (!strcmp(arguments[i], "period"))
            period = true;
        else
            names.push_back(arguments[i]);
    }
    for (const bench_case &c : cases) {
        bool wanted = names.empty();
        for (const char *name : names) wanted = wanted || strstr(c.name, name);
        if (wanted && queues > 0)
            run_queues(c, queues);
        else if (wanted)
            run(c, period);
    }
    return 0;
}
