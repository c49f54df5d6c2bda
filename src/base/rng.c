/* Filling arrays and drawing without replacement over the streams of rng.h. */
#include "base/rng.h"

void rng_fill_normal(float *x, int64_t n, double mean, double std, uint64_t seed, uint32_t purpose,
                     uint64_t index)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = (float)fma(std, rng_normal_at(seed, purpose, index, (uint64_t)i), mean);
}

void rng_fill_uniform(float *x, int64_t n, double low, double high, uint64_t seed, uint32_t purpose,
                      uint64_t index)
{
    float limit = nextafterf((float)high, (float)low); /* rounding to float must not reach `high` */
    for (int64_t i = 0; i < n; i++) {
        uint32_t word[4];
        rng_block(seed, purpose, index, (uint64_t)i, word);
        double u = (double)((word[0] | ((uint64_t)word[1] << 32)) >> 11) * 0x1p-53;
        float value = (float)fma(high - low, u, low);
        x[i] = value < limit ? value : limit;
    }
}

void rng_permutation(rng *r, int64_t *order, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        int64_t j = (int64_t)rng_below(r, (uint64_t)i + 1);
        order[i] = order[j];
        order[j] = i;
    }
}

void rng_distinct(rng *r, int64_t range, int64_t count, int32_t *pool, int32_t *out)
{
    for (int64_t i = 0; i < count; i++) {
        int64_t j = i + (int64_t)rng_below(r, (uint64_t)(range - i));
        out[i] = pool[j];
        pool[j] = pool[i];
    }
    /* A place beyond `count` was still itself when first drawn, so the drawn values name every place to
     * restore. */
    for (int64_t i = 0; i < count; i++) {
        pool[i] = (int32_t)i;
        pool[out[i]] = out[i];
    }
}
