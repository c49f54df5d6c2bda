/* The float kernels for heads up to 32 wide. */
#include "kernels/blurry/cuda_chunk_backward.cuh"

const chunk_kernels *chunk_kernels_32(int slots, bool is_bf16)
{
    return chunk_kernels_of<32>(slots, is_bf16);
}
