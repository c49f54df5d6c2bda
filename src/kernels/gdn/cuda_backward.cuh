/* The gated delta rule backward on CUDA. From what forward noted (states at chunk starts, N, W, U): the
 * gradients D of the states at chunk ends, chunk after chunk from the last,
 *     d_U = lower(E q k^T)^T d_o' + (e^{G_end - G} k) D,   D0 = e^{G_end} D + (e^G q)^T d_o' - W^T d_U
 * with d_o' = scale d_o; then, all chunks at once, what they give to q, k, v, beta and the gates. */
#ifndef BLURRY_KERNELS_GDN_CUDA_BACKWARD_CUH
#define BLURRY_KERNELS_GDN_CUDA_BACKWARD_CUH
#include "kernels/gdn/cuda_chunk.cuh"

enum { GDN_D_BETA, GDN_D_GATE, GDN_BY_BLOCK, GDN_X = 0, GDN_Y = 1, GDN_Z = 2, GDN_SHARES = 3 };

template <typename T>
static __device__ inline float *gdn_row(const gdn_view<T> &p, int64_t index, int64_t which)
{
    int64_t blocks = (p.K + TILE - 1) / TILE;
    return p.rows + (index * (GDN_BY_BLOCK + GDN_SHARES * blocks) + which) * TILE;
}

/* This thread's two rows summed over the columns of the tile, for the quad that holds them. */
template <typename Fn> static __device__ inline void gdn_sum_rows(float total[2], const strip &x, Fn f)
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int r = 16 * tile_warp() + tile_lane() / 4 + 8 * half;
        float sum = 0;
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int e = 0; e < 2; e++) sum += x.x[n][2 * half + e] * f(r, 8 * n + tile_lane() % 4 * 2 + e);
        sum += __shfl_xor_sync(CUDA_FULL_WARP, sum, 1);
        sum += __shfl_xor_sync(CUDA_FULL_WARP, sum, 2);
        total[half] += sum;
    }
}

static __device__ inline void gdn_write_rows(float *to, const float total[2])
{
    if (tile_lane() % 4 == 0)
        for (int half = 0; half < 2; half++) to[16 * tile_warp() + tile_lane() / 4 + 8 * half] = total[half];
}

/* d_R = N^T d_U (over d_U), d_v, the gradients of q k^T and k k^T, and what they give to d_beta and the
 * gates. Grid: chunks of all heads. */
template <typename T>
__global__ void __launch_bounds__(TILE_THREADS) gdn_squares_backward(gdn_view<T> p, T *d_v)
{
    const int SIZE = tile_of<T>::SIZE, LD = tile_of<T>::LD, ROW = tile_of<float>::LD;
    CUDA_DYNAMIC_SHARED(char, shared);
    gdn_gates *s = reinterpret_cast<gdn_gates *>(shared);
    float *both = reinterpret_cast<float *>(s + 1);
    T *tn = reinterpret_cast<T *>(both + tile_of<float>::SIZE), *tu = tn + SIZE, *to = tu + SIZE,
      *tr = to + SIZE;
    gdn_place x = gdn_at(p, blockIdx.x / p.chunks, blockIdx.x % p.chunks);
    strip d_qk, d_kk;
    float d_beta[2] = {0, 0};
    int seen = 16 * tile_warp() + 16;
    strip_zero(d_qk);
    strip_zero(d_kk);
    gdn_gate(s, p, x);
    tile_load(tn, p.inverse + x.index * TILE * TILE, TILE, TILE, TILE);
    for (int64_t value = 0; value < p.V; value += TILE) {
        int values = gdn_most(p.V, value);
        int64_t own = x.index * TILE * p.V + value, at = x.at * p.V + value, stride = p.heads * p.V;
        strip d_R;
        strip_zero(d_R);
        __syncthreads();
        tile_load(tu, p.U + own, p.V, TILE, values);
        tile_load(tr, p.d_U + own, p.V, TILE, values);
        tile_load(to, p.d_o + at, stride, x.rows, values);
        __syncthreads();
        tile_product<true, false>(d_R, tn, tr, 16 * tile_warp(), TILE, values);
        tile_product<false, true>(d_qk, to, tu, 0, values, seen);
        __syncthreads();
        strip_to_tile(d_R, tr);
        strip_to_memory(d_R, p.d_U + own, p.V, TILE, values, 1);
        tile_load(to, p.v + at, stride, x.rows, values);
        __syncthreads();
        tile_product<false, true>(d_kk, tr, tu, 0, values, seen);
        gdn_sum_rows(d_beta, d_R, [&](int r, int c) { return cuda_load(to + r * LD + c); });
        strip_each(d_R, [&](int r, int, float &y) { y *= s->beta[r]; });
        strip_to_memory(d_R, d_v + at, stride, x.rows, values, 1);
    }
    strip qk, kk;
    strip_zero(qk);
    strip_zero(kk);
    for (int64_t key = 0; key < p.K; key += TILE) {
        int keys = gdn_most(p.K, key);
        __syncthreads();
        tile_load(tu, p.q + x.at * p.K + key, p.heads * p.K, x.rows, keys);
        tile_load(tr, p.k + x.at * p.K + key, p.heads * p.K, x.rows, keys);
        __syncthreads();
        tile_product<false, true>(qk, tu, tr, 0, keys, seen);
        tile_product<false, true>(kk, tr, tr, 0, keys, seen);
    }
    /* d_kk is so far the gradient of -M = -beta E k k^T, below the diagonal */
    gdn_fade<true>(d_qk, s);
    gdn_fade<false>(d_kk, s);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int r = 16 * tile_warp() + tile_lane() / 4 + 8 * half;
        float by_beta = 0;
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int e = 2 * half; e < 2 * half + 2; e++) {
                float m = -d_kk.x[n][e] * kk.x[n][e];
                d_qk.x[n][e] *= p.scale;
                d_kk.x[n][e] *= -s->beta[r];
                by_beta += m;
                both[r * ROW + 8 * n + tile_lane() % 4 * 2 + e % 2] =
                    d_qk.x[n][e] * qk.x[n][e] + m * s->beta[r];
            }
        by_beta += __shfl_xor_sync(CUDA_FULL_WARP, by_beta, 1);
        by_beta += __shfl_xor_sync(CUDA_FULL_WARP, by_beta, 2);
        d_beta[half] += by_beta;
    }
    strip_to_memory(d_qk, p.d_qk + x.index * TILE * TILE, TILE, TILE, TILE, 1);
    strip_to_memory(d_kk, p.d_kk + x.index * TILE * TILE, TILE, TILE, TILE, 1);
    gdn_write_rows(gdn_row(p, x.index, GDN_D_BETA), d_beta);
    __syncthreads();
    int i = (int)threadIdx.x;
    if (i < TILE) {
        float sum = 0;
        for (int j = 0; j < TILE; j++) sum += both[i * ROW + j] - both[j * ROW + i];
        gdn_row(p, x.index, GDN_D_GATE)[i] = sum;
    }
}

/* d_q, d_k of 64 key channels. Grid: chunks of all heads, blocks of 64 keys. */
template <typename T>
__global__ void __launch_bounds__(TILE_THREADS) gdn_keys_backward(gdn_view<T> p, T *d_q, T *d_k)
{
    const int SIZE = tile_of<T>::SIZE, LD = tile_of<T>::LD;
    CUDA_DYNAMIC_SHARED(char, shared);
    gdn_gates *s = reinterpret_cast<gdn_gates *>(shared);
    __shared__ float room[32];
    T *t0 = reinterpret_cast<T *>(s + 1), *t1 = t0 + SIZE, *t2 = t1 + SIZE, *t3 = t2 + SIZE, *t4 = t3 + SIZE,
      *t5 = t4 + SIZE; /* bf16 only */
    gdn_place x = gdn_at(p, blockIdx.x / p.chunks, blockIdx.x % p.chunks);
    int64_t key = (int64_t)blockIdx.y * TILE, blocks = gridDim.y;
    int keys = gdn_most(p.K, key);
    float fading = 0;
    strip X, Y, Z; /* d_R S0^T, d_o S0^T, U D^T */
    strip_zero(X);
    strip_zero(Y);
    strip_zero(Z);
    gdn_gate(s, p, x);
    for (int64_t value = 0; value < p.V; value += TILE) {
        int values = gdn_most(p.V, value);
        int64_t own = x.index * TILE * p.V + value, state = (x.index * p.K + key) * p.V + value;
        __syncthreads();
        tile_load(t0, p.d_U + own, p.V, TILE, values);
        tile_load(t1, p.d_o + x.at * p.V + value, p.heads * p.V, x.rows, values);
        tile_load(t2, p.U + own, p.V, TILE, values);
        tile_load_split(t3, t5, p.states + state, p.V, keys,
                        values); /* the gates' gradients are small differences */
        tile_load(t4, p.grads + state, p.V, keys, values);
        for (int e = (int)threadIdx.x; e < keys * TILE; e += TILE_THREADS)
            if (e % TILE < values)
                fading +=
                    p.states[state + e / TILE * p.V + e % TILE] * p.grads[state + e / TILE * p.V + e % TILE];
        __syncthreads();
        tile_product<false, true>(X, t0, t3, 0, values, keys);
        tile_product<false, true>(Y, t1, t3, 0, values, keys);
        if constexpr (sizeof(T) == 2) {
            tile_product<false, true>(X, t0, t5, 0, values, keys);
            tile_product<false, true>(Y, t1, t5, 0, values, keys);
        }
        tile_product<false, true>(Z, t2, t4, 0, values, keys);
    }
    __syncthreads();
    tile_load(t0, p.q + x.at * p.K + key, p.heads * p.K, x.rows, keys);
    tile_load(t1, p.k + x.at * p.K + key, p.heads * p.K, x.rows, keys);
    tile_load(t2, p.d_qk + x.index * TILE * TILE, TILE, TILE, TILE);
    tile_load(t3, p.d_kk + x.index * TILE * TILE, TILE, TILE, TILE);
    __syncthreads();
    strip_each(X, [&](int r, int, float &y) { y *= s->up[r]; });
    strip_each(Y, [&](int r, int, float &y) { y *= p.scale * s->up[r]; });
    strip_each(Z, [&](int r, int, float &y) { y *= s->end[r]; });
    float *to = gdn_row(p, x.index, GDN_BY_BLOCK + GDN_SHARES * blockIdx.y), sums[GDN_SHARES][2] = {};
    auto k_at = [&](int r, int c) { return cuda_load(t1 + r * LD + c); };
    gdn_sum_rows(sums[GDN_X], X, k_at);
    gdn_sum_rows(sums[GDN_Y], Y, [&](int r, int c) { return cuda_load(t0 + r * LD + c); });
    gdn_sum_rows(sums[GDN_Z], Z, k_at);
    for (int i = 0; i < GDN_SHARES; i++) gdn_write_rows(to + i * TILE, sums[i]);
    int row = 16 * tile_warp();
    tile_product<false, false>(Y, t2, t1, 0, row + 16, keys);
    strip_each(X, [&](int r, int, float &y) { y *= -s->beta[r]; });
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) Z.x[n][e] += X.x[n][e];
    tile_product<true, false>(Z, t2, t0, row, TILE, keys);
    tile_product<false, false>(Z, t3, t1, 0, row + 16, keys);
    tile_product<true, false>(Z, t3, t1, row, TILE, keys);
    strip_to_memory(Y, d_q + x.at * p.K + key, p.heads * p.K, x.rows, keys, 1);
    strip_to_memory(Z, d_k + x.at * p.K + key, p.heads * p.K, x.rows, keys, 1);
    fading = block_sum(fading, room);
    if (threadIdx.x == 0) p.ends[x.index * blocks + blockIdx.y] = fading * s->up[TILE - 1];
}

/* d_beta and d_g from their shares. Grid: chunks of all heads, 64 threads. */
template <typename T> __global__ void gdn_gates_backward(gdn_view<T> p, T *d_beta, T *d_g, int blocks)
{
    __shared__ float gate[TILE], ends[TILE];
    gdn_place x = gdn_at(p, blockIdx.x / p.chunks, blockIdx.x % p.chunks);
    int t = (int)threadIdx.x;
    float share[GDN_SHARES] = {};
    for (int b = 0; b < blocks; b++)
        for (int i = 0; i < GDN_SHARES; i++)
            share[i] += gdn_row(p, x.index, GDN_BY_BLOCK + GDN_SHARES * b + i)[t];
    bool there = t < x.rows;
    float beta = there ? cuda_load(p.beta + x.at + t * p.heads) : 0;
    ends[t] = share[GDN_Z];
    gate[t] = gdn_row(p, x.index, GDN_D_GATE)[t] + share[GDN_Y] - beta * share[GDN_X] - share[GDN_Z];
    __syncthreads();
    float later = 0;
    for (int b = 0; b < blocks; b++) later += p.ends[x.index * blocks + b];
    for (int u = 0; u < TILE; u++) later += ends[u];
    for (int u = TILE - 1; u >= t; u--) later += gate[u];
    if (!there) return;
    cuda_store(d_g + x.at + t * p.heads, later);
    cuda_store(d_beta + x.at + t * p.heads, gdn_row(p, x.index, GDN_D_BETA)[t] - share[GDN_X]);
}

#endif
