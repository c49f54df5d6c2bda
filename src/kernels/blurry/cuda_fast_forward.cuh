/* Forward pass of blurry attention with tensor cores. Formulas: docs/operator.md, "Chunked form".
 *
 * A block is 4 row groups of 16 tokens times SPLIT shares of the slots, one warp each. Per chunk a warp
 * forms, for its tokens, A = Q K^T, logits X = Q Kslots^T + A P, the softmax, O = p Vslots + (p P^T) V, all
 * in registers, and then its slots' share of the new state. With READ false only the state advances:
 * increments of segments, and states for the backward pass. */
#ifndef BLURRY_KERNELS_BLURRY_CUDA_FAST_FORWARD_CUH
#define BLURRY_KERNELS_BLURRY_CUDA_FAST_FORWARD_CUH
#include "kernels/blurry/cuda_fast.cuh"

/* What the two warps of a row group exchange: maxima and sums of their shares, the weights on the slots, and
 * products with the chunk's tokens, of which the first row groups have half as many. */
static constexpr __host__ __device__ int forward_exchange_bytes(int SP)
{
    return 4 * CHUNK * 4 + CHUNK * SP * 2 + 6 * 1024;
}

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

/* rows [16, SHARE] = left slots^T + causal(left tokens^T) P for one row group: logits from q and K, or
 * gradients of probabilities from d_o and V. Of the chunk's own tokens the first 16 U are looked at: all a
 * row group sees, in code without branches. First what needs no table: `own`, causal(left tokens^T) as A
 * fragments, one per 16 tokens, and the share of the slots. */
template <int D, int U, int N, int OWN>
static __device__ inline void fast_against_slots(float (&x)[N][4], uint32_t (&own)[OWN][4], const char *left,
                                                 const char *tokens, const char *slots, int rows, int slot0)
{
    constexpr int UD = tile_units(D);
    {
        float s[2 * U][4];
        tile_zero(s);
#pragma unroll
        for (int k = 0; k < D; k += 16) {
            uint32_t a[4];
            tile_a<UD>(a, left, 16 * rows, k);
            tile_mma_trans<UD>(s, a, tokens, 0, k);
        }
        tile_causal(s, rows);
#pragma unroll
        for (int u = 0; u < U; u++) tile_pack(own[u], s[2 * u], s[2 * u + 1]);
    }
    tile_zero(x);
#pragma unroll
    for (int k = 0; k < D; k += 16) {
        uint32_t a[4];
        tile_a<UD>(a, left, 16 * rows, k);
        tile_mma_trans<UD>(x, a, slots, slot0, k);
    }
}
template <int D, int SP, int U, int N>
static __device__ inline void fast_against(float (&x)[N][4], const char *left, const char *tokens,
                                           const char *slots, const char *table, int rows, int slot0)
{
    uint32_t own[U][4];
    fast_against_slots<D, U>(x, own, left, tokens, slots, rows, slot0);
#pragma unroll
    for (int u = 0; u < U; u++) tile_mma<tile_units(SP)>(x, own[u], table, 16 * u, slot0);
}

/* Masks what may not be attended to: `visible` where the chunk is an early one, and the padding beyond S. */
template <int N>
static __device__ inline void fast_mask(float (&x)[N][4], const bla_period *period, int64_t t0, int S,
                                        int slot0)
{
    int lane = threadIdx.x & 31;
    bool early = t0 < period->all_visible;
    if (!early && slot0 + 8 * N <= S) return;
#pragma unroll
    for (int n = 0; n < N; n++) {
        if (!early && slot0 + 8 * n + 8 <= S) continue;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int j = slot0 + 8 * n + 2 * (lane & 3) + i;
            int64_t from = j < S ? period->visible[j] : INT64_MAX;
            if (t0 + (lane >> 2) < from) x[n][i] = -INFINITY;
            if (t0 + (lane >> 2) + 8 < from) x[n][2 + i] = -INFINITY;
        }
    }
}

static __device__ inline float quad_max(float x)
{
    x = fmaxf(x, __shfl_xor_sync(CUDA_FULL_WARP, x, 1));
    return fmaxf(x, __shfl_xor_sync(CUDA_FULL_WARP, x, 2));
}
static __device__ inline float quad_sum(float x)
{
    x += __shfl_xor_sync(CUDA_FULL_WARP, x, 1);
    return x + __shfl_xor_sync(CUDA_FULL_WARP, x, 2);
}

/* x becomes exp2(factor (x - its row's maximum)); returns the sums of the two rows over this warp's share.
 * `top` receives the maxima: they must be those of the whole row, so shares exchange them through `room` [2,
 * CHUNK]. */
template <int SPLIT, int N>
static __device__ inline float2 fast_exponentials(float (&x)[N][4], float factor, int rows, int share,
                                                  float *room)
{
    int lane = threadIdx.x & 31, g = 16 * rows + (lane >> 2);
    float top[2] = {-INFINITY, -INFINITY}, sum[2] = {0.0f, 0.0f};
#pragma unroll
    for (int n = 0; n < N; n++) {
        top[0] = fmaxf(top[0], fmaxf(x[n][0], x[n][1]));
        top[1] = fmaxf(top[1], fmaxf(x[n][2], x[n][3]));
    }
    top[0] = quad_max(top[0]), top[1] = quad_max(top[1]);
    if (SPLIT > 1) {
        if ((lane & 3) == 0) room[share * CHUNK + g] = top[0], room[share * CHUNK + g + 8] = top[1];
        barrier_named(1 + rows, 64);
        top[0] = fmaxf(top[0], room[(1 - share) * CHUNK + g]);
        top[1] = fmaxf(top[1], room[(1 - share) * CHUNK + g + 8]);
    }
    top[0] *= factor, top[1] *= factor;
#pragma unroll
    for (int n = 0; n < N; n++) {
        x[n][0] = exp2_fast(x[n][0] * factor - top[0]), x[n][1] = exp2_fast(x[n][1] * factor - top[0]);
        x[n][2] = exp2_fast(x[n][2] * factor - top[1]), x[n][3] = exp2_fast(x[n][3] * factor - top[1]);
        sum[0] += x[n][0] + x[n][1], sum[1] += x[n][2] + x[n][3];
    }
    return make_float2(quad_sum(sum[0]), quad_sum(sum[1]));
}

/* Multiplies all accumulators of a row group by c. */
template <int SP, int N>
static __device__ inline void fast_scale(float (&x)[N][4], const char *c, int rows, int slot0)
{
#pragma unroll
    for (int n = 0; n < N; n += 2) fast_c_scale(fast_c_load(c, SP, rows, slot0 / 16 + n / 2), x[n], x[n + 1]);
}

/* The rows a warp reads for, and the tiles they need. */
struct forward_rows {
    const bla_period *period;
    int64_t t0; /* position of the row group's first token */
    bf16 *to;   /* its place in o, rows `stride` apart, `valid` of them */
    int64_t stride;
    int rows, share, valid;
    const char *table, *tokens, *slots, *c; /* P, v, V of the slots, c */
    float *room;                            /* [4, CHUNK] maxima and sums of both shares */
    uint4 *weights, *own;                   /* of the row group, this lane's: fragments of both shares */
};

/* Its part of the exchange. */
template <typename F> static __device__ inline void forward_exchange(forward_rows &w, char *exchange)
{
    int lane = threadIdx.x & 31, rows = w.rows;
    w.room = (float *)exchange;
    w.weights = (uint4 *)(exchange + 4 * CHUNK * 4 + rows * 16 * F::SP * 2) + lane;
    w.own =
        (uint4 *)(exchange + 4 * CHUNK * 4 + CHUNK * F::SP * 2 + (rows < 2 ? rows : 2 * rows - 2) * 1024) +
        lane;
}

template <int N> static __device__ inline void fast_hand(uint4 *to, const uint32_t (&a)[N][4])
{
#pragma unroll
    for (int n = 0; n < N; n++) to[n * 32] = make_uint4(a[n][0], a[n][1], a[n][2], a[n][3]);
}
template <int N> static __device__ inline void fast_fetch(uint32_t (&a)[N][4], const uint4 *from)
{
#pragma unroll
    for (int n = 0; n < N; n++) {
        uint4 y = from[n * 32];
        a[n][0] = y.x, a[n][1] = y.y, a[n][2] = y.z, a[n][3] = y.w;
    }
}

/* Before the tables are there: this share's half of causal(q k^T), to be handed to the other, and its logits
 * against the slots. */
template <typename F, int U>
static __device__ inline void forward_against(const forward_rows &w, const char *q, const char *k,
                                              const char *slots, float (&x)[F::SHARE / 8][4])
{
    const int first = w.share * (U / 2); /* of the 16 U tokens that matter, in blocks of 16 */
    float s[U][4];
    tile_zero(s);
    tile_zero(x);
#pragma unroll
    for (int d = 0; d < F::D; d += 16) {
        uint32_t a[4];
        tile_a<F::UD>(a, q, 16 * w.rows, d);
        tile_mma_trans<F::UD>(s, a, k, 16 * first, d);
        tile_mma_trans<F::UD>(x, a, slots, w.share * F::SHARE, d);
    }
    tile_causal(s, w.rows - first);
    uint32_t own[U / 2][4];
#pragma unroll
    for (int i = 0; i < U / 2; i++) tile_pack(own[i], s[2 * i], s[2 * i + 1]);
    fast_hand(w.own + first * 32, own);
}

/* From there to o, the other share's half being there too: each share has half the slots up to the softmax,
 * then half the tokens, then half the columns. U as in fast_against. */
template <typename F, bool DECAY, int U>
static __device__ inline void forward_finish(const bla_call &c, const forward_rows &w,
                                             float (&x)[F::SHARE / 8][4])
{
    constexpr int D = F::D, SP = F::SP, N = F::SHARE / 8;
    const int slot0 = w.share * F::SHARE, rows = w.rows, first = w.share * (U / 2),
              column0 = w.share * (D / 2);
    const int lane = threadIdx.x & 31, g = 16 * rows + (lane >> 2);
    float *sums = w.room + 2 * CHUNK;
    uint32_t weight[SP / 16][4], own[U][4]; /* weights on the slots before the chunk and on its tokens */
    fast_fetch(own, w.own);
#pragma unroll
    for (int i = 0; i < U; i++) tile_mma<F::US>(x, own[i], w.table, 16 * i, slot0);
    if (DECAY) fast_scale<SP>(x, w.c, rows, slot0);
    fast_mask(x, w.period, w.t0, c.S, slot0);
    float2 sum = fast_exponentials<2>(x, c.scale * 1.4426950408889634f, rows, w.share, w.room);
    if (DECAY) fast_scale<SP>(x, w.c, rows, slot0);
    {
        uint32_t mine[N / 2][4];
#pragma unroll
        for (int n = 0; n < N; n += 2) tile_pack(mine[n / 2], x[n], x[n + 1]);
        fast_hand(w.weights + slot0 / 16 * 32, mine);
    }
    if ((lane & 3) == 0) sums[w.share * CHUNK + g] = sum.x, sums[w.share * CHUNK + g + 8] = sum.y;
    barrier_named(1 + rows, 64);
    fast_fetch(weight, w.weights);
    {
        float y[U][4];
        uint32_t mine[U / 2][4];
        tile_zero(y);
#pragma unroll
        for (int k = 0; k < SP / 16; k++) tile_mma_trans<F::US>(y, weight[k], w.table, 16 * first, 16 * k);
        tile_causal(y, rows - first);
#pragma unroll
        for (int i = 0; i < U / 2; i++) tile_pack(mine[i], y[2 * i], y[2 * i + 1]);
        fast_hand(w.own + first * 32, mine);
    }
    barrier_named(1 + rows, 64);
    fast_fetch(own, w.own);
    float o[D / 16][4];
    tile_zero(o);
#pragma unroll
    for (int k = 0; k < SP / 16; k++) tile_mma<F::UD>(o, weight[k], w.slots, 16 * k, column0);
#pragma unroll
    for (int i = 0; i < U; i++) tile_mma<F::UD>(o, own[i], w.tokens, 16 * i, column0);
    float low = 1.0f / (sums[g] + sums[CHUNK + g]), high = 1.0f / (sums[g + 8] + sums[CHUNK + g + 8]);
#pragma unroll
    for (int n = 0; n < D / 16; n++) o[n][0] *= low, o[n][1] *= low, o[n][2] *= high, o[n][3] *= high;
    tile_store_rows(o, w.to + column0, w.stride, w.valid, c.Dv - column0);
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
