/* Helpers of the chunked kernels: scratch handed out piece by piece, and operands copied from [token, head,
 * channel] memory into padded rows or columns that tile_gemm.h can read. For simd.c sources. */
#ifndef BLURRY_KERNELS_CHUNK_H
#define BLURRY_KERNELS_CHUNK_H
#include "kernels/kernel.h"
#include "kernels/tile_gemm.h"
#include "kernels/vector_functions.h"

V_INLINE int64_t chunk_pad(int64_t n)
{
    return (n + VL - 1) / VL * VL;
}

/* Scratch handed out piece by piece. With base NULL nothing is handed out and `used` tells the size wanted.
 */
typedef struct chunk_arena {
    char *base;
    size_t used;
} chunk_arena;

V_INLINE real *chunk_take(chunk_arena *arena, int64_t count)
{
    real *piece = arena->base ? (real *)(arena->base + arena->used) : NULL;
    arena->used += kernel_round64((size_t)count * sizeof(real));
    return piece;
}

/* to [rows, ld] = from's rows, zero beyond `columns`. */
static __attribute__((unused)) void chunk_rows(const real *from, int64_t stride, int64_t rows,
                                               int64_t columns, real *to, int64_t ld)
{
    for (int64_t r = 0; r < rows; r++, from += stride, to += ld) {
        int64_t i = 0;
        for (; i + VL <= columns; i += VL) v_store(to + i, v_load(from + i));
        if (i < ld) v_store(to + i, v_load_part(from + i, columns - i, 0));
    }
}

/* The first `columns` elements of each padded row back to memory: written, or added. */
static __attribute__((unused)) void chunk_rows_out(const real *from, int64_t ld, int64_t rows,
                                                   int64_t columns, real *to, int64_t stride, int add)
{
    for (int64_t r = 0; r < rows; r++, from += ld, to += stride)
        for (int64_t i = 0, left; left = columns - i, left > 0; i += VL) {
            vreal x = v_load(from + i);
            v_store_up_to(to + i, add ? v_load_up_to(to + i, left) + x : x, left);
        }
}

/* to [columns, ld] = transpose of from [rows, columns], zero beyond `rows`. */
static __attribute__((unused)) void chunk_columns(const real *from, int64_t stride, int64_t rows,
                                                  int64_t columns, real *to, int64_t ld)
{
    enum { SIDE = 8 };
    for (int64_t r0 = 0; r0 < rows; r0 += SIDE)
        for (int64_t c0 = 0; c0 < columns; c0 += SIDE) {
            int64_t r1 = kernel_min(rows, r0 + SIDE), c1 = kernel_min(columns, c0 + SIDE);
            if (r1 - r0 == SIDE && c1 - c0 == SIDE)
                for (int c = 0; c < SIDE; c++)
                    for (int r = 0; r < SIDE; r++)
                        to[(c0 + c) * ld + r0 + r] = from[(r0 + r) * stride + c0 + c];
            else
                for (int64_t c = c0; c < c1; c++)
                    for (int64_t r = r0; r < r1; r++) to[c * ld + r] = from[r * stride + c];
        }
    for (int64_t c = 0; c < columns; c++)
        for (int64_t r = rows; r < ld; r++) to[c * ld + r] = 0;
}

V_INLINE void chunk_zero(real *to, int64_t count)
{
    memset(to, 0, (size_t)count * sizeof(real));
}

V_INLINE tile_a chunk_a(const real *at, int64_t stride)
{
    return (tile_a){at, stride, 1};
}

/* The transpose of a row-major matrix as left operand. */
V_INLINE tile_a chunk_at(const real *at, int64_t stride)
{
    return (tile_a){at, 1, stride};
}

#endif
