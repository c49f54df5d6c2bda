/* blurry/device.h: the CPU's side, and the way to CUDA's. */
#include "device/gpu.h"

#include "base/memory.h"
#include "base/status.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* *gpu is NULL for the CPU. */
static blurry_status find(blurry_device device, const device_gpu **gpu)
{
    *gpu = NULL;
    if (device == BLURRY_DEVICE_CPU) return BLURRY_OK;
    if (device != BLURRY_DEVICE_CUDA)
        return status_fail(BLURRY_E_INVALID, "device is %d: give BLURRY_DEVICE_CPU or BLURRY_DEVICE_CUDA",
                           (int)device);
    *gpu = device_gpu_services();
    if (*gpu) return BLURRY_OK;
    return status_fail(BLURRY_E_UNSUPPORTED,
                       "device is cuda: this build has the cpu only; build with nvcc in PATH and "
                       "-DBLURRY_CUDA=ON, or use device=cpu");
}

blurry_status blurry_device_check(blurry_device device)
{
    const device_gpu *gpu;
    STATUS_TRY(find(device, &gpu));
    return gpu ? gpu->check() : BLURRY_OK;
}

static void cpu_name(char *name, size_t bytes)
{
    char line[256], model[256] = "cpu";
    FILE *info = fopen("/proc/cpuinfo", "r");
    while (info && fgets(line, sizeof line, info))
        if (sscanf(line, "model name : %255[^\n]", model) == 1) break;
    if (info) fclose(info);
    snprintf(name, bytes, "%s", model);
}

blurry_status blurry_device_name(blurry_device device, char *name, size_t bytes)
{
    const device_gpu *gpu;
    STATUS_TRY(find(device, &gpu));
    if (!name || bytes == 0) return status_fail(BLURRY_E_INVALID, "name is NULL or has no bytes: give some");
    if (gpu) return gpu->name(name, bytes);
    cpu_name(name, bytes);
    return BLURRY_OK;
}

blurry_status blurry_device_alloc(blurry_device device, size_t bytes, void **memory)
{
    const device_gpu *gpu;
    if (!memory) return status_fail(BLURRY_E_INVALID, "memory is NULL: give the address of a pointer");
    *memory = NULL;
    STATUS_TRY(find(device, &gpu));
    return gpu ? gpu->alloc(bytes, memory) : memory_alloc(memory, bytes, 1, "memory");
}

void blurry_device_free(blurry_device device, void *memory)
{
    const device_gpu *gpu;
    if (!memory || find(device, &gpu) != BLURRY_OK) return;
    if (gpu)
        gpu->release(memory);
    else
        memory_free(memory);
}

blurry_status blurry_device_copy(blurry_device device, void *to, const void *from, size_t bytes)
{
    const device_gpu *gpu;
    STATUS_TRY(find(device, &gpu));
    if (bytes == 0) return BLURRY_OK;
    if (!to || !from)
        return status_fail(BLURRY_E_INVALID, "%s is NULL: give %zu bytes", to ? "from" : "to", bytes);
    if (gpu) return gpu->copy(to, from, bytes);
    memmove(to, from, bytes);
    return BLURRY_OK;
}

blurry_status blurry_device_memory(blurry_device device, size_t *free_bytes, size_t *total_bytes)
{
    const device_gpu *gpu;
    size_t available, total;
    STATUS_TRY(find(device, &gpu));
    if (gpu) {
        STATUS_TRY(gpu->memory(&available, &total));
    } else {
        size_t page = (size_t)sysconf(_SC_PAGESIZE);
        available = (size_t)sysconf(_SC_AVPHYS_PAGES) * page;
        total = (size_t)sysconf(_SC_PHYS_PAGES) * page;
    }
    if (free_bytes) *free_bytes = available;
    if (total_bytes) *total_bytes = total;
    return BLURRY_OK;
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static blurry_status cpu_time(const blurry_timing *how, blurry_work work, void *context, double *seconds)
{
    for (int i = 0; i < how->warmup; i++) STATUS_TRY(work(context, NULL));
    for (int i = 0; i < how->repeats; i++) {
        double start = now();
        for (int n = 0; n < how->calls; n++) STATUS_TRY(work(context, NULL));
        seconds[i] = (now() - start) / how->calls;
    }
    return BLURRY_OK;
}

blurry_status blurry_device_time(blurry_device device, const blurry_timing *how, blurry_work work,
                                 void *context, double *seconds)
{
    const device_gpu *gpu;
    STATUS_TRY(find(device, &gpu));
    if (!how || !work || !seconds)
        return status_fail(BLURRY_E_INVALID, "%s is NULL: give one",
                           !how    ? "how"
                           : !work ? "work"
                                   : "seconds");
    if (how->warmup < 0 || how->repeats < 0 || how->calls < 1)
        return status_fail(BLURRY_E_INVALID, "warmup is %d, repeats %d, calls %d: give at least 0, 0 and 1",
                           how->warmup, how->repeats, how->calls);
    return gpu ? gpu->time(how, work, context, seconds) : cpu_time(how, work, context, seconds);
}
