/* Random numbers: the published Philox vectors, independence of streams, distributions, and pinned bits. */
#include "support/test.h"

#include "base/rng.h"

#include <stdlib.h>
#include <string.h>

/* Known-answer vectors of Philox4x32-10 from the Random123 distribution, through our key and counter layout.
 */
static void philox_known_answers(void **state)
{
    (void)state;
    uint32_t word[4];
    rng_block(0, 0, 0, 0, word);
    const uint32_t zeros[4] = {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8};
    assert_memory_equal(word, zeros, sizeof word);
    rng_block(UINT64_MAX, 0xffff, UINT64_MAX, 0xffffffffffffu, word);
    const uint32_t ones[4] = {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd};
    assert_memory_equal(word, ones, sizeof word);
    /* counter 243f6a88 85a308d3 13198a2e 03707344, key a4093822 299f31d0: the digits of pi */
    rng_block(0x299f31d0a4093822u, 0x85a3, 0x0370734413198a2eu, 0x08d3243f6a88u, word);
    const uint32_t pi[4] = {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1};
    assert_memory_equal(word, pi, sizeof word);
}

static void streams_differ_and_repeat(void **state)
{
    (void)state;
    rng a = rng_stream(1, RNG_TEST, 5), again = rng_stream(1, RNG_TEST, 5);
    rng others[] = {rng_stream(2, RNG_TEST, 5), rng_stream(1, RNG_TEST + 1, 5), rng_stream(1, RNG_TEST, 6),
                    rng_stream(1 + (1ull << 32), RNG_TEST, 5), rng_stream(1, RNG_TEST, 5 + (1ull << 32))};
    int same[5] = {0};
    for (int i = 0; i < 1000; i++) {
        uint32_t word = rng_u32(&a);
        assert_int_equal(word, rng_u32(&again));
        for (int k = 0; k < 5; k++) same[k] += word == rng_u32(&others[k]);
    }
    for (int k = 0; k < 5; k++) assert_true(same[k] <= 1);
}

/* Chi-square of `cells` equally likely cells; the bound is about six standard deviations. */
static void assert_uniform(const int64_t *count, int cells, int64_t draws)
{
    double expect = (double)draws / cells, chi = 0;
    for (int i = 0; i < cells; i++) chi += (count[i] - expect) * (count[i] - expect) / expect;
    assert_true(fabs(chi - (cells - 1)) < 6 * sqrt(2.0 * (cells - 1)) + 6);
}

static void integers_are_uniform(void **state)
{
    (void)state;
    const int sizes[] = {2, 3, 7, 18, 100, 1000};
    for (int s = 0; s < 6; s++) {
        int64_t count[1000] = {0};
        rng r = rng_stream(3, RNG_TEST, (uint64_t)s);
        for (int i = 0; i < 200000; i++) {
            uint64_t value = rng_below(&r, (uint64_t)sizes[s]);
            assert_true(value < (uint64_t)sizes[s]);
            count[value]++;
        }
        assert_uniform(count, sizes[s], 200000);
    }
    /* Near 2^32 and 2^64 a modulo would make the lower third twice as likely. */
    const uint64_t large[] = {0xc0000000u, 0xc000000000000000u};
    for (int s = 0; s < 2; s++) {
        int64_t third[3] = {0};
        rng r = rng_stream(4, RNG_TEST, (uint64_t)s);
        for (int i = 0; i < 90000; i++) third[rng_below(&r, large[s]) / (large[s] / 3)]++;
        assert_uniform(third, 3, 90000);
    }
    rng r = rng_stream(5, RNG_TEST, 0);
    for (int i = 0; i < 1000; i++) {
        assert_int_equal(rng_below(&r, 1), 0);
        int64_t v = rng_between(&r, -3, 4);
        assert_true(v >= -3 && v <= 4);
    }
}

static void log_and_cos_are_accurate(void **state)
{
    (void)state;
    rng r = rng_stream(6, RNG_TEST, 0);
    for (int i = 0; i < 200000; i++) {
        double x = rng_open(rng_u64(&r));
        if (i % 2) x = ldexp(x, (int)rng_between(&r, -1000, 1000));
        long double want = logl((long double)x);
        assert_true(fabsl(rng_log(x) - want) <= 2.3e-16L * 2 * fabsl(want));
        double turns = rng_double(&r);
        long double cosine = cosl(6.283185307179586476925286766559L * turns);
        assert_true(fabsl(rng_cos_turns(turns) - cosine) <= 4e-16L);
    }
    assert_true(rng_log(1.0) == 0);
    assert_true(rng_cos_turns(0) == 1 && rng_cos_turns(0.25) == 0 && rng_cos_turns(0.5) == -1);
}

/* Moments and the Kolmogorov distance to the exact distribution function. */
static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double normal_cdf(double x)
{
    return 0.5 * erfc(-x * 0.70710678118654752440);
}
static double gumbel_cdf(double x)
{
    return exp(-exp(-x));
}
static double uniform_cdf(double x)
{
    return x;
}

static void assert_distribution(double *x, int n, double (*cdf)(double))
{
    qsort(x, (size_t)n, sizeof *x, ascending);
    double distance = 0;
    for (int i = 0; i < n; i++) {
        double p = cdf(x[i]);
        distance = fmax(distance, fmax(fabs(p - (double)i / n), fabs(p - (i + 1.0) / n)));
    }
    assert_true(distance * sqrt(n) < 2.2); /* exceeded with probability 1e-4 */
}

static void distributions_are_right(void **state)
{
    (void)state;
    enum { N = 200000 };
    double *x = malloc(N * sizeof *x);
    rng r = rng_stream(7, RNG_TEST, 0);
    for (int i = 0; i < N; i++) x[i] = rng_normal(&r);
    assert_distribution(x, N, normal_cdf);
    for (int i = 0; i < N; i++) x[i] = rng_gumbel(&r);
    assert_distribution(x, N, gumbel_cdf);
    for (int i = 0; i < N; i++) x[i] = rng_double(&r);
    assert_distribution(x, N, uniform_cdf);
    for (int i = 0; i < N; i++) x[i] = rng_float(&r);
    assert_distribution(x, N, uniform_cdf);
    float *f = malloc(N * sizeof *f);
    rng_fill_normal(f, N, 0, 1, 8, RNG_TEST, 0);
    for (int i = 0; i < N; i++) x[i] = f[i];
    assert_true(f[77] == (float)rng_normal_at(8, RNG_TEST, 0, 77));
    assert_distribution(x, N, normal_cdf);
    rng_fill_uniform(f, N, 0, 1, 9, RNG_TEST, 0);
    for (int i = 0; i < N; i++) assert_true((x[i] = f[i]) < 1);
    assert_distribution(x, N, uniform_cdf);
    free(x);
    free(f);
}

static void draws_without_replacement(void **state)
{
    (void)state;
    int32_t pool[9], out[9];
    int64_t first[9] = {0}, last[9] = {0}, order[9], place[9] = {0};
    for (int i = 0; i < 9; i++) pool[i] = i;
    rng r = rng_stream(10, RNG_TEST, 0);
    for (int draw = 0; draw < 90000; draw++) {
        int count = draw % 9 + 1, seen[9] = {0};
        rng_distinct(&r, 9, count, pool, out);
        for (int i = 0; i < count; i++) assert_int_equal(seen[out[i]]++, 0);
        for (int i = 0; i < 9; i++) assert_int_equal(pool[i], i);
        first[out[0]]++;
        if (count == 6) last[out[5]]++;
        rng_permutation(&r, order, 9);
        int64_t sum = 0;
        for (int i = 0; i < 9; i++) sum |= 1 << order[i];
        assert_int_equal(sum, 511);
        place[order[4]]++;
    }
    assert_uniform(first, 9, 90000);
    assert_uniform(last, 9, 10000);
    assert_uniform(place, 9, 90000);
}

/* The bits are part of the data's definition: a change here changes every data set and every initialisation.
 */
static void bits_are_pinned(void **state)
{
    (void)state;
    rng r = rng_stream(42, RNG_TEST, 7);
    uint64_t mixed = 0;
    for (int i = 0; i < 100000; i++) {
        double values[3] = {rng_normal(&r), rng_gumbel(&r), (double)rng_below(&r, 1000003)};
        for (int k = 0; k < 3; k++) {
            uint64_t bits;
            memcpy(&bits, &values[k], sizeof bits);
            mixed = (mixed ^ bits) * 0x9e3779b97f4a7c15u;
            mixed ^= mixed >> 29;
        }
    }
    assert_int_equal(mixed, 0xa937e6d16f725355u);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(philox_known_answers),    cmocka_unit_test(streams_differ_and_repeat),
        cmocka_unit_test(integers_are_uniform),    cmocka_unit_test(log_and_cos_are_accurate),
        cmocka_unit_test(distributions_are_right), cmocka_unit_test(draws_without_replacement),
        cmocka_unit_test(bits_are_pinned),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
