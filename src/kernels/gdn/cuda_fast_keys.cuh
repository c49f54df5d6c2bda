/* What the chunks of the gated delta rule give to q and k, in blocks of 64 keys, and then to beta and the
 * gates. */
#ifndef BLURRY_KERNELS_GDN_CUDA_FAST_KEYS_CUH
#define BLURRY_KERNELS_GDN_CUDA_FAST_KEYS_CUH
#include "kernels/gdn/cuda_fast_squares.cuh"

/* Eight floats of a state and of its gradient, for two places of a thread. */
struct keys_piece {
    float4 s[2][2], d[2][2];
};

template <int D>
static __device__ inline void keys_fetch(keys_piece &x, const fast_view &p, int64_t index, int64_t key,
                                         int value)
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int unit = (int)threadIdx.x + i * FAST_THREADS;
        int64_t at = index * D * D + (key + unit / 8) * D + value + unit % 8 * 8;
#pragma unroll
        for (int j = 0; j < 2; j++) {
            x.s[i][j] = *reinterpret_cast<const float4 *>(p.states + at + 4 * j);
            x.d[i][j] = *reinterpret_cast<const float4 *>(p.grads + at + 4 * j);
        }
    }
}

/* As bf16 to tiles, the state with what rounding left over: the gates' gradients are small differences. The
 * sum of the products. */
static __device__ inline float keys_put(const keys_piece &x, char *high, char *low, char *grad)
{
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int unit = (int)threadIdx.x + i * FAST_THREADS, at = tile_at<8>(unit / 8, unit % 8);
        uint32_t h[4], l[4], g[4];
#pragma unroll
        for (int j = 0; j < 2; j++) {
            float4 s = x.s[i][j], d = x.d[i][j];
            sum += s.x * d.x + s.y * d.y + s.z * d.z + s.w * d.w;
            h[2 * j] = pack_bf16(s.x, s.y), h[2 * j + 1] = pack_bf16(s.z, s.w);
            g[2 * j] = pack_bf16(d.x, d.y), g[2 * j + 1] = pack_bf16(d.z, d.w);
            float2 a = unpack_bf16(h[2 * j]), b = unpack_bf16(h[2 * j + 1]);
            l[2 * j] = pack_bf16(s.x - a.x, s.y - a.y), l[2 * j + 1] = pack_bf16(s.z - b.x, s.w - b.y);
        }
        *reinterpret_cast<uint4 *>(high + at) = make_uint4(h[0], h[1], h[2], h[3]);
        *reinterpret_cast<uint4 *>(low + at) = make_uint4(l[0], l[1], l[2], l[3]);
        *reinterpret_cast<uint4 *>(grad + at) = make_uint4(g[0], g[1], g[2], g[3]);
    }
    return sum;
}

template <int D> static constexpr size_t fast_keys_shared()
{
    return (size_t)(3 * tile_bytes(FAST_CHUNK, D) + 7 * tile_bytes(FAST_CHUNK, FAST_CHUNK));
}

/* d_q, d_k of 64 key channels. Grid: chunks of all heads, blocks of 64 keys. */
template <int D>
__global__ void __launch_bounds__(FAST_THREADS, 2) gdn_fast_keys(fast_view p, bf16 *d_q, bf16 *d_k)
{
    constexpr int U = tile_units(D), TILE = tile_bytes(FAST_CHUNK, D),
                  SMALL = tile_bytes(FAST_CHUNK, FAST_CHUNK);
    CUDA_DYNAMIC_SHARED(char, tr);
    __shared__ __align__(16) float gates[FAST_GATES * FAST_CHUNK];
    __shared__ float shares[FAST_SHARES][2][FAST_CHUNK], room[32];
    char *to = tr + TILE, *tu = to + TILE, *high = tu + TILE, *low = high + SMALL, *grad = low + SMALL,
         *tq = grad + SMALL, *tk = tq + SMALL, *qk = tk + SMALL, *kk = qk + SMALL;
    const float *up = gates + FAST_UP * FAST_CHUNK, *end = gates + FAST_END * FAST_CHUNK,
                *beta = gates + FAST_BETA * FAST_CHUNK;
    fast_place x = fast_at(p, blockIdx.x / p.chunks, blockIdx.x % p.chunks);
    int64_t key = (int64_t)blockIdx.y * FAST_CHUNK;
    int warp = (int)threadIdx.x / 32, m = 16 * (warp % 4), h = 32 * (warp / 4);
    cuda_wait_previous();
    keys_piece piece;
    keys_fetch<D>(piece, p, x.index, key, 0);
    fast_gates(gates, p, x.index);
    fast_note<D>(tr, p.d_U + x.index * FAST_CHUNK * D, D);
    fast_tokens<D>(to, p, x, p.d_o, p.V);
    fast_note<D>(tu, p.U + x.index * FAST_CHUNK * D, D);
    tile_load<FAST_CHUNK, FAST_CHUNK, FAST_THREADS>(tq, p.q + x.at * p.K + key, p.heads * p.K, x.rows,
                                                    (int)(p.K - key), (int)threadIdx.x);
    tile_load<FAST_CHUNK, FAST_CHUNK, FAST_THREADS>(tk, p.k + x.at * p.K + key, p.heads * p.K, x.rows,
                                                    (int)(p.K - key), (int)threadIdx.x);
    fast_note<FAST_CHUNK>(qk, p.d_qk + x.index * FAST_SQUARE, FAST_CHUNK);
    fast_note<FAST_CHUNK>(kk, p.d_kk + x.index * FAST_SQUARE, FAST_CHUNK);
    copy_async_commit();
    float X[4][4], Y[4][4], Z[4][4], fading = 0; /* d_R S0^T, d_o S0^T, U D^T */
    tile_zero(X);
    tile_zero(Y);
    tile_zero(Z);
#pragma unroll
    for (int value = 0; value < D; value += FAST_CHUNK) {
        __syncthreads();
        fading += keys_put(piece, high, low, grad);
        if (value == 0) copy_async_wait<0>();
        __syncthreads();
        if (value + FAST_CHUNK < D) keys_fetch<D>(piece, p, x.index, key, value + FAST_CHUNK);
#pragma unroll
        for (int k = 0; k < FAST_CHUNK; k += 16) {
            uint32_t r[4], o[4], u[4];
            tile_a<U>(r, tr, m, value + k);
            tile_a<U>(o, to, m, value + k);
            tile_a<U>(u, tu, m, value + k);
            tile_mma_trans<8>(X, r, high, h, k);
            tile_mma_trans<8>(Y, o, high, h, k);
            tile_mma_trans<8>(Z, u, grad, h, k);
            tile_mma_trans<8>(X, r, low, h, k);
            tile_mma_trans<8>(Y, o, low, h, k);
        }
    }
    fast_each(X, m, 0, [&](int r, int, float &y) { y *= up[r]; });
    fast_each(Y, m, 0, [&](int r, int, float &y) { y *= p.scale * up[r]; });
    fast_each(Z, m, 0, [&](int r, int, float &y) { y *= end[r]; });
    float total[2];
    auto k_at = [&](int r, int c) { return unpack_bf16(*fast_word<8>(tk, m + r, h + c)); };
    fast_sum_rows(total, X, k_at);
    fast_put_rows(shares[FAST_X][h / 32] + m, total);
    fast_sum_rows(total, Y, [&](int r, int c) { return unpack_bf16(*fast_word<8>(tq, m + r, h + c)); });
    fast_put_rows(shares[FAST_Y][h / 32] + m, total);
    fast_sum_rows(total, Z, k_at);
    fast_put_rows(shares[FAST_Z][h / 32] + m, total);
    fast_each(X, m, 0, [&](int r, int, float &y) { y *= beta[r]; });
#pragma unroll
    for (int n = 0; n < 4; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) Z[n][e] -= X[n][e];
#pragma unroll
    for (int k = 0; k < FAST_CHUNK; k += 16) {
        uint32_t a[4];
        if (k <= m) {
            tile_a<8>(a, qk, m, k);
            tile_mma<8>(Y, a, tk, k, h);
            tile_a<8>(a, kk, m, k);
            tile_mma<8>(Z, a, tk, k, h);
        }
        if (k >= m) {
            tile_a_trans<8>(a, qk, m, k);
            tile_mma<8>(Z, a, tq, k, h);
            tile_a_trans<8>(a, kk, m, k);
            tile_mma<8>(Z, a, tk, k, h);
        }
    }
    int64_t at = (x.at + m * p.heads) * p.K + key + h;
    tile_store_rows(Y, d_q + at, p.heads * p.K, x.rows - m, (int)(p.K - key) - h);
    tile_store_rows(Z, d_k + at, p.heads * p.K, x.rows - m, (int)(p.K - key) - h);
    fading = block_sum(fading, room);
    int t = (int)threadIdx.x;
    if (t == 0) p.ends[x.index * gridDim.y + blockIdx.y] = fading * up[FAST_CHUNK - 1];
    if (t >= FAST_CHUNK) return;
    for (int i = 0; i < FAST_SHARES; i++)
        fast_row(p, x.index, FAST_BY_BLOCK + FAST_SHARES * blockIdx.y + i)[t] =
            shares[i][0][t] + shares[i][1][t];
}

/* d_beta and d_g from their shares. Grid: chunks of all heads, 64 threads. */
static __global__ void gdn_fast_gates(fast_view p, bf16 *d_beta, bf16 *d_g, int blocks)
{
    __shared__ float ends[2], second;
    fast_place x = fast_at(p, blockIdx.x / p.chunks, blockIdx.x % p.chunks);
    int t = (int)threadIdx.x, lane = t % 32;
    cuda_wait_previous();
    float share[FAST_SHARES] = {}, end = 0;
    for (int b = 0; b < blocks; b++) {
        end += p.ends[x.index * blocks + b];
#pragma unroll
        for (int i = 0; i < FAST_SHARES; i++)
            share[i] += fast_row(p, x.index, FAST_BY_BLOCK + FAST_SHARES * b + i)[t];
    }
    float beta = p.gates[(x.index * FAST_GATES + FAST_BETA) * FAST_CHUNK + t];
    float later = fast_row(p, x.index, FAST_D_GATE)[t] + share[FAST_Y] - beta * share[FAST_X] - share[FAST_Z];
    for (int away = 1; away < 32; away *= 2) {
        float next = __shfl_down_sync(CUDA_FULL_WARP, later, away);
        if (lane + away < 32) later += next;
    }
    float z = warp_sum(share[FAST_Z]);
    if (lane == 0) ends[t / 32] = z;
    if (t == 32) second = later;
    __syncthreads();
    if (t >= x.rows) return;
    later += end + ends[0] + ends[1] + (t < 32 ? second : 0);
    d_g[x.at + t * p.heads] = to_bf16(later);
    d_beta[x.at + t * p.heads] = to_bf16(fast_row(p, x.index, FAST_D_BETA)[t] - share[FAST_X]);
}

#endif
