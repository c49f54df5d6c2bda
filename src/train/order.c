/* A keyed permutation of [0, n) without a table: a Feistel network on the smallest even number of bits that
 * covers n, its round function one block of the random stream (seed, RNG_SHUFFLE, epoch). Values that fall
 * outside [0, n) are sent through again ("cycle walking"), which keeps it a permutation of [0, n). */
#include "train/order.h"
#include "base/rng.h"

enum { ROUNDS = 8 };

static uint64_t feistel(uint64_t seed, uint64_t epoch, int half_bits, uint64_t x)
{
    uint64_t mask = (UINT64_C(1) << half_bits) - 1;
    uint64_t left = x >> half_bits, right = x & mask;
    for (uint64_t round = 0; round < ROUNDS; round++) {
        uint32_t word[4];
        rng_block(seed, RNG_SHUFFLE, epoch, round << 32 | right, word);
        uint64_t mixed = left ^ (word[0] & mask);
        left = right;
        right = mixed;
    }
    return left << half_bits | right;
}

int64_t order_sample(uint64_t seed, int64_t samples, int64_t place)
{
    uint64_t n = (uint64_t)samples, epoch = (uint64_t)place / n, x = (uint64_t)place % n;
    int half_bits = 1; /* at most 32: a round takes 32 random bits */
    while (half_bits < 31 && (UINT64_C(1) << 2 * half_bits) < n) half_bits++;
    do x = feistel(seed, epoch, half_bits, x);
    while (x >= n);
    return (int64_t)x;
}
