/* A group of the self test: kernels that compute the same operation, and how to compare them. A group is one
 * file and one line in groups.def; it calls selftest_row for each kernel of its table. */
#ifndef BLURRY_SELFTEST_INTERNAL_H
#define BLURRY_SELFTEST_INTERNAL_H
#include "base/cpu.h"
#include "blurry/attention.h"
#include "blurry/selftest.h"

/* The worst error so far of one kernel. */
typedef struct selftest_worst {
    double floor; /* results are of size 1; what is exactly zero is compared to this */
    const char *name;
    double error;
    int64_t cases;
} selftest_worst;

/* Takes in max |a - b| / max(max |b|, floor). */
void selftest_compare(selftest_worst *worst, const char *name, const double *a, const double *b, int64_t n);

/* Reports one kernel. Returns BLURRY_E_CANCELLED where the caller wants to stop, and remembers misses. */
typedef struct selftest selftest;
blurry_status selftest_row(selftest *test, const char *group, const char *kernel, blurry_dtype dtype,
                           double tolerance, const selftest_worst *worst);

/* Relative errors allowed, per type. */
double selftest_tolerance(blurry_dtype dtype);

/* Uniform in (-1, 1), rounded to float so that both types see the same numbers. */
double selftest_random(uint64_t *state);

#define GROUP(name) blurry_status selftest_##name(selftest *test);
#include "selftest/groups.def"
#undef GROUP

#endif
