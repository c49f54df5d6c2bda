/* Backward pass of blurry attention with tensor cores. Formulas: simd_backward.h and docs/operator.md.
 *
 * A block is 8 warps: four on the side of K (q, k, logits) and four on the side of V (d_o, v, gradients of
 * the probabilities), each with one row group of 16 tokens and a quarter of the slots' gradient in its
 * accumulators. Chunks are taken from last to first. Per chunk and query head: 1  X = Q Kslots^T + A P | dP =
 * dO Vslots^T + M P, handed to the other side p = softmax, dX = p (dP - <p, dP>): both to shared memory,
 * times c 2  dA = dX P^T, d_q = dX Kslots + dA K           | G = p P^T, dVslots += p^T dO 3  d_k = dA^T Q + P
 * dKslots, dKslots += dX^T Q   | d_v = G^T dO + P dVslots With decay the slots' gradient is kept times 2^60
 * (cuda_entry.cuh), so that the products add to it directly. */
#ifndef BLURRY_KERNELS_BLURRY_CUDA_FAST_BACKWARD_CUH
#define BLURRY_KERNELS_BLURRY_CUDA_FAST_BACKWARD_CUH
#include "kernels/blurry/cuda_fast_attend.cuh"

template <int D_, int SP_> struct backward_form {
    static constexpr int D = D_, SP = SP_, THREADS = 256;
    static constexpr int NT = D / 8, KS = SP / 16; /* fragments and 16-slot steps of a row */
    static constexpr int MT = fast_share<D, SP>::MT, NS = fast_share<D, SP>::NT; /* of a warp's slots */
    static constexpr int UD = tile_units(D), US = tile_units(SP), UC = tile_units(CHUNK);
    static constexpr int TOKENS = tile_bytes(CHUNK, D), SLOTS = tile_bytes(SP, D),
                         TABLE = tile_bytes(CHUNK, SP);
    static constexpr int ROWS = CHUNK * SP * 4; /* dP in float, then dX and p in bf16 */
    static constexpr int INNER = tile_bytes(CHUNK, CHUNK);
    static constexpr int OUT = SP < CHUNK ? TOKENS : 0; /* d_q on its way, where it is larger than slots */
    static constexpr int STAGE = 4 * TOKENS + TABLE;
    static constexpr int BLOCKS = SP <= 32 && D <= 64 ? 2 : 1; /* per multiprocessor */
    static constexpr int LIMIT = BLOCKS == 1 ? 231424 : 231424 / BLOCKS - 1024;
    /* Where all does not fit, the slots' gradient takes the place of the slots once those are read. */
    static constexpr bool SHARES = 4 * SLOTS + ROWS + 2 * INNER + OUT + STAGE > LIMIT;
    static constexpr int FIXED = (SHARES ? 2 : 4) * SLOTS + ROWS + 2 * INNER + OUT, C = TABLE;
    static constexpr int STAGES = FIXED + 2 * STAGE + (BLOCKS > 1 ? C : 0) <= LIMIT ? 2 : 1;
    static constexpr int SHARED = FIXED + STAGES * STAGE; /* with decay c follows the stages */
    static_assert(SHARED + C <= LIMIT, "shared memory");
};

/* One warp's view of the block: the tiles of its side. */
template <typename F> struct backward_side {
    int side;                              /* 0: K, 1: V */
    int warp, rows;                        /* within the side; row group */
    fast_corner at;                        /* of the warp's slots */
    char *stages;                          /* tiles of the stages: q, d_o, k, v, P */
    char *slots, *d_slots, *inner;         /* slots before the chunk; gradient of those after it; dA or G */
    char *out;                             /* d_q on its way to memory: where Vslots lie if it fits */
    char *rows_all;                        /* [4] row groups: dP, or dX then p */
    char *c;                               /* c of the chunk, with decay */
    __device__ char *left(int stage) const /* q or d_o */
    {
        return stages + stage * F::STAGE + side * F::TOKENS;
    }
    __device__ char *tokens(int stage) const /* k or v */
    {
        return stages + stage * F::STAGE + (2 + side) * F::TOKENS;
    }
    __device__ char *table(int stage) const { return stages + stage * F::STAGE + 4 * F::TOKENS; }
    __device__ char *gradient(int group) const /* dX of the K side, p of the V side */
    {
        return rows_all + group * (F::ROWS / 4) + side * (F::ROWS / 8);
    }
};

template <typename F> static __device__ inline backward_side<F> backward_view(char *shared)
{
    backward_side<F> s;
    int warp = threadIdx.x / 32;
    s.side = warp / 4, s.warp = warp % 4;
    s.rows = s.side ? 3 - s.warp : s.warp; /* late rows have more to do: share them between the schedulers */
    s.at = fast_corner_of<F::D, F::SP>(s.warp);
    s.slots = shared + s.side * F::SLOTS;
    s.d_slots = F::SHARES ? s.slots : shared + (2 + s.side) * F::SLOTS;
    char *at = shared + (F::SHARES ? 2 : 4) * F::SLOTS;
    s.rows_all = at;
    s.inner = at + F::ROWS + s.side * F::INNER;
    s.out = F::OUT ? at + F::ROWS + 2 * F::INNER : shared + F::SLOTS;
    s.stages = shared + F::FIXED;
    s.c = shared + F::SHARED;
    return s;
}

/* Starts loading q and d_o of one query head: each side its own, 128 threads. */
template <typename F>
static __device__ inline void backward_load_left(const bla_call &c, const fast_place &p, int64_t chunk,
                                                 int head, const backward_side<F> &s, int stage)
{
    int64_t token = p.chain.first + chunk * CHUNK, at = token * c.H + p.chain.h * c.group + head;
    int n = (int)min((int64_t)CHUNK, p.chain.count - chunk * CHUNK), width = s.side ? c.Dv : c.Dk;
    tile_load<F::D, CHUNK, 128>(s.left(stage), (const bf16 *)(s.side ? c.d_o : c.q) + at * width, c.H * width,
                                n, width, threadIdx.x & 127);
}

template <typename F, bool DECAY>
static __device__ inline const char *backward_load(const bla_call &c, const fast_run &r, const fast_place &p,
                                                   int64_t chunk, const backward_side<F> &s, int stage)
{
    int64_t token = p.chain.first + chunk * CHUNK, at = token * c.Hkv + p.chain.h;
    int n = (int)min((int64_t)CHUNK, p.chain.count - chunk * CHUNK), width = s.side ? c.Dv : c.Dk;
    const char *entry = fast_entry<DECAY>(c, r, p, F::SP, chunk, stage, s.table(stage), 256);
    backward_load_left<F>(c, p, chunk, 0, s, stage);
    tile_load<F::D, CHUNK, 128>(s.tokens(stage), (const bf16 *)(s.side ? c.v : c.k) + at * width,
                                c.Hkv * width, n, width, threadIdx.x & 127);
    tile_load<F::SP, CHUNK, 256>(s.table(stage), (const bf16 *)entry, F::SP, CHUNK, F::SP, threadIdx.x);
    copy_async_commit();
    return entry;
}

/* Starts loading the slots before a chunk, and its c. */
template <typename F, bool DECAY>
static __device__ inline void backward_load_slots(const bla_call &c, const fast_run &r, const fast_place &p,
                                                  int64_t chunk, const char *entry, const backward_side<F> &s)
{
    const bf16 *from = r.saved + ((p.saved + chunk * c.Hkv) * 2 + s.side) * F::SP * F::D;
    tile_load<F::D, F::SP, 128>(s.slots, from, F::D, F::SP, F::D, threadIdx.x & 127);
    if (DECAY) fast_c_copy<F::SP, 256>(s.c, entry);
    copy_async_commit();
}

/* Packed A fragments of 16 rows into a tile. */
template <int U, int KS>
static __device__ inline void backward_put_rows(char *tile, const uint32_t (&a)[KS][4])
{
    int lane = threadIdx.x & 31, g = lane >> 2, q = (lane & 3) * 4;
#pragma unroll
    for (int k = 0; k < KS; k++) {
        *(uint32_t *)(tile + tile_at<U>(g, 2 * k) + q) = a[k][0];
        *(uint32_t *)(tile + tile_at<U>(g + 8, 2 * k) + q) = a[k][1];
        *(uint32_t *)(tile + tile_at<U>(g, 2 * k + 1) + q) = a[k][2];
        *(uint32_t *)(tile + tile_at<U>(g + 8, 2 * k + 1) + q) = a[k][3];
    }
}

/* Step 1 on the side of K, once dP is there: dX times scale and c, and p times c, as fragments. */
template <int SP, bool DECAY>
static __device__ inline void backward_softmax(float (&x)[SP / 8][4], float2 sum, float scale,
                                               const float4 *d_p, const char *c, int rows,
                                               uint32_t (&d_x)[SP / 16][4], uint32_t (&p)[SP / 16][4])
{
    float low = 1.0f / sum.x, high = 1.0f / sum.y, mean[2] = {0.0f, 0.0f};
#pragma unroll
    for (int n = 0; n < SP / 8; n++) {
        float4 d = d_p[n * 32];
        x[n][0] *= low, x[n][1] *= low, x[n][2] *= high, x[n][3] *= high;
        mean[0] += x[n][0] * d.x + x[n][1] * d.y, mean[1] += x[n][2] * d.z + x[n][3] * d.w;
    }
    mean[0] = quad_sum(mean[0]), mean[1] = quad_sum(mean[1]);
    __syncwarp(); /* so that dP is read again, not kept in registers that are not there */
#pragma unroll
    for (int k = 0; k < SP / 16; k++) {
        float y[2][4];
        float4 d[2] = {d_p[2 * k * 32], d_p[(2 * k + 1) * 32]};
#pragma unroll
        for (int i = 0; i < 2; i++) {
            y[i][0] = x[2 * k + i][0] * (d[i].x - mean[0]) * scale,
            y[i][1] = x[2 * k + i][1] * (d[i].y - mean[0]) * scale;
            y[i][2] = x[2 * k + i][2] * (d[i].z - mean[1]) * scale,
            y[i][3] = x[2 * k + i][3] * (d[i].w - mean[1]) * scale;
        }
        if (DECAY) {
            uint4 factor = fast_c_load(c, SP, rows, k);
            fast_c_scale(factor, y[0], y[1]);
            fast_c_scale(factor, x[2 * k], x[2 * k + 1]);
        }
        tile_pack(d_x[k], y[0], y[1]);
        tile_pack(p[k], x[2 * k], x[2 * k + 1]);
    }
}

/* Causal products of rows with P^T for the first 16 U tokens: into the side's inner tile, and, with K, on to
 * d_q. */
template <typename F, bool TO_LEFT, int U>
static __device__ inline void backward_inner(const uint32_t (&w)[F::KS][4], const backward_side<F> &s,
                                             int stage, float (&d_left)[F::NT][4])
{
    float g[2 * U][4];
    tile_zero(g);
#pragma unroll
    for (int k = 0; k < F::KS; k++) tile_mma_trans<F::US>(g, w[k], s.table(stage), 0, 16 * k);
    tile_causal(g, s.rows);
#pragma unroll
    for (int n = 0; n < 2 * U; n++) tile_put<F::UC>(s.inner, 16 * s.rows, 8 * n, g[n]);
    if constexpr (TO_LEFT) {
#pragma unroll
        for (int u = 0; u < U; u++) {
            uint32_t a[4];
            tile_pack(a, g[2 * u], g[2 * u + 1]);
            tile_mma<F::UD>(d_left, a, s.tokens(stage), 16 * u, 0);
        }
    }
}

/* d_tokens += inner^T left over the row groups from FROM on: those that see the warp's tokens. */
template <typename F, int FROM>
static __device__ inline void backward_outer(float (&d_tokens)[F::NT][4], const backward_side<F> &s,
                                             int stage)
{
#pragma unroll
    for (int t = FROM; t < 4; t++) {
        uint32_t a[4];
        tile_a_trans<F::UC>(a, s.inner, 16 * s.rows, 16 * t);
        tile_mma<F::UD>(d_tokens, a, s.left(stage), 16 * t, 0);
    }
}

/* Accumulators of 16 tokens through a tile's rows to memory. */
template <typename F>
static __device__ inline void backward_store(const float (&x)[F::NT][4], char *tile, int rows, bf16 *to,
                                             int64_t stride, int n, int width)
{
#pragma unroll
    for (int i = 0; i < F::NT; i++) tile_put<F::UD>(tile, 16 * rows, 8 * i, x[i]);
    __syncwarp();
    tile_store16<F::D>(tile, 16 * rows, to, stride, n, width);
}

/* The same without a tile: 4 bytes at a time. */
template <int NT>
static __device__ inline void backward_store_direct(const float (&x)[NT][4], int rows, bf16 *to,
                                                    int64_t stride, int n, int width)
{
    int lane = threadIdx.x & 31, g = 16 * rows + (lane >> 2), q = 2 * (lane & 3);
#pragma unroll
    for (int i = 0; i < NT; i++)
#pragma unroll
        for (int half = 0; half < 2; half++)
            if (g + 8 * half < n && 8 * i < width)
                *(uint32_t *)(to + (g + 8 * half) * stride + 8 * i + q) =
                    pack_bf16(x[i][2 * half], x[i][2 * half + 1]);
}

/* d_tokens += P d_slots for the warp's 16 tokens. */
template <typename F>
static __device__ inline void backward_through(float (&d_tokens)[F::NT][4], const char *table,
                                               const char *d_slots, int rows)
{
#pragma unroll
    for (int k = 0; k < F::SP; k += 16) {
        uint32_t a[4];
        tile_a<F::US>(a, table, 16 * rows, k);
        tile_mma<F::UD>(d_tokens, a, d_slots, k, 0);
    }
}

/* The slots' gradient += rows^T left. */
template <typename F>
static __device__ inline void backward_pull(float (&x)[F::MT][F::NS][4], const backward_side<F> &s, int stage)
{
#pragma unroll
    for (int t = 0; t < 4; t++) {
        uint32_t a[F::MT][4];
#pragma unroll
        for (int m = 0; m < F::MT; m++) tile_a_trans<F::US>(a[m], s.gradient(t), s.at.slot + 16 * m, 0);
        tile_mma_blocks<F::UD>(x, a, s.left(stage), 16 * t, s.at.column);
    }
}

/* One query head of a chunk. */
template <typename F, bool DECAY>
static __device__ inline void backward_head(const bla_call &c, const fast_place &p, int64_t chunk, int head,
                                            int stage, const backward_side<F> &s,
                                            float (&d_slots)[F::MT][F::NS][4], float (&d_tokens)[F::NT][4])
{
    constexpr int D = F::D, SP = F::SP;
    int64_t token = p.chain.first + chunk * CHUNK;
    int n = (int)min((int64_t)CHUNK, p.chain.count - chunk * CHUNK);
    uint32_t w[F::KS][4]; /* rows of dX (side of K) or p, times c */
    {
        float x[SP / 8][4];
        if (s.rows < 2)
            fast_against<D, SP, 2>(x, s.left(stage), s.tokens(stage), s.slots, s.table(stage), s.rows, 0);
        else
            fast_against<D, SP, 4>(x, s.left(stage), s.tokens(stage), s.slots, s.table(stage), s.rows, 0);
        if (s.side == 0) {
            if (DECAY) fast_scale<SP>(x, s.c, s.rows, 0);
            fast_mask(x, c.periods + p.chain.h, p.chain.position + chunk * CHUNK + 16 * s.rows, c.S, 0);
            float2 sum = fast_exponentials<1>(x, c.scale * 1.4426950408889634f, s.rows, 0, NULL);
            barrier_named(1 + s.rows, 64);
            char *handed = s.rows_all + s.rows * (F::ROWS / 4);
            uint32_t weights[F::KS][4];
            backward_softmax<SP, DECAY>(x, sum, c.scale, (const float4 *)handed + (threadIdx.x & 31), s.c,
                                        s.rows, w, weights);
            __syncwarp(); /* every lane has read dP: its place is taken */
            backward_put_rows<F::US>(handed, w);
            backward_put_rows<F::US>(handed + F::ROWS / 8, weights);
        } else {
            if (DECAY) fast_scale<SP>(x, s.c, s.rows, 0);
            float4 *to = (float4 *)(s.rows_all + s.rows * (F::ROWS / 4)) + (threadIdx.x & 31);
#pragma unroll
            for (int i = 0; i < SP / 8; i++) to[i * 32] = make_float4(x[i][0], x[i][1], x[i][2], x[i][3]);
            barrier_named(1 + s.rows, 64);
            if (!F::SHARES && head == 0) backward_through<F>(d_tokens, s.table(stage), s.d_slots, s.rows);
        }
    }
    __syncthreads();
    if (s.side == 0) {
        float d_q[F::NT][4];
        tile_zero(d_q);
#pragma unroll
        for (int k = 0; k < F::KS; k++) tile_mma<F::UD>(d_q, w[k], s.slots, 16 * k, 0);
        if (s.rows < 2)
            backward_inner<F, true, 2>(w, s, stage, d_q);
        else
            backward_inner<F, true, 4>(w, s, stage, d_q);
        bf16 *to = (bf16 *)c.d_q + (token * c.H + p.chain.h * c.group + head) * c.Dk;
        if (F::OUT || head == c.group - 1) /* the last one to read Vslots */
            backward_store<F>(d_q, s.out, s.rows, to, c.H * c.Dk, n, c.Dk);
        else
            backward_store_direct(d_q, s.rows, to, c.H * c.Dk, n, c.Dk);
        if (!F::SHARES && head == 0) backward_through<F>(d_tokens, s.table(stage), s.d_slots, s.rows);
    } else {
#pragma unroll
        for (int k = 0; k < F::KS; k++) tile_a<F::US>(w[k], s.gradient(s.rows), 0, 16 * k);
        if (s.rows < 2)
            backward_inner<F, false, 2>(w, s, stage, d_tokens);
        else
            backward_inner<F, false, 4>(w, s, stage, d_tokens);
        if (!F::SHARES) backward_pull<F>(d_slots, s, stage);
    }
    __syncthreads();
    if (F::SHARES && head == 0) { /* before this chunk pulls at it; a second head loads the slots again */
        fast_copy_out<D>(d_slots, s.d_slots, s.at);
        __syncthreads();
        backward_through<F>(d_tokens, s.table(stage), s.d_slots, s.rows);
    }
    if (s.rows < 2)
        backward_outer<F, 0>(d_tokens, s, stage);
    else
        backward_outer<F, 2>(d_tokens, s, stage);
    if (F::SHARES || s.side == 0) backward_pull<F>(d_slots, s, stage);
    if (head < c.group - 1) return;
    int width = s.side ? c.Dv : c.Dk;
    backward_store<F>(d_tokens, s.tokens(stage), s.rows,
                      (bf16 *)(s.side ? c.d_v : c.d_k) + (token * c.Hkv + p.chain.h) * width, c.Hkv * width,
                      n, width);
}

/* grid: chains * r.segments blocks. */
template <int D, int SP, bool DECAY>
static __global__ void __launch_bounds__(256, (backward_form<D, SP>::BLOCKS))
    fast_backward_kernel(bla_call c, fast_run r)
{
    typedef backward_form<D, SP> F;
    CUDA_DYNAMIC_SHARED(char, shared);
    const backward_side<F> s = backward_view<F>(shared);
    const fast_place p = fast_place_of(c, r, blockIdx.x, r.segments, false);
    const float unit = DECAY ? ENTRY_START : 1.0f;
    const bla_state &after = c.d_out;
    const int width = s.side ? c.Dv : c.Dk;
    const int64_t each = fast_part_chunks(r, p.chain);
    int part = p.from < p.to ? (int)((p.to - 1 - p.from) / each) : -1; /* of the chunk at work */
    int64_t part_from = p.from + part * each;
    float d_slots[F::MT][F::NS][4], kept[F::MT][2];
    const char *next = NULL;
    if (p.from < p.to) {
        next = backward_load<F, DECAY>(c, r, p, p.to - 1, s, 0);
        backward_load_slots<F, DECAY>(c, r, p, p.to - 1, next, s);
    }
    bool given = after.k && p.segment == r.segments - 1;
    const float *d = !given   ? NULL
                     : s.side ? after.v + p.chain.b * after.stride_v + p.chain.h * c.S * c.Dv
                              : after.k + p.chain.b * after.stride_k + p.chain.h * c.S * c.Dk;
    fast_slots_load(d_slots, d, c.S, width, s.at, unit);
#pragma unroll
    for (int m = 0; m < F::MT; m++) kept[m][0] = kept[m][1] = 1.0f;
    if (DECAY && r.segments > 1 && s.side == 0) /* parts without chunks */
        for (int64_t i = part + 1; i < r.parts; i++) fast_keep_store(kept, r.keeps + (p.unit + i) * SP, s.at);
    float end[F::MT][2];
    if (DECAY && p.from < p.to)
        fast_keep(next, SP, (int)min((int64_t)CHUNK, p.chain.count - (p.to - 1) * CHUNK), s.at, end);
    for (int64_t chunk = p.to - 1; chunk >= p.from; chunk--) {
        const int stage = F::STAGES == 2 ? (int)((p.to - 1 - chunk) & 1) : 0;
        if (DECAY) {
            fast_rows_scale(d_slots, end);
#pragma unroll
            for (int m = 0; m < F::MT; m++) kept[m][0] *= end[m][0], kept[m][1] *= end[m][1];
        }
        if (!F::SHARES) fast_copy_out<D>(d_slots, s.d_slots, s.at);
        copy_async_wait<0>();
        __syncthreads();
        if (F::STAGES == 2 && chunk > p.from) {
            next = backward_load<F, DECAY>(c, r, p, chunk - 1, s, 1 - stage);
            if (DECAY) fast_keep(next, SP, CHUNK, s.at, end); /* arrives long before it is needed */
        }
        float d_tokens[F::NT][4];
        tile_zero(d_tokens);
        for (int head = 0; head < c.group; head++) {
            if (head > 0) {
                backward_load_left<F>(c, p, chunk, head, s, stage);
                if (F::SHARES && head == 1) backward_load_slots<F, false>(c, r, p, chunk, NULL, s);
                copy_async_commit();
                copy_async_wait<0>();
                __syncthreads();
            }
            backward_head<F, DECAY>(c, p, chunk, head, stage, s, d_slots, d_tokens);
            __syncthreads();
        }
        if (DECAY && r.segments > 1 && chunk == part_from) { /* the first chunk of a part */
            if (s.side == 0) fast_keep_store(kept, r.keeps + (p.unit + part) * SP, s.at);
#pragma unroll
            for (int m = 0; m < F::MT; m++) kept[m][0] = kept[m][1] = 1.0f;
            part--, part_from -= each;
        }
        if (chunk == p.from) break;
        if (F::STAGES == 1) {
            next = backward_load<F, DECAY>(c, r, p, chunk - 1, s, 0);
            if (DECAY) fast_keep(next, SP, CHUNK, s.at, end);
        }
        backward_load_slots<F, DECAY>(c, r, p, chunk - 1, next, s);
    }
    if (r.segments > 1) {
        fast_state_store<D, SP>(d_slots, r.states + p.unit * 2 * SP * D, s.side, s.at);
    } else if (c.d_in.k) {
        float *to = s.side ? c.d_in.v + p.chain.b * c.d_in.stride_v + p.chain.h * c.S * c.Dv
                           : c.d_in.k + p.chain.b * c.d_in.stride_k + p.chain.h * c.S * c.Dk;
        fast_slots_store(d_slots, to, c.S, width, s.at, 1.0f / unit);
    }
}

#endif
