/* The forward pass with readers and writers: eight warps read the slots, two for each row group, while four
 * others hold the state in their registers and advance it for the next chunk. One barrier a chunk; the slots
 * lie in shared memory twice, before and after the chunk. */
#ifndef BLURRY_KERNELS_BLURRY_CUDA_FAST_READ_CUH
#define BLURRY_KERNELS_BLURRY_CUDA_FAST_READ_CUH
#include "kernels/blurry/cuda_fast_forward.cuh"

template <int D_, int SP_> struct read_form {
    static constexpr int D = D_, SP = SP_, SPLIT = 2, READERS = 256, WRITERS = 128,
                         THREADS = READERS + WRITERS;
    static constexpr int SHARE = SP / SPLIT, MT = SP / 64, NT = D / 8;
    static constexpr int UD = tile_units(D), US = tile_units(SP);
    static constexpr int TOKENS = tile_bytes(CHUNK, D), SLOTS = tile_bytes(SP, D),
                         TABLE = tile_bytes(CHUNK, SP);
    static constexpr int EXCHANGE = CHUNK * D * 4 + 4 * CHUNK * 4;
    static constexpr int FIXED = 4 * SLOTS + EXCHANGE, STAGE = 3 * TOKENS + TABLE, STAGES = 2;
    static constexpr int SHARED = FIXED + STAGES * STAGE;
    /* A writer holds a quarter of K and V. */
    static constexpr bool FITS = SP * D <= 8192 && SHARED <= 231424;
};

enum { READ_ALL = 6, READ_READERS = 5 }; /* barriers; 1 .. 4 belong to the row groups */

/* What both kinds of warps do at the start of a chunk: its tiles and slots are there, and the next ones are
 * on their way. */
template <typename F, bool DECAY>
static __device__ inline const char *read_turn(const bla_call &c, const fast_run &r, const fast_place &p,
                                               int64_t chunk, char *shared, const char *next)
{
    copy_async_wait<0>();
    barrier_named(READ_ALL, F::THREADS);
    if (chunk + 1 >= p.to) return next;
    return forward_load<F, true, DECAY>(c, r, p, chunk + 1, shared, (int)((chunk + 1 - p.from) & 1));
}

template <typename F, bool DECAY>
static __device__ inline void read_reader(const bla_call &c, const fast_run &r, const fast_place &p,
                                          char *shared, const char *next)
{
    const int warp = threadIdx.x / 32, share = warp / 4, rows = share ? 3 - warp % 4 : warp % 4;
    float *exchange = (float *)(shared + 4 * F::SLOTS);
    for (int64_t chunk = p.from; chunk < p.to; chunk++) {
        const int turn = (int)((chunk - p.from) & 1);
        const forward_tiles t = forward_stage<F, true>(shared, turn);
        const char *entry = next, *slots = shared + turn * 2 * F::SLOTS;
        next = read_turn<F, DECAY>(c, r, p, chunk, shared, next);
        for (int head = 0; head < c.group; head++) {
            if (head > 0) {
                barrier_named(READ_READERS, F::READERS);
                forward_load_q<F, F::READERS>(c, p, chunk, head, t.q);
                copy_async_commit();
                copy_async_wait<0>();
                barrier_named(READ_READERS, F::READERS);
            }
            if (rows < 2)
                forward_read<F, DECAY, 2>(c, p, chunk, head, t, slots, slots + F::SLOTS, entry, exchange,
                                          rows, share);
            else
                forward_read<F, DECAY, 4>(c, p, chunk, head, t, slots, slots + F::SLOTS, entry, exchange,
                                          rows, share);
        }
    }
}

template <typename F, bool DECAY>
static __device__ inline void read_writer(const bla_call &c, const fast_run &r, const fast_place &p,
                                          char *shared, const char *next)
{
    const int thread = threadIdx.x - F::READERS, slot0 = thread / 32 * 16 * F::MT;
    float x[2][F::MT][F::NT][4], kept[F::MT][2]; /* K, V */
#pragma unroll
    for (int i = 0; i < 2; i++) {
        forward_begin<F, DECAY>(c, r, p, false, i, slot0, x[i]);
        fast_copy_out<F::D>(x[i], shared + i * F::SLOTS, slot0);
    }
    for (int64_t chunk = p.from; chunk < p.to; chunk++) {
        const int turn = (int)((chunk - p.from) & 1);
        const forward_tiles t = forward_stage<F, true>(shared, turn);
        const char *entry = next;
        char *slots = shared + turn * 2 * F::SLOTS, *after = shared + (1 - turn) * 2 * F::SLOTS;
        next = read_turn<F, DECAY>(c, r, p, chunk, shared, next);
        if (r.saved) forward_save<F>(c, r, p, chunk, slots, slots + F::SLOTS, thread, F::WRITERS);
        if (DECAY)
            fast_keep(entry, F::SP, (int)min((int64_t)CHUNK, p.chain.count - chunk * CHUNK), slot0, kept);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            forward_write<F>(x[i], t.p, i == 0 ? t.k : t.v, slot0);
            if (DECAY) fast_rows_scale(x[i], kept);
            fast_copy_out<F::D>(x[i], after + i * F::SLOTS, slot0);
        }
    }
#pragma unroll
    for (int i = 0; i < 2; i++) forward_end<F, DECAY>(c, r, p, false, i, slot0, kept, x[i]);
}

/* grid: chains * r.segments blocks. */
template <int D, int SP, bool DECAY>
static __global__ void __launch_bounds__(384, 1) fast_read_kernel(bla_call c, fast_run r)
{
    typedef read_form<D, SP> F;
    CUDA_DYNAMIC_SHARED(char, shared);
    const fast_place p = fast_place_of(c, r, blockIdx.x, r.segments, false);
    const char *next = p.from < p.to ? forward_load<F, true, DECAY>(c, r, p, p.from, shared, 0) : NULL;
    if (threadIdx.x < F::READERS)
        read_reader<F, DECAY>(c, r, p, shared, next);
    else
        read_writer<F, DECAY>(c, r, p, shared, next);
}

#endif
