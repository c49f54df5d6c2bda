/* The plain kernels' face towards cuda.cu. */
#ifndef BLURRY_KERNELS_BLURRY_CUDA_DIRECT_H
#define BLURRY_KERNELS_BLURRY_CUDA_DIRECT_H
#include "kernels/blurry/cuda_call.h"

/* Workspace bytes; `blocks` is the most blocks worth having at once. */
size_t direct_forward_workspace(const bla_shape *s, int blocks);
size_t direct_backward_workspace(const bla_shape *s, int blocks);

void direct_forward(const bla_call *call, bool is_bf16, int blocks, void *workspace, cudaStream_t stream);
/* d_period and d_period_abs as in bla_backward. */
void direct_backward(const bla_call *call, bool is_bf16, int blocks, int64_t longest, double *d_period,
                     double *d_period_abs, void *workspace, cudaStream_t stream);

#endif
