/* What each part of all segments but the last adds to the slots, and what it keeps of them: the pass before
 * the slots can be taken through segments side by side. A block takes W columns of K and the same of V, so
 * that the table is loaded once for both, two chunks ahead. A warp has 16 slots and half the tokens of every
 * chunk; in the end the halves are added. */
#include "kernels/blurry/cuda_fast.cuh"

template <int SP_, int W_> struct increments_form {
    static constexpr int SP = SP_, W = W_, THREADS = 4 * SP, NT = W / 8;
    static constexpr int US = tile_units(SP), UW = tile_units(W);
    static constexpr int TABLE = tile_bytes(CHUNK, SP), TOKENS = tile_bytes(CHUNK, W), KEEP = SP * 4;
    static constexpr int STAGES = 3, STAGE = TABLE + 2 * TOKENS + KEEP, SHARED = STAGES * STAGE;
    static_assert(SHARED <= 231424 / 2 - 1024, "two blocks to a multiprocessor");
    static_assert(2 * SP * W * 4 <= SHARED, "room to add the halves");
};

/* The block's chunks and columns. */
struct increments_place {
    bla_chain chain;
    int64_t index, unit; /* of the chain; of the part among all */
    int64_t from, to;    /* chunks */
    int column;
    bool first; /* whether nothing of the chain comes before */
};
template <typename F>
static __device__ inline increments_place increments_place_of(const bla_call &c, const fast_run &r, int D)
{
    increments_place p;
    const uint32_t slices = (uint32_t)(D / F::W), parts = (uint32_t)r.parts,
                   units = (uint32_t)(r.segments - 1) * parts, block = blockIdx.x / slices;
    const uint32_t chain = block / units, unit = block % units;
    p.chain = bla_chain_of(c, chain), p.index = chain;
    p.unit = (int64_t)chain * r.segments * parts + unit;
    int64_t total = (p.chain.count + CHUNK - 1) / CHUNK, each = fast_part_chunks(r, p.chain);
    p.from = min(unit * each, total), p.to = min(p.from + each, total);
    p.column = (int)(blockIdx.x % slices) * F::W, p.first = unit == 0;
    return p;
}

/* Starts loading chunk after chunk: P, the columns of k and v, and what the slots keep. */
template <typename F, bool DECAY> struct increments_loader {
    fast_entries<DECAY> entries;
    tile_source<F::W, CHUNK, F::THREADS> k, v;
    int64_t left; /* tokens to come */
    int chunks;
    __device__ void begin(const bla_call &c, const fast_run &r, const increments_place &p)
    {
        const int64_t token = p.chain.first + p.from * CHUNK, row_k = c.Hkv * c.Dk, row_v = c.Hkv * c.Dv;
        const int column_k = p.column < c.Dk ? p.column : 0, column_v = p.column < c.Dv ? p.column : 0;
        entries.begin(c, r, p.chain, F::SP, p.from, false);
        k.begin((const bf16 *)c.k + token * row_k + p.chain.h * c.Dk + column_k, row_k, CHUNK * row_k,
                c.Dk - p.column);
        v.begin((const bf16 *)c.v + token * row_v + p.chain.h * c.Dv + column_v, row_v, CHUNK * row_v,
                c.Dv - p.column);
        left = p.chain.count - p.from * CHUNK, chunks = (int)(p.to - p.from);
    }
    __device__ void load(char *stage)
    {
        if (chunks > 0) {
            int n = (int)min((int64_t)CHUNK, left);
            const char *entry = entries.next();
            fast_table_load<F::SP, F::THREADS>(stage, entry);
            k.load(stage + F::TABLE, n), v.load(stage + F::TABLE + F::TOKENS, n);
            if (DECAY && threadIdx.x < F::SP / 4)
                copy_async16(stage + F::TABLE + 2 * F::TOKENS + 16 * threadIdx.x,
                             entry + 2 * entry_p_bytes(F::SP) + ((n - 1) * F::SP + 4 * threadIdx.x) * 4,
                             true);
            left -= CHUNK, chunks--;
        }
        copy_async_commit();
    }
};

/* A warp's slots, from the caller's memory and to the workspace. */
template <typename F>
static __device__ inline void increments_given(float (&x)[1][F::NT][4], const bla_call &c,
                                               const increments_place &p, int side, int slot0, float factor)
{
    const int width = side ? c.Dv : c.Dk;
    const float *from = side ? c.in.v + p.chain.b * c.in.stride_v : c.in.k + p.chain.b * c.in.stride_k;
    fast_corner at = {slot0, p.column};
    fast_slots_load(x, from + p.chain.h * c.S * width, c.S, width, at, factor);
}
template <typename F>
static __device__ inline void increments_store(const float (&x)[1][F::NT][4], float *state, int D, int side,
                                               int slot0, int column)
{
    float4 *to = fast_fragment_at(state, D, F::SP, side, slot0, column);
#pragma unroll
    for (int n = 0; n < F::NT; n++)
        to[n * (F::SP / 16) * 32] = make_float4(x[0][n][0], x[0][n][1], x[0][n][2], x[0][n][3]);
}

/* grid: chains * (r.segments - 1) * r.parts * D / W blocks. The slots on entry, part of what the first adds,
 * are left in r.start: the caller's memory may hold the slots on exit before all have read it. */
template <int SP, int W, bool DECAY>
static __global__ void __launch_bounds__(4 * SP, 1) fast_increments_kernel(bla_call c, fast_run r, int D)
{
    cuda_wait_previous();
    typedef increments_form<SP, W> F;
    CUDA_DYNAMIC_SHARED(char, shared);
    const increments_place p = increments_place_of<F>(c, r, D);
    const int warp = threadIdx.x / 32, half = warp / (SP / 16);
    const int slot0 = 16 * (warp % (SP / 16)), g = slot0 + ((threadIdx.x & 31) >> 2);
    increments_loader<F, DECAY> loader;
    loader.begin(c, r, p);
#pragma unroll
    for (int i = 0; i < F::STAGES - 1; i++) loader.load(shared + i * F::STAGE);
    float x[2][1][F::NT][4], kept[2] = {1.0f, 1.0f}; /* K and V */
    tile_zero(x[0][0]), tile_zero(x[1][0]);
    if (c.in.k && p.first && half == 0)
#pragma unroll
        for (int side = 0; side < 2; side++) {
            increments_given<F>(x[side], c, p, side, slot0, DECAY ? ENTRY_UNIT : 1.0f);
            increments_store<F>(x[side], r.start + p.index * 2 * SP * D, D, side, slot0, p.column);
        }
    int now = 0, free = F::STAGES - 1; /* stages: at work, and left by the chunk before */
    for (int chunks = (int)(p.to - p.from); chunks > 0; chunks--) {
        const char *stage = shared + now * F::STAGE, *tokens = stage + F::TABLE;
        copy_async_wait<F::STAGES - 2>();
        __syncthreads();
        loader.load(shared + free * F::STAGE);
#pragma unroll
        for (int i = 0; i < CHUNK / 2; i += 16) {
            const int k = half * (CHUNK / 2) + i;
            uint32_t a[4];
            tile_a_trans<F::US>(a, stage, slot0, k);
            tile_mma<F::UW>(x[0][0], a, tokens, k, 0);
            tile_mma<F::UW>(x[1][0], a, tokens + F::TOKENS, k, 0);
        }
        if (DECAY) {
            const float *keep = (const float *)(tokens + 2 * F::TOKENS) + g;
            float end[1][2] = {{keep[0] * ENTRY_UNIT, keep[8] * ENTRY_UNIT}};
            kept[0] *= end[0][0], kept[1] *= end[0][1];
            fast_rows_scale(x[0], end), fast_rows_scale(x[1], end);
        }
        free = now, now = now + 1 < F::STAGES ? now + 1 : 0;
    }
    copy_async_wait<0>();
    __syncthreads();
    float4 *handed = (float4 *)shared + (threadIdx.x % (2 * SP)); /* [2, W / 8, 2 SP] */
    if (half == 1) {
#pragma unroll
        for (int i = 0; i < 2 * F::NT; i++) {
            const float *y = x[i / F::NT][0][i % F::NT];
            handed[i * 2 * SP] = make_float4(y[0], y[1], y[2], y[3]);
        }
    }
    __syncthreads();
    if (half == 1) return;
#pragma unroll
    for (int i = 0; i < 2 * F::NT; i++) {
        float *y = x[i / F::NT][0][i % F::NT];
        const float4 z = handed[i * 2 * SP];
        y[0] += z.x, y[1] += z.y, y[2] += z.z, y[3] += z.w;
    }
#pragma unroll
    for (int side = 0; side < 2; side++)
        increments_store<F>(x[side], r.states + p.unit * 2 * SP * D, D, side, slot0, p.column);
    if (DECAY && p.column == 0 && (threadIdx.x & 3) == 0)
        r.keeps[p.unit * SP + g] = kept[0], r.keeps[p.unit * SP + g + 8] = kept[1];
}

template <int SP, int W>
static void increments_launch(int D, const bla_call *call, const fast_run *run, cudaStream_t stream)
{
    typedef increments_form<SP, W> F;
    int64_t blocks = call->chains * (run->segments - 1) * run->parts * (D / W);
    if (blocks <= 0) return;
    cuda_launch_early(
        run->early, call->decay ? fast_increments_kernel<SP, W, true> : fast_increments_kernel<SP, W, false>,
        dim3((unsigned)blocks), dim3(F::THREADS), F::SHARED, stream, *call, *run, D);
}

template <int SP>
static void increments_launch_columns(int D, const bla_call *call, const fast_run *run, cudaStream_t stream)
{
    (D == 32 ? increments_launch<SP, 32> : increments_launch<SP, 64>)(D, call, run, stream);
}

void fast_increments(const fast_kernels *k, const bla_call *call, const fast_run *run, cudaStream_t stream)
{
    (k->SP == 32   ? increments_launch_columns<32>
     : k->SP == 64 ? increments_launch_columns<64>
                   : increments_launch_columns<128>)(k->D, call, run, stream);
}
