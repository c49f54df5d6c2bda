/* The tensor-core kernels' face towards cuda.cu: bf16 tensors, float states. cuda_fast.cuh explains segments.
 */
#ifndef BLURRY_KERNELS_BLURRY_CUDA_FAST_H
#define BLURRY_KERNELS_BLURRY_CUDA_FAST_H
#include "kernels/blurry/cuda_call.h"

enum { CHUNK = 64 }; /* tokens */

/* How one pass of a call is spread over the chip. */
struct fast_run {
    int64_t segments; /* per chain */
    int64_t parts;    /* per segment, for the passes that join segments */
    float *states; /* [chains, segments, parts] what a part adds to the slots, or (scanned) what came before
                      it */
    float *keeps;  /* [chains, segments, parts, SP] what a part keeps of the slots before it */
    float *start;  /* [chains] the slots on entry */
    int scanned;
    bf16 *saved;   /* NULL or the slots before every chunk, [.., 2, SP, D] */
    char *scratch; /* entries of periods that are not tabulated: of all chunks, or made on the spot, two per
                      block */
    int64_t made;  /* chunks per sequence and period in `scratch`; 0: made on the spot */
    int loose;     /* periods that are not tabulated */
    const double *sines; /* [2, S] */
    int spread;          /* blocks dealt out before a multiprocessor gets its second */
    /* The forward pass in two (cuda_fast_read.cuh): */
    uint32_t units; /* query heads times chunks, with gaps where sequences are packed */
    int sequences;
    int early;  /* cuda_launch_early */
    char *rows; /* the backward pass in two: what its first kernel leaves, fast_rows_bytes for each query
                   head's side of K and of V of every chunk */
};

/* dX or p [64, SP] in 8 x 8 matrices, then dA or G [64, 64], of which the 16 x 16 blocks on and below the
 * diagonal. */
static constexpr __host__ __device__ int fast_inner_at(int row, int column)
{
    return (row * (row + 1) / 2 + column) * 512;
}
static constexpr __host__ __device__ int64_t fast_rows_bytes(int SP)
{
    return CHUNK * SP * 2 + fast_inner_at(4, 0);
}

/* Chunk states of chain (b, h) are saved from this index on, `heads` apart: floor(first / 64) + b chunks of
 * every head lie before sequence b. */
static inline __host__ __device__ int64_t fast_saved_base(int64_t first, int64_t b, int64_t heads, int64_t h)
{
    return (first / CHUNK + b) * heads + h;
}

enum fast_pass {
    FAST_INCREMENTS, /* as fast_increments, where tables are made on the spot */
    FAST_READ,       /* the forward pass */
    FAST_STATES,     /* the slots before every chunk, for a backward pass without notes */
    FAST_PASSES
};

/* The kernels of one padded shape. */
struct fast_kernels {
    int D, SP;
    int read_blocks, state_blocks, backward_blocks; /* per multiprocessor: FAST_READ, the other passes */
    void (*forward)(const bla_call *call, const fast_run *run, fast_pass pass, cudaStream_t stream);
    /* The backward pass of every segment as if no gradient came from later ones, then (correct) what that
     * misses. */
    void (*backward)(const bla_call *call, const fast_run *run, bool correct, cudaStream_t stream);
    /* The forward pass where the slots before every chunk are in run->saved; NULL: not for this shape. */
    void (*read)(const bla_call *call, const fast_run *run, cudaStream_t stream);
    /* The backward pass before fast_collect, likewise. */
    void (*rows)(const bla_call *call, const fast_run *run, cudaStream_t stream);
};

/* What the parts of all segments but the last add to the slots. (cuda_fast_increments.cu) */
void fast_increments(const fast_kernels *k, const bla_call *call, const fast_run *run, cudaStream_t stream);

/* Saves the slots before every chunk, `columns` (16, 32 or 64) of them to a block, and those on exit; chains
 * in run->segments. (cuda_fast_states.cu) */
void fast_states(const fast_kernels *k, int columns, const bla_call *call, const fast_run *run,
                 cudaStream_t stream);

/* The gradients of keys, values and the slots on entry from run->rows, `columns` (32 or 64) of them to a
 * block. (cuda_fast_collect.cu) */
void fast_collect(const fast_kernels *k, int columns, const bla_call *call, const fast_run *run,
                  cudaStream_t stream);
int fast_collect_stage(int SP, int columns); /* bytes a block loads for a chunk */

/* The instantiations of one padded width, one file each; `slots` is 32, 64 or 128. NULL: not covered. */
const fast_kernels *fast_kernels_32(int slots, int decay);
const fast_kernels *fast_kernels_64(int slots, int decay);
const fast_kernels *fast_kernels_128(int slots, int decay);

struct fast_tables {
    const fast_kernels *kernels; /* NULL: the shape is not covered */
    int multiprocessors;
    int loose;     /* periods that are not tabulated */
    int early;     /* whether kernels can wait for the ones before: cuda_launch_early */
    double *sines; /* device memory */
    char *entries; /* device memory */
};

/* The least log2 of a running product of gates, none below least_gate, over 64 tokens, for the slot at 0 and
 * any phase. Slots differ by their phase only. A bound from below where one is known: learned periods ask in
 * every step. */
double fast_gates_range(int64_t S, double T, double least_gate);

/* How tests and measurements want both passes to be made: 0: as is fastest, 1: in one pass, 2: in two
 * where those cover the call. */
extern int fast_wished_form;

/* Whether these kernels cover a shape, and the tables they need; `periods` [Hkv] gets its entries. */
const fast_kernels *fast_find(const bla_shape *s);
/* The same whatever the periods: notes have one size while learned ones move. */
const fast_kernels *fast_find_widths(const bla_shape *s);
cudaError_t fast_prepare(const bla_shape *s, fast_tables *t, bla_period *periods);
void fast_release(fast_tables *t);
/* Bytes of all tabulated entries; *loose counts the periods that are not among them. */
size_t fast_entries_total(const bla_shape *s, const fast_kernels *k, int *loose);

/* Passes in two kernels (cuda_fast_two.cu); false: not done, to be done in one. `states`: units there is room
 * for in run->states. */
bool fast_forward_in_two(const fast_tables *t, const bla_shape *s, const bla_call *call, int64_t chunks,
                         int64_t states, fast_run *run, bf16 *own, cudaStream_t stream);
bool fast_backward_in_two(const fast_tables *t, const bla_shape *s, const bla_call *call, int64_t chunks,
                          fast_run *run, cudaStream_t stream);
/* The slots before every chunk that a call without notes may keep for itself, and what the first kernel of
 * the backward pass leaves: 0 where that would leave the second-level cache, or is not there for the shape.
 */
size_t fast_own_slots(const bla_shape *s, const fast_kernels *k);
size_t fast_rows_total(const bla_shape *s, const fast_kernels *k);
/* States of all chunks; fast_find takes too long to be asked in every call. */
size_t fast_saved_for(const bla_shape *s, const fast_kernels *k);

size_t fast_forward_workspace(const bla_shape *s, int multiprocessors);
size_t fast_saved_bytes(const bla_shape *s);
void fast_forward(const fast_tables *t, const bla_shape *s, const bla_call *call, int64_t longest,
                  void *saved, void *workspace, cudaStream_t stream);
size_t fast_backward_workspace(const bla_shape *s, int multiprocessors);
/* saved: what the forward pass left, or NULL. */
void fast_backward(const fast_tables *t, const bla_shape *s, const bla_call *call, int64_t longest,
                   const void *saved, void *workspace, cudaStream_t stream);

#endif
