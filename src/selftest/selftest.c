/* The self test: runs the groups of groups.def and passes their rows on. */
#include "selftest/selftest.h"
#include "base/status.h"

#include <math.h>

struct selftest {
    blurry_selftest_report report;
    void *context;
    int64_t rows, missed;
};

double selftest_tolerance(blurry_dtype dtype)
{
    return dtype == BLURRY_BF16 ? 2e-2 : dtype == BLURRY_F32 ? 2e-5 : 1e-12;
}

double selftest_random(uint64_t *state)
{
    uint64_t x = *state += 0x9e3779b97f4a7c15u; /* splitmix64 */
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return (double)(float)((double)(int64_t)(x ^ (x >> 31)) * 0x1p-63);
}

void selftest_compare(selftest_worst *worst, const char *name, const double *a, const double *b, int64_t n)
{
    double difference = 0, size = worst->floor;
    for (int64_t i = 0; i < n; i++) {
        if (!isfinite(a[i])) difference = INFINITY;
        difference = fmax(difference, fabs(a[i] - b[i]));
        size = fmax(size, fabs(b[i]));
    }
    if (worst->name && difference / size <= worst->error) return;
    worst->name = name;
    worst->error = difference / size;
}

blurry_status selftest_row(selftest *test, const char *group, const char *kernel, blurry_dtype dtype,
                           double tolerance, const selftest_worst *worst)
{
    blurry_selftest_row row = {group,
                               kernel,
                               dtype == BLURRY_BF16  ? "bf16"
                               : dtype == BLURRY_F32 ? "f32"
                                                     : "f64",
                               worst->name ? worst->name : "",
                               worst->error,
                               tolerance,
                               worst->cases,
                               worst->error <= tolerance};
    test->rows++;
    test->missed += !row.passed;
    if (test->report && test->report(test->context, &row))
        return status_fail(BLURRY_E_CANCELLED, "stopped by the caller");
    return BLURRY_OK;
}

blurry_status blurry_selftest(blurry_selftest_report report, void *context)
{
    selftest test = {.report = report, .context = context};
#define GROUP(name) STATUS_TRY(selftest_##name(&test));
#include "selftest/groups.def"
#undef GROUP
    if (test.missed == 0) return BLURRY_OK;
    return status_fail(BLURRY_E_NUMERIC, "%lld of %lld kernels missed their tolerance",
                       (long long)test.missed, (long long)test.rows);
}
