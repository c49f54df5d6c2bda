/* The order in which training samples are seen: an endless stream that passes through all samples once per
 * epoch, in another random order each time. A pure function of (seed, place in the stream): resuming needs no
 * state. Like rng.h a host and device function.
 *
 * A keyed permutation of [0, n) without a table: a Feistel network on the smallest even number of bits that
 * covers n, its round function one block of the random stream (seed, RNG_SHUFFLE, epoch). Values that fall
 * outside [0, n) are sent through again ("cycle walking"), which keeps it a permutation of [0, n). */
#ifndef BLURRY_BASE_ORDER_H
#define BLURRY_BASE_ORDER_H
#include "base/rng.h"

enum { ORDER_ROUNDS = 8 };

RNG_FUNCTION uint64_t order_feistel(uint64_t seed, uint64_t epoch, int half_bits, uint64_t x)
{
    uint64_t mask = (UINT64_C(1) << half_bits) - 1;
    uint64_t left = x >> half_bits, right = x & mask;
    for (uint64_t round = 0; round < ORDER_ROUNDS; round++) {
        uint32_t word[4];
        rng_block(seed, RNG_SHUFFLE, epoch, round << 32 | right, word);
        uint64_t mixed = left ^ (word[0] & mask);
        left = right;
        right = mixed;
    }
    return left << half_bits | right;
}

/* The sample at place `place` >= 0 of the stream over `samples` >= 1 samples; its epoch is place / samples.
 */
RNG_FUNCTION int64_t order_sample(uint64_t seed, int64_t samples, int64_t place)
{
    uint64_t n = (uint64_t)samples, epoch = (uint64_t)place / n, x = (uint64_t)place % n;
    int half_bits = 1; /* at most 32: a round takes 32 random bits */
    while (half_bits < 31 && (UINT64_C(1) << 2 * half_bits) < n) half_bits++;
    do x = order_feistel(seed, epoch, half_bits, x);
    while (x >= n);
    return (int64_t)x;
}

#endif
