/* What every operation of the device table shares: how it is run and which memory it may ask for.
 *
 * Conventions of all operations:
 *  - void * points to elements of one of three types, on the CPU all the same (float or double):
 *      activations: of run->element bytes; on CUDA float or bf16.
 *      parameters, their gradients, optimiser moments: on CUDA always float. Where activations are bf16, the
 *        weight and bias of a linear map (linear_args) and the head's weight (xent_args) are read from a bf16
 *        copy; their gradients are float. Every other parameter is read as float.
 *      statistics and carried states: on CUDA always float. Norms' mean and rstd, attention's lse and caches,
 *        rope's table, xent's log_prob and logits, state_in and state_out of every operation.
 *    Layouts are row-major, the last index contiguous.
 *  - Gradients of inputs (d_x) are overwritten, gradients of parameters (d_weight ...) are added to; where
 *    the run has a `side`, the latter are complete only after device_side_close, and what the operation read
 *    may be needed until then (device_side_wait).
 *  - No operation allocates, waits for the host or depends on a value in host memory that may change between
 * two runs of the same plan: what varies from step to step (positions, learning rate, seed) is read from
 * device memory.
 *  - Results do not depend on the number of threads.
 *  - Operations trust their arguments; zero rows, lengths and counts are fine. */
#ifndef BLURRY_KERNELS_KERNEL_H
#define BLURRY_KERNELS_KERNEL_H
#include <stddef.h>
#include <stdint.h>

/* How to run. Scratch is the device's own and serves one operation at a time; device_reserve makes it large
 * enough when a model is planned. `side` is set between device_side_open and device_side_close: an operation
 * may then leave to it what only adds to parameters' gradients (kernels/cuda_side.h). */
typedef struct kernel_run {
    int threads;
    void *scratch; /* aligned to 64 */
    size_t scratch_bytes;
    size_t element;           /* bytes of one activation */
    void *stream;             /* of an accelerator (cudaStream_t); NULL on the CPU */
    struct cuda_blas *blas;   /* of an accelerator: matrix products, kernels/cuda_blas.h */
    struct kernel_side *side; /* NULL: all work stays in this queue */
    int early;                /* kernels may start before the one in front has ended: cuda_launch_early */
} kernel_run;

/* A second queue beside a run's own, with its own scratch and products. */
typedef struct kernel_side {
    kernel_run run;
    char *memory; /* for what a run's own queue hands over; a piece is given once between open and close */
    size_t bytes, used;
    void (*fork)(struct kernel_side *side); /* what the side gets from now on waits for all queued so far */
} kernel_side;

/* Memory an operation needs for one shape, in bytes, multiples of 64. `state` is for all sequences of the
 * batch. */
typedef struct kernel_sizes {
    size_t saved;   /* notes of forward for backward */
    size_t scratch; /* of run->scratch, the larger of forward and backward */
    size_t state;   /* carried state, where one call continues another */
} kernel_sizes;

/* Bytes of run->scratch that every operation without a sizes slot may count on: on the CPU, on CUDA. */
enum { KERNEL_SCRATCH_CPU = 1 << 16, KERNEL_SCRATCH_CUDA = 16 << 20 };

/* Opens the definition of one variant of an operation: prototype and head. For sources that include
 * variant.h. */
#define KERNEL(name, args)                                                                                   \
    void VARIANT(name)(const kernel_run *run, const args *a);                                                \
    void VARIANT(name)(const kernel_run *run __attribute__((unused)), const args *a)
#define KERNEL_SIZES(name, args)                                                                             \
    void VARIANT(name)(const kernel_run *run, const args *a, kernel_sizes *sizes);                           \
    void VARIANT(name)(const kernel_run *run __attribute__((unused)), const args *a, kernel_sizes *sizes)

/* Compiled by nvcc these are host and device functions. */
#ifdef __CUDACC__
#define KERNEL_INLINE static __host__ __device__ inline
#else
#define KERNEL_INLINE static inline
#endif

KERNEL_INLINE int64_t kernel_min(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

KERNEL_INLINE int64_t kernel_max(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

KERNEL_INLINE int64_t kernel_blocks(int64_t count, int64_t block)
{
    return (count + block - 1) / block;
}

KERNEL_INLINE size_t kernel_round64(size_t bytes)
{
    return (bytes + 63) & ~(size_t)63;
}

#endif
