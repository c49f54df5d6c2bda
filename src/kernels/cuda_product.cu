/* A matrix product by a plain kernel. */
#include "kernels/cuda_product.h"
#include "kernels/cuda.h"

enum { TILE_M = 8, TILE_N = 32 };

template <typename E, typename O> static __global__ void product_kernel(cuda_blas_product p)
{
    int64_t i = (int64_t)blockIdx.y * TILE_M + threadIdx.y, j = (int64_t)blockIdx.x * TILE_N + threadIdx.x;
    if (i >= p.m || j >= p.n) return;
    const E *a = (const E *)p.a + (int64_t)blockIdx.z * p.stride_a + (p.trans_a ? i : i * p.lda);
    const E *b = (const E *)p.b + (int64_t)blockIdx.z * p.stride_b + (p.trans_b ? j * p.ldb : j);
    int64_t step_a = p.trans_a ? p.lda : 1, step_b = p.trans_b ? 1 : p.ldb;
    float sum = 0;
    for (int64_t x = 0; x < p.k; x++) sum = fmaf(cuda_load(a + x * step_a), cuda_load(b + x * step_b), sum);
    float value = p.alpha * sum;
    if (p.beta != 0)
        value += p.beta * cuda_load((const O *)p.c + (int64_t)blockIdx.z * p.stride_c + i * p.ldc + j);
    if (p.bias) value += cuda_load((const O *)p.bias + j);
    cuda_store((O *)p.d + (int64_t)blockIdx.z * p.stride_d + i * p.ldd + j, value);
}

void cuda_plain_product(const kernel_run *run, const cuda_blas_product *p)
{
    if (p->m < 1 || p->n < 1) return;
    dim3 block(TILE_N, TILE_M);
    dim3 grid((unsigned)kernel_blocks(p->n, TILE_N), (unsigned)kernel_blocks(p->m, TILE_M),
              (unsigned)(p->batch ? p->batch : 1));
    cudaStream_t stream = (cudaStream_t)run->stream;
    if (p->type == CUDA_BLAS_F32)
        cuda_launch(product_kernel<float, float>, grid, block, 0, stream, *p);
    else if (p->type_out == CUDA_BLAS_BF16)
        cuda_launch(product_kernel<bf16, bf16>, grid, block, 0, stream, *p);
    else
        cuda_launch(product_kernel<bf16, float>, grid, block, 0, stream, *p);
}
