/* Operations element by element on a CUDA device: 16 bytes of every array per thread. */
#include "kernels/cuda_vector.h"
#include "kernels/elementwise/elementwise.h"

enum { THREADS = 256 };

template <int INPUTS, int OUTPUTS> struct arrays {
    const void *in[INPUTS];
    void *out[OUTPUTS];
};

/* out = f(in) element by element; F holds the function and how many arrays it has. */
template <typename T, int N, typename F>
__global__ void __launch_bounds__(THREADS) map_kernel(int64_t count, arrays<F::INPUTS, F::OUTPUTS> a, F f)
{
    int64_t first = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * N;
    if (first >= count) return;
    float in[F::INPUTS][N], out[F::OUTPUTS][N], x[F::INPUTS], y[F::OUTPUTS];
    int whole = first + N <= count, here = whole ? N : (int)(count - first);
    for (int k = 0; k < F::INPUTS; k++) {
        const T *from = (const T *)a.in[k] + first;
        if (whole)
            load_many<N>(from, in[k]);
        else
            for (int i = 0; i < N; i++) in[k][i] = i < here ? cuda_load(from + i) : 0;
    }
    for (int i = 0; i < N; i++) {
        for (int k = 0; k < F::INPUTS; k++) x[k] = in[k][i];
        f(x, y);
        for (int k = 0; k < F::OUTPUTS; k++) out[k][i] = y[k];
    }
    for (int k = 0; k < F::OUTPUTS; k++) {
        T *to = (T *)a.out[k] + first;
        if (whole)
            store_many<N>(to, out[k]);
        else
            for (int i = 0; i < N; i++)
                if (i < here) cuda_store(to + i, out[k][i]);
    }
}

template <typename T, typename F>
static void map(const kernel_run *run, int64_t count, const arrays<F::INPUTS, F::OUTPUTS> &a, F f)
{
    enum { N = vector_of<T>::N };
    if (count <= 0) return;
    bool aligned = true;
    for (const void *p : a.in) aligned = aligned && all_aligned(p);
    for (const void *p : a.out) aligned = aligned && all_aligned(p);
    cudaStream_t stream = (cudaStream_t)run->stream;
    if (aligned)
        cuda_launch(map_kernel<T, N, F>, dim3((unsigned)kernel_blocks(count, THREADS * N)), dim3(THREADS), 0,
                    stream, count, a, f);
    else
        cuda_launch(map_kernel<T, 1, F>, dim3((unsigned)kernel_blocks(count, THREADS)), dim3(THREADS), 0,
                    stream, count, a, f);
}

/* ---- add ---- */
struct add_two {
    enum { INPUTS = 2, OUTPUTS = 1 };
    float alpha, beta;
    __device__ void operator()(const float *x, float *y) const { y[0] = alpha * x[0] + beta * x[1]; }
};
struct scale_one {
    enum { INPUTS = 1, OUTPUTS = 1 };
    float alpha;
    __device__ void operator()(const float *x, float *y) const { y[0] = alpha * x[0]; }
};

template <typename T> static void add(const kernel_run *run, const add_args *a)
{
    if (a->b)
        map<T>(run, a->count, arrays<2, 1>{{a->a, a->b}, {a->y}}, add_two{(float)a->alpha, (float)a->beta});
    else
        map<T>(run, a->count, arrays<1, 1>{{a->a}, {a->y}}, scale_one{(float)a->alpha});
}

/* ---- unary ---- */
static __device__ inline float normal_below(float x) /* Phi(x) */
{
    return 0.5f * erfcf(-x * 0.70710678f);
}

template <unary_kind KIND> static __device__ inline float unary_value(float x, float limit)
{
    switch (KIND) {
    case UNARY_SILU:
        return x * sigmoid_of(x);
    case UNARY_GELU:
        return x * normal_below(x);
    case UNARY_SIGMOID:
        return sigmoid_of(x);
    case UNARY_LOGSIGMOID:
        return -softplus_of(-x);
    default:
        return x < -limit ? -limit : x > limit ? limit : x; /* UNARY_CLAMP */
    }
}

template <unary_kind KIND> static __device__ inline float unary_slope(float x, float limit)
{
    float s = sigmoid_of(x);
    switch (KIND) {
    case UNARY_SILU:
        return s * (1 + x * (1 - s));
    case UNARY_GELU:
        return normal_below(x) + x * expf(-0.5f * x * x) * 0.39894228f;
    case UNARY_SIGMOID:
        return s * sigmoid_of(-x);
    case UNARY_LOGSIGMOID:
        return sigmoid_of(-x);
    default:
        return x >= -limit && x <= limit ? 1 : 0; /* UNARY_CLAMP */
    }
}

template <unary_kind KIND> struct unary_value_of {
    enum { INPUTS = 1, OUTPUTS = 1 };
    float scale, limit;
    __device__ void operator()(const float *x, float *y) const
    {
        y[0] = scale * unary_value<KIND>(x[0], limit);
    }
};
template <unary_kind KIND> struct unary_slope_of {
    enum { INPUTS = 2, OUTPUTS = 1 };
    float scale, limit;
    __device__ void operator()(const float *x, float *y) const
    {
        y[0] = x[1] * scale * unary_slope<KIND>(x[0], limit);
    }
};

template <typename T, unary_kind KIND>
static void unary_of_kind(const kernel_run *run, const unary_args *a, int backward)
{
    float scale = a->scale == 0 ? 1 : (float)a->scale, limit = (float)a->limit;
    if (backward)
        map<T>(run, a->count, arrays<2, 1>{{a->x, a->d_y}, {a->d_x}}, unary_slope_of<KIND>{scale, limit});
    else
        map<T>(run, a->count, arrays<1, 1>{{a->x}, {a->y}}, unary_value_of<KIND>{scale, limit});
}

template <typename T> static void unary(const kernel_run *run, const unary_args *a, int backward)
{
    switch (a->kind) {
    case UNARY_SILU:
        return unary_of_kind<T, UNARY_SILU>(run, a, backward);
    case UNARY_GELU:
        return unary_of_kind<T, UNARY_GELU>(run, a, backward);
    case UNARY_SIGMOID:
        return unary_of_kind<T, UNARY_SIGMOID>(run, a, backward);
    case UNARY_LOGSIGMOID:
        return unary_of_kind<T, UNARY_LOGSIGMOID>(run, a, backward);
    case UNARY_CLAMP:
        return unary_of_kind<T, UNARY_CLAMP>(run, a, backward);
    case UNARY_KIND_COUNT:
        break;
    }
}

/* ---- swiglu ---- */
struct swiglu_value {
    enum { INPUTS = 2, OUTPUTS = 1 };
    __device__ void operator()(const float *x, float *y) const { y[0] = x[0] * sigmoid_of(x[0]) * x[1]; }
};
struct swiglu_slope { /* of gate, up, d_y: d_gate, d_up */
    enum { INPUTS = 3, OUTPUTS = 2 };
    __device__ void operator()(const float *x, float *y) const
    {
        float s = sigmoid_of(x[0]);
        y[0] = x[2] * x[1] * s * (1 + x[0] * (1 - s));
        y[1] = x[2] * x[0] * s;
    }
};

static __global__ void advance_kernel(int64_t batch, int64_t by, int64_t *position)
{
    int64_t b = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (b < batch) position[b] += by;
}

static void advance(const kernel_run *run, const advance_args *a)
{
    if (a->batch > 0)
        cuda_launch(advance_kernel, dim3((unsigned)kernel_blocks(a->batch, THREADS)), dim3(THREADS), 0,
                    (cudaStream_t)run->stream, a->batch, a->by, a->position);
}

static __global__ void collect_kernel(collect_args a)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    float *gradient = (float *)a.gradient;
    if (i < a.count) gradient[i] = (float)((double)gradient[i] + a.values[i]);
}

static void collect(const kernel_run *run, const collect_args *a)
{
    if (a->count > 0)
        cuda_launch(collect_kernel, dim3((unsigned)kernel_blocks(a->count, THREADS)), dim3(THREADS), 0,
                    (cudaStream_t)run->stream, *a);
}

#define ENTRIES(T, suffix)                                                                                   \
    extern "C" void add_cuda_##suffix(const kernel_run *run, const add_args *a)                              \
    {                                                                                                        \
        add<T>(run, a);                                                                                      \
    }                                                                                                        \
    extern "C" void unary_forward_cuda_##suffix(const kernel_run *run, const unary_args *a)                  \
    {                                                                                                        \
        unary<T>(run, a, 0);                                                                                 \
    }                                                                                                        \
    extern "C" void unary_backward_cuda_##suffix(const kernel_run *run, const unary_args *a)                 \
    {                                                                                                        \
        unary<T>(run, a, 1);                                                                                 \
    }                                                                                                        \
    extern "C" void swiglu_forward_cuda_##suffix(const kernel_run *run, const swiglu_args *a)                \
    {                                                                                                        \
        map<T>(run, a->count, arrays<2, 1>{{a->gate, a->up}, {a->y}}, swiglu_value{});                       \
    }                                                                                                        \
    extern "C" void swiglu_backward_cuda_##suffix(const kernel_run *run, const swiglu_args *a)               \
    {                                                                                                        \
        map<T>(run, a->count, arrays<3, 2>{{a->gate, a->up, a->d_y}, {a->d_gate, a->d_up}}, swiglu_slope{}); \
    }                                                                                                        \
    extern "C" void advance_cuda_##suffix(const kernel_run *run, const advance_args *a)                      \
    {                                                                                                        \
        advance(run, a);                                                                                     \
    }                                                                                                        \
    extern "C" void collect_cuda_##suffix(const kernel_run *run, const collect_args *a)                      \
    {                                                                                                        \
        collect(run, a);                                                                                     \
    }

ENTRIES(float, f32)
ENTRIES(bf16, bf16)
