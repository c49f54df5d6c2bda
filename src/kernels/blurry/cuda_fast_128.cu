/* Blurry attention with tensor cores, heads up to 128 wide. */
#include "kernels/blurry/cuda_fast_kernels.cuh"

const fast_kernels *fast_kernels_128(int slots, int decay)
{
    return kernels_for<128>(slots, decay);
}
