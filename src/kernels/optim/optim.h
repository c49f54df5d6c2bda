/* Optimiser and reductions over parameters. */
#ifndef BLURRY_KERNELS_OPTIM_H
#define BLURRY_KERNELS_OPTIM_H
#include "kernels/kernel.h"

#include <math.h>

/* What changes from step to step; lies in device memory. step counts from 1. */
typedef struct adamw_scalars {
    double beta1, beta2, eps;
    double shrink;     /* 1 - lr * weight_decay */
    double rate, root; /* lr / (1 - beta1^step), sqrt(1 - beta2^step) */
    double grad_scale; /* gradients are multiplied by it first (clipping, averaging); see clip */
    double step, lr;
    uint64_t arrived; /* clip's own: 0 before and after every call */
    double bad_step;  /* 0, or the first step whose gradient was not finite: there are no updates since */
} adamw_scalars;

/* m = b1 m + (1-b1) g;  v = b2 v + (1-b2) g^2;  p -= lr (m^ / (sqrt(v^) + eps) + decay * weight_decay * p)
 * with bias correction m^ = m / (1 - b1^step), v^ = v / (1 - b2^step), decay applied to p before the update
 * as in PyTorch. One call serves all tensors of a model: they lie in one block, the decayed ones first. */
typedef struct adamw_args {
    int64_t count;
    int64_t decayed; /* elements 0 .. decayed-1 are weight-decayed, the others are not */
    void *param, *m, *v;
    void *copy; /* NULL, or [count] the parameters in the activation type, written with them */
    void *grad;
    int clear; /* 1: grad is 0 afterwards, updated or not */
    const adamw_scalars *scalars;
} adamw_args;

/* sum: *out += sum x. nonfinite: *first = index of the first NaN or infinity, -1 if none. */
typedef struct reduce_args {
    int64_t count;
    const void *x;
    int activations; /* 0: x has the type of parameters and statistics; 1: that of activations */
    double *out;
    int64_t *first;
} reduce_args;

/* y = x: parameters as linear maps read them. */
typedef struct convert_args {
    int64_t count;
    const void *x; /* parameters */
    void *y;       /* activations */
} convert_args;

/* scalars->grad_scale = average * min(1, limit / norm), norm = average * sqrt(sum x^2); limit 0: no
 * clipping. *norm (NULL: not wanted) gets the norm. Where the norm or *loss (NULL: none) is not finite and
 * bad_step is 0, bad_step = step. */
typedef struct clip_args {
    int64_t count;
    const void *x; /* [count] gradients */
    const double *loss;
    double average, limit;
    double *norm;
    adamw_scalars *scalars;
} clip_args;

/* All of it but the sum. */
KERNEL_INLINE void clip_by(const clip_args *a, double sum_squares)
{
    adamw_scalars *s = a->scalars;
    double norm = a->average * sqrt(sum_squares);
    s->grad_scale = a->average * (a->limit > 0 && norm > a->limit ? a->limit / norm : 1);
    if (a->norm) *a->norm = norm;
    if (s->bad_step == 0 && !(isfinite(norm) && (!a->loss || isfinite(*a->loss)))) s->bad_step = s->step;
}

#endif
