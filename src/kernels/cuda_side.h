/* Parts of an operation beside the queue it was called in. An operation whose run has a side (kernel_run)
 * leaves to it work that nobody reads before the device joins both queues: sums into parameters' gradients.
 *     float *part = (float *)side_memory(run, bytes);    what the main queue writes and the side reads
 *     const kernel_run *beside = side_run(run);          forks: then launch on beside->stream
 * The run's own scratch belongs to the next operation of its queue and the side's to the side's operations:
 * neither may be handed over. Where there is no side, or no room left, all of it stays in the run's queue and
 * order. */
#ifndef BLURRY_KERNELS_CUDA_SIDE_H
#define BLURRY_KERNELS_CUDA_SIDE_H
#include "kernels/kernel.h"

/* Memory handed over to the side, aligned to 256; NULL: there is no side, or it has no room for this. */
static inline void *side_memory(const kernel_run *run, size_t bytes)
{
    kernel_side *side = run->side;
    size_t rounded = (bytes + 255) & ~(size_t)255;
    if (!side || rounded < bytes || rounded > side->bytes - side->used) return NULL;
    void *piece = side->memory + side->used;
    side->used += rounded;
    return piece;
}

/* The queue for what follows everything queued so far, but not what is queued later. */
static inline const kernel_run *side_run(const kernel_run *run)
{
    if (!run->side) return run;
    run->side->fork(run->side);
    return &run->side->run;
}

#endif
