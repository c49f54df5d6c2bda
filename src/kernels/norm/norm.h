/* Normalisations over the last index. */
#ifndef BLURRY_KERNELS_NORM_H
#define BLURRY_KERNELS_NORM_H
#include "kernels/kernel.h"

/* Over the whole width. rmsnorm: y = x * rstd * weight, rstd = 1/sqrt(mean(x^2) + eps).
 * layernorm: y = (x - mean) * rstd * weight + bias, rstd = 1/sqrt(mean((x - mean)^2) + eps).
 * x, y, d_y, d_x [rows, width]; weight, bias, d_weight, d_bias [width]; mean, rstd [rows] written by forward
 * (NULL: not wanted) and read by backward (required). d_residual (NULL or [rows, width], may be d_x): added
 * to d_x, which is the gradient of a residual stream x that feeds this norm and the sum after it. With
 * residual_place (NULL or [rows]) d_residual has some rows alone, one after another, and is not d_x: row r is
 * added to by row residual_place[r] of it, or by none where that is -1. */
typedef struct norm_args {
    int64_t rows, width;
    double eps;
    const void *x, *weight, *bias; /* bias: layernorm only */
    void *y, *mean, *rstd;         /* mean: layernorm only */
    const void *d_y, *d_residual;
    const int64_t *residual_place;
    void *d_x, *d_weight, *d_bias;
} norm_args;

/* The row of d_residual that belongs to row r; -1: none. */
KERNEL_INLINE int64_t norm_residual_row(const norm_args *a, int64_t r)
{
    return !a->d_residual ? -1 : a->residual_place ? a->residual_place[r] : r;
}

/* headnorm: per head RMSNorm with a gate. x, gate, y [rows, heads, width], weight [width] shared by all
 * heads: y = x * rstd * weight * SiLU(gate); gate NULL: no gate. rstd [rows, heads] as above. */
typedef struct headnorm_args {
    int64_t rows, heads, width;
    double eps;
    const void *x, *gate, *weight;
    void *y, *rstd;
    const void *d_y;
    void *d_x, *d_gate, *d_weight;
} headnorm_args;

/* l2norm: y = x / sqrt(sum(x^2) + eps) over width. x, y [rows, width] with rows = tokens * heads. Backward
 * reads x, d_y. */
typedef struct l2norm_args {
    int64_t rows, width;
    double eps;
    const void *x;
    void *y;
    const void *d_y;
    void *d_x; /* may be d_y */
} l2norm_args;

#endif
