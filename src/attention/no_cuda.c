/* Stands in for the CUDA kernels of attention in builds without them. */
#include "kernels/blurry/blurry.h"
#include "kernels/blurry_step/cuda.h"

const bla_kernel *bla_kernel_cuda(blurry_dtype dtype)
{
    (void)dtype;
    return NULL;
}

const bla_step_cuda *bla_step_cuda_kernels(void)
{
    return NULL;
}
