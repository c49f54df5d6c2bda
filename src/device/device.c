/* Creation, memory and failures of a device. */
#include "device/device.h"

#include "base/memory.h"
#include "base/status.h"
#include "base/threads.h"
#include "kernels/blas.h"

#include <string.h>

/* Scratch that every operation without a sizes slot may count on. */
enum { SCRATCH_AT_LEAST = 1 << 16 };

blurry_status device_create(device **dev, const device_options *options)
{
    if (!dev || !options)
        return status_fail(BLURRY_E_INVALID, "%s is NULL: give one", dev ? "options" : "dev");
    *dev = NULL;
    if (options->kind != DEVICE_CPU)
        return status_fail(BLURRY_E_UNSUPPORTED, "device is cuda: this build has the cpu only");
    if (options->dtype != BLURRY_F32 && options->dtype != BLURRY_F64)
        return status_fail(BLURRY_E_INVALID, "dtype is %d: give BLURRY_F32 or BLURRY_F64",
                           (int)options->dtype);
    if (options->threads < 0 || options->threads > THREADS_MAX)
        return status_fail(BLURRY_E_INVALID, "threads is %d: give 0 (all cores) to %d", options->threads,
                           THREADS_MAX);
    void *memory = NULL;
    STATUS_TRY(memory_alloc(&memory, 1, sizeof(device), "device"));
    device *d = memory;
    d->kind = DEVICE_CPU;
    d->dtype = options->dtype;
    d->element = d->param_element = options->dtype == BLURRY_F64 ? sizeof(double) : sizeof(float);
    d->threads = options->threads ? options->threads : threads_default();
    d->reference = options->reference != 0;
    d->ops = device_cpu_table(d->dtype, d->reference ? -1 : (int)cpu_isa_select());
    d->run = (kernel_run){.threads = d->threads, .element = d->element};
    blas_init();
    blurry_status status = device_reserve(d, SCRATCH_AT_LEAST);
    if (status != BLURRY_OK) device_destroy(&d);
    *dev = d;
    return status;
}

void device_destroy(device **dev)
{
    if (!dev || !*dev) return;
    memory_free((*dev)->run.scratch);
    memory_free(*dev);
    *dev = NULL;
}

blurry_status device_alloc(device *dev, size_t bytes, void **memory)
{
    (void)dev;
    return memory_alloc(memory, bytes, 1, "device memory");
}

void device_free(device *dev, void *memory)
{
    (void)dev;
    memory_free(memory);
}

blurry_status device_upload(device *dev, void *to, const void *from_host, size_t bytes)
{
    device_copy(dev, to, from_host, bytes);
    return BLURRY_OK;
}

blurry_status device_download(device *dev, void *to_host, const void *from, size_t bytes)
{
    device_copy(dev, to_host, from, bytes);
    return BLURRY_OK;
}

void device_copy(device *dev, void *to, const void *from, size_t bytes)
{
    (void)dev;
    if (bytes) memmove(to, from, bytes);
}

void device_zero(device *dev, void *memory, size_t bytes)
{
    (void)dev;
    if (bytes) memset(memory, 0, bytes);
}

blurry_status device_reserve(device *dev, size_t bytes)
{
    if (bytes <= dev->run.scratch_bytes) return BLURRY_OK;
    void *larger = NULL;
    STATUS_TRY(memory_alloc(&larger, bytes, 1, "scratch of the device"));
    memory_free(dev->run.scratch);
    dev->run.scratch = larger;
    dev->run.scratch_bytes = bytes;
    return BLURRY_OK;
}

blurry_status device_sync(device *dev)
{
    blurry_status failure = dev->failure;
    dev->failure = BLURRY_OK;
    return failure == BLURRY_OK ? BLURRY_OK : status_fail(failure, "%s", dev->message);
}
