/* Blurry attention in plain float arithmetic, for every shape, both grids and the period's gradient: the
 * chunked form of docs/operator.md with chunks so short (8 tokens) that the weights W[t,u,j] are simply
 * formed. One block works on one chain. Internal to cuda_direct.cu.
 *
 * All matrices are float and lie in shared memory where they fit, else in the workspace. */
#ifndef BLURRY_KERNELS_BLURRY_CUDA_DIRECT_CUH
#define BLURRY_KERNELS_BLURRY_CUDA_DIRECT_CUH
#include "kernels/blurry/cuda_call.h"
#include "kernels/blurry/cuda_weights.cuh"

enum { DIRECT_C = 8, DIRECT_THREADS = 256 };

/* A block's matrices. Leading dimensions of slots and tokens are odd, so that walking down a column meets no
 * bank twice. */
struct direct {
    int S, Dk, Dv, ldk, ldv;
    int n;                  /* tokens of the chunk */
    float *phi, *b;         /* [C, S] */
    float *W;               /* [C, C, S] */
    float *x, *p, *w;       /* [C, S] logits on the absolute grid, probabilities, weights on its slots */
    float *y, *dw, *dx;     /* [C, S] scratch; gradient of w, of the logits */
    float *d_phi;           /* [C, S] */
    float *q, *k, *v, *d_o; /* [C, ld] */
    float *d_k, *d_v;       /* [C, ld] */
    float *A, *G;           /* [C, C] */
    float *K, *V;           /* [S, ld] the slots */
    float *dK, *dV;         /* [S, ld] their gradient */
    const bla_period *period;
};

static inline __host__ __device__ int direct_ld(int D)
{
    return D | 1;
}

/* Floats of the rows and of the slots of one block; the backward pass needs twice the slots. */
static inline __host__ __device__ int64_t direct_rows_floats(int S, int Dk, int Dv)
{
    return (int64_t)DIRECT_C * ((9 + DIRECT_C) * (int64_t)S + 3 * direct_ld(Dk) + 3 * direct_ld(Dv)) +
           2 * DIRECT_C * DIRECT_C;
}
static inline __host__ __device__ int64_t direct_slots_floats(int S, int Dk, int Dv)
{
    return (int64_t)S * (direct_ld(Dk) + direct_ld(Dv));
}

static __device__ inline float *direct_take(float **from, int64_t n)
{
    float *taken = *from;
    *from += n;
    return taken;
}

static __device__ inline direct direct_carve(const bla_call &c, float *rows, float *slots)
{
    direct z;
    int64_t cs = (int64_t)DIRECT_C * c.S;
    z.S = c.S, z.Dk = c.Dk, z.Dv = c.Dv, z.ldk = direct_ld(c.Dk), z.ldv = direct_ld(c.Dv), z.n = 0;
    z.phi = direct_take(&rows, cs), z.b = direct_take(&rows, cs);
    z.W = direct_take(&rows, cs * DIRECT_C);
    z.x = direct_take(&rows, cs), z.p = direct_take(&rows, cs), z.w = direct_take(&rows, cs);
    z.y = direct_take(&rows, cs), z.dw = direct_take(&rows, cs), z.dx = direct_take(&rows, cs);
    z.d_phi = direct_take(&rows, cs);
    z.q = direct_take(&rows, DIRECT_C * z.ldk), z.k = direct_take(&rows, DIRECT_C * z.ldk);
    z.d_k = direct_take(&rows, DIRECT_C * z.ldk);
    z.v = direct_take(&rows, DIRECT_C * z.ldv), z.d_o = direct_take(&rows, DIRECT_C * z.ldv);
    z.d_v = direct_take(&rows, DIRECT_C * z.ldv);
    z.A = direct_take(&rows, DIRECT_C * DIRECT_C), z.G = direct_take(&rows, DIRECT_C * DIRECT_C);
    z.K = direct_take(&slots, (int64_t)c.S * z.ldk), z.V = direct_take(&slots, (int64_t)c.S * z.ldv);
    z.dK = direct_take(&slots, (int64_t)c.S * z.ldk), z.dV = direct_take(&slots, (int64_t)c.S * z.ldv);
    z.period = NULL;
    return z;
}

/* phi, W and b of the chunk at position t0. W[t, u, j] = phi_u[j] times the gates of u+1 .. t. */
static __device__ inline void direct_tables(const bla_call &c, const direct &z, int64_t t0)
{
    __shared__ bla_position at[DIRECT_C];
    if ((int)threadIdx.x < z.n) at[threadIdx.x] = bla_position_of(z.S, z.period->T, t0 + threadIdx.x);
    __syncthreads();
    for (int i = threadIdx.x; i < z.n * z.S; i += blockDim.x)
        z.phi[i] = (float)bla_weight(z.S, at[i / z.S], i % z.S);
    __syncthreads();
    for (int i = threadIdx.x; i < (DIRECT_C + 1) * z.S; i += blockDim.x) {
        int j = i % z.S, u = i / z.S; /* u = C: the slots before the chunk */
        float weight = u == DIRECT_C ? 1.0f : u < z.n ? z.phi[u * z.S + j] : 0.0f;
        for (int t = u == DIRECT_C ? 0 : u; t < z.n; t++) {
            if (c.decay && t != u) weight *= 1.0f - z.phi[t * z.S + j];
            (u == DIRECT_C ? z.b[t * z.S + j] : z.W[(t * DIRECT_C + u) * z.S + j]) = weight;
        }
    }
    __syncthreads();
}

/* to [n, ld] = rows of a tensor with `stride` elements between tokens. */
template <typename E>
static __device__ inline void direct_load(const direct &z, const void *from, int64_t stride, int D, float *to,
                                          int ld)
{
    for (int i = threadIdx.x; i < z.n * D; i += blockDim.x)
        to[i / D * ld + i % D] = cuda_load((const E *)from + i / D * stride + i % D);
}
template <typename E>
static __device__ inline void direct_store(const direct &z, void *to, int64_t stride, int D,
                                           const float *from, int ld)
{
    for (int i = threadIdx.x; i < z.n * D; i += blockDim.x)
        cuda_store((E *)to + i / D * stride + i % D, from[i / D * ld + i % D]);
}

/* inner [C, C] = <left_t, token_u> for u <= t. */
static __device__ inline void direct_inner(const direct &z, const float *left, const float *tokens, int D,
                                           int ld, float *inner)
{
    for (int i = threadIdx.x; i < DIRECT_C * DIRECT_C; i += blockDim.x) {
        int t = i / DIRECT_C, u = i % DIRECT_C;
        float sum = 0;
        if (t < z.n && u <= t)
            for (int d = 0; d < D; d++) sum += left[t * ld + d] * tokens[u * ld + d];
        inner[i] = sum;
    }
}

/* rows [n, S] = factor * <left, slot> for every slot at every token; `inner` as above. */
static __device__ inline void direct_against(const direct &z, const float *left, int D, int ld,
                                             const float *slots, const float *inner, float factor,
                                             float *rows)
{
    const int half = DIRECT_C / 2;
    for (int i = threadIdx.x; i < 2 * z.S; i += blockDim.x) {
        int j = i % z.S, t0 = i / z.S * half;
        float sum[half] = {0};
        for (int d = 0; d < D; d++) {
            float x = slots[(int64_t)j * ld + d];
            for (int t = 0; t < half; t++)
                if (t0 + t < z.n) sum[t] += left[(t0 + t) * ld + d] * x;
        }
        for (int t = t0; t < t0 + half && t < z.n; t++) {
            float own = 0;
            for (int u = 0; u <= t; u++) own += inner[t * DIRECT_C + u] * z.W[(t * DIRECT_C + u) * z.S + j];
            rows[t * z.S + j] = factor * (z.b[t * z.S + j] * sum[t - t0] + own);
        }
    }
}

/* onto [C, C]: the weight with which row t's slot weights reach token u. One warp per pair. */
static __device__ inline void direct_onto(const direct &z, const float *rows, float *onto)
{
    int lane = threadIdx.x % 32;
    for (int i = threadIdx.x / 32; i < DIRECT_C * DIRECT_C; i += blockDim.x / 32) {
        int t = i / DIRECT_C, u = i % DIRECT_C;
        float sum = 0;
        if (t < z.n && u <= t)
            for (int j = lane; j < z.S; j += 32) sum += rows[t * z.S + j] * z.W[i * z.S + j];
        sum = warp_sum(sum);
        if (lane == 0) onto[i] = sum;
    }
}

/* out (a tensor's rows) = factor * (sum_j rows b slot_j + sum_u onto token_u). */
template <typename E>
static __device__ inline void direct_gather(const direct &z, const float *rows, const float *onto,
                                            const float *slots, const float *tokens, int D, int ld,
                                            float factor, void *out, int64_t stride)
{
    const int half = DIRECT_C / 2;
    for (int i = threadIdx.x; i < 2 * D; i += blockDim.x) {
        int d = i % D, t0 = i / D * half;
        float sum[half] = {0};
        for (int j = 0; j < z.S; j++) {
            float x = slots[(int64_t)j * ld + d];
            for (int t = 0; t < half; t++)
                if (t0 + t < z.n) sum[t] += rows[(t0 + t) * z.S + j] * z.b[(t0 + t) * z.S + j] * x;
        }
        for (int t = t0; t < t0 + half && t < z.n; t++) {
            float own = 0;
            for (int u = 0; u <= t; u++) own += onto[t * DIRECT_C + u] * tokens[u * ld + d];
            cuda_store((E *)out + t * stride + d, factor * (sum[t - t0] + own));
        }
    }
}

/* Writes the chunk into the slots. */
static __device__ inline void direct_update(const direct &z, const float *tokens, int D, int ld, float *slots)
{
    const float *keep = z.b + (z.n - 1) * z.S, *W = z.W + (z.n - 1) * DIRECT_C * z.S;
    for (int i = threadIdx.x; i < z.S * D; i += blockDim.x) {
        int j = i / D, d = i % D;
        float sum = keep[j] * slots[(int64_t)j * ld + d];
        for (int u = 0; u < z.n; u++) sum += W[u * z.S + j] * tokens[u * ld + d];
        slots[(int64_t)j * ld + d] = sum;
    }
}

/* out[t, j] = sum_i phi_t[(i + j) mod S] in[t, i]: between the absolute and the relative grid, both ways. */
static __device__ inline void direct_mix(const direct &z, const float *in, float *out)
{
    for (int at = threadIdx.x; at < z.n * z.S; at += blockDim.x) {
        int t = at / z.S, j = at % z.S;
        const float *phi = z.phi + t * z.S, *row = in + t * z.S;
        float sum = 0;
        for (int i = 0; i < z.S; i++) sum += phi[i + j < z.S ? i + j : i + j - z.S] * row[i];
        out[at] = sum;
    }
}

/* p = softmax of the visible logits; one warp per token. */
static __device__ inline void direct_softmax(const direct &z, const float *logits, int64_t t0)
{
    int lane = threadIdx.x % 32;
    for (int t = threadIdx.x / 32; t < z.n; t += blockDim.x / 32) {
        const float *row = logits + t * z.S;
        float top = -INFINITY, sum = 0;
        for (int j = lane; j < z.S; j += 32)
            if (t0 + t >= z.period->visible[j]) top = fmaxf(top, row[j]);
        top = warp_max(top);
        for (int j = lane; j < z.S; j += 32) {
            float e = t0 + t >= z.period->visible[j] ? expf(row[j] - top) : 0.0f;
            z.p[t * z.S + j] = e;
            sum += e;
        }
        float share = 1.0f / warp_sum(sum);
        for (int j = lane; j < z.S; j += 32) z.p[t * z.S + j] *= share;
    }
}

/* The weights w on the absolute grid's slots for one query head whose q is loaded. Leaves A = <q, k>. */
static __device__ inline const float *direct_read(const bla_call &c, const direct &z, int64_t t0)
{
    direct_inner(z, z.q, z.k, z.Dk, z.ldk, z.A);
    __syncthreads();
    direct_against(z, z.q, z.Dk, z.ldk, z.K, z.A, c.scale, z.x);
    __syncthreads();
    if (c.relative) direct_mix(z, z.x, z.y);
    if (c.relative) __syncthreads();
    direct_softmax(z, c.relative ? z.y : z.x, t0);
    __syncthreads();
    if (!c.relative) return z.p;
    direct_mix(z, z.p, z.w);
    __syncthreads();
    return z.w;
}

/* Slots of a chain between the caller's memory and the block's. */
static __device__ inline void direct_slots_in(const direct &z, const bla_state &s, const bla_chain &x,
                                              float *K, float *V)
{
    const float *k = s.k ? s.k + x.b * s.stride_k + x.h * z.S * z.Dk : NULL;
    const float *v = s.k ? s.v + x.b * s.stride_v + x.h * z.S * z.Dv : NULL;
    for (int i = threadIdx.x; i < z.S * z.Dk; i += blockDim.x) K[i / z.Dk * z.ldk + i % z.Dk] = k ? k[i] : 0;
    for (int i = threadIdx.x; i < z.S * z.Dv; i += blockDim.x) V[i / z.Dv * z.ldv + i % z.Dv] = v ? v[i] : 0;
    __syncthreads();
}
static __device__ inline void direct_slots_out(const direct &z, const bla_state &s, const bla_chain &x,
                                               const float *K, const float *V)
{
    if (!s.k) return;
    float *k = s.k + x.b * s.stride_k + x.h * z.S * z.Dk, *v = s.v + x.b * s.stride_v + x.h * z.S * z.Dv;
    for (int i = threadIdx.x; i < z.S * z.Dk; i += blockDim.x) k[i] = K[i / z.Dk * z.ldk + i % z.Dk];
    for (int i = threadIdx.x; i < z.S * z.Dv; i += blockDim.x) v[i] = V[i / z.Dv * z.ldv + i % z.Dv];
}

#endif
