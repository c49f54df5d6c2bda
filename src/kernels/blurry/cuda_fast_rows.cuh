/* The backward pass in two, for short sequences: this kernel does what the queries need, all chunks side by
 * side, and cuda_fast_collect.cu takes the gradients of the slots through each sequence. Nothing is carried
 * from chunk to chunk here, so two blocks share a multiprocessor.
 *
 * A block takes one chunk of one query head. As in cuda_fast_backward.cuh four warps are on the side of K and
 * four on that of V: X = Q Kslots^T + A P | dP = dO Vslots^T + M P; then p and dX, and of them dA = dX P^T |
 * G = p P^T, and half the columns each of d_q = dX Kslots + dA K. What the keys need stays in memory: dX and
 * dA, p and G, both times c. */
#ifndef BLURRY_KERNELS_BLURRY_CUDA_FAST_ROWS_CUH
#define BLURRY_KERNELS_BLURRY_CUDA_FAST_ROWS_CUH
#include "kernels/blurry/cuda_fast_backward.cuh"
#include "kernels/blurry/cuda_fast_read.cuh"

template <int D_, int SP_> struct rows_form {
    static constexpr int D = D_, SP = SP_, THREADS = 256, BLOCKS = 2, KS = SP / 16;
    static constexpr int UD = tile_units(D), US = tile_units(SP);
    static constexpr int TOKENS = tile_bytes(CHUNK, D), SLOTS = tile_bytes(SP, D),
                         TABLE = tile_bytes(CHUNK, SP);
    static constexpr int SIDE = 2 * TOKENS + SLOTS; /* q, k and Kslots, or d_o, v and Vslots */
    /* dP, then dX and p, from warp to warp, in place of the tiles of V where they fit; dA in place of q. */
    static constexpr int HANDED = CHUNK * SP * 4, INNER = CHUNK * CHUNK * 2;
    static constexpr bool OVER = HANDED <= SIDE, OVER_Q = INNER <= TOKENS;
    static constexpr int SHARED =
        2 * SIDE + TABLE + (OVER ? 0 : HANDED) + (OVER_Q ? 0 : INNER); /* with decay c follows */
    static constexpr bool FITS = SHARED + TABLE <= 231424 / BLOCKS - 1024;
};

/* One warp's view of the block. */
struct rows_view {
    int side, rows, lane;        /* 0: K, 1: V; row group */
    char *left, *tokens, *slots; /* of its side */
    char *k, *slots_k, *table, *c;
    float4 *handed; /* of the row group: dP, then dX and p as fragments */
    uint4 *inner;   /* of the row group: dA as fragments */
};
template <typename F> static __device__ inline rows_view rows_view_of(char *shared)
{
    rows_view s;
    int warp = threadIdx.x / 32;
    s.side = warp / 4, s.lane = threadIdx.x & 31;
    s.rows = s.side ? 3 - warp % 4 : warp % 4; /* late rows have more to do: share them between schedulers */
    s.left = shared + s.side * F::SIDE, s.tokens = s.left + F::TOKENS, s.slots = s.tokens + F::TOKENS;
    s.k = shared + F::TOKENS, s.slots_k = s.k + F::TOKENS, s.table = shared + 2 * F::SIDE;
    char *more = s.table + F::TABLE;
    s.handed = (float4 *)((F::OVER ? shared + F::SIDE : more) + s.rows * (F::HANDED / 4)) + s.lane;
    char *inner = F::OVER_Q ? shared : more + (F::OVER ? 0 : F::HANDED);
    s.inner = (uint4 *)(inner + s.rows * ((F::OVER_Q ? F::TOKENS : F::INNER) / 4)) + s.lane;
    s.c = shared + F::SHARED;
    return s;
}

/* Starts loading the tiles: each side its own, then the tables. */
template <typename F, bool DECAY>
static __device__ inline void rows_load(const bla_call &c, const fast_run &r, const read_unit &u,
                                        const rows_view &s)
{
    const int thread = threadIdx.x & 127, width = s.side ? c.Dv : c.Dk;
    const bf16 *left = (const bf16 *)(s.side ? c.d_o : c.q) + (u.token * c.H + u.head) * width;
    const bf16 *tokens = (const bf16 *)(s.side ? c.v : c.k) + (u.token * c.Hkv + u.h) * width;
    tile_load<F::D, CHUNK, 128>(s.left, left, c.H * width, u.n, width, thread);
    tile_load<F::D, CHUNK, 128>(s.tokens, tokens, c.Hkv * width, u.n, width, thread);
    tile_load<F::D, F::SP, 128>(s.slots, read_slots<F>(r, u, s.side), F::D, F::SP, F::D, thread);
    copy_async_commit();
    const char *entry = fast_entry_ready<DECAY>(c, r, u.b, u.h, u.t0, F::SP, u.chunk);
    tile_load<F::SP, CHUNK, 256>(s.table, (const bf16 *)entry, F::SP, CHUNK, F::SP, threadIdx.x);
    if (DECAY) fast_c_copy<F::SP, 256>(s.c, entry);
    copy_async_commit();
}

/* Fragments to memory as collect_a reads them: 8 x 8 matrices, each in one piece. */
template <int N> static __device__ inline void rows_store(char *to, const uint32_t (&a)[N][4], int count)
{
    uint32_t *at = (uint32_t *)to + (threadIdx.x & 31);
#pragma unroll
    for (int n = 0; n < N; n++)
        if (n < count)
#pragma unroll
            for (int i = 0; i < 4; i++) at[(n * 4 + i) * 32] = a[n][i];
}

/* Rows of p and dX in the registers of the side of K, of p in those of the side of V. */
template <typename F, bool DECAY, int U>
static __device__ inline void rows_differentiate(const bla_call &c, const read_unit &u, const rows_view &s,
                                                 uint32_t (&w)[F::KS][4])
{
    float x[F::SP / 8][4];
    {
        uint32_t own[U][4];
        fast_against_slots<F::D, U>(x, own, s.left, s.tokens, s.slots, s.rows, 0);
        copy_async_wait<0>();
        __syncthreads(); /* the tables are there, and the tiles of the side of V are read */
#pragma unroll
        for (int i = 0; i < U; i++) tile_mma<F::US>(x, own[i], s.table, 16 * i, 0);
    }
    if (DECAY) fast_scale<F::SP>(x, s.c, s.rows, 0);
    if (s.side == 1) {
#pragma unroll
        for (int i = 0; i < F::SP / 8; i++)
            s.handed[i * 32] = make_float4(x[i][0], x[i][1], x[i][2], x[i][3]);
        barrier_named(1 + s.rows, 64);
        barrier_named(1 + s.rows, 64);
    } else {
        fast_mask(x, c.periods + u.h, u.t0 + 16 * s.rows, c.S, 0);
        float2 sum = fast_exponentials<1>(x, c.scale * 1.4426950408889634f, s.rows, 0, NULL);
        uint32_t p[F::KS][4];
        barrier_named(1 + s.rows, 64);
        backward_softmax<F::SP, DECAY>(x, sum, c.scale, s.handed, s.c, s.rows, w, p);
        __syncwarp(); /* every lane has read dP: its place is taken */
        fast_hand((uint4 *)s.handed, w);
        fast_hand((uint4 *)s.handed + F::KS * 32, p);
        barrier_named(1 + s.rows, 64);
    }
}

/* All of one row group and side. U as in fast_against. */
template <typename F, bool DECAY, int U>
static __device__ inline void rows_work(const bla_call &c, const fast_run &r, const read_unit &u,
                                        const rows_view &s)
{
    uint32_t w[F::KS][4], own[U][4]; /* dX or p; dA or G */
    rows_differentiate<F, DECAY, U>(c, u, s, w);
    if (s.side == 1) fast_fetch(w, (const uint4 *)s.handed + F::KS * 32);
    char *to = r.rows + ((u.rows * 2 + s.side) * fast_rows_bytes(F::SP));
    rows_store(to + s.rows * F::KS * 512, w, F::KS);
    {
        float g[2 * U][4];
        tile_zero(g);
#pragma unroll
        for (int k = 0; k < F::KS; k++) tile_mma_trans<F::US>(g, w[k], s.table, 0, 16 * k);
        tile_causal(g, s.rows);
#pragma unroll
        for (int i = 0; i < U; i++) tile_pack(own[i], g[2 * i], g[2 * i + 1]);
    }
    rows_store(to + 4 * F::KS * 512 + fast_inner_at(s.rows, 0), own, s.rows + 1);
    if (s.side == 0) fast_hand(s.inner, own);
    barrier_named(1 + s.rows, 64);
    if (s.side == 1) fast_fetch(w, (const uint4 *)s.handed), fast_fetch(own, s.inner);
    const int column0 = s.side * (F::D / 2);
    float d_q[F::D / 16][4];
    tile_zero(d_q);
#pragma unroll
    for (int k = 0; k < F::KS; k++) tile_mma<F::UD>(d_q, w[k], s.slots_k, 16 * k, column0);
#pragma unroll
    for (int i = 0; i < U; i++) tile_mma<F::UD>(d_q, own[i], s.k, 16 * i, column0);
    bf16 *rows = (bf16 *)c.d_q + ((u.token + 16 * s.rows) * c.H + u.head) * c.Dk + column0;
    tile_store_rows(d_q, rows, c.H * c.Dk, u.n - 16 * s.rows, c.Dk - column0);
}

/* grid: r.units blocks. */
template <int D, int SP, bool DECAY>
static __global__ void __launch_bounds__(256, 2) fast_rows_kernel(bla_call c, fast_run r)
{
    cuda_wait_previous();
    typedef rows_form<D, SP> F;
    CUDA_DYNAMIC_SHARED(char, shared);
    const read_unit u = read_unit_of(c, r, blockIdx.x);
    if (u.n == 0) return;
    const rows_view s = rows_view_of<F>(shared);
    rows_load<F, DECAY>(c, r, u, s);
    copy_async_wait<1>();
    barrier_named(5 + s.side, 128);
    if (s.rows < 2)
        rows_work<F, DECAY, 2>(c, r, u, s);
    else
        rows_work<F, DECAY, 4>(c, r, u, s);
}

#endif
