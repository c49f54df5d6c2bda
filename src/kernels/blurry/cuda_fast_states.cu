/* The slots before every chunk, for cuda_fast_read.cuh and the backward pass. The columns of a state never
 * mix, so a block takes W columns of K or V of one chain through all its chunks: nothing has to be joined,
 * and the few products of a chunk leave the time to memory. Where that leaves the chip empty, chains are cut
 * into segments, and what each adds to the slots is found first (cuda_fast_increments.cu). */
#include "kernels/blurry/cuda_fast.cuh"

template <int SP_, int W_> struct states_form {
    static constexpr int SP = SP_, W = W_, THREADS = 2 * SP; /* a warp has 16 slots */
    static constexpr int US = tile_units(SP), UW = tile_units(W), NT = W / 8;
    static constexpr int TABLE = tile_bytes(CHUNK, SP), TOKENS = tile_bytes(CHUNK, W), KEEP = SP * 4;
    static constexpr int STAGES = W == 64 ? 3 : 4, STAGE = TABLE + TOKENS + KEEP;
    static constexpr int COPY = tile_bytes(16, W); /* a warp's slots on their way to memory */
    static constexpr int SHARED = STAGES * STAGE + SP / 16 * COPY;
    static_assert(SHARED <= 231424 / 2 - 1024, "two blocks to a multiprocessor");
};

/* The block's columns. */
struct states_place {
    bla_chain chain;
    int64_t index;           /* of the chain */
    int64_t segment, unit;   /* unit: of all chains' segments */
    int64_t from, to;        /* chunks */
    int side, column, width; /* 0: K, 1: V; the first column; the columns there are from it on, maybe none */
    int64_t slots;           /* before chunk `from`, elements of `saved` */
    int64_t stride;          /* from chunk to chunk */
};
template <typename F>
static __device__ inline states_place states_place_of(const bla_call &c, const fast_run &r, int D)
{
    states_place p;
    uint32_t slices = (uint32_t)(D / F::W), slice = blockIdx.x % (2 * slices),
             rest = blockIdx.x / (2 * slices);
    uint32_t segments = (uint32_t)r.segments, chain = rest / segments;
    p.chain = bla_chain_of(c, chain), p.index = chain, p.segment = rest % segments,
    p.unit = chain * r.segments + p.segment;
    int64_t chunks = (p.chain.count + CHUNK - 1) / CHUNK, each = (chunks + r.segments - 1) / r.segments;
    p.from = min(p.segment * each, chunks), p.to = min(p.from + each, chunks);
    p.side = (int)(slice / slices), p.column = (int)(slice % slices) * F::W;
    p.width = (p.side ? c.Dv : c.Dk) - p.column;
    int64_t state = (int64_t)F::SP * D, at = fast_saved_base(p.chain.first, p.chain.b, c.Hkv, p.chain.h);
    p.stride = 2 * state * c.Hkv;
    p.slots = (at * 2 + p.side) * state + p.column + p.from * p.stride;
    return p;
}

/* Starts loading chunk after chunk: P, the columns and what the slots keep. */
template <typename F, bool DECAY> struct states_loader {
    fast_entries<DECAY> entries;
    tile_source<F::W, CHUNK, F::THREADS> tokens;
    int64_t left, chunks; /* tokens and chunks to come */
    __device__ void begin(const bla_call &c, const fast_run &r, const states_place &p)
    {
        const int width = p.side ? c.Dv : c.Dk;
        const int64_t stride = c.Hkv * width, token = p.chain.first + p.from * CHUNK;
        const bf16 *from = (const bf16 *)(p.side ? c.v : c.k) + token * stride + p.chain.h * width;
        entries.begin(c, r, p.chain, F::SP, p.from, false);
        tokens.begin(p.width > 0 ? from + p.column : from, stride, CHUNK * stride, p.width);
        left = p.chain.count - p.from * CHUNK, chunks = p.to - p.from;
    }
    __device__ void load(char *stage)
    {
        if (chunks > 0) {
            int n = (int)min((int64_t)CHUNK, left);
            const char *entry = entries.next();
            tokens.load(stage + F::TABLE, n);
            fast_table_load<F::SP, F::THREADS>(stage, entry);
            if (DECAY && threadIdx.x < F::SP / 4)
                copy_async16(stage + F::TABLE + F::TOKENS + 16 * threadIdx.x,
                             entry + 2 * entry_p_bytes(F::SP) + ((n - 1) * F::SP + 4 * threadIdx.x) * 4,
                             true);
            left -= CHUNK, chunks--;
        }
        copy_async_commit();
    }
};

/* The caller's slots to and from a warp's accumulators. */
template <typename F, bool STORE>
static __device__ inline void states_exchange(float (&x)[F::NT][4], const bla_call &c, const states_place &p,
                                              const bla_state &s, int slot0, float factor)
{
    int lane = threadIdx.x & 31, width = p.side ? c.Dv : c.Dk;
    float *at = p.side ? s.v + p.chain.b * s.stride_v : s.k + p.chain.b * s.stride_k;
    at += p.chain.h * c.S * width + p.column;
#pragma unroll
    for (int n = 0; n < F::NT; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int j = slot0 + (lane >> 2) + (i >> 1) * 8, d = 8 * n + 2 * (lane & 3) + (i & 1);
            if (j >= c.S || d >= p.width) continue;
            if (STORE)
                at[(int64_t)j * width + d] = factor * x[n][i];
            else
                x[n][i] = factor * at[(int64_t)j * width + d];
        }
}

/* A warp's accumulators in the workspace. */
template <typename F>
static __device__ inline float4 *states_at(float *states, int64_t unit, const states_place &p, int D,
                                           int slot0)
{
    return fast_fragment_at(states + unit * 2 * F::SP * D, D, F::SP, p.side, slot0, p.column);
}

/* The slots before the segment, from what the earlier ones add. Those on entry are in `start` by then: the
 * caller's memory may already hold the slots on exit. */
template <typename F, bool DECAY>
static __device__ inline void states_join(float (&x)[F::NT][4], const bla_call &c, const fast_run &r,
                                          const states_place &p, int D, int slot0)
{
    const bool first = p.segment == 0;
    if (first && !c.in.k) return;
    for (int64_t unit = p.unit - p.segment; unit < p.unit + (first ? 1 : 0); unit++) {
        const float4 *from =
            first ? states_at<F>(r.start, p.index, p, D, slot0) : states_at<F>(r.states, unit, p, D, slot0);
        const float *keep = r.keeps + unit * F::SP + slot0 + ((threadIdx.x & 31) >> 2);
        float low = DECAY && !first ? keep[0] : 1.0f, high = DECAY && !first ? keep[8] : 1.0f;
#pragma unroll
        for (int n = 0; n < F::NT; n++) {
            float4 y = from[n * (F::SP / 16) * 32];
            x[n][0] = low * x[n][0] + y.x, x[n][1] = low * x[n][1] + y.y;
            x[n][2] = high * x[n][2] + y.z, x[n][3] = high * x[n][3] + y.w;
        }
    }
}

/* A warp's slots as bf16 to `saved`, through its own tile. */
template <typename F>
static __device__ inline void states_save(const float (&x)[F::NT][4], char *tile, bf16 *to, int D)
{
#pragma unroll
    for (int n = 0; n < F::NT; n++) tile_put<F::UW>(tile, 0, 8 * n, x[n]);
    __syncwarp();
    tile_store16<F::W>(tile, 0, to, D, 16, F::W);
}

/* grid: chains * r.segments * 2 * D / W blocks. */
template <int SP, int W, bool DECAY>
static __global__ void __launch_bounds__(2 * SP, 2) fast_states_kernel(bla_call c, fast_run r, int D)
{
    cuda_wait_previous();
    typedef states_form<SP, W> F;
    CUDA_DYNAMIC_SHARED(char, shared);
    const states_place p = states_place_of<F>(c, r, D);
    const int warp = threadIdx.x / 32, slot0 = 16 * warp, g = slot0 + ((threadIdx.x & 31) >> 2);
    char *copy = shared + F::STAGES * F::STAGE + warp * F::COPY;
    states_loader<F, DECAY> loader;
    float x[F::NT][4];
    loader.begin(c, r, p);
#pragma unroll
    for (int i = 0; i < F::STAGES - 1; i++) loader.load(shared + i * F::STAGE);
    tile_zero(x);
    if (r.segments > 1)
        states_join<F, DECAY>(x, c, r, p, D, slot0);
    else if (c.in.k)
        states_exchange<F, false>(x, c, p, c.in, slot0, DECAY ? ENTRY_UNIT : 1.0f);
    bf16 *to = r.saved + p.slots + (int64_t)slot0 * D;
    int now = 0, free = F::STAGES - 1; /* stages: at work, and left by the chunk before */
    for (int64_t chunk = p.from; chunk < p.to; chunk++, to += p.stride) {
        const char *stage = shared + now * F::STAGE;
        copy_async_wait<F::STAGES - 2>();
        __syncthreads();
        loader.load(shared + free * F::STAGE);
        states_save<F>(x, copy, to, D);
#pragma unroll
        for (int k = 0; k < CHUNK; k += 16) {
            uint32_t a[4];
            tile_a_trans<F::US>(a, stage, slot0, k);
            tile_mma<F::UW>(x, a, stage + F::TABLE, k, 0);
        }
        if (DECAY) {
            const float *keep = (const float *)(stage + F::TABLE + F::TOKENS) + g;
            float low = keep[0] * ENTRY_UNIT, high = keep[8] * ENTRY_UNIT;
#pragma unroll
            for (int n = 0; n < F::NT; n++) x[n][0] *= low, x[n][1] *= low, x[n][2] *= high, x[n][3] *= high;
        }
        free = now, now = now + 1 < F::STAGES ? now + 1 : 0;
    }
    copy_async_wait<0>();
    if (c.out.k && p.segment == r.segments - 1)
        states_exchange<F, true>(x, c, p, c.out, slot0, DECAY ? ENTRY_START : 1.0f);
}

template <int SP, int W>
static void states_launch(int D, const bla_call *call, const fast_run *run, cudaStream_t stream)
{
    typedef states_form<SP, W> F;
    int64_t blocks = call->chains * run->segments * 2 * (D / W);
    if (blocks <= 0) return;
    cuda_launch_early(run->early,
                      call->decay ? fast_states_kernel<SP, W, true> : fast_states_kernel<SP, W, false>,
                      dim3((unsigned)blocks), dim3(F::THREADS), F::SHARED, stream, *call, *run, D);
}

template <int SP>
static void states_launch_columns(int columns, int D, const bla_call *call, const fast_run *run,
                                  cudaStream_t stream)
{
    (columns == 16   ? states_launch<SP, 16>
     : columns == 32 ? states_launch<SP, 32>
                     : states_launch<SP, 64>)(D, call, run, stream);
}

void fast_states(const fast_kernels *k, int columns, const bla_call *call, const fast_run *run,
                 cudaStream_t stream)
{
    if (run->segments > 1) fast_increments(k, call, run, stream);
    (k->SP == 32   ? states_launch_columns<32>
     : k->SP == 64 ? states_launch_columns<64>
                   : states_launch_columns<128>)(columns, k->D, call, run, stream);
}
