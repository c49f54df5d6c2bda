/* Matrix products. All matrices are row-major. */
#ifndef BLURRY_KERNELS_GEMM_H
#define BLURRY_KERNELS_GEMM_H
#include "kernels/kernel.h"

/* C_i [m,n] = alpha * op(A_i) [m,k] * op(B_i) [k,n] + beta * C_i for i < batch; op transposes where asked.
 * With beta = 0 C is written only. Strides are elements between the matrices of neighbouring batch entries.
 */
typedef struct gemm_args {
    int64_t m, n, k;
    int trans_a, trans_b;
    double alpha, beta;
    const void *a, *b;
    void *c;
    int64_t lda, ldb, ldc;                       /* elements between rows as stored */
    int64_t batch, stride_a, stride_b, stride_c; /* batch 0 means 1 */
} gemm_args;

/* Bytes of scratch that linear_backward counts on without asking: every CPU device has them. */
enum { LINEAR_SCRATCH = 1 << 20 };

/* Linear maps: y [rows, out] = x [rows, in] * weight [out, in]^T + bias [out] + residual [rows, out].
 * Forward reads x, weight, bias and residual (each NULL: none; residual may be y) and writes y.
 * Backward reads x, weight, d_y; writes d_x (NULL: not wanted; added to where `add_d_x` is set: one input
 * feeding several maps); adds to d_weight and d_bias (each NULL: not wanted).
 * With `maps` above 1, several maps of one shape read the same x: weight [maps, out, in] and y, d_y
 * [maps, rows, out] lie one after another, d_x is the sum over the maps; there is no bias and no residual. */
typedef struct linear_args {
    int64_t rows, in, out;
    int64_t maps; /* 0 means 1 */
    const void *x, *weight, *bias, *residual;
    void *y;
    int add_d_x;
    const void *d_y;
    void *d_x, *d_weight, *d_bias;
} linear_args;

#endif
