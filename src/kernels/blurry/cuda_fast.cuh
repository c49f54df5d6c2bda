/* What the tensor-core kernels of both passes share: segments, states in fragments, chunk tables.
 *
 * A chain (one sequence of one key/value head) is cut into chunks of 64 tokens and those into at most
 * `segments` runs of consecutive chunks, one block each. A state (K and V, [SP, D] each) lives in the
 * registers of a block as accumulators, shared out among four warps: a quarter of the slots each, MT
 * fragments high and NT wide, or, where there are 32 slots, half of them and half of the columns. With decay
 * it is kept times 2^-60 (cuda_entry.cuh), so that the chunk's products add to it directly. Internal to
 * kernels/blurry/cuda*. */
#ifndef BLURRY_KERNELS_BLURRY_CUDA_FAST_CUH
#define BLURRY_KERNELS_BLURRY_CUDA_FAST_CUH
#include "kernels/blurry/cuda_entry.cuh"
#include "kernels/blurry/cuda_fast.h"
#include "kernels/cuda_swizzled.h"

/* One warp's share of K or V, of WARPS that have it between them. */
template <int D, int SP, int WARPS = 4> struct fast_share {
    static constexpr int DOWN =
        SP / 16 < WARPS ? SP / 16 : WARPS; /* warps one below the other; the others beside */
    static constexpr int MT = SP / 16 / DOWN, NT = D / 8 * DOWN / WARPS;
};
/* Its first slot and column. */
struct fast_corner {
    int slot, column;
};
template <int D, int SP, int WARPS = 4> static __device__ inline fast_corner fast_corner_of(int warp)
{
    typedef fast_share<D, SP, WARPS> F;
    fast_corner at = {warp % F::DOWN * 16 * F::MT, warp / F::DOWN * 8 * F::NT};
    return at;
}

/* The chunks of one block: a segment, or one of its parts. */
struct fast_place {
    bla_chain chain;
    int64_t index; /* of the chain */
    int64_t segment, part;
    int64_t unit;     /* its first part's place in states and keeps */
    int64_t from, to; /* chunks */
    int64_t saved;    /* index of the chain's first chunk among all saved ones */
};

/* Chunks of a part. */
static __device__ inline int64_t fast_part_chunks(const fast_run &r, const bla_chain &x)
{
    int64_t total = (x.count + CHUNK - 1) / CHUNK, units = r.segments * r.parts;
    return total > 0 ? (total + units - 1) / units : 1;
}

/* Block `block` of a launch over all chains and `segments` segments of each, whole or in parts. */
static __device__ inline fast_place fast_place_of(const bla_call &c, const fast_run &r, int64_t block,
                                                  int64_t segments, bool in_parts)
{
    fast_place p;
    int64_t parts = in_parts ? r.parts : 1;
    p.index = block / (segments * parts), p.segment = block / parts % segments, p.part = block % parts;
    p.chain = bla_chain_of(c, p.index);
    p.unit = (p.index * r.segments + p.segment) * r.parts + p.part;
    int64_t total = (p.chain.count + CHUNK - 1) / CHUNK, each = fast_part_chunks(r, p.chain);
    p.from = min((p.segment * r.parts + p.part) * each, total);
    p.to = min(p.from + (in_parts ? each : each * r.parts), total);
    p.saved = fast_saved_base(p.chain.first, p.chain.b, c.Hkv, p.chain.h);
    return p;
}

/* t mod rows, rows below 2^20: steps of 32 bits, where a division of 64 bits would be a call and push the
 * accumulators out of the registers. */
static __device__ inline uint32_t fast_phase(int64_t t, uint32_t rows)
{
    uint32_t high = (uint32_t)((uint64_t)t >> 32), low = (uint32_t)t;
    if (high == 0) return low % rows;
    uint32_t phase = high % rows;
    phase = (phase << 12 | low >> 20) % rows;
    phase = (phase << 12 | (low >> 8 & 0xfff)) % rows;
    return (phase << 8 | (low & 0xff)) % rows;
}

/* The table entry of a chunk of sequence b, from position t0 on: of the period's table or of those made for
 * this call, else NULL. */
template <bool DECAY>
static __device__ inline const char *fast_entry_ready(const bla_call &c, const fast_run &r, int64_t b,
                                                      int64_t h, int64_t t0, int SP, int64_t chunk)
{
    const bla_period *period = c.periods + h;
    if (period->rows)
        return period->entries + (int64_t)fast_phase(t0, (uint32_t)period->rows) * period->entry_stride;
    if (!r.made) return NULL;
    int64_t sequence = c.positions ? b : 0;
    return r.scratch + ((sequence * r.loose + period->loose) * r.made + chunk) * entry_made_bytes(SP, DECAY);
}

/* The entries of a chain's chunks one after another, forwards or backwards: without a division or a look into
 * memory for each. */
template <bool DECAY> struct fast_entries {
    const char *base; /* of all, or (rows = 0) the chunk's own */
    int64_t stride;
    uint32_t rows, phase, step;
    __device__ void begin(const bla_call &c, const fast_run &r, const bla_chain &x, int SP, int64_t chunk,
                          bool backwards)
    {
        const bla_period *period = c.periods + x.h;
        const int64_t t0 = x.position + chunk * CHUNK;
        rows = (uint32_t)period->rows, phase = step = 0;
        if (rows) {
            base = period->entries, stride = period->entry_stride;
            phase = fast_phase(t0, rows), step = CHUNK % rows;
            if (backwards && step) step = rows - step;
        } else {
            base = fast_entry_ready<DECAY>(c, r, x.b, x.h, t0, SP, chunk);
            stride = backwards ? -entry_made_bytes(SP, DECAY) : entry_made_bytes(SP, DECAY);
        }
    }
    __device__ const char *next(void)
    {
        const char *here = rows ? base + phase * stride : base;
        if (!rows) base += stride;
        phase += step;
        if (phase >= rows) phase -= rows;
        return here;
    }
};
/* Starts copying an entry's P to a tile, by all threads of a block. */
template <int SP, int THREADS> static __device__ inline void fast_table_load(char *tile, const char *entry)
{
    constexpr int units = SP / 8, U = tile_units(SP), ROUND = THREADS / units;
    static_assert(THREADS % units == 0 && ROUND % 8 == 0 && CHUNK % ROUND == 0, "whole rounds");
    int at = tile_at<U>((int)threadIdx.x / units, (int)threadIdx.x % units);
#pragma unroll
    for (int i = 0; i < CHUNK; i += ROUND)
        copy_async16(tile + at + i * (U * 16), entry + 16 * threadIdx.x + i * (SP * 2), true);
}

/* The same, or built into this block's scratch by its first `threads` threads (with barriers; `room` is
 * shared memory that nothing else uses now). */
template <bool DECAY>
static __device__ inline const char *fast_entry(const bla_call &c, const fast_run &r, const fast_place &p,
                                                int SP, int64_t chunk, int stage, void *room, int threads)
{
    int64_t t0 = p.chain.position + chunk * CHUNK;
    const char *ready = fast_entry_ready<DECAY>(c, r, p.chain.b, p.chain.h, t0, SP, chunk);
    if (ready) return ready;
    char *mine = r.scratch + ((int64_t)blockIdx.x * 2 + stage) * entry_bytes(SP);
    entry_build(c.S, SP, c.periods[p.chain.h].T, t0, DECAY, r.sines, (entry_row *)room, mine, threads);
    return mine;
}

/* c at a fragment pair: 16 rows of group `rows`, columns 16 * pair ..; multiplies two accumulators. `c` is an
 * entry's bf16 c, where it lies or copied to shared memory. */
static __device__ inline uint4 fast_c_load(const char *c, int SP, int rows, int pair)
{
    return *(const uint4 *)(c + ((rows * (SP / 16) + pair) * 32 + (threadIdx.x & 31)) * 16);
}
/* Starts copying an entry's bf16 c to shared memory, by all threads of a block. */
template <int SP, int THREADS> static __device__ inline void fast_c_copy(char *to, const char *entry)
{
#pragma unroll
    for (int i = 0; i < (int)entry_p_bytes(SP); i += 16 * THREADS)
        copy_async16(to + i + 16 * threadIdx.x, entry + entry_p_bytes(SP) + i + 16 * threadIdx.x, true);
}
static __device__ inline void fast_c_scale(const uint4 &c, float *low, float *high)
{
    float2 a = unpack_bf16(c.x), b = unpack_bf16(c.y), d = unpack_bf16(c.z), e = unpack_bf16(c.w);
    low[0] *= a.x, low[1] *= a.y, low[2] *= b.x, low[3] *= b.y;
    high[0] *= d.x, high[1] *= d.y, high[2] *= e.x, high[3] *= e.y;
}

/* What the slots keep over a chunk of n tokens: end[m][half] for this warp's slots at.slot + 16 m + g (+ 8).
 */
template <int MT>
static __device__ inline void fast_keep(const char *entry, int SP, int n, fast_corner at, float (&end)[MT][2])
{
    const float *c =
        (const float *)(entry + 2 * entry_p_bytes(SP)) + (n - 1) * SP + at.slot + ((threadIdx.x & 31) >> 2);
#pragma unroll
    for (int m = 0; m < MT; m++) end[m][0] = c[16 * m] * ENTRY_UNIT, end[m][1] = c[16 * m + 8] * ENTRY_UNIT;
}

/* Multiplies the rows of accumulators by `end`. */
template <int MT, int NT>
static __device__ inline void fast_rows_scale(float (&x)[MT][NT][4], const float (&end)[MT][2])
{
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int n = 0; n < NT; n++) {
            x[m][n][0] *= end[m][0], x[m][n][1] *= end[m][0];
            x[m][n][2] *= end[m][1], x[m][n][3] *= end[m][1];
        }
}

/* Slots [S, width] in the caller's memory to and from accumulators. */
template <int MT, int NT>
static __device__ inline void fast_slots_load(float (&x)[MT][NT][4], const float *from, int S, int width,
                                              fast_corner at, float factor)
{
    int lane = threadIdx.x & 31;
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int j = at.slot + 16 * m + (lane >> 2) + (i >> 1) * 8,
                    d = at.column + 8 * n + 2 * (lane & 3) + (i & 1);
                x[m][n][i] = from && j < S && d < width ? factor * from[(int64_t)j * width + d] : 0.0f;
            }
}
template <int MT, int NT>
static __device__ inline void fast_slots_store(const float (&x)[MT][NT][4], float *to, int S, int width,
                                               fast_corner at, float factor)
{
    int lane = threadIdx.x & 31;
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int j = at.slot + 16 * m + (lane >> 2) + (i >> 1) * 8,
                    d = at.column + 8 * n + 2 * (lane & 3) + (i & 1);
                if (j < S && d < width) to[(int64_t)j * width + d] = factor * x[m][n][i];
            }
}

/* Accumulators to and from the workspace: K (part 0) and V (1) as fragments [2, D/8, SP/16, 32 lanes, 4], the
 * same for every number of warps. */
static __device__ inline float4 *fast_fragment_at(float *state, int D, int SP, int part, int slot, int column)
{
    return (float4 *)state + ((part * (D / 8) + column / 8) * (SP / 16) + slot / 16) * 32 +
           (threadIdx.x & 31);
}
template <int D, int SP>
static __device__ inline float4 *fast_state_at(float *state, int part, fast_corner at, int m, int n)
{
    return fast_fragment_at(state, D, SP, part, at.slot, at.column) + (n * (SP / 16) + m) * 32;
}
template <int D, int SP, int MT, int NT>
static __device__ inline void fast_state_store(const float (&x)[MT][NT][4], float *state, int part,
                                               fast_corner at)
{
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int n = 0; n < NT; n++)
            *fast_state_at<D, SP>(state, part, at, m, n) =
                make_float4(x[m][n][0], x[m][n][1], x[m][n][2], x[m][n][3]);
}
template <int D, int SP, int MT, int NT>
static __device__ inline void fast_state_add(float (&x)[MT][NT][4], float *state, int part, fast_corner at)
{
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int n = 0; n < NT; n++) {
            float4 y = *fast_state_at<D, SP>(state, part, at, m, n);
            x[m][n][0] += y.x, x[m][n][1] += y.y, x[m][n][2] += y.z, x[m][n][3] += y.w;
        }
}

/* What a part keeps: to the workspace, and multiplied onto accumulators from there. */
template <int MT>
static __device__ inline void fast_keep_store(const float (&kept)[MT][2], float *keep, fast_corner at)
{
    int lane = threadIdx.x & 31;
    if ((lane & 3) != 0 || at.column != 0) return;
#pragma unroll
    for (int m = 0; m < MT; m++)
        keep[at.slot + 16 * m + (lane >> 2)] = kept[m][0],
                                         keep[at.slot + 16 * m + (lane >> 2) + 8] = kept[m][1];
}
template <int MT, int NT>
static __device__ inline void fast_keep_scale(float (&x)[MT][NT][4], const float *keep, fast_corner at)
{
    float end[MT][2];
    int g = at.slot + ((threadIdx.x & 31) >> 2);
#pragma unroll
    for (int m = 0; m < MT; m++) end[m][0] = keep[g + 16 * m], end[m][1] = keep[g + 16 * m + 8];
    fast_rows_scale(x, end);
}

/* Accumulators as bf16 into a tile [SP, D]. The addresses are worked out each time: kept for the next, they
 * would take as many registers as the accumulators. */
template <int D, int MT, int NT>
static __device__ inline void fast_copy_out(const float (&x)[MT][NT][4], char *tile, fast_corner at)
{
    constexpr int ROW = tile_units(D) * 16;
    int lane = threadIdx.x & 31;
    asm volatile("" : "+r"(lane));
    const int g = lane >> 2, first = at.slot * ROW + 4 * (lane & 3);
#pragma unroll
    for (int n = 0; n < NT; n++) {
        char *to = tile + first + tile_at<tile_units(D)>(g, at.column / 8 + n);
#pragma unroll
        for (int m = 0; m < MT; m++) {
            *(uint32_t *)(to + 16 * m * ROW) = pack_bf16(x[m][n][0], x[m][n][1]);
            *(uint32_t *)(to + (16 * m + 8) * ROW) = pack_bf16(x[m][n][2], x[m][n][3]);
        }
    }
}

#endif
