/* Chunk tables of the tensor-core kernels: what depends on positions only, for the 64 tokens of a chunk.
 *
 * Without decay an entry is P = phi, bf16 [64, SP], and successive entries overlap: entry r + 1 is entry r
 * moved by one row. With decay W[t,u,j] = c_t[j] P[u,j], P = phi / c, with c the running product of gates
 * starting from 2^SCALE (so that c and P use the whole range of exponents), and what the slots before the
 * chunk keep is c_t[j] 2^-SCALE. A gate that is 0 (a token on the slot's centre) is raised to GATE_LEAST,
 * which changes W by less than bf16 rounds. An entry is P bf16 [64, SP];  c bf16 [4, SP/16, 32, 8] in the
 * order of accumulator fragments;  c float [64, SP]. Where c would leave the range (T/S above some 40) the
 * plain kernels do the work: fast_gates_range says so. */
#ifndef BLURRY_KERNELS_BLURRY_CUDA_ENTRY_CUH
#define BLURRY_KERNELS_BLURRY_CUDA_ENTRY_CUH
#include "kernels/blurry/cuda_fast.h"
#include "kernels/blurry/cuda_weights.cuh"

enum { ENTRY_SCALE = 60 };
#define ENTRY_START      0x1p60f
#define ENTRY_UNIT       0x1p-60f
#define ENTRY_GATE_LEAST 0x1p-16f

static constexpr __host__ __device__ int64_t entry_p_bytes(int SP)
{
    return (int64_t)CHUNK * SP * 2;
}
static constexpr __host__ __device__ int64_t entry_bytes(int SP)
{
    return entry_p_bytes(SP) * 4; /* P, c in bf16, c in float */
}

/* Apart from each other where every chunk has one. */
static constexpr __host__ __device__ int64_t entry_made_bytes(int SP, bool decay)
{
    return decay ? entry_bytes(SP) : entry_p_bytes(SP);
}

/* Position of c[t, j] among the fragment-ordered ones: lane's eight are the two accumulators of 16 columns.
 */
static __device__ inline int entry_c_index(int SP, int t, int j)
{
    int row = t & 15, column = j & 15;
    int lane = (row & 7) * 4 + ((column & 7) >> 1);
    return (((t >> 4) * (SP / 16) + (j >> 4)) * 32 + lane) * 8 + (column >> 3) * 4 + (row >> 3) * 2 +
           (column & 1);
}

/* The weight of slot j by angle addition: sines [2, S] holds sin and cos of pi d / S for d = 0 .. S-1. */
static __device__ inline float entry_weight(int S, const bla_position &p, double sin_s, double cos_s,
                                            const double *sines, int j)
{
    int d = bla_offset(S, p.n, j);
    if (fabs(p.f) < 1e-30) return d == 0 ? 1.0f : 0.0f;
    double sine = sines[d < 0 ? -d : d], cosine = sines[S + (d < 0 ? -d : d)];
    double below = sin_s * cosine + cos_s * (d < 0 ? -sine : sine);
    return __fdividef((float)(d & 1 ? -p.sin_f : p.sin_f), (float)((double)S * below));
}

/* Builds the entry for the chunk at position t0, by the first `threads` threads of a block; `room` is shared
 * memory for CHUNK rows. Takes barrier 3 where those are not all. */
static __device__ inline void entry_barrier(int threads)
{
    if (threads == (int)blockDim.x)
        __syncthreads();
    else
        barrier_named(3, threads);
}
struct entry_row {
    bla_position at;
    double sin_s, cos_s;
};
static __device__ __attribute__((noinline)) void entry_build(int S, int SP, double T, int64_t t0, bool decay,
                                                             const double *sines, entry_row *room,
                                                             char *entry, int threads)
{
    for (int t = threadIdx.x; t < CHUNK; t += threads) {
        entry_row r;
        r.at = bla_position_of(S, T, t0 + t);
        sincospi(r.at.f / (double)S, &r.sin_s, &r.cos_s);
        room[t] = r;
    }
    entry_barrier(threads);
    bf16 *P = (bf16 *)entry, *fragments = (bf16 *)(entry + entry_p_bytes(SP));
    float *scale = (float *)(entry + 2 * entry_p_bytes(SP));
    for (int j = threadIdx.x; j < SP; j += threads) {
        float c = ENTRY_START;
        for (int t = 0; t < CHUNK; t++) {
            float phi = j < S ? entry_weight(S, room[t].at, room[t].sin_s, room[t].cos_s, sines, j) : 0.0f;
            if (decay) {
                c *= fmaxf(1.0f - phi, ENTRY_GATE_LEAST);
                bf16 rounded = to_bf16(c);
                fragments[entry_c_index(SP, t, j)] = rounded;
                scale[t * SP + j] = c;
            }
            P[t * SP + j] = to_bf16(decay ? phi / c : phi);
        }
    }
    entry_barrier(threads);
}

#endif
