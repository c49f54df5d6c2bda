/* Transposes a block of VL x VL at a time through registers: to[j, i] = from[i, j]. */
#ifndef BLURRY_KERNELS_TRANSPOSE_H
#define BLURRY_KERNELS_TRANSPOSE_H
#include "kernels/vector_math.h"

/* One VL x VL block by log2(VL) rounds of interleaving rows i and i + VL/2: after all rounds row j holds
 * column j. */
V_INLINE void transpose_block(const real *from, int64_t ld_from, real *to, int64_t ld_to)
{
    vreal x[VL], y[VL];
#pragma GCC unroll 16
    for (int i = 0; i < VL; i++) x[i] = v_load(from + i * ld_from);
#if BLURRY_VECTOR_BYTES / 4 == 4 && REAL_IS_FLOAT
#define ZIP_LOW(a, b)  __builtin_shufflevector(a, b, 0, 4, 1, 5)
#define ZIP_HIGH(a, b) __builtin_shufflevector(a, b, 2, 6, 3, 7)
    enum { ROUNDS = 2 };
#elif BLURRY_VECTOR_BYTES / 4 == 8 && REAL_IS_FLOAT
#define ZIP_LOW(a, b)  __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11)
#define ZIP_HIGH(a, b) __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15)
    enum { ROUNDS = 3 };
#elif BLURRY_VECTOR_BYTES / 4 == 16 && REAL_IS_FLOAT
#define ZIP_LOW(a, b) __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23)
#define ZIP_HIGH(a, b)                                                                                       \
    __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31)
    enum { ROUNDS = 4 };
#elif BLURRY_VECTOR_BYTES / 8 == 2
#define ZIP_LOW(a, b)  __builtin_shufflevector(a, b, 0, 2)
#define ZIP_HIGH(a, b) __builtin_shufflevector(a, b, 1, 3)
    enum { ROUNDS = 1 };
#elif BLURRY_VECTOR_BYTES / 8 == 4
#define ZIP_LOW(a, b)  __builtin_shufflevector(a, b, 0, 4, 1, 5)
#define ZIP_HIGH(a, b) __builtin_shufflevector(a, b, 2, 6, 3, 7)
    enum { ROUNDS = 2 };
#else
#define ZIP_LOW(a, b)  __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11)
#define ZIP_HIGH(a, b) __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15)
    enum { ROUNDS = 3 };
#endif
#pragma GCC unroll 4
    for (int round = 0; round < ROUNDS; round++) {
#pragma GCC unroll 8
        for (int i = 0; i < VL / 2; i++) {
            y[2 * i] = ZIP_LOW(x[i], x[i + VL / 2]);
            y[2 * i + 1] = ZIP_HIGH(x[i], x[i + VL / 2]);
        }
#pragma GCC unroll 16
        for (int i = 0; i < VL; i++) x[i] = y[i];
    }
#undef ZIP_LOW
#undef ZIP_HIGH
#pragma GCC unroll 16
    for (int i = 0; i < VL; i++) v_store(to + i * ld_to, x[i]);
}

/* to[j, i] = from[i, j] for i < rows, j < columns. Whole blocks are read and written: `from` must have rows
 * rounded up to VL and columns rounded up to VL readable, `to` likewise writable; the surplus holds whatever
 * the surplus of `from` held. */
static __attribute__((unused)) void transpose(int64_t rows, int64_t columns, const real *from,
                                              int64_t ld_from, real *to, int64_t ld_to)
{
    for (int64_t i = 0; i < rows; i += VL)
        for (int64_t j = 0; j < columns; j += VL)
            transpose_block(from + i * ld_from + j, ld_from, to + j * ld_to + i, ld_to);
}

#endif
