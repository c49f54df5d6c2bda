/* Products of 64 x 64 tiles in shared memory, by a block of four warps, for both element types: bf16 on the
 * tensor cores, float in three TF32 products whose error is that of float. The sum stays in registers: each
 * warp holds a strip of 16 rows and 64 columns, in the layout of the m16n8 accumulators. */
#ifndef BLURRY_KERNELS_CUDA_TILE_H
#define BLURRY_KERNELS_CUDA_TILE_H
#include "kernels/cuda.h"

enum { TILE = 64, TILE_THREADS = 128 };

/* Rows of a tile are padded so that neighbouring rows lie in different banks. */
template <typename T> struct tile_of;
template <> struct tile_of<bf16> {
    enum { LD = TILE + 8, SIZE = TILE * LD };
};
template <> struct tile_of<float> {
    enum { LD = TILE + 4, SIZE = TILE * LD };
};

static __device__ inline int tile_warp(void)
{
    return (int)threadIdx.x / 32;
}
static __device__ inline int tile_lane(void)
{
    return (int)threadIdx.x % 32;
}

/* ---- strips ---- */
struct strip {
    float x[8][4];
};

static __device__ inline void strip_zero(strip &s)
{
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) s.x[n][e] = 0;
}

/* f(row, column, element) for every element of the tile that this thread holds. */
template <typename Fn> static __device__ inline void strip_each(strip &s, Fn f)
{
    int row = 16 * tile_warp() + tile_lane() / 4, column = tile_lane() % 4 * 2;
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) f(row + e / 2 * 8, 8 * n + column + e % 2, s.x[n][e]);
}

/* Zero above the diagonal, the rest times `scale`. */
static __device__ inline void strip_lower(strip &s, float scale)
{
    strip_each(s, [&](int r, int c, float &x) { x = c <= r ? x * scale : 0; });
}

static __device__ inline void store_pair(float *to, float a, float b)
{
    *reinterpret_cast<float2 *>(to) = make_float2(a, b);
}
static __device__ inline void store_pair(bf16 *to, float a, float b)
{
    *reinterpret_cast<uint32_t *>(to) = pack_bf16(a, b);
}

template <typename T> static __device__ inline void strip_to_tile(const strip &s, T *tile)
{
    int row = 16 * tile_warp() + tile_lane() / 4, column = tile_lane() % 4 * 2;
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int half = 0; half < 2; half++)
            store_pair(tile + (row + 8 * half) * tile_of<T>::LD + 8 * n + column, s.x[n][2 * half],
                       s.x[n][2 * half + 1]);
}

/* The first `rows` rows and `columns` columns times `scale`, to memory. Whole rows and columns by eights need
 * no look at single elements. */
template <typename T>
static __device__ inline void strip_to_memory(const strip &s, T *to, int64_t stride, int rows, int columns,
                                              float scale)
{
    bool pairs = (((uintptr_t)to | (uintptr_t)stride * sizeof(T)) % (2 * sizeof(T))) == 0;
    int row = 16 * tile_warp() + tile_lane() / 4, column = tile_lane() % 4 * 2;
    if (pairs && rows >= TILE && columns % 8 == 0) {
        T *low = to + row * stride + column, *high = low + 8 * stride;
#pragma unroll
        for (int n = 0; n < 8; n++) {
            if (8 * n >= columns) continue;
            store_pair(low + 8 * n, s.x[n][0] * scale, s.x[n][1] * scale);
            store_pair(high + 8 * n, s.x[n][2] * scale, s.x[n][3] * scale);
        }
        return;
    }
#pragma unroll 1
    for (int n = 0; n < 8; n++) {
        float x[4] = {};
#pragma unroll
        for (int m = 0; m < 8; m++)
#pragma unroll
            for (int e = 0; e < 4; e++) x[e] = m == n ? s.x[m][e] * scale : x[e];
#pragma unroll
        for (int e = 0; e < 4; e++) {
            int r = row + e / 2 * 8, c = 8 * n + column + e % 2;
            if (r < rows && c < columns) cuda_store(to + r * stride + c, x[e]);
        }
    }
}

/* ---- memory to tiles ---- */
static __device__ inline void load_eight(const float *from, float x[8])
{
    float4 a = reinterpret_cast<const float4 *>(from)[0], b = reinterpret_cast<const float4 *>(from)[1];
    x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w, x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
}
static __device__ inline void load_eight(const bf16 *from, float x[8])
{
    uint4 raw = *reinterpret_cast<const uint4 *>(from);
    float2 a = unpack_bf16(raw.x), b = unpack_bf16(raw.y), c = unpack_bf16(raw.z), d = unpack_bf16(raw.w);
    x[0] = a.x, x[1] = a.y, x[2] = b.x, x[3] = b.y, x[4] = c.x, x[5] = c.y, x[6] = d.x, x[7] = d.y;
}
static __device__ inline void store_eight(float *to, const float x[8])
{
    reinterpret_cast<float4 *>(to)[0] = make_float4(x[0], x[1], x[2], x[3]);
    reinterpret_cast<float4 *>(to)[1] = make_float4(x[4], x[5], x[6], x[7]);
}
static __device__ inline void store_eight(bf16 *to, const float x[8])
{
    *reinterpret_cast<uint4 *>(to) = make_uint4(pack_bf16(x[0], x[1]), pack_bf16(x[2], x[3]),
                                                pack_bf16(x[4], x[5]), pack_bf16(x[6], x[7]));
}

template <typename F> static __device__ inline bool tile_aligned(const F *from, int64_t stride)
{
    return (((uintptr_t)from | (uintptr_t)stride * sizeof(F)) & 15) == 0;
}

/* tile[r][c] = f(from[r * stride + c], r, c) for r < rows, c < columns, 0 elsewhere. */
template <int AT_ONCE = 4, typename T, typename F,
          typename Fn> /* AT_ONCE: loads under way, and their registers */
static __device__ inline void tile_fill(T *tile, const F *from, int64_t stride, int rows, int columns, Fn f)
{
    bool aligned = tile_aligned(from, stride);
#pragma unroll AT_ONCE
    for (int unit = (int)threadIdx.x; unit < TILE * TILE / 8; unit += TILE_THREADS) {
        int r = unit / 8, c = unit % 8 * 8;
        float x[8];
        if (r < rows && aligned && c + 8 <= columns)
            load_eight(from + r * stride + c, x);
        else
#pragma unroll
            for (int i = 0; i < 8; i++)
                x[i] = r < rows && c + i < columns ? cuda_load(from + r * stride + c + i) : 0;
#pragma unroll
        for (int i = 0; i < 8; i++) x[i] = r < rows && c + i < columns ? f(x[i], r, c + i) : 0;
        store_eight(tile + r * tile_of<T>::LD + c, x);
    }
}

template <int AT_ONCE = 4, typename T, typename F>
static __device__ inline void tile_load(T *tile, const F *from, int64_t stride, int rows, int columns)
{
    tile_fill<AT_ONCE>(tile, from, stride, rows, columns, [](float x, int, int) { return x; });
}

/* Floats to a tile, and what rounding to T left over to another, so that two products give nearly float's
 * accuracy. */
template <typename T>
static __device__ inline void tile_load_split(T *tile, T *rest, const float *from, int64_t stride, int rows,
                                              int columns)
{
    tile_load(tile, from, stride, rows, columns);
    if constexpr (sizeof(T) == 2)
        tile_fill(rest, from, stride, rows, columns,
                  [](float x, int, int) { return x - from_bf16(cuda_element<T>(x)); });
}

/* As tile_load, with copies under way until copy_async_wait and a barrier, where the memory is aligned. */
template <int THREADS = TILE_THREADS, typename T>
static __device__ inline void tile_load_async(T *tile, const T *from, int64_t stride, int rows, int columns)
{
    const int UNIT = 16 / (int)sizeof(T), PER_ROW = TILE / UNIT, STEP = THREADS / PER_ROW,
              LD = tile_of<T>::LD;
    int row = (int)threadIdx.x / PER_ROW, c = (int)threadIdx.x % PER_ROW * UNIT;
    const T *at = from + row * stride + c;
    tile += row * LD + c;
    if (tile_aligned(from, stride) && columns % UNIT == 0) {
#pragma unroll
        for (int r = 0; r < TILE; r += STEP) {
            bool there = row + r < rows && c < columns;
            copy_async16(tile + r * LD, there ? at + r * stride : from, there);
        }
        return;
    }
#pragma unroll 1
    for (int r = 0; r < TILE; r += STEP)
        for (int i = 0; i < UNIT; i++)
            tile[r * LD + i] = row + r < rows && c + i < columns ? at[r * stride + i] : cuda_element<T>(0);
}

/* ---- products ---- */

/* Fragment of 16 rows and 16 columns (depth) at (m, k); TRANSPOSED: stored with the depth as rows. */
template <bool TRANSPOSED>
static __device__ inline void left_fragment(uint32_t a[4], const bf16 *A, int m, int k)
{
    const int LD = tile_of<bf16>::LD, lane = tile_lane(), i = lane / 8, r = lane % 8;
    if (TRANSPOSED)
        ldmatrix_x4_trans(a, A + (k + i / 2 * 8 + r) * LD + m + i % 2 * 8);
    else
        ldmatrix_x4(a, A + (m + i % 2 * 8 + r) * LD + k + i / 2 * 8);
}

/* Two fragments, of columns n .. n+7 and n+8 .. n+15, at depth k; TRANSPOSED: stored with the columns as
 * rows. */
template <bool TRANSPOSED>
static __device__ inline void right_fragments(uint32_t b[4], const bf16 *B, int n, int k)
{
    const int LD = tile_of<bf16>::LD, lane = tile_lane(), i = lane / 8, r = lane % 8;
    if (TRANSPOSED)
        ldmatrix_x4(b, B + (n + i / 2 * 8 + r) * LD + k + i % 2 * 8);
    else
        ldmatrix_x4_trans(b, B + (k + i % 2 * 8 + r) * LD + n + i / 2 * 8);
}

/* sum += op(A) op(B) over the depths from .. to-1 (rounded outward to 16) and the first `columns` columns
 * (rounded up to 16), for the 16 rows of this warp. LEFT: A is stored transposed, RIGHT: B is. */
template <bool LEFT, bool RIGHT>
static __device__ inline void tile_product(strip &sum, const bf16 *A, const bf16 *B, int from = 0,
                                           int to = TILE, int columns = TILE)
{
    int m = 16 * tile_warp();
#pragma unroll
    for (int k = 0; k < TILE; k += 16) {
        if (k + 16 <= from || k >= to) continue;
        uint32_t a[4], b[4];
        left_fragment<LEFT>(a, A, m, k);
#pragma unroll
        for (int n = 0; n < 8; n += 2) {
            if (8 * n >= columns) continue;
            right_fragments<RIGHT>(b, B, 8 * n, k);
            mma_bf16(sum.x[n], a, b);
            mma_bf16(sum.x[n + 1], a, b + 2);
        }
    }
}

/* Two products with the same right operand, whose fragments are loaded once. */
template <bool LEFT, bool RIGHT>
static __device__ inline void tile_products(strip &sum0, strip &sum1, const bf16 *A0, const bf16 *A1,
                                            const bf16 *B, int to = TILE)
{
    int m = 16 * tile_warp();
#pragma unroll
    for (int k = 0; k < TILE; k += 16) {
        if (k >= to) continue;
        uint32_t a0[4], a1[4], b[4];
        left_fragment<LEFT>(a0, A0, m, k);
        left_fragment<LEFT>(a1, A1, m, k);
#pragma unroll
        for (int n = 0; n < 8; n += 2) {
            right_fragments<RIGHT>(b, B, 8 * n, k);
            mma_bf16(sum0.x[n], a0, b);
            mma_bf16(sum1.x[n], a1, b);
            mma_bf16(sum0.x[n + 1], a0, b + 2);
            mma_bf16(sum1.x[n + 1], a1, b + 2);
        }
    }
}

/* x = high + low to 22 bits. */
static __device__ inline void split_tf32(float x, uint32_t &high, uint32_t &low)
{
    high = to_tf32(x);
    low = to_tf32(x - __uint_as_float(high));
}

template <bool LEFT, bool RIGHT>
static __device__ inline void tile_product(strip &sum, const float *A, const float *B, int from = 0,
                                           int to = TILE, int columns = TILE)
{
    const int LD = tile_of<float>::LD, g = tile_lane() / 4, t = tile_lane() % 4, m = 16 * tile_warp() + g;
#pragma unroll
    for (int k = 0; k < TILE; k += 8) {
        if (k + 8 <= from || k >= to) continue;
        uint32_t high[4], low[4], b_high[2], b_low[2];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int row = m + i % 2 * 8, depth = k + t + i / 2 * 4;
            split_tf32(LEFT ? A[depth * LD + row] : A[row * LD + depth], high[i], low[i]);
        }
#pragma unroll
        for (int n = 0; n < 8; n++) {
            if (8 * n >= columns) continue;
#pragma unroll
            for (int i = 0; i < 2; i++) {
                int column = 8 * n + g, depth = k + t + i * 4;
                split_tf32(RIGHT ? B[column * LD + depth] : B[depth * LD + column], b_high[i], b_low[i]);
            }
            mma_tf32(sum.x[n], low, b_high);
            mma_tf32(sum.x[n], high, b_low);
            mma_tf32(sum.x[n], high, b_high);
        }
    }
}

/* out += p op(B), p a strip of this warp: bf16 goes straight from accumulators to operands; floats pass
 * through the warp's own rows of `room`, a tile. Depths from .. to-1. */
template <bool RIGHT>
static __device__ inline void strip_product(strip &out, const strip &p, const bf16 *B, bf16 *, int from = 0,
                                            int to = TILE, int columns = TILE)
{
#pragma unroll
    for (int k = 0; k < TILE; k += 16) {
        if (k + 16 <= from || k >= to) continue;
        const float *left = p.x[k / 8], *right = p.x[k / 8 + 1];
        uint32_t b[4], a[4] = {pack_bf16(left[0], left[1]), pack_bf16(left[2], left[3]),
                               pack_bf16(right[0], right[1]), pack_bf16(right[2], right[3])};
#pragma unroll
        for (int n = 0; n < 8; n += 2) {
            if (8 * n >= columns) continue;
            right_fragments<RIGHT>(b, B, 8 * n, k);
            mma_bf16(out.x[n], a, b);
            mma_bf16(out.x[n + 1], a, b + 2);
        }
    }
}
template <bool RIGHT>
static __device__ inline void strip_products(strip &out0, strip &out1, const strip &p0, const strip &p1,
                                             const bf16 *B, int columns = TILE)
{
#pragma unroll
    for (int k = 0; k < TILE; k += 16) {
        const float *l0 = p0.x[k / 8], *r0 = p0.x[k / 8 + 1], *l1 = p1.x[k / 8], *r1 = p1.x[k / 8 + 1];
        uint32_t a0[4] = {pack_bf16(l0[0], l0[1]), pack_bf16(l0[2], l0[3]), pack_bf16(r0[0], r0[1]),
                          pack_bf16(r0[2], r0[3])};
        uint32_t a1[4] = {pack_bf16(l1[0], l1[1]), pack_bf16(l1[2], l1[3]), pack_bf16(r1[0], r1[1]),
                          pack_bf16(r1[2], r1[3])};
        uint32_t b[4];
#pragma unroll
        for (int n = 0; n < 8; n += 2) {
            if (8 * n >= columns) continue;
            right_fragments<RIGHT>(b, B, 8 * n, k);
            mma_bf16(out0.x[n], a0, b);
            mma_bf16(out1.x[n], a1, b);
            mma_bf16(out0.x[n + 1], a0, b + 2);
            mma_bf16(out1.x[n + 1], a1, b + 2);
        }
    }
}
template <bool RIGHT>
static __device__ inline void strip_product(strip &out, const strip &p, const float *B, float *room,
                                            int from = 0, int to = TILE, int columns = TILE)
{
    __syncwarp();
    strip_to_tile(p, room);
    __syncwarp();
    tile_product<false, RIGHT>(out, room, B, from, to, columns);
}

#endif
