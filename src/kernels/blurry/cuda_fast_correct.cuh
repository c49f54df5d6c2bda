/* The pass that joins the segments of a backward pass: what the gradient of the slots after a segment,
 * unknown while the segments were worked on side by side, adds to d_k and d_v of its tokens. */
#ifndef BLURRY_KERNELS_BLURRY_CUDA_FAST_CORRECT_CUH
#define BLURRY_KERNELS_BLURRY_CUDA_FAST_CORRECT_CUH
#include "kernels/blurry/cuda_fast_backward.cuh"

/* What the slots after a segment add to d_k and d_v of its tokens: tiles of P, the slots' gradient, rows to
 * store. */
template <int D_, int SP_> struct correct_form {
    static constexpr int SLOTS = tile_bytes(SP_, D_), TABLE = tile_bytes(CHUNK, SP_),
                         TOKENS = tile_bytes(CHUNK, D_);
    static constexpr int STAGE = TABLE + 2 * TOKENS, SHARED = 2 * SLOTS + 2 * STAGE;
};

/* The gradient of the slots after the part, from what the later segments add to it. */
template <typename F, bool DECAY>
static __device__ inline void correct_begin(const fast_run &r, const fast_place &p, int side,
                                            fast_corner corner, float (&x)[F::MT][F::NS][4])
{
    const int64_t floats = 2 * F::SP * F::D, first = p.unit - p.part; /* the segment's first unit */
#pragma unroll
    for (int m = 0; m < F::MT; m++) tile_zero(x[m]);
    for (int64_t s = r.scanned ? p.segment : r.segments - 1; s >= p.segment + (r.scanned ? 0 : 1); s--) {
        int64_t at = first + (s - p.segment) * r.parts;
        if (DECAY && !r.scanned && s < r.segments - 1)
            for (int64_t i = 0; i < r.parts; i++) fast_keep_scale(x, r.keeps + (at + i) * F::SP, corner);
        fast_state_add<F::D, F::SP>(x, r.states + at * floats, side, corner);
    }
    if (DECAY)
        for (int64_t i = p.part + 1; i < r.parts; i++)
            fast_keep_scale(x, r.keeps + (first + i) * F::SP, corner);
}

/* x += 16 rows of a tile. */
template <int U, int NT>
static __device__ inline void correct_add(float (&x)[NT][4], const char *tile, int row0)
{
    int lane = threadIdx.x & 31, g = row0 + (lane >> 2), q = (lane & 3) * 4;
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float2 y = unpack_bf16(*(const uint32_t *)(tile + tile_at<U>(g + 8 * half, n) + q));
            x[n][2 * half] += y.x, x[n][2 * half + 1] += y.y;
        }
}

/* One side's rows of d_k or d_v. */
static __device__ inline bf16 *correct_rows(const bla_call &c, const fast_place &p, int64_t chunk, int side)
{
    int64_t token = (p.chain.first + chunk * CHUNK) * c.Hkv + p.chain.h;
    return side ? (bf16 *)c.d_v + token * c.Dv : (bf16 *)c.d_k + token * c.Dk;
}

/* Starts loading a chunk's P, d_k and d_v; returns its table entry. */
template <int D, int SP, bool DECAY>
static __device__ inline const char *correct_load(const bla_call &c, const fast_run &r, const fast_place &p,
                                                  int64_t chunk, char *at, int stage)
{
    typedef correct_form<D, SP> M;
    const int side = threadIdx.x / 128, width = side ? c.Dv : c.Dk;
    int n = (int)min((int64_t)CHUNK, p.chain.count - chunk * CHUNK);
    const char *entry = fast_entry<DECAY>(c, r, p, SP, chunk, stage, at, 256);
    tile_load<SP, CHUNK, 256>(at, (const bf16 *)entry, SP, CHUNK, SP, threadIdx.x);
    tile_load<D, CHUNK, 128>(at + M::TABLE + side * M::TOKENS, correct_rows(c, p, chunk, side), c.Hkv * width,
                             n, width, threadIdx.x & 127);
    copy_async_commit();
    return entry;
}

/* grid: chains * (r.segments - 1) * r.parts blocks. The first part of each chain also stores the gradient of
 * the slots on entry. */
template <int D, int SP, bool DECAY>
static __global__ void __launch_bounds__(256, (backward_form<D, SP>::BLOCKS))
    fast_correct_kernel(bla_call c, fast_run r)
{
    typedef backward_form<D, SP> F;
    typedef correct_form<D, SP> M;
    CUDA_DYNAMIC_SHARED(char, shared);
    const fast_place p = fast_place_of(c, r, blockIdx.x, r.segments - 1, true);
    const int side = threadIdx.x / 128, rows = threadIdx.x / 32 % 4;
    const fast_corner corner = fast_corner_of<D, SP>(rows);
    const int width = side ? c.Dv : c.Dk;
    const float unit = DECAY ? ENTRY_UNIT : 1.0f;
    char *d_slots = shared + side * M::SLOTS, *stages = shared + 2 * M::SLOTS;
    float x[F::MT][F::NS][4];
    const char *next = p.from < p.to ? correct_load<D, SP, DECAY>(c, r, p, p.to - 1, stages, 0) : NULL;
    correct_begin<F, DECAY>(r, p, side, corner, x);
    float end[F::MT][2]; /* what the slots keep over the chunk: fetched one chunk ahead */
    if (DECAY && p.from < p.to)
        fast_keep(next, SP, (int)min((int64_t)CHUNK, p.chain.count - (p.to - 1) * CHUNK), corner, end);
    for (int64_t chunk = p.to - 1; chunk >= p.from; chunk--) {
        int stage = (int)((p.to - 1 - chunk) & 1),
            n = (int)min((int64_t)CHUNK, p.chain.count - chunk * CHUNK);
        char *table = stages + stage * M::STAGE, *tile = table + M::TABLE + side * M::TOKENS;
        if (DECAY) fast_rows_scale(x, end);
        if (DECAY || chunk == p.to - 1) fast_copy_out<D>(x, d_slots, corner);
        copy_async_wait<0>();
        __syncthreads();
        if (chunk > p.from) {
            next = correct_load<D, SP, DECAY>(c, r, p, chunk - 1, stages + (1 - stage) * M::STAGE, 1 - stage);
            if (DECAY) fast_keep(next, SP, CHUNK, corner, end);
        }
        float y[F::NT][4];
        tile_zero(y);
        backward_through<F>(y, table, d_slots, rows);
        correct_add<F::UD>(y, tile, 16 * rows);
        backward_store<F>(y, tile, rows, correct_rows(c, p, chunk, side), c.Hkv * width, n, width);
        __syncthreads();
    }
    if (p.segment > 0 || p.part > 0 || !c.d_in.k) return;
    float *to = side ? c.d_in.v + p.chain.b * c.d_in.stride_v + p.chain.h * c.S * c.Dv
                     : c.d_in.k + p.chain.b * c.d_in.stride_k + p.chain.h * c.S * c.Dk;
    if (r.scanned) {
#pragma unroll
        for (int m = 0; m < F::MT; m++) tile_zero(x[m]);
    }
    fast_state_add<D, SP>(x, r.scanned ? r.start + p.index * 2 * SP * D : r.states + p.unit * 2 * SP * D,
                          side, corner);
    fast_slots_store(x, to, c.S, width, corner, unit);
}

#endif
