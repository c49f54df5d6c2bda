/* What the block of one chunk does in the gated passes of bf16 tensors (cuda_gated_chain.h): four warps, 16
 * tokens each, whose sums pass from product to product in registers. mix:      x = e^G (left h0^T +
 * lower(left right^T) W)       W_u = w_u e^{-G_u}, h0 faded by the first gate read:     o = P h0 + lower(P
 * W^T) x                          P weights times e^G collect:  what tokens and the state behind the chunk
 * give to w and x Where gates fade a channel by more than GATED_FADE within a chunk, e^{-G} could overflow;
 * there ("harsh") the terms are summed one by one from e^{G_t - G_u} <= 1. */
#ifndef BLURRY_KERNELS_CUDA_GATED_CHUNK_H
#define BLURRY_KERNELS_CUDA_GATED_CHUNK_H
#include "kernels/cuda_gated_chain.h"

/* The gated channels of one chunk. */
struct chunk_gates {
    gated_sums *s;
    const bf16 *weights; /* tile: w e^{-G}, times e^end where that is below e^-GATED_FADE */
    const bf16 *g, *k;   /* the chunk's in memory */
    int64_t stride;
    int rows, keys;
    bool harsh;
    __device__ float G(int t, int c) const { return GATED_G(s, t, c); }
    __device__ float write(int t, int c) const
    {
        if (t >= rows || c >= keys) return 0;
        return k ? from_bf16(k[t * stride + c]) : gated_write(from_bf16(g[t * stride + c]));
    }
    /* The e^{end - G} or e^{-G} that belongs to a row of chain_grads. */
    __device__ float behind(int t, int c) const
    {
        float end = G(TILE - 1, c);
        return gated_exp((end < -GATED_FADE ? end : 0) - G(t, c));
    }
};

enum { CHUNK_SHARE = 16, CHUNK_SHARES = TILE / CHUNK_SHARE }; /* tokens of a thread in chunk_gates_at */

/* Two neighbouring channels of this thread's tokens; `from` the chunk's first token. */
static __device__ inline void chunk_channels(float2 (&x)[CHUNK_SHARE], const bf16 *from, int64_t stride,
                                             int rows, int keys)
{
    int c = 2 * tile_lane(), t = tile_warp() * CHUNK_SHARE;
    const bf16 *at = from + t * stride + c;
    bool pairs = (((uintptr_t)from | (uintptr_t)stride * sizeof(bf16)) & 3) == 0 && keys % 2 == 0;
    if (pairs) {
#pragma unroll
        for (int i = 0; i < CHUNK_SHARE; i++)
            x[i] = t + i < rows && c < keys ? load_pair(at + i * stride) : make_float2(0, 0);
        return;
    }
#pragma unroll
    for (int i = 0; i < CHUNK_SHARE; i++) x[i] = fetch_pair(at + i * stride, t + i < rows ? keys - c : 0);
}

/* Fills s and the tile. A thread takes two channels of 16 tokens. Ends with a barrier. */
static __device__ inline chunk_gates chunk_gates_at(const chain &p, const gated_place &x, gated_sums *s,
                                                    bf16 *tile)
{
    const int LD = tile_of<float>::LD;
    chunk_gates r;
    int64_t at = x.at * p.keys;
    r.s = s, r.weights = tile, r.g = p.g + at, r.k = p.k ? p.k + at : nullptr;
    r.stride = p.heads * p.keys, r.rows = x.rows, r.keys = (int)p.keys;
    int c = 2 * tile_lane(), share = tile_warp();
    float2 g[CHUNK_SHARE], w[CHUNK_SHARE], sum = make_float2(0, 0), end = sum, before = sum;
    chunk_channels(g, r.g, r.stride, r.rows, r.keys);
    if (r.k) chunk_channels(w, r.k, r.stride, r.rows, r.keys);
#pragma unroll
    for (int i = 0; i < CHUNK_SHARE; i++) {
        if (!r.k) w[i] = make_float2(gated_write(g[i].x), gated_write(g[i].y));
        if (i || share) sum.x += g[i].x, sum.y += g[i].y;
        g[i] = sum;
    }
    float2 *sums = reinterpret_cast<float2 *>(s->G); /* before G is there */
    sums[share * (TILE / 2) + tile_lane()] = sum;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < CHUNK_SHARES; i++) {
        float2 y = sums[i * (TILE / 2) + tile_lane()];
        end.x += y.x, end.y += y.y;
        if (i < share) before.x += y.x, before.y += y.y;
    }
    __syncthreads();
    float2 shift = make_float2(end.x < -GATED_FADE ? end.x : 0, end.y < -GATED_FADE ? end.y : 0);
#pragma unroll
    for (int i = 0; i < CHUNK_SHARE; i++) {
        int t = share * CHUNK_SHARE + i;
        float2 G = make_float2(g[i].x + before.x, g[i].y + before.y);
        store_pair(s->G + t * LD + c, G.x, G.y);
        store_pair(tile + t * tile_of<bf16>::LD + c, w[i].x * gated_exp(shift.x - G.x),
                   w[i].y * gated_exp(shift.y - G.y));
    }
    r.harsh = block_max(-fminf(end.x, end.y), s->room) > GATED_FADE; /* its barriers show G and the tile */
    return r;
}

/* Tiles of `columns` columns of a matrix in memory, on their way. */
static __device__ inline void chunk_fetch(bf16 *tiles, const bf16 *from, int64_t stride, int rows,
                                          int64_t columns)
{
    for (int i = 0; i * TILE < columns; i++)
        tile_load_async(tiles + i * tile_of<bf16>::SIZE, from + i * TILE, stride, rows,
                        gated_most(columns, i * TILE));
}

static __device__ inline int chunk_parts(int64_t width)
{
    return width > TILE ? 2 : 1;
}

static __device__ inline void chunk_left(fragment (&f)[CHAIN_PARTS], const bf16 *from, int64_t stride,
                                         int rows, int64_t columns)
{
#pragma unroll
    for (int i = 0; i < CHAIN_PARTS; i++)
        if (i < chunk_parts(columns)) /* else never read */
            fragment_fetch(f[i], from + i * TILE, stride, rows, gated_most(columns, i * TILE));
}

/* One of them, for loops that are not unrolled: code that runs once must first be fetched, so less of it is
 * faster. */
static __device__ inline fragment chunk_part(const fragment (&f)[CHAIN_PARTS], int i)
{
    fragment r;
#pragma unroll
    for (int k = 0; k < 4; k++)
#pragma unroll
        for (int j = 0; j < 4; j++) r.a[k][j] = i ? f[1].a[k][j] : f[0].a[k][j];
    return r;
}

/* Adds f(row, column) to every element this thread holds: for rare sums, so that little code is made of them.
 */
template <typename Fn> static __device__ inline void strip_add_rarely(strip &s, Fn f)
{
    int row = 16 * tile_warp() + tile_lane() / 4, column = tile_lane() % 4 * 2;
#pragma unroll 1
    for (int n = 0; n < 8; n++) {
        float x[4];
#pragma unroll
        for (int e = 0; e < 4; e++) x[e] = f(row + e / 2 * 8, 8 * n + column + e % 2);
#pragma unroll
        for (int m = 0; m < 8; m++)
#pragma unroll
            for (int e = 0; e < 4; e++) s.x[m][e] += m == n ? x[e] : 0;
    }
}

/* x = e^G (left h0^T + lower(left right^T) W). right, h0: tiles; right is overwritten where gates are harsh.
 */
static __device__ inline void chunk_mix(strip &x, const fragment (&left)[CHAIN_PARTS], bf16 *right,
                                        const bf16 *h0, const chunk_gates &gates, int parts)
{
    const int SIZE = tile_of<bf16>::SIZE, LD = tile_of<bf16>::LD;
    strip scores;
    strip_zero(scores);
    strip_zero(x);
#pragma unroll 1
    for (int i = 0; i < parts; i++) {
        fragment f = chunk_part(left, i);
        fragment_product<true>(scores, f, right + i * SIZE);
        fragment_product<true>(x, f, h0 + i * SIZE);
    }
    strip_lower(scores, 1);
    if (!gates.harsh) {
        fragment f;
        fragment_of(f, scores);
        fragment_product<false>(x, f, gates.weights);
    }
    strip_each(x, [&](int t, int c, float &y) { y *= gated_exp(gates.G(t, c)); });
    if (!gates.harsh) return;
    __syncthreads();
    strip_to_tile(scores, right);
    __syncwarp();
    strip_add_rarely(x, [&](int t, int c) {
        float y = 0;
#pragma unroll 1
        for (int u = 0; u <= t; u++)
            y += from_bf16(right[t * LD + u]) * gates.write(u, c) * gated_exp(gates.G(t, c) - gates.G(u, c));
        return y;
    });
}

/* scores = lower(P W^T), P = plain e^G in fragments. room: a tile of the block whose rows the warps may
 * overwrite where gates are harsh. */
static __device__ inline void chunk_scores(strip &scores, const fragment &P, const strip &plain,
                                           const chunk_gates &gates, bf16 *room)
{
    const int LD = tile_of<bf16>::LD;
    strip_zero(scores);
    if (gates.harsh) {
        __syncwarp();
        strip_to_tile(plain, room);
        __syncwarp();
        strip_add_rarely(scores, [&](int t, int u) {
            float y = 0;
#pragma unroll 1
            for (int c = 0; u <= t && c < gates.keys; c++)
                y += from_bf16(room[t * LD + c]) * gates.write(u, c) *
                     gated_exp(gates.G(t, c) - gates.G(u, c));
            return y;
        });
    } else
        fragment_product<true>(scores, P, gates.weights);
    strip_lower(scores, 1);
}

/* o = scale (P h0 + scores x), to memory, P and scores in fragments. */
static __device__ inline void chunk_read(bf16 *o, int64_t stride, float scale, const fragment &P,
                                         const fragment &scores, const bf16 *h0, const bf16 *x,
                                         const chunk_gates &gates, int64_t width)
{
    const int SIZE = tile_of<bf16>::SIZE;
#pragma unroll 1
    for (int i = 0; i < chunk_parts(width); i++) {
        int columns = gated_most(width, i * TILE);
        strip sum;
        strip_zero(sum);
        fragment_product<false>(sum, P, h0 + i * SIZE);
        fragment_product<false>(sum, scores, x + i * SIZE);
        strip_to_memory(sum, o + i * TILE, stride, gates.rows, columns, scale);
    }
}

/* One side of a chunk, backward. */
struct chunk_side {
    const bf16 *x; /* the chunk's keys or values in memory, `width` wide */
    bf16 *d_x;
    const bf16 *d;      /* tiles of what the reader reads for: queries or d_o */
    const bf16 *grads;  /* tiles of the chain's row: the gradient of the state behind the chunk */
    const bf16 *reader; /* tile: weights times e^G */
    int64_t stride, width;
    float scale; /* of d_x and d_write */
};

static __device__ inline void strip_upper(strip &s)
{
    strip_each(s, [&](int u, int t, float &x) { x = t >= u ? x : 0; });
}

/* d_x to memory; d_write += the gradient of the write weights. plain(t, c): the reader's weights without e^G,
 * asked where gates are harsh. room: as in chunk_scores. */
template <typename Fn>
static __device__ inline void chunk_collect(strip &d_write, const chunk_side &a, const chunk_gates &gates,
                                            bf16 *room, Fn plain)
{
    const int SIZE = tile_of<bf16>::SIZE, LD = tile_of<bf16>::LD;
    int parts = chunk_parts(a.width);
    fragment x[CHAIN_PARTS], f;
    chunk_left(x, a.x, a.stride, gates.rows, a.width);
    strip pairs, sum;
    strip_zero(pairs);
    strip_zero(sum);
#pragma unroll 1
    for (int i = 0; i < parts; i++) {
        f = chunk_part(x, i);
        fragment_product<true>(pairs, f, a.d + i * SIZE);
        fragment_product<true>(sum, f, a.grads + i * SIZE);
    }
    strip_upper(pairs);
    if (!gates.harsh) {
        fragment_of(f, pairs);
        fragment_product<false>(sum, f, a.reader);
    }
    if (!gates.harsh)
        strip_each(sum, [&](int u, int c, float &y) { y *= gated_exp(-gates.G(u, c)); });
    else {
        strip_each(sum, [&](int u, int c, float &y) { y *= gates.behind(u, c); });
        __syncwarp();
        strip_to_tile(pairs, room);
        __syncwarp();
        strip_add_rarely(sum, [&](int u, int c) {
            float y = 0;
#pragma unroll 1
            for (int t = u; t < gates.rows; t++)
                y += from_bf16(room[u * LD + t]) * plain(t, c) * gated_exp(gates.G(t, c) - gates.G(u, c));
            return y;
        });
    }
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) d_write.x[n][e] += a.scale * sum.x[n][e];
    fragment weights;
    fragment_load(weights, gates.weights);
    strip_zero(pairs);
    if (gates.harsh)
        strip_add_rarely(pairs, [&](int u, int t) {
            float y = 0;
#pragma unroll 1
            for (int c = 0; t >= u && t < gates.rows && c < gates.keys; c++)
                y += gates.write(u, c) * plain(t, c) * gated_exp(gates.G(t, c) - gates.G(u, c));
            return y;
        });
    else
        fragment_product<true>(pairs, weights, a.reader);
    strip_upper(pairs);
    fragment_of(f, pairs);
#pragma unroll 1
    for (int i = 0; i < parts; i++) {
        int columns = gated_most(a.width, i * TILE);
        strip_zero(sum);
        fragment_product<false>(sum, f, a.d + i * SIZE);
        fragment_product<false>(sum, weights, a.grads + i * SIZE);
        strip_to_memory(sum, a.d_x + i * TILE, a.stride, gates.rows, columns, a.scale);
    }
}

/* d_g[t] = scale own + sum over t' >= t of share[t'] - direct[t], own what the state behind the chunk gives.
 * `direct`: a tile of floats; the shares lie in s->G. */
static __device__ inline void chunk_gate_gradient(const chain &p, const gated_place &x, gated_sums *s,
                                                  float scale, const float *direct, bf16 *d_g)
{
    const int HALF = TILE / 2, LD = tile_of<float>::LD;
    int c = (int)threadIdx.x % TILE, half = (int)threadIdx.x / TILE;
    float y[HALF], sum = 0, later = 0;
    if (c < p.keys && x.chunk + 1 < p.chunks)
        for (int i = 0; i < 2 * p.blocks; i++)
            later += scale * p.own[((x.head * p.chunks + x.chunk) * 2 * p.blocks + i) * p.keys + c];
#pragma unroll
    for (int i = HALF - 1; i >= 0; i--) sum += s->G[(half * HALF + i) * LD + c], y[i] = sum;
    if (half) s->room[c] = sum;
    __syncthreads();
    if (half == 0) later += s->room[c];
    if (c >= p.keys) return;
#pragma unroll
    for (int i = 0; i < HALF; i++) {
        int t = half * HALF + i;
        if (t >= x.rows) continue;
        float total = y[i] + later - (direct ? direct[t * LD + c] : 0);
        d_g[(x.at + t * p.heads) * p.keys + c] = to_bf16(total);
    }
}

#endif
