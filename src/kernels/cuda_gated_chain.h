/* Gated passes of bf16 tensors with up to 64 gated channels and values up to 128 wide, in two kernels each
 * way: the states before every chunk, chunk after chunk, and then all chunks side by side
 * (cuda_gated_chunk.h). Here are the chains. A block holds 64 columns of one head's state in float registers;
 * memory gets them in bf16, as the products of the chunks take them. h_t[c] = e^{g_t[c]} h_{t-1}[c] + w_t[c]
 * x_t        w = 1 - e^g (slots) or a tensor of keys (gla) G_t is the sum of a chunk's gates after its first
 * token up to t, `end` that of all of them. */
#ifndef BLURRY_KERNELS_CUDA_GATED_CHAIN_H
#define BLURRY_KERNELS_CUDA_GATED_CHAIN_H
#include "kernels/cuda_fragment.h"
#include "kernels/cuda_gated.h"

enum { CHAIN_SIDES = 2, CHAIN_PARTS = 2, CHAIN_WIDEST = CHAIN_PARTS * TILE };
enum { CHAIN_WARPS = 8, CHAIN_THREADS = 32 * CHAIN_WARPS, CHAIN_HALF = TILE / 2 };

/* What one of a call's passes writes to its state, and what reads it. */
struct chain_side {
    const bf16 *x;      /* [batch, total, heads, width]: keys or values */
    const bf16 *d;      /* the same, of what the state's gradient is made: queries or d_o */
    const bf16 *reader; /* [batch * heads, chunks, 64, pad] with what weights, times e^G */
    int64_t width;
    int64_t offset, carried; /* where the side starts in a row of states, of carried states */
};

struct chain {
    const bf16 *g, *k; /* [batch, total, heads, keys]; k NULL: 1 - e^g */
    chain_side side[CHAIN_SIDES];
    bf16 *states; /* [batch * heads, chunks, keys, row]: before each chunk, times e^(its first gate) */
    bf16 *grads;  /* the same of gradients after each chunk, times e^end where that is above e^-GATED_FADE */
    float *ends;  /* [batch * heads, chunks, 2, keys]: the first gate, the sum of the others */
    float *own;   /* [batch * heads, chunks, 2 blocks, keys]: states times gradients after each chunk */
    int64_t total, first, length, heads, keys, chunks, row, carried_row;
    int64_t pad; /* keys rounded up to 8 */
    int blocks;  /* of 64 columns of all sides */
};

static inline int chain_blocks(int64_t width)
{
    return (int)kernel_blocks(width, TILE);
}

static inline int64_t chain_padded(int64_t width)
{
    return kernel_blocks(width, 8) * 8;
}

/* Which shapes come here. */
static inline bool chain_fits(int64_t keys, int64_t width0, int64_t width1, int64_t sequences, int64_t length)
{
    return keys <= TILE && width0 <= CHAIN_WIDEST && width1 <= CHAIN_WIDEST &&
           (length <= CHAIN_MOST || sequences >= 16);
}

static __device__ inline gated_place chain_place(const chain &p, int64_t head, int64_t chunk)
{
    gated_place x;
    x.head = head, x.chunk = chunk;
    x.at = (head / p.heads * p.total + p.first + chunk * TILE) * p.heads + head % p.heads;
    x.query_at = x.at;
    x.rows = (int)min(p.length - chunk * TILE, (int64_t)TILE);
    return x;
}

static __device__ inline float gated_exp(float x)
{
    return exp2_fast(x * 1.4426950408889634f);
}

/* 1 - e^g, also where g is small. */
static __device__ inline float gated_write(float g)
{
    float small = -g * (1 + g * (1 / 2.0f + g * (1 / 6.0f + g * (1 / 24.0f))));
    return g > -0.04f ? small : 1 - gated_exp(g);
}

/* The 64 columns of a block. */
struct chain_columns {
    int side, block, columns;
    int64_t head, from; /* from: first column within the side */
};

static __device__ inline chain_columns chain_here(const chain &p)
{
    chain_columns x;
    x.head = blockIdx.x / p.blocks;
    x.block = (int)(blockIdx.x % p.blocks);
    int before = (int)((p.side[0].width + TILE - 1) / TILE);
    x.side = x.block >= before;
    x.from = (int64_t)(x.side ? x.block - before : x.block) * TILE;
    x.columns = gated_most(p.side[x.side].width, x.from);
    return x;
}

/* A warp's 16 rows and 32 columns of a block's state. */
struct half_strip {
    float x[4][4];
};

struct half_place { /* this thread's first row, the second is 8 further on, and its first column */
    int row, column;
};
static __device__ inline half_place half_here(void)
{
    return {tile_warp() % 4 * 16 + tile_lane() / 4, tile_warp() / 4 * CHAIN_HALF + tile_lane() % 4 * 2};
}

/* Each of this thread's two rows times its factor. */
static __device__ inline void half_fade(half_strip &s, float low, float high)
{
#pragma unroll
    for (int n = 0; n < 4; n++) s.x[n][0] *= low, s.x[n][1] *= low, s.x[n][2] *= high, s.x[n][3] *= high;
}

/* sum += A^T B of two tiles. */
static __device__ inline void half_product(half_strip &sum, const bf16 *A, const bf16 *B)
{
    int m = tile_warp() % 4 * 16, column = tile_warp() / 4 * CHAIN_HALF;
#pragma unroll
    for (int k = 0; k < TILE; k += 16) {
        uint32_t a[4], b[4];
        left_fragment<true>(a, A, m, k);
#pragma unroll
        for (int n = 0; n < 4; n += 2) {
            right_fragments<false>(b, B, column + 8 * n, k);
            mma_bf16(sum.x[n], a, b);
            mma_bf16(sum.x[n + 1], a, b + 2);
        }
    }
}

/* To rows padded to 8 elements, of which `columns` count. */
static __device__ inline void half_to_rows(const half_strip &s, bf16 *to, int64_t stride, int rows,
                                           int columns)
{
    half_place at = half_here();
    bf16 *low = to + at.row * stride + at.column, *high = low + 8 * stride;
#pragma unroll
    for (int n = 0; n < 4; n++) {
        if (tile_warp() / 4 * CHAIN_HALF + 8 * n >= columns) continue;
        if (at.row < rows) store_pair(low + 8 * n, s.x[n][0], s.x[n][1]);
        if (at.row + 8 < rows) store_pair(high + 8 * n, s.x[n][2], s.x[n][3]);
    }
}

/* f(memory, element) for this thread's elements of a carried state. */
template <typename F, typename Fn>
static __device__ inline void half_carry(half_strip &s, F *memory, int64_t stride, int rows, int columns,
                                         Fn f)
{
    half_place at = half_here();
#pragma unroll
    for (int n = 0; n < 4; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            int r = at.row + e / 2 * 8, c = at.column + 8 * n + e % 2;
            if (r < rows && c < columns) f(memory[r * stride + c], s.x[n][e]);
        }
}

struct chain_gates {
    float first[TILE], end[TILE];
    float2 sum[CHAIN_WARPS][TILE / 2];
};

/* writes[t][c] = w_t e^{end - G_t} of a chunk from the tiles of gates and (with KEYS) keys. A thread takes
 * two channels of eight tokens. Ends with a barrier. */
template <bool KEYS>
static __device__ inline void chain_writes(chain_gates *s, bf16 *writes, const bf16 *gates, const bf16 *keys)
{
    const int SHARE = TILE / CHAIN_WARPS, LD = tile_of<bf16>::LD;
    int lane = tile_lane(), warp = tile_warp(), at = warp * SHARE * LD + 2 * lane;
    float2 g[SHARE], sum = make_float2(0, 0), end = sum, rest = sum;
#pragma unroll
    for (int i = 0; i < SHARE; i++) {
        g[i] = load_pair(gates + at + i * LD);
        if (i || warp) sum.x += g[i].x, sum.y += g[i].y;
    }
    s->sum[warp][lane] = sum;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < CHAIN_WARPS; i++) {
        float2 x = s->sum[i][lane];
        end.x += x.x, end.y += x.y;
        if (i > warp) rest.x += x.x, rest.y += x.y; /* what fades a token's writes until the chunk's end */
    }
    if (warp == 0) {
        s->first[2 * lane] = g[0].x, s->first[2 * lane + 1] = g[0].y;
        s->end[2 * lane] = end.x, s->end[2 * lane + 1] = end.y;
    }
#pragma unroll
    for (int i = SHARE - 1; i >= 0; i--) {
        float2 w =
            KEYS ? load_pair(keys + at + i * LD) : make_float2(gated_write(g[i].x), gated_write(g[i].y));
        store_pair(writes + at + i * LD, w.x * gated_exp(rest.x), w.y * gated_exp(rest.y));
        rest.x += g[i].x, rest.y += g[i].y;
    }
    __syncthreads();
}

/* The states before every chunk. Grid: blocks of columns of all heads. in, out: [batch * heads, keys,
 * carried_row] or NULL. */
template <bool KEYS>
__global__ void __launch_bounds__(CHAIN_THREADS) chain_states(chain p, const float *in, float *out)
{
    CUDA_DYNAMIC_SHARED(bf16, tiles); /* two stages of gates, values and keys; writes */
    __shared__ chain_gates s;
    const int STAGE = KEYS ? 3 : 2, SIZE = tile_of<bf16>::SIZE;
    bf16 *writes = tiles + 2 * STAGE * SIZE;
    cuda_wait_previous();
    cuda_start_next();
    chain_columns x = chain_here(p);
    const chain_side &side = p.side[x.side];
    int keys = (int)p.keys, row = half_here().row, c = (int)threadIdx.x;
    int64_t stride = p.heads * p.keys, value_stride = p.heads * side.width;
    gated_place at = chain_place(p, x.head, 0);
    const bf16 *g = p.g + at.at * p.keys, *k = KEYS ? p.k + at.at * p.keys : nullptr,
               *value = side.x + at.at * side.width + x.from;
    auto fetch = [&](int64_t chunk) {
        bf16 *to = tiles + (chunk & 1) * STAGE * SIZE;
        int rows = (int)min(p.length - chunk * TILE, (int64_t)TILE);
        tile_load_async<CHAIN_THREADS>(to, g + chunk * TILE * stride, stride, rows, keys);
        tile_load_async<CHAIN_THREADS>(to + SIZE, value + chunk * TILE * value_stride, value_stride, rows,
                                       x.columns);
        if (KEYS)
            tile_load_async<CHAIN_THREADS>(to + 2 * SIZE, k + chunk * TILE * stride, stride, rows, keys);
        copy_async_commit();
    };
    if (p.chunks > 0) fetch(0);
    int64_t carried = x.head * p.keys * p.carried_row + side.carried + x.from;
    half_strip state = {};
    if (in)
        half_carry(state, in + carried, p.carried_row, keys, x.columns,
                   [](const float &from, float &e) { e = from; });
    bf16 *to = p.states + x.head * p.chunks * p.keys * p.row + side.offset + x.from;
    float *ends = p.ends + x.head * p.chunks * 2 * p.keys;
    for (int64_t chunk = 0; chunk < p.chunks; chunk++) {
        const bf16 *stage = tiles + (chunk & 1) * STAGE * SIZE;
        copy_async_wait<0>();
        __syncthreads();
        if (chunk + 1 < p.chunks) fetch(chunk + 1);
        chain_writes<KEYS>(&s, writes, stage, stage + 2 * SIZE);
        if (x.block == 0 && c < keys) ends[c] = s.first[c], ends[p.keys + c] = s.end[c];
        half_fade(state, gated_exp(s.first[row]), gated_exp(s.first[row + 8]));
        half_to_rows(state, to, p.row, keys, x.columns);
        half_fade(state, gated_exp(s.end[row]), gated_exp(s.end[row + 8]));
        half_product(state, writes, stage + SIZE);
        to += p.keys * p.row, ends += 2 * p.keys;
    }
    if (out)
        half_carry(state, out + carried, p.carried_row, keys, x.columns, [](float &to, float &e) { to = e; });
}

/* The first gates and the sums of the others of a chunk, in this thread's rows. */
struct chain_rates {
    float first[2], end[2];
};

static __device__ inline chain_rates chain_rates_of(const float *ends, int keys)
{
    chain_rates r = {};
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int row = half_here().row + 8 * i;
        if (row < keys) r.first[i] = ends[row], r.end[i] = ends[keys + row];
    }
    return r;
}

/* The gradients of the states after every chunk, from last to first. Grid as above. */
__global__ static void __launch_bounds__(CHAIN_THREADS) chain_grads(chain p)
{
    CUDA_DYNAMIC_SHARED(bf16, tiles); /* two stages of readers, what they read for, states */
    const int STAGE = 3, SIZE = tile_of<bf16>::SIZE, LD = tile_of<bf16>::LD;
    cuda_wait_previous();
    cuda_start_next();
    chain_columns x = chain_here(p);
    const chain_side &side = p.side[x.side];
    half_place here = half_here();
    int keys = (int)p.keys, columns = (x.columns + 7) / 8 * 8;
    int64_t stride = p.heads * side.width, before = x.head * p.chunks;
    const bf16 *d = side.d + chain_place(p, x.head, 0).at * side.width + x.from;
    auto state_at = [&](int64_t chunk) { return (before + chunk) * p.keys * p.row + side.offset + x.from; };
    auto fetch = [&](int64_t chunk) {
        bf16 *to = tiles + (chunk & 1) * STAGE * SIZE;
        int rows = (int)min(p.length - chunk * TILE, (int64_t)TILE);
        tile_load_async<CHAIN_THREADS>(to, side.reader + (before + chunk) * TILE * p.pad, p.pad, TILE,
                                       (int)p.pad);
        tile_load_async<CHAIN_THREADS>(to + SIZE, d + chunk * TILE * stride, stride, rows, x.columns);
        tile_load_async<CHAIN_THREADS>(to + 2 * SIZE, p.states + state_at(chunk), p.row, keys, columns);
        copy_async_commit();
    };
    auto rates = [&](int64_t chunk) { return chain_rates_of(p.ends + (before + chunk) * 2 * p.keys, keys); };
    fetch(p.chunks - 1);
    chain_rates next = rates(p.chunks - 1);
    half_strip grad = {};
    for (int64_t chunk = p.chunks - 1; chunk >= 0; chunk--) {
        const bf16 *stage = tiles + (chunk & 1) * STAGE * SIZE;
        chain_rates rate = next;
        copy_async_wait<0>();
        __syncthreads();
        if (chunk > 0) fetch(chunk - 1), next = rates(chunk - 1);
        float fade[2], kept[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            bool fits = rate.end[i] >= -GATED_FADE;
            float end = gated_exp(rate.end[i]);
            fade[i] = fits ? end : 1, kept[i] = fits ? 1 : end;
        }
        half_fade(grad, fade[0], fade[1]);
        half_to_rows(grad, p.grads + state_at(chunk), p.row, keys, x.columns);
        half_fade(grad, kept[0], kept[1]);
        half_product(grad, stage, stage + SIZE);
        if (chunk == 0) return;
        float own[2] = {0, 0};
        const bf16 *state = stage + 2 * SIZE + here.row * LD + here.column;
#pragma unroll
        for (int n = 0; n < 4; n++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                float2 h = load_pair(state + i * 8 * LD + 8 * n);
                own[i] += grad.x[n][2 * i] * h.x + grad.x[n][2 * i + 1] * h.y;
            }
        float *to = p.own + ((before + chunk - 1) * 2 * p.blocks + 2 * x.block + tile_warp() / 4) * p.keys;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            own[i] += __shfl_xor_sync(CUDA_FULL_WARP, own[i], 1);
            own[i] += __shfl_xor_sync(CUDA_FULL_WARP, own[i], 2);
            if (tile_lane() % 4 == 0 && here.row + 8 * i < keys) to[here.row + 8 * i] = own[i];
        }
        half_fade(grad, gated_exp(rate.first[0]), gated_exp(rate.first[1]));
    }
}

/* ---- launches ---- */
static inline void chain_run_states(const kernel_run *run, const chain &p, int64_t sequences, const float *in,
                                    float *out)
{
    cuda_launch_early(run->early, p.k ? chain_states<true> : chain_states<false>,
                      dim3((unsigned)(sequences * p.heads * p.blocks)), dim3(CHAIN_THREADS),
                      (size_t)(p.k ? 7 : 5) * tile_of<bf16>::SIZE * sizeof(bf16), (cudaStream_t)run->stream,
                      p, in, out);
}

static inline void chain_run_grads(const kernel_run *run, const chain &p, int64_t sequences)
{
    cuda_launch_early(run->early, chain_grads, dim3((unsigned)(sequences * p.heads * p.blocks)),
                      dim3(CHAIN_THREADS), (size_t)6 * tile_of<bf16>::SIZE * sizeof(bf16),
                      (cudaStream_t)run->stream, p);
}

#endif
