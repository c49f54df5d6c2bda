/* The kernels of the head between its products: per label the loss and the gradient of its hidden row, and
 * that gradient spread to rows where labels are not at all rows in order. */
#ifndef BLURRY_KERNELS_XENT_CUDA_JOIN_CUH
#define BLURRY_KERNELS_XENT_CUDA_JOIN_CUH
#include "kernels/xent/cuda_shape.cuh"

enum { JOIN_THREADS = 256, JOIN_AT_ONCE = 16 };

/* Over the lanes of a label. */
template <int LANES> static __device__ inline float label_max(float x)
{
#pragma unroll
    for (int step = LANES / 2; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(CUDA_FULL_WARP, x, step));
    return x;
}

/* One label's splits together; all its lanes have the result. */
struct label_sum {
    float log2_sum;                 /* sum of e^logit = 2^log2_sum */
    float weight[SPLITS_MOST / 16]; /* of this lane's splits lane, lane + LANES ..: 2^(k - log2_sum) */
    int best_at;
};

template <int LANES> static __device__ inline label_sum join_splits(const xent_block &b, int64_t i, bool live)
{
    int lane = (int)threadIdx.x % LANES;
    float4 mine[SPLITS_MOST / LANES];
    label_sum l;
#pragma unroll
    for (int s = 0; s < SPLITS_MOST / LANES; s++) {
        int split = lane + s * LANES;
        mine[s] = live && split < b.splits ? b.stats[split * b.padded + i]
                                           : make_float4(-1e30f, 0, -INFINITY, __int_as_float(INT32_MAX));
    }
    float top = -1e30f, sum = 0, best = -INFINITY;
#pragma unroll
    for (int s = 0; s < SPLITS_MOST / LANES; s++) top = fmaxf(top, mine[s].x), best = fmaxf(best, mine[s].z);
    top = label_max<LANES>(top), best = label_max<LANES>(best);
#pragma unroll
    for (int s = 0; s < SPLITS_MOST / LANES; s++) sum += mine[s].y * exp2f(mine[s].x - top);
    l.log2_sum = top + log2f(lanes_sum(sum, LANES));
    int at = INT32_MAX;
#pragma unroll
    for (int s = 0; s < SPLITS_MOST / LANES; s++) {
        l.weight[s] = lane + s * LANES < b.splits ? exp2f(mine[s].x - l.log2_sum) : 0;
        if (mine[s].z == best) at = min(at, __float_as_int(mine[s].w));
    }
#pragma unroll
    for (int step = LANES / 2; step > 0; step /= 2) at = min(at, __shfl_xor_sync(CUDA_FULL_WARP, at, step));
    l.best_at = at == INT32_MAX ? 0 : at; /* nothing compares among NaNs */
    return l;
}

/* Which label comes first at each hidden row, and whether others follow. */
static __device__ inline void mark_row(const xent_args &a, int64_t label, int *first_label, int *shared_row)
{
    if (atomicMin(first_label + a.row[label], (int)label) != EMPTY) shared_row[a.row[label]] = 1;
}

/* Four columns of JOIN_AT_ONCE splits' sums from split `first` on. */
static __device__ inline void load_sums(const xent_block &b, const bf16 *from, int64_t first, bool live,
                                        uint2 (&raw)[JOIN_AT_ONCE])
{
#pragma unroll
    for (int s = 0; s < JOIN_AT_ONCE; s++)
        if (live && first + s < b.splits)
            raw[s] = *reinterpret_cast<const uint2 *>(from + (first + s) * b.padded * b.a.width);
        else
            raw[s] = make_uint2(0, 0);
}

/* Sum over the splits of weight times sums, `raw` being the first of them. */
template <int LANES>
static __device__ inline void join_sums(const xent_block &b, const label_sum &l, const bf16 *from, bool live,
                                        uint2 (&raw)[JOIN_AT_ONCE], float (&d)[4])
{
    int base = (int)threadIdx.x % 32 / LANES * LANES;
#pragma unroll
    for (int first = 0; first < SPLITS_MOST; first += JOIN_AT_ONCE) {
        if (first >= b.splits) break;
        if (first) load_sums(b, from, first, live, raw);
#pragma unroll
        for (int s = 0; s < JOIN_AT_ONCE; s++) {
            float weight =
                __shfl_sync(CUDA_FULL_WARP, l.weight[(first + s) / LANES], base + (first + s) % LANES);
            float2 low = unpack_bf16(raw[s].x), high = unpack_bf16(raw[s].y);
            d[0] += weight * low.x, d[1] += weight * low.y, d[2] += weight * high.x, d[3] += weight * high.y;
        }
    }
}

/* Four columns of the label's d_hidden, and of its hidden row where the labels' rows are copied. */
static __device__ inline void put_row(const xent_block &b, int64_t label, int64_t column, const float (&d)[4])
{
    const xent_args &a = b.a;
    int64_t at = label * a.width + column;
    if (!a.row) return store_many<4>((bf16 *)a.d_hidden + at, d);
    store_many<4>(b.d_x + at, d);
    *reinterpret_cast<uint2 *>(b.x_copy + at) =
        *reinterpret_cast<const uint2 *>((const bf16 *)a.hidden + a.row[label] * a.width + column);
}

/* D / 4 lanes for a label, four columns each. All loads that wait for nothing go first. */
template <int D, bool BACKWARD> __global__ void __launch_bounds__(JOIN_THREADS) xent_join_kernel(xent_block b)
{
    enum { LANES = D / 4 };
    cuda_wait_previous();
    const xent_args &a = b.a;
    int64_t i = ((int64_t)blockIdx.x * JOIN_THREADS + threadIdx.x) / LANES, count = label_count(a);
    int lane = (int)threadIdx.x % LANES, column = lane * 4;
    bool live = i < count, inside = column < a.width;
    int64_t target = live ? a.target[i] : -1;
    float target_logit = target >= 0 ? b.target_logit[i] : 0, scale = BACKWARD ? (float)*a.grad_scale : 0;
    const bf16 *from = b.sums + i * a.width + column;
    uint2 raw[JOIN_AT_ONCE];
    if (BACKWARD) load_sums(b, from, 0, live && inside, raw);
    float w[4] = {}, d[4] = {};
    if (BACKWARD && target >= 0 && inside)
        load_many<4>((const bf16 *)a.weight + target * a.width + column, w);
    label_sum l = join_splits<LANES>(b, i, live);
    float log_prob = target < 0 ? 0 : target_logit - l.log2_sum * LN_2, missing = -expm1f(log_prob);
    if (live && lane == 0) ((float *)a.log_prob)[i] = log_prob;
    if (live && lane == 0 && a.argmax) a.argmax[i] = l.best_at;
    if constexpr (!BACKWARD) return;
    join_sums<LANES>(b, l, from, live && inside, raw, d);
#pragma unroll
    for (int n = 0; n < 4; n++) d[n] = target >= 0 ? scale * (d[n] - missing * w[n]) : 0;
    if (inside && i < (a.row ? count : a.labels)) put_row(b, i, column, d);
    if (!live || lane) return;
    b.notes[i] = {target < 0 ? INFINITY : l.log2_sum, missing, (int)target, 0};
    if (a.row) mark_row(a, i, b.first_label, b.shared_row);
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

#endif
