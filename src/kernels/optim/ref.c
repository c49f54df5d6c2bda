/* Reference optimiser and reductions. */
#include "kernels/optim/optim.h"
#include "kernels/variant.h"

#include <math.h>

KERNEL(adamw, adamw_args)
{
    const adamw_scalars *s = a->scalars;
    const real *grad = a->grad;
    real *p = a->param, *m = a->m, *v = a->v, *copy = a->copy;
    real b1 = (real)s->beta1, b2 = (real)s->beta2, eps = (real)s->eps, scale = (real)s->grad_scale;
    real rate = (real)(s->lr / (1 - pow(s->beta1, s->step))), root = (real)sqrt(1 - pow(s->beta2, s->step));
    for (int64_t i = 0; i < a->count && s->bad_step == 0; i++) {
        real shrink = (real)(1 - (i < a->decayed ? s->lr * s->weight_decay : 0));
        real g = grad[i] * scale;
        m[i] = b1 * m[i] + (1 - b1) * g;
        v[i] = b2 * v[i] + (1 - b2) * g * g;
        p[i] = shrink * p[i] - rate * m[i] / ((real)sqrt(v[i]) / root + eps);
        if (copy) copy[i] = p[i];
    }
}

KERNEL(sum_squares, reduce_args)
{
    double sum = 0;
    for (int64_t i = 0; i < a->count; i++) sum += (double)((const real *)a->x)[i] * ((const real *)a->x)[i];
    *a->out += sum;
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
    double norm = a->average * sqrt(*a->sum_squares);
    a->scalars->grad_scale = a->average * (a->limit > 0 && norm > a->limit ? a->limit / norm : 1);
    if (a->norm) *a->norm = norm;
    if (a->scalars->bad_step == 0 && !(isfinite(norm) && (!a->loss || isfinite(*a->loss))))
        a->scalars->bad_step = a->scalars->step;
}
