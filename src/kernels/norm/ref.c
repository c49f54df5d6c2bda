/* Reference normalisations. */
#include "kernels/norm/norm.h"
#include "kernels/variant.h"

#include <math.h>

static real dot(const real *x, const real *y, int64_t n)
{
    real sum = 0;
    for (int64_t i = 0; i < n; i++) sum += x[i] * y[i];
    return sum;
}

static real rstd_of(const real *x, int64_t n, double eps)
{
    return 1 / (real)sqrt(dot(x, x, n) / n + eps);
}

KERNEL(rmsnorm_forward, norm_args)
{
    const real *w = a->weight;
    int64_t n = a->width;
    for (int64_t r = 0; r < a->rows; r++) {
        const real *x = (const real *)a->x + r * n;
        real *y = (real *)a->y + r * n, rstd = rstd_of(x, n, a->eps);
        for (int64_t i = 0; i < n; i++) y[i] = x[i] * rstd * w[i];
        if (a->rstd) ((real *)a->rstd)[r] = rstd;
    }
}

/* With xhat = (x - mean) rstd: d_x = rstd (w d_y - xhat mean(xhat w d_y) [- mean(w d_y)]). */
static void norm_backward(const norm_args *a, int centred)
{
    const real *w = a->weight;
    real *d_w = a->d_weight, *d_b = a->d_bias;
    int64_t n = a->width;
    for (int64_t r = 0; r < a->rows; r++) {
        const real *x = (const real *)a->x + r * n, *d_y = (const real *)a->d_y + r * n;
        int64_t beside = norm_residual_row(a, r);
        const real *d_residual = beside >= 0 ? (const real *)a->d_residual + beside * n : NULL;
        real *d_x = (real *)a->d_x + r * n;
        real rstd = ((const real *)a->rstd)[r], mean = centred ? ((const real *)a->mean)[r] : 0;
        real along = 0, level = 0;
        for (int64_t i = 0; i < n; i++) {
            real xhat = (x[i] - mean) * rstd;
            along += xhat * w[i] * d_y[i] / n;
            if (centred) level += w[i] * d_y[i] / n;
            if (d_w) d_w[i] += xhat * d_y[i];
            if (centred && d_b) d_b[i] += d_y[i];
        }
        for (int64_t i = 0; i < n; i++) {
            real xhat = (x[i] - mean) * rstd, d = rstd * (w[i] * d_y[i] - xhat * along - level);
            d_x[i] = d_residual ? d_residual[i] + d : d;
        }
    }
}

KERNEL(rmsnorm_backward, norm_args)
{
    norm_backward(a, 0);
}

KERNEL(layernorm_forward, norm_args)
{
    const real *w = a->weight, *b = a->bias;
    int64_t n = a->width;
    for (int64_t r = 0; r < a->rows; r++) {
        const real *x = (const real *)a->x + r * n;
        real *y = (real *)a->y + r * n, mean = 0, square = 0;
        for (int64_t i = 0; i < n; i++) mean += x[i] / n;
        for (int64_t i = 0; i < n; i++) square += (x[i] - mean) * (x[i] - mean) / n;
        real rstd = 1 / (real)sqrt(square + a->eps);
        for (int64_t i = 0; i < n; i++) y[i] = (x[i] - mean) * rstd * w[i] + (b ? b[i] : 0);
        if (a->mean) ((real *)a->mean)[r] = mean;
        if (a->rstd) ((real *)a->rstd)[r] = rstd;
    }
}

KERNEL(layernorm_backward, norm_args)
{
    norm_backward(a, 1);
}

static real sigmoid(real x)
{
    return 1 / (1 + (real)exp(-x));
}

KERNEL(headnorm_forward, headnorm_args)
{
    const real *w = a->weight;
    int64_t n = a->width;
    for (int64_t r = 0; r < a->rows * a->heads; r++) {
        const real *x = (const real *)a->x + r * n, *gate = a->gate ? (const real *)a->gate + r * n : NULL;
        real *y = (real *)a->y + r * n, rstd = rstd_of(x, n, a->eps);
        for (int64_t i = 0; i < n; i++) y[i] = x[i] * rstd * w[i] * (gate ? gate[i] * sigmoid(gate[i]) : 1);
        if (a->rstd) ((real *)a->rstd)[r] = rstd;
    }
}

KERNEL(headnorm_backward, headnorm_args)
{
    const real *w = a->weight;
    real *d_w = a->d_weight;
    int64_t n = a->width;
    for (int64_t r = 0; r < a->rows * a->heads; r++) {
        const real *x = (const real *)a->x + r * n, *d_y = (const real *)a->d_y + r * n;
        const real *gate = a->gate ? (const real *)a->gate + r * n : NULL;
        real *d_x = (real *)a->d_x + r * n, rstd = ((const real *)a->rstd)[r], along = 0;
        for (int64_t i = 0; i < n; i++) {
            real silu = gate ? gate[i] * sigmoid(gate[i]) : 1;
            along += x[i] * rstd * w[i] * d_y[i] * silu / n;
            d_w[i] += x[i] * rstd * d_y[i] * silu;
        }
        for (int64_t i = 0; i < n; i++) {
            real s = gate ? sigmoid(gate[i]) : 1, silu = gate ? gate[i] * s : 1, xhat = x[i] * rstd,
                 d = d_y[i];
            if (gate) ((real *)a->d_gate)[r * n + i] = d * xhat * w[i] * s * (1 + gate[i] * (1 - s));
            d_x[i] = rstd * (w[i] * d * silu - xhat * along);
        }
    }
}

KERNEL(l2norm_forward, l2norm_args)
{
    int64_t n = a->width;
    for (int64_t r = 0; r < a->rows; r++) {
        const real *x = (const real *)a->x + r * n;
        real *y = (real *)a->y + r * n, inverse = 1 / (real)sqrt(dot(x, x, n) + a->eps);
        for (int64_t i = 0; i < n; i++) y[i] = x[i] * inverse;
    }
}

KERNEL(l2norm_backward, l2norm_args)
{
    int64_t n = a->width;
    for (int64_t r = 0; r < a->rows; r++) {
        const real *x = (const real *)a->x + r * n, *d_y = (const real *)a->d_y + r * n;
        real *d_x = (real *)a->d_x + r * n, inverse = 1 / (real)sqrt(dot(x, x, n) + a->eps);
        real along = dot(x, d_y, n) * inverse * inverse;
        for (int64_t i = 0; i < n; i++) d_x[i] = inverse * (d_y[i] - x[i] * along);
    }
}
