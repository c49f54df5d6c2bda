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

/* Two neighbouring elements, of which `left` exist. */
static __device__ inline uint32_t load_pair(const bf16 *from, bool pairs, int left)
{
    if (left >= 2 && pairs) return *reinterpret_cast<const uint32_t *>(from);
    return pack_bf16(left > 0 ? from_bf16(from[0]) : 0, left > 1 ? from_bf16(from[1]) : 0);
}

/* The warp's rows of a matrix in memory, of which `rows` rows and `columns` columns exist. */
static __device__ inline void fragment_fetch(fragment &f, const bf16 *from, int64_t stride, int rows,
                                             int columns)
{
    bool pairs = (((uintptr_t)from | (uintptr_t)stride * sizeof(bf16)) & 3) == 0;
    int row = 16 * tile_warp() + tile_lane() / 4, column = tile_lane() % 4 * 2;
#pragma unroll
    for (int k = 0; k < 4; k++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int r = row + i % 2 * 8, c = 16 * k + column + i / 2 * 8;
            f.a[k][i] = load_pair(from + r * stride + c, pairs, r < rows ? columns - c : 0);
        }
}

static __device__ inline float2 fetch_pair(const bf16 *from, bool pairs, int left)
{
    return unpack_bf16(load_pair(from, pairs, left));
}
static __device__ inline float2 fetch_pair(const float *from, bool pairs, int left)
{
    if (left >= 2 && pairs) return *reinterpret_cast<const float2 *>(from);
    return make_float2(left > 0 ? from[0] : 0, left > 1 ? from[1] : 0);
}

/* The warp's rows of a matrix in memory, 0 where it has ended. */
template <typename T>
static __device__ inline void strip_fetch(strip &s, const T *from, int64_t stride, int rows, int columns)
{
    bool pairs = (((uintptr_t)from | (uintptr_t)stride * sizeof(T)) % (2 * sizeof(T))) == 0;
    int row = 16 * tile_warp() + tile_lane() / 4, column = tile_lane() % 4 * 2;
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int r = row + 8 * half, c = 8 * n + column;
            float2 x = fetch_pair(from + r * stride + c, pairs, r < rows ? columns - c : 0);
            s.x[n][2 * half] = x.x, s.x[n][2 * half + 1] = x.y;
        }
}

/* A range of depths or columns; both ends are rounded outward to 16. */
struct span16 {
    int from, to;
};
static __device__ inline span16 up_to(int to)
{
    return {0, to};
}
static __device__ inline span16 starting(int from)
{
    return {from, TILE};
}

/* sum += f op(B); RIGHT: B is stored transposed. */
template <bool RIGHT>
static __device__ inline void fragment_product(strip &sum, const fragment &f, const bf16 *B, span16 depths,
                                               span16 columns)
{
#pragma unroll
    for (int k = 0; k < TILE; k += 16) {
        if (k + 16 <= depths.from || k >= depths.to) continue;
#pragma unroll
        for (int n = 0; n < 8; n += 2) {
            if (8 * n + 16 <= columns.from || 8 * n >= columns.to) continue;
            uint32_t b[4];
            right_fragments<RIGHT>(b, B, 8 * n, k);
            mma_bf16(sum.x[n], f.a[k / 16], b);
            mma_bf16(sum.x[n + 1], f.a[k / 16], b + 2);
        }
    }
}

#endif
