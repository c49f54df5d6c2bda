/* The forward pass in two: cuda_fast_states.cu leaves the slots before every chunk in memory, and this kernel
 * reads them, all chunks side by side. Without a state in its registers two blocks share a multiprocessor,
 * and the work divides evenly whatever the number of chains.
 *
 * A unit is one chunk of one query head; a block takes every gridDim.x-th. Its tiles come in two groups: q, k
 * and the slots of K, with which the logits begin, then P, v, the slots of V and c. Each group's place is
 * free early enough that the next unit's tiles are under way while this one is worked on. */
#ifndef BLURRY_KERNELS_BLURRY_CUDA_FAST_READ_CUH
#define BLURRY_KERNELS_BLURRY_CUDA_FAST_READ_CUH
#include "kernels/blurry/cuda_fast_attend.cuh"

template <int D_, int SP_> struct read_form {
    static constexpr int D = D_, SP = SP_, SPLIT = 2, THREADS = 256, BLOCKS = 2, SHARE = SP / SPLIT;
    static constexpr int UD = tile_units(D), US = tile_units(SP);
    static constexpr int TOKENS = tile_bytes(CHUNK, D), SLOTS = tile_bytes(SP, D),
                         TABLE = tile_bytes(CHUNK, SP);
    static constexpr int TILES = 3 * TOKENS + 2 * SLOTS + 2 * TABLE;
    static constexpr int SHARED = TILES + forward_exchange_bytes(SP);
    static constexpr bool FITS = SHARED <= 231424 / BLOCKS - 1024;
};

struct read_tiles {
    char *q, *k, *slots_k, *p, *v, *slots_v, *c, *exchange;
};
template <typename F> static __device__ inline read_tiles read_view(char *shared)
{
    read_tiles t;
    t.q = shared, t.k = t.q + F::TOKENS, t.slots_k = t.k + F::TOKENS, t.p = t.slots_k + F::SLOTS;
    t.v = t.p + F::TABLE, t.slots_v = t.v + F::TOKENS, t.c = t.slots_v + F::SLOTS;
    t.exchange = t.c + F::TABLE;
    return t;
}

struct read_unit {
    int64_t token, t0;     /* its first token and that one's position */
    int64_t slots, rows;   /* of the chunk among the saved ones, for keys and for queries */
    int b, chunk, head, h; /* head: of all query heads; h: of those of keys */
    int n;                 /* its tokens; 0: there is no such chunk */
};

/* Unit u. Units of one chunk and neighbouring heads are neighbours: they share their tables. Of packed
 * sequences the chunks are numbered as the saved slots are, which leaves gaps. */
static __device__ inline read_unit read_unit_of(const bla_call &c, const fast_run &r, uint32_t u)
{
    read_unit x;
    uint32_t place = u / (uint32_t)c.H, sequences = (uint32_t)r.sequences, b;
    x.head = (int)(u % (uint32_t)c.H);
    if (c.offsets) {
        uint32_t low = 0, high = sequences; /* the last one whose chunks begin at or before `place` */
        while (high - low > 1) {
            uint32_t middle = low + (high - low) / 2;
            if (c.offsets[middle] / CHUNK + middle <= place)
                low = middle;
            else
                high = middle;
        }
        b = low, x.chunk = (int)(place - (c.offsets[b] / CHUNK + b));
    } else {
        b = place % sequences, x.chunk = (int)(place / sequences);
    }
    x.h = (int)((uint32_t)x.head / (uint32_t)c.group);
    int64_t first = c.offsets ? c.offsets[b] : b * c.length,
            left = (c.offsets ? c.offsets[b + 1] - first : c.length) - (int64_t)x.chunk * CHUNK;
    x.n = u >= r.units || left <= 0 ? 0 : (int)min((int64_t)CHUNK, left);
    x.b = (int)b;
    x.token = first + (int64_t)x.chunk * CHUNK;
    x.slots = fast_saved_base(first, b, c.Hkv, x.h) + (int64_t)x.chunk * c.Hkv;
    x.rows = fast_saved_base(first, b, c.H, x.head) + (int64_t)x.chunk * c.H;
    x.t0 = (c.positions ? *(const int64_t *)(c.positions + b * c.position_stride) : 0) +
           (int64_t)x.chunk * CHUNK;
    return x;
}

/* The next unit from u on that has tokens; u moves there. */
static __device__ inline read_unit read_find(const bla_call &c, const fast_run &r, uint32_t &u)
{
    read_unit x = read_unit_of(c, r, u);
    while (x.n == 0 && u < r.units) u += gridDim.x, x = read_unit_of(c, r, u);
    return x;
}

template <typename F>
static __device__ inline const bf16 *read_slots(const fast_run &r, const read_unit &x, int side)
{
    return r.saved + (x.slots * 2 + side) * F::SP * F::D;
}

/* Starts loading the two groups. */
template <typename F>
static __device__ inline void read_load_first(const bla_call &c, const fast_run &r, const read_unit &x,
                                              const read_tiles &t)
{
    if (x.n > 0) {
        const bf16 *q = (const bf16 *)c.q + (x.token * c.H + x.head) * c.Dk;
        const bf16 *k = (const bf16 *)c.k + (x.token * c.Hkv + x.h) * c.Dk;
        tile_load<F::D, CHUNK, F::THREADS>(t.q, q, c.H * c.Dk, x.n, c.Dk, threadIdx.x);
        tile_load<F::D, CHUNK, F::THREADS>(t.k, k, c.Hkv * c.Dk, x.n, c.Dk, threadIdx.x);
        tile_load<F::D, F::SP, F::THREADS>(t.slots_k, read_slots<F>(r, x, 0), F::D, F::SP, F::D, threadIdx.x);
    }
    copy_async_commit();
}
template <typename F, bool DECAY>
static __device__ inline void read_load_second(const bla_call &c, const fast_run &r, const read_unit &x,
                                               const read_tiles &t)
{
    if (x.n > 0) {
        const char *entry = fast_entry_ready<DECAY>(c, r, x.b, x.h, x.t0, F::SP, x.chunk);
        const bf16 *v = (const bf16 *)c.v + (x.token * c.Hkv + x.h) * c.Dv;
        tile_load<F::SP, CHUNK, F::THREADS>(t.p, (const bf16 *)entry, F::SP, CHUNK, F::SP, threadIdx.x);
        if (DECAY) fast_c_copy<F::SP, F::THREADS>(t.c, entry);
        tile_load<F::D, F::SP, F::THREADS>(t.slots_v, read_slots<F>(r, x, 1), F::D, F::SP, F::D, threadIdx.x);
        tile_load<F::D, CHUNK, F::THREADS>(t.v, v, c.Hkv * c.Dv, x.n, c.Dv, threadIdx.x);
    }
    copy_async_commit();
}

static __device__ inline forward_rows read_rows(const bla_call &c, const read_unit &u, const read_tiles &t,
                                                int rows, int share)
{
    forward_rows w;
    w.period = c.periods + u.h, w.t0 = u.t0 + 16 * rows;
    w.to = (bf16 *)c.o + ((u.token + 16 * rows) * c.H + u.head) * c.Dv, w.stride = c.H * c.Dv,
    w.valid = u.n - 16 * rows;
    w.rows = rows, w.share = share;
    w.table = t.p, w.tokens = t.v, w.slots = t.slots_v, w.c = t.c;
    return w;
}

template <int D, int SP, bool DECAY>
static __global__ void __launch_bounds__(256, 2) fast_read_kernel(bla_call c, fast_run r)
{
    cuda_wait_previous();
    typedef read_form<D, SP> F;
    CUDA_DYNAMIC_SHARED(char, shared);
    const read_tiles t = read_view<F>(shared);
    const int warp = threadIdx.x / 32, share = warp / 4;
    /* Late rows have more to do than early ones: the shares, and neighbouring blocks, deal them out in
     * opposite order. */
    const int rows = (blockIdx.x / r.spread + share) & 1 ? 3 - warp % 4 : warp % 4;
    uint32_t u = blockIdx.x;
    read_unit now = read_find(c, r, u);
    read_load_first<F>(c, r, now, t);
    read_load_second<F, DECAY>(c, r, now, t);
    while (now.n > 0) {
        forward_rows w = read_rows(c, now, t, rows, share);
        forward_exchange<F>(w, t.exchange);
        float x[F::SHARE / 8][4];
        copy_async_wait<1>();
        __syncthreads();
        if (rows < 2)
            forward_against<F, 2>(w, t.q, t.k, t.slots_k, x);
        else
            forward_against<F, 4>(w, t.q, t.k, t.slots_k, x);
        u += gridDim.x;
        const read_unit next = read_find(c, r, u);
        copy_async_wait<0>();
        __syncthreads();
        read_load_first<F>(c, r, next, t);
        if (rows < 2)
            forward_finish<F, DECAY, 2>(c, w, x);
        else
            forward_finish<F, DECAY, 4>(c, w, x);
        __syncthreads();
        read_load_second<F, DECAY>(c, r, next, t);
        now = next;
    }
    copy_async_wait<0>();
}

#endif
