/* What ranks do together; with one rank nothing. Every rank makes the same calls in the same order. Failures
 * of MPI itself end all ranks: there is no state to go on from. */
#ifndef BLURRY_TRAIN_RANKS_H
#define BLURRY_TRAIN_RANKS_H
#include "blurry/ranks.h"

#include <stddef.h>
#include <stdint.h>

/* Bytes of rank 0 to all. */
void ranks_broadcast(void *data, size_t bytes);
/* Sums over all ranks, the same bits on each. */
void ranks_sum_f32(float *data, size_t count);
void ranks_sum_f64(double *data, size_t count);
void ranks_sum_i64(int64_t *data, size_t count);

/* The place of this rank among those on the same machine: which of its GPUs to use. */
int ranks_local(void);
int ranks_local_count(void);

#endif
