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
    float *own;   /* [batch * heads, chunks, blocks, keys]: states times gradients after each chunk */
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

/* 1 - e^g, also where g is small. */
static __device__ inline float gated_write(float g)
{
    return g > -0.04f ? -g * (1 + g * (1 / 2.0f + g * (1 / 6.0f + g * (1 / 24.0f)))) : 1 - __expf(g);
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

/* Each of this thread's two rows of a strip times its factor. */
static __device__ inline void strip_fade(strip &s, float low, float high)
{
#pragma unroll
    for (int n = 0; n < 8; n++) s.x[n][0] *= low, s.x[n][1] *= low, s.x[n][2] *= high, s.x[n][3] *= high;
}

struct chain_gates {
    float first[TILE], end[TILE], sum[2][TILE];
};

/* writes[t][c] = w_t e^{end - G_t} of a chunk from the tiles of gates and (with KEYS) keys. Ends with a
 * barrier. */
template <bool KEYS>
static __device__ inline void chain_writes(chain_gates *s, bf16 *writes, const bf16 *gates, const bf16 *keys)
{
    const int HALF = TILE / 2, LD = tile_of<bf16>::LD;
    int c = (int)threadIdx.x % TILE, half = (int)threadIdx.x / TILE, at = half * HALF * LD + c;
    float g[HALF], sum = 0;
#pragma unroll
    for (int i = 0; i < HALF; i++) {
        g[i] = from_bf16(gates[at + i * LD]);
        if (i || half) sum += g[i];
    }
    s->sum[half][c] = sum;
    if (half == 0) s->first[c] = g[0];
    __syncthreads();
    float rest = half ? 0 : s->sum[1][c]; /* what fades a token's writes until the end of the chunk */
    if (half == 0) s->end[c] = sum + rest;
#pragma unroll
    for (int i = HALF - 1; i >= 0; i--) {
        float w = KEYS ? from_bf16(keys[at + i * LD]) : gated_write(g[i]);
        writes[at + i * LD] = to_bf16(w * __expf(rest));
        rest += g[i];
    }
    __syncthreads();
}

/* The states before every chunk. Grid: blocks of columns of all heads. in, out: [batch * heads, keys,
 * carried_row] or NULL. */
template <bool KEYS>
__global__ void __launch_bounds__(TILE_THREADS) chain_states(chain p, const float *in, float *out)
{
    CUDA_DYNAMIC_SHARED(bf16, tiles); /* two stages of gates, values and keys; writes */
    __shared__ chain_gates s;
    const int STAGE = KEYS ? 3 : 2, SIZE = tile_of<bf16>::SIZE;
    bf16 *writes = tiles + 2 * STAGE * SIZE;
    cuda_wait_previous();
    chain_columns x = chain_here(p);
    const chain_side &side = p.side[x.side];
    int keys = (int)p.keys, row = 16 * tile_warp() + tile_lane() / 4;
    auto fetch = [&](int64_t chunk) {
        bf16 *to = tiles + (chunk & 1) * STAGE * SIZE;
        gated_place at = chain_place(p, x.head, chunk);
        int64_t stride = p.heads * p.keys;
        tile_load_async(to, p.g + at.at * p.keys, stride, at.rows, keys);
        tile_load_async(to + SIZE, side.x + at.at * side.width + x.from, p.heads * side.width, at.rows,
                        x.columns);
        if (KEYS) tile_load_async(to + 2 * SIZE, p.k + at.at * p.keys, stride, at.rows, keys);
        copy_async_commit();
    };
    if (p.chunks > 0) fetch(0);
    int64_t carried = x.head * p.keys * p.carried_row + side.carried + x.from;
    strip state;
    strip_fetch(state, in + carried, p.carried_row, in ? keys : 0, x.columns);
    for (int64_t chunk = 0; chunk < p.chunks; chunk++) {
        const bf16 *stage = tiles + (chunk & 1) * STAGE * SIZE;
        copy_async_wait<0>();
        __syncthreads();
        if (chunk + 1 < p.chunks) fetch(chunk + 1);
        chain_writes<KEYS>(&s, writes, stage, stage + 2 * SIZE);
        int64_t at = x.head * p.chunks + chunk;
        int c = (int)threadIdx.x;
        if (x.block == 0 && c < keys)
            p.ends[2 * at * p.keys + c] = s.first[c], p.ends[(2 * at + 1) * p.keys + c] = s.end[c];
        strip_fade(state, __expf(s.first[row]), __expf(s.first[row + 8]));
        strip_to_memory(state, p.states + at * p.keys * p.row + side.offset + x.from, p.row, keys, x.columns,
                        1);
        strip_fade(state, __expf(s.end[row]), __expf(s.end[row + 8]));
        tile_product<true, false>(state, writes, stage + SIZE);
    }
    if (out) strip_to_memory(state, out + carried, p.carried_row, keys, x.columns, 1);
}

/* The first gates and the sums of the others of a chunk, in this thread's rows of a strip. */
struct chain_rates {
    float first[2], end[2];
};

static __device__ inline chain_rates chain_rates_of(const chain &p, int64_t head, int64_t chunk)
{
    chain_rates r = {};
    const float *ends = p.ends + (head * p.chunks + chunk) * 2 * p.keys;
    for (int i = 0; i < 2; i++) {
        int row = 16 * tile_warp() + tile_lane() / 4 + 8 * i;
        if (row < p.keys) r.first[i] = ends[row], r.end[i] = ends[p.keys + row];
    }
    return r;
}

/* The gradients of the states after every chunk, from last to first. Grid as above. */
__global__ static void __launch_bounds__(TILE_THREADS) chain_grads(chain p)
{
    CUDA_DYNAMIC_SHARED(bf16, tiles); /* two stages of readers, what they read for, states */
    const int STAGE = 3, SIZE = tile_of<bf16>::SIZE, LD = tile_of<bf16>::LD;
    cuda_wait_previous();
    chain_columns x = chain_here(p);
    const chain_side &side = p.side[x.side];
    int keys = (int)p.keys, row = 16 * tile_warp() + tile_lane() / 4;
    auto state_at = [&](int64_t chunk) {
        return (x.head * p.chunks + chunk) * p.keys * p.row + side.offset + x.from;
    };
    auto fetch = [&](int64_t chunk) {
        bf16 *to = tiles + (chunk & 1) * STAGE * SIZE;
        gated_place at = chain_place(p, x.head, chunk);
        tile_load_async(to, side.reader + (x.head * p.chunks + chunk) * TILE * p.pad, p.pad, TILE, keys);
        tile_load_async(to + SIZE, side.d + at.at * side.width + x.from, p.heads * side.width, at.rows,
                        x.columns);
        tile_load_async(to + 2 * SIZE, p.states + state_at(chunk), p.row, keys, x.columns);
        copy_async_commit();
    };
    fetch(p.chunks - 1);
    chain_rates next = chain_rates_of(p, x.head, p.chunks - 1);
    strip grad;
    strip_zero(grad);
    for (int64_t chunk = p.chunks - 1; chunk >= 0; chunk--) {
        const bf16 *stage = tiles + (chunk & 1) * STAGE * SIZE;
        chain_rates rate = next;
        copy_async_wait<0>();
        __syncthreads();
        if (chunk > 0) fetch(chunk - 1), next = chain_rates_of(p, x.head, chunk - 1);
        float fade[2], kept[2];
        for (int i = 0; i < 2; i++) {
            bool fits = rate.end[i] >= -GATED_FADE;
            fade[i] = fits ? __expf(rate.end[i]) : 1, kept[i] = fits ? 1 : __expf(rate.end[i]);
        }
        strip_fade(grad, fade[0], fade[1]);
        strip_to_memory(grad, p.grads + state_at(chunk), p.row, keys, x.columns, 1);
        strip_fade(grad, kept[0], kept[1]);
        tile_product<true, false>(grad, stage, stage + SIZE);
        if (chunk == 0) return;
        float own[2] = {0, 0};
        strip_each(grad, [&](int r, int c, float &y) {
            own[r != row] += y * from_bf16(stage[2 * SIZE + r * LD + c]);
        });
        for (int i = 0; i < 2; i++) {
            own[i] += __shfl_xor_sync(CUDA_FULL_WARP, own[i], 1);
            own[i] += __shfl_xor_sync(CUDA_FULL_WARP, own[i], 2);
            if (tile_lane() % 4 == 0 && row + 8 * i < keys)
                p.own[((x.head * p.chunks + chunk - 1) * p.blocks + x.block) * p.keys + row + 8 * i] = own[i];
        }
        strip_fade(grad, __expf(rate.first[0]), __expf(rate.first[1]));
    }
}

/* ---- launches ---- */
static inline void chain_run_states(const kernel_run *run, const chain &p, int64_t sequences, const float *in,
                                    float *out)
{
    cuda_launch_early(run->early, p.k ? chain_states<true> : chain_states<false>,
                      dim3((unsigned)(sequences * p.heads * p.blocks)), dim3(TILE_THREADS),
                      (size_t)(p.k ? 7 : 5) * tile_of<bf16>::SIZE * sizeof(bf16), (cudaStream_t)run->stream,
                      p, in, out);
}

static inline void chain_run_grads(const kernel_run *run, const chain &p, int64_t sequences)
{
    cuda_launch_early(run->early, chain_grads, dim3((unsigned)(sequences * p.heads * p.blocks)),
                      dim3(TILE_THREADS), (size_t)6 * tile_of<bf16>::SIZE * sizeof(bf16),
                      (cudaStream_t)run->stream, p);
}

#endif
