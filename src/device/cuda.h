/* Inside of the CUDA device: what its C and CUDA parts share. */
#ifndef BLURRY_DEVICE_CUDA_H
#define BLURRY_DEVICE_CUDA_H
#include "device/device.h"

#ifdef __cplusplus
extern "C" {
#endif

const device_ops *device_cuda_table(blurry_dtype dtype);

#ifdef __cplusplus
}
#endif
#endif
