/* Products of many rows with small bf16 matrices: y = x W^T and d_x = d_y W. They move bytes rather than
 * compute, so a block takes M rows, reads them once where they fit, and lets the small matrix, which the
 * second-level cache holds, stream by in steps of DEPTH. A block leaves room for those of other kernels on
 * its multiprocessor. */
#ifndef BLURRY_KERNELS_GEMM_CUDA_SKINNY_CUH
#define BLURRY_KERNELS_GEMM_CUDA_SKINNY_CUH
#include "kernels/gemm/cuda_slab.cuh"
#include "kernels/kernel.h"

enum { DEPTH = 64 };

/* c = start + bias + the sum over the segments s of a_s B_s, where
 *   a [segments, rows, k];
 *   b [n, k], the same for all segments and transposed (maps), or [segments, k, n] (GRADIENT);
 *   c, start [n / width, rows, width]: columns j lie in matrix j / width; bias [n].
 * start (may be c) and bias may be NULL. All sizes but rows are multiples of CHUNK, all pointers of 16 bytes.
 */
typedef struct skinny_product {
    const bf16 *a, *b, *start, *bias;
    bf16 *c;
    int64_t rows;
    int k, n, width, segments;
} skinny_product;

/* A block makes tiles of M x N with WARPS_M x WARPS_N warps, STAGES - 1 steps ahead in copying. */
template <int M_, int N_, int WARPS_M, int WARPS_N_, int STAGES_> struct skinny_tile {
    enum {
        M = M_,
        N = N_,
        WARPS_N = WARPS_N_,
        STAGES = STAGES_,
        THREADS = 32 * WARPS_M * WARPS_N,
        WARP_M = M / WARPS_M,
        WARP_N = N / WARPS_N,
        LEFT = M * DEPTH,
        RIGHT = N * DEPTH, /* elements of a slab */
        SHARED = STAGES * (LEFT + RIGHT) * 2
    };
};

/* Which slabs come next: those of all segments and depths for one tile of columns, then for the next. */
struct skinny_step {
    int tile, segment, k;
};
static __device__ inline bool skinny_advance(skinny_step &s, const skinny_product &p)
{
    s.k += DEPTH;
    if (s.k < p.k) return false;
    s.k = 0;
    if (++s.segment < p.segments) return false;
    s.segment = 0;
    s.tile += (int)gridDim.y;
    return true; /* the tile is complete */
}

template <class T>
static __device__ inline void copy_left(bf16 *slab, const skinny_product &p, const skinny_step &s)
{
    int64_t row = (int64_t)blockIdx.x * T::M;
    int k = s.k + slab_chunk<DEPTH>() * CHUNK;
    slab_copy<T::M, DEPTH, T::THREADS>(slab, p.a + (s.segment * p.rows + row) * p.k + k, p.k,
                                       (int)kernel_min(p.rows - row, T::M), k < p.k);
}
template <class T, bool GRADIENT>
static __device__ inline void copy_right(bf16 *slab, const skinny_product &p, const skinny_step &s)
{
    int n = s.tile * T::N;
    if (GRADIENT) {
        int column = n + slab_chunk<T::N>() * CHUNK;
        slab_copy<DEPTH, T::N, T::THREADS>(slab, p.b + (int64_t)(s.segment * p.k + s.k) * p.n + column, p.n,
                                           p.k - s.k, column < p.n);
    } else {
        int k = s.k + slab_chunk<DEPTH>() * CHUNK;
        slab_copy<T::N, DEPTH, T::THREADS>(slab, p.b + (int64_t)n * p.k + k, p.k, p.n - n, k < p.k);
    }
}

/* Four lanes hold four words each: lane i gives word j and gets, as its word j, word i of lane j. */
static __device__ inline void quad_transpose(uint32_t (&word)[4])
{
    int lane = (int)threadIdx.x;
#pragma unroll
    for (int bit = 1; bit <= 2; bit *= 2)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            if (j & bit) continue;
            bool upper = lane & bit;
            uint32_t got = __shfl_xor_sync(CUDA_FULL_WARP, upper ? word[j] : word[j | bit], bit);
            if (upper)
                word[j] = got;
            else
                word[j | bit] = got;
        }
}

/* The chunks of c that a lane reads and writes: f(i, j, half, place) for rows 16 i + 8 half + lane / 4 and
 * columns 8 (j + lane % 4) of its warp; place < 0: outside. */
template <class T, typename Fn>
static __device__ inline void each_chunk(const skinny_product &p, int tile, Fn f)
{
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    int64_t first = (int64_t)blockIdx.x * T::M + warp / T::WARPS_N * T::WARP_M + lane / 4;
#pragma unroll
    for (int j = 0; j < T::WARP_N / 8; j += 4) {
        int column = tile * T::N + warp % T::WARPS_N * T::WARP_N + 8 * (j + lane % 4);
        int matrix = column / p.width;
        int64_t place = matrix * p.rows * p.width + column - matrix * p.width;
#pragma unroll
        for (int i = 0; i < T::WARP_M / 16; i++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                int64_t row = first + 16 * i + 8 * half;
                f(i, j, half, row < p.rows && column < p.n ? place + row * p.width : -1);
            }
    }
}

/* What the sums of a tile begin with. */
template <class T, int M, int N>
static __device__ inline void skinny_begin(float (&sum)[M][N][4], const skinny_product &p, int tile)
{
#pragma unroll
    for (int i = 0; i < M; i++)
#pragma unroll
        for (int j = 0; j < N; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) sum[i][j][e] = 0;
    if (p.start)
        each_chunk<T>(p, tile, [&](int i, int j, int half, int64_t place) {
            uint4 v = make_uint4(0, 0, 0, 0);
            if (place >= 0) v = *reinterpret_cast<const uint4 *>(p.start + place);
            uint32_t word[4] = {v.x, v.y, v.z, v.w};
            quad_transpose(word);
#pragma unroll
            for (int q = 0; q < 4; q++) {
                float2 pair = unpack_bf16(word[q]);
                sum[i][j + q][2 * half] = pair.x, sum[i][j + q][2 * half + 1] = pair.y;
            }
        });
    if (!p.bias) return;
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    int column = tile * T::N + warp % T::WARPS_N * T::WARP_N + 2 * (lane % 4);
#pragma unroll
    for (int j = 0; j < N; j++) {
        if (column + 8 * j >= p.n) continue;
        float2 pair = unpack_bf16(*reinterpret_cast<const uint32_t *>(p.bias + column + 8 * j));
#pragma unroll
        for (int i = 0; i < M; i++)
#pragma unroll
            for (int e = 0; e < 4; e++) sum[i][j][e] += e % 2 ? pair.y : pair.x;
    }
}

template <class T, int M, int N>
static __device__ inline void skinny_end(const float (&sum)[M][N][4], const skinny_product &p, int tile)
{
    each_chunk<T>(p, tile, [&](int i, int j, int half, int64_t place) {
        uint32_t word[4];
#pragma unroll
        for (int q = 0; q < 4; q++) word[q] = pack_bf16(sum[i][j + q][2 * half], sum[i][j + q][2 * half + 1]);
        quad_transpose(word);
        if (place >= 0)
            *reinterpret_cast<uint4 *>(p.c + place) = make_uint4(word[0], word[1], word[2], word[3]);
    });
}

/* One pair of slabs, of which `depths` are needed. */
template <class T, bool GRADIENT, int M, int N>
static __device__ inline void skinny_multiply(float (&sum)[M][N][4], const bf16 *left, const bf16 *right,
                                              int depths)
{
    const int COLUMNS = GRADIENT ? (int)T::N : (int)DEPTH, warp = (int)threadIdx.x / 32;
    int m = warp / T::WARPS_N * T::WARP_M, n = warp % T::WARPS_N * T::WARP_N;
    if (depths >= DEPTH) {
#pragma unroll
        for (int k = 0; k < DEPTH; k += 16)
            slab_product<false, DEPTH, !GRADIENT, COLUMNS>(sum, left, right, m, n, k);
    } else {
#pragma unroll 1
        for (int k = 0; k < depths; k += 16)
            slab_product<false, DEPTH, !GRADIENT, COLUMNS>(sum, left, right, m, n, k);
    }
}

/* Grid (tiles of rows, up to the tiles of columns): a block takes every gridDim.y-th tile of columns. Where
 * all depths of its rows fit into the slabs they stay there, and only the small matrix is copied again. */
template <class T, bool GRADIENT>
static __global__ void __launch_bounds__(T::THREADS, 512 / T::THREADS) skinny_kernel(skinny_product p)
{
    CUDA_DYNAMIC_SHARED(bf16, left);
    bf16 *right = left + T::STAGES * T::LEFT;
    cuda_wait_previous();
    const int M = T::WARP_M / 16, N = T::WARP_N / 8;
    int per_tile = p.segments * ((p.k + DEPTH - 1) / DEPTH), tiles = (p.n + T::N - 1) / T::N;
    int turn = per_tile <= T::STAGES ? per_tile : T::STAGES; /* of the left slabs */
    skinny_step ahead = {(int)blockIdx.y, 0, 0}, now = ahead;
    int left_in = 0, right_in = 0, left_out = 0, right_out = 0; /* slabs */
    auto copy = [&] {
        if (ahead.tile < tiles) {
            if (ahead.tile == (int)blockIdx.y || turn < per_tile)
                copy_left<T>(left + left_in * T::LEFT, p, ahead);
            copy_right<T, GRADIENT>(right + right_in * T::RIGHT, p, ahead);
            skinny_advance(ahead, p);
        }
        left_in = left_in + 1 == turn ? 0 : left_in + 1;
        right_in = right_in + 1 == T::STAGES ? 0 : right_in + 1;
        copy_async_commit();
    };
    for (int i = 0; i < T::STAGES - 1; i++) copy();
    float sum[M][N][4];
    for (int tile = now.tile; tile < tiles; tile = now.tile) {
        skinny_begin<T>(sum, p, tile);
        for (bool complete = false; !complete;) {
            copy_async_wait<T::STAGES - 2>();
            __syncthreads();
            copy();
            skinny_multiply<T, GRADIENT>(sum, left + left_out * T::LEFT, right + right_out * T::RIGHT,
                                         p.k - now.k);
            left_out = left_out + 1 == turn ? 0 : left_out + 1;
            right_out = right_out + 1 == T::STAGES ? 0 : right_out + 1;
            complete = skinny_advance(now, p);
        }
        skinny_end<T>(sum, p, tile);
    }
    copy_async_wait<0>();
}

template <class T, bool GRADIENT>
static void skinny_launch(const kernel_run *run, const skinny_product *p, int64_t spread)
{
    dim3 grid((unsigned)kernel_blocks(p->rows, T::M), (unsigned)spread);
    cuda_launch_early(run->early, skinny_kernel<T, GRADIENT>, grid, dim3(T::THREADS), T::SHARED,
                      (cudaStream_t)run->stream, *p);
}

#endif
