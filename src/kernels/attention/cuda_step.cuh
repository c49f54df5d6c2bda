/* Softmax attention on CUDA where sequences are continued: the ring of carried tokens, and few queries over
 * many of them. */
#ifndef BLURRY_KERNELS_ATTENTION_CUDA_STEP_CUH
#define BLURRY_KERNELS_ATTENTION_CUDA_STEP_CUH
#include "kernels/attention/cuda_forward.cuh"

/* ---- the ring ---- */

/* Puts the call's own tokens, at most `capacity` of the last, into the ring. One thread per element. */
template <typename T>
__global__ void attention_store(const T *own, float *ring, const int64_t *position, int64_t length,
                                int64_t capacity, int64_t row, int64_t count)
{
    int64_t kept = min(length, capacity), e = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (e >= count) return;
    int64_t c = e % row, t = length - kept + e / row % kept, b = e / row / kept,
            seen = position ? position[b] : 0;
    ring[(b * capacity + (seen + t) % capacity) * row + c] = cuda_load(own + (b * length + t) * row + c);
}

/* ---- few queries over many carried tokens ---- */
enum { STEP_THREADS = 256, STEP_SPLITS = 16, STEP_MOST = 4 };

/* One query over a share of its keys. Partial results [queries, splits, V + 2]: weighted values, maximum,
 * sum. Grid: splits, batch * length * heads. Shared: q [K], weights [256], sums [groups * V]. */
template <typename T> __global__ void attention_step(attention_view<T> a, float *partial)
{
    CUDA_DYNAMIC_SHARED(float, shared);
    float *query = shared, *weight = query + a.K, *sums = weight + STEP_THREADS;
    __shared__ float room[32];
    int i = (int)threadIdx.x;
    int64_t h = blockIdx.y % a.heads, t = blockIdx.y / a.heads % a.length,
            b = blockIdx.y / a.heads / a.length;
    int64_t g = h / (a.heads / a.heads_kv), seen = attention_before(a, b), at = seen + t;
    int64_t first = attention_from(a, at, max((int64_t)0, seen - a.capacity)), keys = at - first + 1;
    int64_t share = (keys + gridDim.x - 1) / gridDim.x, from = first + share * blockIdx.x,
            to = min(from + share, at + 1);
    int groups = max(1, STEP_THREADS / (int)a.V);
    for (int64_t c = i; c < a.K; c += STEP_THREADS)
        query[c] = cuda_load(a.q + ((b * a.length + t) * a.heads + h) * a.K + c) * a.scale * LOG2_E;
    for (int64_t c = i; c < groups * a.V; c += STEP_THREADS) sums[c] = 0;
    __syncthreads();
    float most = -INFINITY, total = 0;
    for (int64_t p0 = from; p0 < to; p0 += STEP_THREADS) {
        int64_t p = p0 + i;
        float score = -INFINITY;
        if (p < to) {
            score = 0;
            const float *old = a.cache_k + ((b * a.capacity + p % a.capacity) * a.heads_kv + g) * a.K;
            const T *own = a.k + ((b * a.length + p - seen) * a.heads_kv + g) * a.K;
            if (p < seen)
                for (int64_t c = 0; c < a.K; c++) score += query[c] * old[c];
            else
                for (int64_t c = 0; c < a.K; c++) score += query[c] * cuda_load(own + c);
        }
        float top = fmaxf(most, block_max(score, room)), fade = exp2f(most - top);
        float e = p < to ? exp2f(score - top) : 0;
        weight[i] = e;
        total = total * fade + block_sum(e, room); /* ends with a barrier: weight is there for all */
        most = top;
        int64_t here = min(to - p0, (int64_t)STEP_THREADS);
        for (int64_t cell = i; cell < groups * a.V; cell += STEP_THREADS) {
            int64_t c = cell % a.V;
            float sum = sums[cell] * fade;
            for (int64_t k = cell / a.V; k < here; k += groups) {
                int64_t s = p0 + k;
                float v = s < seen ? a.cache_v[((b * a.capacity + s % a.capacity) * a.heads_kv + g) * a.V + c]
                                   : cuda_load(a.v + ((b * a.length + s - seen) * a.heads_kv + g) * a.V + c);
                sum += weight[k] * v;
            }
            sums[cell] = sum;
        }
        __syncthreads();
    }
    float *mine = partial + (blockIdx.y * (int64_t)gridDim.x + blockIdx.x) * (a.V + 2);
    for (int64_t c = i; c < a.V; c += STEP_THREADS) {
        float sum = 0;
        for (int k = 0; k < groups; k++) sum += sums[k * a.V + c];
        mine[c] = sum;
    }
    if (i == 0) mine[a.V] = most, mine[a.V + 1] = total;
}

/* The shares put together. Grid: queries. */
template <typename T> __global__ void attention_join(const float *partial, T *o, int64_t V, int splits)
{
    const float *mine = partial + blockIdx.x * (int64_t)splits * (V + 2);
    float most = -INFINITY, total = 0;
    for (int s = 0; s < splits; s++) most = fmaxf(most, mine[s * (V + 2) + V]);
    for (int s = 0; s < splits; s++) total += exp2f(mine[s * (V + 2) + V] - most) * mine[s * (V + 2) + V + 1];
    for (int64_t c = threadIdx.x; c < V; c += blockDim.x) {
        float sum = 0;
        for (int s = 0; s < splits; s++) sum += exp2f(mine[s * (V + 2) + V] - most) * mine[s * (V + 2) + c];
        cuda_store(o + blockIdx.x * V + c, sum / total);
    }
}

#endif
