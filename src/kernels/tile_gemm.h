/* Small matrix products for the inside of kernels: operands that live in cache, no packing, no threads.
 *
 *     C[m,n] = A[m,k] B[k,n]   or   C += A B
 *
 * A is read one element at a time, so any row and column stride (also a transpose) costs the same. B and C
 * have their columns contiguous; n must be a multiple of VL and the leading dimensions leave room for it:
 * kernels pad their scratch. `lower` variants touch only k <= row (+ offset): see tile_gemm_lower. */
#ifndef BLURRY_KERNELS_TILE_GEMM_H
#define BLURRY_KERNELS_TILE_GEMM_H
#include "kernels/vector_math.h"

/* Register tile: TILE_ROWS x TILE_VECTORS accumulators. 12 of 16 registers for 16 and 32-byte vectors with
 * FMA, 24 of 32 for AVX-512; without FMA a product needs a register of its own. */
#if BLURRY_VECTOR_BYTES == 64
enum { TILE_ROWS = 6, TILE_VECTORS = 4 };
#elif defined(__FMA__) || defined(__aarch64__)
enum { TILE_ROWS = 6, TILE_VECTORS = 2 };
#else
enum { TILE_ROWS = 4, TILE_VECTORS = 2 };
#endif

/* The tile loops must be unrolled entirely, or the accumulators end up in memory. */
#if defined(__clang__)
#define TILE_UNROLL _Pragma("clang loop unroll(full)")
#else
#define TILE_UNROLL _Pragma("GCC unroll 8")
#endif

typedef struct tile_a {
    const real *at;
    int64_t row, column; /* strides */
} tile_a;

/* One register tile of `rows` x `vectors`, both compile-time constants at every call. */
V_INLINE void tile_block(const int rows, const int vectors, int64_t k, tile_a a, const real *b, int64_t ldb,
                         real *c, int64_t ldc, int accumulate)
{
    vreal sum[TILE_ROWS][TILE_VECTORS];
    TILE_UNROLL
    for (int i = 0; i < rows; i++) TILE_UNROLL
    for (int j = 0; j < vectors; j++) sum[i][j] = v_zero();
    for (int64_t p = 0; p < k; p++) {
        vreal row[TILE_VECTORS];
        TILE_UNROLL
        for (int j = 0; j < vectors; j++) row[j] = v_load(b + p * ldb + j * VL);
        TILE_UNROLL
        for (int i = 0; i < rows; i++) {
            vreal x = v_set1(a.at[i * a.row + p * a.column]);
            TILE_UNROLL
            for (int j = 0; j < vectors; j++) sum[i][j] += x * row[j];
        }
    }
    TILE_UNROLL
    for (int i = 0; i < rows; i++) TILE_UNROLL
    for (int j = 0; j < vectors; j++) {
        real *to = c + i * ldc + j * VL;
        v_store(to, accumulate ? v_load(to) + sum[i][j] : sum[i][j]);
    }
}

/* `rows` (1 .. TILE_ROWS) rows of C, all n columns. */
V_INLINE void tile_rows(const int rows, int64_t n, int64_t k, tile_a a, const real *b, int64_t ldb, real *c,
                        int64_t ldc, int accumulate)
{
    int64_t j = 0;
    for (; j + TILE_VECTORS * VL <= n; j += TILE_VECTORS * VL)
        tile_block(rows, TILE_VECTORS, k, a, b + j, ldb, c + j, ldc, accumulate);
#if BLURRY_VECTOR_BYTES == 64
    for (; j + 2 * VL <= n; j += 2 * VL) tile_block(rows, 2, k, a, b + j, ldb, c + j, ldc, accumulate);
#endif
    for (; j < n; j += VL) tile_block(rows, 1, k, a, b + j, ldb, c + j, ldc, accumulate);
}

static __attribute__((noinline, unused)) void tile_rows_full(int64_t n, int64_t k, tile_a a, const real *b,
                                                             int64_t ldb, real *c, int64_t ldc,
                                                             int accumulate)
{
    tile_rows(TILE_ROWS, n, k, a, b, ldb, c, ldc, accumulate);
}

static __attribute__((noinline, unused)) void tile_rows_rest(int rows, int64_t n, int64_t k, tile_a a,
                                                             const real *b, int64_t ldb, real *c, int64_t ldc,
                                                             int accumulate)
{
    switch (rows) {
    case 1:
        tile_rows(1, n, k, a, b, ldb, c, ldc, accumulate);
        break;
    case 2:
        tile_rows(2, n, k, a, b, ldb, c, ldc, accumulate);
        break;
    case 3:
        tile_rows(3, n, k, a, b, ldb, c, ldc, accumulate);
        break;
#if BLURRY_VECTOR_BYTES == 64 || defined(__FMA__) || defined(__aarch64__)
    case 4:
        tile_rows(4, n, k, a, b, ldb, c, ldc, accumulate);
        break;
    case 5:
        tile_rows(5, n, k, a, b, ldb, c, ldc, accumulate);
        break;
#endif
    default:
        break;
    }
}

V_INLINE void tile_some_rows(int64_t rows, int64_t n, int64_t k, tile_a a, const real *b, int64_t ldb,
                             real *c, int64_t ldc, int accumulate)
{
    if (rows >= TILE_ROWS)
        tile_rows_full(n, k, a, b, ldb, c, ldc, accumulate);
    else
        tile_rows_rest((int)rows, n, k, a, b, ldb, c, ldc, accumulate);
}

/* C[m,n] (+)= A[m,k] B[k,n]. */
static __attribute__((unused)) void tile_gemm(int64_t m, int64_t n, int64_t k, tile_a a, const real *b,
                                              int64_t ldb, real *c, int64_t ldc, int accumulate)
{
    for (int64_t i = 0; i < m; i += TILE_ROWS)
        tile_some_rows(m - i, n, k, (tile_a){a.at + i * a.row, a.row, a.column}, b, ldb, c + i * ldc, ldc,
                       accumulate);
}

/* The same where A is lower triangular (A[i,p] = 0 for p > i, stored as zeros): skips what is zero by whole
 * tiles. */
static __attribute__((unused)) void tile_gemm_lower_a(int64_t m, int64_t n, int64_t k, tile_a a,
                                                      const real *b, int64_t ldb, real *c, int64_t ldc,
                                                      int accumulate)
{
    for (int64_t i = 0; i < m; i += TILE_ROWS) {
        int64_t reach = i + TILE_ROWS < k ? i + TILE_ROWS : k;
        tile_some_rows(m - i, n, reach, (tile_a){a.at + i * a.row, a.row, a.column}, b, ldb, c + i * ldc, ldc,
                       accumulate);
    }
}

/* The same where A is upper triangular (A[i,p] = 0 for p < i, stored as zeros). */
static __attribute__((unused)) void tile_gemm_upper_a(int64_t m, int64_t n, int64_t k, tile_a a,
                                                      const real *b, int64_t ldb, real *c, int64_t ldc,
                                                      int accumulate)
{
    for (int64_t i = 0; i < m && i < k; i += TILE_ROWS)
        tile_some_rows(m - i, n, k - i, (tile_a){a.at + i * a.row + i * a.column, a.row, a.column},
                       b + i * ldb, ldb, c + i * ldc, ldc, accumulate);
}

/* C[m,n] = A B where only columns <= row are wanted: computes whole vectors up to the diagonal, then zeroes
 * every element right of it up to column n, so that C can serve as a lower triangular A. */
static __attribute__((unused)) void tile_gemm_lower_c(int64_t m, int64_t n, int64_t k, tile_a a,
                                                      const real *b, int64_t ldb, real *c, int64_t ldc)
{
    for (int64_t i = 0; i < m; i += TILE_ROWS) {
        int64_t rows = m - i < TILE_ROWS ? m - i : TILE_ROWS;
        int64_t columns = (i + rows + VL - 1) / VL * VL;
        if (columns > n) columns = n;
        tile_some_rows(rows, columns, k, (tile_a){a.at + i * a.row, a.row, a.column}, b, ldb, c + i * ldc,
                       ldc, 0);
        for (int64_t r = i; r < i + rows; r++)
            for (int64_t j = r + 1; j < n; j++) c[r * ldc + j] = 0;
    }
}

#endif
