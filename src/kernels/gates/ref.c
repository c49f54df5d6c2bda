/* Reference gates. */
#include "kernels/gates/first.h"
#include "kernels/gates/gates.h"
#include "kernels/variant.h"

#include <math.h>

KERNEL(slots_gate_forward, slots_gate_args)
{
    for (int64_t n = 0; n < a->batch * a->channels; n++) {
        int64_t b = n / a->channels, c = n % a->channels;
        real z = a->state_in ? ((const real *)a->state_in)[n] : -INFINITY;
        for (int64_t t = 0; t < a->length; t++) {
            int64_t e = (b * a->length + t) * a->channels + c;
            real s = ((const real *)a->s)[e], over = s - z;
            if (z == -INFINITY) {
                ((real *)a->g)[e] = SLOTS_FIRST_GATE;
                z = s;
                continue;
            }
            real g = -((over > 0 ? over : 0) + (real)log1p(exp(-fabs(over)))); /* -softplus(s - z) */
            ((real *)a->g)[e] = g;
            z -= g;
        }
        if (a->state_out) ((real *)a->state_out)[n] = z;
    }
}

/* With D_t the gradient of z_t: D_t = -d_g_t + d_g_{t+1} + e^{g_{t+1}} D_{t+1}, d_s_t = (1 - e^{g_t}) D_t. */
KERNEL(slots_gate_backward, slots_gate_args)
{
    for (int64_t n = 0; n < a->batch * a->channels; n++) {
        int64_t b = n / a->channels, c = n % a->channels;
        int fresh = !a->state_in || ((const real *)a->state_in)[n] == -INFINITY;
        real from_later = 0;
        for (int64_t t = a->length - 1; t >= 0; t--) {
            int64_t e = (b * a->length + t) * a->channels + c;
            real g = ((const real *)a->g)[e], d_g = fresh && t == 0 ? 0 : ((const real *)a->d_g)[e];
            real D = from_later - d_g;
            ((real *)a->d_s)[e] = (real)-expm1(g) * D;
            from_later = d_g + (real)exp(g) * D;
        }
    }
}

static real softplus(real x)
{
    return (x > 0 ? x : 0) + (real)log1p(exp(-fabs(x)));
}

KERNEL(gdn_gate_forward, gdn_gate_args)
{
    const real *x = a->x, *A = a->A, *bias = a->dt_bias;
    for (int64_t r = 0; r < a->rows; r++)
        for (int64_t h = 0; h < a->heads; h++)
            ((real *)a->g)[r * a->heads + h] = -(real)exp(A[h]) * softplus(x[r * a->heads + h] + bias[h]);
}

KERNEL(gdn_gate_backward, gdn_gate_args)
{
    const real *x = a->x, *A = a->A, *bias = a->dt_bias;
    for (int64_t r = 0; r < a->rows; r++)
        for (int64_t h = 0; h < a->heads; h++) {
            int64_t e = r * a->heads + h;
            real d = -(real)exp(A[h]) * ((const real *)a->d_g)[e], z = x[e] + bias[h];
            real d_x = d / (1 + (real)exp(-z));
            ((real *)a->d_x)[e] = d_x;
            ((real *)a->d_dt_bias)[h] += d_x;
            ((real *)a->d_A)[h] += d * softplus(z);
        }
}
