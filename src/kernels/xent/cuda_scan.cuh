/* First kernel of the fused head: logits of a block of labels against a share of the vocabulary, tile by tile
 * with a running softmax; in the same pass the weights' product with the weight matrix is summed up (as
 * attention sums values).
 *
 * Weights are 2^(z - k), z = logit log2(e). The integer k follows the largest z of the row, but only where
 * that has grown by more than LAG: in float and bf16 weights above 1 are as exact as below, and sums are
 * seldom scaled again. */
#ifndef BLURRY_KERNELS_XENT_CUDA_SCAN_CUH
#define BLURRY_KERNELS_XENT_CUDA_SCAN_CUH
#include "kernels/xent/cuda_shape.cuh"

enum { LAG = 16 };

template <int D> struct scan_shared {
    bf16 x[BLOCK_ROWS * shape<D>::STRIDE];
    bf16 w[STAGES][TILE * shape<D>::STRIDE];
    weights_room weights[GROUPS * (shape<D>::PARTS - 1) + 1][2]; /* with two parts: of each warp */
    float k[GROUPS * shape<D>::PARTS][WARP_ROWS];
    int best_at[GROUPS * shape<D>::PARTS][WARP_ROWS];
    int target[BLOCK_ROWS];  /* -1: none */
    int64_t row[BLOCK_ROWS]; /* of hidden; -1 beyond the last label */
};

/* Of a warp's labels, row m * 16 + half * 8 + g at [m][half]. */
struct scan_rows {
    float k[ROW_TILES][2], sum[ROW_TILES][2], best[ROW_TILES][2];
};

/* Where a warp stands. */
struct scan_place {
    int warp, group, part;
    int64_t row0; /* the warp's first label */
};

/* The first largest logit `most` of one row, which the quad's lanes share. `first`: the column of s[0][0]. */
static __device__ inline int place_of(const float (&s)[WARP_TILE / 8][4], int half, float most, int first)
{
    int t = (int)threadIdx.x % 4, at = INT32_MAX;
#pragma unroll
    for (int n = WARP_TILE / 8 - 1; n >= 0; n--)
#pragma unroll
        for (int i = 1; i >= 0; i--)
            if (s[n][2 * half + i] == most) at = first + n * 8 + 2 * t + i;
    at = min(at, __shfl_xor_sync(CUDA_FULL_WARP, at, 1));
    return min(at, __shfl_xor_sync(CUDA_FULL_WARP, at, 2));
}

/* One row's logits to weights, its running numbers brought up to date. The target's own weight counts in the
 * sum only: its part of the gradient is added where 1 - p is known exactly. Returns what earlier products are
 * to be multiplied with. */
static __device__ inline float scan_row(float (&s)[WARP_TILE / 8][4], int half, int first, int target,
                                        float *target_logit, int *best_at, float &k, float &sum, float &best)
{
    int t = (int)threadIdx.x % 4;
    float most = -INFINITY, factor = 1;
#pragma unroll
    for (int n = 0; n < WARP_TILE / 8; n++) most = fmaxf(most, fmaxf(s[n][2 * half], s[n][2 * half + 1]));
    most = fmaxf(most, __shfl_xor_sync(CUDA_FULL_WARP, most, 1));
    most = fmaxf(most, __shfl_xor_sync(CUDA_FULL_WARP, most, 2));
    if (__any_sync(CUDA_FULL_WARP, most > best)) {
        int at = place_of(s, half, most, first);
        if (most > best) {
            best = most;
            if (t == 0) *best_at = at;
        }
    }
    if (most * LOG2_E > k + LAG) {
        float higher = ceilf(most * LOG2_E);
        factor = exp2_fast(k - higher);
        k = higher;
        sum *= factor;
    }
    int at = target - first;
    if (target >= 0 && at >= 0 && at < WARP_TILE)
#pragma unroll
        for (int n = 0; n < WARP_TILE / 8; n++)
#pragma unroll
            for (int i = 0; i < 2; i++)
                if (at == n * 8 + 2 * t + i) {
                    *target_logit = s[n][2 * half + i];
                    sum += exp2_fast(fmaf(s[n][2 * half + i], LOG2_E, -k));
                    s[n][2 * half + i] = -INFINITY;
                }
#pragma unroll
    for (int n = 0; n < WARP_TILE / 8; n++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float e = exp2_fast(fmaf(s[n][2 * half + i], LOG2_E, -k));
            sum += e;
            s[n][2 * half + i] = e;
        }
    return factor;
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
static __device__ inline void scale_weights(warp_weights &p, const float (&factor)[ROW_TILES][2])
{
#pragma unroll
    for (int m = 0; m < ROW_TILES; m++)
#pragma unroll
        for (int q = 0; q < WARP_TILE / 16; q++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                p[m][q][i] = multiply_bf16(p[m][q][i], pack_bf16(factor[m][i % 2], factor[m][i % 2]));
}

static __device__ inline void scan_write_logits(const xent_block &b, const warp_logits &s, int64_t label,
                                                int64_t count, int64_t column)
{
    int lane = (int)threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int m = 0; m < ROW_TILES; m++)
#pragma unroll
        for (int n = 0; n < WARP_TILE / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int64_t r = label + m * 16 + i / 2 * 8 + g, c = column + n * 8 + 2 * t + i % 2;
                if (r < count && c < b.a.vocab) ((float *)b.a.logits)[r * b.a.vocab + c] = s[m][n][i];
            }
}

/* Logits of WARP_TILE columns from `column` on, w in shared memory, to weights p. */
template <int D, bool BACKWARD>
static __device__ inline void scan_columns(const xent_block &b, scan_shared<D> &shared, const scan_place &at,
                                           const bf16 *x, const bf16 *w, int column, int64_t count,
                                           scan_rows &rows, warp_weights &p,
                                           float (&o)[ROW_TILES][shape<D>::COLUMNS / 8][4])
{
    int lane = (int)threadIdx.x % 32, g = lane / 4, t = lane % 4;
    warp_logits s;
    logits_of<D>(x, w, s);
    if (!BACKWARD && b.a.logits) scan_write_logits(b, s, at.row0, count, column);
    int vocab = (int)b.a.vocab;
    if (column + WARP_TILE > vocab)
#pragma unroll
        for (int m = 0; m < ROW_TILES; m++)
#pragma unroll
            for (int n = 0; n < WARP_TILE / 8; n++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    if (column + n * 8 + 2 * t + i % 2 >= vocab) s[m][n][i] = -INFINITY;
    float factor[ROW_TILES][2];
    bool moved = false;
#pragma unroll
    for (int m = 0; m < ROW_TILES; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int r = m * 16 + half * 8 + g;
            factor[m][half] = scan_row(s[m], half, column, shared.target[at.group * WARP_ROWS + r],
                                       b.target_logit + at.row0 + r, shared.best_at[at.warp] + r,
                                       rows.k[m][half], rows.sum[m][half], rows.best[m][half]);
            moved = moved || factor[m][half] != 1;
        }
    if (!BACKWARD) return;
    weights_of(s, p);
    if (__any_sync(CUDA_FULL_WARP, moved)) scale_rows(o, factor);
}

/* Two parts: exchanges weights with the other warp of these rows; p becomes that warp's, on a common k. The
 * warp's own are multiplied with their part of the tile here. */
template <int D>
static __device__ inline void scan_exchange(scan_shared<D> &shared, const scan_place &at, const bf16 *w,
                                            scan_rows &rows, warp_weights &p,
                                            float (&o)[ROW_TILES][shape<D>::COLUMNS / 8][4])
{
    int g = (int)threadIdx.x % 32 / 4, t = (int)threadIdx.x % 4;
    warp_weights theirs;
    put_weights(p, shared.weights[at.group][at.part]);
    if (t == 0)
#pragma unroll
        for (int m = 0; m < ROW_TILES; m++)
#pragma unroll
            for (int half = 0; half < 2; half++) shared.k[at.warp][m * 16 + half * 8 + g] = rows.k[m][half];
    meet(at.group);
    float other[ROW_TILES][2];
    bool differ = false;
#pragma unroll
    for (int m = 0; m < ROW_TILES; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            other[m][half] = shared.k[at.warp ^ 1][m * 16 + half * 8 + g];
            differ = differ || other[m][half] != rows.k[m][half];
        }
    bool scaled = __any_sync(CUDA_FULL_WARP, differ);
    if (scaled) {
        float mine[ROW_TILES][2];
#pragma unroll
        for (int m = 0; m < ROW_TILES; m++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float higher = fmaxf(rows.k[m][half], other[m][half]);
                mine[m][half] = exp2_fast(rows.k[m][half] - higher);
                other[m][half] = exp2_fast(other[m][half] - higher);
                rows.k[m][half] = higher, rows.sum[m][half] *= mine[m][half];
            }
        scale_rows(o, mine);
        scale_weights(p, mine);
    }
    int column = at.part * shape<D>::COLUMNS;
    product_of<D>(p, w + at.part * WARP_TILE * shape<D>::STRIDE, column, o);
    get_weights(theirs, shared.weights[at.group][at.part ^ 1]);
    if (scaled) scale_weights(theirs, other);
    product_of<D>(theirs, w + (at.part ^ 1) * WARP_TILE * shape<D>::STRIDE, column, o);
}

/* One tile: everything between its arrival in shared memory and its release. */
template <int D, bool BACKWARD>
static __device__ inline void scan_tile(const xent_block &b, scan_shared<D> &shared, const scan_place &at,
                                        const bf16 *x, const bf16 *w, int tile, int64_t count,
                                        scan_rows &rows, float (&o)[ROW_TILES][shape<D>::COLUMNS / 8][4])
{
    enum { PARTS = shape<D>::PARTS, STRIDE = shape<D>::STRIDE };
    warp_weights p;
#pragma unroll 1
    for (int c = 0; c < TILE; c += WARP_TILE * PARTS) {
        int from = c + at.part * WARP_TILE;
        scan_columns<D, BACKWARD>(b, shared, at, x, w + from * STRIDE, tile * TILE + from, count, rows, p, o);
        if constexpr (BACKWARD && PARTS == 1) product_of<D>(p, w + from * STRIDE, 0, o);
        if constexpr (BACKWARD && PARTS == 2) scan_exchange<D>(shared, at, w, rows, p, o);
    }
}

/* What the split found about the block's labels; of two parts, the first brings both together. */
template <int D>
static __device__ inline void scan_stats(const xent_block &b, scan_shared<D> &shared, const scan_place &at,
                                         int64_t split, const scan_rows &rows)
{
    int lane = (int)threadIdx.x % 32, g = lane / 4, t = lane % 4;
    float4 *room = reinterpret_cast<float4 *>(shared.weights[at.group * (shape<D>::PARTS - 1)][0]);
    float4 found[ROW_TILES][2];
#pragma unroll
    for (int m = 0; m < ROW_TILES; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int r = m * 16 + half * 8 + g;
            float sum = rows.sum[m][half];
            sum += __shfl_xor_sync(CUDA_FULL_WARP, sum, 1);
            sum += __shfl_xor_sync(CUDA_FULL_WARP, sum, 2);
            found[m][half] = make_float4(rows.k[m][half], sum, rows.best[m][half],
                                         __int_as_float(shared.best_at[at.warp][r]));
        }
    if constexpr (shape<D>::PARTS == 2) {
        meet(at.group); /* the weights have been read */
        if (at.part == 1 && t == 0)
#pragma unroll
            for (int m = 0; m < ROW_TILES; m++)
#pragma unroll
                for (int half = 0; half < 2; half++) room[m * 16 + half * 8 + g] = found[m][half];
        meet(at.group);
    }
    if (at.part || t) return;
#pragma unroll
    for (int m = 0; m < ROW_TILES; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int r = m * 16 + half * 8 + g;
            float4 x = found[m][half];
            if constexpr (shape<D>::PARTS == 2) {
                float4 y = room[r];
                float k = fmaxf(x.x, y.x);
                x.y = x.y * exp2_fast(x.x - k) + y.y * exp2_fast(y.x - k), x.x = k;
                bool later = y.z > x.z || (y.z == x.z && __float_as_int(y.w) < __float_as_int(x.w));
                if (later) x.z = y.z, x.w = y.w;
            }
            b.stats[split * b.padded + at.row0 + r] = x;
        }
}

/* The warp's sums, through its part of the rows of x, which nobody reads any more. */
template <int D>
static __device__ inline void scan_sums(const xent_block &b, scan_shared<D> &shared, const scan_place &at,
                                        int64_t split, const float (&o)[ROW_TILES][shape<D>::COLUMNS / 8][4])
{
    enum { COLUMNS = shape<D>::COLUMNS, STRIDE = shape<D>::STRIDE };
    int lane = (int)threadIdx.x % 32, g = lane / 4, t = lane % 4;
    bf16 *room = shared.x + at.group * WARP_ROWS * STRIDE + at.part * COLUMNS;
#pragma unroll
    for (int m = 0; m < ROW_TILES; m++)
#pragma unroll
        for (int n = 0; n < COLUMNS / 8; n++)
#pragma unroll
            for (int half = 0; half < 2; half++)
                *reinterpret_cast<uint32_t *>(room + (m * 16 + half * 8 + g) * STRIDE + n * 8 + 2 * t) =
                    pack_bf16(o[m][n][2 * half], o[m][n][2 * half + 1]);
    __syncwarp();
    bf16 *to = b.sums + (split * b.padded + at.row0) * b.a.width + at.part * COLUMNS;
    int64_t width = b.a.width - at.part * COLUMNS;
#pragma unroll
    for (int n = 0; n < WARP_ROWS * (COLUMNS / 8) / 32; n++) {
        int i = n * 32 + lane, r = i / (COLUMNS / 8), c = i % (COLUMNS / 8) * 8;
        if (c < width)
            *reinterpret_cast<uint4 *>(to + r * b.a.width + c) =
                *reinterpret_cast<const uint4 *>(room + r * STRIDE + c);
    }
}

/* The block's rows of hidden on their way to shared memory, and their targets. */
template <int D>
static __device__ inline void scan_gather(const xent_args &a, scan_shared<D> &shared, int64_t first,
                                          int64_t count)
{
    enum { PIECES = D / 8, AT_ONCE = shape<D>::THREADS / PIECES };
    int thread = (int)threadIdx.x, c = thread % PIECES * 8;
    if (thread < BLOCK_ROWS) {
        bool live = first + thread < count;
        shared.row[thread] = live ? xent_row(&a, first + thread) : -1;
        shared.target[thread] = live ? a.target[first + thread] : -1;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < BLOCK_ROWS / AT_ONCE; i++) {
        int r = i * AT_ONCE + thread / PIECES;
        int64_t row = shared.row[r];
        bool valid = row >= 0 && c < a.width;
        copy_async16(shared.x + r * shape<D>::STRIDE + c,
                     (const bf16 *)a.hidden + (valid ? row * a.width + c : 0), valid);
    }
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
template <int D, bool BACKWARD>
__global__ void __launch_bounds__(shape<D>::THREADS, D == 64 ? 4 : 2) xent_scan_kernel(xent_block b)
{
    CUDA_DYNAMIC_SHARED(scan_shared<D>, shared);
    const xent_args &a = b.a;
    int thread = (int)threadIdx.x, warp = thread / 32;
    int64_t count = label_count(a), first = (int64_t)blockIdx.y * BLOCK_ROWS;
    if (BACKWARD) scan_clear(b);
    if (first >= count) return;
    int tile = (int)(b.tiles * blockIdx.x / b.splits), last = (int)(b.tiles * (blockIdx.x + 1) / b.splits);
    auto fetch = [&](int which, int stage) {
        if (which < last)
            rows_async<D, TILE, shape<D>::THREADS>(shared->w[stage],
                                                   (const bf16 *)a.weight + (int64_t)which * TILE * a.width,
                                                   (int)a.width, (int)a.vocab - which * TILE, thread);
        copy_async_commit();
    };
    scan_gather<D>(a, *shared, first, count);
    for (int s = 0; s < STAGES - 1; s++) fetch(tile + s, s);
    scan_place at = {warp, warp / shape<D>::PARTS, warp % shape<D>::PARTS, 0};
    at.row0 = first + at.group * WARP_ROWS;
    scan_rows rows;
    float o[ROW_TILES][shape<D>::COLUMNS / 8][4] = {};
#pragma unroll
    for (int m = 0; m < ROW_TILES; m++)
#pragma unroll
        for (int half = 0; half < 2; half++)
            rows.k[m][half] = -1e30f, rows.sum[m][half] = 0, rows.best[m][half] = -INFINITY;
    shared->best_at[warp][thread % 32] = INT32_MAX;
    const bf16 *x = shared->x + at.group * WARP_ROWS * shape<D>::STRIDE;
    for (int stage = 0; tile < last; tile++, stage = (stage + 1) % STAGES) {
        copy_async_wait<STAGES - 2>();
        __syncthreads(); /* the tile has arrived for all, and all are done with the one before */
        fetch(tile + STAGES - 1, (stage + STAGES - 1) % STAGES);
        scan_tile<D, BACKWARD>(b, *shared, at, x, shared->w[stage], tile, count, rows, o);
    }
    __syncwarp();
    scan_stats<D>(b, *shared, at, blockIdx.x, rows);
    if (BACKWARD) scan_sums<D>(b, *shared, at, blockIdx.x, o);
}

#endif
