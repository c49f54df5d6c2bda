/* Rotary positions on a CUDA device. The table is float for every activation type. Passes that start at 0
 * read cosines and sines from it, 16 bytes of each half of a head per thread; others compute them in double,
 * once per token and channel pair for all heads. */
#include "kernels/cuda_vector.h"
#include "kernels/rope/rope.h"

enum { THREADS = 256 };

/* base^(-2i/dim): log_base = log2(base). */
static __device__ inline double frequency_of(double log_base, int64_t i, int64_t dim)
{
    return exp2(log_base * (-2.0 * (double)i / (double)dim));
}

static __global__ void rope_table_kernel(int64_t length, int64_t dim, double log_base, float *table)
{
    int64_t half = dim / 2, n = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (n >= length * half) return;
    double angle = (double)(n / half) * frequency_of(log_base, n % half, dim);
    table[2 * n] = (float)cos(angle);
    table[2 * n + 1] = (float)sin(angle);
}

/* Thread: N pairs of one head of one token. Work items [batch * length * heads, half / N]; for an odd dim
 * the first item of a head also copies the last channel. I: of indices; 32 bits where they do, for division.
 */
template <typename T, int N, typename I>
__global__ void __launch_bounds__(THREADS)
    rope_by_table_kernel(I rows, I length, I heads, I dim, const float *table, float direction, const T *x,
                         T *y)
{
    cuda_wait_previous();
    I half = dim / 2, pieces = half / N > 1 ? half / N : 1, n = (I)blockIdx.x * THREADS + threadIdx.x;
    I row = n / pieces, i = (n - row * pieces) * N;
    if (row >= rows) return;
    x += (int64_t)row * dim, y += (int64_t)row * dim;
    if (half > 0) {
        float low[N], high[N], turn[2 * N];
        load_many<2 * N>(table + ((int64_t)(row / heads % length) * half + i) * 2, turn);
        load_many<N>(x + i, low);
        load_many<N>(x + i + half, high);
        for (int k = 0; k < N; k++) {
            float c = turn[2 * k], s = direction * turn[2 * k + 1], a = low[k], b = high[k];
            low[k] = a * c - b * s;
            high[k] = b * c + a * s;
        }
        store_many<N>(y + i, low);
        store_many<N>(y + i + half, high);
    }
    if (dim % 2 && i == 0) y[dim - 1] = x[dim - 1];
}

static __device__ inline float silu_slope(float x)
{
    float y = sigmoid_of(x);
    return y * (1 + x * (1 - y));
}

/* Block row y: stream y. Thread: N pairs of one head of one token, as above, to their place among the streams
 * side by side; `before` as rope_join's x. */
template <typename T, int N, typename I>
__global__ void __launch_bounds__(THREADS)
    rope_join_kernel(I rows, I length, I heads, I dim, I turned, const float *table, const T *x,
                     const T *before, T *y)
{
    cuda_wait_previous();
    I half = dim / 2, pieces = half / N > 1 ? half / N : 1, n = (I)blockIdx.x * THREADS + threadIdx.x;
    I row = n / pieces, i = (n - row * pieces) * N, token = row / heads, stream = blockIdx.y;
    if (row >= rows) return;
    x += ((int64_t)stream * rows + row) * dim;
    if (before) before += ((int64_t)stream * rows + row) * dim;
    y += (row + ((int64_t)token * (gridDim.y - 1) + stream) * heads) * dim;
    if (half > 0) {
        float low[N], high[N], turn[2 * N];
        load_many<N>(x + i, low);
        load_many<N>(x + i + half, high);
        if (stream < turned) {
            load_many<2 * N>(table + ((int64_t)(token % length) * half + i) * 2, turn);
            for (int k = 0; k < N; k++) {
                float c = turn[2 * k], s = -turn[2 * k + 1], a = low[k], b = high[k];
                low[k] = a * c - b * s;
                high[k] = b * c + a * s;
            }
        }
        if (before) {
            float at[N];
            load_many<N>(before + i, at);
            for (int k = 0; k < N; k++) low[k] *= silu_slope(at[k]);
            load_many<N>(before + i + half, at);
            for (int k = 0; k < N; k++) high[k] *= silu_slope(at[k]);
        }
        store_many<N>(y + i, low);
        store_many<N>(y + i + half, high);
    }
    if (dim % 2 && i == 0)
        cuda_store(y + dim - 1,
                   cuda_load(x + dim - 1) * (before ? silu_slope(cuda_load(before + dim - 1)) : 1));
}

/* Thread: one channel pair of one token, all heads. */
template <typename T>
__global__ void __launch_bounds__(THREADS)
    rope_by_position_kernel(int64_t tokens, int64_t length, int64_t heads, int64_t dim, double log_base,
                            const int64_t *position, float direction, const T *x, T *y)
{
    int64_t half = dim / 2, pairs = (dim + 1) / 2, n = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    int64_t token = n / pairs, i = n % pairs;
    if (token >= tokens) return;
    x += token * heads * dim, y += token * heads * dim;
    if (i == half) { /* the odd last channel */
        for (int64_t at = dim - 1; at < heads * dim; at += dim) y[at] = x[at];
        return;
    }
    int64_t place = (position ? position[token / length] : 0) + token % length;
    double angle = (double)place * frequency_of(log_base, i, dim);
    float c = (float)cos(angle), s = direction * (float)sin(angle);
    for (int64_t at = i; at < heads * dim; at += dim) {
        float a = cuda_load(x + at), b = cuda_load(x + at + half);
        cuda_store(y + at, a * c - b * s);
        cuda_store(y + at + half, b * c + a * s);
    }
}

static void rope_table(const kernel_run *run, const rope_args *a)
{
    int64_t count = a->length * (a->dim / 2);
    if (count > 0)
        cuda_launch(rope_table_kernel, dim3((unsigned)kernel_blocks(count, THREADS)), dim3(THREADS), 0,
                    (cudaStream_t)run->stream, a->length, a->dim, log2(a->base), (float *)a->table);
}

/* Whether indices of elements and of threads fit 32 bits. */
static bool is_short(const rope_args *a)
{
    return a->batch * a->length * a->heads * (a->dim + 1) < INT32_MAX - THREADS;
}

template <typename T, int N>
static void by_table(const kernel_run *run, const rope_args *a, const void *x, void *y, float direction)
{
    int64_t rows = a->batch * a->length * a->heads, items = rows * kernel_max(1, a->dim / 2 / N);
    auto launch = [&](auto kernel) {
        cuda_launch_early(run->early, kernel, dim3((unsigned)kernel_blocks(items, THREADS)), dim3(THREADS), 0,
                          (cudaStream_t)run->stream, rows, a->length, a->heads, a->dim,
                          (const float *)a->table, direction, (const T *)x, (T *)y);
    };
    is_short(a) ? launch(rope_by_table_kernel<T, N, uint32_t>) : launch(rope_by_table_kernel<T, N, int64_t>);
}

template <typename T>
static void rotate(const kernel_run *run, const rope_args *a, const void *x, void *y, float direction)
{
    enum { N = vector_of<T>::N };
    int64_t tokens = a->batch * a->length;
    if (tokens * a->heads * a->dim <= 0) return;
    bool wide = a->dim % (2 * N) == 0 && all_aligned(x, y, a->table);
    if (a->position || !a->table)
        cuda_launch(rope_by_position_kernel<T>,
                    dim3((unsigned)kernel_blocks(tokens * ((a->dim + 1) / 2), THREADS)), dim3(THREADS), 0,
                    (cudaStream_t)run->stream, tokens, a->length, a->heads, a->dim, log2(a->base),
                    a->position, direction, (const T *)x, (T *)y);
    else if (wide)
        by_table<T, N>(run, a, x, y, direction);
    else
        by_table<T, 1>(run, a, x, y, direction);
}

template <typename T, int N> static void join_as(const kernel_run *run, const rope_args *a)
{
    int64_t rows = a->batch * a->length * a->heads, items = rows * kernel_max(1, a->dim / 2 / N);
    auto launch = [&](auto kernel) {
        cuda_launch_early(run->early, kernel,
                          dim3((unsigned)kernel_blocks(items, THREADS), (unsigned)a->streams), dim3(THREADS),
                          0, (cudaStream_t)run->stream, rows, a->length, a->heads, a->dim, a->turned,
                          (const float *)a->table, (const T *)a->d_y, (const T *)a->x, (T *)a->d_x);
    };
    is_short(a) ? launch(rope_join_kernel<T, N, uint32_t>) : launch(rope_join_kernel<T, N, int64_t>);
}

template <typename T> static void join(const kernel_run *run, const rope_args *a)
{
    enum { N = vector_of<T>::N };
    if (a->streams * a->batch * a->length * a->heads * a->dim <= 0) return;
    if (a->dim % (2 * N) == 0 && all_aligned(a->d_y, a->x, a->d_x, a->table))
        join_as<T, N>(run, a);
    else
        join_as<T, 1>(run, a);
}

#define ENTRIES(T, suffix)                                                                                   \
    extern "C" void rope_table_cuda_##suffix(const kernel_run *run, const rope_args *a)                      \
    {                                                                                                        \
        rope_table(run, a);                                                                                  \
    }                                                                                                        \
    extern "C" void rope_forward_cuda_##suffix(const kernel_run *run, const rope_args *a)                    \
    {                                                                                                        \
        rotate<T>(run, a, a->x, a->y, 1);                                                                    \
    }                                                                                                        \
    extern "C" void rope_backward_cuda_##suffix(const kernel_run *run, const rope_args *a)                   \
    {                                                                                                        \
        rotate<T>(run, a, a->d_y, a->d_x, -1);                                                               \
    }                                                                                                        \
    extern "C" void rope_join_cuda_##suffix(const kernel_run *run, const rope_args *a)                       \
    {                                                                                                        \
        join<T>(run, a);                                                                                     \
    }

ENTRIES(float, f32)
ENTRIES(bf16, bf16)
