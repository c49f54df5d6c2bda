/* Gradients of narrow linear maps in bf16, where the weights are a few tiles and the rows are many. cuBLASLt
 * does not split the sum over the rows when several maps are batched, and cannot add up maps; these kernels
 * do. d_weight [maps, out, in] += d_y^T x      the rows split over blocks, partial sums added up in order d_x
 * [rows, in] = the sum over maps of d_y W Tiles are 128 x 128, 8 warps of 64 x 32, depth in steps of 32
 * through a ring of copies under way. Widths are multiples of 8, pointers aligned to 16 bytes. */
#ifndef BLURRY_KERNELS_GEMM_CUDA_NARROW_H
#define BLURRY_KERNELS_GEMM_CUDA_NARROW_H
#include "kernels/cuda.h"
#include "kernels/gemm/gemm.h"

namespace narrow
{

enum { TILE = 128, DEPTH = 32, THREADS = 256, STAGES = 4, WIDE = TILE + 8, DEEP = DEPTH + 8 };
enum { SPLITS_MOST = 128, BLOCKS_WANTED = 132 };

/* rows x 8*chunks elements from row `row`, column `column` of a matrix [row_end, column_end], zeros beyond.
 */
template <int ROWS, int CHUNKS, int PITCH>
static __device__ inline void load_tile(bf16 *to, const bf16 *from, int64_t ld, int64_t row, int64_t row_end,
                                        int64_t column, int64_t column_end)
{
    for (int i = threadIdx.x; i < ROWS * CHUNKS; i += THREADS) {
        int r = i / CHUNKS, c = i % CHUNKS * 8;
        bool valid = row + r < row_end && column + c < column_end;
        copy_async16(to + r * PITCH + c, valid ? from + (row + r) * ld + column + c : from, valid);
    }
}

/* A warp's part of one step of 16: acc [4][4][4] += A [64, 16] B [16, 32]. B lies [depth][column]. */
static __device__ inline void load_b(uint32_t b[4][2], const bf16 *tile, int depth, int column)
{
    int lane = threadIdx.x % 32, r = lane % 8, id = lane / 8;
    for (int pair = 0; pair < 2; pair++) {
        uint32_t four[4];
        ldmatrix_x4_trans(four, tile + (depth + r + id % 2 * 8) * WIDE + column + pair * 16 + id / 2 * 8);
        b[2 * pair][0] = four[0], b[2 * pair][1] = four[1];
        b[2 * pair + 1][0] = four[2], b[2 * pair + 1][1] = four[3];
    }
}

static __device__ inline void multiply(float acc[4][4][4], const uint32_t a[4][4], const uint32_t b[4][2])
{
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) mma_bf16(acc[i][j], a[i], b[j]);
}

/* ---- d_weight ---- */
struct weight_call {
    const bf16 *d_y, *x;
    float *part, *d_weight;
    int64_t rows, in, out, per; /* per: rows of one block */
    int tiles_out, tiles_in, splits, maps;
};

/* One tile of one map over `per` rows. part [splits][maps][tiles_out][tiles_in][128][128]. */
static __global__ void __launch_bounds__(THREADS) weight_parts(weight_call c)
{
    CUDA_DYNAMIC_SHARED(bf16, memory); /* [STAGES][2][DEPTH][WIDE] */
    int tile = blockIdx.x, tile_in = tile % c.tiles_in, tile_out = tile / c.tiles_in % c.tiles_out;
    int64_t map = tile / (c.tiles_in * c.tiles_out);
    int64_t first = (int64_t)blockIdx.y * c.per, last = first + c.per < c.rows ? first + c.per : c.rows;
    int steps = last > first ? (int)((last - first + DEPTH - 1) / DEPTH) : 0;
    const bf16 *d_y = c.d_y + map * c.rows * c.out;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, r = lane % 8, id = lane / 8;
    int m0 = warp / 4 * 64, n0 = warp % 4 * 32;
    float acc[4][4][4] = {};
    for (int s = 0; s < steps + STAGES - 1; s++) {
        if (s < steps) { /* into a slot whose reader passed the barrier below */
            bf16 *slot = memory + s % STAGES * 2 * DEPTH * WIDE;
            int64_t row = first + (int64_t)s * DEPTH;
            load_tile<DEPTH, TILE / 8, WIDE>(slot, d_y, c.out, row, last, (int64_t)tile_out * TILE, c.out);
            load_tile<DEPTH, TILE / 8, WIDE>(slot + DEPTH * WIDE, c.x, c.in, row, last,
                                             (int64_t)tile_in * TILE, c.in);
        }
        copy_async_commit();
        int now = s - (STAGES - 1);
        if (now < 0) continue;
        copy_async_wait<STAGES - 1>();
        __syncthreads();
        const bf16 *left = memory + now % STAGES * 2 * DEPTH * WIDE, *right = left + DEPTH * WIDE;
#pragma unroll
        for (int k = 0; k < DEPTH; k += 16) {
            uint32_t a[4][4], b[4][2];
            for (int i = 0; i < 4; i++)
                ldmatrix_x4_trans(a[i], left + (k + r + id / 2 * 8) * WIDE + m0 + i * 16 + id % 2 * 8);
            load_b(b, right, k, n0);
            multiply(acc, a, b);
        }
        __syncthreads();
    }
    float *part = c.part + ((int64_t)blockIdx.y * gridDim.x + tile) * TILE * TILE;
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++) {
            float *to = part + (m0 + i * 16 + lane / 4) * TILE + n0 + j * 8 + lane % 4 * 2;
            *(float2 *)to = make_float2(acc[i][j][0], acc[i][j][1]);
            *(float2 *)(to + 8 * TILE) = make_float2(acc[i][j][2], acc[i][j][3]);
        }
}

/* d_weight += the parts, split after split; four columns per thread. */
static __global__ void __launch_bounds__(THREADS) weight_sums(weight_call c)
{
    int64_t at = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * 4, size = c.out * c.in;
    if (at >= c.maps * size) return;
    int64_t map = at / size, o = at % size / c.in, i = at % c.in;
    int64_t tiles = (int64_t)c.maps * c.tiles_out * c.tiles_in;
    int64_t tile = (map * c.tiles_out + o / TILE) * c.tiles_in + i / TILE;
    const float *part = c.part + tile * TILE * TILE + o % TILE * TILE + i % TILE;
    float4 sum = *(const float4 *)(c.d_weight + at);
#pragma unroll 8
    for (int s = 0; s < c.splits; s++) {
        float4 v = *(const float4 *)(part + s * tiles * TILE * TILE);
        sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
    }
    *(float4 *)(c.d_weight + at) = sum;
}

/* ---- d_x of several maps ---- */
struct input_call {
    const bf16 *d_y, *weight;
    bf16 *d_x;
    int64_t rows, in, out;
    int maps, add;
};

static __global__ void __launch_bounds__(THREADS) input_kernel(input_call c)
{
    CUDA_DYNAMIC_SHARED(bf16, memory); /* [STAGES][TILE][DEEP], [STAGES][DEPTH][WIDE] */
    bf16 *rights = memory + STAGES * TILE * DEEP;
    int64_t row = (int64_t)blockIdx.x * TILE, column = (int64_t)blockIdx.y * TILE;
    int per_map = (int)((c.out + DEPTH - 1) / DEPTH), steps = c.maps * per_map;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, r = lane % 8, id = lane / 8;
    int m0 = warp / 4 * 64, n0 = warp % 4 * 32;
    float acc[4][4][4] = {};
    for (int s = 0; s < steps + STAGES - 1; s++) {
        if (s < steps) {
            int64_t map = s / per_map, depth = (int64_t)(s % per_map) * DEPTH;
            load_tile<TILE, DEPTH / 8, DEEP>(memory + s % STAGES * TILE * DEEP, c.d_y + map * c.rows * c.out,
                                             c.out, row, c.rows, depth, c.out);
            load_tile<DEPTH, TILE / 8, WIDE>(rights + s % STAGES * DEPTH * WIDE,
                                             c.weight + map * c.out * c.in, c.in, depth, c.out, column, c.in);
        }
        copy_async_commit();
        int now = s - (STAGES - 1);
        if (now < 0) continue;
        copy_async_wait<STAGES - 1>();
        __syncthreads();
        const bf16 *left = memory + now % STAGES * TILE * DEEP, *right = rights + now % STAGES * DEPTH * WIDE;
#pragma unroll
        for (int k = 0; k < DEPTH; k += 16) {
            uint32_t a[4][4], b[4][2];
            for (int i = 0; i < 4; i++)
                ldmatrix_x4(a[i], left + (m0 + i * 16 + r + id % 2 * 8) * DEEP + k + id / 2 * 8);
            load_b(b, right, k, n0);
            multiply(acc, a, b);
        }
        __syncthreads();
    }
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++)
            for (int half = 0; half < 2; half++) {
                int64_t at_row = row + m0 + i * 16 + lane / 4 + half * 8,
                        at = column + n0 + j * 8 + lane % 4 * 2;
                if (at_row >= c.rows || at >= c.in) continue;
                uint32_t *to = (uint32_t *)(c.d_x + at_row * c.in + at);
                float2 before = c.add ? unpack_bf16(*to) : make_float2(0, 0);
                *to = pack_bf16(before.x + acc[i][j][2 * half], before.y + acc[i][j][2 * half + 1]);
            }
}

/* ---- choice and launch; 0: not for these shapes ---- */
static inline bool aligned(const linear_args *a)
{
    return a->in % 8 == 0 && a->out % 8 == 0 && (uintptr_t)a->x % 16 == 0 && (uintptr_t)a->d_y % 16 == 0 &&
           (uintptr_t)a->weight % 16 == 0 && (uintptr_t)a->d_x % 16 == 0 && (uintptr_t)a->d_weight % 16 == 0;
}

static inline int weight_gradient(const kernel_run *run, const linear_args *a)
{
    int64_t maps = kernel_max(a->maps, 1), tiles_out = kernel_blocks(a->out, TILE),
            tiles_in = kernel_blocks(a->in, TILE), tiles = maps * tiles_out * tiles_in;
    int64_t fit = (int64_t)(run->scratch_bytes / (TILE * TILE * sizeof(float))) / tiles;
    int64_t splits = kernel_min(kernel_min(BLOCKS_WANTED / tiles, SPLITS_MOST), fit);
    splits = kernel_min(splits, a->rows / (2 * DEPTH));
    if (!aligned(a) || splits < 4) return 0;
    int64_t per = kernel_blocks(kernel_blocks(a->rows, splits), DEPTH) * DEPTH;
    weight_call c = {(const bf16 *)a->d_y,
                     (const bf16 *)a->x,
                     (float *)run->scratch,
                     (float *)a->d_weight,
                     a->rows,
                     a->in,
                     a->out,
                     per,
                     (int)tiles_out,
                     (int)tiles_in,
                     (int)splits,
                     (int)maps};
    cudaStream_t stream = (cudaStream_t)run->stream;
    cuda_launch(weight_parts, dim3((unsigned)tiles, (unsigned)splits), THREADS,
                STAGES * 2 * DEPTH * WIDE * sizeof(bf16), stream, c);
    cuda_launch(weight_sums, (unsigned)kernel_blocks(maps * a->out * a->in, 4 * THREADS), THREADS, 0, stream,
                c);
    return 1;
}

static inline int input_gradient(const kernel_run *run, const linear_args *a)
{
    enum { WIDEST = 512 }; /* beyond it cuBLASLt's tiles win */
    if (a->maps < 2 || a->in > WIDEST || a->out > WIDEST || a->rows < 1 || !aligned(a)) return 0;
    input_call c = {(const bf16 *)a->d_y,
                    (const bf16 *)a->weight,
                    (bf16 *)a->d_x,
                    a->rows,
                    a->in,
                    a->out,
                    (int)a->maps,
                    a->add_d_x};
    size_t bytes = STAGES * (TILE * DEEP + DEPTH * WIDE) * sizeof(bf16);
    cuda_launch(input_kernel,
                dim3((unsigned)kernel_blocks(a->rows, TILE), (unsigned)kernel_blocks(a->in, TILE)), THREADS,
                bytes, (cudaStream_t)run->stream, c);
    return 1;
}

} // namespace narrow
#endif
