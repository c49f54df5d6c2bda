/* The order in which training samples are seen: an endless stream that passes through all samples once per
 * epoch, in another random order each time. A pure function of (seed, place in the stream): resuming needs no
 * state. */
#ifndef BLURRY_TRAIN_ORDER_H
#define BLURRY_TRAIN_ORDER_H
#include <stdint.h>

/* The sample at place `place` >= 0 of the stream over `samples` >= 1 samples; its epoch is place / samples.
 */
int64_t order_sample(uint64_t seed, int64_t samples, int64_t place);

#endif
