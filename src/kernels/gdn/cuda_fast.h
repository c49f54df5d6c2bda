/* The gated delta rule in bf16 for heads up to 128 wide: entries of cuda_fast.cu. Internal to
 * kernels/gdn/cuda*. */
#ifndef BLURRY_KERNELS_GDN_CUDA_FAST_H
#define BLURRY_KERNELS_GDN_CUDA_FAST_H
#include "kernels/gdn/gdn.h"

bool gdn_fast_fits(const gdn_args *a);
void gdn_fast_sizes(const gdn_args *a, kernel_sizes *sizes);
void gdn_fast_forward(const kernel_run *run, const gdn_args *a);
void gdn_fast_backward(const kernel_run *run, const gdn_args *a);

/* The next `bytes` of a workspace. */
static inline void *gdn_take(char **memory, size_t bytes)
{
    void *piece = *memory;
    *memory += bytes;
    return piece;
}

#endif
