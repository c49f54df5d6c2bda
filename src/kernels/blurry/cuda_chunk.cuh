/* What the float kernels of both passes share: places, tables, one chunk's rows against the slots.
 *
 * Tables of a chunk (what depends on positions only), float: P [64, SP] and, with decay, c [64, SP]. Without
 * decay P = phi. With decay W[t,u,j] = c_t[j] P[u,j], P = phi / c, with c the running product of the gates
 * from 2^60 on, and what the slots before the chunk keep is c_t[j] 2^-60: one factor for both, since states
 * are kept times 2^-60. A gate of 0 (a token on the slot's centre) is raised to 2^-30, less than float
 * rounds. Where c would leave the range of float the plain kernels do the work (chunk_find). Where the
 * period's gradient is wanted, d phi / d T / c [64, SP] follows. Internal to kernels/blurry/cuda_chunk*. */
#ifndef BLURRY_KERNELS_BLURRY_CUDA_CHUNK_CUH
#define BLURRY_KERNELS_BLURRY_CUDA_CHUNK_CUH
#include "kernels/blurry/cuda_chunk_product.cuh"

#define CHUNK_START      0x1p60f
#define CHUNK_UNIT       0x1p-60f
#define CHUNK_GATE_LEAST 0x1p-30f

static inline __host__ __device__ int64_t chunk_entry_floats(int SP, int decay, bool period)
{
    return (int64_t)CHUNK_TOKENS * SP * ((decay ? 2 : 1) + (period ? 1 : 0));
}

/* Rows dX and p of one query head, times c. */
static inline __host__ __device__ int64_t chunk_rows_floats(int SP)
{
    return 2 * (int64_t)CHUNK_TOKENS * SP;
}

/* The entry of a chunk of the window. */
static __device__ inline const float *chunk_entry(const bla_call &c, const chunk_run &r, const bla_chain &x,
                                                  int64_t chunk, int SP)
{
    int64_t sequence = c.positions ? x.b - r.sequence0 : 0;
    int64_t at = (sequence * r.periods + c.periods[x.h].index) * r.span + chunk - r.chunk0;
    return r.entries + at * chunk_entry_floats(SP, c.decay, r.rows != NULL);
}

/* Index of a chunk's state. Of all: floor(first / 64) + b chunks of every head lie before sequence b. */
static __device__ inline int64_t chunk_index(const bla_call &c, const chunk_run &r, const bla_chain &x,
                                             int64_t chunk, bool every)
{
    if (every) return (x.first / CHUNK_TOKENS + x.b + chunk) * c.Hkv + x.h;
    return ((x.b - r.sequence0) * c.Hkv + x.h) * r.span + chunk - r.chunk0;
}

/* One chunk of one chain. */
struct chunk_place {
    bla_chain chain;
    int64_t chunk, token; /* index of its first token */
    int n;                /* tokens */
    const float *P, *c;
    float *state, *pull;
    float *rows; /* where the period's gradient is wanted */
};

/* Block `block` of as many as the window has chunks; false where the sequence has ended. */
template <int D, int SP>
static __device__ inline bool chunk_place_of(const bla_call &c, const chunk_run &r, int64_t block,
                                             chunk_place *p)
{
    p->chain = bla_chain_of(c, r.sequence0 * c.Hkv + block / r.span);
    p->chunk = r.chunk0 + block % r.span;
    int64_t start = p->chunk * CHUNK_TOKENS;
    if (start >= p->chain.count) return false;
    p->token = p->chain.first + start;
    p->n = (int)min((int64_t)CHUNK_TOKENS, p->chain.count - start);
    p->P = chunk_entry(c, r, p->chain, p->chunk, SP);
    p->c = p->P + CHUNK_TOKENS * SP;
    p->state = r.states + chunk_index(c, r, p->chain, p->chunk, r.every) * (2 * SP * D);
    p->pull = r.pulls + chunk_index(c, r, p->chain, p->chunk, false) * (2 * SP * D);
    p->rows = r.rows ? r.rows + block * c.group * chunk_rows_floats(SP) : NULL;
    return true;
}

/* ---- matrices ---- */

/* The chunk's rows of a tensor [tokens, heads, width]. */
template <typename E>
static __device__ inline product_matrix<E> chunk_rows(const chunk_place &p, const void *tensor, int64_t heads,
                                                      int64_t head, int width)
{
    product_matrix<E> m = {(const E *)tensor + (p.token * heads + head) * width, (int)heads * width, p.n,
                           width};
    return m;
}
/* k (side 0) or v, and the like. */
template <typename E>
static __device__ inline product_matrix<E> chunk_tokens(const bla_call &c, const chunk_place &p,
                                                        const void *k, const void *v, int side)
{
    return chunk_rows<E>(p, side ? v : k, c.Hkv, p.chain.h, side ? c.Dv : c.Dk);
}
/* Slots of K (side 0) or V, or of their gradient, from slot `from` on. */
template <int D, int SP>
static __device__ inline product_matrix<float> chunk_slots(const float *state, int side, int from)
{
    product_matrix<float> m = {state + (side * SP + from) * D, D, SP - from, D};
    return m;
}
template <int SP> static __device__ inline product_matrix<float> chunk_table(const chunk_place &p, int from)
{
    product_matrix<float> m = {p.P + from, SP, CHUNK_TOKENS, SP - from};
    return m;
}

/* The noted rows of a head of the group: dX (side 0) or p. */
template <int SP>
static __device__ inline product_matrix<float> chunk_noted(const chunk_place &p, int head, int side)
{
    product_matrix<float> m = {p.rows + (2 * head + side) * (CHUNK_TOKENS * SP), SP, CHUNK_TOKENS, SP};
    return m;
}

/* ---- rows of slots: x[i][j] belongs to token 4 ty + i and slot product_column(j) ---- */

/* x = left slots^T + causal(left tokens^T) P, still without c: logits from q and K, gradients of
 * probabilities from d_o and V. `left` is a tile that nothing reads after the call. */
template <int D, int SP, typename E>
static __device__ inline void
chunk_against(float (&x)[4][SP / 16], const float *left, float *inner, const product_matrix<E> &tokens,
              const product_matrix<float> &slots, const chunk_place &p, product_slabs &s)
{
    constexpr int ld = product_ld(CHUNK_TOKENS);
    {
        float a[4][CHUNK_TOKENS / 16];
        product_zero(a);
        product<CHUNK_TOKENS, false, true>(a, left, product_ld(D), tokens, D, s);
        product_to_tile<true>(inner, ld, a);
    }
    product_zero(x);
    product<SP, false, true>(x, left, product_ld(D), slots, D, s);
    product<SP, false, false>(x, inner, ld, chunk_table<SP>(p, 0), CHUNK_TOKENS, s);
}

/* The causal part of rows P^T, into the inner tile. */
template <int SP>
static __device__ inline void chunk_onto(float *inner, const float *rows, const chunk_place &p,
                                         product_slabs &s)
{
    float a[4][CHUNK_TOKENS / 16];
    product_zero(a);
    product<CHUNK_TOKENS, false, true>(a, rows, product_ld(SP), chunk_table<SP>(p, 0), SP, s);
    product_to_tile<true>(inner, product_ld(CHUNK_TOKENS), a);
}

/* c of row i, as x; 1 without decay. */
template <int M>
static __device__ inline void chunk_c(float (&y)[M], const bla_call &c, const chunk_place &p, int i)
{
    if (c.decay) {
        product_row(y, p.c + (threadIdx.x / 16 * 4 + i) * (16 * M));
    } else {
#pragma unroll
        for (int j = 0; j < M; j++) y[j] = 1.0f;
    }
}

/* Sums and maxima over the 16 threads of a row. */
static __device__ inline float chunk_row_sum(float x)
{
#pragma unroll
    for (int step = 8; step > 0; step /= 2) x += __shfl_xor_sync(CUDA_FULL_WARP, x, step);
    return x;
}
static __device__ inline float chunk_row_max(float x)
{
#pragma unroll
    for (int step = 8; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(CUDA_FULL_WARP, x, step));
    return x;
}

/* x becomes the probabilities. */
template <int M>
static __device__ inline void chunk_softmax(float (&x)[4][M], const bla_call &c, const chunk_place &p)
{
    const bla_period *period = c.periods + p.chain.h;
    const int64_t t0 = p.chain.position + p.chunk * CHUNK_TOKENS + threadIdx.x / 16 * 4;
    const bool early = t0 < period->all_visible;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float y[M], top = -INFINITY, sum = 0.0f;
        chunk_c(y, c, p, i);
#pragma unroll
        for (int j = 0; j < M; j++) {
            int slot = product_column<M>(j);
            bool hidden = slot >= c.S || (early && t0 + i < period->visible[slot]);
            x[i][j] = hidden ? -INFINITY : c.scale * (y[j] * x[i][j]);
            top = fmaxf(top, x[i][j]);
        }
        top = chunk_row_max(top);
#pragma unroll
        for (int j = 0; j < M; j++) x[i][j] = expf(x[i][j] - top), sum += x[i][j];
        sum = 1.0f / chunk_row_sum(sum);
#pragma unroll
        for (int j = 0; j < M; j++) x[i][j] *= sum;
    }
}

#endif
