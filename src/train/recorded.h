/* Training steps as one recorded graph, on devices that record: data, forward, backward, clipping and update
 * without a word from the host in between. Loss and norm stay on the device until somebody asks. With learned
 * periods the host reads them before each step and queues it kernel by kernel, all else is the same. */
#ifndef BLURRY_TRAIN_RECORDED_H
#define BLURRY_TRAIN_RECORDED_H
#include "train/trainer.h"

/* Sets t->recorded where the trainer's steps can be recorded, leaves it NULL where they cannot: on the CPU,
 * with several micro-batches or ranks. */
blurry_status recorded_open(blurry_trainer *t);
void recorded_close(blurry_trainer *t);

/* Queues step number t->step + 1 and counts it. */
blurry_status recorded_step(blurry_trainer *t);
/* Waits and reports the latest step. Where a step since the last call was not finite, t->step goes back to
 * the one before it, whose weights the model still has, and *bad is 1. */
blurry_status recorded_read(blurry_trainer *t, blurry_step *report, int *bad);

#endif
