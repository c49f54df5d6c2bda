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

/* Linear map: y [rows, out] = x [rows, in] * weight [out, in]^T + bias [out].
 * Forward reads x, weight, bias (NULL: none) and writes y, or adds to it where `add` is set (residual).
 * Backward reads x, weight, d_y; writes d_x (NULL: not wanted; added to where `add_d_x` is set: one input
 * feeding several maps); adds to d_weight and d_bias (each NULL: not wanted). */
typedef struct linear_args {
    int64_t rows, in, out;
    const void *x, *weight, *bias;
    void *y;
    int add, add_d_x;
    const void *d_y;
    void *d_x, *d_weight, *d_bias;
} linear_args;

#endif
