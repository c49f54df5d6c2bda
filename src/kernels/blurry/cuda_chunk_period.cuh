/* The gradient by the period in the float kernels. Formulas: simd_period.h and docs/operator.md.
 *
 * d_phi_s[j] = <lambda_s[j], token_s - decay slot_{s-1}[j]> for K and V, with lambda the gradient of the slot
 * after token s. Both run through a chunk without a product of gates (cuda_chunk.cuh): with X_s = state +
 * sum_{u<s} P_u token_u the slot before s is c_{s-1} X_s, and with Y_s = pull + sum_{t>=s} rows_t left_t
 * (rows: dX or p, times c) the gradient is Y_s / c_s. Y goes backwards, so X is found first, kept every 16
 * tokens, and found again from there for 8 tokens at a time. Nothing is divided by a gate. */
#ifndef BLURRY_KERNELS_BLURRY_CUDA_CHUNK_PERIOD_CUH
#define BLURRY_KERNELS_BLURRY_CUDA_CHUNK_PERIOD_CUH
#include "kernels/blurry/cuda_chunk.cuh"

/* Threads have two slots by four columns. */
template <int D> struct chunk_period_form {
    enum {
        LANES = D / 4, /* threads that share their slots; neighbours in a warp */
        SLOTS = 2 * CHUNK_THREADS / LANES,
        PAIRS = SLOTS / 2,
        TILE = CHUNK_TOKENS * product_ld(D),
        KEPT = 3 * 2 * CHUNK_THREADS, /* float4 */
        BYTES = 4 * (2 * TILE + 4 * CHUNK_TOKENS * SLOTS) + 16 * KEPT
    };
};

/* A block's shared memory. */
template <int D> struct chunk_period_room {
    float *tokens, *left; /* [64, ld] k and q, or v and d_o */
    float4 *gates;        /* [64, PAIRS] P_s of two slots, then c_{s-1} */
    float2 *rows;         /* [64, PAIRS] */
    float *d_phi;         /* [64, SLOTS] times c_s */
    float4 *kept;         /* [3, 2, threads] X at tokens 16, 32, 48 */
};

template <int D> static __device__ inline chunk_period_room<D> chunk_period_carve(float *shared)
{
    typedef chunk_period_form<D> F;
    chunk_period_room<D> m;
    m.tokens = shared, m.left = m.tokens + F::TILE;
    m.gates = (float4 *)(m.left + F::TILE);
    m.kept = m.gates + CHUNK_TOKENS * F::PAIRS;
    m.rows = (float2 *)(m.kept + F::KEPT);
    m.d_phi = (float *)(m.rows + CHUNK_TOKENS * F::PAIRS);
    return m;
}

/* x += factor y for two slots. */
static __device__ inline void chunk_period_add(float4 (&x)[2], float first, float second, const float4 &y)
{
    x[0].x = fmaf(first, y.x, x[0].x), x[0].y = fmaf(first, y.y, x[0].y);
    x[0].z = fmaf(first, y.z, x[0].z), x[0].w = fmaf(first, y.w, x[0].w);
    x[1].x = fmaf(second, y.x, x[1].x), x[1].y = fmaf(second, y.y, x[1].y);
    x[1].z = fmaf(second, y.z, x[1].z), x[1].w = fmaf(second, y.w, x[1].w);
}

/* Writes COUNT tokens from `from` on into X. */
template <int D, int COUNT>
static __device__ inline void chunk_period_write(float4 (&x)[2], const chunk_period_room<D> &m, int from)
{
    typedef chunk_period_form<D> F;
    const int lane = threadIdx.x % F::LANES, pair = threadIdx.x / F::LANES;
#pragma unroll 8
    for (int s = from; s < from + COUNT; s++) {
        float4 g = m.gates[s * F::PAIRS + pair];
        chunk_period_add(x, g.x, g.y, *(const float4 *)(m.tokens + s * product_ld(D) + 4 * lane));
    }
}

/* Sums of 16 values over LANES neighbouring threads: thread l is left with those of the values from `index`
 * on, 16 / LANES of them or one. */
template <int LANES> static __device__ inline int chunk_period_sum(float (&v)[16])
{
    int index = 0, count = 16;
#pragma unroll
    for (int width = LANES / 2; width > 0; width /= 2) {
        if (count == 1) {
            v[0] += __shfl_xor_sync(CUDA_FULL_WARP, v[0], width);
            continue;
        }
        const bool upper = (threadIdx.x & width) != 0;
        count /= 2;
        index += upper ? count : 0;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            if (i >= count) break;
            float keep = upper ? v[i + count] : v[i], give = upper ? v[i] : v[i + count];
            v[i] = keep + __shfl_xor_sync(CUDA_FULL_WARP, give, width);
        }
    }
    return index;
}

/* d_phi of tokens from .. from + 7, y moved before them. x: X before them, with decay. */
template <int D, bool DECAY>
static __device__ inline void chunk_period_eight(float4 (&x)[2], float4 (&y)[2],
                                                 const chunk_period_room<D> &m, int from)
{
    typedef chunk_period_form<D> F;
    const int lane = threadIdx.x % F::LANES, pair = threadIdx.x / F::LANES;
    float4 change[8][2];
#pragma unroll
    for (int s = 0; s < 8; s++) {
        float4 token = *(const float4 *)(m.tokens + (from + s) * product_ld(D) + 4 * lane);
        change[s][0] = change[s][1] = token;
        if (!DECAY) continue;
        float4 g = m.gates[(from + s) * F::PAIRS + pair];
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const float c = j ? -g.w : -g.z;
            change[s][j].x = fmaf(c, x[j].x, token.x), change[s][j].y = fmaf(c, x[j].y, token.y);
            change[s][j].z = fmaf(c, x[j].z, token.z), change[s][j].w = fmaf(c, x[j].w, token.w);
        }
        chunk_period_add(x, g.x, g.y, token);
    }
    float sum[16]; /* of token s and slot j: 2 s + j */
#pragma unroll
    for (int s = 7; s >= 0; s--) {
        float2 row = m.rows[(from + s) * F::PAIRS + pair];
        chunk_period_add(y, row.x, row.y, *(const float4 *)(m.left + (from + s) * product_ld(D) + 4 * lane));
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const float4 &z = change[s][j];
            sum[2 * s + j] = fmaf(y[j].x, z.x, fmaf(y[j].y, z.y, fmaf(y[j].z, z.z, y[j].w * z.w)));
        }
    }
    const int at = chunk_period_sum<F::LANES>(sum), each = F::LANES < 16 ? 16 / F::LANES : 1;
    if (F::LANES > 16 && lane % 2) return;
#pragma unroll
    for (int i = 0; i < each; i++)
        m.d_phi[(from + (at + i) / 2) * F::SLOTS + 2 * pair + (at + i) % 2] += sum[i];
}

/* One side of one query head. The gradient of the slots after the chunk counts once, with the first head. */
template <int D, bool DECAY>
static __device__ inline void chunk_period_walk(const chunk_period_room<D> &m, const float *state,
                                                const float *pull, bool first, int n)
{
    float4 x[2], y[2];
    const float4 *before = (const float4 *)state, *after = (const float4 *)pull;
#pragma unroll
    for (int j = 0; j < 2; j++) {
        x[j] = before[j * (D / 4)];
        y[j] = first ? after[j * (D / 4)] : make_float4(0, 0, 0, 0);
    }
    for (int i = 0; DECAY && i < 3; i++) {
        chunk_period_write<D, 16>(x, m, 16 * i);
#pragma unroll
        for (int j = 0; j < 2; j++) m.kept[(2 * i + j) * CHUNK_THREADS + threadIdx.x] = x[j];
    }
    for (int eight = (n - 1) / 8; eight >= 0; eight--) {
        if (DECAY) {
            const int i = eight / 2;
#pragma unroll
            for (int j = 0; j < 2; j++)
                x[j] = i ? m.kept[(2 * i - 2 + j) * CHUNK_THREADS + threadIdx.x] : before[j * (D / 4)];
            if (eight % 2) chunk_period_write<D, 8>(x, m, 16 * i);
        }
        chunk_period_eight<D, DECAY>(x, y, m, 8 * eight);
    }
}

/* The gates of the block's slots; d_phi is 0. */
template <int D, int SP>
static __device__ inline void chunk_period_open(const bla_call &c, const chunk_place &p, int slot0,
                                                const chunk_period_room<D> &m)
{
    typedef chunk_period_form<D> F;
    for (int i = threadIdx.x; i < CHUNK_TOKENS * F::PAIRS; i += CHUNK_THREADS) {
        int s = i / F::PAIRS, at = s * SP + slot0 + i % F::PAIRS * 2;
        float2 P = *(const float2 *)(p.P + at), keep = make_float2(CHUNK_START, CHUNK_START);
        if (c.decay && s > 0) keep = *(const float2 *)(p.c + at - SP);
        m.gates[i] = make_float4(P.x, P.y, keep.x, keep.y);
        *(float2 *)(m.d_phi + 2 * i) = make_float2(0, 0);
    }
}

/* The block's share of d_period and of the sum of its terms' sizes. */
template <int D, int SP>
static __device__ inline void chunk_period_close(const bla_call &c, const chunk_place &p, int slot0,
                                                 const chunk_period_room<D> &m, double *sums)
{
    typedef chunk_period_form<D> F;
    __shared__ double room[32];
    const float *slope = p.P + (c.decay ? 2 : 1) * CHUNK_TOKENS * SP + slot0;
    double sum[2] = {0, 0};
    for (int i = threadIdx.x; i < p.n * F::SLOTS; i += CHUNK_THREADS) {
        double part = (double)m.d_phi[i] * (double)slope[i / F::SLOTS * SP + i % F::SLOTS];
        sum[0] += part, sum[1] += fabs(part);
    }
    for (int which = 0; which < 2; which++) {
        double total = block_sum(sum[which], room);
        if (threadIdx.x == 0) sums[which] = total;
    }
}

/* grid: chunks, times SP / SLOTS. */
template <int D, int SP, typename E>
static __global__ void __launch_bounds__(CHUNK_THREADS, 2) chunk_period_kernel(bla_call c, chunk_run r)
{
    typedef chunk_period_form<D> F;
    CUDA_DYNAMIC_SHARED(float, shared);
    const chunk_period_room<D> m = chunk_period_carve<D>(shared);
    const int slot0 = blockIdx.x % (SP / F::SLOTS) * F::SLOTS;
    double *sums = r.sums + 2 * (int64_t)blockIdx.x;
    chunk_place p;
    if (!chunk_place_of<D, SP>(c, r, blockIdx.x / (SP / F::SLOTS), &p) || c.periods[p.chain.h].raised ||
        slot0 >= c.S) {
        if (threadIdx.x < 2) sums[threadIdx.x] = 0;
        return;
    }
    chunk_period_open<D, SP>(c, p, slot0, m);
    const int own = (slot0 + (int)threadIdx.x / F::LANES * 2) * D + (int)threadIdx.x % F::LANES * 4;
    for (int i = 0; i < 2 * c.group; i++) {
        const int side = i / c.group, head = i % c.group;
        const float *rows = chunk_noted<SP>(p, head, side).at + slot0;
        if (i > 0) __syncthreads(); /* the tiles have been read */
        if (head == 0) product_load_tile<D>(m.tokens, chunk_tokens<E>(c, p, c.k, c.v, side));
        product_load_tile<D>(m.left, chunk_rows<E>(p, side ? c.d_o : c.q, c.H, p.chain.h * c.group + head,
                                                   side ? c.Dv : c.Dk));
        for (int at = threadIdx.x; at < CHUNK_TOKENS * F::PAIRS; at += CHUNK_THREADS)
            m.rows[at] = *(const float2 *)(rows + at / F::PAIRS * SP + at % F::PAIRS * 2);
        copy_async_wait<0>();
        __syncthreads();
        const float *state = p.state + side * SP * D + own, *pull = p.pull + side * SP * D + own;
        if (c.decay)
            chunk_period_walk<D, true>(m, state, pull, head == 0, p.n);
        else
            chunk_period_walk<D, false>(m, state, pull, head == 0, p.n);
    }
    __syncthreads();
    chunk_period_close<D, SP>(c, p, slot0, m, sums);
}

#endif
