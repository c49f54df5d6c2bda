/* Forward pass of blurry attention with tensor cores. Formulas: docs/operator.md, "Chunked form".
 *
 * A block is 4 row groups of 16 tokens times SPLIT shares of the slots, one warp each. Per chunk a warp
 * forms, for its tokens, A = Q K^T, logits X = Q Kslots^T + A P, the softmax, O = p Vslots + (p P^T) V, all
 * in registers, and then its slots' share of the new state. With READ false only the state advances:
 * increments of segments, and states for the backward pass. */
#ifndef BLURRY_KERNELS_BLURRY_CUDA_FAST_FORWARD_CUH
#define BLURRY_KERNELS_BLURRY_CUDA_FAST_FORWARD_CUH
#include "kernels/blurry/cuda_fast_attend.cuh"

template <int D_, int SP_, int SPLIT_, bool READ_> struct forward_form {
    static constexpr int D = D_, SP = SP_, SPLIT = SPLIT_;
    static constexpr int THREADS = 128 * SPLIT, WARPS = 4 * SPLIT;
    static constexpr int SHARE = SP / SPLIT; /* slots a warp reads */
    static constexpr int MT = fast_share<D, SP>::MT, NT = fast_share<D, SP>::NT;
    static constexpr int OWN = 2 / SPLIT; /* of K and V: both, or one per share */
    static constexpr int UD = tile_units(D), US = tile_units(SP);
    static constexpr int TOKENS = tile_bytes(CHUNK, D), SLOTS = tile_bytes(SP, D),
                         TABLE = tile_bytes(CHUNK, SP);
    static constexpr int EXCHANGE = READ_ ? forward_exchange_bytes(SP) : 0;
    static constexpr int FIXED = 2 * SLOTS + EXCHANGE, STAGE = (READ_ ? 3 : 2) * TOKENS + TABLE;
    static constexpr int BLOCKS = SPLIT == 1 ? 2 : 1; /* per multiprocessor */
    static constexpr int STAGES = FIXED + 2 * STAGE <= 231424 / BLOCKS - 1024 ? 2 : 1;
    static constexpr int SHARED = FIXED + STAGES * STAGE;
};

/* One stage's tiles. */
struct forward_tiles {
    char *q, *k, *v, *p;
};
template <typename F, bool READ> static __device__ inline forward_tiles forward_stage(char *shared, int stage)
{
    char *at = shared + F::FIXED + stage * F::STAGE;
    forward_tiles t = {at + 2 * F::TOKENS + F::TABLE, at, at + F::TOKENS, at + 2 * F::TOKENS};
    return t;
}

template <typename F, int THREADS>
static __device__ inline void forward_load_q(const bla_call &c, const fast_place &p, int64_t chunk, int head,
                                             char *tile)
{
    int64_t token = p.chain.first + chunk * CHUNK;
    int n = (int)min((int64_t)CHUNK, p.chain.count - chunk * CHUNK);
    const bf16 *q = (const bf16 *)c.q + (token * c.H + p.chain.h * c.group + head) * c.Dk;
    tile_load<F::D, CHUNK, THREADS>(tile, q, c.H * c.Dk, n, c.Dk, threadIdx.x);
}

/* Starts loading a chunk's tiles; returns its table entry. */
template <typename F, bool READ, bool DECAY>
static __device__ inline const char *forward_load(const bla_call &c, const fast_run &r, const fast_place &p,
                                                  int64_t chunk, char *shared, int stage)
{
    forward_tiles t = forward_stage<F, READ>(shared, stage);
    int64_t token = p.chain.first + chunk * CHUNK;
    int n = (int)min((int64_t)CHUNK, p.chain.count - chunk * CHUNK);
    const char *entry = fast_entry<DECAY>(c, r, p, F::SP, chunk, stage, t.p);
    const bf16 *k = (const bf16 *)c.k + (token * c.Hkv + p.chain.h) * c.Dk;
    const bf16 *v = (const bf16 *)c.v + (token * c.Hkv + p.chain.h) * c.Dv;
    if (READ) forward_load_q<F, F::THREADS>(c, p, chunk, 0, t.q);
    tile_load<F::D, CHUNK, F::THREADS>(t.k, k, c.Hkv * c.Dk, n, c.Dk, threadIdx.x);
    tile_load<F::SP, CHUNK, F::THREADS>(t.p, (const bf16 *)entry, F::SP, CHUNK, F::SP, threadIdx.x);
    tile_load<F::D, CHUNK, F::THREADS>(t.v, v, c.Hkv * c.Dv, n, c.Dv, threadIdx.x);
    copy_async_commit();
    return entry;
}

/* One query head of a chunk: reads the slots and stores 16 rows of o. */
template <typename F, bool DECAY, int U>
static __device__ inline void forward_read(const bla_call &c, const fast_place &p, int64_t chunk, int head,
                                           const forward_tiles &t, const char *slots_k, const char *slots_v,
                                           const char *entry, char *exchange, int rows, int share)
{
    forward_rows w;
    int64_t token = p.chain.first + chunk * CHUNK + 16 * rows;
    w.period = c.periods + p.chain.h, w.t0 = p.chain.position + chunk * CHUNK + 16 * rows;
    w.to = (bf16 *)c.o + (token * c.H + p.chain.h * c.group + head) * c.Dv, w.stride = c.H * c.Dv;
    w.valid = (int)min((int64_t)CHUNK, p.chain.count - chunk * CHUNK) - 16 * rows;
    w.rows = rows, w.share = share;
    w.table = t.p, w.tokens = t.v, w.slots = slots_v, w.c = entry + entry_p_bytes(F::SP);
    forward_exchange<F>(w, exchange);
    float x[F::SHARE / 8][4];
    forward_against<F, U>(w, t.q, t.k, slots_k, x);
    barrier_named(1 + rows, 64);
    forward_finish<F, DECAY, U>(c, w, x);
}

/* A warp's slots of K or V: accumulators += P^T tokens. */
template <typename F>
static __device__ inline void forward_write(float (&x)[F::MT][F::NT][4], const char *table,
                                            const char *tokens, fast_corner at)
{
#pragma unroll
    for (int k = 0; k < CHUNK; k += 16) {
        uint32_t a[F::MT][4];
#pragma unroll
        for (int m = 0; m < F::MT; m++) tile_a_trans<F::US>(a[m], table, at.slot + 16 * m, k);
        tile_mma_blocks<F::UD>(x, a, tokens, k, at.column);
    }
}

/* The state before the block's first chunk, K (which = 0) or V. */
template <typename F, bool DECAY>
static __device__ inline void forward_begin(const bla_call &c, const fast_run &r, const fast_place &p,
                                            bool increments, int which, fast_corner at,
                                            float (&x)[F::MT][F::NT][4])
{
    constexpr int64_t floats = 2 * F::SP * F::D;
    const int64_t first = p.index * r.segments * r.parts; /* the chain's first unit */
    const int width = which ? c.Dv : c.Dk;
    bool given = c.in.k && p.unit == first;
    bool copied = r.segments > 1 && !increments; /* the caller's memory may already hold the slots on exit */
    const float *from = which ? c.in.v + p.chain.b * c.in.stride_v : c.in.k + p.chain.b * c.in.stride_k;
    fast_slots_load(x, given && !copied ? from + p.chain.h * c.S * width : NULL, c.S, width, at,
                    DECAY ? ENTRY_UNIT : 1.0f);
    if (given && r.segments > 1) {
        float *start = r.start + p.index * floats;
        if (increments)
            fast_state_store<F::D, F::SP>(x, start, which, at);
        else
            fast_state_add<F::D, F::SP>(x, start, which, at);
    }
    if (increments || p.unit == first) return;
    for (int64_t u = r.scanned ? p.unit : first; u < p.unit + (r.scanned ? 1 : 0); u++) {
        if (DECAY && u > first && !r.scanned) fast_keep_scale(x, r.keeps + u * F::SP, at);
        fast_state_add<F::D, F::SP>(x, r.states + u * floats, which, at);
    }
}

/* The state after the block's last chunk: to the workspace, or to the caller from the last segment. */
template <typename F, bool DECAY>
static __device__ inline void forward_end(const bla_call &c, const fast_run &r, const fast_place &p,
                                          bool increments, int which, fast_corner at,
                                          const float (&kept)[F::MT][2], const float (&x)[F::MT][F::NT][4])
{
    const int width = which ? c.Dv : c.Dk;
    if (increments) {
        fast_state_store<F::D, F::SP>(x, r.states + p.unit * 2 * F::SP * F::D, which, at);
        if (DECAY && which == 0) fast_keep_store(kept, r.keeps + p.unit * F::SP, at);
    } else if (c.out.k && p.segment == r.segments - 1) {
        float *to = which ? c.out.v + p.chain.b * c.out.stride_v : c.out.k + p.chain.b * c.out.stride_k;
        fast_slots_store(x, to + p.chain.h * c.S * width, c.S, width, at, DECAY ? ENTRY_START : 1.0f);
    }
}

/* The slots before a chunk, as they lie in the tiles, to `saved`. */
template <typename F>
static __device__ inline void forward_save(const bla_call &c, const fast_run &r, const fast_place &p,
                                           int64_t chunk, const char *slots_k, const char *slots_v,
                                           int thread, int threads)
{
    constexpr int units = F::D / 8;
    uint4 *to = (uint4 *)(r.saved + (p.saved + chunk * c.Hkv) * 2 * F::SP * F::D);
    for (int i = thread; i < F::SP * units; i += threads) {
        int at = tile_at<F::UD>(i / units, i % units);
        to[i] = *(const uint4 *)(slots_k + at);
        to[F::SP * units + i] = *(const uint4 *)(slots_v + at);
    }
}

/* grid: chains * r.segments blocks, or, where `increments`, chains * (r.segments - 1) * r.parts. */
template <int D, int SP, int SPLIT, bool DECAY, bool READ>
static __global__ void __launch_bounds__(128 * SPLIT, SPLIT == 1 ? 2 : 1)
    fast_forward_kernel(bla_call c, fast_run r, int increments)
{
    typedef forward_form<D, SP, SPLIT, READ> F;
    CUDA_DYNAMIC_SHARED(char, shared);
    char *slots_k = shared, *slots_v = shared + F::SLOTS;
    char *exchange = shared + 2 * F::SLOTS;
    const fast_place p =
        fast_place_of(c, r, blockIdx.x, increments ? r.segments - 1 : r.segments, increments);
    const int warp = threadIdx.x / 32, share = warp / 4;
    const fast_corner at = fast_corner_of<D, SP>(warp % 4);
    /* Late rows have more to do than early ones: neighbouring blocks deal them out in opposite order. */
    const int rows = (blockIdx.x / r.spread + share) & 1 ? 3 - warp % 4 : warp % 4;
    float x[F::OWN][F::MT][F::NT][4], kept[F::MT][2]; /* K and V, or one of them */
#pragma unroll
    for (int m = 0; m < F::MT; m++) kept[m][0] = kept[m][1] = 1.0f;
    const char *next = p.from < p.to ? forward_load<F, READ, DECAY>(c, r, p, p.from, shared, 0) : NULL;
    const bool copies = READ || r.saved;
#pragma unroll
    for (int i = 0; i < F::OWN; i++) {
        forward_begin<F, DECAY>(c, r, p, increments, i + share, at, x[i]);
        if (copies) fast_copy_out<D>(x[i], slots_k + (i + share) * F::SLOTS, at);
    }
    for (int64_t chunk = p.from; chunk < p.to; chunk++) {
        const int stage = F::STAGES == 2 ? (int)((chunk - p.from) & 1) : 0;
        const forward_tiles t = forward_stage<F, READ>(shared, stage);
        const char *entry = next;
        copy_async_wait<0>();
        __syncthreads();
        if (F::STAGES == 2 && chunk + 1 < p.to)
            next = forward_load<F, READ, DECAY>(c, r, p, chunk + 1, shared, 1 - stage);
        if (r.saved && !increments)
            forward_save<F>(c, r, p, chunk, slots_k, slots_v, threadIdx.x, F::THREADS);
        if (READ)
            for (int head = 0; head < c.group; head++) {
                if (head > 0) {
                    __syncthreads();
                    forward_load_q<F, F::THREADS>(c, p, chunk, head, t.q);
                    copy_async_commit();
                    copy_async_wait<0>();
                    __syncthreads();
                }
                if (rows < 2)
                    forward_read<F, DECAY, 2>(c, p, chunk, head, t, slots_k, slots_v, entry, exchange, rows,
                                              share);
                else
                    forward_read<F, DECAY, 4>(c, p, chunk, head, t, slots_k, slots_v, entry, exchange, rows,
                                              share);
            }
        float end[F::MT][2];
        if (DECAY) {
            fast_keep(entry, SP, (int)min((int64_t)CHUNK, p.chain.count - chunk * CHUNK), at, end);
#pragma unroll
            for (int m = 0; m < F::MT; m++) kept[m][0] *= end[m][0], kept[m][1] *= end[m][1];
        }
#pragma unroll
        for (int i = 0; i < F::OWN; i++) {
            forward_write<F>(x[i], t.p, i + share == 0 ? t.k : t.v, at);
            if (DECAY) fast_rows_scale(x[i], end);
        }
        __syncthreads();
        if (F::STAGES == 1 && chunk + 1 < p.to)
            next = forward_load<F, READ, DECAY>(c, r, p, chunk + 1, shared, 0);
        if (copies)
#pragma unroll
            for (int i = 0; i < F::OWN; i++) fast_copy_out<D>(x[i], slots_k + (i + share) * F::SLOTS, at);
    }
#pragma unroll
    for (int i = 0; i < F::OWN; i++) forward_end<F, DECAY>(c, r, p, increments, i + share, at, kept, x[i]);
}

#endif
