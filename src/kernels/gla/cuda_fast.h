/* Gated linear attention in bf16 on tensor cores, for the shapes that fit. */
#ifndef BLURRY_KERNELS_GLA_CUDA_FAST_H
#define BLURRY_KERNELS_GLA_CUDA_FAST_H
#include "kernels/gla/gla.h"

/* element: bytes of an activation. The other functions are for shapes that fit. */
bool gla_fast_fits(const gla_args *a, size_t element);
void gla_fast_sizes(const gla_args *a, kernel_sizes *sizes);
void gla_fast_forward(const kernel_run *run, const gla_args *a);
void gla_fast_backward(const kernel_run *run, const gla_args *a);

#endif
