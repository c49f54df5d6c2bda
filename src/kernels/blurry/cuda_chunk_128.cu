/* The float kernels for heads up to 128 wide. */
#include "kernels/blurry/cuda_chunk_backward.cuh"

const chunk_kernels *chunk_kernels_128(int slots, bool is_bf16)
{
    return chunk_kernels_of<128>(slots, is_bf16);
}
