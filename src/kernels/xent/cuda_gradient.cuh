/* The kernels after the scan of the fused head: per label the loss and the gradient of its hidden row, then
 * the gradient of the weight from the weights e the scan kept. */
#ifndef BLURRY_KERNELS_XENT_CUDA_GRADIENT_CUH
#define BLURRY_KERNELS_XENT_CUDA_GRADIENT_CUH
#include "kernels/xent/cuda_shape.cuh"

enum { JOIN_THREADS = 256, JOIN_LABELS = JOIN_THREADS / 32 };

/* One label's splits together; every lane has the result. */
struct label_sum {
    float top_k, log2_sum; /* sum of e^logit = 2^log2_sum */
    float weight;          /* of this lane's split: 2^(k - log2_sum) */
    int best_at;
};

static __device__ inline label_sum join_splits(const xent_block &b, int64_t i)
{
    int lane = (int)threadIdx.x % 32;
    float4 mine = make_float4(-1e30f, 0, -INFINITY, __int_as_float(INT32_MAX));
    if (lane < b.splits) mine = b.stats[lane * b.padded + i];
    label_sum l;
    l.top_k = warp_max(mine.x);
    l.log2_sum = l.top_k + log2f(warp_sum(mine.y * exp2f(mine.x - l.top_k)));
    l.weight = lane < b.splits ? exp2f(mine.x - l.log2_sum) : 0;
    float best = warp_max(mine.z);
    int at = mine.z == best ? __float_as_int(mine.w) : INT32_MAX;
    for (int step = 16; step > 0; step /= 2) at = min(at, __shfl_xor_sync(CUDA_FULL_WARP, at, step));
    l.best_at = at == INT32_MAX ? 0 : at; /* nothing compares among NaNs */
    return l;
}

/* The target's place among the kept weights: (p - 1) on the scale of its tile, and that scale not so far
 * below the label's largest that the power of two between them underflows. */
static __device__ inline void put_target(const xent_block &b, int64_t i, int64_t target, const label_sum &l,
                                         float missing)
{
    enum { FAR = 100 };
    int64_t tile = target / TILE;
    int *k = b.tile_k + tile * b.padded + i, top = (int)l.top_k;
    *k = max(*k, top - FAR);
    cuda_store(b.e + (tile * b.padded + i) * TILE + target % TILE, -missing * exp2f(l.log2_sum - (float)*k));
}

/* Gradient of the label's hidden row, and the row times what its weights lack. N columns per lane and step.
 */
static __device__ inline void put_rows(const xent_block &b, int64_t i, int64_t target, const label_sum &l,
                                       float missing, float scale)
{
    enum { N = 4 };
    const xent_args &a = b.a;
    int64_t label = b.first + i;
    float share = scale * exp2f(l.top_k - l.log2_sum);
    for (int64_t base = 0; base < a.width; base += 32 * N) { /* all lanes: there are shuffles */
        int64_t c = base + (int)threadIdx.x % 32 * N;
        bool live = c < a.width;
        const bf16 *from = b.sums + i * a.width + (live ? c : 0);
        float sum[N] = {}, x[N];
#pragma unroll 8
        for (int s = 0; s < b.splits; s++) {
            float weight = __shfl_sync(CUDA_FULL_WARP, l.weight, s);
            load_many<N>(from + s * b.padded * a.width, x);
#pragma unroll
            for (int n = 0; n < N; n++) sum[n] += weight * x[n];
        }
        if (!live) continue;
        if (target >= 0) {
            load_many<N>((const bf16 *)a.weight + target * a.width + c, x);
#pragma unroll
            for (int n = 0; n < N; n++) sum[n] = scale * (sum[n] - missing * x[n]);
        } else {
#pragma unroll
            for (int n = 0; n < N; n++) sum[n] = 0;
        }
        if (a.row)
            store_many<N>(b.d_x + label * a.width + c, sum);
        else
            store_many<N>((bf16 *)a.d_hidden + label * a.width + c, sum);
        load_many<N>((const bf16 *)a.hidden + xent_row(&a, label) * a.width + c, x);
#pragma unroll
        for (int n = 0; n < N; n++) x[n] = target >= 0 ? x[n] * share : 0;
        store_many<N>(b.x_scaled + i * a.width + c, x);
    }
}

/* For labels beyond the last: the product over labels goes on to the end of a step. */
static __device__ inline void clear_rows(const xent_block &b, int64_t i)
{
    int lane = (int)threadIdx.x % 32;
    int64_t width = b.a.width;
    for (int64_t c = lane; c < width; c += 32) {
        b.x_scaled[i * width + c] = to_bf16(0);
        if (!b.a.row && b.first + i < b.a.labels)
            ((bf16 *)b.a.d_hidden)[(b.first + i) * width + c] = to_bf16(0);
    }
    if (lane == 0) b.top_k[i] = 0;
}

/* Which label comes first at each hidden row, and whether others follow. */
static __device__ inline void mark_row(const xent_args &a, int64_t label, int *first_label, int *shared_row)
{
    if (atomicMin(first_label + a.row[label], (int)label) != EMPTY) shared_row[a.row[label]] = 1;
}

/* A warp per label. */
template <bool BACKWARD> __global__ void __launch_bounds__(JOIN_THREADS) xent_join_kernel(xent_block b)
{
    cuda_wait_previous();
    const xent_args &a = b.a;
    int64_t i = (int64_t)blockIdx.x * JOIN_LABELS + threadIdx.x / 32, label = b.first + i,
            count = label_count(a);
    int lane = (int)threadIdx.x % 32;
    if (i >= b.padded) return;
    if (label >= count) {
        if constexpr (BACKWARD) clear_rows(b, i);
        return;
    }
    label_sum l = join_splits(b, i);
    int64_t target = a.target[label];
    float log_prob = target < 0 ? 0 : b.target_logit[i] - l.log2_sum * LN_2, missing = -expm1f(log_prob);
    if (lane == 0) {
        ((float *)a.log_prob)[label] = log_prob;
        a.argmax[label] = l.best_at;
    }
    if constexpr (BACKWARD) {
        put_rows(b, i, target, l, missing, (float)*a.grad_scale);
        if (lane) return;
        b.top_k[i] = (int)l.top_k;
        if (target >= 0) put_target(b, i, target, l, missing);
        if (a.row) mark_row(a, label, b.first_label, b.shared_row);
    }
}

/* d_hidden = the sum of d_x [labels, width] over the labels at a row, in order; 0 where there is none. A
 * thread: N columns. */
template <typename T, int N>
__global__ void __launch_bounds__(JOIN_THREADS)
    xent_spread_kernel(xent_args a, const float *d_x, const int *first_label, const int *shared_row)
{
    cuda_wait_previous();
    int64_t pieces = a.width / N, n = (int64_t)blockIdx.x * JOIN_THREADS + threadIdx.x, r = n / pieces,
            c = (n - r * pieces) * N;
    if (r >= a.n_hidden) return;
    float sum[N] = {}, x[N];
    int64_t label = first_label[r], others = shared_row[r];
    if (label != EMPTY) load_many<N>(d_x + label * a.width + c, sum);
    if (label != EMPTY && others)
        for (int64_t next = label + 1, end = label_count(a); next < end; next++) {
            if (a.row[next] != r) continue;
            load_many<N>(d_x + next * a.width + c, x);
            for (int i = 0; i < N; i++) sum[i] += x[i];
        }
    store_many<N>((T *)a.d_hidden + r * a.width + c, sum);
}

/* d_weight [count] += late_weight; count is a multiple of 8. */
static __global__ void __launch_bounds__(JOIN_THREADS)
    xent_late_kernel(float *d_weight, const float *late_weight, int64_t count)
{
    cuda_wait_previous();
    int64_t at = ((int64_t)blockIdx.x * JOIN_THREADS + threadIdx.x) * 4;
    if (at >= count) return;
    float sum[4], x[4];
    load_many<4>((const float *)d_weight + at, sum);
    load_many<4>(late_weight + at, x);
    for (int i = 0; i < 4; i++) sum[i] += x[i];
    store_many<4>(d_weight + at, sum);
}

/* ---- d_weight += e^T x_scaled ---- */
enum { STEP_LABELS = 64, STEP_TILES = 2, HALVES = 2, STAGES = 5, WEIGHT_THREADS = 256 };

/* One step: some labels and two tiles of the vocabulary. */
template <int D> struct weight_stage {
    bf16 e[STEP_TILES][STEP_LABELS][TILE + PAD];
    bf16 x[STEP_LABELS][D + PAD];
    int k[STEP_TILES][STEP_LABELS], top[STEP_LABELS];
};

template <int D>
static __device__ inline void weight_fetch(const xent_block &b, weight_stage<D> &stage, int64_t tile,
                                           int64_t label)
{
    enum { PIECES = TILE / 8, KS = STEP_LABELS / 4 };
    int thread = (int)threadIdx.x;
#pragma unroll
    for (int n = 0; n < STEP_TILES * STEP_LABELS * PIECES / WEIGHT_THREADS; n++) {
        int i = n * WEIGHT_THREADS + thread, r = i / PIECES % STEP_LABELS, c = i % PIECES * 8;
        int64_t which = tile + i / (PIECES * STEP_LABELS);
        bool valid = which < b.tiles;
        copy_async16(&stage.e[which - tile][r][c],
                     b.e + ((valid ? which : tile) * b.padded + label + r) * TILE + c, valid);
    }
    const bf16 *x = b.x_scaled + label * b.a.width;
    rows_async<D, STEP_LABELS, WEIGHT_THREADS>(&stage.x[0][0], x, b.a.width, STEP_LABELS, b.a.width, thread);
    int at = thread % KS * 4, t = thread / KS;
    if (t < STEP_TILES && tile + t < b.tiles)
        copy_async16(stage.k[t] + at, b.tile_k + (tile + t) * b.padded + label + at, true);
    else if (t == STEP_TILES)
        copy_async16(stage.top + at, b.top_k + label + at, true);
}

/* 2^(k - top) of labels i, i+1 as a pair of bf16. */
static __device__ inline uint32_t weight_scale(const int *k, const int *top, int i)
{
    int2 at = *reinterpret_cast<const int2 *>(k + i), most = *reinterpret_cast<const int2 *>(top + i);
    return (uint32_t)max(0, 127 + at.x - most.x) << 7 | (uint32_t)max(0, 127 + at.y - most.y) << 23;
}

/* sum [2 x 16 ids, D / 2 columns] of a warp += the step's labels. */
template <int D>
static __device__ inline void weight_step(const weight_stage<D> &stage, int ids, int columns,
                                          float (&sum)[2][D / 16][4])
{
    int lane = (int)threadIdx.x % 32, t = lane % 4, tile = ids / TILE;
#pragma unroll
    for (int k = 0; k < STEP_LABELS; k += 16) {
        uint32_t a[2][4], b[4], scale[2];
#pragma unroll
        for (int h = 0; h < 2; h++) scale[h] = weight_scale(stage.k[tile], stage.top, k + h * 8 + 2 * t);
#pragma unroll
        for (int m = 0; m < 2; m++) {
            ldmatrix_x4_trans(
                a[m], &stage.e[tile][k + lane / 16 * 8 + lane % 8][ids % TILE + m * 16 + lane / 8 % 2 * 8]);
#pragma unroll
            for (int i = 0; i < 4; i++) a[m][i] = multiply_bf16(a[m][i], scale[i / 2]);
        }
#pragma unroll
        for (int n = 0; n < D / 16; n += 2) {
            ldmatrix_x4_trans(b, &stage.x[k + lane % 16][columns + n * 8 + lane / 16 * 8]);
#pragma unroll
            for (int m = 0; m < 2; m++) {
                mma_bf16(sum[m][n], a[m], b);
                mma_bf16(sum[m][n + 1], a[m], b + 2);
            }
        }
    }
}

/* A warp's sums to their place. All that is to be added to is loaded before the first is stored. */
template <int D>
static __device__ inline void weight_store(const xent_block &b, int64_t ids, int columns, int half,
                                           const float (&sum)[2][D / 16][4])
{
    int lane = (int)threadIdx.x % 32, g = lane / 4, t = lane % 4;
    float *out = (half ? b.late_weight : (float *)b.a.d_weight) + (ids + g) * b.a.width + columns + 2 * t;
    bool add = !half || b.first > 0;
    float2 old[2][D / 16][2];
#pragma unroll
    for (int load = 1; load >= 0; load--)
#pragma unroll
        for (int m = 0; m < 2; m++)
#pragma unroll
            for (int n = 0; n < D / 16; n++)
#pragma unroll
                for (int low = 0; low < 2; low++) {
                    int r = m * 16 + low * 8;
                    bool inside = ids + g + r < b.a.vocab && columns + n * 8 + 2 * t < b.a.width;
                    float2 *at = reinterpret_cast<float2 *>(out + r * b.a.width + n * 8), &x = old[m][n][low];
                    if (load)
                        x = add && inside ? *at : make_float2(0, 0);
                    else if (inside)
                        *at = make_float2(x.x + sum[m][n][2 * low], x.y + sum[m][n][2 * low + 1]);
                }
}

/* Block (tiles / STEP_TILES, HALVES): the first half of the labels is added to d_weight here, the second half
 * is left in late_weight, which xent_late_kernel adds. */
template <int D> __global__ void __launch_bounds__(WEIGHT_THREADS) xent_weight_kernel(xent_block b)
{
    CUDA_DYNAMIC_SHARED(weight_stage<D>, stages);
    int warp = (int)threadIdx.x / 32, ids = warp / 2 * 32, columns = warp % 2 * (D / 2),
        half = (int)blockIdx.y;
    int64_t tile = (int64_t)blockIdx.x * STEP_TILES,
            labels = kernel_min(b.padded, label_count(b.a) - b.first);
    int64_t all = labels > 0 ? kernel_blocks(labels, STEP_LABELS) : 0, step = all * half / HALVES,
            last = all * (half + 1) / HALVES;
    float sum[2][D / 16][4] = {};
    auto fetch = [&](int64_t which, int stage) {
        if (which < last) weight_fetch<D>(b, stages[stage], tile, which * STEP_LABELS);
        copy_async_commit();
    };
    for (int s = 0; s < STAGES - 1; s++) fetch(step + s, s);
    for (int stage = 0; step < last; step++, stage = (stage + 1) % STAGES) {
        copy_async_wait<STAGES - 2>();
        __syncthreads(); /* the step has arrived for all, and all are done with the one before */
        fetch(step + STAGES - 1, (stage + STAGES - 1) % STAGES);
        weight_step<D>(stages[stage], ids, columns, sum);
    }
    weight_store<D>(b, tile * TILE + ids, columns, half, sum);
}

#endif
