/* d_weight += d_y^T x, summing many rows into a small matrix, in two stages of fixed order: the rows are
 * split over as many blocks as fill the chip, and a second kernel adds up what they leave. */
#ifndef BLURRY_KERNELS_GEMM_CUDA_SKINNY_WEIGHT_CUH
#define BLURRY_KERNELS_GEMM_CUDA_SKINNY_WEIGHT_CUH
#include "kernels/cuda_bulk.h"
#include "kernels/gemm/cuda_slab.cuh"
#include "kernels/kernel.h"

/* part [splits, maps * out, in]: the sums over rows z * per .. of d_y [maps, rows, out] and x [rows, in]. */
typedef struct skinny_gradient {
    const bf16 *d_y, *x;
    float *part;
    int64_t rows, per;
    int in, out, maps;
} skinny_gradient;

/* A block sums a tile of O x I with WARPS_O x WARPS_I warps, ROWS rows a step, STAGES - 1 steps ahead in
 * copying. */
template <int O_, int I_, int WARPS_O, int WARPS_I_, int ROWS_, int STAGES_> struct gradient_tile {
    enum {
        O = O_,
        I = I_,
        WARPS_I = WARPS_I_,
        ROWS = ROWS_,
        STAGES = STAGES_,
        THREADS = 32 * WARPS_O * WARPS_I,
        WARP_O = O / WARPS_O,
        WARP_I = I / WARPS_I,
        LEFT = ROWS * O,
        RIGHT = ROWS * I, /* elements of a slab */
        SHARED = STAGES * (LEFT + RIGHT) * 2
    };
};

/* Grid (tiles of columns of x, tiles of columns of d_y, splits). */
template <class T>
static __global__ void __launch_bounds__(T::THREADS, 512 / T::THREADS) gradient_kernel(skinny_gradient p)
{
    CUDA_DYNAMIC_SHARED(bf16, left);
    bf16 *right = left + T::STAGES * T::LEFT;
    cuda_wait_previous();
    const int M = T::WARP_O / 16, N = T::WARP_I / 8, warp = (int)threadIdx.x / 32,
              lane = (int)threadIdx.x % 32;
    int64_t first = (int64_t)blockIdx.z * p.per, last = kernel_min(first + p.per, p.rows);
    int o = (int)blockIdx.y * T::O, i = (int)blockIdx.x * T::I, outs = p.maps * p.out;
    int from_o = o + slab_chunk<T::O>() * CHUNK, from_i = i + slab_chunk<T::I>() * CHUNK,
        map = from_o / p.out;
    const bf16 *d_y = p.d_y + map * p.rows * p.out + from_o - map * p.out, *x = p.x + from_i;
    int64_t row = first; /* of the next copy */
    int in = 0;          /* the slab it goes to */
    auto copy = [&] {
        int rows = (int)kernel_min(last - row, T::ROWS);
        if (rows > 0) {
            slab_copy<T::ROWS, T::O, T::THREADS>(left + in * T::LEFT, d_y + row * p.out, p.out, rows,
                                                 from_o < outs);
            slab_copy<T::ROWS, T::I, T::THREADS>(right + in * T::RIGHT, x + row * p.in, p.in, rows,
                                                 from_i < p.in);
        }
        row += T::ROWS, in = in + 1 == T::STAGES ? 0 : in + 1;
        copy_async_commit();
    };
    for (int stage = 0; stage < T::STAGES - 1; stage++) copy();
    int m = warp / T::WARPS_I * T::WARP_O, n = warp % T::WARPS_I * T::WARP_I, slab = 0;
    float sum[M][N][4] = {};
    for (int64_t r = first; r < last; r += T::ROWS, slab = slab + 1 == T::STAGES ? 0 : slab + 1) {
        copy_async_wait<T::STAGES - 2>();
        __syncthreads();
        copy();
#pragma unroll
        for (int k = 0; k < T::ROWS; k += 16)
            slab_product<true, T::O, false, T::I>(sum, left + slab * T::LEFT, right + slab * T::RIGHT, m, n,
                                                  k);
    }
    copy_async_wait<0>();
    cuda_admit_next();
    float *part = p.part + (int64_t)blockIdx.z * outs * p.in;
    o += m + lane / 4, i += n + lane % 4 * 2;
#pragma unroll
    for (int a = 0; a < M; a++)
#pragma unroll
        for (int b = 0; b < N; b++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                int at_o = o + 16 * a + 8 * half, at_i = i + 8 * b;
                if (at_o < outs && at_i < p.in)
                    *reinterpret_cast<float2 *>(part + (int64_t)at_o * p.in + at_i) =
                        make_float2(sum[a][b][2 * half], sum[a][b][2 * half + 1]);
            }
}

/* to[c] += the sum of part[s, c] over s, a multiple of 4 columns: SHARES threads take every SHARES-th s of
 * four columns. */
enum { ADD_QUADS = 32, ADD_SHARES = 8 };

static __global__ void __launch_bounds__(ADD_QUADS *ADD_SHARES)
    gradient_add_kernel(const float *part, int splits, int64_t columns, float *to)
{
    __shared__ float4 room[ADD_SHARES][ADD_QUADS];
    cuda_wait_previous();
    int x = (int)threadIdx.x, y = (int)threadIdx.y;
    int64_t c = ((int64_t)blockIdx.x * ADD_QUADS + x) * 4;
    float4 sum = make_float4(0, 0, 0, 0), before = sum;
    if (!y && c < columns) before = *reinterpret_cast<const float4 *>(to + c);
    if (c < columns)
#pragma unroll 8
        for (int s = y; s < splits; s += ADD_SHARES) {
            float4 v = *reinterpret_cast<const float4 *>(part + s * columns + c);
            sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
        }
    room[y][x] = sum;
    __syncthreads();
    if (y || c >= columns) return;
#pragma unroll
    for (int s = 0; s < ADD_SHARES; s++) {
        float4 v = room[s][x];
        before.x += v.x, before.y += v.y, before.z += v.z, before.w += v.w;
    }
    *reinterpret_cast<float4 *>(to + c) = before;
}

/* The parts lie in scratch; `blocks` are wanted in all, of LEAST rows at least. */
template <class T>
static void gradient_launch(const kernel_run *run, skinny_gradient p, float *d_weight, int64_t blocks)
{
    const int64_t LEAST = 128;
    int64_t columns = (int64_t)p.maps * p.out * p.in;
    int64_t tiles_i = kernel_blocks(p.in, T::I), tiles_o = kernel_blocks((int64_t)p.maps * p.out, T::O);
    int64_t fit = (int64_t)(run->scratch_bytes / sizeof(float)) / columns;
    int64_t splits = kernel_min(kernel_blocks(blocks, tiles_i * tiles_o), kernel_blocks(p.rows, LEAST));
    splits = kernel_max(1, kernel_min(splits, fit));
    p.part = (float *)run->scratch;
    p.per = kernel_blocks(kernel_blocks(p.rows, splits), T::ROWS) * T::ROWS;
    splits = kernel_blocks(p.rows, p.per);
    cudaStream_t stream = (cudaStream_t)run->stream;
    cuda_launch_early(run->early, gradient_kernel<T>,
                      dim3((unsigned)tiles_i, (unsigned)tiles_o, (unsigned)splits), dim3(T::THREADS),
                      T::SHARED, stream, p);
    cuda_launch_early(run->early, gradient_add_kernel, dim3((unsigned)kernel_blocks(columns / 4, ADD_QUADS)),
                      dim3(ADD_QUADS, ADD_SHARES), 0, stream, (const float *)run->scratch, (int)splits,
                      columns, d_weight);
}

#endif
