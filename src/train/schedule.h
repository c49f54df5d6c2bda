/* The learning rate of every step: a linear warm-up to the peak, then constant or a cosine down to a floor.
 */
#ifndef BLURRY_TRAIN_SCHEDULE_H
#define BLURRY_TRAIN_SCHEDULE_H
#include "base/settings.h"
#include "base/status.h"

#include <stdint.h>

typedef struct schedule {
    enum settings_schedule kind;
    int64_t steps;  /* optimiser steps of the whole run */
    int64_t warmup; /* steps of linear rise before the peak */
    double peak;    /* the largest learning rate */
    double floor;   /* where the cosine ends */
} schedule;

/* From the settings schedule, warmup, lr and min_lr, for a run of `steps`. Refuses a warm-up longer than the
 * run. */
blurry_status schedule_init(schedule *s, const struct settings *settings, int64_t steps);

/* The rate of update `step` (0 for the first). Without warm-up step 0 has the peak; with it, step w-1 is the
 * first at the peak, so no update is made with rate 0. A cosine would reach the floor at step == steps. */
double schedule_rate(const schedule *s, int64_t step);

#endif
