/* Slot attention on CUDA: the weights of the slots, their gradient, and single tokens.
 *     logits_t = scale (e^{g_0 + G_t} q_t K0^T + sum_{u<=t} (q_t.k_u) w_u e^{G_t - G_u})     w = 1 - e^g */
#ifndef BLURRY_KERNELS_SLOTS_CUDA_WEIGHTS_CUH
#define BLURRY_KERNELS_SLOTS_CUDA_WEIGHTS_CUH
#include "kernels/cuda_gated.h"

/* Softmax over the columns of this warp's rows, of which `columns` count. */
static __device__ inline void slots_softmax(strip &x, int columns)
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float top = -INFINITY, sum = 0;
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int e = 2 * half; e < 2 * half + 2; e++) {
                if (8 * n + tile_lane() % 4 * 2 + e % 2 >= columns) x.x[n][e] = -INFINITY;
                top = fmaxf(top, x.x[n][e]);
            }
        top = fmaxf(top, __shfl_xor_sync(CUDA_FULL_WARP, top, 1));
        top = fmaxf(top, __shfl_xor_sync(CUDA_FULL_WARP, top, 2));
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int e = 2 * half; e < 2 * half + 2; e++) sum += x.x[n][e] = __expf(x.x[n][e] - top);
        sum += __shfl_xor_sync(CUDA_FULL_WARP, sum, 1);
        sum += __shfl_xor_sync(CUDA_FULL_WARP, sum, 2);
        float inverse = 1 / sum;
#pragma unroll
        for (int n = 0; n < 8; n++) x.x[n][2 * half] *= inverse, x.x[n][2 * half + 1] *= inverse;
    }
}

/* p: the pass over keys (q the queries, v the keys). Up to 64 slots their weights go to `weights`, else the
 * logits go to `logits`; both are addressed like p.q_total says. Grid: chunks of all heads, blocks of slots.
 */
template <typename T>
__global__ void __launch_bounds__(TILE_THREADS)
    slots_weights(gated<T> p, const T *q, float scale, T *weights, float *logits)
{
    CUDA_DYNAMIC_SHARED(char, shared);
    gated_sums *s = reinterpret_cast<gated_sums *>(shared);
    T *tq = reinterpret_cast<T *>(s + 1), *tk = tq + tile_of<T>::SIZE,
      *th = tk + tile_of<T>::SIZE; /* th: floats */
    gated_place x = gated_here(p);
    int64_t slot = (int64_t)blockIdx.y * TILE, stride = p.heads * p.values;
    gated_keys<T> w = gated_keys_at(p, x, slot);
    int seen = 16 * tile_warp() + 16;
    strip scores, out;
    strip_zero(scores);
    strip_zero(out);
    for (int64_t i = 0; i < p.values; i += TILE) {
        int width = gated_most(p.values, i);
        __syncthreads();
        tile_load(tq, q + x.at * p.values + i, stride, x.rows, width);
        tile_load(tk, p.v + x.at * p.values + i, stride, x.rows, width);
        tile_load(th, p.states + gated_state(p, x, slot) + i, p.row, w.columns, width);
        __syncthreads();
        tile_product<false, true>(scores, tq, tk, 0, width, seen);
        tile_product<false, true>(out, tq, th, 0, width, w.columns);
    }
    bool harsh = gated_sum(s, w.g, w.stride, x.rows, w.columns);
    strip_lower(scores, 1);
    strip_to_tile(scores, tq);
    tile_fill(tk, w.k, w.stride, x.rows, w.columns,
              [&](float y, int r, int c) { return w.key(y) * gated_down(s, r, c, harsh); });
    __syncthreads();
    strip_each(out,
               [&](int r, int c, float &y) { y *= __expf(s->first[c] + (harsh ? GATED_G(s, r, c) : 0)); });
    if (harsh)
        gated_mix_harsh<false>(out, s, tq, tk, w.columns, reinterpret_cast<float *>(th));
    else
        tile_product<false, false>(out, tq, tk, 0, seen, w.columns);
    strip_each(out, [&](int r, int c, float &y) { y *= scale * gated_up(s, r, c, harsh); });
    int64_t at = x.query_at * p.keys + slot;
    if (logits) {
        strip_to_memory(out, logits + at, w.stride, x.rows, w.columns, 1);
        return;
    }
    slots_softmax(out, w.columns);
    strip_to_memory(out, weights + at, w.stride, x.rows, w.columns, 1);
}

enum { ROW_WARPS = 8 };

/* weights = softmax of the rows of logits [rows, S], one warp per row. */
template <typename T>
__global__ void slots_softmax_rows(const float *logits, T *weights, int64_t S, int64_t rows)
{
    int64_t row = (int64_t)blockIdx.x * ROW_WARPS + threadIdx.x / 32;
    if (row >= rows) return;
    const float *x = logits + row * S;
    float top = -INFINITY, sum = 0;
    for (int64_t j = tile_lane(); j < S; j += 32) top = fmaxf(top, x[j]);
    top = warp_max(top);
    for (int64_t j = tile_lane(); j < S; j += 32) sum += __expf(x[j] - top);
    float inverse = 1 / warp_sum(sum);
    for (int64_t j = tile_lane(); j < S; j += 32)
        cuda_store(weights + row * S + j, __expf(x[j] - top) * inverse);
}

/* d = scale weights (d - sum of weights d), one warp per row: gradients of weights become those of logits, in
 * float because they add up to 0. */
template <typename T>
__global__ void slots_softmax_backward(const T *weights, float *d_weights, float scale, int64_t S,
                                       int64_t rows)
{
    int64_t row = (int64_t)blockIdx.x * ROW_WARPS + threadIdx.x / 32;
    if (row >= rows) return;
    const T *p = weights + row * S;
    float *d = d_weights + row * S;
    float mean = 0, total = 0; /* rounded weights do not add up to 1, and d must add up to 0 */
    for (int64_t j = tile_lane(); j < S; j += 32) mean += cuda_load(p + j) * d[j], total += cuda_load(p + j);
    mean = warp_sum(mean) / warp_sum(total);
    for (int64_t j = tile_lane(); j < S; j += 32) d[j] = scale * cuda_load(p + j) * (d[j] - mean);
}

/* ---- a few tokens ---- */
enum { STEP_MOST = 4, STEP_THREADS = 256 };

/* Grid: batch * heads. Shared: logits, keep, write [S] each, sums [groups, V]. */
template <typename T>
__global__ void slots_step(const T *q, const T *k, const T *v, const T *g, T *o, const float *in, float *out,
                           int64_t length, int64_t heads, int64_t K, int64_t V, int64_t S, float scale)
{
    CUDA_DYNAMIC_SHARED(float, weight);
    __shared__ float room[32];
    float *keep = weight + S, *write = keep + S, *sums = write + S;
    int i = (int)threadIdx.x, lane = i % 32, groups = max(1, STEP_THREADS / (int)V);
    int64_t head = blockIdx.x, row = K + V;
    const float *state = in ? in + head * S * row : nullptr;
    out += head * S * row;
    for (int64_t t = 0; t < length; t++, state = out) {
        int64_t at = (head / heads * length + t) * heads + head % heads;
        for (int64_t j = i; j < S; j += STEP_THREADS) {
            float gate = cuda_load(g + at * S + j);
            keep[j] = __expf(gate), write[j] = -expm1f(gate);
        }
        __syncthreads();
        for (int64_t j = i / 32; j < S; j += STEP_THREADS / 32) {
            float dot = 0;
            for (int64_t c = lane; c < K; c += 32) {
                float before = state ? state[j * row + c] : 0;
                float after = keep[j] * before + write[j] * cuda_load(k + at * K + c);
                out[j * row + c] = after;
                dot += after * cuda_load(q + at * K + c);
            }
            dot = warp_sum(dot);
            if (lane == 0) weight[j] = scale * dot;
        }
        __syncthreads();
        float top = -INFINITY, total = 0;
        for (int64_t j = i; j < S; j += STEP_THREADS) top = fmaxf(top, weight[j]);
        top = block_max(top, room);
        for (int64_t j = i; j < S; j += STEP_THREADS) total += weight[j] = __expf(weight[j] - top);
        total = block_sum(total, room); /* its barriers also show the weights to all */
        for (int64_t cell = i; cell < groups * V; cell += STEP_THREADS) {
            int64_t c = cell % V;
            float value = cuda_load(v + at * V + c), sum = 0;
#pragma unroll 4
            for (int64_t j = cell / V; j < S; j += groups) {
                float before = state ? state[j * row + K + c] : 0,
                      after = keep[j] * before + write[j] * value;
                out[j * row + K + c] = after;
                sum += weight[j] * after;
            }
            sums[cell] = sum;
        }
        __syncthreads();
        for (int64_t c = i; c < V; c += STEP_THREADS) {
            float sum = 0;
            for (int n = 0; n < groups; n++) sum += sums[n * V + c];
            cuda_store(o + at * V + c, sum / total);
        }
        __syncthreads();
    }
}

#endif
