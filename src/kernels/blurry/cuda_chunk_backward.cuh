/* Backward pass of the float kernels. Formulas: simd_backward.h and docs/operator.md. */
#ifndef BLURRY_KERNELS_BLURRY_CUDA_CHUNK_BACKWARD_CUH
#define BLURRY_KERNELS_BLURRY_CUDA_CHUNK_BACKWARD_CUH
#include "kernels/blurry/cuda_chunk_forward.cuh"
#include "kernels/blurry/cuda_chunk_period.cuh"

/* Gradient of the logits, p (d_p - <p, d_p>) scale, from y = d_p and the probabilities in the tile `weights`;
 * times c into the tile `rows`, and the probabilities times c in place. Threads touch their own elements of
 * `weights` only. */
template <int M>
static __device__ inline void chunk_d_logits(float (&y)[4][M], float *weights, float *rows, const bla_call &c,
                                             const chunk_place &p)
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float scale[M], w[M], mean = 0.0f;
        float *mine = weights + (threadIdx.x / 16 * 4 + i) * product_ld(16 * M);
        chunk_c(scale, c, p, i);
        product_row(w, mine);
#pragma unroll
        for (int j = 0; j < M; j++) {
            y[i][j] *= scale[j];
            mean += w[j] * y[i][j];
        }
        mean = chunk_row_sum(mean);
#pragma unroll
        for (int j = 0; j < M; j++) {
            y[i][j] = w[j] * (y[i][j] - mean) * c.scale * scale[j];
            w[j] *= scale[j];
        }
#pragma unroll
        for (int j = 0; j < M; j += 4) product_put(mine + product_column<M>(j), w + j, 4);
    }
    product_to_tile<false>(rows, product_ld(16 * M), y);
}

/* Notes the rows for the period's gradient: dX in x, p in its tile, both times c. Threads have the elements
 * they wrote. */
template <int SP>
static __device__ inline void chunk_note(const float (&x)[4][SP / 16], const float *weights, int head,
                                         const chunk_place &p)
{
    product_store(chunk_noted<SP>(p, head, 0), x, false);
    float w[4][SP / 16];
#pragma unroll
    for (int i = 0; i < 4; i++) product_row(w[i], weights + (threadIdx.x / 16 * 4 + i) * product_ld(SP));
    product_store(chunk_noted<SP>(p, head, 1), w, false);
}

/* What one side's rows (dX or p, times c) give: d_tokens = inner^T left, pull = rows^T left. `add`: to what
 * the earlier heads gave. */
template <int D, int SP, typename E>
static __device__ inline void chunk_outer(const bla_call &c, const chunk_place &p, const float *rows,
                                          const float *inner, const product_matrix<E> &left, int side,
                                          bool add, product_slabs &s)
{
    {
        float x[4][D / 16];
        product_zero(x);
        product<D, true, false>(x, inner, product_ld(CHUNK_TOKENS), left, CHUNK_TOKENS, s);
        product_store(chunk_tokens<E>(c, p, c.d_k, c.d_v, side), x, add);
    }
    for (int slot0 = 0; slot0 < SP; slot0 += 64) {
        float x[4][D / 16];
        product_zero(x);
        product<D, true, false>(x, rows + slot0, product_ld(SP), left, CHUNK_TOKENS, s);
        product_matrix<float> to = chunk_slots<D, SP>(p.pull, side, slot0);
        product_store(to, x, add);
    }
}

/* All query heads of a group, one after another. grid: chunks. */
template <int D, int SP, typename E>
static __global__ void __launch_bounds__(CHUNK_THREADS, chunk_blocks(chunk_form<D, SP>::GRADIENTS))
    chunk_gradients_kernel(bla_call c, chunk_run r)
{
    typedef chunk_form<D, SP> F;
    CUDA_DYNAMIC_SHARED(float, shared);
    float *rows = shared, *weights = shared + F::WIDEST; /* rows: at first q, then d_o, then dX */
    float *inner = weights + F::ROWS;
    product_slabs slabs = {inner + F::INNER, F::SLAB_ROWS, 0};
    chunk_place p;
    if (!chunk_place_of<D, SP>(c, r, blockIdx.x, &p)) return;
    for (int i = 0; i < c.group; i++) {
        const int64_t head = p.chain.h * c.group + i;
        const product_matrix<E> q = chunk_rows<E>(p, c.q, c.H, head, c.Dk),
                                d_o = chunk_rows<E>(p, c.d_o, c.H, head, c.Dv);
        float x[4][SP / 16];
        product_load_tile<D>(rows, q);
        chunk_against<D, SP>(x, rows, inner, chunk_tokens<E>(c, p, c.k, c.v, 0),
                             chunk_slots<D, SP>(p.state, 0, 0), p, slabs);
        product_load_tile<D>(rows, d_o);
        chunk_softmax(x, c, p);
        product_to_tile<false>(weights, product_ld(SP), x);
        chunk_against<D, SP>(x, rows, inner, chunk_tokens<E>(c, p, c.k, c.v, 1),
                             chunk_slots<D, SP>(p.state, 1, 0), p, slabs);
        chunk_d_logits(x, weights, rows, c, p);
        if (p.rows) chunk_note<SP>(x, weights, i, p);
        chunk_onto<SP>(inner, rows, p, slabs);
        float d_q[4][D / 16];
        product_zero(d_q);
        product<D, false, false>(d_q, rows, product_ld(SP), chunk_slots<D, SP>(p.state, 0, 0), SP, slabs);
        product<D, false, false>(d_q, inner, product_ld(CHUNK_TOKENS), chunk_tokens<E>(c, p, c.k, c.v, 0),
                                 CHUNK_TOKENS, slabs);
        product_store(chunk_rows<E>(p, c.d_q, c.H, head, c.Dk), d_q, false);
        chunk_outer<D, SP>(c, p, rows, inner, q, 0, i > 0, slabs);
        chunk_onto<SP>(inner, weights, p, slabs);
        chunk_outer<D, SP>(c, p, weights, inner, d_o, 1, i > 0, slabs);
    }
}

/* d_k or d_v += P times the gradient of the slots after the chunk. grid: chunks, times 2 sides. */
template <int D, int SP, typename E>
static __global__ void __launch_bounds__(CHUNK_THREADS, 2) chunk_through_kernel(bla_call c, chunk_run r)
{
    typedef chunk_form<D, SP> F;
    CUDA_DYNAMIC_SHARED(float, shared);
    product_slabs slabs = {shared + F::ROWS, F::SLAB_D, 0};
    const int side = blockIdx.x % 2;
    chunk_place p;
    if (!chunk_place_of<D, SP>(c, r, blockIdx.x / 2, &p)) return;
    product_load_tile<SP>(shared, chunk_table<SP>(p, 0));
    float x[4][D / 16];
    product_zero(x);
    product<D, false, false>(x, shared, product_ld(SP), chunk_slots<D, SP>(p.pull, side, 0), SP, slabs);
    product_store(chunk_tokens<E>(c, p, c.d_k, c.d_v, side), x, true);
}

/* ---- instances: included by cuda_chunk_<width>.cu, so that the widths compile side by side ---- */

template <int D, int SP, typename E>
static void chunk_launch(const bla_call *call, const chunk_run *run, chunk_pass pass, cudaStream_t stream)
{
    typedef chunk_form<D, SP> F;
    int64_t chunks = run->sequences * call->Hkv * run->span;
    switch (pass) {
    case CHUNK_ADDS:
        cuda_launch(chunk_adds_kernel<D, SP, E>, dim3((unsigned)(chunks * (SP / 32))), dim3(CHUNK_THREADS),
                    F::ADDS, stream, *call, *run);
        break;
    case CHUNK_READ:
        cuda_launch(chunk_read_kernel<D, SP, E>, dim3((unsigned)(chunks * call->group)), dim3(CHUNK_THREADS),
                    F::READ, stream, *call, *run);
        break;
    case CHUNK_GRADIENTS:
        cuda_launch(chunk_gradients_kernel<D, SP, E>, dim3((unsigned)chunks), dim3(CHUNK_THREADS),
                    F::GRADIENTS, stream, *call, *run);
        break;
    case CHUNK_THROUGH:
        cuda_launch(chunk_through_kernel<D, SP, E>, dim3((unsigned)(chunks * 2)), dim3(CHUNK_THREADS),
                    F::THROUGH, stream, *call, *run);
        break;
    case CHUNK_PERIOD:
        cuda_launch(chunk_period_kernel<D, SP, E>,
                    dim3((unsigned)(chunks * (SP / chunk_period_form<D>::SLOTS))), dim3(CHUNK_THREADS),
                    chunk_period_form<D>::BYTES, stream, *call, *run);
        break;
    }
}

template <int D> static const chunk_kernels *chunk_kernels_of(int slots, bool is_bf16)
{
    enum { PERIOD = chunk_period_form<D>::SLOTS };
    static const chunk_kernels all[2][3] = {{{D, 64, PERIOD, chunk_launch<D, 64, float>},
                                             {D, 128, PERIOD, chunk_launch<D, 128, float>},
                                             {D, 256, PERIOD, chunk_launch<D, 256, float>}},
                                            {{D, 64, PERIOD, chunk_launch<D, 64, bf16>},
                                             {D, 128, PERIOD, chunk_launch<D, 128, bf16>},
                                             {D, 256, PERIOD, chunk_launch<D, 256, bf16>}}};
    return &all[is_bf16][slots == 64 ? 0 : slots == 128 ? 1 : 2];
}

#endif
