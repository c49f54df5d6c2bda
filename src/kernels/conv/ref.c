/* Reference short convolution. */
#include "kernels/conv/conv.h"
#include "kernels/variant.h"

#include <math.h>

/* x of sequence b at token t, where t < 0 is carried state. */
static real input_at(const conv_args *a, int64_t b, int64_t t, int64_t c)
{
    if (t >= 0) return ((const real *)a->x)[(b * a->length + t) * a->channels + c];
    int64_t place = t + a->kernel - 1;
    return a->state_in ? ((const real *)a->state_in)[(b * (a->kernel - 1) + place) * a->channels + c] : 0;
}

static real convolved(const conv_args *a, int64_t b, int64_t t, int64_t c)
{
    const real *w = (const real *)a->weight + c * a->kernel;
    real sum = 0;
    for (int64_t i = 0; i < a->kernel; i++) sum += w[i] * input_at(a, b, t - a->kernel + 1 + i, c);
    return sum;
}

KERNEL(conv_forward, conv_args)
{
    for (int64_t b = 0; b < a->batch; b++)
        for (int64_t c = 0; c < a->channels; c++) {
            for (int64_t t = 0; t < a->length; t++) {
                real x = convolved(a, b, t, c);
                ((real *)a->y)[(b * a->length + t) * a->channels + c] = a->silu ? x / (1 + (real)exp(-x)) : x;
            }
            /* Oldest first, so that reading stays ahead of writing where both states are the same memory. */
            for (int64_t i = 0; a->state_out && i < a->kernel - 1; i++)
                ((real *)a->state_out)[(b * (a->kernel - 1) + i) * a->channels + c] =
                    input_at(a, b, a->length - a->kernel + 1 + i, c);
        }
}

static real d_convolved(const conv_args *a, int64_t b, int64_t t, int64_t c)
{
    real d = ((const real *)a->d_y)[(b * a->length + t) * a->channels + c];
    if (!a->silu) return d;
    real x = convolved(a, b, t, c), s = 1 / (1 + (real)exp(-x));
    return d * s * (1 + x * (1 - s));
}

KERNEL(conv_backward, conv_args)
{
    for (int64_t b = 0; b < a->batch; b++)
        for (int64_t c = 0; c < a->channels; c++) {
            const real *w = (const real *)a->weight + c * a->kernel;
            real *d_w = (real *)a->d_weight + c * a->kernel;
            for (int64_t t = 0; t < a->length; t++) {
                real sum = 0;
                for (int64_t i = 0; i < a->kernel; i++) {
                    int64_t later = t + a->kernel - 1 - i;
                    if (later < a->length) sum += w[i] * d_convolved(a, b, later, c);
                    d_w[i] += d_convolved(a, b, t, c) * input_at(a, b, t - a->kernel + 1 + i, c);
                }
                ((real *)a->d_x)[(b * a->length + t) * a->channels + c] = sum;
            }
        }
}
