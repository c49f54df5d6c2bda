/* The running softmax of a warp in the scan of the vocabulary (cuda_scan.cuh).
 *
 * Weights are 2^(z - k), z = logit log2(e). The integer k follows the largest z of the row, but only where
 * that has grown by more than LAG: in float and bf16 weights above 1 are as exact as below, and sums are
 * seldom scaled again. */
#ifndef BLURRY_KERNELS_XENT_CUDA_SOFTMAX_CUH
#define BLURRY_KERNELS_XENT_CUDA_SOFTMAX_CUH
#include "kernels/xent/cuda_shape.cuh"

enum { LAG = 16 };

/* Of a warp's labels, row m * 16 + half * 8 + g at [m][half]. */
struct scan_rows {
    float k[ROW_TILES][2], sum[ROW_TILES][2]; /* sum: of this lane's columns */
    float best[ROW_TILES][2];                 /* largest logit of this lane's columns, and where */
    int best_at[ROW_TILES][2];
};

static __device__ inline void scan_start(scan_rows &rows)
{
#pragma unroll
    for (int m = 0; m < ROW_TILES; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            rows.k[m][half] = -1e30f, rows.sum[m][half] = 0;
            rows.best[m][half] = -INFINITY, rows.best_at[m][half] = INT32_MAX;
        }
}

/* Takes the targets among columns first .. first + WARP_TILE out of s: their logits are noted and count in
 * the sum only, for their part of the gradient is added where 1 - p is known exactly. */
static __device__ inline void scan_targets(warp_logits &s, const int *target, int first, float *target_logit,
                                           scan_rows &rows)
{
    int g = (int)threadIdx.x % 32 / 4, t = (int)threadIdx.x % 4;
#pragma unroll
    for (int m = 0; m < ROW_TILES; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int r = m * 16 + half * 8 + g, at = target[r] - first;
            float z = -INFINITY;
#pragma unroll
            for (int n = 0; n < WARP_TILE / 8; n++)
#pragma unroll
                for (int i = 0; i < 2; i++)
                    if (at == n * 8 + 2 * t + i) z = s[m][n][2 * half + i], s[m][n][2 * half + i] = -INFINITY;
            if (at < 0 || at >= WARP_TILE || at / 2 % 4 != t) continue;
            target_logit[r] = z;
            rows.sum[m][half] += exp2_fast(fmaf(z, LOG2_E, -rows.k[m][half]));
        }
}

/* The first largest logit of each row so far, of this lane's columns. */
static __device__ inline void scan_best(const warp_logits &s, int first, scan_rows &rows)
{
    int column = first + (int)threadIdx.x % 4 * 2;
#pragma unroll
    for (int m = 0; m < ROW_TILES; m++)
#pragma unroll
        for (int n = 0; n < WARP_TILE / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (s[m][n][i] > rows.best[m][i / 2])
                    rows.best[m][i / 2] = s[m][n][i], rows.best_at[m][i / 2] = column + n * 8 + i % 2;
}

/* Brings k up to the largest logit of the quad where that is more than LAG ahead; factor: what sums so far
 * are to be multiplied with. */
static __device__ inline void scan_raise(scan_rows &rows, const float (&largest)[ROW_TILES][2],
                                         float (&factor)[ROW_TILES][2])
{
#pragma unroll
    for (int m = 0; m < ROW_TILES; m++)
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

template <int N>
static __device__ inline void scale_rows(float (&o)[ROW_TILES][N][4], const float (&factor)[ROW_TILES][2])
{
#pragma unroll
    for (int m = 0; m < ROW_TILES; m++)
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) o[m][n][i] *= factor[m][i / 2];
}
/* Columns from `vocab` on count for nothing. */
static __device__ inline void scan_mask(warp_logits &s, int column, int vocab)
{
    int t = (int)threadIdx.x % 4;
    if (column + WARP_TILE <= vocab) return;
#pragma unroll
    for (int m = 0; m < ROW_TILES; m++)
#pragma unroll
        for (int n = 0; n < WARP_TILE / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (column + n * 8 + 2 * t + i % 2 >= vocab) s[m][n][i] = -INFINITY;
}

/* Whether some row's largest logit `most` is so far ahead that k has to follow. With BEST that is the largest
 * so far, which is kept anyway. */
template <bool BEST>
static __device__ inline bool scan_ahead(const warp_logits &s, const scan_rows &rows,
                                         float (&most)[ROW_TILES][2])
{
    bool ahead = false;
#pragma unroll
    for (int m = 0; m < ROW_TILES; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            most[m][half] = BEST ? rows.best[m][half] : -INFINITY;
#pragma unroll
            for (int n = 0; n < WARP_TILE / 8 && !BEST; n++)
                most[m][half] = fmaxf(most[m][half], fmaxf(s[m][n][2 * half], s[m][n][2 * half + 1]));
            ahead = ahead || fmaf(most[m][half], LOG2_E, -rows.k[m][half]) > LAG;
        }
    return __any_sync(CUDA_FULL_WARP, ahead);
}

/* Logits to weights, which are added to the sums. */
static __device__ inline void scan_weights(warp_logits &s, scan_rows &rows)
{
#pragma unroll
    for (int m = 0; m < ROW_TILES; m++)
#pragma unroll
        for (int n = 0; n < WARP_TILE / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                s[m][n][i] = exp2_fast(fmaf(s[m][n][i], LOG2_E, -rows.k[m][i / 2]));
                rows.sum[m][i / 2] += s[m][n][i];
            }
}

/* What the split found about the warp's labels, to `stats` [WARP_ROWS]. */
static __device__ inline void scan_stats(const scan_rows &rows, float4 *stats)
{
    int lane = (int)threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int m = 0; m < ROW_TILES; m++)
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
