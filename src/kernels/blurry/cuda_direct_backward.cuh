/* The backward pass of the plain kernels. Internal to cuda_direct.cu; formulas: simd_backward.h,
 * simd_period.h.
 */
#ifndef BLURRY_KERNELS_BLURRY_CUDA_DIRECT_BACKWARD_CUH
#define BLURRY_KERNELS_BLURRY_CUDA_DIRECT_BACKWARD_CUH
#include "kernels/blurry/cuda_direct.cuh"

/* d_tokens[u, d] (added) = sum_{t >= u} onto[t, u] left_t; with the first query head, also what reaches the
 * token through the slots after the chunk. */
static __device__ inline void direct_d_tokens(const direct &z, const float *onto, const float *left,
                                              const float *after, int D, int ld, bool first, float *d_tokens)
{
    const float *W = z.W + (z.n - 1) * DIRECT_C * z.S;
    for (int i = threadIdx.x; i < z.n * D; i += blockDim.x) {
        int u = i / D, d = i % D;
        float sum = first ? 0.0f : d_tokens[u * ld + d];
        for (int t = u; t < z.n; t++) sum += onto[t * DIRECT_C + u] * left[t * ld + d];
        if (first)
            for (int j = 0; j < z.S; j++) sum += W[u * z.S + j] * after[(int64_t)j * ld + d];
        d_tokens[u * ld + d] = sum;
    }
}

/* The slots' gradient moved before the chunk: kept share (with the first head) plus this head's pull. */
static __device__ inline void direct_d_slots(const direct &z, const float *rows, const float *left, int D,
                                             int ld, bool first, float *after)
{
    const float *keep = z.b + (z.n - 1) * z.S;
    for (int i = threadIdx.x; i < z.S * D; i += blockDim.x) {
        int j = i / D, d = i % D;
        float sum = after[(int64_t)j * ld + d] * (first ? keep[j] : 1.0f);
        for (int t = 0; t < z.n; t++) sum += rows[t * z.S + j] * z.b[t * z.S + j] * left[t * ld + d];
        after[(int64_t)j * ld + d] = sum;
    }
}

/* d_phi[s, j] += <lambda_s[j], token_s - decay slot_{s-1}[j]> for one of K and V, one thread per slot: the
 * slot forwards through the chunk, its adjoint backwards. */
static __device__ inline void direct_d_phi(const bla_call &c, const direct &z, const float *rows,
                                           const float *left, float factor, const float *tokens,
                                           const float *slots, const float *after, int D, int ld, bool first)
{
    for (int j = threadIdx.x; j < z.S; j += blockDim.x) {
        float sum[DIRECT_C] = {0};
        for (int d = 0; d < D; d++) {
            float before[DIRECT_C], slot = slots[(int64_t)j * ld + d];
            float adjoint = first ? after[(int64_t)j * ld + d] : 0.0f;
            for (int s = 0; s < DIRECT_C; s++) {
                before[s] = c.decay ? slot : 0.0f;
                if (s < z.n) slot += z.phi[s * z.S + j] * (tokens[s * ld + d] - slot);
            }
            for (int s = DIRECT_C - 1; s >= 0; s--) {
                if (s >= z.n) continue;
                adjoint += factor * rows[s * z.S + j] * left[s * ld + d];
                sum[s] += adjoint * (tokens[s * ld + d] - before[s]);
                if (c.decay) adjoint *= 1.0f - z.phi[s * z.S + j];
            }
        }
        for (int s = 0; s < z.n; s++) z.d_phi[s * z.S + j] += sum[s];
    }
}

/* The relative grid's own part of d_phi: both maps out_j = sum_i phi[(i + j) mod S] in_i. */
static __device__ inline void direct_d_map(const direct &z, const float *d_out, const float *in)
{
    for (int at = threadIdx.x; at < z.n * z.S; at += blockDim.x) {
        int t = at / z.S, m = at % z.S;
        const float *g = d_out + t * z.S, *x = in + t * z.S;
        float sum = 0;
        for (int i = 0; i < z.S; i++) sum += g[m >= i ? m - i : m - i + z.S] * x[i];
        z.d_phi[at] += sum;
    }
}

/* dx [n, S]: gradient of the scaled products with the absolute grid's slots, d_x = p (d_p - <p, d_p>), from
 * dw; on the relative grid through the maps, with their part of d_phi where `period`. */
static __device__ inline void direct_d_logits(const bla_call &c, const direct &z, bool period)
{
    if (c.relative && period) direct_d_map(z, z.p, z.dw);
    if (c.relative) direct_mix(z, z.dw, z.y);
    __syncthreads();
    const float *d_p = c.relative ? z.y : z.dw;
    int lane = threadIdx.x % 32;
    for (int t = threadIdx.x / 32; t < z.n; t += blockDim.x / 32) {
        float mean = 0;
        for (int j = lane; j < z.S; j += 32) mean += z.p[t * z.S + j] * d_p[t * z.S + j];
        mean = warp_sum(mean);
        float *to = c.relative ? z.y : z.dx;
        for (int j = lane; j < z.S; j += 32) to[t * z.S + j] = z.p[t * z.S + j] * (d_p[t * z.S + j] - mean);
    }
    __syncthreads();
    if (!c.relative) return;
    if (period) direct_d_map(z, z.y, z.x);
    direct_mix(z, z.y, z.dx);
    __syncthreads();
}

/* One query head of one chunk: d_q stored; d_k, d_v, d_phi and the slots' gradient added to. */
template <typename E>
static __device__ inline void direct_head_backward(const bla_call &c, const direct &z, int64_t t0,
                                                   int64_t token, int64_t head, bool first, bool period)
{
    int64_t sq = c.H * c.Dk, so = c.H * c.Dv;
    direct_load<E>(z, (const E *)c.q + token * sq + head * c.Dk, sq, z.Dk, z.q, z.ldk);
    direct_load<E>(z, (const E *)c.d_o + token * so + head * c.Dv, so, z.Dv, z.d_o, z.ldv);
    __syncthreads();
    const float *w = direct_read(c, z, t0);
    direct_inner(z, z.d_o, z.v, z.Dv, z.ldv, z.G);
    __syncthreads();
    direct_against(z, z.d_o, z.Dv, z.ldv, z.V, z.G, 1.0f, z.dw);
    __syncthreads();
    direct_d_logits(c, z, period);
    if (period) {
        direct_d_phi(c, z, z.dx, z.q, c.scale, z.k, z.K, z.dK, z.Dk, z.ldk, first);
        direct_d_phi(c, z, w, z.d_o, 1.0f, z.v, z.V, z.dV, z.Dv, z.ldv, first);
        __syncthreads(); /* q is about to be scaled */
    }
    for (int i = threadIdx.x; i < z.n * z.Dk; i += blockDim.x) z.q[i / z.Dk * z.ldk + i % z.Dk] *= c.scale;
    direct_onto(z, z.dx, z.A);
    direct_onto(z, w, z.G);
    __syncthreads();
    direct_gather<E>(z, z.dx, z.A, z.K, z.k, z.Dk, z.ldk, c.scale, (E *)c.d_q + token * sq + head * c.Dk, sq);
    direct_d_tokens(z, z.A, z.q, z.dK, z.Dk, z.ldk, first, z.d_k);
    direct_d_tokens(z, z.G, z.d_o, z.dV, z.Dv, z.ldv, first, z.d_v);
    __syncthreads();
    direct_d_slots(z, z.dx, z.q, z.Dk, z.ldk, first, z.dK);
    direct_d_slots(z, w, z.d_o, z.Dv, z.ldv, first, z.dV);
    __syncthreads();
}

/* sums += the chunk's contributions to d_period and their absolute values, each thread its share. */
static __device__ inline void direct_d_period(const direct &z, int64_t t0, double *sums)
{
    for (int i = threadIdx.x; i < z.n * z.S; i += blockDim.x) {
        int64_t t = t0 + i / z.S;
        bla_position at = bla_position_of(z.S, z.period->T, t);
        double part = (double)z.d_phi[i] * bla_weight_dT(z.S, z.period->T, t, at, i % z.S);
        sums[0] += part, sums[1] += fabs(part);
    }
}

#endif
