/* The dropout mask: four elements per block of the counter-based generator. */
#ifndef BLURRY_KERNELS_EMBED_DROPOUT_H
#define BLURRY_KERNELS_EMBED_DROPOUT_H
#include "base/rng.h"
#include "kernels/embed/embed.h"

/* keep[4] of elements 4*block ..: 1 where the element stays. */
RNG_FUNCTION void dropout_keep(const embed_args *a, int64_t block, int keep[4])
{
    uint32_t word[4];
    rng_block(a->key[0], RNG_DROPOUT, a->key[1], (uint64_t)block, word);
    for (int i = 0; i < 4; i++) keep[i] = (double)word[i] * 0x1p-32 >= a->dropout;
}

#endif
