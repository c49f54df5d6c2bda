/* Reference optimiser and reductions. */
#include "kernels/optim/optim.h"
#include "kernels/variant.h"

#include <math.h>

KERNEL(adamw, adamw_args)
{
    const adamw_scalars *s = a->scalars;
    real *p = a->param, *m = a->m, *v = a->v, *copy = a->copy, *grad = a->grad;
    real b1 = (real)s->beta1, b2 = (real)s->beta2, eps = (real)s->eps, scale = (real)s->grad_scale;
    real rate = (real)s->rate, root = (real)s->root;
    for (int64_t i = 0; i < a->count && s->bad_step == 0; i++) {
        real shrink = i < a->decayed ? (real)s->shrink : 1;
        real g = grad[i] * scale;
        m[i] = b1 * m[i] + (1 - b1) * g;
        v[i] = b2 * v[i] + (1 - b2) * g * g;
        p[i] = shrink * p[i] - rate * m[i] / ((real)sqrt(v[i]) / root + eps);
        if (copy) copy[i] = p[i];
    }
    for (int64_t i = 0; i < a->count && a->clear; i++) grad[i] = 0;
}

KERNEL(sum, reduce_args)
{
    double sum = 0;
    for (int64_t i = 0; i < a->count; i++) sum += ((const real *)a->x)[i];
    *a->out += sum;
}

KERNEL(nonfinite, reduce_args)
{
    *a->first = -1;
    for (int64_t i = 0; i < a->count && *a->first < 0; i++)
        if (!isfinite(((const real *)a->x)[i])) *a->first = i;
}

KERNEL(convert, convert_args)
{
    for (int64_t i = 0; i < a->count; i++) ((real *)a->y)[i] = ((const real *)a->x)[i];
}

KERNEL(clip, clip_args)
{
    double sum = 0;
    for (int64_t i = 0; i < a->count; i++) sum += (double)((const real *)a->x)[i] * ((const real *)a->x)[i];
    clip_by(a, sum);
}
