/* Products of the emulated device: the plain kernel stands in for cuBLASLt. */
#include "kernels/cuda_blas.h"
#include "kernels/cuda_product.h"

struct cuda_blas {
    int unused;
};

struct cuda_blas *cuda_blas_create(int, char *, size_t)
{
    static struct cuda_blas one;
    return &one;
}

void cuda_blas_destroy(struct cuda_blas *) {}

const char *cuda_blas_take_failure(struct cuda_blas *)
{
    return NULL;
}

void cuda_blas_multiply(const kernel_run *run, const cuda_blas_product *p)
{
    cuda_plain_product(run, p);
}
