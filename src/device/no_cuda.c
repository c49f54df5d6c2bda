/* Stands in for the CUDA device in builds without it. */
#include "device/device.h"
#include "device/gpu.h"

#include "base/status.h"

blurry_status device_cuda_open(device *dev, const device_options *options)
{
    (void)dev, (void)options;
    return status_fail(BLURRY_E_UNSUPPORTED,
                       "device is cuda: this build has the cpu only; build with nvcc in PATH and "
                       "-DBLURRY_CUDA=ON, or use device=cpu");
}

const device_gpu *device_gpu_services(void)
{
    return NULL;
}
