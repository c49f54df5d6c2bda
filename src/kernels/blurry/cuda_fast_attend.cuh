/* Reading the slots with tensor cores, for one row group of 16 tokens: logits, softmax, o. Two warps share a
 * row group in the forward passes, one per side in the backward passes. */
#ifndef BLURRY_KERNELS_BLURRY_CUDA_FAST_ATTEND_CUH
#define BLURRY_KERNELS_BLURRY_CUDA_FAST_ATTEND_CUH
#include "kernels/blurry/cuda_fast.cuh"

/* rows [16, SHARE] = left slots^T + causal(left tokens^T) P for one row group: logits from q and K, or
 * gradients of probabilities from d_o and V. Of the chunk's own tokens the first 16 U are looked at: all a
 * row group sees, in code without branches. First what needs no table: `own`, causal(left tokens^T) as A
 * fragments, one per 16 tokens, and the share of the slots. */
template <int D, int U, int N, int OWN>
static __device__ inline void fast_against_slots(float (&x)[N][4], uint32_t (&own)[OWN][4], const char *left,
                                                 const char *tokens, const char *slots, int rows, int slot0)
{
    constexpr int UD = tile_units(D);
    {
        float s[2 * U][4];
        tile_zero(s);
#pragma unroll
        for (int k = 0; k < D; k += 16) {
            uint32_t a[4];
            tile_a<UD>(a, left, 16 * rows, k);
            tile_mma_trans<UD>(s, a, tokens, 0, k);
        }
        tile_causal(s, rows);
#pragma unroll
        for (int u = 0; u < U; u++) tile_pack(own[u], s[2 * u], s[2 * u + 1]);
    }
    tile_zero(x);
#pragma unroll
    for (int k = 0; k < D; k += 16) {
        uint32_t a[4];
        tile_a<UD>(a, left, 16 * rows, k);
        tile_mma_trans<UD>(x, a, slots, slot0, k);
    }
}
template <int D, int SP, int U, int N>
static __device__ inline void fast_against(float (&x)[N][4], const char *left, const char *tokens,
                                           const char *slots, const char *table, int rows, int slot0)
{
    uint32_t own[U][4];
    fast_against_slots<D, U>(x, own, left, tokens, slots, rows, slot0);
#pragma unroll
    for (int u = 0; u < U; u++) tile_mma<tile_units(SP)>(x, own[u], table, 16 * u, slot0);
}

/* Masks what may not be attended to: `visible` where the chunk is an early one, and the padding beyond S. */
template <int N>
static __device__ inline void fast_mask(float (&x)[N][4], const bla_period *period, int64_t t0, int S,
                                        int slot0)
{
    int lane = threadIdx.x & 31;
    bool early = t0 < period->all_visible;
    if (!early && slot0 + 8 * N <= S) return;
#pragma unroll
    for (int n = 0; n < N; n++) {
        if (!early && slot0 + 8 * n + 8 <= S) continue;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int j = slot0 + 8 * n + 2 * (lane & 3) + i;
            int64_t from = j < S ? period->visible[j] : INT64_MAX;
            if (t0 + (lane >> 2) < from) x[n][i] = -INFINITY;
            if (t0 + (lane >> 2) + 8 < from) x[n][2 + i] = -INFINITY;
        }
    }
}

static __device__ inline float quad_max(float x)
{
    x = fmaxf(x, __shfl_xor_sync(CUDA_FULL_WARP, x, 1));
    return fmaxf(x, __shfl_xor_sync(CUDA_FULL_WARP, x, 2));
}
static __device__ inline float quad_sum(float x)
{
    x += __shfl_xor_sync(CUDA_FULL_WARP, x, 1);
    return x + __shfl_xor_sync(CUDA_FULL_WARP, x, 2);
}

/* x becomes exp2(factor (x - its row's maximum)); returns the sums of the two rows over this warp's share.
 * `top` receives the maxima: they must be those of the whole row, so shares exchange them through `room` [2,
 * CHUNK]. */
template <int SPLIT, int N>
static __device__ inline float2 fast_exponentials(float (&x)[N][4], float factor, int rows, int share,
                                                  float *room)
{
    int lane = threadIdx.x & 31, g = 16 * rows + (lane >> 2);
    float top[2] = {-INFINITY, -INFINITY}, sum[2] = {0.0f, 0.0f};
#pragma unroll
    for (int n = 0; n < N; n++) {
        top[0] = fmaxf(top[0], fmaxf(x[n][0], x[n][1]));
        top[1] = fmaxf(top[1], fmaxf(x[n][2], x[n][3]));
    }
    top[0] = quad_max(top[0]), top[1] = quad_max(top[1]);
    if (SPLIT > 1) {
        if ((lane & 3) == 0) room[share * CHUNK + g] = top[0], room[share * CHUNK + g + 8] = top[1];
        barrier_named(1 + rows, 64);
        top[0] = fmaxf(top[0], room[(1 - share) * CHUNK + g]);
        top[1] = fmaxf(top[1], room[(1 - share) * CHUNK + g + 8]);
    }
    top[0] *= factor, top[1] *= factor;
#pragma unroll
    for (int n = 0; n < N; n++) {
        x[n][0] = exp2_fast(x[n][0] * factor - top[0]), x[n][1] = exp2_fast(x[n][1] * factor - top[0]);
        x[n][2] = exp2_fast(x[n][2] * factor - top[1]), x[n][3] = exp2_fast(x[n][3] * factor - top[1]);
        sum[0] += x[n][0] + x[n][1], sum[1] += x[n][2] + x[n][3];
    }
    return make_float2(quad_sum(sum[0]), quad_sum(sum[1]));
}

/* Multiplies all accumulators of a row group by c. */
template <int SP, int N>
static __device__ inline void fast_scale(float (&x)[N][4], const char *c, int rows, int slot0)
{
#pragma unroll
    for (int n = 0; n < N; n += 2) fast_c_scale(fast_c_load(c, SP, rows, slot0 / 16 + n / 2), x[n], x[n + 1]);
}

/* ---- o, by two warps ---- */

/* What the two warps of a row group exchange: maxima and sums of their shares, the weights on the slots, and
 * products with the chunk's tokens, of which the first row groups have half as many. */
static constexpr __host__ __device__ int forward_exchange_bytes(int SP)
{
    return 4 * CHUNK * 4 + CHUNK * SP * 2 + 6 * 1024;
}

/* The rows a warp reads for, and the tiles they need. */
struct forward_rows {
    const bla_period *period;
    int64_t t0; /* position of the row group's first token */
    bf16 *to;   /* its place in o, rows `stride` apart, `valid` of them */
    int64_t stride;
    int rows, share, valid;
    const char *table, *tokens, *slots, *c; /* P, v, V of the slots, c */
    float *room;                            /* [4, CHUNK] maxima and sums of both shares */
    uint4 *weights, *own;                   /* of the row group, this lane's: fragments of both shares */
};

/* Its part of the exchange. */
template <typename F> static __device__ inline void forward_exchange(forward_rows &w, char *exchange)
{
    int lane = threadIdx.x & 31, rows = w.rows;
    w.room = (float *)exchange;
    w.weights = (uint4 *)(exchange + 4 * CHUNK * 4 + rows * 16 * F::SP * 2) + lane;
    w.own =
        (uint4 *)(exchange + 4 * CHUNK * 4 + CHUNK * F::SP * 2 + (rows < 2 ? rows : 2 * rows - 2) * 1024) +
        lane;
}

template <int N> static __device__ inline void fast_hand(uint4 *to, const uint32_t (&a)[N][4])
{
#pragma unroll
    for (int n = 0; n < N; n++) to[n * 32] = make_uint4(a[n][0], a[n][1], a[n][2], a[n][3]);
}
template <int N> static __device__ inline void fast_fetch(uint32_t (&a)[N][4], const uint4 *from)
{
#pragma unroll
    for (int n = 0; n < N; n++) {
        uint4 y = from[n * 32];
        a[n][0] = y.x, a[n][1] = y.y, a[n][2] = y.z, a[n][3] = y.w;
    }
}

/* Before the tables are there: this share's half of causal(q k^T), to be handed to the other, and its logits
 * against the slots. */
template <typename F, int U>
static __device__ inline void forward_against(const forward_rows &w, const char *q, const char *k,
                                              const char *slots, float (&x)[F::SHARE / 8][4])
{
    const int first = w.share * (U / 2); /* of the 16 U tokens that matter, in blocks of 16 */
    float s[U][4];
    tile_zero(s);
    tile_zero(x);
#pragma unroll
    for (int d = 0; d < F::D; d += 16) {
        uint32_t a[4];
        tile_a<F::UD>(a, q, 16 * w.rows, d);
        tile_mma_trans<F::UD>(s, a, k, 16 * first, d);
        tile_mma_trans<F::UD>(x, a, slots, w.share * F::SHARE, d);
    }
    tile_causal(s, w.rows - first);
    uint32_t own[U / 2][4];
#pragma unroll
    for (int i = 0; i < U / 2; i++) tile_pack(own[i], s[2 * i], s[2 * i + 1]);
    fast_hand(w.own + first * 32, own);
}

/* From there to o, the other share's half being there too: each share has half the slots up to the softmax,
 * then half the tokens, then half the columns. U as in fast_against. */
template <typename F, bool DECAY, int U>
static __device__ inline void forward_finish(const bla_call &c, const forward_rows &w,
                                             float (&x)[F::SHARE / 8][4])
{
    constexpr int D = F::D, SP = F::SP, N = F::SHARE / 8;
    const int slot0 = w.share * F::SHARE, rows = w.rows, first = w.share * (U / 2),
              column0 = w.share * (D / 2);
    const int lane = threadIdx.x & 31, g = 16 * rows + (lane >> 2);
    float *sums = w.room + 2 * CHUNK;
    uint32_t weight[SP / 16][4], own[U][4]; /* weights on the slots before the chunk and on its tokens */
    fast_fetch(own, w.own);
#pragma unroll
    for (int i = 0; i < U; i++) tile_mma<F::US>(x, own[i], w.table, 16 * i, slot0);
    if (DECAY) fast_scale<SP>(x, w.c, rows, slot0);
    fast_mask(x, w.period, w.t0, c.S, slot0);
    float2 sum = fast_exponentials<2>(x, c.scale * 1.4426950408889634f, rows, w.share, w.room);
    if (DECAY) fast_scale<SP>(x, w.c, rows, slot0);
    {
        uint32_t mine[N / 2][4];
#pragma unroll
        for (int n = 0; n < N; n += 2) tile_pack(mine[n / 2], x[n], x[n + 1]);
        fast_hand(w.weights + slot0 / 16 * 32, mine);
    }
    if ((lane & 3) == 0) sums[w.share * CHUNK + g] = sum.x, sums[w.share * CHUNK + g + 8] = sum.y;
    barrier_named(1 + rows, 64);
    fast_fetch(weight, w.weights);
    {
        float y[U][4];
        uint32_t mine[U / 2][4];
        tile_zero(y);
#pragma unroll
        for (int k = 0; k < SP / 16; k++) tile_mma_trans<F::US>(y, weight[k], w.table, 16 * first, 16 * k);
        tile_causal(y, rows - first);
#pragma unroll
        for (int i = 0; i < U / 2; i++) tile_pack(mine[i], y[2 * i], y[2 * i + 1]);
        fast_hand(w.own + first * 32, mine);
    }
    barrier_named(1 + rows, 64);
    fast_fetch(own, w.own);
    float o[D / 16][4];
    tile_zero(o);
#pragma unroll
    for (int k = 0; k < SP / 16; k++) tile_mma<F::UD>(o, weight[k], w.slots, 16 * k, column0);
#pragma unroll
    for (int i = 0; i < U; i++) tile_mma<F::UD>(o, own[i], w.tokens, 16 * i, column0);
    float low = 1.0f / (sums[g] + sums[CHUNK + g]), high = 1.0f / (sums[g + 8] + sums[CHUNK + g + 8]);
#pragma unroll
    for (int n = 0; n < D / 16; n++) o[n][0] *= low, o[n][1] *= low, o[n][2] *= high, o[n][3] *= high;
    tile_store_rows(o, w.to + column0, w.stride, w.valid, c.Dv - column0);
}

#endif
