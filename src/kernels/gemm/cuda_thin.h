/* Linear maps in bf16 to a handful of outputs, which read x once and are bound by that. Shapes alone decide
 * which maps these are. */
#ifndef BLURRY_KERNELS_GEMM_CUDA_THIN_H
#define BLURRY_KERNELS_GEMM_CUDA_THIN_H
#include "kernels/gemm/gemm.h"

/* Each returns 0 without doing anything where the map is not its: y, d_x, d_weight of linear_args. */
int thin_forward(const kernel_run *run, const linear_args *a);
int thin_input_gradient(const kernel_run *run, const linear_args *a);
int thin_weight_gradient(const kernel_run *run, const linear_args *a);

#endif
