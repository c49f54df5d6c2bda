/* The gradients of the states of the gated delta rule, from the last chunk to the first (cuda_backward.cuh).
 */
#ifndef BLURRY_KERNELS_GDN_CUDA_SCAN_BACKWARD_CUH
#define BLURRY_KERNELS_GDN_CUDA_SCAN_BACKWARD_CUH
#include "kernels/gdn/cuda_chunk.cuh"

/* The first part of d_U, and scale e^G d_o. Grid: chunks of all heads, blocks of 64 values. */
template <typename T> __global__ void __launch_bounds__(TILE_THREADS) gdn_corrections(gdn_view<T> p)
{
    CUDA_DYNAMIC_SHARED(char, shared);
    gdn_gates *s = reinterpret_cast<gdn_gates *>(shared);
    T *tq = reinterpret_cast<T *>(s + 1), *tk = tq + tile_of<T>::SIZE;
    gdn_place x = gdn_at(p, blockIdx.x / p.chunks, blockIdx.x % p.chunks);
    int64_t value = (int64_t)blockIdx.y * TILE, note = x.index * TILE * p.V + value;
    int values = gdn_most(p.V, value);
    strip scores, sum;
    strip_zero(scores);
    strip_zero(sum);
    gdn_gate(s, p, x);
    for (int64_t key = 0; key < p.K; key += TILE) {
        int64_t at = x.at * p.K + key;
        __syncthreads();
        tile_load(tq, p.q + at, p.heads * p.K, x.rows, gdn_most(p.K, key));
        tile_load(tk, p.k + at, p.heads * p.K, x.rows, gdn_most(p.K, key));
        __syncthreads();
        tile_product<false, true>(scores, tq, tk, 0, gdn_most(p.K, key), 16 * tile_warp() + 16);
    }
    gdn_fade<true>(scores, s);
    __syncthreads();
    strip_to_tile(scores, tq);
    tile_load(tk, p.d_o + x.at * p.V + value, p.heads * p.V, x.rows, values);
    __syncthreads();
    tile_product<true, false>(sum, tq, tk, 16 * tile_warp(), TILE, values);
    strip_to_memory(sum, p.d_U + note, p.V, TILE, values, p.scale);
    strip_each(sum, [&](int r, int c, float &y) { y = cuda_load(tk + r * tile_of<T>::LD + c) * s->up[r]; });
    strip_to_memory(sum, p.late + note, p.V, TILE, values, p.scale);
}

/* D and d_U, from the last chunk to the first, as gdn_scan. Shared: stages of (q, k and W: KB tiles each,
 * d_U, d_o), then KB tiles of D. */
template <typename T, int KB> __global__ void __launch_bounds__(TILE_THREADS) gdn_scan_backward(gdn_view<T> p)
{
    const int SIZE = tile_of<T>::SIZE, STAGE = (3 * KB + 2) * SIZE;
    const bool AHEAD = sizeof(T) == 2;
    CUDA_DYNAMIC_SHARED(T, stage);
    T *td = stage + (AHEAD ? 2 : 1) * STAGE;
    int64_t head = blockIdx.x, value = (int64_t)blockIdx.y * TILE, first = head * p.chunks;
    int values = gdn_most(p.V, value);
    strip D[KB];
#pragma unroll
    for (int k = 0; k < KB; k++) strip_zero(D[k]);
    auto load = [&](int64_t chunk, int at) {
        gdn_place x = gdn_at(p, head, chunk);
        T *tq = stage + at * STAGE, *tk = tq + KB * SIZE, *tw = tk + KB * SIZE, *tu = tw + KB * SIZE;
#pragma unroll
        for (int k = 0; k < KB; k++) {
            int keys = gdn_most(p.K, k * TILE);
            tile_load_async(tq + k * SIZE, p.q + x.at * p.K + k * TILE, p.heads * p.K, x.rows, keys);
            tile_load_async(tk + k * SIZE, p.k + x.at * p.K + k * TILE, p.heads * p.K, x.rows, keys);
            tile_load_async(tw + k * SIZE, p.W + x.index * TILE * p.K + k * TILE, p.K, TILE, keys);
        }
        tile_load_async(tu, p.d_U + x.index * TILE * p.V + value, p.V, TILE, values);
        tile_load_async(tu + SIZE, p.late + x.index * TILE * p.V + value, p.V, TILE, values);
        copy_async_commit();
    };
    load(p.chunks - 1, 0);
    for (int64_t turn = 0; turn < p.chunks; turn++) {
        int64_t chunk = p.chunks - 1 - turn, index = first + chunk;
        int at = AHEAD ? (int)(turn & 1) : 0;
        T *tq = stage + at * STAGE, *tk = tq + KB * SIZE, *tw = tk + KB * SIZE, *tu = tw + KB * SIZE;
        gdn_fades fade = gdn_fades_of(p, index);
        if (AHEAD && chunk > 0) load(chunk - 1, at ^ 1);
#pragma unroll
        for (int k = 0; k < KB; k++) {
            strip_to_tile(D[k], td + k * SIZE);
            strip_to_memory(D[k], p.grads + (index * p.K + k * TILE) * p.V + value, p.V,
                            gdn_most(p.K, k * TILE), values, 1);
        }
        if (AHEAD && chunk > 0)
            copy_async_wait<1>();
        else
            copy_async_wait<0>();
        __syncthreads();
        strip sum;
        strip_zero(sum);
#pragma unroll
        for (int k = 0; k < KB; k++) tile_product<false, false>(sum, tk + k * SIZE, td + k * SIZE);
        gdn_scale_rows(sum, fade.end);
        strip_each(sum, [&](int r, int c, float &y) { y += cuda_load(tu + r * tile_of<T>::LD + c); });
        strip_to_memory(sum, p.d_U + index * TILE * p.V + value, p.V, TILE, values, 1);
        gdn_scale(sum, -1);
        strip_to_tile(sum, tu); /* every thread its own elements */
        __syncthreads();
#pragma unroll
        for (int k = 0; k < KB; k++) {
            gdn_scale(D[k], fade.all);
            tile_product<true, false>(D[k], tq + k * SIZE, tu + SIZE);
            tile_product<true, false>(D[k], tw + k * SIZE, tu);
        }
        __syncthreads();
        if (!AHEAD && chunk > 0) load(chunk - 1, 0);
    }
}

/* The same for any number of key channels, D in memory. Shared: tiles of q or k, W or D, d_o, d_U. */
template <typename T> __global__ void __launch_bounds__(TILE_THREADS) gdn_scan_backward_wide(gdn_view<T> p)
{
    const int SIZE = tile_of<T>::SIZE;
    CUDA_DYNAMIC_SHARED(T, tx);
    T *ty = tx + SIZE, *to = ty + SIZE, *tu = to + SIZE;
    int64_t head = blockIdx.x, value = (int64_t)blockIdx.y * TILE, size = p.K * p.V;
    int values = gdn_most(p.V, value);
    strip h, sum;
    strip_zero(h);
    for (int64_t k = 0; k < p.K; k += TILE)
        strip_to_memory(h, p.grads + (head * p.chunks + p.chunks - 1) * size + k * p.V + value, p.V,
                        gdn_most(p.K, k), values, 1);
    for (int64_t chunk = p.chunks - 1; chunk >= 0; chunk--) {
        gdn_place x = gdn_at(p, head, chunk);
        gdn_fades fade = gdn_fades_of(p, x.index);
        float *now = p.grads + x.index * size + value;
        T *u = p.d_U + x.index * TILE * p.V + value;
        strip_zero(sum);
        for (int64_t k = 0; k < p.K; k += TILE) {
            __syncthreads();
            tile_load(ty, now + k * p.V, p.V, gdn_most(p.K, k), values);
            tile_load(tx, p.k + x.at * p.K + k, p.heads * p.K, x.rows, gdn_most(p.K, k));
            __syncthreads();
            tile_product<false, false>(sum, tx, ty);
        }
        gdn_scale_rows(sum, fade.end);
        strip_each(sum, [&](int r, int c, float &y) { y += c < values ? cuda_load(u + r * p.V + c) : 0; });
        strip_to_memory(sum, u, p.V, TILE, values, 1);
        gdn_scale(sum, -1);
        strip_to_tile(sum, tu);
        tile_load(to, p.late + x.index * TILE * p.V + value, p.V, TILE, values);
        for (int64_t k = 0; k < (chunk ? p.K : 0); k += TILE) {
            gdn_read(h, now + k * p.V, p.V, gdn_most(p.K, k), values);
            gdn_scale(h, fade.all);
            __syncthreads();
            tile_load(tx, p.q + x.at * p.K + k, p.heads * p.K, x.rows, gdn_most(p.K, k));
            tile_load(ty, p.W + x.index * TILE * p.K + k, p.K, TILE, gdn_most(p.K, k));
            __syncthreads();
            tile_product<true, false>(h, tx, to);
            tile_product<true, false>(h, ty, tu);
            strip_to_memory(h, now - size + k * p.V, p.V, gdn_most(p.K, k), values, 1);
        }
    }
}

#endif
