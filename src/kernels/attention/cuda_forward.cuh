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
    else
        for (int unit = (int)threadIdx.x; unit < TILE * TILE / 8; unit += TILE_THREADS) {
            int r = unit / 8, c = unit % 8 * 8;
            int64_t p = p0 + r;
            bool valid = p >= oldest && p < seen + a.length, carried = p < seen;
            const T *mine = own + ((b * a.length + p - seen) * a.heads_kv + g) * width + column;
            const float *old =
                ring + ((b * a.capacity + (valid ? p % a.capacity : 0)) * a.heads_kv + g) * width + column;
            float x[8];
#pragma unroll
            for (int i = 0; i < 8; i++)
                x[i] = !valid || c + i >= columns ? 0 : carried ? old[c + i] : cuda_load(mine + c + i);
            store_eight(tile + r * tile_of<T>::LD + c, x);
        }
}

/* Which keys of a tile the queries of another see: query row r sees columns from max(oldest, r + diagonal -
 * window + 1) to r + diagonal. */
struct attention_mask {
    int diagonal, oldest, window;
    bool inside; /* every query sees every key */
};

template <typename T>
static __device__ inline attention_mask attention_mask_of(const attention_view<T> &a, int64_t query,
                                                          int64_t key, int64_t oldest, int queries)
{
    const int64_t far = 1 << 20;
    attention_mask m;
    m.diagonal = (int)min(query - key, far);
    m.oldest = (int)max(oldest - key, -far);
    m.window = (int)(a.window > 0 ? min(a.window, 2 * far) : 2 * far);
    m.inside = m.diagonal >= TILE - 1 && m.oldest <= 0 && queries - 1 + m.diagonal - m.window + 1 <= 0;
    return m;
}

/* One step of the running softmax: scores become weights, out and total are brought to the new maximum (of
 * the scores before scaling; scale > 0, times log2 e). */
template <int VB>
static __device__ inline void attention_soften(strip &scores, strip *out, float most[2], float total[2],
                                               float scale, const attention_mask &mask)
{
    if (!mask.inside)
        strip_each(scores, [&](int r, int c, float &x) {
            int last = r + mask.diagonal;
            if (c > last || c < max(mask.oldest, last - mask.window + 1)) x = -INFINITY;
        });
    float top[2] = {most[0], most[1]};
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) top[e / 2] = fmaxf(top[e / 2], scores.x[n][e]);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        top[half] = fmaxf(top[half], __shfl_xor_sync(CUDA_FULL_WARP, top[half], 1));
        top[half] = fmaxf(top[half], __shfl_xor_sync(CUDA_FULL_WARP, top[half], 2));
    }
    if (__any_sync(CUDA_FULL_WARP, top[0] > most[0] || top[1] > most[1]))
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float fade = top[half] > most[half] ? exp2_fast((most[half] - top[half]) * scale) : 1;
            most[half] = top[half];
            total[half] *= fade;
#pragma unroll
            for (int v = 0; v < VB; v++)
#pragma unroll
                for (int n = 0; n < 8; n++) out[v].x[n][2 * half] *= fade, out[v].x[n][2 * half + 1] *= fade;
        }
    float base[2] = {most[0] == -INFINITY ? 0 : most[0] * scale, most[1] == -INFINITY ? 0 : most[1] * scale};
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            scores.x[n][e] = exp2_fast(fmaf(scores.x[n][e], scale, -base[e / 2]));
            total[e / 2] += scores.x[n][e];
        }
}

/* Finishes 64 queries: out / total to memory, the denominators' logarithms. */
template <typename T, int VB>
static __device__ inline void attention_finish(const attention_view<T> &a, strip *out, const float most[2],
                                               float total[2], float scale, int64_t b, int64_t h, int64_t t0,
                                               int64_t value, T *o, float *lse)
{
    int count = (int)min(a.length - t0, (int64_t)TILE);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        total[half] += __shfl_xor_sync(CUDA_FULL_WARP, total[half], 1);
        total[half] += __shfl_xor_sync(CUDA_FULL_WARP, total[half], 2);
        int r = 16 * tile_warp() + tile_lane() / 4 + 8 * half;
        if (lse && value == 0 && tile_lane() % 4 == 0 && r < count)
            lse[(b * a.heads + h) * a.length + t0 + r] = most[half] * scale * LN_2 + logf(total[half]);
        float inverse = 1 / total[half];
#pragma unroll
        for (int v = 0; v < VB; v++)
#pragma unroll
            for (int n = 0; n < 8; n++)
                out[v].x[n][2 * half] *= inverse, out[v].x[n][2 * half + 1] *= inverse;
    }
    T *to = o + ((b * a.length + t0) * a.heads + h) * a.V + value;
#pragma unroll
    for (int v = 0; v < VB; v++)
        strip_to_memory(out[v], to + v * TILE, a.heads * a.V, count,
                        (int)min(a.V - value - v * TILE, (int64_t)TILE), 1);
}

/* A barrier among the 128 threads with the same threadIdx.y, which is their group. */
template <int GROUPS> static __device__ inline void attention_meet(void)
{
    if constexpr (GROUPS == 1)
        __syncthreads();
    else
        barrier_named(1 + (int)threadIdx.y, TILE_THREADS);
}

/* How many of 64 channels of a tile a product takes: all of them, zeros and all, where two groups work, since
 * conditions keep loads from being brought forward. */
template <int GROUPS> static __device__ inline int attention_limit(int64_t left)
{
    return GROUPS > 1 ? (int)TILE : (int)min(left, (int64_t)TILE);
}

/* Two groups have gone over different keys for the same queries: the first takes up the second's sums,
 * through shared memory that nobody uses any more. */
template <int VB>
static __device__ inline void attention_merge(strip *out, float most[2], float total[2], float scale,
                                              float *room)
{
    float *mine = room + threadIdx.x;
    __syncthreads();
    if (threadIdx.y == 1) {
#pragma unroll
        for (int half = 0; half < 2; half++)
            mine[2 * half * TILE_THREADS] = most[half], mine[(2 * half + 1) * TILE_THREADS] = total[half];
#pragma unroll
        for (int v = 0; v < VB; v++)
#pragma unroll
            for (int i = 0; i < 32; i++) mine[(4 + 32 * v + i) * TILE_THREADS] = out[v].x[i / 4][i % 4];
    }
    __syncthreads();
    if (threadIdx.y == 1) return;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float other = mine[2 * half * TILE_THREADS], top = fmaxf(most[half], other);
        float fade = most[half] == top ? 1 : exp2_fast((most[half] - top) * scale),
              gain = other == top ? 1 : exp2_fast((other - top) * scale);
        most[half] = top;
        total[half] = total[half] * fade + mine[(2 * half + 1) * TILE_THREADS] * gain;
#pragma unroll
        for (int v = 0; v < VB; v++)
#pragma unroll
            for (int n = 0; n < 8; n++)
#pragma unroll
                for (int e = 2 * half; e < 2 * half + 2; e++)
                    out[v].x[n][e] =
                        out[v].x[n][e] * fade + mine[(4 + 32 * v + 4 * n + e) * TILE_THREADS] * gain;
    }
}

/* KB, VB: blocks of 64 key and value channels a block holds; KB 0: any number of key channels, loaded anew
 * for every tile. GROUPS of 128 threads take the tiles of keys by turns. Grid: query tiles, batch * heads,
 * groups of VB * 64 value channels; with two groups batch * heads, query tiles, so that the longest of all
 * heads come first. */
template <typename T, int KB, int VB, bool CACHED, int GROUPS>
__global__ void __launch_bounds__(TILE_THREADS *GROUPS, GROUPS == 2 ? 2 : 1)
    attention_forward_kernel(attention_view<T> a, T *o, float *lse)
{
    const int SIZE = tile_of<T>::SIZE, KT = KB ? KB : 1;
    /* the next tile loads while this one is used; two groups load its keys and values where the last were */
    const bool AHEAD = sizeof(T) == 2 && !CACHED && KB > 0 && GROUPS == 1;
    CUDA_DYNAMIC_SHARED(T, tq);
    int group = GROUPS == 1 ? 0 : (int)threadIdx.y;
    T *room = tq + KT * SIZE, *stage = room + (sizeof(T) == 4 ? SIZE : 0) + group * (KT + VB) * SIZE;
    int64_t tile =
        GROUPS == 1 ? gridDim.x - 1 - blockIdx.x : gridDim.y - 1 - blockIdx.y; /* the longest first */
    int64_t t0 = tile * TILE, chain = GROUPS == 1 ? blockIdx.y : blockIdx.x;
    int64_t b = chain / a.heads, h = chain % a.heads, g = h / (a.heads / a.heads_kv);
    int64_t value = (int64_t)blockIdx.z * VB * TILE, seen = attention_before(a, b);
    int64_t oldest = CACHED ? max((int64_t)0, seen - a.capacity) : 0;
    int64_t count = min(a.length - t0, (int64_t)TILE), last = seen + t0 + count - 1;
    const T *q = a.q + ((b * a.length + t0) * a.heads + h) * a.K;
    bool flip = a.scale < 0;
    float most[2] = {-INFINITY, -INFINITY}, total[2] = {0, 0}, scale = fabsf(a.scale) * LOG2_E;
    strip out[VB];
#pragma unroll
    for (int v = 0; v < VB; v++) strip_zero(out[v]);
    auto load_keys = [&](int64_t p0, T *to) {
#pragma unroll
        for (int k = 0; k < KB; k++)
            attention_tokens<T, CACHED>(to + k * SIZE, a, a.k, a.cache_k, b, g, a.K, k * TILE, p0, seen,
                                        oldest);
    };
    auto load_values = [&](int64_t p0, T *to) {
#pragma unroll
        for (int v = 0; v < VB; v++)
            attention_tokens<T, CACHED>(to + (KT + v) * SIZE, a, a.v, a.cache_v, b, g, a.V, value + v * TILE,
                                        p0, seen, oldest);
        copy_async_commit();
    };
    auto multiply_values = [&](const strip &scores, const T *tv) {
#pragma unroll
        for (int v = 0; v < VB; v++)
            strip_product<false>(out[v], scores, tv + v * SIZE, room, 0, TILE,
                                 attention_limit<GROUPS>(a.V - value - v * TILE));
    };
    int64_t begin = attention_from(a, seen + t0, oldest) / TILE * TILE + group * TILE;
#pragma unroll
    for (int k = 0; k < KB; k++)
        if (k % GROUPS == group)
            tile_load_async(tq + k * SIZE, q + k * TILE, a.heads * a.K, (int)count,
                            (int)min(a.K - k * TILE, (int64_t)TILE));
    if (GROUPS == 1 || begin <= last) load_keys(begin, stage);
    if (GROUPS > 1) copy_async_commit();
    if (GROUPS == 1 || begin <= last) load_values(begin, stage);
    if (GROUPS > 1) {
        if (begin > last) copy_async_commit(); /* no keys for this group: values of nothing */
        copy_async_wait<1>();
        __syncthreads(); /* the queries came from all */
    }
    for (int64_t p0 = begin, turn = 0; p0 <= last; p0 += GROUPS * TILE, turn ^= AHEAD) {
        T *tk = stage + turn * (KT + VB) * SIZE, *tv = tk + KT * SIZE;
        bool more = p0 + GROUPS * TILE <= last;
        strip scores;
        strip_zero(scores);
        if (AHEAD && more) {
            T *next = stage + (turn ^ 1) * (KT + VB) * SIZE;
            load_keys(p0 + TILE, next);
            load_values(p0 + TILE, next);
            copy_async_wait<1>();
        } else if (GROUPS > 1)
            copy_async_wait<1>(); /* the keys; the values may be under way */
        else
            copy_async_wait<0>();
        attention_meet<GROUPS>();
#pragma unroll
        for (int k = 0; k < KB; k++)
            tile_product<false, true>(scores, tq + k * SIZE, tk + k * SIZE, 0,
                                      attention_limit<GROUPS>(a.K - k * TILE));
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
        if (GROUPS > 1) { /* the next keys come while the softmax and the values are at work */
            attention_meet<GROUPS>();
            if (more) load_keys(p0 + GROUPS * TILE, stage);
            copy_async_commit();
        }
        if (flip) strip_each(scores, [](int, int, float &x) { x = -x; });
        attention_soften<VB>(scores, out, most, total, scale,
                             attention_mask_of(a, seen + t0, p0, oldest, TILE));
        if (GROUPS > 1) {
            copy_async_wait<1>();
            attention_meet<GROUPS>();
        }
        multiply_values(scores, tv);
        attention_meet<GROUPS>();
        if (AHEAD || !more) continue;
        if (GROUPS == 1) load_keys(p0 + TILE, stage);
        load_values(p0 + GROUPS * TILE, stage);
    }
    if (GROUPS > 1) attention_merge<VB>(out, most, total, scale, reinterpret_cast<float *>(tq));
    if (group == 0) attention_finish<T, VB>(a, out, most, total, scale, b, h, t0, value, o, lse);
}

/* Heads up to 64 wide in bf16, nothing carried: two tiles of queries share every tile of keys.
 * Grid: pairs of query tiles, batch * heads. */
static __global__ void __launch_bounds__(TILE_THREADS)
    attention_forward_pair(attention_view<bf16> a, bf16 *o, float *lse)
{
    const int SIZE = tile_of<bf16>::SIZE;
    CUDA_DYNAMIC_SHARED(bf16, tq);
    bf16 *stage = tq + 2 * SIZE;
    int64_t t0 = (gridDim.x - 1 - (int64_t)blockIdx.x) * 2 * TILE; /* the longest first */
    int64_t b = blockIdx.y / a.heads, h = blockIdx.y % a.heads, g = h / (a.heads / a.heads_kv);
    int64_t last = min(t0 + 2 * TILE, a.length) - 1;
    int wide = (int)a.K, columns = (int)a.V;
    bool flip = a.scale < 0;
    float most[2][2] = {{-INFINITY, -INFINITY}, {-INFINITY, -INFINITY}}, total[2][2] = {},
          scale = fabsf(a.scale) * LOG2_E;
    strip out[2], scores[2];
    strip_zero(out[0]);
    strip_zero(out[1]);
    auto load = [&](int64_t p0, int at) {
        bf16 *to = stage + at * 2 * SIZE;
        attention_tokens<bf16, false>(to, a, a.k, nullptr, b, g, a.K, 0, p0, 0, 0);
        attention_tokens<bf16, false>(to + SIZE, a, a.v, nullptr, b, g, a.V, 0, p0, 0, 0);
        copy_async_commit();
    };
    for (int i = 0; i < 2; i++)
        tile_load_async(tq + i * SIZE, a.q + ((b * a.length + t0 + i * TILE) * a.heads + h) * a.K,
                        a.heads * a.K, (int)min(a.length - t0 - i * TILE, (int64_t)TILE), wide);
    int64_t begin = attention_from(a, t0, 0) / TILE * TILE;
    int turn = 0;
    load(begin, 0);
    for (int64_t p0 = begin; p0 <= last; p0 += TILE, turn ^= 1) {
        if (p0 + TILE <= last) {
            load(p0 + TILE, turn ^ 1);
            copy_async_wait<1>();
        } else
            copy_async_wait<0>();
        __syncthreads();
        const bf16 *tk = stage + turn * 2 * SIZE, *tv = tk + SIZE;
        strip_zero(scores[0]);
        strip_zero(scores[1]);
        tile_products<false, true>(scores[0], scores[1], tq, tq + SIZE, tk, wide);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            if (flip) strip_each(scores[i], [](int, int, float &x) { x = -x; });
            attention_soften<1>(scores[i], &out[i], most[i], total[i], scale,
                                attention_mask_of(a, t0 + i * TILE, p0, (int64_t)0, TILE));
        }
        strip_products<false>(out[0], out[1], scores[0], scores[1], tv, columns);
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < 2; i++)
        if (t0 + i * TILE < a.length)
            attention_finish<bf16, 1>(a, &out[i], most[i], total[i], scale, b, h, t0 + i * TILE, 0, o, lse);
}

#endif
