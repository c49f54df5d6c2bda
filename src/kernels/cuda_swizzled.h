/* Tiles of bf16 in shared memory of any size and the tensor-core products on them, for blocks of any number
 * of warps (cuda_tile.h has padded tiles of 64 x 64 for four warps; a source includes one of the two).
 *
 * A tile is row-major with U units of 16 bytes (8 elements) per row; unit u of row r lies at u ^ swizzle(r),
 * so that the eight rows an ldmatrix touches never share a bank. Fragments follow the m16n8k16 layout: a lane
 * holds rows g = lane / 4 and g + 8, columns 2 * (lane % 4) and the next, of each 16 x 8 accumulator. */
#ifndef BLURRY_KERNELS_CUDA_SWIZZLED_H
#define BLURRY_KERNELS_CUDA_SWIZZLED_H
#include "kernels/cuda.h"

/* Units per row of a tile `columns` wide: a power of two, so that the swizzle stays inside the row. */
static constexpr __host__ __device__ int tile_units(int columns)
{
    return columns <= 32 ? 4 : columns <= 64 ? 8 : columns <= 128 ? 16 : 32;
}
static constexpr __host__ __device__ int tile_bytes(int rows, int columns)
{
    return rows * tile_units(columns) * 16;
}

template <int U> static __device__ inline int tile_at(int row, int unit)
{
    int swizzle = U >= 8 ? row & 7 : row >> 1 & 3;
    return row * (U * 16) + ((unit ^ swizzle) << 4);
}

/* Accumulators of one warp: C[16, 8 N] as N fragments. */
template <int N> static __device__ inline void tile_zero(float (&c)[N][4])
{
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) c[n][i] = 0.0f;
}

/* Offset of a lane's row for ldmatrix: row `lane_row` (0 .. 15) and unit half (0 or 1) of a 16 x 16 block
 * that starts at a row divisible by 16 and the even unit `unit`. Written so that only four offsets differ
 * between all blocks of a tile by more than a constant: the compiler keeps those and adds the rest for
 * nothing. */
template <int U> static __device__ inline int tile_lane(int lane_row, int half, int unit)
{
    int swizzle = U >= 8 ? lane_row & 7 : lane_row >> 1 & 3, low = unit & (U >= 8 ? 6 : 2);
    return lane_row * (U * 16) + ((half ^ swizzle ^ low) << 4) + (unit - low) * 16;
}

/* A[m0 .. m0+15, k0 .. k0+15] of a tile stored [m, k]. */
template <int U> static __device__ inline void tile_a(uint32_t *a, const char *tile, int m0, int k0)
{
    int lane = threadIdx.x & 31;
    ldmatrix_x4(a, tile + m0 * (U * 16) + tile_lane<U>(lane & 15, lane >> 4, k0 / 8));
}
/* The same of the transpose of a tile stored [k, m]. */
template <int U> static __device__ inline void tile_a_trans(uint32_t *a, const char *tile, int m0, int k0)
{
    int lane = threadIdx.x & 31;
    ldmatrix_x4_trans(a, tile + k0 * (U * 16) +
                             tile_lane<U>((lane & 7) + (lane >> 4 << 3), lane >> 3 & 1, m0 / 8));
}
/* B[k0 .. k0+15, n0 .. n0+15] of the transpose of a tile stored [n, k]: two fragments b[0..1], b[2..3]. */
template <int U> static __device__ inline void tile_b_trans(uint32_t *b, const char *tile, int n0, int k0)
{
    int lane = threadIdx.x & 31;
    ldmatrix_x4(b, tile + n0 * (U * 16) + tile_lane<U>((lane & 7) + (lane >> 4 << 3), lane >> 3 & 1, k0 / 8));
}
/* B[k0 .. k0+15, n0 .. n0+15] of a tile stored [k, n]. */
template <int U> static __device__ inline void tile_b(uint32_t *b, const char *tile, int k0, int n0)
{
    int lane = threadIdx.x & 31;
    ldmatrix_x4_trans(b, tile + k0 * (U * 16) + tile_lane<U>(lane & 15, lane >> 4, n0 / 8));
}

/* C[16, 8 N] += A[16, 16] B[16, 8 N], B of a tile stored [k, n] from (k0, n0). */
template <int U, int N>
static __device__ inline void tile_mma(float (&c)[N][4], const uint32_t *a, const char *tile, int k0, int n0)
{
#pragma unroll
    for (int n = 0; n < N; n += 2) {
        uint32_t b[4];
        tile_b<U>(b, tile, k0, n0 + 8 * n);
        mma_bf16(c[n], a, b);
        mma_bf16(c[n + 1], a, b + 2);
    }
}
/* The same for MT blocks of rows at once: B is loaded once for all of them. */
template <int U, int MT, int N>
static __device__ inline void tile_mma_blocks(float (&c)[MT][N][4], const uint32_t (&a)[MT][4],
                                              const char *tile, int k0, int n0)
{
#pragma unroll
    for (int n = 0; n < N; n += 2) {
        uint32_t b[4];
        tile_b<U>(b, tile, k0, n0 + 8 * n);
#pragma unroll
        for (int m = 0; m < MT; m++) mma_bf16(c[m][n], a[m], b), mma_bf16(c[m][n + 1], a[m], b + 2);
    }
}
/* C[16, 8 N] += A[16, 16] B^T, B of a tile stored [n, k] from (n0, k0). */
template <int U, int N>
static __device__ inline void tile_mma_trans(float (&c)[N][4], const uint32_t *a, const char *tile, int n0,
                                             int k0)
{
#pragma unroll
    for (int n = 0; n < N; n += 2) {
        uint32_t b[4];
        tile_b_trans<U>(b, tile, n0 + 8 * n, k0);
        mma_bf16(c[n], a, b);
        mma_bf16(c[n + 1], a, b + 2);
    }
}

template <int U, int MT, int N>
static __device__ inline void tile_mma_trans_blocks(float (&c)[MT][N][4], const uint32_t (&a)[MT][4],
                                                    const char *tile, int n0, int k0)
{
#pragma unroll
    for (int n = 0; n < N; n += 2) {
        uint32_t b[4];
        tile_b_trans<U>(b, tile, n0 + 8 * n, k0);
#pragma unroll
        for (int m = 0; m < MT; m++) mma_bf16(c[m][n], a[m], b), mma_bf16(c[m][n + 1], a[m], b + 2);
    }
}

/* Two neighbouring accumulators [16, 16] as the A fragment of a following product. */
static __device__ inline void tile_pack(uint32_t *a, const float *low, const float *high)
{
    a[0] = pack_bf16(low[0], low[1]), a[1] = pack_bf16(low[2], low[3]);
    a[2] = pack_bf16(high[0], high[1]), a[3] = pack_bf16(high[2], high[3]);
}

/* Zero above the diagonal: columns from 0, rows of row group `rows`; a column later than its row is cleared.
 */
template <int N> static __device__ inline void tile_causal(float (&x)[N][4], int rows)
{
    int lane = threadIdx.x & 31, late = 16 * rows + (lane >> 2) - 2 * (lane & 3);
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            if (8 * n + i > late) x[n][i] = 0.0f;
            if (8 * n + i > late + 8) x[n][2 + i] = 0.0f;
        }
}

/* One 16 x 8 accumulator as bf16 into a tile at (row0, column0). */
template <int U> static __device__ inline void tile_put(char *tile, int row0, int column0, const float *c)
{
    int lane = threadIdx.x & 31, g = lane >> 2, q = (lane & 3) * 4;
    *(uint32_t *)(tile + tile_at<U>(row0 + g, column0 / 8) + q) = pack_bf16(c[0], c[1]);
    *(uint32_t *)(tile + tile_at<U>(row0 + g + 8, column0 / 8) + q) = pack_bf16(c[2], c[3]);
}

/* Asynchronous copy of `rows` x D elements into a tile; rows from `valid_rows` on and columns from
 * `valid_columns` on become zero. Row r is at from + r * stride elements. The threads first .. first +
 * threads - 1 take part. */
template <int D, int ROWS, int THREADS>
static __device__ inline void tile_load(char *tile, const bf16 *from, int64_t stride, int valid_rows,
                                        int valid_columns, int thread)
{
    constexpr int units = D / 8, U = tile_units(D);
    static_assert(ROWS * units % THREADS == 0 || THREADS > 32, "whole rounds");
#pragma unroll
    for (int i = 0; i < ROWS * units; i += THREADS) {
        int at = i + thread;
        if (ROWS * units % THREADS != 0 && at >= ROWS * units) break;
        int row = at / units, unit = at % units;
        bool valid = row < valid_rows && unit * 8 < valid_columns;
        copy_async16(tile + tile_at<U>(row, unit), valid ? from + row * stride + unit * 8 : from, valid);
    }
}

/* The same for tile after tile, each `step` bytes behind the one before (or before it, where negative): what
 * does not change is worked out once. */
template <int D, int ROWS, int THREADS> struct tile_source {
    static constexpr int UNITS = D / 8, U = tile_units(D), ROUND = THREADS / UNITS; /* rows of a round */
    static_assert(THREADS % UNITS == 0 && ROUND % 8 == 0, "the swizzle is the same in every round");
    const char *from; /* this thread's unit of the first round */
    int64_t round, step;
    int row, at;
    bool inside; /* whether its columns are there */
    __device__ void begin(const bf16 *first, int64_t stride, int64_t between, int valid_columns)
    {
        int unit = (int)threadIdx.x % UNITS;
        row = (int)threadIdx.x / UNITS, at = tile_at<U>(row, unit), inside = unit * 8 < valid_columns;
        from = (const char *)(first + row * stride + (inside ? unit * 8 : 0));
        round = ROUND * stride * 2, step = between * 2;
    }
    __device__ void load(char *tile, int valid_rows)
    {
#pragma unroll
        for (int i = 0; i < ROWS; i += ROUND) {
            if (ROUND > ROWS && row >= ROWS) break;
            bool valid = inside && row + i < valid_rows;
            copy_async16(tile + at + i * (U * 16), valid ? from + i / ROUND * round : from, valid);
        }
        from += step;
    }
};

/* Accumulators of 16 rows as bf16 to memory; rows from `valid_rows` on and columns from `valid_columns` on
 * are left out. The four lanes of a row exchange words until each has 16 bytes in one piece. */
template <int N>
static __device__ inline void tile_store_rows(const float (&x)[N][4], bf16 *to, int64_t stride,
                                              int valid_rows, int valid_columns)
{
    int lane = threadIdx.x & 31, g = lane >> 2, q = lane & 3;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        bf16 *row = to + (g + 8 * half) * stride;
        bool valid = g + 8 * half < valid_rows;
#pragma unroll
        for (int n = 0; n + 4 <= N; n += 4) {
            uint32_t v[4];
#pragma unroll
            for (int i = 0; i < 4; i++) v[i] = pack_bf16(x[n + i][2 * half], x[n + i][2 * half + 1]);
            bool odd = q & 1, late = q & 2;
            uint32_t a = __shfl_xor_sync(0xffffffffu, odd ? v[0] : v[1], 1),
                     b = __shfl_xor_sync(0xffffffffu, odd ? v[2] : v[3], 1);
            /* two words of tile n + (q & 1), two of tile n + 2 + (q & 1) */
            uint32_t p0 = odd ? a : v[0], p1 = odd ? v[1] : a, p2 = odd ? b : v[2], p3 = odd ? v[3] : b;
            uint32_t e = __shfl_xor_sync(0xffffffffu, late ? p0 : p2, 2),
                     f = __shfl_xor_sync(0xffffffffu, late ? p1 : p3, 2);
            uint4 unit = late ? make_uint4(e, f, p2, p3) : make_uint4(p0, p1, e, f);
            if (valid && 8 * (n + q) < valid_columns) *(uint4 *)(row + 8 * (n + q)) = unit;
        }
        if constexpr (N % 4 >= 2) { /* 8 bytes in one piece */
            constexpr int n = N / 4 * 4;
            uint32_t low = pack_bf16(x[n][2 * half], x[n][2 * half + 1]),
                     high = pack_bf16(x[n + 1][2 * half], x[n + 1][2 * half + 1]);
            bool odd = q & 1;
            uint32_t other = __shfl_xor_sync(0xffffffffu, odd ? low : high, 1);
            uint2 piece = odd ? make_uint2(other, high) : make_uint2(low, other);
            if (valid && 8 * (n + odd) < valid_columns) *(uint2 *)(row + 8 * (n + odd) + 2 * (q & 2)) = piece;
        }
#pragma unroll
        for (int n = N / 2 * 2; n < N; n++)
            if (valid && 8 * n < valid_columns)
                *(uint32_t *)(row + 8 * n + 2 * q) = pack_bf16(x[n][2 * half], x[n][2 * half + 1]);
    }
}

/* 16 rows of a tile to memory, by one warp. */
template <int D>
static __device__ inline void tile_store16(const char *tile, int row0, bf16 *to, int64_t stride,
                                           int valid_rows, int valid_columns)
{
    constexpr int units = D / 8, U = tile_units(D);
    int lane = threadIdx.x & 31;
#pragma unroll
    for (int i = 0; i < 16 * units; i += 32) {
        int row = (i + lane) / units, unit = (i + lane) % units;
        if (row0 + row < valid_rows && unit * 8 < valid_columns)
            *(uint4 *)(to + (row0 + row) * stride + unit * 8) =
                *(const uint4 *)(tile + tile_at<U>(row0 + row, unit));
    }
}

#endif
