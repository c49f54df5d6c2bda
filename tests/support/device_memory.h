/* Memory that both a device and the test can read and write. On a GPU it is managed memory; wait for the
 * device before touching it. */
#ifndef BLURRY_TEST_DEVICE_MEMORY_H
#define BLURRY_TEST_DEVICE_MEMORY_H
#include "device/device.h"

#ifdef BLURRY_TEST_CUDA
enum { TEST_ON_CUDA = 1 };
#else
enum { TEST_ON_CUDA = 0 };
#endif

/* Under the emulator long tests take a sample of their cases. */
#if defined(BLURRY_TEST_CUDA) && !defined(BLURRY_TEST_GPU)
enum { TEST_EMULATED = 1 };
#else
enum { TEST_EMULATED = 0 };
#endif

void *test_device_memory(const device *dev, size_t bytes); /* NULL: none left */
void test_device_free(const device *dev, void *memory);

#endif
