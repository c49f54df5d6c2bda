/* Learning-rate schedules and the order of the training samples. */
#include "support/test.h"

#include "base/settings.h"
#include "base/order.h"
#include "train/schedule.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define assert_near(a, b, tolerance) assert_true(fabs((a) - (b)) <= (tolerance))

static struct settings make(enum settings_schedule kind, double lr, double min_lr, double warmup)
{
    struct settings s;
    settings_init(&s);
    s.schedule = kind;
    s.lr = lr;
    s.min_lr = min_lr;
    s.warmup = warmup;
    return s;
}

static void cosine_has_its_landmarks(void **state)
{
    (void)state;
    struct settings settings = make(SETTINGS_schedule_cosine, 1e-3, 1e-4, 0.1);
    schedule s;
    assert_ok(schedule_init(&s, &settings, 1000));
    assert_int_equal(s.warmup, 100);
    assert_near(schedule_rate(&s, 0), 1e-5, 1e-15);
    assert_near(schedule_rate(&s, 49), 5e-4, 1e-15);
    assert_near(schedule_rate(&s, 99), 1e-3, 1e-15);
    assert_near(schedule_rate(&s, 100), 1e-3, 1e-15);
    assert_near(schedule_rate(&s, 550), (1e-3 + 1e-4) / 2, 1e-15);
    assert_near(schedule_rate(&s, 1000), 1e-4, 1e-15);
    for (int64_t i = 100; i < 1000; i++) assert_true(schedule_rate(&s, i + 1) < schedule_rate(&s, i));
}

static void warmup_is_a_fraction_or_steps(void **state)
{
    (void)state;
    struct settings settings = make(SETTINGS_schedule_constant, 3e-3, 0, 20);
    schedule s;
    assert_ok(schedule_init(&s, &settings, 50));
    assert_int_equal(s.warmup, 20);
    assert_near(schedule_rate(&s, 9), 1.5e-3, 1e-15);
    for (int64_t i = 19; i < 60; i++) assert_near(schedule_rate(&s, i), 3e-3, 0);
    settings.warmup = 0;
    assert_ok(schedule_init(&s, &settings, 50));
    assert_near(schedule_rate(&s, 0), 3e-3, 0);
    settings.warmup = 50;
    assert_ok(schedule_init(&s, &settings, 50));
    settings.warmup = 51;
    assert_fails(schedule_init(&s, &settings, 50), BLURRY_E_INVALID, "warmup is 51");
    settings.warmup = 0.5;
    assert_fails(schedule_init(&s, &settings, 0), BLURRY_E_INVALID, "steps is 0");
    settings.min_lr = 1;
    assert_fails(schedule_init(&s, &settings, 50), BLURRY_E_INVALID, "min_lr is 1");
}

static void every_epoch_is_a_permutation(void **state)
{
    (void)state;
    static const int64_t sizes[] = {1, 2, 3, 4, 5, 16, 17, 1000, 4096, 4097, 100000};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        int64_t n = sizes[i];
        char *seen = calloc((size_t)n, 1);
        for (int epoch = 0; epoch < 3; epoch++) {
            memset(seen, 0, (size_t)n);
            for (int64_t p = 0; p < n; p++) {
                int64_t sample = order_sample(7, n, epoch * n + p);
                assert_true(sample >= 0 && sample < n);
                assert_int_equal(seen[sample]++, 0);
            }
        }
        free(seen);
    }
}

/* Epochs and seeds must differ, and a sample's place must look uniform: chi-squared over 16 bins of the first
 * place. */
static void orders_are_random(void **state)
{
    (void)state;
    enum { N = 1000, TRIALS = 16000, BINS = 16 };
    int same_epoch = 0, same_seed = 0;
    for (int64_t p = 0; p < N; p++) {
        same_epoch += order_sample(1, N, p) == order_sample(1, N, N + p);
        same_seed += order_sample(1, N, p) == order_sample(2, N, p);
    }
    assert_true(same_epoch < 10 && same_seed < 10);
    double bins[BINS] = {0}, chi = 0;
    for (int64_t e = 0; e < TRIALS; e++) bins[order_sample(3, BINS, e * BINS + 5)]++;
    for (int b = 0; b < BINS; b++)
        chi += (bins[b] - TRIALS / BINS) * (bins[b] - TRIALS / BINS) / (TRIALS / BINS);
    assert_true(chi < 45); /* 15 degrees of freedom: 45 is passed by chance with probability 1e-4 */
}

static void order_takes_large_sets(void **state)
{
    (void)state;
    int64_t n = INT64_C(1) << 40;
    for (int64_t p = 0; p < 100; p++) {
        int64_t a = order_sample(5, n, p), b = order_sample(5, n, p + 1);
        assert_true(a >= 0 && a < n && a != b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cosine_has_its_landmarks),     cmocka_unit_test(warmup_is_a_fraction_or_steps),
        cmocka_unit_test(every_epoch_is_a_permutation), cmocka_unit_test(orders_are_random),
        cmocka_unit_test(order_takes_large_sets),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
