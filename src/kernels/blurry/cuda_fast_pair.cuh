/* Reading the slots with tensor cores, for two row groups of 16 tokens at once: logits, softmax, o.
 *
 * Rows 16 LO .. and 16 (3 - LO) .. of a chunk together see five blocks of 16 of its own tokens, whether LO is
 * 0 or 1, and what is loaded for one group serves the other. SPLIT warps share them: each has a share of the
 * slots up to the softmax, then of the tokens, then of the columns; weights go from warp to warp as bf16
 * fragments. In all arrays over the two groups the later one, HI, comes first: it sees every token the other
 * does. */
#ifndef BLURRY_KERNELS_BLURRY_CUDA_FAST_PAIR_CUH
#define BLURRY_KERNELS_BLURRY_CUDA_FAST_PAIR_CUH
#include "kernels/blurry/cuda_fast_attend.cuh"

/* What a form F of a kernel says about shapes. */
template <int D_, int SP_, int SPLIT_> struct pair_form {
    static constexpr int D = D_, SP = SP_, SPLIT = SPLIT_;
    static constexpr int SHARE = SP / SPLIT, N = SHARE / 8; /* slots of a warp, in accumulators */
    static constexpr int OWN = 4 / SPLIT;                   /* blocks of 16 tokens of a warp */
    static constexpr int WIDTH = D / SPLIT;                 /* columns of a warp */
    static constexpr int UD = tile_units(D), US = tile_units(SP), KS = SP / 16;
    /* Maxima and sums of all shares, the weights on the slots, products with the chunk's tokens. */
    static constexpr int EXCHANGE = 2 * CHUNK * SPLIT * 4 + CHUNK * SP * 2 + 10 * 512;
};

/* The tiles and the place of one query head of a chunk. */
struct pair_view {
    const char *q, *k, *slots_k, *table, *v, *slots_v, *c;
    int share;
    float *tops, *sums;   /* [CHUNK, SPLIT] */
    uint4 *weights, *own; /* this lane's */
    const bla_period *period;
    bool early; /* whether some slots are still hidden */
    int64_t t0; /* position of the chunk's first token */
    bf16 *to;   /* that one's o, rows `stride` apart, `valid` of them */
    int64_t stride;
    int valid;
};
template <typename F> static __device__ inline void pair_exchange(pair_view &w, char *exchange)
{
    int lane = threadIdx.x & 31;
    w.tops = (float *)exchange, w.sums = w.tops + CHUNK * F::SPLIT;
    w.weights = (uint4 *)(w.sums + CHUNK * F::SPLIT) + lane;
    w.own = w.weights + 4 * F::KS * 32;
}
static __device__ inline uint4 *pair_own(const pair_view &w, int rows, int block)
{
    return w.own + (rows * (rows + 1) / 2 + block) * 32;
}

/* The maxima or sums of all shares of a row. */
template <int SPLIT> struct pair_row;
template <> struct pair_row<2> {
    static __device__ inline float top(const float *row)
    {
        float2 x = *(const float2 *)row;
        return fmaxf(x.x, x.y);
    }
    static __device__ inline float sum(const float *row)
    {
        float2 x = *(const float2 *)row;
        return x.x + x.y;
    }
};
template <> struct pair_row<4> {
    static __device__ inline float top(const float *row)
    {
        float4 x = *(const float4 *)row;
        return fmaxf(fmaxf(x.x, x.y), fmaxf(x.z, x.w));
    }
    static __device__ inline float sum(const float *row)
    {
        float4 x = *(const float4 *)row;
        return (x.x + x.y) + (x.z + x.w);
    }
};

/* Hands the causal part of products with this share's tokens to the others. */
template <int OWN>
static __device__ inline void pair_hand_own(const pair_view &w, float (&s)[2 * OWN][4], int rows)
{
    const int first = w.share * OWN;
    tile_causal(s, rows - first);
#pragma unroll
    for (int b = 0; b < OWN; b++)
        if (first + b <= rows) {
            uint32_t a[4];
            tile_pack(a, s[2 * b], s[2 * b + 1]);
            *pair_own(w, rows, first + b) = make_uint4(a[0], a[1], a[2], a[3]);
        }
}
static __device__ inline void pair_fetch(uint32_t (&a)[4], const uint4 *from)
{
    uint4 y = *from;
    a[0] = y.x, a[1] = y.y, a[2] = y.z, a[3] = y.w;
}

/* x += own tokens' products times a tile [64, ...], from column n0 on. */
template <int U, int LO, int N>
static __device__ inline void pair_add_own(const pair_view &w, float (&x)[2][N][4], const char *tile, int n0)
{
    constexpr int HI = 3 - LO;
#pragma unroll
    for (int i = 0; i <= HI; i++) {
        uint32_t a[2][4];
        pair_fetch(a[0], pair_own(w, HI, i));
        if (i <= LO) {
            pair_fetch(a[1], pair_own(w, LO, i));
            tile_mma_blocks<U>(x, a, tile, 16 * i, n0);
        } else {
            tile_mma<U>(x[0], a[0], tile, 16 * i, n0);
        }
    }
}

/* q k^T of this share's tokens, handed over, and the logits against this share's slots. */
template <typename F, int LO>
static __device__ inline void pair_against(const pair_view &w, float (&x)[2][F::N][4])
{
    constexpr int HI = 3 - LO, OWN = F::OWN;
    const int first = w.share * OWN;
    if (first <= LO) {
        float s[2 * OWN][4];
        tile_zero(s);
#pragma unroll
        for (int d = 0; d < F::D; d += 16) {
            uint32_t a[4];
            tile_a<F::UD>(a, w.q, 16 * LO, d);
            tile_mma_trans<F::UD>(s, a, w.k, 16 * first, d);
        }
        pair_hand_own<OWN>(w, s, LO);
    }
    float s[2 * OWN][4];
    tile_zero(s), tile_zero(x[0]), tile_zero(x[1]);
#pragma unroll
    for (int d = 0; d < F::D; d += 16) {
        uint32_t a[2][4];
        tile_a<F::UD>(a[0], w.q, 16 * HI, d);
        tile_mma_trans<F::UD>(s, a[0], w.k, 16 * first, d);
        tile_a<F::UD>(a[1], w.q, 16 * LO, d);
        tile_mma_trans_blocks<F::UD>(x, a, w.slots_k, w.share * F::SHARE, d);
    }
    pair_hand_own<OWN>(w, s, HI);
}

/* Masks the padding beyond S and, in early chunks, slots that may not be attended to yet. */
template <int LO, int N>
static __device__ inline void pair_mask(const pair_view &w, float (&x)[2][N][4], int S, int slot0)
{
    if (w.early) {
        fast_mask(x[0], w.period, w.t0 + 16 * (3 - LO), S, slot0);
        fast_mask(x[1], w.period, w.t0 + 16 * LO, S, slot0);
    } else if (slot0 + 8 * N > S) {
        int there = S - slot0 - 2 * (threadIdx.x & 3);
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (8 * n + (i & 1) >= there) x[0][n][i] = x[1][n][i] = -INFINITY;
    }
}

/* x becomes exp2(factor (x - its row's maximum)); their sums over this share go to w.sums. */
template <typename F, int LO>
static __device__ inline void pair_exponentials(const pair_view &w, float (&x)[2][F::N][4], float factor)
{
    const int lane = threadIdx.x & 31, g = lane >> 2;
    const int row[2] = {16 * (3 - LO) + g, 16 * LO + g};
#pragma unroll
    for (int m = 0; m < 2; m++) {
        float low = -INFINITY, high = -INFINITY;
#pragma unroll
        for (int n = 0; n < F::N; n++) {
            low = fmaxf(low, fmaxf(x[m][n][0], x[m][n][1]));
            high = fmaxf(high, fmaxf(x[m][n][2], x[m][n][3]));
        }
        low = quad_max(low), high = quad_max(high);
        if ((lane & 3) == 0) {
            w.tops[row[m] * F::SPLIT + w.share] = low;
            w.tops[(row[m] + 8) * F::SPLIT + w.share] = high;
        }
    }
    barrier_named(1 + LO, 32 * F::SPLIT);
#pragma unroll
    for (int m = 0; m < 2; m++) {
        float low = factor * pair_row<F::SPLIT>::top(w.tops + row[m] * F::SPLIT),
              high = factor * pair_row<F::SPLIT>::top(w.tops + (row[m] + 8) * F::SPLIT);
        float sum[2] = {0.0f, 0.0f};
#pragma unroll
        for (int n = 0; n < F::N; n++) {
            float *y = x[m][n];
            y[0] = exp2_fast(y[0] * factor - low), y[1] = exp2_fast(y[1] * factor - low);
            y[2] = exp2_fast(y[2] * factor - high), y[3] = exp2_fast(y[3] * factor - high);
            sum[0] += y[0] + y[1], sum[1] += y[2] + y[3];
        }
        sum[0] = quad_sum(sum[0]), sum[1] = quad_sum(sum[1]);
        if ((lane & 3) == 0) {
            w.sums[row[m] * F::SPLIT + w.share] = sum[0];
            w.sums[(row[m] + 8) * F::SPLIT + w.share] = sum[1];
        }
    }
}

/* From the logits to this share's weights on the slots, handed to the others; with decay times c. */
template <typename F, bool DECAY, int LO>
static __device__ inline void pair_weigh(const bla_call &c, const pair_view &w, float (&x)[2][F::N][4])
{
    constexpr int N = F::N;
    const int rows[2] = {3 - LO, LO}, slot0 = w.share * F::SHARE;
    pair_add_own<F::US, LO>(w, x, w.table, slot0);
    uint4 decay[2][N / 2];
#pragma unroll
    for (int m = 0; DECAY && m < 2; m++)
#pragma unroll
        for (int n = 0; n < N; n += 2) {
            decay[m][n / 2] = fast_c_load(w.c, F::SP, rows[m], slot0 / 16 + n / 2);
            fast_c_scale(decay[m][n / 2], x[m][n], x[m][n + 1]);
        }
    pair_mask<LO>(w, x, c.S, slot0);
    pair_exponentials<F, LO>(w, x, c.scale * 1.4426950408889634f);
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int n = 0; n < N; n += 2) {
            uint32_t a[4];
            if (DECAY) fast_c_scale(decay[m][n / 2], x[m][n], x[m][n + 1]);
            tile_pack(a, x[m][n], x[m][n + 1]);
            w.weights[(rows[m] * F::KS + slot0 / 16 + n / 2) * 32] = make_uint4(a[0], a[1], a[2], a[3]);
        }
}

/* The weights on 16 slots. */
template <typename F, int LO>
static __device__ inline void pair_weights(const pair_view &w, uint32_t (&a)[2][4], int k)
{
    pair_fetch(a[0], w.weights + ((3 - LO) * F::KS + k) * 32);
    pair_fetch(a[1], w.weights + (LO * F::KS + k) * 32);
}

/* o of this share's columns from the slots, and, in the same breath, what the weights on the slots put on
 * this share's tokens, weights P^T, for the first GROUPS of the two row groups; that is handed to the others.
 */
template <typename F, int LO, int GROUPS>
static __device__ inline void pair_outer(const pair_view &w, float (&o)[2][F::WIDTH / 8][4])
{
    constexpr int OWN = F::OWN;
    float y[GROUPS > 0 ? GROUPS : 1][2 * OWN][4];
#pragma unroll
    for (int m = 0; m < GROUPS; m++) tile_zero(y[m]);
#pragma unroll
    for (int k = 0; k < F::KS; k++) {
        uint32_t a[2][4];
        pair_weights<F, LO>(w, a, k);
        if constexpr (GROUPS == 2)
            tile_mma_trans_blocks<F::US>(y, a, w.table, 16 * OWN * w.share, 16 * k);
        else if constexpr (GROUPS == 1)
            tile_mma_trans<F::US>(y[0], a[0], w.table, 16 * OWN * w.share, 16 * k);
        tile_mma_blocks<F::UD>(o, a, w.slots_v, 16 * k, F::WIDTH * w.share);
    }
    if (GROUPS > 0) pair_hand_own<OWN>(w, y[0], 3 - LO);
    if constexpr (GROUPS > 1) pair_hand_own<OWN>(w, y[1], LO);
}

/* All of one query head of a chunk for the two row groups. */
template <typename F, bool DECAY, int LO>
static __device__ inline void pair_read(const bla_call &c, const pair_view &w)
{
    constexpr int HI = 3 - LO;
    {
        float x[2][F::N][4];
        pair_against<F, LO>(w, x);
        barrier_named(1 + LO, 32 * F::SPLIT);
        pair_weigh<F, DECAY, LO>(c, w, x);
    }
    barrier_named(1 + LO, 32 * F::SPLIT);
    const int column0 = w.share * F::WIDTH, g = (threadIdx.x & 31) >> 2;
    float o[2][F::WIDTH / 8][4];
    tile_zero(o[0]), tile_zero(o[1]);
    if (w.share * F::OWN <= LO)
        pair_outer<F, LO, 2>(w, o);
    else if (w.share * F::OWN <= HI)
        pair_outer<F, LO, 1>(w, o);
    else
        pair_outer<F, LO, 0>(w, o);
    barrier_named(1 + LO, 32 * F::SPLIT);
    pair_add_own<F::UD, LO>(w, o, w.v, column0);
#pragma unroll
    for (int m = 0; m < 2; m++) {
        const int row = 16 * (m ? LO : HI);
        float low = __fdividef(1.0f, pair_row<F::SPLIT>::sum(w.sums + (row + g) * F::SPLIT)),
              high = __fdividef(1.0f, pair_row<F::SPLIT>::sum(w.sums + (row + g + 8) * F::SPLIT));
#pragma unroll
        for (int n = 0; n < F::WIDTH / 8; n++)
            o[m][n][0] *= low, o[m][n][1] *= low, o[m][n][2] *= high, o[m][n][3] *= high;
        tile_store_rows(o[m], w.to + row * w.stride + column0, w.stride, w.valid - row, c.Dv - column0);
    }
}

#endif
