/* One call of the CUDA operator against the double-precision reference on the CPU: random tensors, both
 * passes. The same source runs on the emulator and on a GPU. */
#ifndef BLURRY_TESTS_CUDA_OPERATOR_CASE_H
#define BLURRY_TESTS_CUDA_OPERATOR_CASE_H
#include "kernels/blurry/blurry.h"
#include "kernels/cuda.h"

#include <vector>

struct operator_case {
    blurry_dtype dtype;
    int64_t B, L, H, Hkv, Dk, Dv, M;
    double T; /* of head 0; head h has T + h * T_step */
    double T_step;
    int decay, relative;
    int64_t position; /* of sequence 0; sequence b stands at position + 3 b */
    int states;       /* entry and exit slots with their gradients */
    int packed;       /* lengths 0, 1 and the rest, where B allows */
    int period;       /* d_period too */
    uint64_t seed;
};

/* Largest relative error ||got - want|| / ||want|| over all results; the name of the worst one. Negative:
 * failed. */
struct operator_errors {
    double worst;
    const char *which;
};
operator_errors operator_case_run(const operator_case &c);
void operator_case_print(const operator_case &c, const operator_errors &e, double tolerance);

#endif
