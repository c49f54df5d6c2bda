/* Forward pass of the float kernels: what chunks add to the slots, and the outputs. */
#ifndef BLURRY_KERNELS_BLURRY_CUDA_CHUNK_FORWARD_CUH
#define BLURRY_KERNELS_BLURRY_CUDA_CHUNK_FORWARD_CUH
#include "kernels/blurry/cuda_chunk.cuh"

static constexpr int chunk_larger(int a, int b)
{
    return a > b ? a : b;
}
/* Blocks on a multiprocessor by shared memory; two suffice to cover each other's waits. */
static constexpr int chunk_blocks(int bytes)
{
    return 2 * (bytes + 1024) <= 233472 ? 2 : 1;
}

/* Shared memory of the kernels, in floats. */
template <int D, int SP> struct chunk_form {
    static constexpr int LEFT = CHUNK_TOKENS * product_ld(D), ROWS = CHUNK_TOKENS * product_ld(SP);
    static constexpr int INNER = CHUNK_TOKENS * product_ld(CHUNK_TOKENS);
    static constexpr int SLAB_D = SLAB * D,
                         SLAB_ROWS = SLAB * chunk_larger(chunk_larger(SP, D), CHUNK_TOKENS);
    static constexpr int WIDEST = chunk_larger(LEFT, ROWS); /* the left tile, then rows in its place */
    static constexpr int ADDS = 4 * (INNER + 2 * SLAB_D);
    static constexpr int READ = 4 * (WIDEST + INNER + 2 * SLAB_ROWS);
    static constexpr int GRADIENTS = 4 * (WIDEST + ROWS + INNER + 2 * SLAB_ROWS);
    static constexpr int THROUGH = 4 * (ROWS + 2 * SLAB_D);
    static_assert(GRADIENTS <= 231424, "shared memory");
};

/* P^T tokens for 64 slots of K or V. grid: chunks, times SP / 64, times 2 sides. */
template <int D, int SP, typename E>
static __global__ void __launch_bounds__(CHUNK_THREADS, 2) chunk_adds_kernel(bla_call c, chunk_run r)
{
    typedef chunk_form<D, SP> F;
    CUDA_DYNAMIC_SHARED(float, shared);
    product_slabs slabs = {shared + F::INNER, F::SLAB_D, 0};
    const int side = blockIdx.x % 2, slot0 = blockIdx.x / 2 % (SP / 64) * 64;
    chunk_place p;
    if (!chunk_place_of<D, SP>(c, r, blockIdx.x / (SP / 32), &p)) return;
    product_load_tile<64>(shared, chunk_table<SP>(p, slot0));
    float x[4][D / 16];
    product_zero(x);
    product<D, true, false>(x, shared, product_ld(64), chunk_tokens<E>(c, p, c.k, c.v, side), CHUNK_TOKENS,
                            slabs);
    product_store(chunk_slots<D, SP>(p.state, side, slot0), x, false);
}

/* Outputs of one query head. grid: chunks, times the heads of a group. */
template <int D, int SP, typename E>
static __global__ void __launch_bounds__(CHUNK_THREADS, chunk_blocks(chunk_form<D, SP>::READ))
    chunk_read_kernel(bla_call c, chunk_run r)
{
    typedef chunk_form<D, SP> F;
    CUDA_DYNAMIC_SHARED(float, shared);
    float *rows = shared, *inner = shared + F::WIDEST; /* rows: at first the queries */
    product_slabs slabs = {inner + F::INNER, F::SLAB_ROWS, 0};
    chunk_place p;
    if (!chunk_place_of<D, SP>(c, r, blockIdx.x / c.group, &p)) return;
    const int64_t head = p.chain.h * c.group + blockIdx.x % c.group;
    product_load_tile<D>(rows, chunk_rows<E>(p, c.q, c.H, head, c.Dk));
    {
        float x[4][SP / 16];
        chunk_against<D, SP>(x, rows, inner, chunk_tokens<E>(c, p, c.k, c.v, 0),
                             chunk_slots<D, SP>(p.state, 0, 0), p, slabs);
        chunk_softmax(x, c, p);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float y[SP / 16];
            chunk_c(y, c, p, i);
#pragma unroll
            for (int j = 0; j < SP / 16; j++) x[i][j] *= y[j];
        }
        product_to_tile<false>(rows, product_ld(SP), x);
    }
    chunk_onto<SP>(inner, rows, p, slabs);
    float o[4][D / 16];
    product_zero(o);
    product<D, false, false>(o, rows, product_ld(SP), chunk_slots<D, SP>(p.state, 1, 0), SP, slabs);
    product<D, false, false>(o, inner, product_ld(CHUNK_TOKENS), chunk_tokens<E>(c, p, c.k, c.v, 1),
                             CHUNK_TOKENS, slabs);
    product_store(chunk_rows<E>(p, c.o, c.H, head, c.Dv), o, false);
}

#endif
