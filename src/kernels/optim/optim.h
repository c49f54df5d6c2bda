/* Optimiser and reductions over parameters. */
#ifndef BLURRY_KERNELS_OPTIM_H
#define BLURRY_KERNELS_OPTIM_H
#include "kernels/kernel.h"

/* What changes from step to step; lies in device memory. step counts from 1. */
typedef struct adamw_scalars {
    double lr, beta1, beta2, eps, weight_decay;
    double step;
    double grad_scale; /* gradients are multiplied by it first (clipping, averaging); see clip */
    double bad_step;   /* 0, or the first step whose gradient was not finite: there are no updates since */
} adamw_scalars;

/* m = b1 m + (1-b1) g;  v = b2 v + (1-b2) g^2;  p -= lr (m^ / (sqrt(v^) + eps) + decay * weight_decay * p)
 * with bias correction m^ = m / (1 - b1^step), v^ = v / (1 - b2^step), decay applied to p before the update
 * as in PyTorch. One call serves all tensors of a model: they lie in one block, the decayed ones first. */
typedef struct adamw_args {
    int64_t count;
    int64_t decayed; /* elements 0 .. decayed-1 are weight-decayed, the others are not */
    void *param, *m, *v;
    void *copy; /* NULL, or [count] the parameters in the activation type, written with them */
    const void *grad;
    const adamw_scalars *scalars;
} adamw_args;

/* sum_squares: *out += sum x^2. nonfinite: *first = index of the first NaN or infinity, -1 if none. sum: *out
 * += sum x. */
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

/* scalars->grad_scale = average * min(1, limit / norm), norm = average * sqrt(*sum_squares); limit 0: no
 * clipping. *norm (NULL: not wanted) gets the norm. Where the norm or *loss (NULL: none) is not finite and
 * bad_step is 0, bad_step = step. */
typedef struct clip_args {
    const double *sum_squares, *loss;
    double average, limit;
    double *norm;
    adamw_scalars *scalars;
} clip_args;

#endif
