/* What the memory-bound CUDA kernels share: several elements per access, rows on groups of lanes, and sums
 * over rows (gradients of parameters) in two deterministic stages.
 *
 * Kernels come in two widths chosen at launch: N elements per thread where every pointer and row allows
 * 16-byte accesses, and one element per thread otherwise. Everything is computed in float. */
#ifndef BLURRY_KERNELS_CUDA_VECTOR_H
#define BLURRY_KERNELS_CUDA_VECTOR_H
#include "kernels/cuda.h"
#include "kernels/kernel.h"

/* Blocks of the first stage of a sum over rows: four for every multiprocessor of the largest chip. */
enum { CUDA_PARTS = 528 };

/* N neighbouring elements; p is aligned to min(16, N * sizeof) bytes. */
template <int N> static __device__ inline void load_many(const float *p, float (&x)[N])
{
    if constexpr (N % 4 == 0) {
        for (int i = 0; i < N; i += 4) {
            float4 v = *reinterpret_cast<const float4 *>(p + i);
            x[i] = v.x, x[i + 1] = v.y, x[i + 2] = v.z, x[i + 3] = v.w;
        }
    } else if constexpr (N == 2) {
        float2 v = *reinterpret_cast<const float2 *>(p);
        x[0] = v.x, x[1] = v.y;
    } else {
        for (int i = 0; i < N; i++) x[i] = p[i];
    }
}
template <int N> static __device__ inline void unpack_many(const uint32_t *word, float (&x)[N])
{
    for (int i = 0; i < N; i += 2) {
        float2 pair = unpack_bf16(word[i / 2]);
        x[i] = pair.x, x[i + 1] = pair.y;
    }
}
template <int N> static __device__ inline void load_many(const bf16 *p, float (&x)[N])
{
    if constexpr (N == 8) {
        uint4 v = *reinterpret_cast<const uint4 *>(p);
        const uint32_t word[4] = {v.x, v.y, v.z, v.w};
        unpack_many<N>(word, x);
    } else if constexpr (N == 4) {
        uint2 v = *reinterpret_cast<const uint2 *>(p);
        const uint32_t word[2] = {v.x, v.y};
        unpack_many<N>(word, x);
    } else if constexpr (N == 2) {
        unpack_many<N>(reinterpret_cast<const uint32_t *>(p), x);
    } else {
        for (int i = 0; i < N; i++) x[i] = from_bf16(p[i]);
    }
}

template <int N> static __device__ inline void store_many(float *p, const float (&x)[N])
{
    if constexpr (N % 4 == 0) {
        for (int i = 0; i < N; i += 4)
            *reinterpret_cast<float4 *>(p + i) = make_float4(x[i], x[i + 1], x[i + 2], x[i + 3]);
    } else if constexpr (N == 2) {
        *reinterpret_cast<float2 *>(p) = make_float2(x[0], x[1]);
    } else {
        for (int i = 0; i < N; i++) p[i] = x[i];
    }
}
template <int N> static __device__ inline void store_many(bf16 *p, const float (&x)[N])
{
    if constexpr (N == 8) {
        *reinterpret_cast<uint4 *>(p) = make_uint4(pack_bf16(x[0], x[1]), pack_bf16(x[2], x[3]),
                                                   pack_bf16(x[4], x[5]), pack_bf16(x[6], x[7]));
    } else if constexpr (N == 4) {
        *reinterpret_cast<uint2 *>(p) = make_uint2(pack_bf16(x[0], x[1]), pack_bf16(x[2], x[3]));
    } else if constexpr (N == 2) {
        *reinterpret_cast<uint32_t *>(p) = pack_bf16(x[0], x[1]);
    } else {
        for (int i = 0; i < N; i++) p[i] = to_bf16(x[i]);
    }
}

/* Elements of T in 16 bytes. */
template <typename T> struct vector_of {
    enum { N = 16 / (int)sizeof(T) };
};

/* Whether every pointer given (NULL counts) allows 16-byte accesses. */
static inline bool all_aligned(void)
{
    return true;
}
template <typename... P> static inline bool all_aligned(const void *first, P... rest)
{
    return (uintptr_t)first % 16 == 0 && all_aligned(rest...);
}

/* The lanes that share a row of `vectors` accesses: a power of two, at most a warp. */
static inline int lanes_for(int64_t vectors)
{
    int lanes = 1;
    while (lanes < 32 && lanes < vectors) lanes *= 2;
    return lanes;
}

/* Sum over `lanes` neighbouring lanes (a power of two); all lanes of the warp call it. */
static __device__ inline float lanes_sum(float x, int lanes)
{
    for (int step = lanes / 2; step > 0; step /= 2) x += __shfl_xor_sync(CUDA_FULL_WARP, x, step);
    return x;
}

static __device__ inline float sigmoid_of(float x)
{
    return __fdividef(1, 1 + __expf(-x));
}
/* log(1 + e^x). */
static __device__ inline float softplus_of(float x)
{
    return fmaxf(x, 0) + log1pf(__expf(-fabsf(x)));
}

/* ---- second stage of a sum over rows ---- */
enum { SUM_COLUMNS = 8, SUM_SHARES = 64 };

/* first[c] += sum of part[p, c] over p, p in SUM_SHARES interleaved shares; columns from `split` on go to
 * second[c - split]. part [parts, columns]. */
template <typename R>
__global__ void __launch_bounds__(SUM_COLUMNS *SUM_SHARES)
    column_sums_kernel(const R *part, int64_t parts, int64_t columns, int64_t split, R *first, R *second)
{
    __shared__ R room[SUM_SHARES][SUM_COLUMNS];
    int x = (int)threadIdx.x, y = (int)threadIdx.y;
    int64_t c = (int64_t)blockIdx.x * SUM_COLUMNS + x;
    R sum = 0;
    if (c < columns)
#pragma unroll 8
        for (int64_t p = y; p < parts; p += SUM_SHARES) sum += part[p * columns + c];
    room[y][x] = sum;
    for (int half = SUM_SHARES / 2; half > 0; half /= 2) {
        __syncthreads();
        if (y < half) room[y][x] += room[y + half][x];
    }
    if (y || c >= columns) return;
    R *to = c < split ? first + c : second + (c - split);
    *to += room[0][x];
}

template <typename R>
static inline void column_sums(cudaStream_t stream, const R *part, int64_t parts, int64_t columns,
                               int64_t split, R *first, R *second)
{
    if (columns > 0)
        cuda_launch(column_sums_kernel<R>, dim3((unsigned)kernel_blocks(columns, SUM_COLUMNS)),
                    dim3(SUM_COLUMNS, SUM_SHARES), 0, stream, part, parts, columns, split, first, second);
}

/* Blocks for a first stage that has `most` pieces of work and leaves `columns` sums per block. */
static inline int64_t parts_for(int64_t most, int64_t columns)
{
    int64_t room = KERNEL_SCRATCH_CUDA / kernel_max(1, columns * (int64_t)sizeof(float));
    return kernel_max(1, kernel_min(most, kernel_min(CUDA_PARTS, room)));
}

#endif
