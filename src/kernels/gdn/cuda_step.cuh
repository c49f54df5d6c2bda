/* The gated delta rule on CUDA for a few tokens that continue a state. */
#ifndef BLURRY_KERNELS_GDN_CUDA_STEP_CUH
#define BLURRY_KERNELS_GDN_CUDA_STEP_CUH
#include "kernels/gdn/cuda_chunk.cuh"

enum { STEP_MOST = 4, STEP_COLUMNS = 32, STEP_WARPS = 8 };

/* Each thread holds one column of the state. Grid: blocks of values, batch * heads. */
template <typename T> __global__ void gdn_step(gdn_view<T> p, T *o, const float *in, float *out)
{
    __shared__ float room[STEP_WARPS][STEP_COLUMNS];
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    int64_t head = blockIdx.y, j = (int64_t)blockIdx.x * STEP_COLUMNS + lane, K = p.K, V = p.V;
    const float *state = in ? in + head * K * V : nullptr;
    out += head * K * V;
    auto total = [&](float mine) {
        __syncthreads();
        room[warp][lane] = mine;
        __syncthreads();
        float sum = 0;
        for (int w = 0; w < STEP_WARPS; w++) sum += room[w][lane];
        return sum;
    };
    for (int64_t t = 0; t < p.length; t++, state = out) {
        int64_t at = (head / p.heads * p.length + t) * p.heads + head % p.heads;
        float keep = __expf(cuda_load(p.g + at)), held = 0, sum = 0;
#pragma unroll 4
        for (int64_t i = warp; i < K; i += STEP_WARPS)
            held += (state && j < V ? state[i * V + j] : 0) * cuda_load(p.k + at * K + i);
        held = total(held);
        float u = cuda_load(p.beta + at) * ((j < V ? cuda_load(p.v + at * V + j) : 0) - keep * held);
#pragma unroll 4
        for (int64_t i = warp; i < K; i += STEP_WARPS) {
            float after = keep * (state && j < V ? state[i * V + j] : 0) + cuda_load(p.k + at * K + i) * u;
            if (j < V) out[i * V + j] = after;
            sum += after * cuda_load(p.q + at * K + i);
        }
        sum = total(sum);
        if (warp == 0 && j < V) cuda_store(o + at * V + j, p.scale * sum);
    }
}

#endif
