/* Softmax attention forward on CUDA: a block per 64 queries of a head, keys in tiles of 64 with a running
 * maximum. Scores never leave the registers. */
#ifndef BLURRY_KERNELS_ATTENTION_CUDA_FORWARD_CUH
#define BLURRY_KERNELS_ATTENTION_CUDA_FORWARD_CUH
#include "kernels/attention/attention.h"
#include "kernels/cuda_tile.h"

#define LOG2_E 1.44269504088896340736f
#define LN_2   0.69314718055994530942f

template <typename T> struct attention_view {
    const T *q, *k, *v, *o, *d_o;
    const float *cache_k, *cache_v; /* NULL: nothing carried */
    const int64_t *position;
    int64_t length, heads, heads_kv, K, V, window, capacity;
    float scale;
};

/* Tokens that sequence b has seen before the call. */
template <typename T> static __device__ inline int64_t attention_before(const attention_view<T> &a, int64_t b)
{
    return a.cache_k && a.position ? a.position[b] : 0;
}

/* First absolute position that the query at absolute position p may see; `oldest` is the first still kept. */
template <typename T>
static __device__ inline int64_t attention_from(const attention_view<T> &a, int64_t p, int64_t oldest)
{
    return a.window > 0 ? max(oldest, p - a.window + 1) : oldest;
}

/* A tile of keys or values at absolute positions p0 .. p0+63, zero outside oldest .. seen + length - 1. Width
 * is that of a token and head, 64 columns from `column` are loaded. */
template <typename T, bool CACHED>
static __device__ inline void attention_tokens(T *tile, const attention_view<T> &a, const T *own,
                                               const float *ring, int64_t b, int64_t g, int64_t width,
                                               int64_t column, int64_t p0, int64_t seen, int64_t oldest)
{
    int columns = (int)min(width - column, (int64_t)TILE);
    int64_t stride = a.heads_kv * width;
    if constexpr (!CACHED)
        tile_load_async(tile, own + ((b * a.length + p0) * a.heads_kv + g) * width + column, stride,
                        (int)min(a.length - p0, (int64_t)TILE), columns);
    else for (int unit = (int)threadIdx.x; unit < TILE * TILE / 8; unit += TILE_THREADS) {
        int r = unit / 8, c = unit % 8 * 8;
        int64_t p = p0 + r;
        bool valid = p >= oldest && p < seen + a.length, carried = p < seen;
        const T *mine = own + ((b * a.length + p - seen) * a.heads_kv + g) * width + column;
        const float *old = ring + ((b * a.capacity + (valid ? p % a.capacity : 0)) * a.heads_kv + g) * width + column;
        float x[8];
#pragma unroll
        for (int i = 0; i < 8; i++)
            x[i] = !valid || c + i >= columns ? 0 : carried ? old[c + i] : cuda_load(mine + c + i);
        store_eight(tile + r * tile_of<T>::LD + c, x);
    }
}

/* One step of the running softmax: scores become weights, out and total are brought to the new maximum. */
template <int VB>
static __device__ inline void attention_soften(strip &scores, strip *out, float most[2], float total[2])
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float top = most[half], sum = 0;
#pragma unroll
        for (int n = 0; n < 8; n++) top = fmaxf(top, fmaxf(scores.x[n][2 * half], scores.x[n][2 * half + 1]));
        top = fmaxf(top, __shfl_xor_sync(CUDA_FULL_WARP, top, 1));
        top = fmaxf(top, __shfl_xor_sync(CUDA_FULL_WARP, top, 2));
        float base = top == -INFINITY ? 0 : top, fade = exp2f(most[half] - base);
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int e = 2 * half; e < 2 * half + 2; e++) {
                scores.x[n][e] = exp2f(scores.x[n][e] - base);
                sum += scores.x[n][e];
            }
        most[half] = top;
        total[half] = total[half] * fade + sum;
#pragma unroll
        for (int v = 0; v < VB; v++)
#pragma unroll
            for (int n = 0; n < 8; n++) out[v].x[n][2 * half] *= fade, out[v].x[n][2 * half + 1] *= fade;
    }
}

/* KB, VB: blocks of 64 key and value channels a block holds; KB 0: any number of key channels, loaded anew
 * for every tile. Grid: query tiles, batch * heads, groups of VB * 64 value channels. */
template <typename T, int KB, int VB, bool CACHED>
__global__ void __launch_bounds__(TILE_THREADS) attention_forward_kernel(attention_view<T> a, T *o, float *lse)
{
    const int SIZE = tile_of<T>::SIZE, KT = KB ? KB : 1;
    const bool AHEAD = sizeof(T) == 2 && !CACHED && KB > 0; /* the next tile loads while this one is used */
    CUDA_DYNAMIC_SHARED(T, tq);
    T *room = tq + KT * SIZE, *stage = room + (sizeof(T) == 4 ? SIZE : 0);
    int64_t tile = gridDim.x - 1 - blockIdx.x, t0 = tile * TILE; /* the longest first */
    int64_t b = blockIdx.y / a.heads, h = blockIdx.y % a.heads, g = h / (a.heads / a.heads_kv);
    int64_t value = (int64_t)blockIdx.z * VB * TILE, seen = attention_before(a, b);
    int64_t oldest = CACHED ? max((int64_t)0, seen - a.capacity) : 0;
    int64_t count = min(a.length - t0, (int64_t)TILE), last = seen + t0 + count - 1;
    const T *q = a.q + ((b * a.length + t0) * a.heads + h) * a.K;
    int warp_row = 16 * tile_warp() + tile_lane() / 4;
    float most[2] = {-INFINITY, -INFINITY}, total[2] = {0, 0}, scale = a.scale * LOG2_E;
    strip out[VB];
#pragma unroll
    for (int v = 0; v < VB; v++) strip_zero(out[v]);
    auto load = [&](int64_t p0, T *to) {
#pragma unroll
        for (int k = 0; k < KB; k++)
            attention_tokens<T, CACHED>(to + k * SIZE, a, a.k, a.cache_k, b, g, a.K, k * TILE, p0, seen, oldest);
#pragma unroll
        for (int v = 0; v < VB; v++)
            attention_tokens<T, CACHED>(to + (KT + v) * SIZE, a, a.v, a.cache_v, b, g, a.V, value + v * TILE, p0,
                                        seen, oldest);
        copy_async_commit();
    };
    int64_t begin = attention_from(a, seen + t0, oldest) / TILE * TILE;
#pragma unroll
    for (int k = 0; k < KB; k++)
        tile_load_async(tq + k * SIZE, q + k * TILE, a.heads * a.K, (int)count,
                        (int)min(a.K - k * TILE, (int64_t)TILE));
    load(begin, stage);
    for (int64_t p0 = begin, turn = 0; p0 <= last; p0 += TILE, turn ^= AHEAD) {
        T *tk = stage + turn * (KT + VB) * SIZE, *tv = tk + KT * SIZE;
        strip scores;
        strip_zero(scores);
        if (AHEAD && p0 + TILE <= last) {
            load(p0 + TILE, stage + (turn ^ 1) * (KT + VB) * SIZE);
            copy_async_wait<1>();
        } else
            copy_async_wait<0>();
        __syncthreads();
#pragma unroll
        for (int k = 0; k < KB; k++) tile_product<false, true>(scores, tq + k * SIZE, tk + k * SIZE);
        if (KB == 0)
            for (int64_t k = 0; k < a.K; k += TILE) {
                tile_load_async(tq, q + k, a.heads * a.K, (int)count, (int)min(a.K - k, (int64_t)TILE));
                attention_tokens<T, CACHED>(tk, a, a.k, a.cache_k, b, g, a.K, k, p0, seen, oldest);
                copy_async_commit();
                copy_async_wait<0>();
                __syncthreads();
                tile_product<false, true>(scores, tq, tk);
                __syncthreads();
            }
        bool inside = p0 + TILE - 1 <= seen + t0 && attention_from(a, last, oldest) <= p0;
        strip_each(scores, [&](int r, int c, float &x) {
            int64_t at = seen + t0 + r, p = p0 + c;
            x = inside || (p <= at && p >= attention_from(a, at, oldest)) ? x * scale : -INFINITY;
        });
        attention_soften<VB>(scores, out, most, total);
#pragma unroll
        for (int v = 0; v < VB; v++) strip_product<false>(out[v], scores, tv + v * SIZE, room);
        __syncthreads();
        if (!AHEAD && p0 + TILE <= last) load(p0 + TILE, stage);
    }
    for (int half = 0; half < 2; half++) {
        total[half] += __shfl_xor_sync(CUDA_FULL_WARP, total[half], 1);
        total[half] += __shfl_xor_sync(CUDA_FULL_WARP, total[half], 2);
        int r = warp_row + 8 * half;
        if (lse && blockIdx.z == 0 && tile_lane() % 4 == 0 && r < count)
            lse[blockIdx.y * a.length + t0 + r] = most[half] * LN_2 + logf(total[half]);
        float inverse = 1 / total[half];
#pragma unroll
        for (int v = 0; v < VB; v++)
            for (int n = 0; n < 8; n++) out[v].x[n][2 * half] *= inverse, out[v].x[n][2 * half + 1] *= inverse;
    }
    T *to = o + ((b * a.length + t0) * a.heads + h) * a.V + value;
#pragma unroll
    for (int v = 0; v < VB; v++)
        strip_to_memory(out[v], to + v * TILE, a.heads * a.V, (int)count,
                        (int)min(a.V - value - v * TILE, (int64_t)TILE), 1);
}

/* ---- the ring ---- */

/* Puts the call's own tokens, at most `capacity` of the last, into the ring. One thread per element. */
template <typename T>
__global__ void attention_store(const T *own, float *ring, const int64_t *position, int64_t length,
                                int64_t capacity, int64_t row, int64_t count)
{
    int64_t kept = min(length, capacity), e = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (e >= count) return;
    int64_t c = e % row, t = length - kept + e / row % kept, b = e / row / kept, seen = position ? position[b] : 0;
    ring[(b * capacity + (seen + t) % capacity) * row + c] = cuda_load(own + (b * length + t) * row + c);
}

/* ---- few queries over many carried tokens ---- */
enum { STEP_THREADS = 256, STEP_SPLITS = 16, STEP_MOST = 4 };

/* One query over a share of its keys. Partial results [queries, splits, V + 2]: weighted values, maximum, sum.
 * Grid: splits, batch * length * heads. Shared: q [K], weights [256], sums [groups * V]. */
template <typename T> __global__ void attention_step(attention_view<T> a, float *partial)
{
    CUDA_DYNAMIC_SHARED(float, shared);
    float *query = shared, *weight = query + a.K, *sums = weight + STEP_THREADS;
    __shared__ float room[32];
    int i = (int)threadIdx.x;
    int64_t h = blockIdx.y % a.heads, t = blockIdx.y / a.heads % a.length, b = blockIdx.y / a.heads / a.length;
    int64_t g = h / (a.heads / a.heads_kv), seen = attention_before(a, b), at = seen + t;
    int64_t first = attention_from(a, at, max((int64_t)0, seen - a.capacity)), keys = at - first + 1;
    int64_t share = (keys + gridDim.x - 1) / gridDim.x, from = first + share * blockIdx.x, to = min(from + share, at + 1);
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
