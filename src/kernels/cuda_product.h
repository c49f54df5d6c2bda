/* A matrix product by a plain kernel: for shapes that cuBLASLt refuses. */
#ifndef BLURRY_KERNELS_CUDA_PRODUCT_H
#define BLURRY_KERNELS_CUDA_PRODUCT_H
#include "kernels/cuda_blas.h"

#ifdef __cplusplus
extern "C" {
#endif

/* As cuda_blas_multiply. One thread per element, sums in the order of k. */
void cuda_plain_product(const kernel_run *run, const cuda_blas_product *p);

#ifdef __cplusplus
}
#endif
#endif
