/* All kernels of this machine against the double reference: what `blurry selftest` runs. */
#ifndef BLURRY_SELFTEST_H
#define BLURRY_SELFTEST_H
#include "blurry/status.h"
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* One kernel in one type, over all cases of its group. */
typedef struct blurry_selftest_row {
    const char *group;  /* "attention", "decode" */
    const char *kernel; /* "ref", "base", "avx2", "avx512"; "cuda" where there is a GPU */
    const char *type;   /* "f32", "f64", "bf16" */
    const char *worst;  /* the result with the worst error, for example "d_k" */
    double error;       /* relative, infinity where something is not finite */
    double tolerance;
    int64_t cases;
    int passed;
} blurry_selftest_row;

/* Called after each kernel; return non-zero to stop (BLURRY_E_CANCELLED). */
typedef int (*blurry_selftest_report)(void *context, const blurry_selftest_row *row);

/* BLURRY_OK when every row passed, BLURRY_E_NUMERIC when one missed its tolerance. Takes seconds. */
BLURRY_API blurry_status blurry_selftest(blurry_selftest_report report, void *context);

#ifdef __cplusplus
}
#endif
#endif
