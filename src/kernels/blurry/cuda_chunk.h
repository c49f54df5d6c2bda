/* The float kernels' face towards cuda.cu: chunks of 64 tokens in plain fp32 arithmetic, for float tensors
 * and for bf16 ones with more slots than the tensor-core kernels take, or backwards with the gradient of the
 * period, which those do not know.
 *
 * No kernel walks along a sequence but one that only adds. Per window (some sequences, some consecutive
 * chunks, so that memory does not grow with the length): what each chunk adds to the slots, all chunks at
 * once; a scan that turns this into the slots before each chunk; the outputs, all chunks at once. Backwards
 * the same with the gradient of the slots, from the last window to the first. The gradient of the period
 * takes one more kernel over a window's chunks (cuda_chunk_period.cuh). */
#ifndef BLURRY_KERNELS_BLURRY_CUDA_CHUNK_H
#define BLURRY_KERNELS_BLURRY_CUDA_CHUNK_H
#include "kernels/blurry/cuda_call.h"

enum { CHUNK_TOKENS = 64, CHUNK_THREADS = 256 };

/* One window of a call. A state is K and V, float [2, SP, D]; with decay it is kept times 2^-60, its gradient
 * times 2^60 (cuda_chunk.cuh). */
struct chunk_run {
    int64_t sequence0, sequences;
    int64_t chunk0, span;
    int last;       /* the window with the ends of all sequences */
    int periods;    /* distinct ones */
    float *entries; /* [sequences (1 where all start at 0), periods, span] tables, see cuda_chunk.cuh */
    float *states;  /* what a chunk adds to the slots, then the slots before it */
    int every;      /* states has those of all chunks of the call, not of this window only */
    float *pulls;   /* the same for the gradient of the slots, of this window: added, then from after it */
    float *carry;   /* [sequences * Hkv] states between windows: at the end where the scan begins */
    float *onwards; /* at its other end; may be the same */
    float *starts; /* [windows, sequences * Hkv] backwards: the slots before each window, where not `every` */
    float *rows;   /* [chunks, group, 2, 64, SP] for the period's gradient, NULL where it is not wanted */
    double *sums;  /* [chunks, SP / slots of a block, 2] what each block found of it */
};

enum chunk_pass {
    CHUNK_ADDS,      /* states = what each chunk adds */
    CHUNK_READ,      /* o */
    CHUNK_GRADIENTS, /* d_q, pulls, and d_k and d_v but for what comes from later chunks */
    CHUNK_THROUGH,   /* that */
    CHUNK_PERIOD     /* sums, after the scan */
};

/* The kernels of one padded shape and element type. */
struct chunk_kernels {
    int D, SP;
    int period_slots; /* of a block of CHUNK_PERIOD */
    void (*launch)(const bla_call *call, const chunk_run *run, chunk_pass pass, cudaStream_t stream);
};
/* The instantiations of one padded width, one file each; `slots` is 64, 128 or 256. NULL: not covered. */
const chunk_kernels *chunk_kernels_32(int slots, bool is_bf16);
const chunk_kernels *chunk_kernels_64(int slots, bool is_bf16);
const chunk_kernels *chunk_kernels_128(int slots, bool is_bf16);

/* NULL where these kernels do not cover a shape. */
const chunk_kernels *chunk_find(const bla_shape *s, bool is_bf16);

/* States of a window for each multiprocessor: enough blocks to fill the chip some times over. */
enum { CHUNK_STATES = 16 };

/* states: of a window, at most. */
size_t chunk_forward_workspace(const chunk_kernels *k, const bla_shape *s, int64_t states);
/* period: whether the period's gradient may be wanted. */
size_t chunk_backward_workspace(const chunk_kernels *k, const bla_shape *s, int64_t states, bool period);
/* longest: tokens of the longest sequence. */
void chunk_forward(const chunk_kernels *k, const bla_shape *s, const bla_call *call, int64_t longest,
                   int64_t states, void *workspace, cudaStream_t stream);
/* d_period and d_period_abs as in bla_backward. */
void chunk_backward(const chunk_kernels *k, const bla_shape *s, const bla_call *call, int64_t longest,
                    int64_t states, double *d_period, double *d_period_abs, void *workspace,
                    cudaStream_t stream);

#endif
