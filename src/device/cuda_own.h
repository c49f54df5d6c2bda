/* Inside of the CUDA device: what its .cu files share. */
#ifndef BLURRY_DEVICE_CUDA_OWN_H
#define BLURRY_DEVICE_CUDA_OWN_H
#include "device/cuda_stream.h"
#include "device/device.h"

struct cuda_side;

struct cuda_own {
    cuda_stream stream;
    int tf32;
    struct cuda_side *side; /* NULL: none was reserved */
};

static inline struct cuda_own *cuda_own_of(device *dev)
{
    return (struct cuda_own *)dev->own;
}

/* A status for a failed call; OK for cudaSuccess. */
blurry_status cuda_status(cudaError_t error, const char *doing);
/* Operations cannot return a status: what goes wrong is kept for device_sync. */
void cuda_keep(device *dev, cudaError_t error, const char *doing);

/* ---- cuda_side.cu ---- */
extern const device_side cuda_side_functions;
void cuda_side_destroy(device *dev);
/* Keeps the failures of its products. */
void cuda_side_check(device *dev);

#endif
