/* First kernel of the fused head: logits of a block of labels against a share of the vocabulary, tile by tile
 * with a running softmax; in the same pass the weights' product with the weight matrix is summed up (as
 * attention sums values). */
#ifndef BLURRY_KERNELS_XENT_CUDA_SCAN_CUH
#define BLURRY_KERNELS_XENT_CUDA_SCAN_CUH
#include "kernels/xent/cuda_softmax.cuh"

enum { HITS = 64 };

/* A block's labels, divided among W warps. */
template <int D, int W> struct scan_labels {
    bf16 x[BLOCK_ROWS * shape<D>::STRIDE];
    int target[BLOCK_ROWS];  /* -1: none */
    uint8_t hits[W][HITS];   /* whether one of the warp's targets is among the HIT_COLUMNS columns from
                                HIT_COLUMNS i on, i modulo HITS */
    int64_t row[BLOCK_ROWS]; /* of hidden; -1 beyond the last label; not used where rows are in order */
};

template <int D> struct scan_shared {
    scan_labels<D, WARPS> labels;
    bf16 w[STAGES][TILE * shape<D>::STRIDE];
};

template <int R, int N>
static __device__ inline void scan_write_logits(const xent_block &b, const float (&s)[R][N][4], int64_t label,
                                                int64_t count, int64_t column)
{
    int lane = (int)threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int m = 0; m < R; m++)
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int64_t r = label + m * 16 + i / 2 * 8 + g, c = column + n * 8 + 2 * t + i % 2;
                if (r < count && c < b.a.vocab) ((float *)b.a.logits)[r * b.a.vocab + c] = s[m][n][i];
            }
}

/* Logits s of the warp's labels `row0` .. and columns `column` .. to weights. Whether sums made with weights
 * so far have to be multiplied by `factor`. */
template <bool BACKWARD, bool BEST, int D, int W, int R, int N>
static __device__ inline bool scan_softmax(const xent_block &b, const scan_labels<D, W> &labels,
                                           float (&s)[R][N][4], int column, int64_t row0, int64_t count,
                                           scan_rows<R> &rows, float (&factor)[R][2])
{
    int warp = (int)threadIdx.x / 32;
    float most[R][2];
    if (!BACKWARD && b.a.logits) scan_write_logits(b, s, row0, count, column);
    scan_mask(s, column, (int)b.a.vocab);
    if (BEST) scan_best(s, column, rows);
    bool raised = scan_ahead<BEST>(s, rows, most);
    if (raised) scan_raise(rows, most, factor);
#pragma unroll
    for (int n = 0; n < N; n += HIT_COLUMNS / 8)
        if (labels.hits[warp][(column + n * 8) / HIT_COLUMNS % HITS])
            scan_targets(s, n, labels.target + warp * 16 * R, column + n * 8, b.target_logit + row0, rows);
    scan_weights(s, rows);
    return raised;
}

/* One tile: everything between its arrival in shared memory and its release. row0: the warp's first label. */
template <int D, bool BACKWARD, bool BEST>
static __device__ inline void scan_tile(const xent_block &b, const scan_shared<D> &shared, const bf16 *w,
                                        int tile, int64_t row0, int64_t count, scan_rows<ROW_TILES> &rows,
                                        float (&o)[ROW_TILES][D / 8][4])
{
    const bf16 *x = shared.labels.x + (int)threadIdx.x / 32 * WARP_ROWS * shape<D>::STRIDE;
#pragma unroll 1
    for (int column = tile * TILE; column < (tile + 1) * TILE; column += WARP_TILE) {
        warp_logits s;
        warp_weights p;
        float factor[ROW_TILES][2];
        logits_of<D>(x, w, s);
        bool raised = scan_softmax<BACKWARD, BEST>(b, shared.labels, s, column, row0, count, rows, factor);
        if (BACKWARD) {
            if (raised) scale_rows(o, factor);
            weights_of(s, p);
            product_of<D>(p, w, o);
        }
        w += WARP_TILE * shape<D>::STRIDE;
    }
}

/* The warp's sums, through its rows of x, which nobody reads any more. */
template <int D, int W, int R>
static __device__ inline void scan_sums(const xent_block &b, scan_labels<D, W> &labels, int64_t row0,
                                        const float (&o)[R][D / 8][4])
{
    enum { STRIDE = shape<D>::STRIDE };
    int lane = (int)threadIdx.x % 32, g = lane / 4, t = lane % 4;
    bf16 *room = labels.x + (int)threadIdx.x / 32 * 16 * R * STRIDE;
    __syncwarp();
#pragma unroll
    for (int m = 0; m < R; m++)
#pragma unroll
        for (int n = 0; n < D / 8; n++)
#pragma unroll
            for (int half = 0; half < 2; half++)
                *reinterpret_cast<uint32_t *>(room + (m * 16 + half * 8 + g) * STRIDE + n * 8 + 2 * t) =
                    pack_bf16(o[m][n][2 * half], o[m][n][2 * half + 1]);
    __syncwarp();
    bf16 *to = b.sums + (blockIdx.x * b.padded + row0) * b.a.width;
#pragma unroll
    for (int n = 0; n < 16 * R * (D / 8) / 32; n++) {
        int i = n * 32 + lane, r = i / (D / 8), c = i % (D / 8) * 8;
        if (c < b.a.width)
            *reinterpret_cast<uint4 *>(to + r * b.a.width + c) =
                *reinterpret_cast<const uint4 *>(room + r * STRIDE + c);
    }
}

/* The block's rows of hidden on their way to shared memory. */
template <int D, int W>
static __device__ inline void scan_gather(const xent_args &a, scan_labels<D, W> &labels, int64_t first,
                                          int64_t count)
{
    enum { THREADS = 32 * W, PIECES = D / 8, AT_ONCE = THREADS / PIECES };
    static_assert((int)THREADS >= (int)BLOCK_ROWS, "a thread for each label");
    int thread = (int)threadIdx.x, c = thread % PIECES * 8;
    if (!a.row)
        return rows_async<D, BLOCK_ROWS, THREADS>(labels.x, (const bf16 *)a.hidden + first * a.width,
                                                  (int)a.width, (int)kernel_min(BLOCK_ROWS, count - first),
                                                  thread);
    if (thread < BLOCK_ROWS) labels.row[thread] = first + thread < count ? a.row[first + thread] : -1;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < BLOCK_ROWS / AT_ONCE; i++) {
        int r = i * AT_ONCE + thread / PIECES;
        int64_t row = labels.row[r];
        bool valid = row >= 0 && c < a.width;
        copy_async16(labels.x + r * shape<D>::STRIDE + c,
                     (const bf16 *)a.hidden + (valid ? row * a.width + c : 0), valid);
    }
}

/* The block's targets. Others see them after a barrier. */
template <int D, int W>
static __device__ inline void scan_note_targets(const xent_args &a, scan_labels<D, W> &labels, int64_t first,
                                                int64_t count)
{
    enum { THREADS = 32 * W };
    int thread = (int)threadIdx.x;
    int target = thread < BLOCK_ROWS && first + thread < count ? a.target[first + thread] : -1;
    for (int i = thread; i < W * HITS; i += THREADS) labels.hits[i / HITS][i % HITS] = 0;
    __syncthreads();
    if (thread < BLOCK_ROWS) labels.target[thread] = target;
    if (target >= 0) labels.hits[thread / (BLOCK_ROWS / W)][target / HIT_COLUMNS % HITS] = 1;
}

/* Clears what kernels after this one count in. */
static __device__ inline void scan_clear(const xent_block &b)
{
    int64_t first = ((int64_t)blockIdx.y * gridDim.x + blockIdx.x) * blockDim.x + threadIdx.x,
            all = (int64_t)gridDim.x * gridDim.y * blockDim.x;
    for (int64_t i = first; i < b.a.n_hidden && b.a.row; i += all)
        b.first_label[i] = EMPTY, b.shared_row[i] = 0;
    for (int64_t i = first; i < kernel_blocks(b.a.vocab, BLOCK_ROWS); i += all) b.arrived[i] = 0;
}

/* Grid (splits, blocks of labels). */
template <int D, bool BACKWARD, bool BEST>
__global__ void __launch_bounds__(FUSED_THREADS, shape<D>::BLOCKS) xent_scan_kernel(xent_block b)
{
    CUDA_DYNAMIC_SHARED(scan_shared<D>, shared);
    cuda_wait_previous();
    const xent_args &a = b.a;
    int thread = (int)threadIdx.x;
    int64_t count = label_count(a), first = (int64_t)blockIdx.y * BLOCK_ROWS,
            row0 = first + thread / 32 * WARP_ROWS;
    if (BACKWARD) scan_clear(b);
    if (first >= count) return;
    int tile = (int)(b.tiles * blockIdx.x / b.splits), last = (int)(b.tiles * (blockIdx.x + 1) / b.splits);
    auto fetch = [&](int which, int stage) {
        if (which < last)
            rows_async<D, TILE>(shared->w[stage], (const bf16 *)a.weight + (int64_t)which * TILE * a.width,
                                (int)a.width, (int)a.vocab - which * TILE, thread);
    };
    for (int s = 0; s < STAGES - 1; s++) {
        fetch(tile + s, s);
        if (s == 0) scan_gather(a, shared->labels, first, count);
        copy_async_commit();
    }
    scan_note_targets(a, shared->labels, first, count);
    scan_rows<ROW_TILES> rows;
    scan_start(rows);
    float o[ROW_TILES][D / 8][4] = {};
    for (int stage = 0; tile < last; tile++, stage = (stage + 1) % STAGES) {
        copy_async_wait<STAGES - 2>();
        __syncthreads(); /* the tile has arrived for all, and all are done with the one before */
        fetch(tile + STAGES - 1, (stage + STAGES - 1) % STAGES);
        copy_async_commit();
        scan_tile<D, BACKWARD, BEST>(b, *shared, shared->w[stage], tile, row0, count, rows, o);
    }
    scan_stats(rows, b.stats + blockIdx.x * b.padded + row0);
    if (BACKWARD) scan_sums(b, shared->labels, row0, o);
}

#endif
