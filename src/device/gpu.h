/* What blurry/device.h needs of the CUDA runtime; device_gpu_services() is NULL in builds without CUDA. */
#ifndef BLURRY_DEVICE_GPU_H
#define BLURRY_DEVICE_GPU_H
#include "blurry/device.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct device_gpu {
    blurry_status (*check)(void);
    blurry_status (*name)(char *name, size_t bytes);
    blurry_status (*alloc)(size_t bytes, void **memory);
    void (*release)(void *memory);
    blurry_status (*copy)(void *to, const void *from, size_t bytes);
    blurry_status (*memory)(size_t *free_bytes, size_t *total_bytes);
    blurry_status (*time)(const blurry_timing *how, blurry_work work, void *context, double *seconds);
} device_gpu;

const device_gpu *device_gpu_services(void);

#ifdef __cplusplus
}
#endif
#endif
