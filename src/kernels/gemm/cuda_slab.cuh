/* Pieces of bf16 matrices in shared memory, and their products on the tensor cores. A slab holds ROWS rows of
 * COLUMNS (a multiple of 64) elements; the eight elements of a 16-byte chunk stay together, and chunks change
 * places within their row so that eight rows of one column lie in different banks. */
#ifndef BLURRY_KERNELS_GEMM_CUDA_SLAB_CUH
#define BLURRY_KERNELS_GEMM_CUDA_SLAB_CUH
#include "kernels/cuda.h"

enum { CHUNK = 8 }; /* elements copied at once */

template <int COLUMNS> static __device__ inline int slab_at(int row, int chunk)
{
    return row * COLUMNS + (chunk ^ (row % 8)) * CHUNK;
}

/* The column, in chunks, of all that a thread copies. */
template <int COLUMNS> static __device__ inline int slab_chunk(void)
{
    return (int)threadIdx.x % (COLUMNS / CHUNK);
}

/* Begins copying the first `rows` rows; the rest of the slab, and all of it where the thread's chunk is not
 * `there`, becomes zero. `from`: the thread's chunk in row 0 of a matrix with `pitch` elements per row. */
template <int ROWS, int COLUMNS, int THREADS>
static __device__ inline void slab_copy(bf16 *slab, const bf16 *from, int pitch, int rows, bool there)
{
    const int AT_ONCE = THREADS / (COLUMNS / CHUNK); /* rows */
    static_assert(THREADS % (COLUMNS / CHUNK) == 0 && ROWS % AT_ONCE == 0, "whole rows at once");
    int row = (int)threadIdx.x / (COLUMNS / CHUNK), chunk = slab_chunk<COLUMNS>();
    bf16 *to = slab + slab_at<COLUMNS>(row, chunk);
    from += row * pitch;
    rows = there ? rows - row : 0;
    static_assert(AT_ONCE % 8 == 0, "the chunk has the same place in all rows of a thread");
#pragma unroll
    for (int i = 0; i < ROWS / AT_ONCE; i++, from += AT_ONCE * pitch)
        copy_async16(to + i * AT_ONCE * COLUMNS, from, i * AT_ONCE < rows);
}

/* Fragment of 16 rows and 16 depths at (m, k); TRANSPOSED: stored with the depth as rows. */
template <bool TRANSPOSED, int COLUMNS>
static __device__ inline void slab_left(uint32_t a[4], const bf16 *slab, int m, int k)
{
    int lane = (int)threadIdx.x % 32, i = lane / 8, r = lane % 8;
    if (TRANSPOSED)
        ldmatrix_x4_trans(a, slab + slab_at<COLUMNS>(k + i / 2 * 8 + r, m / CHUNK + i % 2));
    else
        ldmatrix_x4(a, slab + slab_at<COLUMNS>(m + i % 2 * 8 + r, k / CHUNK + i / 2));
}

/* Two fragments, of columns n .. n+7 and n+8 .. n+15, at depth k; TRANSPOSED: stored with the columns as
 * rows. */
template <bool TRANSPOSED, int COLUMNS>
static __device__ inline void slab_right(uint32_t b[4], const bf16 *slab, int n, int k)
{
    int lane = (int)threadIdx.x % 32, i = lane / 8, r = lane % 8;
    if (TRANSPOSED)
        ldmatrix_x4(b, slab + slab_at<COLUMNS>(n + i / 2 * 8 + r, k / CHUNK + i % 2));
    else
        ldmatrix_x4_trans(b, slab + slab_at<COLUMNS>(k + i % 2 * 8 + r, n / CHUNK + i / 2));
}

/* sum [16 M rows, 8 N columns] of this warp, at (m, n), += 16 depths from k on. Slabs of LC and RC columns;
 * LEFT, RIGHT: stored transposed. */
template <bool LEFT, int LC, bool RIGHT, int RC, int M, int N>
static __device__ inline void slab_product(float (&sum)[M][N][4], const bf16 *left, const bf16 *right, int m,
                                           int n, int k)
{
    uint32_t a[M][4], b[4];
#pragma unroll
    for (int i = 0; i < M; i++) slab_left<LEFT, LC>(a[i], left, m + 16 * i, k);
#pragma unroll
    for (int j = 0; j < N; j += 2) {
        slab_right<RIGHT, RC>(b, right, n + 8 * j, k);
#pragma unroll
        for (int i = 0; i < M; i++) {
            mma_bf16(sum[i][j], a[i], b);
            mma_bf16(sum[i][j + 1], a[i], b + 2);
        }
    }
}

#endif
