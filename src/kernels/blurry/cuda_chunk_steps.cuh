/* Steps of the float kernels that are the same for every padded shape: tables, the scan between chunks, the
 * sums of the period's gradient. Internal to cuda_chunk.cu. */
#ifndef BLURRY_KERNELS_BLURRY_CUDA_CHUNK_STEPS_CUH
#define BLURRY_KERNELS_BLURRY_CUDA_CHUNK_STEPS_CUH
#include "kernels/blurry/cuda_chunk.cuh"
#include "kernels/blurry/cuda_weights.cuh"

/* ---- tables ---- */

/* Gates become their running products from 2^60 on, P is divided by them. */
static __device__ inline void chunk_running_products(float *P, float *running, double *gates, int SP)
{
    const int all = CHUNK_TOKENS * SP;
    for (int j = threadIdx.x; j < SP; j += CHUNK_THREADS) {
        double product = CHUNK_START;
        for (int i = j; i < all; i += SP) gates[i] = product *= gates[i];
    }
    __syncthreads();
    for (int i = threadIdx.x; i < all; i += CHUNK_THREADS)
        running[i] = (float)gates[i], P[i] = (float)(P[i] / gates[i]);
}

/* grid: span, periods, sequences (1 where all start at 0). Shared memory with decay: gates [64, SP] and their
 * running products. In double: 1 - phi may be small, and 64 factors in float would cost several roundings. */
static __global__ void __launch_bounds__(CHUNK_THREADS) chunk_entries_kernel(bla_call c, chunk_run r, int SP)
{
    CUDA_DYNAMIC_SHARED(double, gates);
    __shared__ bla_position at[CHUNK_TOKENS];
    int64_t h = 0, chunk = r.chunk0 + blockIdx.x;
    while (c.periods[h].index != (int)blockIdx.y) h++;
    bla_chain x = bla_chain_of(c, (r.sequence0 + blockIdx.z) * c.Hkv + h);
    if (c.positions && chunk * CHUNK_TOKENS >= x.count) return;
    int64_t t0 = x.position + chunk * CHUNK_TOKENS;
    if (threadIdx.x < CHUNK_TOKENS) at[threadIdx.x] = bla_position_of(c.S, c.periods[h].T, t0 + threadIdx.x);
    __syncthreads();
    const int all = CHUNK_TOKENS * SP;
    float *P = (float *)chunk_entry(c, r, x, chunk, SP), *running = P + all;
    for (int i = threadIdx.x; i < all; i += CHUNK_THREADS) {
        double weight = i % SP < c.S ? bla_weight(c.S, at[i / SP], i % SP) : 0.0;
        P[i] = (float)weight;
        if (c.decay) gates[i] = fmax(1.0 - weight, (double)CHUNK_GATE_LEAST);
    }
    __syncthreads();
    if (c.decay) chunk_running_products(P, running, gates, SP);
    if (!r.rows) return;
    float *slope = running + (c.decay ? all : 0);
    for (int i = threadIdx.x; i < all; i += CHUNK_THREADS) {
        double dT = 0.0;
        if (i % SP < c.S) dT = bla_weight_dT(c.S, c.periods[h].T, t0 + i / SP, at[i / SP], i % SP);
        slope[i] = (float)(c.decay ? dT / gates[i] : dT);
    }
}

/* ---- the scan ---- */

/* Four elements of the caller's slots [Hkv, S, width] at (j, d). */
static __device__ inline float *chunk_caller_slots(const bla_call &c, const bla_state &s, const bla_chain &x,
                                                   int side, int j, int d)
{
    return side ? s.v + x.b * s.stride_v + (x.h * c.S + j) * c.Dv + d
                : s.k + x.b * s.stride_k + (x.h * c.S + j) * c.Dk + d;
}

/* Replaces what the window's chunks add to the slots by the slots before them, or (backwards) what they pull
 * at the gradient of the slots by the gradient after them times what they keep. Threads have four elements
 * each and load ahead of the sum. grid: elements, chains. */
static __global__ void __launch_bounds__(CHUNK_THREADS)
    chunk_scan_kernel(bla_call c, chunk_run r, int SP, int D, int backwards)
{
    const int AHEAD = 16;
    int i = blockIdx.x * CHUNK_THREADS + threadIdx.x;
    if (i >= SP * D / 2) return;
    const int side = i / (SP * D / 4), j = i / (D / 4) % SP, d = i % (D / 4) * 4, floats = 2 * SP * D;
    const bla_chain x = bla_chain_of(c, r.sequence0 * c.Hkv + blockIdx.y);
    const bla_state &from = backwards ? c.d_out : c.in, &to = backwards ? c.d_in : c.out;
    const bool mine = j < c.S && d < (side ? c.Dv : c.Dk), first = r.chunk0 == 0, last = r.last;
    const float in = !c.decay ? 1.0f : backwards ? CHUNK_START : CHUNK_UNIT;
    const float out = !c.decay ? 1.0f : backwards ? CHUNK_UNIT : CHUNK_START;
    const int64_t carried = blockIdx.y * (int64_t)floats / 4 + i;
    float4 running = make_float4(0, 0, 0, 0);
    if (!(backwards ? last : first)) {
        running = ((const float4 *)r.carry)[carried];
    } else if (from.k && mine) {
        const float *y = chunk_caller_slots(c, from, x, side, j, d);
        running = make_float4(in * y[0], in * y[1], in * y[2], in * y[3]);
    }
    int64_t total = (x.count + CHUNK_TOKENS - 1) / CHUNK_TOKENS;
    int64_t n = min(r.span, max(total - r.chunk0, (int64_t)0)); /* of this window */
    for (int64_t done = 0; done < n; done += AHEAD) {
        float4 *at[AHEAD], add[AHEAD];
        float keep[AHEAD];
#pragma unroll
        for (int a = 0; a < AHEAD; a++) {
            int64_t step = min(done + a, n - 1); /* beyond the last: loaded, not used */
            int64_t chunk = r.chunk0 + (backwards ? n - 1 - step : step);
            int64_t index = chunk_index(c, r, x, chunk, !backwards && r.every);
            int tokens = (int)min((int64_t)CHUNK_TOKENS, x.count - chunk * CHUNK_TOKENS);
            at[a] = (float4 *)((backwards ? r.pulls : r.states) + index * floats) + i;
            add[a] = *at[a];
            keep[a] = c.decay
                          ? CHUNK_UNIT * chunk_entry(c, r, x, chunk, SP)[(CHUNK_TOKENS + tokens - 1) * SP + j]
                          : 1.0f;
        }
#pragma unroll
        for (int a = 0; a < AHEAD; a++) {
            if (done + a >= n) break;
            float before = backwards ? keep[a] : 1.0f, after = backwards ? 1.0f : keep[a];
            running.x *= before, running.y *= before, running.z *= before, running.w *= before;
            *at[a] = running;
            running.x = after * (running.x + add[a].x), running.y = after * (running.y + add[a].y);
            running.z = after * (running.z + add[a].z), running.w = after * (running.w + add[a].w);
        }
    }
    if (!(backwards ? first : last)) {
        ((float4 *)r.onwards)[carried] = running;
    } else if (to.k && mine) {
        float *y = chunk_caller_slots(c, to, x, side, j, d);
        y[0] = out * running.x, y[1] = out * running.y, y[2] = out * running.z, y[3] = out * running.w;
    }
}

/* ---- the period's gradient ---- */

static __global__ void chunk_period_clear_kernel(int64_t Hkv, double *d_period, double *d_period_abs)
{
    for (int64_t h = threadIdx.x; h < Hkv; h += blockDim.x) {
        if (d_period) d_period[h] = 0;
        if (d_period_abs) d_period_abs[h] = 0;
    }
}

/* Adds a window's sums, `parts` for each chunk. grid: heads. */
static __global__ void __launch_bounds__(CHUNK_THREADS)
    chunk_period_add_kernel(bla_call c, chunk_run r, int parts, double *d_period, double *d_period_abs)
{
    __shared__ double room[32];
    const int64_t h = blockIdx.x, each = r.span * parts;
    for (int which = 0; which < 2; which++) {
        double *out = which ? d_period_abs : d_period, sum = 0;
        for (int64_t i = threadIdx.x; i < r.sequences * each; i += CHUNK_THREADS)
            sum += r.sums[2 * ((i / each * c.Hkv + h) * each + i % each) + which];
        sum = block_sum(sum, room);
        if (out && threadIdx.x == 0) out[h] += sum;
    }
}

#endif
