/* The fused head's kernels for Hopper (cuda_hopper.cu), as cuda.cu calls them. */
#ifndef BLURRY_KERNELS_XENT_CUDA_HOPPER_H
#define BLURRY_KERNELS_XENT_CUDA_HOPPER_H
#include "kernels/xent/cuda_shape.cuh"

enum { HOPPER_TILE = 128 };

bool xent_hopper_usable(void); /* on the current device */
void xent_hopper_scan(const kernel_run *run, const xent_block &b, int backward);
void xent_hopper_weight(const kernel_run *run, const xent_block &b);

#endif
