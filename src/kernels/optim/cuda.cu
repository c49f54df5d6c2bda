/* Optimiser and reductions. AdamW is one kernel over all parameters; reductions go over fixed blocks whose
 * results are added up in order, in double. */
#include "kernels/optim/optim.h"
#include "kernels/cuda_vector.h"

enum { THREADS = 256, PER_THREAD = 4, BLOCK = THREADS * PER_THREAD };

/* ---- AdamW ---- */
/* Four neighbouring elements, as far as they exist; 16-byte accesses where all four do. */
static __device__ inline float4 load_four(const float *x, int64_t i, int64_t count)
{
    if (i + 4 <= count) return *(const float4 *)(x + i);
    float4 v = make_float4(0, 0, 0, 0);
    if (i < count) v.x = x[i];
    if (i + 1 < count) v.y = x[i + 1];
    if (i + 2 < count) v.z = x[i + 2];
    return v;
}

static __device__ inline void store_four(float *x, int64_t i, int64_t count, float4 v)
{
    if (i + 4 <= count) {
        *(float4 *)(x + i) = v;
        return;
    }
    if (i < count) x[i] = v.x;
    if (i + 1 < count) x[i + 1] = v.y;
    if (i + 2 < count) x[i + 2] = v.z;
}

static __device__ inline void store_four(bf16 *x, int64_t i, int64_t count, float4 v)
{
    if (i + 4 <= count) {
        *(uint2 *)(x + i) = make_uint2(pack_bf16(v.x, v.y), pack_bf16(v.z, v.w));
        return;
    }
    if (i < count) x[i] = to_bf16(v.x);
    if (i + 1 < count) x[i + 1] = to_bf16(v.y);
    if (i + 2 < count) x[i + 2] = to_bf16(v.z);
}

/* The leading members of adamw_scalars, in their order, in float. */
typedef struct coefficients {
    float b1, b2, eps, shrink, rate, root, scale;
} coefficients;
enum { COEFFICIENTS = sizeof(coefficients) / sizeof(float) };

static __device__ inline float update_one(const coefficients &c, float p, float g, float *m, float *v,
                                          float shrink, float per_root)
{
    g *= c.scale;
    *m += (1 - c.b1) * (g - *m);
    *v += (1 - c.b2) * (g * g - *v);
    return shrink * p - __fdividef(c.rate * *m, sqrt_fast(*v) * per_root + c.eps);
}

/* Thread: elements i .. i+N of those from `first` on. */
template <typename E, int N>
static __global__ void __launch_bounds__(THREADS, 6) adamw_kernel(adamw_args a, int64_t first)
{
    cuda_wait_previous();
    __shared__ coefficients c;
    __shared__ int skip;
    int64_t i = first + ((int64_t)blockIdx.x * THREADS + threadIdx.x) * N;
    bool live = i + N <= a.count;
    float p[N], g[N], m[N], v[N];
    if (live) {
        load_many<N>((const float *)a.grad + i, g);
        load_many<N>((const float *)a.m + i, m);
        load_many<N>((const float *)a.v + i, v);
        load_many<N>((const float *)a.param + i, p);
    }
    if (threadIdx.x < COEFFICIENTS)
        (&c.b1)[threadIdx.x] = (float)(&a.scalars->beta1)[threadIdx.x];
    else if (threadIdx.x == COEFFICIENTS)
        skip = a.scalars->bad_step != 0;
    __syncthreads();
    const float zeros[N] = {};
    if (live && a.clear) store_many<N>((float *)a.grad + i, zeros);
    if (!live || skip) return;
    int decayed = (int)kernel_max(0, kernel_min(N, a.decayed - i));
    float per_root = __fdividef(1, c.root);
#pragma unroll
    for (int k = 0; k < N; k++)
        p[k] = update_one(c, p[k], g[k], &m[k], &v[k], k < decayed ? c.shrink : 1, per_root);
    store_many<N>((float *)a.m + i, m);
    store_many<N>((float *)a.v + i, v);
    store_many<N>((float *)a.param + i, p);
    if (a.copy) store_many<N>((E *)a.copy + i, p);
}

template <typename E> static void adamw(const kernel_run *run, const adamw_args *a)
{
    cudaStream_t stream = (cudaStream_t)run->stream;
    int64_t whole = a->count / 4 * 4;
    if (whole > 0)
        cuda_launch_early(run->early, adamw_kernel<E, 4>, (unsigned)kernel_blocks(whole, BLOCK), THREADS, 0,
                          stream, *a, (int64_t)0);
    if (a->count > whole) cuda_launch_early(run->early, adamw_kernel<E, 1>, 1, THREADS, 0, stream, *a, whole);
}

/* ---- clipping ---- */
enum { NORM_PARTS = 264, NORM_PART_AT_LEAST = 4 * BLOCK };

static __device__ inline double squares_of(float4 x)
{
    return (double)x.x * x.x + (double)x.y * x.y + ((double)x.z * x.z + (double)x.w * x.w);
}

/* Block: `per` elements, a multiple of four. The last one to arrive adds up all parts, in their order. */
static __global__ void __launch_bounds__(THREADS) clip_kernel(clip_args a, int64_t per, double *part)
{
    cuda_wait_previous();
    __shared__ double room[32];
    __shared__ bool last;
    int64_t first = (int64_t)blockIdx.x * per, end = first + per < a.count ? first + per : a.count;
    int64_t i = first + 4 * (int64_t)threadIdx.x;
    double sum = 0;
#pragma unroll 4
    for (; i + 4 <= end; i += BLOCK) sum += squares_of(*(const float4 *)((const float *)a.x + i));
    if (i < end) sum += squares_of(load_four((const float *)a.x, i, end));
    sum = block_sum(sum, room);
    if (threadIdx.x == 0) {
        part[blockIdx.x] = sum;
        __threadfence();
        last = atomicAdd((unsigned long long *)(void *)&a.scalars->arrived, 1ull) == gridDim.x - 1;
    }
    __syncthreads();
    if (!last) return;
    __threadfence();
    sum = 0;
    for (int i = threadIdx.x; i < (int)gridDim.x; i += THREADS) sum += __ldcg(part + i);
    sum = block_sum(sum, room);
    if (threadIdx.x) return;
    a.scalars->arrived = 0;
    clip_by(&a, sum);
}

template <typename E> static void clip(const kernel_run *run, const clip_args *a)
{
    int64_t most = kernel_max(1, kernel_min(NORM_PARTS, kernel_blocks(a->count, NORM_PART_AT_LEAST)));
    int64_t per = kernel_max(4, (kernel_blocks(a->count, most) + 3) / 4 * 4);
    cuda_launch_early(run->early, clip_kernel, (unsigned)kernel_max(1, kernel_blocks(a->count, per)), THREADS,
                      0, (cudaStream_t)run->stream, *a, per, (double *)run->scratch);
}

/* ---- sums ---- */
enum { PARTS_MOST = 1024, PART_AT_LEAST = 4 * BLOCK };

static int64_t parts_of(int64_t count)
{
    return kernel_max(1, kernel_min(PARTS_MOST, kernel_blocks(count, PART_AT_LEAST)));
}

template <typename E>
static __global__ void sum_parts(const E *x, int64_t count, int64_t per, int add, double *part)
{
    cuda_wait_previous();
    __shared__ double room[32];
    int64_t first = (int64_t)blockIdx.x * per, last = first + per < count ? first + per : count;
    double sum = 0;
    for (int64_t i = first + threadIdx.x; i < last; i += THREADS) sum += (double)cuda_load(x + i);
    sum = block_sum(sum, room);
    if (threadIdx.x == 0) part[blockIdx.x] = sum + (add ? part[blockIdx.x] : 0);
}

/* *out += the parts, the same way on every run. */
static __global__ void add_up(const double *part, int64_t parts, double *out)
{
    cuda_wait_previous();
    __shared__ double room[32];
    double sum = 0;
    for (int64_t i = threadIdx.x; i < parts; i += THREADS) sum += part[i];
    sum = block_sum(sum, room);
    if (threadIdx.x == 0) *out += sum;
}

template <typename E> static void reduce(const kernel_run *run, const reduce_args *a)
{
    cudaStream_t stream = (cudaStream_t)run->stream;
    int64_t parts = parts_of(a->count);
    double *part = (double *)run->scratch;
    if (a->count < 1) return;
    cuda_launch_early(run->early, sum_parts<E>, (unsigned)parts, THREADS, 0, stream, (const E *)a->x,
                      a->count, kernel_blocks(a->count, parts), parts == 1, parts == 1 ? a->out : part);
    if (parts == 1) return;
    cuda_launch_early(run->early, add_up, 1, THREADS, 0, stream, (const double *)part, parts, a->out);
}

template <typename E> static void sum(const kernel_run *run, const reduce_args *a)
{
    if (a->activations)
        reduce<E>(run, a);
    else
        reduce<float>(run, a);
}

/* ---- the first NaN or infinity ---- */
static __device__ inline int64_t warp_first(int64_t x)
{
    for (int step = 16; step > 0; step /= 2) {
        int64_t other = __shfl_xor_sync(CUDA_FULL_WARP, (long long)x, step);
        x = other < x ? other : x;
    }
    return x;
}

/* The smallest of the block's values, for thread 0. */
static __device__ inline int64_t block_first(int64_t x)
{
    __shared__ int64_t room[32];
    x = warp_first(x);
    if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = x;
    __syncthreads();
    for (int i = 0; i < (int)blockDim.x / 32; i++) x = room[i] < x ? room[i] : x;
    return x;
}

template <typename E>
static __global__ void search_parts(const E *x, int64_t count, int64_t per, int64_t *part)
{
    int64_t first = (int64_t)blockIdx.x * per, last = first + per < count ? first + per : count;
    int64_t found = count;
    for (int64_t i = first + threadIdx.x; i < last && found == count; i += THREADS)
        if (!isfinite(cuda_load(x + i))) found = i;
    found = block_first(found);
    if (threadIdx.x == 0) part[blockIdx.x] = found;
}

static __global__ void search_end(const int64_t *part, int64_t parts, int64_t count, int64_t *first)
{
    int64_t found = count;
    for (int64_t i = threadIdx.x; i < parts; i += THREADS) found = part[i] < found ? part[i] : found;
    found = block_first(found);
    if (threadIdx.x == 0) *first = found < count ? found : -1;
}

template <typename E> static void search(const kernel_run *run, const reduce_args *a)
{
    cudaStream_t stream = (cudaStream_t)run->stream;
    int64_t parts = parts_of(a->count), *part = (int64_t *)run->scratch;
    cuda_launch(search_parts<E>, (unsigned)parts, THREADS, 0, stream, (const E *)a->x, a->count,
                kernel_blocks(a->count, parts), part);
    cuda_launch(search_end, 1, THREADS, 0, stream, (const int64_t *)part, parts, a->count, a->first);
}

template <typename E> static void nonfinite(const kernel_run *run, const reduce_args *a)
{
    if (a->activations)
        search<E>(run, a);
    else
        search<float>(run, a);
}

/* ---- parameters for products ---- */
template <typename E> static __global__ void convert_kernel(const float *x, E *y, int64_t count)
{
    int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * 4;
    if (i < count) store_four(y, i, count, load_four(x, i, count));
}

template <typename E> static void convert(const kernel_run *run, const convert_args *a)
{
    if (a->count < 1) return;
    cuda_launch(convert_kernel<E>, (unsigned)kernel_blocks(a->count, BLOCK), THREADS, 0,
                (cudaStream_t)run->stream, (const float *)a->x, (E *)a->y, a->count);
}

#define ENTRIES(name, args)                                                                                  \
    extern "C" void name##_cuda_f32(const kernel_run *run, const args *a)                                    \
    {                                                                                                        \
        name<float>(run, a);                                                                                 \
    }                                                                                                        \
    extern "C" void name##_cuda_bf16(const kernel_run *run, const args *a)                                   \
    {                                                                                                        \
        name<bf16>(run, a);                                                                                  \
    }
ENTRIES(adamw, adamw_args)
ENTRIES(sum, reduce_args)
ENTRIES(nonfinite, reduce_args)
ENTRIES(convert, convert_args)
ENTRIES(clip, clip_args)
