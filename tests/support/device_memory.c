#include "support/device_memory.h"

#include <stdlib.h>

#ifdef BLURRY_TEST_GPU
int cudaMallocManaged(void **memory, size_t bytes, unsigned flags);
int cudaFree(void *memory);
enum { ATTACH_GLOBAL = 1 };

void *test_device_memory(const device *dev, size_t bytes)
{
    void *memory = NULL;
    if (dev->kind == DEVICE_CPU) return aligned_alloc(64, kernel_round64(bytes));
    return cudaMallocManaged(&memory, kernel_round64(bytes), ATTACH_GLOBAL) == 0 ? memory : NULL;
}

void test_device_free(const device *dev, void *memory)
{
    if (dev->kind == DEVICE_CPU)
        free(memory);
    else
        (void)cudaFree(memory);
}
#else
void *test_device_memory(const device *dev, size_t bytes)
{
    (void)dev; /* the emulator's device memory is host memory */
    return aligned_alloc(64, kernel_round64(bytes));
}

void test_device_free(const device *dev, void *memory)
{
    (void)dev;
    free(memory);
}
#endif
