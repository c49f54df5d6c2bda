/* Forward pass of blurry attention with tensor cores, in one pass. Formulas: docs/operator.md, "Chunked
 * form".
 *
 * A block takes one segment of a chain. Of a chunk its warps first read (cuda_fast_pair.cuh): two pairs of
 * row groups times SPLIT shares, A = Q K^T, logits X = Q Kslots^T + A P, the softmax, O = p Vslots + (p P^T)
 * V. Then each brings its part of the state forward, which is in its registers, half of them that of K, half
 * that of V; what is read is a bf16 copy, in two places in turn where there is room. */
#ifndef BLURRY_KERNELS_BLURRY_CUDA_FAST_FORWARD_CUH
#define BLURRY_KERNELS_BLURRY_CUDA_FAST_FORWARD_CUH
#include "kernels/blurry/cuda_fast_advance.cuh"
#include "kernels/blurry/cuda_fast_pair.cuh"

template <int D_, int SP_, bool DECAY>
struct forward_form : pair_form<D_, SP_, (D_ == 32 || SP_ == 32 ? 2 : 4)> {
    typedef pair_form<D_, SP_, (D_ == 32 || SP_ == 32 ? 2 : 4)> P;
    static constexpr int D = D_, SP = SP_, SPLIT = P::SPLIT;
    static constexpr int THREADS = 64 * SPLIT;
    static constexpr int MT = fast_share<D, SP, SPLIT>::MT, NT = fast_share<D, SP, SPLIT>::NT;
    static constexpr int TOKENS = tile_bytes(CHUNK, D), SLOTS = tile_bytes(SP, D),
                         TABLE = tile_bytes(CHUNK, SP), KEEP = DECAY ? SP * 4 : 0;
    /* With decay c is copied too, and the slots have a second place, where there is room. */
    static constexpr int LEAST = 2 * SLOTS + P::EXCHANGE + 2 * (3 * TOKENS + TABLE + KEEP);
    static constexpr int BLOCKS = SPLIT == 2 && LEAST <= 231424 / 2 - 1024 ? 2 : 1; /* per multiprocessor */
    static constexpr int MOST = 231424 / BLOCKS - 1024;
    static constexpr bool COPY_C = DECAY && LEAST + 2 * TABLE <= MOST;
    static constexpr int TILES = 3 * TOKENS + (COPY_C ? 2 : 1) * TABLE + KEEP; /* k, v, q, P, c */
    static constexpr int PLACES = 4 * SLOTS + P::EXCHANGE + 2 * TILES <= MOST ? 2 : 1;
    /* Slots and tiles in turn lie side by side, so that addresses differ by the same from turn to turn. */
    static constexpr int FIXED = P::EXCHANGE + (PLACES == 2 ? 0 : 2 * SLOTS);
    static constexpr int STAGE = TILES + (PLACES == 2 ? 2 * SLOTS : 0), SHARED = FIXED + 2 * STAGE;
    static_assert(SHARED <= MOST, "shared memory");
};

/* One stage's tiles, and the slots before its chunk. */
struct forward_tiles {
    char *k, *v, *q, *p, *c, *keep, *slots;
};
template <typename F> static __device__ inline forward_tiles forward_stage(char *shared, int stage)
{
    char *base = shared + F::FIXED + stage * F::STAGE, *at = base + (F::STAGE - F::TILES);
    forward_tiles t = {at,
                       at + F::TOKENS,
                       at + 2 * F::TOKENS,
                       at + 3 * F::TOKENS,
                       at + 3 * F::TOKENS + F::TABLE,
                       at + F::TILES - F::KEEP,
                       F::PLACES == 2 ? base : shared + F::EXCHANGE};
    return t;
}

/* 64 rows of one tensor to a tile, by all threads: `from` is this thread's unit of the first row it has. */
template <typename F>
static __device__ inline void forward_load_tile(char *tile, const bf16 *from, int64_t stride, int valid_rows,
                                                int width)
{
    constexpr int units = F::D / 8, ROUND = F::THREADS / units;
    static_assert(ROUND % 8 == 0, "the swizzle is the same in every round");
    const int row = (int)threadIdx.x / units, unit = (int)threadIdx.x % units;
    const bool inside = unit * 8 < width;
    tile += tile_at<F::UD>(row, unit);
#pragma unroll
    for (int i = 0; i < CHUNK; i += ROUND) {
        const bool valid = inside && row + i < valid_rows;
        copy_async16(tile + i * (F::UD * 16), valid ? from + i * stride : from, valid);
    }
}

/* What is carried from chunk to chunk beside the state. Registers are dear: pointers are worked out from
 * these for each. A segment has less than 2^31 tokens, or its tensors would leave the memory. */
template <typename F, bool DECAY> struct forward_reader {
    fast_entries<DECAY> entries; /* of the chunk to be loaded next */
    int64_t token, position;     /* the chunk's first one, and what added to it is its position */
    int left, hidden;            /* tokens from there to the chain's end, and until all slots are visible */
    int h;
    bool spot; /* the chain's entries are made by the block itself */
    __device__ void begin(const bla_call &c, const fast_run &r, const fast_place &p)
    {
        const int64_t t0 = p.chain.position + p.from * CHUNK;
        h = (int)p.chain.h, spot = !c.periods[h].rows && !r.made;
        if (!spot) entries.begin(c, r, p.chain, F::SP, p.from, false);
        token = p.chain.first + p.from * CHUNK, position = t0 - token;
        left = (int)min(p.chain.count - p.from * CHUNK, (int64_t)INT32_MAX);
        hidden = (int)min(max(c.periods[h].all_visible - t0, (int64_t)0), (int64_t)INT32_MAX);
    }
    /* A tile of the chunk `ahead` tokens from here. */
    __device__ void load_tile(char *tile, const void *tensor, int64_t heads, int64_t head, int width,
                              int ahead)
    {
        constexpr int units = F::D / 8;
        const int row = (int)threadIdx.x / units, unit = (int)threadIdx.x % units;
        const bf16 *from = (const bf16 *)tensor + ((token + ahead + row) * heads + head) * width;
        forward_load_tile<F>(tile, unit * 8 < width ? from + unit * 8 : from, heads * width, left - ahead,
                             width);
    }
    /* Starts loading the chunk `ahead` tokens from here, the first of `chunks` that are left, with its first
     * query head; returns its table entry. */
    __device__ const char *load(const bla_call &c, const fast_run &r, int chunks, int ahead, char *shared,
                                int stage)
    {
        const forward_tiles t = forward_stage<F>(shared, stage);
        const char *entry;
        if (spot) {
            const fast_place p = fast_place_of(c, r, blockIdx.x, r.segments, false);
            entry = fast_entry<DECAY>(c, r, p, F::SP, p.to - chunks, stage, t.p, F::THREADS);
        } else {
            entry = entries.next();
        }
        load_tile(t.q, c.q, c.H, (int64_t)h * c.group, c.Dk, ahead);
        load_tile(t.k, c.k, c.Hkv, h, c.Dk, ahead);
        fast_table_load<F::SP, F::THREADS>(t.p, entry);
        load_tile(t.v, c.v, c.Hkv, h, c.Dv, ahead);
        if (F::COPY_C) fast_c_copy<F::SP, F::THREADS>(t.c, entry);
        if (DECAY && threadIdx.x < F::SP / 4) {
            const int last = min((int)CHUNK, left - ahead) - 1;
            copy_async16(t.keep + 16 * threadIdx.x,
                         entry + 2 * entry_p_bytes(F::SP) + (last * F::SP + 4 * threadIdx.x) * 4, true);
        }
        copy_async_commit();
        return entry;
    }
    /* Another query head's tile in place of the one before. */
    __device__ void change_q(const bla_call &c, int head, char *tile)
    {
        barrier_named(3, F::THREADS);
        load_tile(tile, c.q, c.H, (int64_t)h * c.group + head, c.Dk, 0);
        copy_async_commit();
        copy_async_wait<0>();
        barrier_named(3, F::THREADS);
    }
    /* o of the chunk; decay: where c lies if it is not among the tiles. */
    __device__ void read(const bla_call &c, char *shared, int stage, const char *decay)
    {
        const int warp = threadIdx.x / 32;
        for (int head = 0; head < c.group; head++) {
            asm volatile("" : "+r"(stage)); /* else all addresses are kept from head to head, in memory */
            const forward_tiles t = forward_stage<F>(shared, stage);
            pair_view w;
            pair_exchange<F>(w, shared);
            w.q = t.q, w.k = t.k, w.v = t.v, w.table = t.p;
            w.slots_k = t.slots, w.slots_v = t.slots + F::SLOTS, w.c = F::COPY_C ? t.c : decay;
            w.share = warp % F::SPLIT, w.period = c.periods + h;
            w.early = hidden > 0, w.t0 = token + position, w.valid = left;
            w.to = (bf16 *)c.o + (token * c.H + (int64_t)h * c.group + head) * c.Dv, w.stride = c.H * c.Dv;
            if (head > 0) change_q(c, head, t.q);
            if (warp < F::SPLIT)
                pair_read<F, DECAY, 0>(c, w);
            else
                pair_read<F, DECAY, 1>(c, w);
        }
        token += CHUNK, left -= CHUNK, hidden -= min(hidden, (int)CHUNK);
    }
};

/* What the slots of a warp keep over the chunk. */
template <typename F>
static __device__ inline void forward_keep(const char *keep, fast_corner at, float (&end)[F::MT][2])
{
    const float *c = (const float *)keep + at.slot + ((threadIdx.x & 31) >> 2);
#pragma unroll
    for (int m = 0; m < F::MT; m++)
        end[m][0] = c[16 * m] * ENTRY_UNIT, end[m][1] = c[16 * m + 8] * ENTRY_UNIT;
}

/* A warp's part of the state over a chunk. */
template <typename F, bool DECAY>
static __device__ inline void forward_advance(float (&x)[F::MT][F::NT][4], const forward_tiles &t, int side,
                                              fast_corner at)
{
    forward_write<F>(x, t.p, side == 0 ? t.k : t.v, at);
    if (DECAY) {
        float end[F::MT][2];
        forward_keep<F>(t.keep, at, end);
        fast_rows_scale(x, end);
    }
}

/* grid: chains * r.segments blocks. */
template <int D, int SP, bool DECAY>
static __global__ void __launch_bounds__(forward_form<D, SP, DECAY>::THREADS,
                                         (forward_form<D, SP, DECAY>::BLOCKS))
    fast_forward_kernel(bla_call c, fast_run r)
{
    cuda_wait_previous();
    typedef forward_form<D, SP, DECAY> F;
    CUDA_DYNAMIC_SHARED(char, shared);
    const int warp = threadIdx.x / 32, side = warp / F::SPLIT;
    const fast_corner at = fast_corner_of<D, SP, F::SPLIT>(warp % F::SPLIT);
    forward_reader<F, DECAY> reader;
    float x[F::MT][F::NT][4];
    const char *next = NULL;
    char *saved;
    int chunks;
    {
        const fast_place p = fast_place_of(c, r, blockIdx.x, r.segments, false);
        chunks = (int)(p.to - p.from), saved = forward_saved<F>(c, r, p, p.from);
        reader.begin(c, r, p);
        if (chunks > 0) next = reader.load(c, r, chunks, 0, shared, 0);
        forward_begin<F, DECAY>(c, r, p, false, side, at, x);
    }
    fast_copy_out<D>(x, forward_stage<F>(shared, 0).slots + side * F::SLOTS, at);
    int turn = 0; /* which of the two stages, and of the two places of the slots */
    for (; chunks > 0; chunks--, turn = 1 - turn) {
        const forward_tiles t = forward_stage<F>(shared, turn);
        const char *entry = next;
        copy_async_wait<0>();
        __syncthreads();
        if (chunks > 1) next = reader.load(c, r, chunks - 1, CHUNK, shared, 1 - turn);
        if (saved) {
            forward_save<F>(saved, t.slots, threadIdx.x, F::THREADS);
            saved += c.Hkv * (4 * SP * D);
        }
        reader.read(c, shared, turn, entry + entry_p_bytes(SP));
        forward_advance<F, DECAY>(x, t, side, at);
        if (F::PLACES == 1) __syncthreads();
        fast_copy_out<D>(x, forward_stage<F>(shared, 1 - turn).slots + side * F::SLOTS, at);
    }
    /* The place is worked out again: it would take registers. */
    const fast_place p = fast_place_of(c, r, blockIdx.x, r.segments, false);
    forward_end<F, DECAY>(c, r, p, side, at, x);
}

#endif
