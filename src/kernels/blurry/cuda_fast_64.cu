/* Blurry attention with tensor cores, heads up to 64 wide. */
#include "kernels/blurry/cuda_fast_kernels.cuh"

const fast_kernels *fast_kernels_64(int slots, int decay)
{
    return kernels_for<64>(slots, decay);
}
