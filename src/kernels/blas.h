/* Matrix products through OpenBLAS, spread over this library's own workers.
 *
 * OpenBLAS would bring a second pool of (spinning) threads, so it is asked for one thread per call and the
 * product is cut into blocks here. The cut depends on the shape alone: results are the same bits for every
 * thread count. */
#ifndef BLURRY_KERNELS_BLAS_H
#define BLURRY_KERNELS_BLAS_H
#include <stdint.h>

/* Row-major C [m,n] = alpha op(A) op(B) + beta C. */
typedef struct blas_product {
    int64_t m, n, k;
    int trans_a, trans_b;
    double alpha, beta;
    const void *a, *b;
    void *c;
    int64_t lda, ldb, ldc;
} blas_product;

/* Looks at how OpenBLAS was built; the serial build is never called by two threads at once. */
void blas_init(void);

/* On the calling thread alone. */
void blas_gemm_f32(const blas_product *p);
void blas_gemm_f64(const blas_product *p);

/* On up to `threads` workers. */
void blas_gemm_parallel_f32(int threads, const blas_product *p);
void blas_gemm_parallel_f64(int threads, const blas_product *p);

/* `count` independent products of one shape; operands of product i start i strides (elements) further. */
void blas_gemm_batch_f32(int threads, const blas_product *p, int64_t count, int64_t stride_a,
                         int64_t stride_b, int64_t stride_c);
void blas_gemm_batch_f64(int threads, const blas_product *p, int64_t count, int64_t stride_a,
                         int64_t stride_b, int64_t stride_c);

#endif
