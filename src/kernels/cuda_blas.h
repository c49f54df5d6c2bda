/* Matrix products on a CUDA device through cuBLASLt, behind one function. All matrices are row-major.
 *
 * A context belongs to one device object: it has its own workspace and cache of algorithms, so
 * several models may run at once, each from its own thread. Algorithms come from cuBLASLt's heuristics alone,
 * never from measurements, and exclude reductions by atomics: the same shapes give the same bits on every
 * run. Products may be captured into a graph once their shape was seen (the first step of a training is not
 * captured). */
#ifndef BLURRY_KERNELS_CUDA_BLAS_H
#define BLURRY_KERNELS_CUDA_BLAS_H
#include "kernels/kernel.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum cuda_blas_type { CUDA_BLAS_F32, CUDA_BLAS_BF16 } cuda_blas_type;

/* D_i [m,n] = alpha op(A_i) [m,k] op(B_i) [k,n] + beta C_i [m,n] + bias [n]  for i < batch. Sums are in
 * float. C may be D; with beta 0 it is not read and may be NULL. */
typedef struct cuda_blas_product {
    int64_t m, n, k;
    int trans_a, trans_b;
    float alpha, beta;
    cuda_blas_type type;     /* of A and B */
    cuda_blas_type type_out; /* of C, D and bias: `type`, or float */
    const void *a, *b, *c, *bias;
    void *d;
    int64_t lda, ldb, ldc, ldd; /* elements between rows as stored */
    int64_t batch, stride_a, stride_b, stride_c,
        stride_d; /* batch 0 means 1; a stride of 0 shares one matrix */
} cuda_blas_product;

/* Queues the product on run->stream. A failure is kept and reported by device_sync. */
void cuda_blas_multiply(const kernel_run *run, const cuda_blas_product *p);

/* ---- for the device: returns NULL and writes a message [size] on failure ---- */
struct cuda_blas *cuda_blas_create(int tf32, char *message, size_t size);
void cuda_blas_destroy(struct cuda_blas *blas);
/* The first failure since the last call, in words; NULL: none. */
const char *cuda_blas_take_failure(struct cuda_blas *blas);

#ifdef __cplusplus
}
#endif
#endif
