/* Where the keys of one query lie: in the ring of carried tokens or among the call's own. */
#ifndef BLURRY_KERNELS_ATTENTION_RING_H
#define BLURRY_KERNELS_ATTENTION_RING_H
#include "kernels/attention/attention.h"

/* Tokens sequence b has seen before the call, and how many of them it can still see. */
static inline int64_t attention_seen(const attention_args *a, int64_t b)
{
    return a->cache_k && a->position ? a->position[b] : 0;
}

/* The first absolute position that token t (of this call) of sequence b attends to. */
static inline int64_t attention_first(const attention_args *a, int64_t b, int64_t t)
{
    int64_t seen = attention_seen(a, b);
    int64_t first = kernel_max(0, a->cache_k ? seen - a->capacity : 0);
    return a->window > 0 ? kernel_max(first, seen + t - a->window + 1) : first;
}

#endif
