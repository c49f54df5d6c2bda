/* Stands in for the CUDA device in builds without it. */
#include "device/device.h"
#include "device/collective.h"
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

blurry_status collective_choose_gpu(int place)
{
    (void)place;
    return BLURRY_OK; /* making the device says what is missing */
}

int collective_available(int processes)
{
    (void)processes;
    return 0;
}

blurry_status collective_id(char id[COLLECTIVE_ID])
{
    (void)id;
    return status_fail(BLURRY_E_UNSUPPORTED, "this build has the cpu only");
}

blurry_status collective_open(collective **c, const char id[COLLECTIVE_ID], int rank, int size)
{
    (void)id, (void)rank, (void)size;
    *c = NULL;
    return status_fail(BLURRY_E_UNSUPPORTED, "this build has the cpu only");
}

void collective_close(collective **c)
{
    *c = NULL;
}

blurry_status collective_sum(collective *c, device *dev, void *data, size_t count)
{
    (void)c, (void)dev, (void)data, (void)count;
    return status_fail(BLURRY_E_UNSUPPORTED, "this build has the cpu only");
}
