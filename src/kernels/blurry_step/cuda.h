/* Contract of decoding on CUDA: the algorithm of blurry_step.h with states in device memory.
 *
 * A state is a header (state.h), slots k [Hkv, S, row_k], v [Hkv, S, row_v] of the state's type, and rings
 * ring_k [Hkv, fold, row_k], ring_v [Hkv, fold, row_v] of the tokens' type; rows are padded with zeros to 16
 * bytes of the wider of the two types. The weights of ring tokens are made anew from their positions. A state
 * that is not this plan's, or damaged, is left alone: its results are NaN and *refused becomes 1. */
#ifndef BLURRY_KERNELS_BLURRY_STEP_CUDA_H
#define BLURRY_KERNELS_BLURRY_STEP_CUDA_H
#include "blurry/attention.h"
#include "kernels/blurry_step/blurry_step.h"
#include "kernels/blurry_step/state.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Widest head, and the most tokens of a ring: their weights lie in shared memory. */
enum { BLA_STEP_CUDA_WIDTH = 128, BLA_STEP_CUDA_FOLD = 32 };

/* A key/value head's period T. turn_hi, turn_lo: 2^128 / T, rounded down, its high and low word, so that t /
 * T modulo 1 is two integer products, as exact at t = 2^53 as at 0. */
typedef struct bla_step_head {
    uint64_t turn_hi, turn_lo;
    int64_t all_visible; /* the position from which every slot is visible */
} bla_step_head;

typedef struct bla_step_cuda_shape {
    int H, Hkv, Dk, Dv, S, fold, block, n_blocks;
    int group;                               /* queries of a key/value head */
    float per_block, per_slot;               /* 1 / block, 1 / S */
    float per_row_k, per_row_v;              /* rows to 16 bytes of a ring */
    int processors;                          /* multiprocessors of the device */
    int bulk_copies;                         /* whether it has them: compute capability 9 */
    signed char due[BLA_STEP_CUDA_FOLD];     /* block brought up to date at t mod fold, or -1 */
    unsigned char phase[BLA_STEP_CUDA_FOLD]; /* the other way round */
    int row_k, row_v;                        /* elements between rows, in slots and rings */
    int decay, relative;
    int state_bf16, token_bf16;
    float scale;
    uint64_t fingerprint;
    int64_t state_bytes, k, v, ring_k, ring_v; /* bytes from the start of a state */
    const bla_step_head *heads;                /* [Hkv], device memory, as the next three */
    const int64_t *visible;                    /* [Hkv, S] first position */
    const float *wave;                         /* [S, 2] (-1)^d (cos, sin)(pi d / S) */
    int *refused;
} bla_step_cuda_shape;

/* Where the states of a call are: pointers in device memory, or NULL and the first of a row of states. */
typedef struct bla_step_cuda_states {
    void *const *each;
    void *first;
    int64_t count;
} bla_step_cuda_states;

/* Slots of all sequences in float: K of sequence b at k + b*stride_k, shaped [Hkv, S, Dk]; V likewise. */
typedef struct bla_step_cuda_slots {
    float *k, *v;
    int64_t stride_k, stride_v;
} bla_step_cuda_slots;

typedef struct bla_step_cuda {
    /* Makes what a shape derives from its sizes, and its tables on the device; sizes, layout and fingerprint
     * are given. */
    blurry_status (*open)(bla_step_cuda_shape *shape, const double *period);
    void (*close)(bla_step_cuda_shape *shape);
    /* One token each: q [count, H, Dk], k [count, Hkv, Dk], v [count, Hkv, Dv], o [count, H, Dv]. */
    blurry_status (*run)(const bla_step_cuda_shape *shape, const bla_step_cuda_states *states, const void *q,
                         const void *k, const void *v, void *o, blurry_stream stream);
    /* Slots with nothing pending, and the positions [count]; the slots may be those of the states. */
    blurry_status (*settle)(const bla_step_cuda_shape *shape, const void *states, int64_t count,
                            const bla_step_cuda_slots *slots, int64_t *positions, blurry_stream stream);
    /* States from slots (k NULL: they are there already; all zero where `zero`), at positions [count]
     * (NULL: 0) moved on by `tokens`, or by offsets[b+1] - offsets[b] (host memory). */
    blurry_status (*store)(const bla_step_cuda_shape *shape, void *states, int64_t count, int zero,
                           const bla_step_cuda_slots *slots, const int64_t *positions, int64_t tokens,
                           const int64_t *offsets, blurry_stream stream);
    /* Whether what was queued last was accepted; `what` for the message. */
    blurry_status (*launched)(const char *what);
    /* Waits, then BLURRY_E_INVALID where a state was refused since the last call. */
    blurry_status (*sync)(const bla_step_cuda_shape *shape, blurry_stream stream);
    /* For the calls that wait: memory, and copies between host and device in any direction. */
    blurry_status (*alloc)(void **memory, size_t bytes);
    void (*release)(void *memory);
    blurry_status (*copy)(void *to, const void *from, size_t bytes);
} bla_step_cuda;

/* NULL in builds without CUDA. */
const bla_step_cuda *bla_step_cuda_kernels(void);

#ifdef __cplusplus
}
#endif
#endif
