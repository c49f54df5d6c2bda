/* Softmax attention backward on CUDA: weights are computed again from the saved denominators. One kernel, run
 * twice: with rows = 64 keys it sums d_k and d_v over queries, with rows = 64 queries it sums d_q over keys;
 * or once, leaving dS to a product for d_q (attention_queries). No atomics, so the same bits on every run.
 * With P the weights and dS = scale P (d_o v^T - delta): d_v = P^T d_o,   d_k = dS^T q,   d_q = dS k, delta_t
 * = <d_o_t, o_t> */
#ifndef BLURRY_KERNELS_ATTENTION_CUDA_BACKWARD_CUH
#define BLURRY_KERNELS_ATTENTION_CUDA_BACKWARD_CUH
#include "kernels/attention/cuda_forward.cuh"

enum { DELTA_THREADS = 256, DELTA_LANES = 16, DELTA_ROWS = DELTA_THREADS / DELTA_LANES };

/* delta [batch, heads, length], sixteen lanes to a query. */
template <typename T>
__global__ void attention_delta(const T *o, const T *d_o, float *delta, int64_t length, int64_t heads,
                                int64_t V, int64_t rows)
{
    int lane = (int)threadIdx.x % DELTA_LANES;
    int64_t row = (int64_t)blockIdx.x * DELTA_ROWS + threadIdx.x / DELTA_LANES;
    float sum = 0;
    if (row < rows && V % 8 == 0 && tile_aligned(o, V) && tile_aligned(d_o, V))
        for (int64_t i = 8 * lane; i < V; i += 8 * DELTA_LANES) {
            float x[8], y[8];
            load_eight(o + row * V + i, x);
            load_eight(d_o + row * V + i, y);
#pragma unroll
            for (int e = 0; e < 8; e++) sum += x[e] * y[e];
        }
    else if (row < rows)
        for (int64_t i = lane; i < V; i += DELTA_LANES)
            sum += cuda_load(o + row * V + i) * cuda_load(d_o + row * V + i);
#pragma unroll
    for (int away = DELTA_LANES / 2; away > 0; away /= 2) sum += __shfl_xor_sync(CUDA_FULL_WARP, sum, away);
    int64_t h = row % heads, t = row / heads % length, b = row / heads / length;
    if (lane == 0 && row < rows) delta[(b * heads + h) * length + t] = sum;
}

/* Which tiles of the other side a tile of 64 rows meets. */
struct attention_reach {
    int64_t begin, end; /* tokens, begin a multiple of 64 */
};

template <typename T, bool KEYS>
static __device__ inline attention_reach attention_meets(const attention_view<T> &a, int64_t r0)
{
    attention_reach x;
    int64_t last = min(r0 + TILE, a.length) - 1;
    x.begin = KEYS ? r0 : attention_from(a, r0, 0) / TILE * TILE;
    x.end = !KEYS ? last + 1 : a.window > 0 ? min(a.length, last + a.window) : a.length;
    return x;
}

/* Scores and d_weights of a tile become weights and dS. `by` and `delta` belong to the 64 queries of the
 * tile. */
template <typename T, bool KEYS>
static __device__ inline void attention_differentiate(const attention_view<T> &a, strip &scores,
                                                      strip &d_weights, const float *by, const float *delta,
                                                      int64_t r0, int64_t c0)
{
    float scale = a.scale * LOG2_E;
    attention_mask mask = attention_mask_of(a, KEYS ? c0 : r0, KEYS ? r0 : c0, (int64_t)0, TILE);
    bool whole = mask.inside && (KEYS ? c0 : r0) + TILE <= a.length;
    int queries = (int)min(a.length - (KEYS ? c0 : r0), (int64_t)TILE);
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            int r = 16 * tile_warp() + tile_lane() / 4 + e / 2 * 8, c = 8 * n + tile_lane() % 4 * 2 + e % 2;
            int query = KEYS ? c : r;
            float w = exp2_fast(fmaf(scores.x[n][e], scale, -by[query]));
            float d = w * (d_weights.x[n][e] - delta[query]) * a.scale;
            scores.x[n][e] = w;
            d_weights.x[n][e] = d;
        }
    if (whole) return;
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            int r = 16 * tile_warp() + tile_lane() / 4 + e / 2 * 8, c = 8 * n + tile_lane() % 4 * 2 + e % 2;
            int query = KEYS ? c : r, key = KEYS ? r : c, last = query + mask.diagonal;
            bool seen = key <= last && key >= last - mask.window + 1 && query < queries;
            if (!seen) scores.x[n][e] = 0;
            if (!seen || last == mask.oldest || mask.window == 1)
                d_weights.x[n][e] = 0; /* one key alone has weight 1, whatever its score */
        }
}

/* Tokens t0 .. t0+63 of a tensor [batch, length, heads, width], 64 channels from `column`. */
template <typename T>
static __device__ inline void attention_rows(T *tile, const T *x, int64_t b, int64_t length, int64_t heads,
                                             int64_t h, int64_t width, int64_t column, int64_t t0)
{
    tile_load_async(tile, x + ((b * length + t0) * heads + h) * width + column, heads * width,
                    (int)min(length - t0, (int64_t)TILE), (int)min(width - column, (int64_t)TILE));
}

/* Denominators (times log2 e) and deltas of queries t0 .. t0+63. */
template <typename T>
static __device__ inline void attention_notes(float *by, float *delta_here, const attention_view<T> &a,
                                              const float *lse, const float *delta, int64_t b, int64_t h,
                                              int64_t t0)
{
    int i = (int)threadIdx.x % TILE;
    bool there = t0 + i < a.length;
    int64_t at = (b * a.heads + h) * a.length + t0 + i;
    if (threadIdx.x < TILE)
        by[i] = there ? lse[at] * LOG2_E : 0;
    else
        delta_here[i] = there ? delta[at] : 0;
}

/* Adds this thread's place of the strips that the other of two groups hands over, and hands over its own
 * others: the first group ends up with d_first, the second with d_v (or nothing). */
template <int KB, int VB, bool KEYS>
static __device__ inline void attention_exchange(strip *first, strip *d_values, float *room)
{
    auto hand = [&](const strip *x, int count, float *to) {
        for (int k = 0; k < count; k++)
#pragma unroll
            for (int i = 0; i < 32; i++) to[(32 * k + i) * TILE_THREADS + threadIdx.x] = x[k].x[i / 4][i % 4];
    };
    auto take = [&](strip *x, int count, const float *from) {
        for (int k = 0; k < count; k++)
#pragma unroll
            for (int i = 0; i < 32; i++)
                x[k].x[i / 4][i % 4] += from[(32 * k + i) * TILE_THREADS + threadIdx.x];
    };
    float *other = room + 32 * KB * TILE_THREADS;
    __syncthreads();
    if (threadIdx.y == 1)
        hand(first, KB, room);
    else if (KEYS)
        hand(d_values, VB, other);
    __syncthreads();
    if (threadIdx.y == 0)
        take(first, KB, room);
    else if (KEYS)
        take(d_values, VB, other);
}

/* Where dS of a tile of queries and one of keys is noted, [keys, queries]. */
template <typename T>
static __device__ inline int64_t attention_square(const attention_view<T> &a, int64_t b, int64_t h,
                                                  int64_t query, int64_t key)
{
    int64_t tiles = (a.length + TILE - 1) / TILE;
    return (((b * a.heads + h) * tiles + query) * tiles + key) * TILE * TILE;
}

/* GROUPS of 128 threads take the tiles of the other side by turns. squares: where KEYS notes dS; NULL: not
 * wanted. Grid: tiles of rows, batch * (KEYS: key
 * heads, else query heads); with two groups the other way round, so that the longest of all heads come
 * first. */
template <typename T, int KB, int VB, bool KEYS, int GROUPS>
__global__ void __launch_bounds__(TILE_THREADS *GROUPS)
    attention_backward_kernel(attention_view<T> a, const float *lse, const float *delta, T *d_first, T *d_v,
                              T *squares)
{
    const int SIZE = tile_of<T>::SIZE, BLOCKS = KB + VB;
    const bool AHEAD = sizeof(T) == 2;
    CUDA_DYNAMIC_SHARED(T, left);
    int lot = GROUPS == 1 ? 0 : (int)threadIdx.y;
    T *room = left + BLOCKS * SIZE, *stage = room + (AHEAD ? 0 : SIZE) + lot * 2 * BLOCKS * SIZE;
    __shared__ float notes[GROUPS][2][2][TILE];
    float(*by)[TILE] = notes[lot][0], (*along)[TILE] = notes[lot][1];
    int64_t tile = GROUPS == 1 ? blockIdx.x : blockIdx.y, tiles_all = GROUPS == 1 ? gridDim.x : gridDim.y;
    int64_t chain = GROUPS == 1 ? blockIdx.y : blockIdx.x;
    int64_t r0 = (KEYS ? tile : tiles_all - 1 - tile) * TILE; /* longest first */
    int64_t of = KEYS ? a.heads_kv : a.heads, b = chain / of, own = chain % of;
    int64_t group = a.heads / a.heads_kv, L = a.length;
    attention_reach reach = attention_meets<T, KEYS>(a, r0);
    int64_t tiles = (reach.end - reach.begin + TILE - 1) / TILE, turns = tiles * (KEYS ? group : 1);
    auto load_left = [&](int64_t h) {
#pragma unroll
        for (int k = 0; k < KB; k++)
            if (k % GROUPS == lot)
                attention_rows(left + k * SIZE, KEYS ? a.k : a.q, b, L, of, h, a.K, k * TILE, r0);
#pragma unroll
        for (int v = 0; v < VB; v++)
            if (v % GROUPS == lot)
                attention_rows(left + (KB + v) * SIZE, KEYS ? a.v : a.d_o, b, L, of, h, a.V, v * TILE, r0);
    };
    auto load = [&](int64_t turn, int at) {
        int64_t c0 = reach.begin + turn % tiles * TILE, heads = KEYS ? a.heads : a.heads_kv;
        int64_t h = KEYS ? own * group + turn / tiles : own / group;
        T *to = stage + at * BLOCKS * SIZE;
#pragma unroll
        for (int k = 0; k < KB; k++)
            attention_rows(to + k * SIZE, KEYS ? a.q : a.k, b, L, heads, h, a.K, k * TILE, c0);
#pragma unroll
        for (int v = 0; v < VB; v++)
            attention_rows(to + (KB + v) * SIZE, KEYS ? a.d_o : a.v, b, L, heads, h, a.V, v * TILE, c0);
        copy_async_commit();
        if (KEYS) attention_notes(by[at], along[at], a, lse, delta, b, h, c0);
    };
    strip first[KB], d_values[VB];
#pragma unroll
    for (int k = 0; k < KB; k++) strip_zero(first[k]);
#pragma unroll
    for (int v = 0; v < VB; v++) strip_zero(d_values[v]);
    load_left(own);
    if (!KEYS) attention_notes(by[0], along[0], a, lse, delta, b, own, r0);
    if (lot < turns) load(lot, 0);
    if (GROUPS > 1) {
        copy_async_commit(); /* a group may have no tiles */
        copy_async_wait<0>();
        __syncthreads(); /* the rows came from all */
    }
    for (int64_t turn = lot; turn < turns; turn += GROUPS) {
        int at = AHEAD ? (int)(turn / GROUPS & 1) : 0;
        if (AHEAD && turn + GROUPS < turns) {
            load(turn + GROUPS, at ^ 1);
            copy_async_wait<1>();
        } else
            copy_async_wait<0>();
        attention_meet<GROUPS>();
        T *right = stage + at * BLOCKS * SIZE;
        strip scores, d_weights;
        strip_zero(scores);
        strip_zero(d_weights);
#pragma unroll
        for (int k = 0; k < KB; k++)
            tile_product<false, true>(scores, left + k * SIZE, right + k * SIZE, 0,
                                      attention_limit<GROUPS>(a.K - k * TILE));
#pragma unroll
        for (int v = 0; v < VB; v++)
            tile_product<false, true>(d_weights, left + (KB + v) * SIZE, right + (KB + v) * SIZE, 0,
                                      attention_limit<GROUPS>(a.V - v * TILE));
        attention_differentiate<T, KEYS>(a, scores, d_weights, by[KEYS ? at : 0], along[KEYS ? at : 0], r0,
                                         reach.begin + turn % tiles * TILE);
        if (KEYS && GROUPS > 1 && squares) {
            int64_t h = own * group + turn / tiles, query = reach.begin / TILE + turn % tiles;
            T *to = squares + attention_square(a, b, h, query, r0 / TILE) +
                    (16 * tile_warp() + tile_lane() / 4) * TILE + tile_lane() % 4 * 2;
#pragma unroll
            for (int i = 0; i < 16; i++)
                store_pair(to + i % 2 * 8 * TILE + i / 2 * 8, d_weights.x[i / 2][i % 2 * 2],
                           d_weights.x[i / 2][i % 2 * 2 + 1]);
        }
        if (KEYS)
#pragma unroll
            for (int v = 0; v < VB; v++)
                strip_product<false>(d_values[v], scores, right + (KB + v) * SIZE, room, 0, TILE,
                                     attention_limit<GROUPS>(a.V - v * TILE));
#pragma unroll
        for (int k = 0; k < KB; k++)
            strip_product<false>(first[k], d_weights, right + k * SIZE, room, 0, TILE,
                                 attention_limit<GROUPS>(a.K - k * TILE));
        attention_meet<GROUPS>();
        if (!AHEAD && turn + 1 < turns) load(turn + 1, 0);
    }
    if (GROUPS > 1) attention_exchange<KB, VB, KEYS>(first, d_values, reinterpret_cast<float *>(left));
    int rows = (int)min(L - r0, (int64_t)TILE);
    int64_t to = (b * L + r0) * of + own;
#pragma unroll
    for (int k = 0; k < (lot == 0 ? KB : 0); k++)
        strip_to_memory(first[k], d_first + to * a.K + k * TILE, of * a.K, rows,
                        (int)min(a.K - k * TILE, (int64_t)TILE), 1);
#pragma unroll
    for (int v = 0; v < (KEYS && lot == GROUPS - 1 ? VB : 0); v++)
        strip_to_memory(d_values[v], d_v + to * a.V + v * TILE, of * a.V, rows,
                        (int)min(a.V - v * TILE, (int64_t)TILE), 1);
}

/* d_q from the noted dS. Two groups of 128 threads take the tiles of keys by turns. Grid: batch * heads,
 * tiles of queries. */
template <int KB>
__global__ void __launch_bounds__(2 * TILE_THREADS, 2)
    attention_queries(attention_view<bf16> a, const bf16 *squares, bf16 *d_q)
{
    const int SIZE = tile_of<bf16>::SIZE, STAGE = (1 + KB) * SIZE, GROUPS = 2;
    CUDA_DYNAMIC_SHARED(bf16, stages);
    int lot = (int)threadIdx.y;
    bf16 *stage = stages + lot * 2 * STAGE;
    int64_t tile = gridDim.y - 1 - blockIdx.y, r0 = tile * TILE; /* longest first */
    int64_t b = blockIdx.x / a.heads, h = blockIdx.x % a.heads, g = h / (a.heads / a.heads_kv);
    attention_reach reach = attention_meets<bf16, false>(a, r0);
    int64_t turns = (reach.end - reach.begin + TILE - 1) / TILE;
    auto load = [&](int64_t turn, int at) {
        int64_t c0 = reach.begin + turn * TILE;
        bf16 *to = stage + at * STAGE;
        tile_load_async(to, squares + attention_square(a, b, h, tile, c0 / TILE), TILE, TILE, TILE);
#pragma unroll
        for (int k = 0; k < KB; k++)
            attention_rows(to + (1 + k) * SIZE, a.k, b, a.length, a.heads_kv, g, a.K, k * TILE, c0);
        copy_async_commit();
    };
    strip sum[KB];
#pragma unroll
    for (int k = 0; k < KB; k++) strip_zero(sum[k]);
    if (lot < turns) load(lot, 0);
    for (int64_t turn = lot; turn < turns; turn += GROUPS) {
        int at = (int)(turn / GROUPS & 1);
        if (turn + GROUPS < turns) {
            load(turn + GROUPS, at ^ 1);
            copy_async_wait<1>();
        } else
            copy_async_wait<0>();
        attention_meet<GROUPS>();
        const bf16 *square = stage + at * STAGE;
#pragma unroll
        for (int k = 0; k < KB; k++) tile_product<true, false>(sum[k], square, square + (1 + k) * SIZE);
        attention_meet<GROUPS>();
    }
    attention_exchange<KB, KB, false>(sum, nullptr, reinterpret_cast<float *>(stages));
#pragma unroll
    for (int k = 0; k < (lot == 0 ? KB : 0); k++)
        strip_to_memory(sum[k], d_q + ((b * a.length + r0) * a.heads + h) * a.K + k * TILE, a.heads * a.K,
                        (int)min(a.length - r0, (int64_t)TILE), (int)min(a.K - k * TILE, (int64_t)TILE), 1);
}

/* Heads wider than the kernel above can hold: one block of 64 output channels per block of threads, operands
 * loaded anew for every product. Grid z: blocks of d_first, then (KEYS) blocks of d_v. */
template <typename T, bool KEYS>
__global__ void __launch_bounds__(TILE_THREADS)
    attention_backward_wide(attention_view<T> a, const float *lse, const float *delta, T *d_first, T *d_v)
{
    const int SIZE = tile_of<T>::SIZE;
    CUDA_DYNAMIC_SHARED(T, left);
    T *right = left + SIZE, *room = right + SIZE;
    __shared__ float by[TILE], along[TILE];
    int64_t r0 = (int64_t)blockIdx.x * TILE, of = KEYS ? a.heads_kv : a.heads, b = blockIdx.y / of,
            own = blockIdx.y % of;
    int64_t group = a.heads / a.heads_kv, L = a.length, key_blocks = (a.K + TILE - 1) / TILE;
    bool values = KEYS && blockIdx.z >= key_blocks;
    int64_t column = (values ? blockIdx.z - key_blocks : blockIdx.z) * TILE, width = values ? a.V : a.K;
    attention_reach reach = attention_meets<T, KEYS>(a, r0);
    int64_t others = KEYS ? a.heads : a.heads_kv;
    strip out;
    strip_zero(out);
    auto multiply = [&](strip &sum, const T *x, const T *y, int64_t wide, int64_t h, int64_t c0) {
        for (int64_t i = 0; i < wide; i += TILE) {
            __syncthreads();
            attention_rows(left, x, b, L, of, own, wide, i, r0);
            attention_rows(right, y, b, L, others, h, wide, i, c0);
            copy_async_commit();
            copy_async_wait<0>();
            __syncthreads();
            tile_product<false, true>(sum, left, right);
        }
    };
    for (int64_t r = 0; r < (KEYS ? group : 1); r++)
        for (int64_t c0 = reach.begin; c0 < reach.end; c0 += TILE) {
            int64_t h = KEYS ? own * group + r : own / group;
            strip scores, d_weights;
            strip_zero(scores);
            strip_zero(d_weights);
            __syncthreads();
            attention_notes(by, along, a, lse, delta, b, KEYS ? h : own, KEYS ? c0 : r0);
            multiply(scores, KEYS ? a.k : a.q, KEYS ? a.q : a.k, a.K, h, c0);
            multiply(d_weights, KEYS ? a.v : a.d_o, KEYS ? a.d_o : a.v, a.V, h, c0);
            attention_differentiate<T, KEYS>(a, scores, d_weights, by, along, r0, c0);
            __syncthreads();
            attention_rows(right, values ? a.d_o : KEYS ? a.q : a.k, b, L, others, h, width, column, c0);
            copy_async_commit();
            copy_async_wait<0>();
            __syncthreads();
            strip_product<false>(out, values ? scores : d_weights, right, room);
        }
    strip_to_memory(out, (values ? d_v : d_first) + ((b * L + r0) * of + own) * width + column, of * width,
                    (int)min(L - r0, (int64_t)TILE), (int)min(width - column, (int64_t)TILE), 1);
}

#endif
