/* What the kernels of the fused head (bf16, narrow models) share: sizes of tiles, the layout of scratch and
 * the products of one warp. On Hopper warp groups multiply instead (cuda_hopper.cu): the same work in other
 * shapes, so what comes between the products is written for R tiles of 16 rows to a warp and N of 8 columns.
 *
 * Two kernels do the work, and neither keeps logits or probabilities in memory: both compute logits of
 * BLOCK_ROWS rows that stay in shared memory against tiles of TILE rows that pass by, turn them into weights
 * and multiply those with the tile again. xent_scan_kernel has labels staying and the vocabulary passing,
 * with a running softmax, for d_hidden; xent_weight_kernel, when the sums are known, the vocabulary staying
 * and labels passing, for d_weight. Each warp has WARP_ROWS rows to itself. */
#ifndef BLURRY_KERNELS_XENT_CUDA_SHAPE_CUH
#define BLURRY_KERNELS_XENT_CUDA_SHAPE_CUH
#include "kernels/cuda_vector.h"
#include "kernels/xent/xent.h"

enum {
    BLOCK_ROWS = 128,
    TILE = 64,
    STAGES = 2, /* tiles in shared memory or on their way there */
    WARP_ROWS = 32,
    WARP_TILE = 32, /* of a tile, what a warp computes at once */
    WARPS = BLOCK_ROWS / WARP_ROWS,
    FUSED_THREADS = 32 * WARPS,
    ROW_TILES = WARP_ROWS / 16,
    SPLITS_MOST = 32,
    PAD = 8 /* elements, against bank conflicts */
};
#define LOG2_E 1.44269504f
#define LN_2   0.69314718f

/* Widths up to D. */
template <int D> struct shape {
    enum {
        STRIDE = D + PAD /* of rows in shared memory */,
        BLOCKS = D == 64 ? 3 : 2 /* to a multiprocessor */
    };
};

/* What the gradient of the weight needs of a label; 16 bytes. */
struct label_note {
    float log2_sum; /* sum of e^logit = 2^log2_sum; infinite where there is no loss */
    float missing;  /* 1 - p of the target */
    int target, unused;
};

typedef struct xent_block {
    xent_args a;
    bool hopper;           /* whether the kernels are those of cuda_hopper.cu */
    int64_t padded;        /* labels, rounded up to BLOCK_ROWS */
    int64_t tiles, splits; /* of the vocabulary; each split is a run of tiles */
    int64_t label_splits;  /* of the labels, for d_weight */
    float4 *stats;         /* [splits, padded]: k, sum of 2^(z - k), largest logit, its index (as bits) */
    float *target_logit;   /* [padded] */
    bf16 *sums;            /* [splits, padded, width]: sum of 2^(z - k) weight without the target's */
    label_note *notes;     /* [padded] */
    const bf16 *x;         /* [labels, width]: the labels' hidden rows */
    bf16 *x_copy;          /* where x is, unless hidden itself will do */
    float *d_x;            /* [labels, width] */
    float *weight_parts;   /* [label_splits, vocab, width] */
    int *arrived;          /* [blocks of the vocabulary] how many of its label_splits are done */
    int *first_label, *shared_row; /* [n_hidden]: EMPTY or the first label at a row; 1 where there are more */
} xent_block;

enum { EMPTY = 0x7f7f7f7f };

static __device__ inline int64_t label_count(const xent_args &a)
{
    return a.count ? *a.count : a.labels;
}

/* ROWS neighbouring rows of `width` elements (a multiple of 8) to shared rows of D + PAD by all threads; zero
 * from row `rows` and from column `width` on. */
template <int D, int ROWS, int THREADS = FUSED_THREADS>
static __device__ inline void rows_async(bf16 *to, const bf16 *from, int width, int rows, int thread)
{
    enum { PIECES = D / 8, AT_ONCE = THREADS / PIECES };
    int c = thread % PIECES * 8, r = thread / PIECES;
    to += r * (D + PAD) + c, rows = c < width ? rows : 0;
#pragma unroll
    for (int i = 0; i < ROWS / AT_ONCE; i++) {
        bool valid = r + i * AT_ONCE < rows;
        copy_async16(to + i * AT_ONCE * (D + PAD), from + (valid ? (r + i * AT_ONCE) * width + c : 0), valid);
    }
}

/* ---- one warp. Of each 16 of its rows a lane has the rows g and g + 8 (half 0, 1), g = lane / 4, and of
 * each 8 columns 2t and 2t + 1, t = lane % 4 ---- */
typedef float warp_logits[ROW_TILES][WARP_TILE / 8][4];
typedef uint32_t warp_weights[ROW_TILES][WARP_TILE / 16][4];

/* s [WARP_ROWS, WARP_TILE] = rows [WARP_ROWS, D] tile^T [D, WARP_TILE] */
template <int D> static __device__ inline void logits_of(const bf16 *rows, const bf16 *tile, warp_logits &s)
{
    enum { STRIDE = shape<D>::STRIDE };
    int lane = (int)threadIdx.x % 32;
    rows += lane % 16 * STRIDE + lane / 16 * 8;
    tile += (lane / 16 * 8 + lane % 8) * STRIDE + lane / 8 % 2 * 8;
#pragma unroll
    for (int m = 0; m < ROW_TILES; m++)
#pragma unroll
        for (int n = 0; n < WARP_TILE / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) s[m][n][i] = 0;
#pragma unroll
    for (int k = 0; k < D; k += 16) {
        uint32_t a[ROW_TILES][4], b[4];
#pragma unroll
        for (int m = 0; m < ROW_TILES; m++) ldmatrix_x4(a[m], rows + m * 16 * STRIDE + k);
#pragma unroll
        for (int n = 0; n < WARP_TILE / 8; n += 2) {
            ldmatrix_x4(b, tile + n * 8 * STRIDE + k);
#pragma unroll
            for (int m = 0; m < ROW_TILES; m++) {
                mma_bf16(s[m][n], a[m], b);
                mma_bf16(s[m][n + 1], a[m], b + 2);
            }
        }
    }
}

/* Weights, in bf16, as left operand of a product. */
template <int R, int Q>
static __device__ inline void weights_of(const float (&s)[R][2 * Q][4], uint32_t (&p)[R][Q][4])
{
#pragma unroll
    for (int m = 0; m < R; m++)
#pragma unroll
        for (int q = 0; q < Q; q++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int n = 2 * q + i / 2, half = i % 2;
                p[m][q][i] = pack_bf16(s[m][n][2 * half], s[m][n][2 * half + 1]);
            }
}

/* o [WARP_ROWS, D] += p [WARP_ROWS, WARP_TILE] tile [WARP_TILE, D] */
template <int D>
static __device__ inline void product_of(const warp_weights &p, const bf16 *tile,
                                         float (&o)[ROW_TILES][D / 8][4])
{
    enum { STRIDE = shape<D>::STRIDE };
    int lane = (int)threadIdx.x % 32;
    tile += lane % 16 * STRIDE + lane / 16 * 8;
#pragma unroll
    for (int q = 0; q < WARP_TILE / 16; q++)
#pragma unroll
        for (int n = 0; n < D / 8; n += 2) {
            uint32_t b[4];
            ldmatrix_x4_trans(b, tile + q * 16 * STRIDE + n * 8);
#pragma unroll
            for (int m = 0; m < ROW_TILES; m++) {
                mma_bf16(o[m][n], p[m][q], b);
                mma_bf16(o[m][n + 1], p[m][q], b + 2);
            }
        }
}

#endif
