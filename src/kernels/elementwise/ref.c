/* Reference operations element by element. */
#include "kernels/elementwise/elementwise.h"
#include "kernels/variant.h"

#include <math.h>

static real sigmoid(real x)
{
    return x >= 0 ? 1 / (1 + (real)exp(-x)) : (real)exp(x) / (1 + (real)exp(x));
}

KERNEL(add, add_args)
{
    const real *x = a->a, *z = a->b;
    real *y = a->y, alpha = (real)a->alpha, beta = (real)a->beta;
    for (int64_t i = 0; i < a->count; i++) y[i] = z ? alpha * x[i] + beta * z[i] : alpha * x[i];
}

static real unary_value(unary_kind kind, real x, real limit)
{
    switch (kind) {
    case UNARY_SILU:
        return x * sigmoid(x);
    case UNARY_GELU:
        return (real)0.5 * x * (real)erfc(-x * M_SQRT1_2);
    case UNARY_SIGMOID:
        return sigmoid(x);
    case UNARY_LOGSIGMOID:
        return (x < 0 ? x : 0) - (real)log1p(exp(-fabs(x)));
    case UNARY_CLAMP:
        return x < -limit ? -limit : x > limit ? limit : x;
    case UNARY_KIND_COUNT:
        break;
    }
    return 0;
}

static real unary_slope(unary_kind kind, real x, real limit)
{
    real s = sigmoid(x);
    switch (kind) {
    case UNARY_SILU:
        return s * (1 + x * (1 - s));
    case UNARY_GELU:
        return (real)(0.5 * erfc(-x * M_SQRT1_2) + x * exp(-0.5 * x * x) * (0.5 * M_2_SQRTPI * M_SQRT1_2));
    case UNARY_SIGMOID:
        return s * (1 - s);
    case UNARY_LOGSIGMOID:
        return sigmoid(-x);
    case UNARY_CLAMP:
        return x >= -limit && x <= limit ? 1 : 0;
    case UNARY_KIND_COUNT:
        break;
    }
    return 0;
}

KERNEL(unary_forward, unary_args)
{
    const real *x = a->x;
    real *y = a->y, scale = a->scale == 0 ? 1 : (real)a->scale;
    for (int64_t i = 0; i < a->count; i++) y[i] = scale * unary_value(a->kind, x[i], (real)a->limit);
}

KERNEL(unary_backward, unary_args)
{
    const real *x = a->x, *d_y = a->d_y;
    real *d_x = a->d_x, scale = a->scale == 0 ? 1 : (real)a->scale;
    for (int64_t i = 0; i < a->count; i++)
        d_x[i] = d_y[i] * scale * unary_slope(a->kind, x[i], (real)a->limit);
}

KERNEL(swiglu_forward, swiglu_args)
{
    const real *gate = a->gate, *up = a->up;
    real *y = a->y;
    for (int64_t i = 0; i < a->count; i++) y[i] = gate[i] * sigmoid(gate[i]) * up[i];
}

KERNEL(swiglu_backward, swiglu_args)
{
    const real *gate = a->gate, *up = a->up, *d_y = a->d_y;
    real *d_gate = a->d_gate, *d_up = a->d_up;
    for (int64_t i = 0; i < a->count; i++) {
        real x = gate[i], s = sigmoid(x), d = d_y[i], u = up[i];
        d_up[i] = d * x * s;
        d_gate[i] = d * u * s * (1 + x * (1 - s));
    }
}

KERNEL(advance, advance_args)
{
    for (int64_t b = 0; b < a->batch; b++) a->position[b] += a->by;
}

KERNEL(collect, collect_args)
{
    real *gradient = a->gradient;
    for (int64_t i = 0; i < a->count; i++) gradient[i] = (real)((double)gradient[i] + a->values[i]);
}
