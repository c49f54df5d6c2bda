/* The float kernels for heads up to 64 wide. */
#include "kernels/blurry/cuda_chunk_backward.cuh"

const chunk_kernels *chunk_kernels_64(int slots, bool is_bf16)
{
    return chunk_kernels_of<64>(slots, is_bf16);
}
