/* What the chunks of the gated delta rule give to v, beta and the gates through the squares of tokens by
 * tokens, all of them side by side. */
#ifndef BLURRY_KERNELS_GDN_CUDA_FAST_SQUARES_CUH
#define BLURRY_KERNELS_GDN_CUDA_FAST_SQUARES_CUH
#include "kernels/gdn/cuda_fast.cuh"

static __device__ inline float *fast_row(const fast_view &p, int64_t index, int64_t which)
{
    int64_t blocks = (p.K + FAST_CHUNK - 1) / FAST_CHUNK;
    return p.rows + (index * (FAST_BY_BLOCK + FAST_SHARES * blocks) + which) * FAST_CHUNK;
}

/* The two rows of a lane, sum over the columns of f, for the quad that holds them. */
template <int N, typename Fn>
static __device__ inline void fast_sum_rows(float (&total)[2], const float (&x)[N][4], Fn f)
{
    int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float sum = 0;
#pragma unroll
        for (int n = 0; n < N; n++) {
            float2 y = f(lane / 4 + 8 * half, 8 * n + lane % 4 * 2);
            sum += x[n][2 * half] * y.x + x[n][2 * half + 1] * y.y;
        }
        sum += __shfl_xor_sync(CUDA_FULL_WARP, sum, 1);
        total[half] = sum + __shfl_xor_sync(CUDA_FULL_WARP, sum, 2);
    }
}

static __device__ inline void fast_put_rows(float *to, const float (&total)[2])
{
    int lane = (int)threadIdx.x % 32;
    if (lane % 4 == 0) to[lane / 4] = total[0], to[lane / 4 + 8] = total[1];
}

template <int D> static constexpr size_t fast_squares_shared()
{
    return (size_t)(6 * tile_bytes(FAST_CHUNK, D) + tile_bytes(FAST_CHUNK, FAST_CHUNK));
}

/* Row sums and column sums of a product of accumulators: rows [64] of this half, columns [64] of this warp.
 */
static __device__ inline void squares_sums(const float (&both)[8][4], float *rows, float *columns)
{
    int lane = (int)threadIdx.x % 32;
    float total[2];
    fast_sum_rows(total, both, [](int, int) { return make_float2(1, 1); });
    fast_put_rows(rows, total);
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float sum = both[n][i] + both[n][2 + i];
#pragma unroll
            for (int away = 4; away < 32; away *= 2) sum += __shfl_xor_sync(CUDA_FULL_WARP, sum, away);
            if (lane < 4) columns[8 * n + 2 * lane + i] = sum;
        }
}

/* d_R = N^T d_U, d_v, the gradients of q k^T and k k^T, d_beta and d_g as far as these give them.
 * Grid: chunks of all heads. */
template <int D> __global__ void __launch_bounds__(FAST_THREADS, 2) gdn_fast_squares(fast_view p, bf16 *d_v)
{
    constexpr int U = tile_units(D), TILE = tile_bytes(FAST_CHUNK, D);
    CUDA_DYNAMIC_SHARED(char, tr);
    __shared__ __align__(16) float gates[FAST_GATES * FAST_CHUNK];
    __shared__ float by_value[2][FAST_CHUNK], by_key[FAST_CHUNK], along[2][FAST_CHUNK], down[8][FAST_CHUNK];
    char *to = tr + TILE, *tu = to + TILE, *tq = tu + TILE, *tk = tq + TILE, *tv = tk + TILE, *tn = tv + TILE;
    const float *G = gates + FAST_SUM * FAST_CHUNK, *beta = gates + FAST_BETA * FAST_CHUNK;
    fast_place x = fast_at(p, blockIdx.x / p.chunks, blockIdx.x % p.chunks);
    int warp = (int)threadIdx.x / 32, m = 16 * (warp % 4), late = warp / 4, column = late * D / 2;
    cuda_wait_previous();
    fast_gates(gates, p, x.index);
    fast_note<FAST_CHUNK>(tn, p.N + x.index * FAST_SQUARE, FAST_CHUNK);
    fast_note<D>(tr, p.d_U + x.index * FAST_CHUNK * D, D);
    fast_tokens<D>(tv, p, x, p.v, p.V);
    copy_async_commit();
    fast_tokens<D>(to, p, x, p.d_o, p.V);
    fast_note<D>(tu, p.U + x.index * FAST_CHUNK * D, D);
    fast_tokens<D>(tq, p, x, p.q, p.K);
    fast_tokens<D>(tk, p, x, p.k, p.K);
    copy_async_commit();
    copy_async_wait<1>();
    __syncthreads();
    float d_R[D / 16][4], total[2];
    tile_zero(d_R);
#pragma unroll
    for (int k = 0; k < FAST_CHUNK; k += 16) {
        uint32_t a[4];
        if (k < m) continue;
        tile_a_trans<8>(a, tn, m, k);
        tile_mma<U>(d_R, a, tr, k, column);
    }
    fast_sum_rows(total, d_R,
                  [&](int r, int c) { return unpack_bf16(*fast_word<U>(tv, m + r, column + c)); });
    fast_put_rows(by_value[late] + m, total);
    copy_async_wait<0>();
    __syncthreads(); /* d_U has been read, by all */
    tile_store_rows(d_R, p.d_U + (x.index * FAST_CHUNK + m) * D + column, D, 16, D / 2);
#pragma unroll
    for (int n = 0; n < D / 16; n++) tile_put<U>(tr, m, column + 8 * n, d_R[n]);
    fast_each(d_R, m, column, [&](int r, int, float &y) { y *= beta[r]; });
    tile_store_rows(d_R, d_v + (x.at + m * p.heads) * p.V + column, p.heads * p.V, x.rows - m,
                    (int)p.V - column);
    __syncthreads();
    float grad[8][4], square[8][4];
    tile_zero(grad);
    tile_zero(square);
    const char *left = late ? tr : to, *other = late ? tk : tq;
#pragma unroll
    for (int k = 0; k < D; k += 16) {
        uint32_t a[4], c[4], b[4];
        tile_a<U>(a, left, m, k);
        tile_a<U>(c, other, m, k);
#pragma unroll
        for (int n = 0; n < 8; n += 2) {
            if (8 * n > m) continue;
            tile_b_trans<U>(b, tu, 8 * n, k);
            mma_bf16(grad[n], a, b);
            mma_bf16(grad[n + 1], a, b + 2);
            tile_b_trans<U>(b, tk, 8 * n, k);
            mma_bf16(square[n], c, b);
            mma_bf16(square[n + 1], c, b + 2);
        }
    }
    /* of q k^T with the diagonal; of -M = -beta E k k^T below it */
    fast_each(grad, m, 0, [&](int r, int c, float &y) {
        y = c < r || (!late && c == r) ? y * __expf(G[r] - G[c]) * (late ? -1.0f : p.scale) : 0;
    });
    float part[2] = {0, 0};
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            square[n][e] *= grad[n][e];
            part[e / 2] += square[n][e];
        }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        part[half] += __shfl_xor_sync(CUDA_FULL_WARP, part[half], 1);
        part[half] += __shfl_xor_sync(CUDA_FULL_WARP, part[half], 2);
    }
    if (late) {
        fast_put_rows(by_key + m, part);
        fast_each(grad, m, 0, [&](int r, int, float &y) { y *= beta[r]; });
        fast_each(square, m, 0, [&](int r, int, float &y) { y *= beta[r]; });
    }
    squares_sums(square, along[late] + m, down[warp]);
    tile_store_rows(grad, (late ? p.d_kk : p.d_qk) + x.index * FAST_SQUARE + m * FAST_CHUNK, FAST_CHUNK, 16,
                    FAST_CHUNK);
    __syncthreads();
    int t = (int)threadIdx.x;
    if (t >= FAST_CHUNK) return;
    float gate = along[0][t] + along[1][t];
    for (int w = 0; w < 8; w++) gate -= down[w][t];
    fast_row(p, x.index, FAST_D_BETA)[t] = by_value[0][t] + by_value[1][t] + by_key[t];
    fast_row(p, x.index, FAST_D_GATE)[t] = gate;
}

#endif
