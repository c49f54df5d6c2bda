/* Optimiser and reductions. AdamW is one kernel over all parameters; reductions go over fixed blocks whose
 * results are added up in order, in double, by a second kernel. */
#include "kernels/optim/optim.h"
#include "kernels/cuda.h"

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

typedef struct coefficients {
    float b1, b2, eps, scale, shrink, rate, per_root;
} coefficients;

static __device__ inline float update_one(const coefficients &c, float p, float g, float *m, float *v,
                                          float shrink)
{
    g *= c.scale;
    *m = c.b1 * *m + (1 - c.b1) * g;
    *v = c.b2 * *v + (1 - c.b2) * g * g;
    return shrink * p - c.rate * *m / (sqrtf(*v) * c.per_root + c.eps);
}

template <typename E> static __global__ void adamw_kernel(adamw_args a)
{
    cuda_wait_previous();
    __shared__ coefficients c;
    __shared__ int skip;
    int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * 4;
    float *param = (float *)a.param, *mean = (float *)a.m, *square = (float *)a.v;
    float4 p = load_four(param, i, a.count), g = load_four((const float *)a.grad, i, a.count);
    float4 m = load_four(mean, i, a.count), v = load_four(square, i, a.count);
    if (threadIdx.x == 0) {
        const adamw_scalars *s = a.scalars;
        skip = s->bad_step != 0;
        c.b1 = (float)s->beta1, c.b2 = (float)s->beta2, c.eps = (float)s->eps, c.scale = (float)s->grad_scale;
        c.shrink = (float)(1 - s->lr * s->weight_decay);
        c.rate = (float)(s->lr / (1 - pow(s->beta1, s->step)));
        c.per_root = (float)(1 / sqrt(1 - pow(s->beta2, s->step)));
    }
    __syncthreads();
    if (skip || i >= a.count) return;
    p.x = update_one(c, p.x, g.x, &m.x, &v.x, i < a.decayed ? c.shrink : 1);
    p.y = update_one(c, p.y, g.y, &m.y, &v.y, i + 1 < a.decayed ? c.shrink : 1);
    p.z = update_one(c, p.z, g.z, &m.z, &v.z, i + 2 < a.decayed ? c.shrink : 1);
    p.w = update_one(c, p.w, g.w, &m.w, &v.w, i + 3 < a.decayed ? c.shrink : 1);
    store_four(param, i, a.count, p);
    store_four(mean, i, a.count, m);
    store_four(square, i, a.count, v);
    if (a.copy) store_four((E *)a.copy, i, a.count, p);
}

template <typename E> static void adamw(const kernel_run *run, const adamw_args *a)
{
    if (a->count < 1) return;
    cuda_launch_early(run->early, adamw_kernel<E>, (unsigned)kernel_blocks(a->count, BLOCK), THREADS, 0,
                      (cudaStream_t)run->stream, *a);
}

/* ---- sums ---- */
enum { PARTS_MOST = 1024, PART_AT_LEAST = 4 * BLOCK };

static int64_t parts_of(int64_t count)
{
    return kernel_max(1, kernel_min(PARTS_MOST, kernel_blocks(count, PART_AT_LEAST)));
}

template <typename E, bool SQUARES>
static __global__ void sum_parts(const E *x, int64_t count, int64_t per, int add, double *part)
{
    cuda_wait_previous();
    __shared__ double room[32];
    int64_t first = (int64_t)blockIdx.x * per, last = first + per < count ? first + per : count;
    double sum = 0;
    for (int64_t i = first + threadIdx.x; i < last; i += THREADS) {
        float value = cuda_load(x + i);
        sum += SQUARES ? (double)value * value : (double)value;
    }
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

template <typename E, bool SQUARES> static void reduce(const kernel_run *run, const reduce_args *a)
{
    cudaStream_t stream = (cudaStream_t)run->stream;
    int64_t parts = parts_of(a->count);
    double *part = (double *)run->scratch;
    if (a->count < 1) return;
    cuda_launch_early(run->early, sum_parts<E, SQUARES>, (unsigned)parts, THREADS, 0, stream, (const E *)a->x,
                      a->count, kernel_blocks(a->count, parts), parts == 1, parts == 1 ? a->out : part);
    if (parts == 1) return;
    cuda_launch_early(run->early, add_up, 1, THREADS, 0, stream, (const double *)part, parts, a->out);
}

template <typename E> static void sum_squares(const kernel_run *run, const reduce_args *a)
{
    if (a->activations)
        reduce<E, true>(run, a);
    else
        reduce<float, true>(run, a);
}

template <typename E> static void sum(const kernel_run *run, const reduce_args *a)
{
    if (a->activations)
        reduce<E, false>(run, a);
    else
        reduce<float, false>(run, a);
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

/* ---- clipping ---- */
static __global__ void clip_kernel(clip_args a)
{
    cuda_wait_previous();
    double norm = a.average * sqrt(*a.sum_squares);
    a.scalars->grad_scale = a.average * (a.limit > 0 && norm > a.limit ? a.limit / norm : 1);
    if (a.norm) *a.norm = norm;
    if (a.scalars->bad_step == 0 && !(isfinite(norm) && (!a.loss || isfinite(*a.loss))))
        a.scalars->bad_step = a.scalars->step;
}

template <typename E> static void clip(const kernel_run *run, const clip_args *a)
{
    cuda_launch_early(run->early, clip_kernel, 1, 1, 0, (cudaStream_t)run->stream, *a);
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
ENTRIES(sum_squares, reduce_args)
ENTRIES(sum, reduce_args)
ENTRIES(nonfinite, reduce_args)
ENTRIES(convert, convert_args)
ENTRIES(clip, clip_args)
