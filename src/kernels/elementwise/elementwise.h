/* Operations element by element. Outputs may be the same memory as inputs. */
#ifndef BLURRY_KERNELS_ELEMENTWISE_H
#define BLURRY_KERNELS_ELEMENTWISE_H
#include "kernels/kernel.h"

/* add: y = alpha * a + beta * b. scale is add with b NULL. */
typedef struct add_args {
    int64_t count;
    double alpha, beta;
    const void *a, *b;
    void *y;
} add_args;

typedef enum unary_kind {
    UNARY_SILU, /* x sigmoid(x) */
    UNARY_GELU, /* x Phi(x), exact (erf) */
    UNARY_SIGMOID,
    UNARY_LOGSIGMOID,
    UNARY_CLAMP, /* to [-limit, limit]; the gradient is 1 inside and at the limits, 0 beyond */
    UNARY_KIND_COUNT
} unary_kind;

/* y = scale * f(x); backward: d_x = d_y * scale * f'(x), from x. */
typedef struct unary_args {
    unary_kind kind;
    int64_t count;
    double scale; /* 0 means 1 */
    double limit; /* of UNARY_CLAMP */
    const void *x;
    void *y;
    const void *d_y;
    void *d_x;
} unary_args;

/* y = SiLU(gate) * up. */
typedef struct swiglu_args {
    int64_t count;
    const void *gate, *up;
    void *y;
    const void *d_y;
    void *d_gate, *d_up;
} swiglu_args;

/* advance: position[b] += by, for carried positions. */
typedef struct advance_args {
    int64_t batch, by;
    int64_t *position;
} advance_args;

/* collect: gradient [count], of a parameter, += values, which an operator leaves in double on every device.
 */
typedef struct collect_args {
    int64_t count;
    const double *values;
    void *gradient;
} collect_args;

#endif
