/* Blurry attention with tensor cores, heads up to 32 wide. */
#include "kernels/blurry/cuda_fast_kernels.cuh"

const fast_kernels *fast_kernels_32(int slots, int decay)
{
    return kernels_for<32>(slots, decay);
}
