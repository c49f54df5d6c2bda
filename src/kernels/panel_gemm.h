/* Matrix products of any size out of the register tiles of tile_gemm.h: C[m,n] (+)= A[m,k] B[k,n].
 *
 * B is copied into panels of PANEL columns first, [n / PANEL][k][PANEL] with zeros beyond n, so that a tile
 * reads it in order and one panel stays in the nearest cache while the rows of A pass by. A is read in place,
 * with any strides. A caller cuts its product so that k <= PANEL_DEPTH and the panels fit the second cache;
 * nothing here uses threads. The order of the sums depends on the shape alone. */
#ifndef BLURRY_KERNELS_PANEL_GEMM_H
#define BLURRY_KERNELS_PANEL_GEMM_H
#include "kernels/kernel.h"
#include "kernels/tile_gemm.h"
#include "kernels/transpose.h"

enum {
    PANEL = TILE_VECTORS * VL,
    PANEL_DEPTH = 256,                      /* most of k at a time */
    PANEL_WIDTH = 512 / (int)sizeof(real),  /* columns of B at a time: a whole number of panels */
    PANEL_ROWS = 96,                        /* rows of A at a time: a whole number of tiles */
    PANEL_BLOCK = PANEL_DEPTH * PANEL_WIDTH /* elements of a packed B of these sizes */
};

/* Elements of B [k, n] in panels. */
V_INLINE int64_t panel_elements(int64_t k, int64_t n)
{
    return kernel_blocks(n, PANEL) * PANEL * k;
}

/* B [k, n] as stored, rows ldb apart; read in order, as it comes from farther away than where it goes. */
static __attribute__((unused)) void panel_pack(int64_t k, int64_t n, const real *b, int64_t ldb, real *to)
{
    int64_t whole = n / PANEL * PANEL;
    for (int64_t p = 0; p < k; p++) {
        const real *from = b + p * ldb;
        for (int64_t j = 0; j < whole; j += PANEL)
            for (int i = 0; i < PANEL; i += VL) v_store(to + j * k + p * PANEL + i, v_load(from + j + i));
        for (int64_t j = whole; j < n; j += PANEL)
            for (int i = 0; i < PANEL; i++) to[j * k + p * PANEL + i] = j + i < n ? from[j + i] : 0;
    }
}

/* B [k, n] given as its transpose b [n, k], rows ldb apart. */
static __attribute__((unused)) void panel_pack_transposed(int64_t k, int64_t n, const real *b, int64_t ldb,
                                                          real *to)
{
    int64_t whole = k / VL * VL;
    for (int64_t j = 0; j < n; j += PANEL, to += PANEL * k)
        for (int64_t i = 0; i < PANEL; i += VL) {
            const real *from = b + (j + i) * ldb;
            int64_t rows = kernel_min(VL, n - j - i), done = rows == VL ? whole : 0;
            if (done) transpose(VL, done, from, ldb, to + i, PANEL);
            for (int64_t p = done; p < k; p++)
                for (int64_t r = 0; r < VL; r++) to[p * PANEL + i + r] = r < rows ? from[r * ldb + p] : 0;
        }
}

/* C (+)= the first `columns` of sums [rows, PANEL]. */
V_INLINE void panel_put(int64_t rows, int64_t columns, const real *sum, real *c, int64_t ldc, int accumulate)
{
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++)
            c[i * ldc + j] = accumulate ? c[i * ldc + j] + sum[i * PANEL + j] : sum[i * PANEL + j];
}

/* One tile of TILE_ROWS x PANEL, of which the first `columns` are wanted. */
V_INLINE void panel_tile(int64_t columns, int64_t k, tile_a a, const real *b, real *c, int64_t ldc,
                         int accumulate)
{
    if (columns >= PANEL) {
        for (int i = 0; i < TILE_ROWS; i++) __builtin_prefetch(c + i * ldc, 1);
        tile_block(TILE_ROWS, TILE_VECTORS, k, a, b, PANEL, c, ldc, accumulate);
        return;
    }
    real sum[TILE_ROWS * PANEL];
    if (columns <= VL)
        tile_block(TILE_ROWS, 1, k, a, b, PANEL, sum, PANEL, 0);
    else
        tile_block(TILE_ROWS, TILE_VECTORS, k, a, b, PANEL, sum, PANEL, 0);
    panel_put(TILE_ROWS, columns, sum, c, ldc, accumulate);
}

/* The last rows, fewer than TILE_ROWS. */
static __attribute__((noinline, unused)) void panel_rest(int rows, int64_t columns, int64_t k, tile_a a,
                                                         const real *b, real *c, int64_t ldc, int accumulate)
{
    real sum[TILE_ROWS * PANEL];
    if (columns >= PANEL) {
        tile_rows_rest(rows, PANEL, k, a, b, PANEL, c, ldc, accumulate);
        return;
    }
    tile_rows_rest(rows, columns <= VL ? VL : PANEL, k, a, b, PANEL, sum, PANEL, 0);
    panel_put(rows, columns, sum, c, ldc, accumulate);
}

/* One panel: all m rows of A. */
V_INLINE void panel_column(int64_t m, int64_t columns, int64_t k, tile_a a, const real *b, real *c,
                           int64_t ldc, int accumulate)
{
    int64_t i = 0;
    for (; i + TILE_ROWS <= m; i += TILE_ROWS)
        panel_tile(columns, k, (tile_a){a.at + i * a.row, a.row, a.column}, b, c + i * ldc, ldc, accumulate);
    if (i < m)
        panel_rest((int)(m - i), columns, k, (tile_a){a.at + i * a.row, a.row, a.column}, b, c + i * ldc, ldc,
                   accumulate);
}

/* A as stored. */
static __attribute__((noinline, unused)) void panel_column_rows(int64_t m, int64_t columns, int64_t k,
                                                                tile_a a, const real *b, real *c, int64_t ldc,
                                                                int accumulate, int first)
{
    int64_t i = 0;
    for (; i + TILE_ROWS <= m; i += TILE_ROWS) {
        tile_a at = {a.at + i * a.row, a.row, 1};
        if (first)
            for (int r = 2 * TILE_ROWS; r < 3 * TILE_ROWS; r++)
                for (int64_t p = 0; p < k; p += 64 / (int64_t)sizeof(real))
                    __builtin_prefetch(at.at + r * a.row + p);
        panel_tile(columns, k, at, b, c + i * ldc, ldc, accumulate);
    }
    if (i < m)
        panel_rest((int)(m - i), columns, k, (tile_a){a.at + i * a.row, a.row, 1}, b, c + i * ldc, ldc,
                   accumulate);
}

/* A as the transpose of what is stored. */
static __attribute__((noinline, unused)) void panel_column_transposed(int64_t m, int64_t columns, int64_t k,
                                                                      tile_a a, const real *b, real *c,
                                                                      int64_t ldc, int accumulate)
{
    panel_column(m, columns, k, (tile_a){a.at, 1, a.column}, b, c, ldc, accumulate);
}

/* C[m,n] (+)= A[m,k] B with B in panels; one of A's strides must be 1. */
static __attribute__((unused)) void panel_gemm(int64_t m, int64_t n, int64_t k, tile_a a, const real *b,
                                               real *c, int64_t ldc, int accumulate)
{
    for (int64_t i = 0; i < m; i += PANEL_ROWS) {
        int64_t rows = kernel_min(PANEL_ROWS, m - i);
        tile_a block = {a.at + i * a.row, a.row, a.column};
        for (int64_t j = 0; j < n; j += PANEL)
            if (a.column == 1)
                panel_column_rows(rows, n - j, k, block, b + j * k, c + i * ldc + j, ldc, accumulate, j == 0);
            else
                panel_column_transposed(rows, n - j, k, block, b + j * k, c + i * ldc + j, ldc, accumulate);
    }
}

#endif
