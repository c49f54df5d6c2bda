/* A gated pass in chunks of 64 tokens, all chunks at once: what gated linear attention and slot attention
 * share.
 *     h_t = diag(e^{g_t}) h_{t-1} + k_t v_t^T,   o_t = scale h_t^T q_t      h [keys, values] per head
 * Three steps: each chunk's own contribution to the state; a scan over the chunks that turns them into the
 * states at chunk starts; the outputs of each chunk from the state at its start. Backward likewise.
 *
 * Inside a chunk G_t is the sum of gates after its first token, so e^{G_t - G_s} is what token t sees of
 * token s, and e^{g_0 + G_t} what it sees of the state at the start. Products take q e^G and k e^{-G}; where
 * the gates of a chunk fade a channel by more than GATED_FADE these could overflow, and the terms are summed
 * one by one instead, from e^{G_t - G_s} <= 1. Keys may be the gates' own write weights 1 - e^g (slots). */
#ifndef BLURRY_KERNELS_CUDA_GATED_H
#define BLURRY_KERNELS_CUDA_GATED_H
#include "kernels/cuda_tile.h"
#include "kernels/kernel.h"

#define GATED_FADE 60.0f

/* [batch, total, heads, width] tensors, of which the tokens first .. first+length-1 are processed. */
template <typename T> struct gated {
    const T *q, *k, *v, *g, *d_o; /* k NULL: 1 - e^g */
    const float *q_float;         /* instead of q, where that is NULL */
    float *states;                /* [batch * heads, chunks, keys, row] at chunk starts */
    float *grads;                 /* [batch * heads, chunks, keys, values] of the states at chunk ends */
    float *ends;                  /* [batch * heads, chunks, keys] sums of a chunk's gates */
    int64_t total, first, length, heads, keys, values;
    int64_t row, offset;      /* elements of a state's row, where this pass's values start in it */
    int64_t q_total, q_first; /* as total and first, for q */
    int64_t chunks;
    float scale;
};

struct gated_place {
    int64_t head, chunk;  /* batch * heads + head */
    int64_t at, query_at; /* the chunk's first token in units of [token, head], in all tensors and in q */
    int rows;             /* tokens of the chunk */
};

template <typename T> static __device__ inline gated_place gated_here(const gated<T> &p)
{
    gated_place x;
    x.head = blockIdx.x / p.chunks;
    x.chunk = blockIdx.x % p.chunks;
    int64_t b = x.head / p.heads, h = x.head % p.heads, left = p.length - x.chunk * TILE;
    x.at = (b * p.total + p.first + x.chunk * TILE) * p.heads + h;
    x.query_at = (b * p.q_total + p.q_first + x.chunk * TILE) * p.heads + h;
    x.rows = (int)min(left, (int64_t)TILE);
    return x;
}

static __device__ inline int gated_most(int64_t count, int64_t from)
{
    return (int)min(count - from, (int64_t)TILE);
}

template <typename T>
static __device__ inline int64_t gated_state(const gated<T> &p, const gated_place &x, int64_t key)
{
    return ((x.head * p.chunks + x.chunk) * p.keys + key) * p.row + p.offset;
}

template <typename T>
static __device__ inline int64_t gated_grad(const gated<T> &p, const gated_place &x, int64_t key)
{
    return ((x.head * p.chunks + x.chunk) * p.keys + key) * p.values;
}

/* Sums of the gates of 64 channels. */
struct gated_sums {
    float G[TILE * tile_of<float>::LD]; /* G[t][c], rows beyond the chunk repeat the last */
    float first[TILE];                  /* g_0 */
    float room[TILE];
    float own[TILE];
};

/* Fills s from gates at g; true where products would overflow. Starts and ends with a barrier. */
template <typename T>
static __device__ inline bool gated_sum(gated_sums *s, const T *g, int64_t stride, int rows, int columns)
{
    const int HALF = TILE / 2, LD = tile_of<float>::LD;
    int c = (int)threadIdx.x % TILE, half = (int)threadIdx.x / TILE;
    float x[HALF], sum = 0;
#pragma unroll
    for (int i = 0; i < HALF; i++) {
        int r = half * HALF + i;
        x[i] = r < rows && c < columns ? cuda_load(g + r * stride + c) : 0;
    }
    float first = x[0];
    if (half == 0) x[0] = 0;
#pragma unroll
    for (int i = 0; i < HALF; i++) sum += x[i], x[i] = sum;
    __syncthreads();
    if (half == 0) s->room[c] = sum, s->first[c] = first;
    __syncthreads();
    float before = half ? s->room[c] : 0;
#pragma unroll
    for (int i = 0; i < HALF; i++) s->G[(half * HALF + i) * LD + c] = x[i] + before;
    __syncthreads();
    return block_max(half ? -(sum + before) : 0, s->room) > GATED_FADE;
}

#define GATED_G(s, r, c) ((s)->G[(r)*tile_of<float>::LD + (c)])

template <typename T> struct gated_keys { /* where 64 key channels of a chunk lie, and how to read them */
    const T *q, *k, *g;
    const float *q_float;
    int64_t stride;
    int columns;
    bool from_gate;
    __device__ float key(float x) const { return from_gate ? -expm1f(x) : x; }
    __device__ float key_at(int r, int c) const { return key(cuda_load(k + r * stride + c)); }
    __device__ float query_at(int r, int c) const
    {
        return q ? cuda_load(q + r * stride + c) : q_float[r * stride + c];
    }
    /* tile = f(query, row, column) */
    template <int AT_ONCE, typename Fn> __device__ void fill_queries(T *tile, int rows, Fn f) const
    {
        if (q)
            tile_fill<AT_ONCE>(tile, q, stride, rows, columns, f);
        else
            tile_fill<AT_ONCE>(tile, q_float, stride, rows, columns, f);
    }
};

template <typename T>
static __device__ inline gated_keys<T> gated_keys_at(const gated<T> &p, const gated_place &x, int64_t key)
{
    gated_keys<T> r;
    int64_t at = x.at * p.keys + key;
    r.from_gate = p.k == nullptr;
    r.q = p.q ? p.q + x.query_at * p.keys + key : nullptr;
    r.q_float = p.q_float + x.query_at * p.keys + key;
    r.k = (r.from_gate ? p.g : p.k) + at;
    r.g = p.g + at;
    r.stride = p.heads * p.keys;
    r.columns = gated_most(p.keys, key);
    return r;
}

/* ---- contributions of the chunks ---- */

/* states = (k e^{G_end - G})^T v, or with BACKWARD grads = scale (q e^{g_0 + G})^T d_o.
 * Grid: chunks of all heads, blocks of keys, blocks of values. */
template <typename T, bool BACKWARD> __global__ void __launch_bounds__(TILE_THREADS) gated_local(gated<T> p)
{
    CUDA_DYNAMIC_SHARED(char, shared);
    gated_sums *s = reinterpret_cast<gated_sums *>(shared);
    T *left = reinterpret_cast<T *>(s + 1), *right = left + tile_of<T>::SIZE;
    gated_place x = gated_here(p);
    int64_t key = (int64_t)blockIdx.y * TILE, value = (int64_t)blockIdx.z * TILE;
    gated_keys<T> k = gated_keys_at(p, x, key);
    int values = gated_most(p.values, value);
    tile_load(right, (BACKWARD ? p.d_o : p.v) + x.at * p.values + value, p.heads * p.values, x.rows, values);
    gated_sum(s, k.g, k.stride, x.rows, k.columns);
    if (BACKWARD)
        k.template fill_queries<4>(left, x.rows, [&](float q, int r, int c) {
            return q * p.scale * __expf(s->first[c] + GATED_G(s, r, c));
        });
    else
        tile_fill(left, k.k, k.stride, x.rows, k.columns, [&](float y, int r, int c) {
            return k.key(y) * __expf(GATED_G(s, TILE - 1, c) - GATED_G(s, r, c));
        });
    int c = (int)threadIdx.x;
    if (!BACKWARD && blockIdx.z == 0 && c < k.columns)
        p.ends[(x.head * p.chunks + x.chunk) * p.keys + key + c] = s->first[c] + GATED_G(s, TILE - 1, c);
    __syncthreads();
    strip sum;
    strip_zero(sum);
    tile_product<true, false>(sum, left, right, 0, x.rows, values);
    float *to = BACKWARD ? p.grads + gated_grad(p, x, key) : p.states + gated_state(p, x, key);
    strip_to_memory(sum, to + value, BACKWARD ? p.values : p.row, k.columns, values, 1);
}

/* ---- scans over the chunks, one thread per element of a state ---- */
enum { GATED_SCAN_THREADS = 256, GATED_AHEAD = 8 };

/* memory [heads, chunks, keys, row] from contributions to the states before (or with BACKWARD after) each
 * chunk, in place. in, out: [heads, keys, row] or NULL. */
template <bool BACKWARD>
__global__ void gated_scan(float *memory, const float *ends, const float *in, float *out, int64_t chunks,
                           int64_t keys, int64_t row, int64_t count)
{
    int64_t e = (int64_t)blockIdx.x * GATED_SCAN_THREADS + threadIdx.x, size = keys * row;
    if (e >= count) return;
    int64_t head = e / size, i = e % size, step = BACKWARD ? -1 : 1, at = BACKWARD ? chunks - 1 : 0;
    float *m = memory + head * chunks * size + i;
    const float *end = ends + head * chunks * keys + i / row;
    float state = in ? in[e] : 0;
    for (int64_t done = 0; done < chunks; done += GATED_AHEAD) {
        float own[GATED_AHEAD], fade[GATED_AHEAD];
#pragma unroll
        for (int j = 0; j < GATED_AHEAD; j++)
            if (done + j < chunks) {
                own[j] = m[(at + j * step) * size];
                fade[j] = end[(at + j * step) * keys];
            }
#pragma unroll
        for (int j = 0; j < GATED_AHEAD; j++)
            if (done + j < chunks) {
                m[(at + j * step) * size] = state;
                state = __expf(fade[j]) * state + own[j];
            }
        at += GATED_AHEAD * step;
    }
    if (out) out[e] = state;
}

/* ---- what tokens of one chunk see of each other ---- */

/* sum += lower part of q_t.k_u e^{G_t - G_u}, one term at a time, unrounded, through the tile `room`. The
 * block works together; starts and ends with a barrier. */
template <typename T>
static __device__ inline void gated_scores_harsh(strip &sum, const gated_sums *s, const gated_keys<T> &k,
                                                 int rows, T *room)
{
    const int LD = tile_of<T>::LD;
    __syncthreads();
    for (int e = (int)threadIdx.x; e < TILE * TILE; e += TILE_THREADS) {
        int t = e / TILE, u = e % TILE;
        float x = 0;
        for (int c = 0; c < (u <= t && t < rows ? k.columns : 0); c++)
            x += k.query_at(t, c) * k.key_at(u, c) * __expf(GATED_G(s, t, c) - GATED_G(s, u, c));
        cuda_store(room + t * LD + u, x);
    }
    __syncthreads();
    strip_each(sum, [&](int t, int u, float &x) { x += cuda_load(room + t * LD + u); });
    __syncthreads();
}

/* The factors that make tiles of q and k ready for gated_scores, and a state's row ready for q's tile. */
static __device__ inline float gated_up(const gated_sums *s, int r, int c, bool harsh)
{
    return harsh ? 1 : __expf(GATED_G(s, r, c));
}
static __device__ inline float gated_down(const gated_sums *s, int r, int c, bool harsh)
{
    return harsh ? 1 : __expf(-GATED_G(s, r, c));
}

/* o. Grid: chunks of all heads, blocks of values. */
template <typename T> __global__ void __launch_bounds__(TILE_THREADS) gated_output(gated<T> p, T *o)
{
    CUDA_DYNAMIC_SHARED(char, shared);
    gated_sums *s = reinterpret_cast<gated_sums *>(shared);
    T *tq = reinterpret_cast<T *>(s + 1), *tk = tq + tile_of<T>::SIZE, *th = tk + tile_of<T>::SIZE;
    gated_place x = gated_here(p);
    int64_t value = (int64_t)blockIdx.y * TILE, at = x.at * p.values + value;
    int values = gated_most(p.values, value), seen = 16 * tile_warp() + 16;
    strip scores, out;
    strip_zero(scores);
    strip_zero(out);
    for (int64_t key = 0; key < p.keys; key += TILE) {
        gated_keys<T> k = gated_keys_at(p, x, key);
        bool harsh = gated_sum(s, k.g, k.stride, x.rows, k.columns);
        k.template fill_queries<4>(tq, x.rows,
                                   [&](float y, int r, int c) { return y * gated_up(s, r, c, harsh); });
        tile_fill(tk, k.k, k.stride, x.rows, k.columns,
                  [&](float y, int r, int c) { return k.key(y) * gated_down(s, r, c, harsh); });
        auto load_state = [&] {
            tile_fill(th, p.states + gated_state(p, x, key) + value, p.row, k.columns, values,
                      [&](float y, int r, int) { return y * __expf(s->first[r]); });
        };
        load_state();
        __syncthreads();
        if (harsh) {
            gated_scores_harsh(scores, s, k, x.rows, th);
            k.template fill_queries<1>(tq, x.rows,
                                       [&](float y, int r, int c) { return y * __expf(GATED_G(s, r, c)); });
            load_state();
            __syncthreads();
        } else
            tile_product<false, true>(scores, tq, tk, 0, k.columns, seen);
        tile_product<false, false>(out, tq, th, 0, k.columns, values);
    }
    __syncthreads();
    strip_lower(scores, 1);
    strip_to_tile(scores, tq);
    tile_load(tk, p.v + at, p.heads * p.values, x.rows, values);
    __syncthreads();
    tile_product<false, false>(out, tq, tk, 0, seen, values);
    strip_to_memory(out, o + at, p.heads * p.values, x.rows, values, p.scale);
}

/* ---- backward ---- */

/* d_v. Grid: chunks of all heads, blocks of values. */
template <typename T>
__global__ void __launch_bounds__(TILE_THREADS) gated_values_backward(gated<T> p, T *d_v)
{
    CUDA_DYNAMIC_SHARED(char, shared);
    gated_sums *s = reinterpret_cast<gated_sums *>(shared);
    T *tq = reinterpret_cast<T *>(s + 1), *tk = tq + tile_of<T>::SIZE, *td = tk + tile_of<T>::SIZE;
    gated_place x = gated_here(p);
    int64_t value = (int64_t)blockIdx.y * TILE, at = x.at * p.values + value;
    int values = gated_most(p.values, value);
    strip scores, out;
    strip_zero(scores);
    strip_zero(out);
    for (int64_t key = 0; key < p.keys; key += TILE) {
        gated_keys<T> k = gated_keys_at(p, x, key);
        bool harsh = gated_sum(s, k.g, k.stride, x.rows, k.columns);
        k.template fill_queries<4>(tq, x.rows,
                                   [&](float y, int r, int c) { return y * gated_up(s, r, c, harsh); });
        tile_fill(tk, k.k, k.stride, x.rows, k.columns,
                  [&](float y, int r, int c) { return k.key(y) * gated_down(s, r, c, harsh); });
        auto load_gradient = [&] {
            tile_fill(td, p.grads + gated_grad(p, x, key) + value, p.values, k.columns, values,
                      [&](float y, int r, int) { return y * (harsh ? 1 : __expf(GATED_G(s, TILE - 1, r))); });
        };
        load_gradient();
        __syncthreads();
        if (harsh) {
            gated_scores_harsh(scores, s, k, x.rows, td);
            tile_fill(tk, k.k, k.stride, x.rows, k.columns, [&](float y, int r, int c) {
                return k.key(y) * __expf(GATED_G(s, TILE - 1, c) - GATED_G(s, r, c));
            });
            load_gradient();
            __syncthreads();
        } else
            tile_product<false, true>(scores, tq, tk, 0, k.columns, 16 * tile_warp() + 16);
        tile_product<false, false>(out, tk, td, 0, k.columns, values);
    }
    __syncthreads();
    strip_lower(scores, p.scale);
    strip_to_tile(scores, tq);
    tile_load(tk, p.d_o + at, p.heads * p.values, x.rows, values);
    __syncthreads();
    tile_product<true, false>(out, tq, tk, 16 * tile_warp(), TILE, values);
    strip_to_memory(out, d_v + at, p.heads * p.values, x.rows, values, 1);
}

/* Where gated_keys_backward puts its results; NULL: not wanted. With keys from the gates their gradient goes
 * into d_g. `gate_before` [batch, length, heads, keys] is added to d_g; gate_sum takes d_g in float. */
template <typename T> struct gated_key_gradients {
    T *d_q, *d_k, *d_g;
    float *query, *gate_sum;
    const float *gate_before;
};

/* own[c] += sum over 64 values of (state at the chunk's end) (its gradient), 16 rows per warp. */
template <typename T>
static __device__ inline void gated_own(gated_sums *s, const gated<T> &p, const gated_place &x, int64_t key,
                                        int64_t value, int columns, int values)
{
    if (x.chunk + 1 >= p.chunks) return; /* nothing after the last chunk depends on its end */
    gated_place next = x;
    next.chunk++;
    const float *h = p.states + gated_state(p, next, key) + value,
                *d = p.grads + gated_grad(p, x, key) + value;
    for (int c = tile_warp(); c < columns; c += 4) {
        float sum = 0;
        for (int j = tile_lane(); j < values; j += 32) sum += h[c * p.row + j] * d[c * p.values + j];
        sum = warp_sum(sum);
        if (tile_lane() == 0) s->own[c] += sum;
    }
}

/* What pairs of tokens give to d_q and d_k, from d_scores in tile td and q, k in theirs. */
template <typename T>
static __device__ inline void gated_pairs(strip &d_q, strip &d_k, const gated_sums *s, const T *td,
                                          const T *tq, const T *tk, float scale, int columns)
{
    strip_each(d_q, [&](int, int c, float &y) { y *= scale * __expf(s->first[c]); });
    strip_each(d_k, [&](int, int c, float &y) { y *= __expf(GATED_G(s, TILE - 1, c)); });
    tile_product<false, false>(d_q, td, tk, 0, 16 * tile_warp() + 16, columns);
    tile_product<true, false>(d_k, td, tq, 16 * tile_warp(), TILE, columns);
    strip_each(d_q, [&](int r, int c, float &y) { y *= __expf(GATED_G(s, r, c)); });
    strip_each(d_k, [&](int r, int c, float &y) { y *= __expf(-GATED_G(s, r, c)); });
}

/* y += sum over u <= t of td[t][u] tx[u][c] e^{G_t - G_u}, or with LATER over u >= t of td[u][t] tx[u][c]
 * e^{G_u - G_t}, one term at a time. `room` is a tile of floats. Ends with a barrier. */
template <bool LATER, typename T>
static __device__ inline void gated_mix_harsh(strip &y, const gated_sums *s, const T *td, const T *tx,
                                              int columns, float *room)
{
    const int LD = tile_of<T>::LD, ROW = tile_of<float>::LD;
    for (int e = (int)threadIdx.x; e < TILE * TILE; e += TILE_THREADS) {
        int t = e / TILE, c = e % TILE, to = c >= columns ? 0 : LATER ? TILE : t + 1;
        float x = 0, sign = LATER ? -1.0f : 1.0f;
        for (int u = LATER ? t : 0; u < to; u++)
            x += cuda_load(LATER ? td + u * LD + t : td + t * LD + u) * cuda_load(tx + u * LD + c) *
                 __expf(sign * (GATED_G(s, t, c) - GATED_G(s, u, c)));
        room[t * ROW + c] = x;
    }
    __syncthreads();
    strip_each(y, [&](int r, int c, float &x) { x += room[r * ROW + c]; });
    __syncthreads();
}

/* d_g from per-token shares in s->G (q d_q - k d_k) and key gradients in `d_key`: the sum over all later
 * tokens and the state at the chunk's end. */
template <typename T>
static __device__ inline void gated_gate_gradient(const gated<T> &p, gated_sums *s, const float *d_key,
                                                  const gated_place &x, int64_t key, const gated_keys<T> &k,
                                                  const gated_key_gradients<T> &d)
{
    const int HALF = TILE / 2, LD = tile_of<float>::LD;
    int c = (int)threadIdx.x % TILE, half = (int)threadIdx.x / TILE;
    float y[HALF], sum = 0;
#pragma unroll
    for (int i = HALF - 1; i >= 0; i--) sum += s->G[(half * HALF + i) * LD + c], y[i] = sum;
    if (half) s->room[c] = sum;
    __syncthreads();
    float later = s->own[c] + (half ? 0 : s->room[c]);
    if (c >= k.columns) return;
#pragma unroll
    for (int i = 0; i < HALF; i++) {
        int r = half * HALF + i;
        if (r >= x.rows) continue;
        int64_t e = r * k.stride + c, at = x.at * p.keys + key;
        float total = y[i] + later;
        if (k.from_gate) total -= __expf(cuda_load(k.g + e)) * d_key[r * LD + c];
        if (d.gate_before) total += d.gate_before[at + e];
        if (d.gate_sum) d.gate_sum[at + e] = total;
        if (d.d_g) cuda_store(d.d_g + at + e, total);
    }
}

/* d_q, d_k, d_g. Grid: chunks of all heads, blocks of keys. */
template <typename T>
__global__ void __launch_bounds__(TILE_THREADS, 2) gated_keys_backward(gated<T> p, gated_key_gradients<T> d)
{
    CUDA_DYNAMIC_SHARED(char, shared);
    gated_sums *s = reinterpret_cast<gated_sums *>(shared);
    T *t0 = reinterpret_cast<T *>(s + 1), *t1 = t0 + tile_of<T>::SIZE, *t2 = t1 + tile_of<T>::SIZE,
      *t3 = t2 + tile_of<T>::SIZE; /* with room for floats */
    gated_place x = gated_here(p);
    int64_t key = (int64_t)blockIdx.y * TILE;
    gated_keys<T> k = gated_keys_at(p, x, key);
    strip d_scores, d_q, d_k;
    strip_zero(d_scores);
    strip_zero(d_q);
    strip_zero(d_k);
    if (threadIdx.x < TILE) s->own[threadIdx.x] = 0;
    for (int64_t value = 0; value < p.values; value += TILE) {
        int values = gated_most(p.values, value);
        int64_t at = x.at * p.values + value, stride = p.heads * p.values;
        __syncthreads();
        tile_load_async(t0, p.d_o + at, stride, x.rows, values);
        tile_load_async(t1, p.v + at, stride, x.rows, values);
        copy_async_commit();
        tile_load<2>(t2, p.states + gated_state(p, x, key) + value, p.row, k.columns, values);
        tile_load<2>(t3, p.grads + gated_grad(p, x, key) + value, p.values, k.columns, values);
        gated_own(s, p, x, key, value, k.columns, values);
        copy_async_wait<0>();
        __syncthreads();
        tile_product<false, true>(d_scores, t0, t1, 0, values, 16 * tile_warp() + 16);
        tile_product<false, true>(d_q, t0, t2, 0, values, k.columns);
        tile_product<false, true>(d_k, t1, t3, 0, values, k.columns);
    }
    bool harsh = gated_sum(s, k.g, k.stride, x.rows, k.columns);
    strip_lower(d_scores, p.scale);
    strip_to_tile(d_scores, t0);
    k.template fill_queries<2>(t1, x.rows,
                               [&](float y, int r, int c) { return y * gated_up(s, r, c, harsh); });
    tile_fill<2>(t2, k.k, k.stride, x.rows, k.columns,
                 [&](float y, int r, int c) { return k.key(y) * gated_down(s, r, c, harsh); });
    __syncthreads();
    if (harsh) {
        float *room = reinterpret_cast<float *>(t3);
        strip_each(d_q,
                   [&](int r, int c, float &y) { y *= p.scale * __expf(s->first[c] + GATED_G(s, r, c)); });
        strip_each(d_k,
                   [&](int r, int c, float &y) { y *= __expf(GATED_G(s, TILE - 1, c) - GATED_G(s, r, c)); });
        gated_mix_harsh<false>(d_q, s, t0, t2, k.columns, room);
        gated_mix_harsh<true>(d_k, s, t0, t1, k.columns, room);
    } else
        gated_pairs(d_q, d_k, s, t0, t1, t2, p.scale, k.columns);
    int64_t at = x.at * p.keys + key;
    if (d.d_q) strip_to_memory(d_q, d.d_q + at, k.stride, x.rows, k.columns, 1);
    if (d.d_k) strip_to_memory(d_k, d.d_k + at, k.stride, x.rows, k.columns, 1);
    if (d.query) strip_to_memory(d_q, d.query + at, k.stride, x.rows, k.columns, 1);
    __syncthreads();
    float *d_key = reinterpret_cast<float *>(t0); /* [64][LD] floats; two bf16 tiles hold them */
    strip_each(d_q, [&](int r, int c, float &y) {
        bool there = r < x.rows && c < k.columns;
        GATED_G(s, r, c) = there ? y * k.query_at(r, c) : 0;
    });
    strip_each(d_k, [&](int r, int c, float &y) {
        bool there = r < x.rows && c < k.columns;
        if (there) GATED_G(s, r, c) -= y * k.key_at(r, c);
        d_key[r * tile_of<float>::LD + c] = y;
    });
    __syncthreads();
    gated_gate_gradient(p, s, d_key, x, key, k, d);
}

/* ---- launches ---- */
template <typename T> static inline size_t gated_shared(int tiles)
{
    return sizeof(gated_sums) + (size_t)tiles * tile_of<T>::SIZE * sizeof(T);
}

template <typename T>
static inline dim3 gated_grid(const gated<T> &p, int64_t sequences, int64_t y, int64_t z = 1)
{
    return dim3((unsigned)(sequences * p.heads * p.chunks), (unsigned)kernel_blocks(y, TILE),
                (unsigned)kernel_blocks(z, TILE));
}

/* States at chunk starts from the keys and values of p and perhaps more passes over the same gates. */
template <typename T, bool BACKWARD>
static inline void gated_run_local(const kernel_run *run, const gated<T> &p, int64_t sequences)
{
    cuda_launch(gated_local<T, BACKWARD>, gated_grid(p, sequences, p.keys, p.values), dim3(TILE_THREADS),
                gated_shared<T>(2), (cudaStream_t)run->stream, p);
}

template <typename T, bool BACKWARD>
static inline void gated_run_scan(const kernel_run *run, const gated<T> &p, int64_t sequences,
                                  const float *in, float *out)
{
    int64_t row = BACKWARD ? p.values : p.row, count = sequences * p.heads * p.keys * row;
    cuda_launch(gated_scan<BACKWARD>, dim3((unsigned)kernel_blocks(count, GATED_SCAN_THREADS)),
                dim3(GATED_SCAN_THREADS), 0, (cudaStream_t)run->stream, BACKWARD ? p.grads : p.states,
                (const float *)p.ends, in, out, p.chunks, p.keys, row, count);
}

template <typename T>
static inline void gated_run_output(const kernel_run *run, const gated<T> &p, int64_t sequences, T *o)
{
    cuda_launch(gated_output<T>, gated_grid(p, sequences, p.values), dim3(TILE_THREADS), gated_shared<T>(3),
                (cudaStream_t)run->stream, p, o);
}

template <typename T>
static inline void gated_run_backward(const kernel_run *run, const gated<T> &p, int64_t sequences,
                                      const gated_key_gradients<T> &d, T *d_v)
{
    cuda_launch(gated_keys_backward<T>, gated_grid(p, sequences, p.keys), dim3(TILE_THREADS),
                gated_shared<T>(sizeof(T) == 4 ? 4 : 5), (cudaStream_t)run->stream, p, d);
    cuda_launch(gated_values_backward<T>, gated_grid(p, sequences, p.values), dim3(TILE_THREADS),
                gated_shared<T>(3), (cudaStream_t)run->stream, p, d_v);
}

/* Tokens that even a few sequences walk along; longer ones need enough sequences to fill the chip. */
enum { CHAIN_MOST = 64 * TILE };

/* How many chunks to process at once where their states are not kept: bounded memory, any length. */
static inline int64_t gated_segment(int64_t chunks, int64_t chunk_bytes)
{
    const int64_t budget = (int64_t)64 << 20, least = 4;
    return kernel_max(1, kernel_min(chunks, kernel_max(least, budget / kernel_max(1, chunk_bytes))));
}

#endif
