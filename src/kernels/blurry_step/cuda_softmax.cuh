/* From logits of stored rows to weights of stored rows and ring tokens. A warp takes 32 slots of one query at
 * a time, the same ones in every function here, so only the sums over a query's slots need a barrier. */
#ifndef BLURRY_KERNELS_BLURRY_STEP_CUDA_SOFTMAX_CUH
#define BLURRY_KERNELS_BLURRY_STEP_CUDA_SOFTMAX_CUH
#include "kernels/blurry_step/cuda_step.cuh"

/* Walks over a warp's pieces of 32 slots: query g, slot j of this lane (it may lie beyond the last). */
struct step_item {
    int g, part, parts, j;
    __device__ inline step_item(int S) : g(0), part((int)threadIdx.x / 32), parts(step_parts(S)) { place(); }
    __device__ inline void next()
    {
        part += STEP_WARPS;
        place();
    }
    __device__ inline void place()
    {
        while (part >= parts) part -= parts, g++;
        j = part * 32 + (int)threadIdx.x % 32;
    }
    __device__ inline int item() const { return g * parts + part; }
};

/* What each block missed is applied to its logits, oldest first. */
static __device__ inline void step_pending(const bla_step_cuda_shape &s, const step_shared &m, int group)
{
    for (step_item x(s.S); x.g < group; x.next()) {
        if (x.j >= s.S) continue;
        float l = m.weights[x.g * s.S + x.j];
#pragma unroll 4
        for (int age = m.missed[x.j] - 1; age >= 0; age--) {
            float w = m.phi[age * s.S + x.j], score = m.scores[x.g * s.fold + age];
            l = s.decay ? fmaf(w, score - l, l) : fmaf(w, score, l);
        }
        m.weights[x.g * s.S + x.j] = l;
    }
}

/* x_j <- sum_i phi_t[(i + j) mod S] x_i for all queries of the group: the relative grid's mix. */
static __device__ inline void step_mix(const bla_step_cuda_shape &s, const step_shared &m, int group)
{
    __syncthreads();
    for (int n = (int)threadIdx.x; n < group * s.S; n += STEP_THREADS) {
        int j = n % s.S;
        const float *x = m.weights + n - j;
        float sum = 0.0f;
        for (int i = 0, at = j; i < s.S; i++, at = at + 1 == s.S ? 0 : at + 1)
            sum = fmaf(m.phi[at], x[i], sum);
        m.spare[n] = sum;
    }
    __syncthreads();
    for (int n = (int)threadIdx.x; n < group * s.S; n += STEP_THREADS) m.weights[n] = m.spare[n];
    __syncthreads();
}

/* Exponentials against the top of their 32 slots; tops and sums for all to see. visible [S]; NULL:
 * all are. */
static __device__ inline void step_exponentials(const bla_step_cuda_shape &s, const step_shared &m, int64_t t,
                                                const int64_t *visible, int group)
{
    for (step_item x(s.S); x.g < group; x.next()) {
        float l = -INFINITY;
        if (x.j < s.S && (!visible || t >= visible[x.j])) l = s.scale * m.weights[x.g * s.S + x.j];
        float top = warp_max(l), e = l == -INFINITY ? 0.0f : __expf(l - top), sum = warp_sum(e);
        if (x.j < s.S) m.weights[x.g * s.S + x.j] = e;
        if (threadIdx.x % 32 == 0) m.stats[x.item()] = make_float2(top, sum);
    }
}

static __device__ inline void step_normalise(const bla_step_cuda_shape &s, const step_shared &m, int group)
{
    for (step_item x(s.S); x.g < group; x.next()) {
        const float2 *stats = m.stats + x.g * x.parts;
        float top = stats[0].x, sum = 0.0f; /* slot 0 is always visible */
        for (int i = 1; i < x.parts; i++) top = fmaxf(top, stats[i].x);
        for (int i = 0; i < x.parts; i++) sum += stats[i].y * __expf(stats[i].x - top);
        float share = __fdividef(__expf(m.stats[x.item()].x - top), sum);
        if (x.j < s.S) m.weights[x.g * s.S + x.j] *= share;
    }
}

/* Weights of current slots become weights of stored rows and of the ring's v, newest token first. */
static __device__ inline void step_split(const bla_step_cuda_shape &s, const step_shared &m, int held,
                                         int group)
{
    enum { TOGETHER = 8 };
    for (step_item x(s.S); x.g < group; x.next()) {
        const bool there = x.j < s.S;
        const int missed = there ? m.missed[x.j] : 0;
        float w = there ? m.weights[x.g * s.S + x.j] : 0.0f;
        for (int first = 0; first < held; first += TOGETHER) {
            float part[TOGETHER];
#pragma unroll
            for (int i = 0; i < TOGETHER; i++) {
                int age = first + i;
                part[i] = age < missed ? w * m.phi[age * s.S + x.j] : 0.0f;
                if (s.decay) w -= part[i];
            }
            int which;
            float sum = sum_many<TOGETHER, 32>(part, &which);
            if (threadIdx.x % (32 / TOGETHER) == 0 && first + which < held)
                m.ring_part[x.item() * s.fold + first + which] = sum;
        }
        if (there) m.weights[x.g * s.S + x.j] = w;
    }
}

/* All of it; barriers before and after are the caller's. */
static __device__ inline void step_weigh(const bla_step_cuda_shape &s, const step_shared &m,
                                         const step_moment &now, const int64_t *visible, int group)
{
    step_pending(s, m, group);
    if (s.relative) step_mix(s, m, group);
    step_exponentials(s, m, now.t, visible, group);
    __syncthreads();
    step_normalise(s, m, group);
    if (s.relative) step_mix(s, m, group);
    step_split(s, m, now.held, group);
}

#endif
