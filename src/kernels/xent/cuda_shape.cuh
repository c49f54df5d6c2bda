/* What the kernels of the fused head (bf16, narrow models) share: sizes of tiles and the layout of scratch.
 *
 * Labels are taken BLOCK_LABELS at a time by a block, the vocabulary TILE columns at a time. Weights e = 2^(z
 * - k), z = logit log2(e), are kept in bf16 with an integer k per label and tile, the running maximum of z
 * rounded up: a power of two brings tiles of one label to a common scale without rounding them again. */
#ifndef BLURRY_KERNELS_XENT_CUDA_SHAPE_CUH
#define BLURRY_KERNELS_XENT_CUDA_SHAPE_CUH
#include "kernels/cuda_vector.h"
#include "kernels/xent/xent.h"

enum { BLOCK_LABELS = 128, TILE = 64, SPLITS_MOST = 32, PAD = 8 /* elements, against bank conflicts */ };
#define LOG2_E 1.44269504f
#define LN_2   0.69314718f

/* One block of labels; arrays with room for `padded` of them, a multiple of BLOCK_LABELS. */
typedef struct xent_block {
    xent_args a;
    int64_t first, padded; /* labels first .. first + padded of a */
    int64_t tiles, splits; /* of the vocabulary; each split is a run of tiles */
    float4 *stats;         /* [splits, padded]: k, sum of 2^(z - k), largest logit, its index (as bits) */
    float *target_logit;   /* [padded] */
    bf16 *e;               /* [tiles, padded, TILE] */
    int *tile_k;           /* [tiles, padded] */
    int *top_k;            /* [padded]: the largest k of a label */
    bf16 *sums;            /* [splits, padded, width]: sum of 2^(z - k) weight without the target's */
    bf16 *x_scaled;        /* [padded, width]: hidden * grad_scale * 2^top_k / sum of e^logit */
    float *d_x;            /* [all labels, width] */
    float *late_weight;    /* [vocab, width]: what xent_late_kernel adds to d_weight */
    int *first_label, *shared_row; /* [n_hidden]: EMPTY or the first label at a row; 1 where there are more */
} xent_block;

enum { EMPTY = 0x7f7f7f7f };

static __device__ inline int64_t label_count(const xent_args &a)
{
    return a.count ? *a.count : a.labels;
}

/* ROWS rows, `stride` elements apart, to shared rows of D + PAD by THREADS threads; zero from row `rows` and
 * from column `width` (a multiple of 8) on. */
template <int D, int ROWS, int THREADS>
static __device__ inline void rows_async(bf16 *to, const bf16 *from, int64_t stride, int64_t rows,
                                         int64_t width, int thread)
{
    enum { PIECES = D / 8, AT_ONCE = THREADS / PIECES };
    int c = thread % PIECES * 8, r = thread / PIECES;
    to += r * (D + PAD) + c, rows = c < width ? rows : 0;
    const bf16 *at = from + r * stride + c;
#pragma unroll
    for (int i = 0; i < ROWS / AT_ONCE; i++) {
        bool valid = r + i * AT_ONCE < rows;
        copy_async16(to + i * AT_ONCE * (D + PAD), valid ? at + i * AT_ONCE * stride : from, valid);
    }
}

#endif
