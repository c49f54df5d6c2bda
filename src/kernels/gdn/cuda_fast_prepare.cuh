/* All that the forward pass of the gated delta rule needs of a chunk by itself: gates, P = lower(E q k^T),
 * N = (I + M)^-1, W = N (beta e^G k) and N (beta v). */
#ifndef BLURRY_KERNELS_GDN_CUDA_FAST_PREPARE_CUH
#define BLURRY_KERNELS_GDN_CUDA_FAST_PREPARE_CUH
#include "kernels/gdn/cuda_fast.cuh"

enum { PREPARE_LD = FAST_CHUNK + 4 }; /* floats of a row of M and N */

template <int D> static constexpr size_t fast_prepare_shared()
{
    return (size_t)(3 * tile_bytes(FAST_CHUNK, D) + 2 * tile_bytes(FAST_CHUNK, FAST_CHUNK)) +
           (2 * FAST_CHUNK * PREPARE_LD + FAST_GATES * FAST_CHUNK) * sizeof(float);
}

/* One warp, two tokens a lane. Tokens beyond the chunk have g = beta = 0. */
static __device__ inline void prepare_gates(float *gates, const fast_view &p, const fast_place &x)
{
    int t = 2 * (int)threadIdx.x;
    float g[2], beta[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        bool there = t + i < x.rows;
        g[i] = there ? from_bf16(p.g[x.at + (t + i) * p.heads]) : 0;
        beta[i] = there ? from_bf16(p.beta[x.at + (t + i) * p.heads]) : 0;
    }
    float sum = g[0] + g[1];
    for (int away = 1; away < 32; away *= 2) {
        float before = __shfl_up_sync(CUDA_FULL_WARP, sum, away);
        if ((int)threadIdx.x >= away) sum += before;
    }
    float all = __shfl_sync(CUDA_FULL_WARP, sum, 31);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float G = i ? sum : sum - g[1];
        gates[FAST_UP * FAST_CHUNK + t + i] = __expf(G);
        gates[FAST_END * FAST_CHUNK + t + i] = __expf(all - G);
        gates[FAST_SUM * FAST_CHUNK + t + i] = G;
        gates[FAST_BETA * FAST_CHUNK + t + i] = beta[i];
    }
}

/* C[16, 16] += A B of 16 x 16 blocks of floats, in TF32. */
static __device__ inline void prepare_product(float (&c)[2][4], const float *A, const float *B)
{
    int g = (int)threadIdx.x % 32 / 4, t = (int)threadIdx.x % 4;
#pragma unroll
    for (int k = 0; k < 16; k += 8) {
        uint32_t a[4], b[2];
#pragma unroll
        for (int i = 0; i < 4; i++) a[i] = to_tf32(A[(g + i % 2 * 8) * PREPARE_LD + k + t + i / 2 * 4]);
#pragma unroll
        for (int n = 0; n < 2; n++) {
#pragma unroll
            for (int i = 0; i < 2; i++) b[i] = to_tf32(B[(k + t + i * 4) * PREPARE_LD + 8 * n + g]);
            mma_tf32(c[n], a, b);
        }
    }
}

static __device__ inline void prepare_put(float *to, const float (&c)[2][4], float sign)
{
    int g = (int)threadIdx.x % 32 / 4, t = (int)threadIdx.x % 4;
    __syncwarp();
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
        for (int half = 0; half < 2; half++)
            *reinterpret_cast<float2 *>(to + (g + 8 * half) * PREPARE_LD + 8 * n + 2 * t) =
                make_float2(sign * c[n][2 * half], sign * c[n][2 * half + 1]);
    __syncwarp();
}

/* N = (I + M)^-1, M strictly lower, in blocks of 16: those on the diagonal by substitution, a warp each; then
 * a warp takes the blocks below one of them, N_ij = -N_ii sum_k M_ik N_kj. Blocks above the diagonal are not
 * written. Ends with a barrier. */
static __device__ inline void prepare_invert(float *N, const float *M)
{
    const int B = 16, BLOCKS = FAST_CHUNK / B;
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    auto block = [](auto *x, int i, int j) { return x + i * B * PREPARE_LD + j * B; };
    if (warp < BLOCKS && lane < B) {
        const float *m = block(M, warp, warp);
        float x[B];
#pragma unroll
        for (int r = 0; r < B; r++) {
            x[r] = r == lane ? 1.0f : 0.0f;
#pragma unroll
            for (int k = 0; k < r; k++) x[r] -= m[r * PREPARE_LD + k] * x[k];
        }
#pragma unroll
        for (int r = 0; r < B; r++) block(N, warp, warp)[r * PREPARE_LD + lane] = x[r];
    }
    __syncthreads();
    for (int i = warp + 1; i < BLOCKS; i++) {
        float sum[2][4] = {}, below[2][4] = {};
        for (int k = warp; k < i; k++) prepare_product(sum, block(M, i, k), block(N, k, warp));
        prepare_put(block(N, i, warp), sum, -1);
        prepare_product(below, block(N, i, i), block(N, i, warp));
        prepare_put(block(N, i, warp), below, 1);
    }
    __syncthreads();
}

/* Grid: chunks of all heads. */
template <int D> __global__ void __launch_bounds__(FAST_THREADS, 2) gdn_fast_prepare(fast_view p)
{
    constexpr int U = tile_units(D), TILE = tile_bytes(FAST_CHUNK, D),
                  SMALL = tile_bytes(FAST_CHUNK, FAST_CHUNK);
    CUDA_DYNAMIC_SHARED(char, tq);
    char *tk = tq + TILE, *tv = tk + TILE, *for_k = tv + TILE, *for_v = for_k + SMALL;
    float *M = reinterpret_cast<float *>(for_v + SMALL), *N = M + FAST_CHUNK * PREPARE_LD,
          *gates = N + FAST_CHUNK * PREPARE_LD;
    const float *up = gates + FAST_UP * FAST_CHUNK, *G = gates + FAST_SUM * FAST_CHUNK,
                *beta = gates + FAST_BETA * FAST_CHUNK;
    fast_place x = fast_at(p, blockIdx.x / p.chunks, blockIdx.x % p.chunks);
    int warp = (int)threadIdx.x / 32, m = warp % 4;
    bool late = warp >= 4;
    cuda_wait_previous();
    fast_tokens<D>(tq, p, x, p.q, p.K);
    fast_tokens<D>(tk, p, x, p.k, p.K);
    fast_tokens<D>(tv, p, x, p.v, p.V);
    copy_async_commit();
    if (warp == 0) prepare_gates(gates, p, x);
    copy_async_wait<0>();
    __syncthreads();
    float score[8][4];
    tile_zero(score);
#pragma unroll
    for (int k = 0; k < D; k += 16) {
        uint32_t a[4], b[4];
        tile_a<U>(a, late ? tq : tk, 16 * m, k);
#pragma unroll
        for (int n = 0; n < 8; n += 2) {
            if (n > 2 * m) continue;
            tile_b_trans<U>(b, tk, 8 * n, k);
            mma_bf16(score[n], a, b);
            mma_bf16(score[n + 1], a, b + 2);
        }
    }
    fast_each(score, 16 * m, 0, [&](int r, int c, float &y) {
        y = c < r || (late && c == r) ? y * __expf(G[r] - G[c]) * (late ? 1.0f : beta[r]) : 0;
    });
    if (late)
        tile_store_rows(score, p.P + x.index * FAST_SQUARE + 16 * m * FAST_CHUNK, FAST_CHUNK, 16, FAST_CHUNK);
    else
        fast_each(score, 16 * m, 0, [&](int r, int c, float &y) { M[r * PREPARE_LD + c] = y; });
    if (threadIdx.x < FAST_GATES * FAST_CHUNK)
        p.gates[x.index * FAST_GATES * FAST_CHUNK + threadIdx.x] = gates[threadIdx.x];
    __syncthreads();
    prepare_invert(N, M);
    for (int unit = (int)threadIdx.x; unit < FAST_SQUARE / 8; unit += FAST_THREADS) {
        int r = unit / 8, c = unit % 8 * 8;
        float n[8];
        uint32_t plain[4], key[4], value[4];
#pragma unroll
        for (int i = 0; i < 8; i++) n[i] = c / 16 <= r / 16 ? N[r * PREPARE_LD + c + i] : 0;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float a = n[2 * i], b = n[2 * i + 1], va = a * beta[c + 2 * i], vb = b * beta[c + 2 * i + 1];
            plain[i] = pack_bf16(a, b), value[i] = pack_bf16(va, vb);
            key[i] = pack_bf16(va * up[c + 2 * i], vb * up[c + 2 * i + 1]);
        }
        *reinterpret_cast<uint4 *>(p.N + x.index * FAST_SQUARE + r * FAST_CHUNK + c) =
            make_uint4(plain[0], plain[1], plain[2], plain[3]);
        *reinterpret_cast<uint4 *>(for_k + tile_at<8>(r, c / 8)) = make_uint4(key[0], key[1], key[2], key[3]);
        *reinterpret_cast<uint4 *>(for_v + tile_at<8>(r, c / 8)) =
            make_uint4(value[0], value[1], value[2], value[3]);
    }
    __syncthreads();
    float sum[D / 8][4];
    tile_zero(sum);
#pragma unroll
    for (int k = 0; k < FAST_CHUNK; k += 16) {
        if (k > 16 * m) continue;
        uint32_t a[4];
        tile_a<8>(a, late ? for_v : for_k, 16 * m, k);
        tile_mma<U>(sum, a, late ? tv : tk, k, 0);
    }
    tile_store_rows(sum, (late ? p.U : p.W) + (x.index * FAST_CHUNK + 16 * m) * D, D, 16, D);
}

#endif
