/* Counter-based random numbers: Philox4x32-10 (Random123).
 *
 * A stream is named by (seed, purpose, index) and has no history: value n of a stream is a pure function of
 * the four numbers, so sample i is the same on any machine, with any thread count, in any order. Philox maps
 * a 64-bit key and a 128-bit counter to four 32-bit words ("a block"): key     = seed, low word first counter
 * = block bits 0..31 | purpose bits 16..31 of word 1, block bits 32..47 below them | index low | index high
 * A stream therefore holds 2^48 blocks. Streams of different purpose or index never share a block.
 *
 * Everything here is integer arithmetic or IEEE operations that round one way only: +, -, *, /, sqrt and
 * explicit fma, never a libm function and never a product that a compiler may fuse with a sum. The same bits
 * come out on every machine; compiled by nvcc the functions are host and device functions and give those bits
 * on a GPU too. */
#ifndef BLURRY_BASE_RNG_H
#define BLURRY_BASE_RNG_H
#ifdef __cplusplus
#define R123_THROW(x)                                                                                        \
    ((void)0) /* in functions that nothing here calls; the CUDA sources have no exceptions */
#endif
#include <Random123/philox.h>
#include <math.h>
#include <stdint.h>

#ifdef __CUDACC__
#define RNG_FUNCTION static __host__ __device__ __forceinline__
#else
#define RNG_FUNCTION static inline
#endif

/* Who draws. Numbers are part of the data's definition: add at the end, never renumber. */
typedef enum rng_purpose {
    RNG_INIT = 1,       /* initial parameters; index: the parameter's number */
    RNG_SHUFFLE = 2,    /* order of the training samples; index: the epoch */
    RNG_DROPOUT = 3,    /* index: the step and layer */
    RNG_GENERATE = 4,   /* sampling tokens; index: the sequence */
    RNG_MQAR = 16,      /* + split; index: the sample */
    RNG_AUTOMATON = 24, /* + split; index: the candidate */
    RNG_DOCUMENT = 28,  /* + split; index: the candidate the document belongs to */
    RNG_WINDOW = 32,    /* text windows; index: the sample */
    RNG_TEST = 1000     /* free for tests */
} rng_purpose;

typedef struct rng {
    uint64_t seed, index;
    uint64_t block; /* the next one */
    uint32_t purpose;
    uint32_t word[4];
    int used; /* words of `word` already handed out */
} rng;

/* Block `block` of a stream, without any state: four words. */
RNG_FUNCTION void rng_block(uint64_t seed, uint32_t purpose, uint64_t index, uint64_t block, uint32_t word[4])
{
    philox4x32_ctr_t counter;
    philox4x32_key_t key;
    counter.v[0] = (uint32_t)block;
    counter.v[1] = ((purpose & 0xffffu) << 16) | (uint32_t)((block >> 32) & 0xffffu);
    counter.v[2] = (uint32_t)index;
    counter.v[3] = (uint32_t)(index >> 32);
    key.v[0] = (uint32_t)seed;
    key.v[1] = (uint32_t)(seed >> 32);
    counter = philox4x32_R(10, counter, key);
    for (int i = 0; i < 4; i++) word[i] = counter.v[i];
}

/* The stream from its beginning. */
RNG_FUNCTION rng rng_stream(uint64_t seed, uint32_t purpose, uint64_t index)
{
    rng r;
    r.seed = seed;
    r.purpose = purpose;
    r.index = index;
    r.block = 0;
    r.used = 4;
    for (int i = 0; i < 4; i++) r.word[i] = 0;
    return r;
}

RNG_FUNCTION uint32_t rng_u32(rng *r)
{
    if (r->used == 4) {
        rng_block(r->seed, r->purpose, r->index, r->block++, r->word);
        r->used = 0;
    }
    return r->word[r->used++];
}

/* Two words, the first one low. */
RNG_FUNCTION uint64_t rng_u64(rng *r)
{
    uint64_t low = rng_u32(r);
    return low | ((uint64_t)rng_u32(r) << 32);
}

/* Uniform in [0, n), n >= 1, every value exactly equally likely: of each 2^32 (or 2^64) outcomes the
 * incomplete last round is rejected. */
RNG_FUNCTION uint64_t rng_below(rng *r, uint64_t n)
{
    if (n <= 0xffffffffu) {
        uint32_t reject_below = (uint32_t)(0u - (uint32_t)n) % (uint32_t)n; /* 2^32 mod n */
        uint64_t product;
        do product = (uint64_t)rng_u32(r) * n;
        while ((uint32_t)product < reject_below);
        return product >> 32;
    }
    uint64_t reject_below = (0u - n) % n, word; /* 2^64 mod n */
    do word = rng_u64(r);
    while (word < reject_below);
    return word % n;
}

/* Uniform integer in [low, high]. */
RNG_FUNCTION int64_t rng_between(rng *r, int64_t low, int64_t high)
{
    return low + (int64_t)rng_below(r, (uint64_t)(high - low) + 1);
}

/* Uniform in [0, 1), multiples of 2^-53 and 2^-24. */
RNG_FUNCTION double rng_double(rng *r)
{
    return (double)(rng_u64(r) >> 11) * 0x1p-53;
}
RNG_FUNCTION float rng_float(rng *r)
{
    return (float)(rng_u32(r) >> 8) * 0x1p-24f;
}

/* 64 random bits to the open interval (0, 1): an odd multiple of 2^-53. */
RNG_FUNCTION double rng_open(uint64_t bits)
{
    return (double)((bits >> 12 << 1) + 1) * 0x1p-53;
}

/* Natural logarithm of a positive normal number, error below 2 units in the last place: x = m 2^e with m
 * between sqrt(1/2) and sqrt(2), log m = 2 atanh((m-1)/(m+1)) by its series. */
RNG_FUNCTION double rng_log(double x)
{
    union {
        double value;
        uint64_t bits;
    } m;
    m.value = x;
    int exponent = (int)(m.bits >> 52) - 1022; /* m in [1/2, 1) */
    m.bits = (m.bits & 0x000fffffffffffffu) | 0x3fe0000000000000u;
    if (m.value < 0.70710678118654752440) {
        m.value *= 2;
        exponent--;
    }
    double s = (m.value - 1) / (m.value + 1), s2 = s * s, sum = 1.0 / 25;
    for (int k = 23; k >= 1; k -= 2) sum = fma(sum, s2, 1.0 / k);
    s *= 2;
    /* log 2 in two parts, the first short enough that its product with any exponent is exact. */
    double tail = fma((double)exponent, 1.90821492927058770002e-10, s * sum);
    return fma((double)exponent, 6.93147180369123816490e-01, tail);
}

/* cos(2 pi turns) for turns in [0, 1): nearest quarter turn, then the series of sine or cosine within pi/4.
 */
RNG_FUNCTION double rng_cos_turns(double turns)
{
    int quarter =
        (int)(turns * 4 + 0.5); /* both operations exact enough: ties go either way to equal values */
    double a = (turns * 4 - quarter) * 1.57079632679489661923, a2 = a * a;
    double sum = 1, first = quarter & 1 ? 17 : 16; /* sine: odd factorials; cosine: even ones */
    for (double k = first; k >= 2; k -= 2) sum = fma(-a2 / (k * (k - 1)), sum, 1.0);
    if (quarter & 1) sum *= a;
    return quarter == 1 || quarter == 2 ? -sum : sum;
}

/* Standard normal from four words (Box-Muller, one of the two values). */
RNG_FUNCTION double rng_normal_of(const uint32_t word[4])
{
    double u = rng_open(word[0] | ((uint64_t)word[1] << 32));
    double turns = (double)((word[2] | ((uint64_t)word[3] << 32)) >> 11) * 0x1p-53;
    return sqrt(-2 * rng_log(u)) * rng_cos_turns(turns);
}

/* Standard normal; takes four words. */
RNG_FUNCTION double rng_normal(rng *r)
{
    uint32_t word[4];
    for (int i = 0; i < 4; i++) word[i] = rng_u32(r);
    return rng_normal_of(word);
}

/* Element n of the array that rng_fill_normal writes: block n of the stream. */
RNG_FUNCTION double rng_normal_at(uint64_t seed, uint32_t purpose, uint64_t index, uint64_t n)
{
    uint32_t word[4];
    rng_block(seed, purpose, index, n, word);
    return rng_normal_of(word);
}

/* Standard Gumbel: -log(-log u). */
RNG_FUNCTION double rng_gumbel(rng *r)
{
    return -rng_log(-rng_log(rng_open(rng_u64(r))));
}

/* x [n] = mean + std * normal, element i from block i of the stream. */
void rng_fill_normal(float *x, int64_t n, double mean, double std, uint64_t seed, uint32_t purpose,
                     uint64_t index);

/* x [n] uniform in [low, high), element i from block i of the stream. */
void rng_fill_uniform(float *x, int64_t n, double low, double high, uint64_t seed, uint32_t purpose,
                      uint64_t index);

/* order [n] = a uniform random permutation of 0 .. n-1. */
void rng_permutation(rng *r, int64_t *order, int64_t n);

/* out [count] = distinct values of [0, range), uniform, in draw order; count <= range. pool [range] holds 0
 * .. range-1 on entry and again on return, so that a draw costs O(count). */
void rng_distinct(rng *r, int64_t range, int64_t count, int32_t *pool, int32_t *out);

#endif
