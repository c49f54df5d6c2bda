/* Taking the slots through a chain's chunks with tensor cores: what the forward pass begins and ends with,
 * and a kernel that does nothing else, for the increments of segments and states for the backward pass.
 * Formulas: docs/operator.md, "Chunked form". */
#ifndef BLURRY_KERNELS_BLURRY_CUDA_FAST_ADVANCE_CUH
#define BLURRY_KERNELS_BLURRY_CUDA_FAST_ADVANCE_CUH
#include "kernels/blurry/cuda_fast.cuh"

template <int D_, int SP_, int SPLIT_> struct advance_form {
    static constexpr int D = D_, SP = SP_, SPLIT = SPLIT_, THREADS = 128 * SPLIT;
    static constexpr int MT = fast_share<D, SP>::MT, NT = fast_share<D, SP>::NT;
    static constexpr int OWN = 2 / SPLIT; /* of K and V: both, or one per warp */
    static constexpr int UD = tile_units(D), US = tile_units(SP);
    static constexpr int TOKENS = tile_bytes(CHUNK, D), SLOTS = tile_bytes(SP, D),
                         TABLE = tile_bytes(CHUNK, SP);
    static constexpr int STAGE = 2 * TOKENS + TABLE;  /* k, v, P */
    static constexpr int BLOCKS = SPLIT == 1 ? 2 : 1; /* per multiprocessor */
    static constexpr int STAGES = 2 * SLOTS + 2 * STAGE <= 231424 / BLOCKS - 1024 ? 2 : 1;
    static constexpr int SHARED = 2 * SLOTS + STAGES * STAGE;
};

/* Starts loading a chunk's tiles; returns its table entry. */
template <typename F, bool DECAY>
static __device__ inline const char *advance_load(const bla_call &c, const fast_run &r, const fast_place &p,
                                                  int64_t chunk, char *tiles, int stage)
{
    int64_t token = p.chain.first + chunk * CHUNK;
    int n = (int)min((int64_t)CHUNK, p.chain.count - chunk * CHUNK);
    char *table = tiles + 2 * F::TOKENS;
    const char *entry = fast_entry<DECAY>(c, r, p, F::SP, chunk, stage, table, F::THREADS);
    const bf16 *k = (const bf16 *)c.k + (token * c.Hkv + p.chain.h) * c.Dk;
    const bf16 *v = (const bf16 *)c.v + (token * c.Hkv + p.chain.h) * c.Dv;
    tile_load<F::D, CHUNK, F::THREADS>(tiles, k, c.Hkv * c.Dk, n, c.Dk, threadIdx.x);
    tile_load<F::SP, CHUNK, F::THREADS>(table, (const bf16 *)entry, F::SP, CHUNK, F::SP, threadIdx.x);
    tile_load<F::D, CHUNK, F::THREADS>(tiles + F::TOKENS, v, c.Hkv * c.Dv, n, c.Dv, threadIdx.x);
    copy_async_commit();
    return entry;
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
#pragma unroll
    for (int m = 0; m < F::MT; m++) tile_zero(x[m]);
    if (given && !copied)
        fast_slots_load(x, from + p.chain.h * c.S * width, c.S, width, at, DECAY ? ENTRY_UNIT : 1.0f);
    if (given && r.segments > 1) {
        float *start = r.start + p.index * floats;
        if (increments)
            fast_state_store<F::D, F::SP>(x, start, which, at);
        else
            fast_state_add<F::D, F::SP>(x, start, which, at);
    }
    if (increments || p.unit == first) return;
#pragma unroll 2
    for (int64_t u = r.scanned ? p.unit : first; u < p.unit + (r.scanned ? 1 : 0); u++) {
        if (DECAY && u > first && !r.scanned) fast_keep_scale(x, r.keeps + u * F::SP, at);
        fast_state_add<F::D, F::SP>(x, r.states + u * floats, which, at);
    }
}

/* The state after the chain's last chunk, to the caller. */
template <typename F, bool DECAY>
static __device__ inline void forward_end(const bla_call &c, const fast_run &r, const fast_place &p,
                                          int which, fast_corner at, const float (&x)[F::MT][F::NT][4])
{
    const int width = which ? c.Dv : c.Dk;
    if (!c.out.k || p.segment != r.segments - 1) return;
    float *to = which ? c.out.v + p.chain.b * c.out.stride_v : c.out.k + p.chain.b * c.out.stride_k;
    fast_slots_store(x, to + p.chain.h * c.S * width, c.S, width, at, DECAY ? ENTRY_START : 1.0f);
}

/* The place of the slots before a chunk among the saved ones, NULL where none are, and those in two tiles to
 * there. */
template <typename F>
static __device__ inline char *forward_saved(const bla_call &c, const fast_run &r, const fast_place &p,
                                             int64_t chunk)
{
    return r.saved ? (char *)(r.saved + (p.saved + chunk * c.Hkv) * 2 * F::SP * F::D) : NULL;
}
template <typename F>
static __device__ inline void forward_save(char *saved, const char *slots, int thread, int threads)
{
    constexpr int units = F::D / 8;
    uint4 *to = (uint4 *)saved;
    for (int i = thread; i < F::SP * units; i += threads) {
        int at = tile_at<F::UD>(i / units, i % units);
        to[i] = *(const uint4 *)(slots + at);
        to[F::SP * units + i] = *(const uint4 *)(slots + F::SLOTS + at);
    }
}

/* grid: chains * r.segments blocks, or, where `increments`, chains * (r.segments - 1) * r.parts. */
template <int D, int SP, int SPLIT, bool DECAY>
static __global__ void __launch_bounds__(128 * SPLIT, SPLIT == 1 ? 2 : 1)
    fast_advance_kernel(bla_call c, fast_run r, int increments)
{
    typedef advance_form<D, SP, SPLIT> F;
    CUDA_DYNAMIC_SHARED(char, shared);
    char *slots = shared, *tiles = shared + 2 * F::SLOTS;
    const fast_place p =
        fast_place_of(c, r, blockIdx.x, increments ? r.segments - 1 : r.segments, increments);
    const int warp = threadIdx.x / 32, share = warp / 4;
    const fast_corner at = fast_corner_of<D, SP>(warp % 4);
    float x[F::OWN][F::MT][F::NT][4], kept[F::MT][2]; /* K and V, or one of them */
#pragma unroll
    for (int m = 0; m < F::MT; m++) kept[m][0] = kept[m][1] = 1.0f;
    const char *next = p.from < p.to ? advance_load<F, DECAY>(c, r, p, p.from, tiles, 0) : NULL;
#pragma unroll
    for (int i = 0; i < F::OWN; i++) {
        forward_begin<F, DECAY>(c, r, p, increments, i + share, at, x[i]);
        if (r.saved) fast_copy_out<D>(x[i], slots + (i + share) * F::SLOTS, at);
    }
    for (int64_t chunk = p.from; chunk < p.to; chunk++) {
        const int stage = F::STAGES == 2 ? (int)((chunk - p.from) & 1) : 0;
        const char *now = tiles + stage * F::STAGE, *entry = next;
        copy_async_wait<0>();
        __syncthreads();
        if (F::STAGES == 2 && chunk + 1 < p.to)
            next = advance_load<F, DECAY>(c, r, p, chunk + 1, tiles + (1 - stage) * F::STAGE, 1 - stage);
        if (r.saved && !increments)
            forward_save<F>(forward_saved<F>(c, r, p, chunk), slots, threadIdx.x, F::THREADS);
        float end[F::MT][2];
        if (DECAY) {
            fast_keep(entry, SP, (int)min((int64_t)CHUNK, p.chain.count - chunk * CHUNK), at, end);
#pragma unroll
            for (int m = 0; m < F::MT; m++) kept[m][0] *= end[m][0], kept[m][1] *= end[m][1];
        }
#pragma unroll
        for (int i = 0; i < F::OWN; i++) {
            forward_write<F>(x[i], now + 2 * F::TOKENS, now + (i + share) * F::TOKENS, at);
            if (DECAY) fast_rows_scale(x[i], end);
        }
        __syncthreads();
        if (F::STAGES == 1 && chunk + 1 < p.to) next = advance_load<F, DECAY>(c, r, p, chunk + 1, tiles, 0);
        if (r.saved)
#pragma unroll
            for (int i = 0; i < F::OWN; i++) fast_copy_out<D>(x[i], slots + (i + share) * F::SLOTS, at);
    }
#pragma unroll
    for (int i = 0; i < F::OWN; i++)
        if (increments)
            fast_state_store<D, SP>(x[i], r.states + p.unit * 2 * SP * D, i + share, at);
        else
            forward_end<F, DECAY>(c, r, p, i + share, at, x[i]);
    if (DECAY && increments && share == 0) fast_keep_store(kept, r.keeps + p.unit * SP, at);
}

#endif
