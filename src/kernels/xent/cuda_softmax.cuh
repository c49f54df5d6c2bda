/* The running softmax of a warp in the scan of the vocabulary, for R tiles of 16 labels and N of 8 columns.
 *
 * Weights are 2^(z - k), z = logit log2(e). The integer k follows the largest z of the row, but only where
 * that has grown by more than LAG: in float and bf16 weights above 1 are as exact as below, and sums are
 * seldom scaled again. */
#ifndef BLURRY_KERNELS_XENT_CUDA_SOFTMAX_CUH
#define BLURRY_KERNELS_XENT_CUDA_SOFTMAX_CUH
#include "kernels/xent/cuda_shape.cuh"

enum { LAG = 16, HIT_COLUMNS = 32 };

/* Of a warp's labels, row m * 16 + half * 8 + g at [m][half]. */
template <int R> struct scan_rows {
    float k[R][2], sum[R][2]; /* sum: of this lane's columns */
    float best[R][2];         /* largest logit of this lane's columns, and where */
    int best_at[R][2];
};

template <int R> static __device__ inline void scan_start(scan_rows<R> &rows)
{
#pragma unroll
    for (int m = 0; m < R; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            rows.k[m][half] = -1e30f, rows.sum[m][half] = 0;
            rows.best[m][half] = -INFINITY, rows.best_at[m][half] = INT32_MAX;
        }
}

/* Takes the targets among the HIT_COLUMNS columns from tile n0 on, which is column `first`, out of s: their
 * logits are noted and count in the sum only, for their part of the gradient is added where 1 - p is known
 * exactly. */
template <int R, int N>
static __device__ inline void scan_targets(float (&s)[R][N][4], int n0, const int *target, int first,
                                           float *target_logit, scan_rows<R> &rows)
{
    int g = (int)threadIdx.x % 32 / 4, t = (int)threadIdx.x % 4;
#pragma unroll
    for (int m = 0; m < R; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int r = m * 16 + half * 8 + g, at = target[r] - first;
            float z = -INFINITY;
#pragma unroll
            for (int n = 0; n < HIT_COLUMNS / 8; n++)
#pragma unroll
                for (int i = 0; i < 2; i++)
                    if (at == n * 8 + 2 * t + i)
                        z = s[m][n0 + n][2 * half + i], s[m][n0 + n][2 * half + i] = -INFINITY;
            if (at < 0 || at >= HIT_COLUMNS || at / 2 % 4 != t) continue;
            target_logit[r] = z;
            rows.sum[m][half] += exp2_fast(fmaf(z, LOG2_E, -rows.k[m][half]));
        }
}

/* The first largest logit of each row so far, of this lane's columns. */
template <int R, int N>
static __device__ inline void scan_best(const float (&s)[R][N][4], int first, scan_rows<R> &rows)
{
    int column = first + (int)threadIdx.x % 4 * 2;
#pragma unroll
    for (int m = 0; m < R; m++)
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (s[m][n][i] > rows.best[m][i / 2])
                    rows.best[m][i / 2] = s[m][n][i], rows.best_at[m][i / 2] = column + n * 8 + i % 2;
}

/* Brings k up to the largest logit of the quad where that is more than LAG ahead; factor: what sums so far
 * are to be multiplied with. */
template <int R>
static __device__ inline void scan_raise(scan_rows<R> &rows, const float (&largest)[R][2],
                                         float (&factor)[R][2])
{
#pragma unroll
    for (int m = 0; m < R; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float most = largest[m][half];
            most = fmaxf(most, __shfl_xor_sync(CUDA_FULL_WARP, most, 1));
            most = fmaxf(most, __shfl_xor_sync(CUDA_FULL_WARP, most, 2)) * LOG2_E;
            float higher = most > rows.k[m][half] + LAG ? ceilf(most) : rows.k[m][half];
            factor[m][half] = exp2_fast(rows.k[m][half] - higher);
            rows.k[m][half] = higher, rows.sum[m][half] *= factor[m][half];
        }
}

template <int R, int N>
static __device__ inline void scale_rows(float (&o)[R][N][4], const float (&factor)[R][2])
{
#pragma unroll
    for (int m = 0; m < R; m++)
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) o[m][n][i] *= factor[m][i / 2];
}

/* Columns from `vocab` on count for nothing. */
template <int R, int N> static __device__ inline void scan_mask(float (&s)[R][N][4], int column, int vocab)
{
    int t = (int)threadIdx.x % 4;
    if (column + 8 * N <= vocab) return;
#pragma unroll
    for (int m = 0; m < R; m++)
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (column + n * 8 + 2 * t + i % 2 >= vocab) s[m][n][i] = -INFINITY;
}

/* Whether some row's largest logit `most` is so far ahead that k has to follow. With BEST that is the largest
 * so far, which is kept anyway. */
template <bool BEST, int R, int N>
static __device__ inline bool scan_ahead(const float (&s)[R][N][4], const scan_rows<R> &rows,
                                         float (&most)[R][2])
{
    bool ahead = false;
#pragma unroll
    for (int m = 0; m < R; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            most[m][half] = BEST ? rows.best[m][half] : -INFINITY;
#pragma unroll
            for (int n = 0; n < N && !BEST; n++)
                most[m][half] = fmaxf(most[m][half], fmaxf(s[m][n][2 * half], s[m][n][2 * half + 1]));
            ahead = ahead || fmaf(most[m][half], LOG2_E, -rows.k[m][half]) > LAG;
        }
    return __any_sync(CUDA_FULL_WARP, ahead);
}

/* Logits to weights, which are added to the sums. */
template <int R, int N> static __device__ inline void scan_weights(float (&s)[R][N][4], scan_rows<R> &rows)
{
#pragma unroll
    for (int m = 0; m < R; m++)
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                s[m][n][i] = exp2_fast(fmaf(s[m][n][i], LOG2_E, -rows.k[m][i / 2]));
                rows.sum[m][i / 2] += s[m][n][i];
            }
}

/* What the split found about the warp's labels, to `stats` [16 R]. */
template <int R> static __device__ inline void scan_stats(const scan_rows<R> &rows, float4 *stats)
{
    int lane = (int)threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int m = 0; m < R; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float sum = rows.sum[m][half], most = rows.best[m][half];
            sum += __shfl_xor_sync(CUDA_FULL_WARP, sum, 1);
            sum += __shfl_xor_sync(CUDA_FULL_WARP, sum, 2);
            most = fmaxf(most, __shfl_xor_sync(CUDA_FULL_WARP, most, 1));
            most = fmaxf(most, __shfl_xor_sync(CUDA_FULL_WARP, most, 2));
            int place = rows.best[m][half] == most ? rows.best_at[m][half] : INT32_MAX;
            place = min(place, __shfl_xor_sync(CUDA_FULL_WARP, place, 1));
            place = min(place, __shfl_xor_sync(CUDA_FULL_WARP, place, 2));
            if (t == 0)
                stats[m * 16 + half * 8 + g] = make_float4(rows.k[m][half], sum, most, __int_as_float(place));
        }
}

#endif
