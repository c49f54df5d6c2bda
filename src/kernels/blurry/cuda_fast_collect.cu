/* The second kernel of the backward pass in two: d_k = dA^T Q + P dKslots and d_v = G^T dO + P dVslots, where
 * the gradients of the slots run through the chunks from last to first, dKslots += dX^T Q and dVslots += p^T
 * dO. The columns never mix, so a block takes W columns of K or V of one chain through all its chunks, as
 * cuda_fast_states.cu does forwards. Four warps have 16 tokens each, four the slots: within a chunk neither
 * waits for the other. */
#include "kernels/blurry/cuda_fast.cuh"

template <int SP_, int W_> struct collect_form {
    static constexpr int SP = SP_, W = W_, THREADS = 256;
    static constexpr int US = tile_units(SP), UW = tile_units(W), KS = SP / 16, NT = W / 8;
    static constexpr int MT = fast_share<W, SP>::MT, NS = fast_share<W, SP>::NT; /* of a warp's slots */
    static constexpr int ROWS = (int)fast_rows_bytes(SP), LEFT = tile_bytes(CHUNK, W),
                         TABLE = tile_bytes(CHUNK, SP), STAGE = ROWS + LEFT + TABLE;
    static constexpr int SLOTS = tile_bytes(SP, W), COPY = tile_bytes(16, W);
    static constexpr int FIXED = 2 * SLOTS + 4 * COPY, HALF = 231424 / 2 - 1024; /* of a multiprocessor */
    static constexpr int STAGES = FIXED + 3 * STAGE > HALF &&FIXED + 2 * STAGE <= HALF ? 2 : 3;
    static constexpr int SHARED = FIXED + STAGES * STAGE, BLOCKS = SHARED <= HALF ? 2 : 1;
    static_assert(SHARED <= 231424, "shared memory");
};

/* The block's columns. */
struct collect_place {
    bla_chain chain;
    int64_t chunks;
    int side, column, width; /* 0: K, 1: V; the first column; the columns there are from it on, maybe none */
    int all;                 /* columns of a head */
};
template <typename F> static __device__ inline collect_place collect_place_of(const bla_call &c, int D)
{
    collect_place p;
    int slices = D / F::W, slice = (int)(blockIdx.x % (2 * slices));
    p.chain = bla_chain_of(c, blockIdx.x / (2 * slices));
    p.chunks = (p.chain.count + CHUNK - 1) / CHUNK;
    p.side = slice / slices, p.column = slice % slices * F::W;
    p.all = p.side ? c.Dv : c.Dk, p.width = p.all - p.column;
    return p;
}

/* One query head of one chunk: a step. Chunks are taken from last to first. */
struct collect_step {
    int64_t chunk; /* below 0: there are no more */
    int head;      /* of the group */
    __device__ void advance(int group)
    {
        if (++head < group) return;
        head = 0, chunk--;
    }
};

/* Tokens of a chunk. */
static __device__ inline int collect_tokens(const collect_place &p, int64_t chunk)
{
    return (int)min((int64_t)CHUNK, p.chain.count - chunk * CHUNK);
}

/* Starts loading step after step: rows, the columns of q or d_o, and P with a chunk's first head. */
template <typename F, bool DECAY> struct collect_loader {
    fast_entries<DECAY> entries;
    tile_source<F::W, CHUNK, F::THREADS> left;
    const char *rows;
    int64_t next_rows,
        next_chunk; /* bytes from head to head, and from the last one to the next chunk's first */
    collect_step step;
    __device__ void begin(const bla_call &c, const fast_run &r, const collect_place &p)
    {
        step.chunk = p.chunks - 1, step.head = 0;
        if (step.chunk < 0) return;
        const int64_t head = p.chain.h * c.group, token = p.chain.first + step.chunk * CHUNK;
        const int64_t unit = fast_saved_base(p.chain.first, p.chain.b, c.H, head) + step.chunk * c.H;
        rows = r.rows + (unit * 2 + p.side) * F::ROWS + 16 * threadIdx.x;
        next_rows = 2 * F::ROWS, next_chunk = -(c.H + c.group - 1) * next_rows;
        const int64_t stride = c.H * p.all;
        const bf16 *from = (const bf16 *)(p.side ? c.d_o : c.q) + token * stride + head * p.all;
        left.begin(p.width > 0 ? from + p.column : from, stride, p.all, p.width);
        entries.begin(c, r, p.chain, F::SP, step.chunk, true);
    }
    __device__ void load(const bla_call &c, const collect_place &p, char *stage)
    {
        if (step.chunk >= 0) {
#pragma unroll
            for (int i = 0; i < F::ROWS; i += 16 * F::THREADS)
                if (i + 16 * (int)threadIdx.x < F::ROWS)
                    copy_async16(stage + i + 16 * threadIdx.x, rows + i, true);
            left.load(stage + F::ROWS, collect_tokens(p, step.chunk));
            if (step.head == 0) fast_table_load<F::SP, F::THREADS>(stage + F::ROWS + F::LEFT, entries.next());
            bool last = step.head == c.group - 1;
            if (last) left.from -= (CHUNK * c.H + c.group) * p.all * (int64_t)sizeof(bf16);
            rows += last ? next_chunk : next_rows;
            step.advance(c.group);
        }
        copy_async_commit();
    }
};

/* A fragment of the transpose of a 16 x 16 block as rows_store left it. */
static __device__ inline void collect_a(uint32_t *a, const char *block)
{
    int lane = threadIdx.x & 31, matrix = (lane >> 3 & 1) << 1 | lane >> 4;
    ldmatrix_x4_trans(a, block + matrix * 128 + (lane & 7) * 16);
}

/* x = P d_slots (with `fresh`, else x as it is) + inner^T left for the 16 tokens of row group `rows`. */
template <typename F>
static __device__ inline void collect_tokens_step(float (&x)[F::NT][4], const char *stage,
                                                  const char *d_slots, int rows, bool fresh)
{
    if (fresh) {
        tile_zero(x);
#pragma unroll
        for (int k = 0; k < F::KS; k++) {
            uint32_t a[4];
            tile_a<F::US>(a, stage + F::ROWS + F::LEFT, 16 * rows, 16 * k);
            tile_mma<F::UW>(x, a, d_slots, 16 * k, 0);
        }
    }
#pragma unroll
    for (int t = 0; t < 4; t++) {
        if (t < rows) continue;
        uint32_t a[4];
        collect_a(a, stage + CHUNK * F::SP * 2 + fast_inner_at(t, rows));
        tile_mma<F::UW>(x, a, stage + F::ROWS, 16 * t, 0);
    }
}

/* The slots' gradient += rows^T left. */
template <typename F>
static __device__ inline void collect_slots_step(float (&x)[F::MT][F::NS][4], const char *stage,
                                                 fast_corner at)
{
#pragma unroll
    for (int t = 0; t < 4; t++) {
        uint32_t a[F::MT][4];
#pragma unroll
        for (int m = 0; m < F::MT; m++) collect_a(a[m], stage + (t * F::KS + at.slot / 16 + m) * 512);
        tile_mma_blocks<F::UW>(x, a, stage + F::ROWS, 16 * t, at.column);
    }
}

/* The caller's gradients of the slots to and from a warp's accumulators. */
template <typename F>
static __device__ inline float *collect_slots(const bla_call &c, const collect_place &p, const bla_state &s)
{
    float *at = p.side ? s.v + p.chain.b * s.stride_v : s.k + p.chain.b * s.stride_k;
    return at + p.chain.h * c.S * p.all;
}

/* The side of the slots. */
template <typename F, bool DECAY> struct collect_slots_side {
    float x[F::MT][F::NS][4], end[F::MT][2];
    fast_entries<DECAY> entries;
    fast_corner at, corner; /* within the block's columns and among all */
    __device__ void begin(const bla_call &c, const fast_run &r, const collect_place &p, char *tile)
    {
        at = corner = fast_corner_of<F::W, F::SP>(threadIdx.x / 32 % 4);
        corner.column += p.column;
        fast_slots_load(x, c.d_out.k ? collect_slots<F>(c, p, c.d_out) : NULL, c.S, p.all, corner,
                        DECAY ? ENTRY_START : 1.0f);
        if (DECAY && p.chunks > 0) entries.begin(c, r, p.chain, F::SP, p.chunks - 1, true);
        fetch(p, p.chunks - 1);
        hand(p.chunks - 1, tile);
    }
    /* What the slots keep over a chunk, ahead of time. */
    __device__ void fetch(const collect_place &p, int64_t chunk)
    {
        if (!DECAY || chunk < 0) return;
        fast_keep(entries.next(), F::SP, collect_tokens(p, chunk), at, end);
    }
    /* The gradient of the slots after a chunk, times what they keep over it, to the side of the tokens. */
    __device__ void hand(int64_t chunk, char *tile)
    {
        if (chunk < 0) return;
        if (DECAY) fast_rows_scale(x, end);
        fast_copy_out<F::W>(x, tile, at);
    }
};

/* grid: chains * 2 * D / W blocks. */
template <int SP, int W, bool DECAY>
static __global__ void __launch_bounds__(256, (collect_form<SP, W>::BLOCKS))
    fast_collect_kernel(bla_call c, fast_run r, int D)
{
    cuda_wait_previous();
    typedef collect_form<SP, W> F;
    CUDA_DYNAMIC_SHARED(char, shared);
    const collect_place p = collect_place_of<F>(c, D);
    const int warp = threadIdx.x / 32, rows = warp % 4;
    char *d_slots = shared + F::STAGES * F::STAGE, *copy = d_slots + 2 * F::SLOTS + rows * F::COPY;
    collect_slots_side<F, DECAY> slots;
    float x[F::NT][4];
    collect_step step = {p.chunks - 1, 0};
    collect_loader<F, DECAY> loader;
    loader.begin(c, r, p);
#pragma unroll
    for (int i = 0; i < F::STAGES - 1; i++) loader.load(c, p, shared + i * F::STAGE);
    if (warp >= 4) slots.begin(c, r, p, d_slots + (~p.chunks & 1) * F::SLOTS);
    int now = 0, free = F::STAGES - 1; /* stages: at work, and left by the step before */
    for (; step.chunk >= 0; step.advance(c.group)) {
        const int64_t chunk = step.chunk;
        const char *stage = shared + now * F::STAGE;
        const bool last = step.head == c.group - 1;
        char *mine = d_slots + (chunk & 1) * F::SLOTS, *next = d_slots + (~chunk & 1) * F::SLOTS;
        copy_async_wait<F::STAGES - 2>();
        __syncthreads();
        loader.load(c, p, shared + free * F::STAGE);
        if (warp < 4) {
            collect_tokens_step<F>(x, stage, mine, rows, step.head == 0);
            if (last) {
                bf16 *to = (bf16 *)(p.side ? c.d_v : c.d_k) +
                           ((p.chain.first + chunk * CHUNK + 16 * rows) * c.Hkv + p.chain.h) * p.all +
                           p.column;
#pragma unroll
                for (int n = 0; n < F::NT; n++) tile_put<F::UW>(copy, 0, 8 * n, x[n]);
                __syncwarp();
                tile_store16<W>(copy, 0, to, c.Hkv * p.all, collect_tokens(p, chunk) - 16 * rows, p.width);
                __syncwarp();
            }
        } else {
            if (last) slots.fetch(p, chunk - 1);
            collect_slots_step<F>(slots.x, stage, slots.at);
            if (last) slots.hand(chunk - 1, next);
        }
        free = now, now = now + 1 < F::STAGES ? now + 1 : 0;
    }
    copy_async_wait<0>();
    if (warp >= 4 && c.d_in.k)
        fast_slots_store(slots.x, collect_slots<F>(c, p, c.d_in), c.S, p.all, slots.corner,
                         DECAY ? ENTRY_UNIT : 1.0f);
}

template <int SP, int W>
static void collect_launch(int D, const bla_call *call, const fast_run *run, cudaStream_t stream)
{
    typedef collect_form<SP, W> F;
    int64_t blocks = call->chains * 2 * (D / W);
    if (blocks <= 0) return;
    cuda_launch_early(run->early,
                      call->decay ? fast_collect_kernel<SP, W, true> : fast_collect_kernel<SP, W, false>,
                      dim3((unsigned)blocks), dim3(F::THREADS), F::SHARED, stream, *call, *run, D);
}

int fast_collect_stage(int SP, int columns)
{
    return (int)fast_rows_bytes(SP) + tile_bytes(CHUNK, columns) + tile_bytes(CHUNK, SP);
}

void fast_collect(const fast_kernels *k, int columns, const bla_call *call, const fast_run *run,
                  cudaStream_t stream)
{
    (k->SP == 32     ? columns == 32 ? collect_launch<32, 32> : collect_launch<32, 64>
         : k->SP == 64 ? columns == 32 ? collect_launch<64, 32> : collect_launch<64, 64>
         : columns == 32 ? collect_launch<128, 32>
                     : collect_launch<128, 64>)(k->D, call, run, stream);
}
