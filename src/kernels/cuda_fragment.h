/* Left operands of tile products (cuda_tile.h) that stay in registers: 16 rows of this warp, 64 columns of
 * bf16. */
#ifndef BLURRY_KERNELS_CUDA_FRAGMENT_H
#define BLURRY_KERNELS_CUDA_FRAGMENT_H
#include "kernels/cuda_tile.h"

struct fragment {
    uint32_t a[4][4]; /* depths 16 k .. 16 k + 15 */
};

static __device__ inline void fragment_of(fragment &f, const strip &s)
{
#pragma unroll
    for (int k = 0; k < 4; k++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            f.a[k][i] = pack_bf16(s.x[2 * k + i / 2][i % 2 * 2], s.x[2 * k + i / 2][i % 2 * 2 + 1]);
}

/* The warp's rows of a tile. */
static __device__ inline void fragment_load(fragment &f, const bf16 *tile)
{
#pragma unroll
    for (int k = 0; k < 4; k++) left_fragment<false>(f.a[k], tile, 16 * tile_warp(), 16 * k);
}

/* Two neighbouring elements of a row, of which `left` exist. */
static __device__ inline float2 fetch_pair(const float *from, int left)
{
    return make_float2(left > 0 ? from[0] : 0, left > 1 ? from[1] : 0);
}
static __device__ inline float2 fetch_pair(const bf16 *from, int left)
{
    return make_float2(left > 0 ? from_bf16(from[0]) : 0, left > 1 ? from_bf16(from[1]) : 0);
}

/* The warp's rows of a matrix in memory, of which `rows` rows and `columns` columns exist; 0 elsewhere. */
static __device__ inline void fragment_fetch(fragment &f, const bf16 *from, int64_t stride, int rows,
                                             int columns)
{
    bool pairs = (((uintptr_t)from | (uintptr_t)stride * sizeof(bf16)) & 3) == 0;
    int row = 16 * tile_warp() + tile_lane() / 4, column = tile_lane() % 4 * 2;
    const bf16 *low = from + row * stride + column, *high = low + 8 * stride;
    if (pairs && rows >= TILE && columns % 8 == 0) {
#pragma unroll
        for (int k = 0; k < 4; k++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int c = 16 * k + i / 2 * 8;
                f.a[k][i] = c < columns ? *reinterpret_cast<const uint32_t *>((i % 2 ? high : low) + c) : 0;
            }
        return;
    }
    f = {};
#pragma unroll 1
    for (int k = 0; k < 4; k++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int r = row + i % 2 * 8, c = 16 * k + i / 2 * 8;
            float2 x = fetch_pair((i % 2 ? high : low) + c, r < rows ? columns - c - column : 0);
#pragma unroll
            for (int j = 0; j < 4; j++) f.a[j][i] = j == k ? pack_bf16(x.x, x.y) : f.a[j][i];
        }
}

static __device__ inline float2 load_pair(const bf16 *from)
{
    return unpack_bf16(*reinterpret_cast<const uint32_t *>(from));
}
static __device__ inline float2 load_pair(const float *from)
{
    return *reinterpret_cast<const float2 *>(from);
}

/* The warp's rows of a matrix in memory, 0 where it has ended. */
template <typename T>
static __device__ inline void strip_fetch(strip &s, const T *from, int64_t stride, int rows, int columns)
{
    bool pairs = (((uintptr_t)from | (uintptr_t)stride * sizeof(T)) % (2 * sizeof(T))) == 0;
    int row = 16 * tile_warp() + tile_lane() / 4, column = tile_lane() % 4 * 2;
    const T *low = from + row * stride + column, *high = low + 8 * stride;
    strip_zero(s);
    if (pairs && rows >= TILE && columns % 8 == 0) {
#pragma unroll
        for (int n = 0; n < 8; n++) {
            if (8 * n >= columns) continue;
            float2 x = load_pair(low + 8 * n), y = load_pair(high + 8 * n);
            s.x[n][0] = x.x, s.x[n][1] = x.y, s.x[n][2] = y.x, s.x[n][3] = y.y;
        }
        return;
    }
#pragma unroll 1
    for (int n = 0; n < 8; n++) {
        int left = columns - 8 * n - column;
        float2 x = fetch_pair(low + 8 * n, row < rows ? left : 0),
               y = fetch_pair(high + 8 * n, row + 8 < rows ? left : 0);
#pragma unroll
        for (int m = 0; m < 8; m++)
            if (m == n) s.x[m][0] = x.x, s.x[m][1] = x.y, s.x[m][2] = y.x, s.x[m][3] = y.y;
    }
}

/* sum += f op(B); RIGHT: B is stored transposed. Always the whole tile, zeros and all: conditions keep loads
 * and products from overlapping, which costs more than they save. */
template <bool RIGHT>
static __device__ inline void fragment_product(strip &sum, const fragment &f, const bf16 *B)
{
#pragma unroll
    for (int k = 0; k < TILE; k += 16)
#pragma unroll
        for (int n = 0; n < 8; n += 2) {
            uint32_t b[4];
            right_fragments<RIGHT>(b, B, 8 * n, k);
            mma_bf16(sum.x[n], f.a[k / 16], b);
            mma_bf16(sum.x[n + 1], f.a[k / 16], b + 2);
        }
}

#endif
