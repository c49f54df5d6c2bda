/* The gated delta rule forward on CUDA, in chunks of 64 tokens. With G_t the sum of gates since the chunk's
 * start, E[t,s] = e^{G_t - G_s} and M[t,s] = beta_t E[t,s] k_t.k_s (s < t), the corrections of a chunk are
 *     U = N (beta v) - W S0,   N = (I + M)^-1,   W = N (beta e^G k)
 * so all chunks are solved at once, then the states follow one another (parallel over heads and values):
 *     S1 = e^{G_end} S0 + (e^{G_end - G} k)^T U,   o = scale (e^G q S0 + lower(E q k^T) U) */
#ifndef BLURRY_KERNELS_GDN_CUDA_FORWARD_CUH
#define BLURRY_KERNELS_GDN_CUDA_FORWARD_CUH
#include "kernels/gdn/cuda_chunk.cuh"

/* N, W and N (beta v). Grid: chunks of all heads. */
template <typename T> __global__ void __launch_bounds__(TILE_THREADS) gdn_prepare(gdn_view<T> p)
{
    CUDA_DYNAMIC_SHARED(char, shared);
    gdn_gates *s = reinterpret_cast<gdn_gates *>(shared);
    float *M = reinterpret_cast<float *>(s + 1), *room = M + tile_of<float>::SIZE;
    T *tn = reinterpret_cast<T *>(M), *tx = reinterpret_cast<T *>(room); /* M ends up as N in the type T */
    gdn_place x = gdn_at(p, blockIdx.x / p.chunks, blockIdx.x % p.chunks);
    strip kk;
    strip_zero(kk);
    gdn_gate(s, p, x);
    if (threadIdx.x < TILE) {
        p.gates[x.index * 2 * TILE + threadIdx.x] = s->up[threadIdx.x];
        p.gates[(x.index * 2 + 1) * TILE + threadIdx.x] = s->end[threadIdx.x];
    }
    for (int64_t key = 0; key < p.K; key += TILE) {
        __syncthreads();
        tile_load(tx, p.k + x.at * p.K + key, p.heads * p.K, x.rows, gdn_most(p.K, key));
        __syncthreads();
        tile_product<false, true>(kk, tx, tx, 0, gdn_most(p.K, key), 16 * tile_warp() + 16);
    }
    gdn_fade<false>(kk, s);
    strip_each(kk, [&](int t, int, float &y) { y *= s->beta[t]; });
    strip_to_tile(kk, M);
    gdn_invert(M, room);
    strip_each(kk, [&](int t, int u, float &y) { y = M[t * tile_of<float>::LD + u]; });
    __syncthreads();
    strip_to_tile(kk, tn);
    strip_to_memory(kk, p.inverse + x.index * TILE * TILE, TILE, TILE, TILE, 1);
    for (int64_t c = 0; c < p.K + p.V; c = c < p.K ? min(c + TILE, p.K) : c + TILE) {
        bool key = c < p.K;
        int64_t width = key ? p.K : p.V, from = key ? c : c - p.K;
        int columns = gdn_most(width, from);
        __syncthreads();
        tile_fill(tx, (key ? p.k : p.v) + x.at * width + from, p.heads * width, x.rows, columns,
                  [&](float y, int t, int) { return y * s->beta[t] * (key ? s->up[t] : 1); });
        __syncthreads();
        strip sum;
        strip_zero(sum);
        tile_product<false, false>(sum, tn, tx, 0, 16 * tile_warp() + 16, columns);
        strip_to_memory(sum, (key ? p.W : p.U) + x.index * TILE * width + from, width, TILE, columns, 1);
    }
}

/* The states, chunk after chunk, for up to KB * 64 key channels, which stay in registers; U becomes what it
 * is with them. In bf16 the next chunk loads meanwhile. Grid: batch * heads, blocks of 64 values. Shared:
 * stages of (W and k: KB tiles each, U), then KB tiles of the state. */
template <typename T, int KB>
__global__ void __launch_bounds__(TILE_THREADS) gdn_scan(gdn_view<T> p, const float *in, float *out)
{
    const int SIZE = tile_of<T>::SIZE, STAGE = (2 * KB + 1) * SIZE;
    const bool AHEAD = sizeof(T) == 2;
    CUDA_DYNAMIC_SHARED(T, stage);
    T *ts = stage + (AHEAD ? 2 : 1) * STAGE;
    int64_t head = blockIdx.x, value = (int64_t)blockIdx.y * TILE, first = head * p.chunks;
    int values = gdn_most(p.V, value);
    strip state[KB];
#pragma unroll
    for (int k = 0; k < KB; k++)
        gdn_read(state[k], in ? in + (head * p.K + k * TILE) * p.V + value : nullptr, p.V,
                 gdn_most(p.K, k * TILE), values);
    auto load = [&](int64_t chunk, int at) {
        gdn_place x = gdn_at(p, head, chunk);
        T *tw = stage + at * STAGE, *tk = tw + KB * SIZE;
#pragma unroll
        for (int k = 0; k < KB; k++) {
            int keys = gdn_most(p.K, k * TILE);
            tile_load_async(tw + k * SIZE, p.W + x.index * TILE * p.K + k * TILE, p.K, TILE, keys);
            tile_load_async(tk + k * SIZE, p.k + x.at * p.K + k * TILE, p.heads * p.K, x.rows, keys);
        }
        tile_load_async(tk + KB * SIZE, p.U + x.index * TILE * p.V + value, p.V, TILE, values);
        copy_async_commit();
    };
    if (p.chunks > 0) load(0, 0);
    for (int64_t chunk = 0; chunk < p.chunks; chunk++) {
        int64_t index = first + chunk;
        int at = AHEAD ? (int)(chunk & 1) : 0;
        T *tw = stage + at * STAGE, *tk = tw + KB * SIZE, *tu = tk + KB * SIZE;
        gdn_fades fade = gdn_fades_of(p, index);
        if (AHEAD && chunk + 1 < p.chunks) load(chunk + 1, at ^ 1);
#pragma unroll
        for (int k = 0; k < KB; k++) {
            strip_to_tile(state[k], ts + k * SIZE);
            strip_to_memory(state[k], p.states + (index * p.K + k * TILE) * p.V + value, p.V,
                            gdn_most(p.K, k * TILE), values, 1);
        }
        if (AHEAD && chunk + 1 < p.chunks)
            copy_async_wait<1>();
        else
            copy_async_wait<0>();
        __syncthreads();
        strip sum;
        strip_zero(sum);
#pragma unroll
        for (int k = 0; k < KB; k++) tile_product<false, false>(sum, tw + k * SIZE, ts + k * SIZE);
        strip_each(sum, [&](int r, int c, float &y) { y = cuda_load(tu + r * tile_of<T>::LD + c) - y; });
        strip_to_memory(sum, p.U + index * TILE * p.V + value, p.V, TILE, values, 1);
        gdn_scale_rows(sum, fade.end);
        strip_to_tile(sum, tu); /* every thread its own elements */
        __syncthreads();
#pragma unroll
        for (int k = 0; k < KB; k++) {
            gdn_scale(state[k], fade.all);
            tile_product<true, false>(state[k], tk + k * SIZE, tu);
        }
        __syncthreads();
        if (!AHEAD && chunk + 1 < p.chunks) load(chunk + 1, 0);
    }
#pragma unroll
    for (int k = 0; k < KB; k++)
        if (out)
            strip_to_memory(state[k], out + (head * p.K + k * TILE) * p.V + value, p.V,
                            gdn_most(p.K, k * TILE), values, 1);
}

/* The same for any number of key channels, the state in memory. Shared: tiles of W or k, the state, U. */
template <typename T>
__global__ void __launch_bounds__(TILE_THREADS) gdn_scan_wide(gdn_view<T> p, const float *in, float *out)
{
    const int SIZE = tile_of<T>::SIZE;
    CUDA_DYNAMIC_SHARED(T, tx);
    T *ts = tx + SIZE, *tu = ts + SIZE;
    int64_t head = blockIdx.x, value = (int64_t)blockIdx.y * TILE, size = p.K * p.V;
    int values = gdn_most(p.V, value);
    strip h, sum;
    auto copy = [&](const float *from, float *to) {
        for (int64_t k = 0; k < p.K; k += TILE) {
            gdn_read(h, from ? from + head * size + k * p.V + value : nullptr, p.V, gdn_most(p.K, k), values);
            strip_to_memory(h, to + k * p.V + value, p.V, gdn_most(p.K, k), values, 1);
        }
    };
    if (p.chunks > 0) copy(in, p.states + head * p.chunks * size);
    if (p.chunks == 0 && out) copy(in, out + head * size);
    for (int64_t chunk = 0; chunk < p.chunks; chunk++) {
        gdn_place x = gdn_at(p, head, chunk);
        gdn_fades fade = gdn_fades_of(p, x.index);
        float *now = p.states + x.index * size + value;
        float *next = chunk + 1 < p.chunks ? now + size : out ? out + head * size + value : nullptr;
        T *u = p.U + x.index * TILE * p.V + value;
        strip_zero(sum);
        for (int64_t k = 0; k < p.K; k += TILE) {
            __syncthreads();
            tile_load(ts, now + k * p.V, p.V, gdn_most(p.K, k), values);
            tile_load(tx, p.W + x.index * TILE * p.K + k, p.K, TILE, gdn_most(p.K, k));
            __syncthreads();
            tile_product<false, false>(sum, tx, ts);
        }
        strip_each(sum,
                   [&](int r, int c, float &y) { y = (c < values ? cuda_load(u + r * p.V + c) : 0) - y; });
        strip_to_memory(sum, u, p.V, TILE, values, 1);
        gdn_scale_rows(sum, fade.end);
        strip_to_tile(sum, tu);
        for (int64_t k = 0; k < (next ? p.K : 0); k += TILE) {
            gdn_read(h, now + k * p.V, p.V, gdn_most(p.K, k), values);
            gdn_scale(h, fade.all);
            __syncthreads();
            tile_load(tx, p.k + x.at * p.K + k, p.heads * p.K, x.rows, gdn_most(p.K, k));
            __syncthreads();
            tile_product<true, false>(h, tx, tu);
            strip_to_memory(h, next + k * p.V, p.V, gdn_most(p.K, k), values, 1);
        }
    }
}

/* o. Grid: chunks of all heads, blocks of 64 values. */
template <typename T> __global__ void __launch_bounds__(TILE_THREADS) gdn_output(gdn_view<T> p, T *o)
{
    CUDA_DYNAMIC_SHARED(char, shared);
    gdn_gates *s = reinterpret_cast<gdn_gates *>(shared);
    T *tq = reinterpret_cast<T *>(s + 1), *tk = tq + tile_of<T>::SIZE, *ts = tk + tile_of<T>::SIZE;
    gdn_place x = gdn_at(p, blockIdx.x / p.chunks, blockIdx.x % p.chunks);
    int64_t value = (int64_t)blockIdx.y * TILE;
    int values = gdn_most(p.V, value), seen = 16 * tile_warp() + 16;
    strip scores, out;
    strip_zero(scores);
    strip_zero(out);
    gdn_gate(s, p, x);
    for (int64_t key = 0; key < p.K; key += TILE) {
        int keys = gdn_most(p.K, key);
        int64_t at = x.at * p.K + key;
        __syncthreads();
        tile_load(tq, p.q + at, p.heads * p.K, x.rows, keys);
        tile_load(tk, p.k + at, p.heads * p.K, x.rows, keys);
        tile_load(ts, p.states + (x.index * p.K + key) * p.V + value, p.V, keys, values);
        __syncthreads();
        tile_product<false, true>(scores, tq, tk, 0, keys, seen);
        tile_product<false, false>(out, tq, ts, 0, keys, values);
    }
    gdn_fade<true>(scores, s);
    strip_each(out, [&](int r, int, float &y) { y *= s->up[r]; });
    __syncthreads();
    tile_load(tk, p.U + x.index * TILE * p.V + value, p.V, TILE, values);
    __syncthreads();
    strip_product<false>(out, scores, tk, tq, 0, seen, values);
    strip_to_memory(out, o + x.at * p.V + value, p.heads * p.V, x.rows, values, p.scale);
}

#endif
