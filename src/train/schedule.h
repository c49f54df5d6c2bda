/* The learning rate of every step: a linear warm-up to the peak, then constant or a cosine down to a floor.
 */
#ifndef BLURRY_TRAIN_SCHEDULE_H
#define BLURRY_TRAIN_SCHEDULE_H
#include "base/status.h"

#include <stdint.h>

typedef enum schedule_kind { SCHEDULE_COSINE, SCHEDULE_CONSTANT } schedule_kind;

typedef struct schedule {
    schedule_kind kind;
    int64_t steps;  /* optimiser steps of the whole run */
    int64_t warmup; /* steps of linear rise before the peak */
    double peak;    /* the largest learning rate */
    double floor;   /* where the cosine ends */
} schedule;

/* `warmup` below 1 is a fraction of all steps, from 1 on a number of steps. Refuses a warm-up longer than the
 * run. */
blurry_status schedule_init(schedule *s, const char *kind, int64_t steps, double warmup, double peak,
                            double floor);

/* The rate of update `step` (0 for the first). Without warm-up step 0 has the peak; with it, step w-1 is the
 * first at the peak, so no update is made with rate 0. A cosine would reach the floor at step == steps. */
double schedule_rate(const schedule *s, int64_t step);

#endif
