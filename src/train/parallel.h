/* Data-parallel training: every rank holds the whole model and works on its share of each batch; gradients
 * are summed over the ranks before the update, so that all keep the same weights. Rank 0 keeps the run
 * directory. With one rank all of this does nothing.
 *
 * A step's micro-batches are numbered over all ranks: number i goes to rank i % size. N ranks thus compute
 * what one process computes with N times the accumulation, but for the order in which gradients are added. */
#ifndef BLURRY_TRAIN_PARALLEL_H
#define BLURRY_TRAIN_PARALLEL_H
#include "train/checkpoint.h"
#include "train/ranks.h"

/* Before the model is made: on CUDA each rank of a machine takes a GPU of its own. */
blurry_status parallel_choose_gpu(const struct settings *s);
/* After it was made: NCCL between the GPUs, where each rank has one; else sums go through the host's memory.
 */
blurry_status parallel_open(blurry_trainer *t);
void parallel_close(blurry_trainer *t);

/* Sums the gradients over all ranks. */
blurry_status parallel_sum_gradients(blurry_trainer *t);
/* Sums the score of this rank's share of an evaluation over all ranks. */
void parallel_sum_score(blurry_score *score);

/* The same outcome for all: fails on every rank when it failed on one. */
blurry_status parallel_agree(blurry_status status);
/* Weights, moments, step and state of rank 0 to all. */
blurry_status parallel_share(blurry_trainer *t, run_state *state);

#endif
