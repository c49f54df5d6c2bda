/* Linear maps in bf16 whose sides are short, by kernels that leave room for others on a multiprocessor
 * (cuBLASLt's take one whole). Which maps they take depends on shapes alone. */
#ifndef BLURRY_KERNELS_GEMM_CUDA_SKINNY_H
#define BLURRY_KERNELS_GEMM_CUDA_SKINNY_H
#include "kernels/gemm/gemm.h"

enum { SKINNY_MOST = 384 }; /* the longest side */

/* Each returns 0 without doing anything where the map is not its: y, d_x, d_weight of linear_args. */
int skinny_forward(const kernel_run *run, const linear_args *a);
int skinny_input_gradient(const kernel_run *run, const linear_args *a);
int skinny_weight_gradient(const kernel_run *run, const linear_args *a);

#endif
