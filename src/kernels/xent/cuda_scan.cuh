/* First kernel of the fused head: logits of a block of labels against a share of the vocabulary, tile by tile
 * with a running softmax; weights are kept for the gradients and, in the same pass, their product with the
 * weight matrix is summed up (as attention sums values). */
#ifndef BLURRY_KERNELS_XENT_CUDA_SCAN_CUH
#define BLURRY_KERNELS_XENT_CUDA_SCAN_CUH
#include "kernels/xent/cuda_shape.cuh"

enum {
    SCAN_WARPS = 4,
    SCAN_THREADS = 32 * SCAN_WARPS,
    WARP_LABELS = BLOCK_LABELS / SCAN_WARPS,
    ROW_TILES = WARP_LABELS / 16
};

template <int D> struct scan_shared {
    bf16 x[BLOCK_LABELS][D + PAD];
    bf16 w[2][TILE][D + PAD];
    bf16 e[SCAN_WARPS][WARP_LABELS][TILE + PAD];
    int64_t row[BLOCK_LABELS]; /* of hidden; -1 beyond the last label */
};

/* A warp has WARP_LABELS labels in tiles of 16 rows; of each tile a lane has the rows g and g+8 (half 0, 1),
 * g = lane / 4. */
struct scan_rows {
    float k[ROW_TILES][2], sum[ROW_TILES][2], best[ROW_TILES][2];
    int best_at[ROW_TILES][2];
    int target[ROW_TILES][2]; /* -1: none */
};

/* Logits [labels, TILE] of the warp's labels and the tile in `w`. */
template <int D>
static __device__ inline void scan_logits(const bf16 (*x)[D + PAD], const bf16 (*w)[D + PAD],
                                          float (&s)[ROW_TILES][8][4])
{
    int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int m = 0; m < ROW_TILES; m++)
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) s[m][n][i] = 0;
#pragma unroll
    for (int k = 0; k < D; k += 16) {
        uint32_t a[ROW_TILES][4], b[4];
#pragma unroll
        for (int m = 0; m < ROW_TILES; m++) ldmatrix_x4(a[m], &x[m * 16 + lane % 16][k + lane / 16 * 8]);
#pragma unroll
        for (int n = 0; n < 8; n += 2) {
            ldmatrix_x4(b, &w[n * 8 + lane / 16 * 8 + lane % 8][k + lane / 8 % 2 * 8]);
#pragma unroll
            for (int m = 0; m < ROW_TILES; m++) {
                mma_bf16(s[m][n], a[m], b);
                mma_bf16(s[m][n + 1], a[m], b + 2);
            }
        }
    }
}

/* One row's logits s[n][2 half], s[n][2 half + 1] to weights, its running numbers brought up to date. Returns
 * what its earlier sums are to be multiplied with. first: column of the tile's first logit. */
static __device__ inline float scan_row(float (&s)[8][4], int half, int first, int64_t label,
                                        float *target_logit, float &k, float &sum, float &best, int &best_at,
                                        int target)
{
    int t = (int)threadIdx.x % 4;
    float most = -INFINITY;
#pragma unroll
    for (int n = 0; n < 8; n++) most = fmaxf(most, fmaxf(s[n][2 * half], s[n][2 * half + 1]));
    most = fmaxf(most, __shfl_xor_sync(CUDA_FULL_WARP, most, 1));
    most = fmaxf(most, __shfl_xor_sync(CUDA_FULL_WARP, most, 2));
    if (most > best) { /* rare after the first tiles */
        best = most;
        best_at = INT32_MAX;
#pragma unroll
        for (int n = 7; n >= 0; n--)
#pragma unroll
            for (int i = 1; i >= 0; i--)
                if (s[n][2 * half + i] == most) best_at = first + n * 8 + 2 * t + i;
    }
    int at = target - first; /* of the target in this tile */
    if (at >= 0 && at < TILE)
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int i = 0; i < 2; i++)
                if (at == n * 8 + 2 * t + i) target_logit[label] = s[n][2 * half + i];
    float higher = fmaxf(k, ceilf(most * LOG2_E)), factor = exp2_fast(k - higher);
    k = higher;
    sum *= factor;
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float e = exp2_fast(fmaf(s[n][2 * half + i], LOG2_E, -higher));
            sum += e;
            s[n][2 * half + i] = e;
        }
    if (at >= 0 && at < TILE) /* the target's own part is added where 1 - p is known exactly */
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int i = 0; i < 2; i++)
                if (at == n * 8 + 2 * t + i) s[n][2 * half + i] = 0;
    return factor;
}

/* Weights of the warp as bf16: fragments for the product, and rows of `to` [labels, TILE] in memory. */
static __device__ inline void scan_keep(const float (&s)[ROW_TILES][8][4], uint32_t (&p)[ROW_TILES][4][4],
                                        bf16 (*room)[TILE + PAD], bf16 *to)
{
    int lane = (int)threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int m = 0; m < ROW_TILES; m++)
#pragma unroll
        for (int q = 0; q < 4; q++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int n = 2 * q + i / 2, half = i % 2;
                p[m][q][i] = pack_bf16(s[m][n][2 * half], s[m][n][2 * half + 1]);
                *reinterpret_cast<uint32_t *>(&room[m * 16 + half * 8 + g][n * 8 + 2 * t]) = p[m][q][i];
            }
    __syncwarp();
#pragma unroll
    for (int n = 0; n < WARP_LABELS * (TILE / 8) / 32; n++) {
        int i = n * 32 + lane;
        *reinterpret_cast<uint4 *>(to + i * 8) = *reinterpret_cast<const uint4 *>(&room[i / 8][i % 8 * 8]);
    }
    __syncwarp();
}

/* o [labels, D] += p [labels, TILE] w [TILE, D]. */
template <int D>
static __device__ inline void scan_product(const uint32_t (&p)[ROW_TILES][4][4], const bf16 (*w)[D + PAD],
                                           float (&o)[ROW_TILES][D / 8][4])
{
    int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int q = 0; q < 4; q++)
#pragma unroll
        for (int n = 0; n < D / 8; n += 2) {
            uint32_t b[4];
            ldmatrix_x4_trans(b, &w[q * 16 + lane % 16][n * 8 + lane / 16 * 8]);
#pragma unroll
            for (int m = 0; m < ROW_TILES; m++) {
                mma_bf16(o[m][n], p[m][q], b);
                mma_bf16(o[m][n + 1], p[m][q], b + 2);
            }
        }
}

static __device__ inline void scan_write_logits(const xent_block &b, const float (&s)[ROW_TILES][8][4],
                                                int64_t label, int64_t count, int64_t column)
{
    int lane = (int)threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int m = 0; m < ROW_TILES; m++)
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int64_t r = label + m * 16 + i / 2 * 8 + g, c = column + n * 8 + 2 * t + i % 2;
                if (r < count && c < b.a.vocab) ((float *)b.a.logits)[r * b.a.vocab + c] = s[m][n][i];
            }
}

/* One tile: everything between its arrival in shared memory and its release. `row0` is the warp's first label
 * within the block of labels. */
template <int D, bool BACKWARD>
static __device__ inline void scan_tile(const xent_block &b, scan_shared<D> &shared, int buffer, int64_t tile,
                                        int64_t row0, int64_t count, scan_rows &rows,
                                        float (&o)[ROW_TILES][D / 8][4])
{
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, g = lane / 4, t = lane % 4;
    float s[ROW_TILES][8][4], factor[ROW_TILES][2];
    scan_logits<D>(shared.x + warp * WARP_LABELS, shared.w[buffer], s);
    if (b.a.logits) scan_write_logits(b, s, b.first + row0, count, tile * TILE);
    if ((tile + 1) * TILE > b.a.vocab)
#pragma unroll
        for (int m = 0; m < ROW_TILES; m++)
#pragma unroll
            for (int n = 0; n < 8; n++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    if (tile * TILE + n * 8 + 2 * t + i % 2 >= b.a.vocab) s[m][n][i] = -INFINITY;
    bool moved = false;
#pragma unroll
    for (int m = 0; m < ROW_TILES; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            factor[m][half] = scan_row(s[m], half, (int)tile * TILE, row0 + m * 16 + half * 8 + g,
                                       b.target_logit, rows.k[m][half], rows.sum[m][half], rows.best[m][half],
                                       rows.best_at[m][half], rows.target[m][half]);
            moved = moved || factor[m][half] != 1;
        }
    if (!BACKWARD) return;
    if (t == 0)
#pragma unroll
        for (int m = 0; m < ROW_TILES; m++)
#pragma unroll
            for (int half = 0; half < 2; half++)
                b.tile_k[tile * b.padded + row0 + m * 16 + half * 8 + g] = (int)rows.k[m][half];
    uint32_t p[ROW_TILES][4][4];
    scan_keep(s, p, shared.e[warp], b.e + (tile * b.padded + row0) * TILE);
    if (__any_sync(CUDA_FULL_WARP, moved))
#pragma unroll
        for (int m = 0; m < ROW_TILES; m++)
#pragma unroll
            for (int n = 0; n < D / 8; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) o[m][n][i] *= factor[m][i / 2];
    scan_product<D>(p, shared.w[buffer], o);
}

/* What the split found about the warp's labels. The rows of `room` are the warp's own. */
template <int D, bool BACKWARD>
static __device__ inline void scan_finish(const xent_block &b, bf16 (*room)[D + PAD], int64_t split,
                                          int64_t row0, scan_rows &rows,
                                          const float (&o)[ROW_TILES][D / 8][4])
{
    int lane = (int)threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int m = 0; m < ROW_TILES; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float sum = rows.sum[m][half];
            int at = rows.best_at[m][half];
            sum += __shfl_xor_sync(CUDA_FULL_WARP, sum, 1);
            sum += __shfl_xor_sync(CUDA_FULL_WARP, sum, 2);
            at = min(at, __shfl_xor_sync(CUDA_FULL_WARP, at, 1));
            at = min(at, __shfl_xor_sync(CUDA_FULL_WARP, at, 2));
            if (t == 0)
                b.stats[split * b.padded + row0 + m * 16 + half * 8 + g] =
                    make_float4(rows.k[m][half], sum, rows.best[m][half], __int_as_float(at));
        }
    if (!BACKWARD) return;
    __syncwarp();
#pragma unroll
    for (int m = 0; m < ROW_TILES; m++)
#pragma unroll
        for (int n = 0; n < D / 8; n++)
#pragma unroll
            for (int half = 0; half < 2; half++)
                *reinterpret_cast<uint32_t *>(&room[m * 16 + half * 8 + g][n * 8 + 2 * t]) =
                    pack_bf16(o[m][n][2 * half], o[m][n][2 * half + 1]);
    __syncwarp();
    bf16 *to = b.sums + (split * b.padded + row0) * b.a.width;
#pragma unroll
    for (int n = 0; n < WARP_LABELS * (D / 8) / 32; n++) {
        int i = n * 32 + lane, r = i / (D / 8), c = i % (D / 8) * 8;
        if (c < b.a.width)
            *reinterpret_cast<uint4 *>(to + r * b.a.width + c) =
                *reinterpret_cast<const uint4 *>(&room[r][c]);
    }
}

/* The block's rows of hidden on their way to shared memory. */
template <int D>
static __device__ inline void scan_gather(const xent_args &a, scan_shared<D> &shared, int64_t first,
                                          int64_t count)
{
    enum { PIECES = D / 8, AT_ONCE = SCAN_THREADS / PIECES };
    int thread = (int)threadIdx.x, c = thread % PIECES * 8;
    if (thread < BLOCK_LABELS)
        shared.row[thread] = first + thread < count ? xent_row(&a, first + thread) : -1;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < BLOCK_LABELS / AT_ONCE; i++) {
        int r = i * AT_ONCE + thread / PIECES;
        int64_t row = shared.row[r];
        bool valid = row >= 0 && c < a.width;
        copy_async16(&shared.x[r][c], (const bf16 *)a.hidden + (valid ? row * a.width + c : 0), valid);
    }
}

/* Grid (splits, blocks of labels). */
template <int D, bool BACKWARD>
__global__ void __launch_bounds__(SCAN_THREADS, 2) xent_scan_kernel(xent_block b)
{
    CUDA_DYNAMIC_SHARED(scan_shared<D>, shared);
    const xent_args &a = b.a;
    int64_t count = label_count(a), block_first = (int64_t)blockIdx.y * BLOCK_LABELS;
    int thread = (int)threadIdx.x, warp = thread / 32, g = thread % 32 / 4;
    if (BACKWARD && b.first == 0 && a.row) /* for the kernels after this one */
        for (int64_t i = ((int64_t)blockIdx.y * gridDim.x + blockIdx.x) * SCAN_THREADS + thread;
             i < a.n_hidden; i += (int64_t)gridDim.x * gridDim.y * SCAN_THREADS)
            b.first_label[i] = EMPTY, b.shared_row[i] = 0;
    if (b.first + block_first >= count) return;
    int64_t tile = b.tiles * blockIdx.x / b.splits, last = b.tiles * (blockIdx.x + 1) / b.splits;
    auto fetch = [&](int64_t which, int buffer) {
        rows_async<D, TILE, SCAN_THREADS>(&shared->w[buffer][0][0],
                                          (const bf16 *)a.weight + which * TILE * a.width, a.width,
                                          a.vocab - which * TILE, a.width, thread);
        copy_async_commit();
    };
    scan_gather<D>(a, *shared, b.first + block_first, count);
    fetch(tile, 0);
    scan_rows rows;
    float o[ROW_TILES][D / 8][4];
#pragma unroll
    for (int m = 0; m < ROW_TILES; m++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int64_t label = b.first + block_first + warp * WARP_LABELS + m * 16 + half * 8 + g;
            rows.k[m][half] = -1e30f, rows.sum[m][half] = 0, rows.best[m][half] = -INFINITY;
            rows.best_at[m][half] = INT32_MAX;
            rows.target[m][half] = label < count ? a.target[label] : -1;
        }
#pragma unroll
        for (int n = 0; n < D / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) o[m][n][i] = 0;
    }
    int64_t row0 = block_first + warp * WARP_LABELS;
    for (int buffer = 0; tile < last; tile++, buffer ^= 1) {
        copy_async_wait<0>();
        __syncthreads(); /* the tile has arrived for all, and all are done with the one before */
        if (tile + 1 < last) fetch(tile + 1, buffer ^ 1);
        scan_tile<D, BACKWARD>(b, *shared, buffer, tile, row0, count, rows, o);
    }
    scan_finish<D, BACKWARD>(b, shared->x + warp * WARP_LABELS, blockIdx.x, row0, rows, o);
}

#endif
