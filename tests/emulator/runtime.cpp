/* The host side of the emulated runtime: devices, errors and memory.
 * EMULATOR_... play machines on which something is wrong; they are read at each call. */
#include "streams.h"

#include <atomic>
#include <stdio.h>

static thread_local cudaError_t last_error;

cudaError_t emulator_keep(cudaError_t error)
{
    if (error != cudaSuccess) last_error = error;
    return error;
}

/* A kernel that went wrong leaves a process that can do nothing more on its GPU. */
static std::atomic<int> broken;

cudaError_t emulator_outcome(void)
{
    return broken ? emulator_keep(cudaErrorLaunchFailure) : cudaSuccess;
}

static long wish(const char *name)
{
    const char *text = getenv(name);
    return text ? atol(text) : 0;
}

/* EMULATOR_REFUSE_LAUNCH=N: the N-th launch from now is refused (too large, say), others are not. */
bool emulator_refuses(void)
{
    static std::atomic<long> launches;
    long which = wish("EMULATOR_REFUSE_LAUNCH");
    if (!which) {
        launches = 0;
        return false;
    }
    if (++launches != which) return false;
    (void)emulator_keep(cudaErrorLaunchOutOfResources);
    return true;
}

/* EMULATOR_FAIL_LAUNCH=N: the N-th kernel from now goes wrong; EMULATOR_FAIL_BLOCKS=N: one of N blocks does.
 */
bool emulator_goes_wrong(unsigned blocks)
{
    static std::atomic<long> kernels;
    long which = wish("EMULATOR_FAIL_LAUNCH");
    if (!which)
        kernels = 0;
    else if (++kernels == which)
        broken = 1;
    if (wish("EMULATOR_FAIL_BLOCKS") == (long)blocks) broken = 1;
    return broken;
}

cudaError_t cudaGetLastError(void)
{
    cudaError_t e = last_error;
    last_error = cudaSuccess;
    return e;
}
cudaError_t cudaPeekAtLastError(void)
{
    return last_error;
}
const char *cudaGetErrorString(cudaError_t e)
{
    return e == cudaSuccess                     ? "no error"
           : e == cudaErrorLaunchFailure        ? "unspecified launch failure"
           : e == cudaErrorLaunchOutOfResources ? "too many resources requested for launch"
                                                : "emulated error";
}
const char *cudaGetErrorName(cudaError_t e)
{
    return e == cudaSuccess                     ? "cudaSuccess"
           : e == cudaErrorLaunchFailure        ? "cudaErrorLaunchFailure"
           : e == cudaErrorLaunchOutOfResources ? "cudaErrorLaunchOutOfResources"
                                                : "cudaErrorEmulated";
}
/* EMULATOR_DEVICES=0 plays a machine without a GPU. */
cudaError_t cudaGetDeviceCount(int *count)
{
    const char *wish = getenv("EMULATOR_DEVICES");
    *count = wish ? atoi(wish) : 1;
    return *count ? cudaSuccess : emulator_keep(cudaErrorNoDevice);
}
cudaError_t cudaSetDevice(int device)
{
    return device ? emulator_keep(cudaErrorInvalidDevice) : cudaSuccess;
}
cudaError_t cudaGetDevice(int *device)
{
    *device = 0;
    return cudaSuccess;
}
/* EMULATOR_CAPABILITY=7.5 plays an older GPU. */
static void capability(int *major, int *minor)
{
    const char *text = getenv("EMULATOR_CAPABILITY");
    *major = 9, *minor = 0;
    if (text) sscanf(text, "%d.%d", major, minor);
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int device)
{
    if (device) return emulator_keep(cudaErrorInvalidDevice);
    *p = cudaDeviceProp();
    strcpy(p->name, "emulator");
    capability(&p->major, &p->minor);
    p->multiProcessorCount = 4, p->l2CacheSize = 1 << 20;
    p->totalGlobalMem = (size_t)1 << 32, p->sharedMemPerBlockOptin = 227 * 1024;
    return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int)
{
    int major, minor;
    capability(&major, &minor);
    switch (attribute) {
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
        *value = 227 * 1024;
        break;
    case cudaDevAttrMultiProcessorCount:
        *value = 4;
        break;
    case cudaDevAttrComputeCapabilityMajor:
        *value = major;
        break;
    case cudaDevAttrComputeCapabilityMinor:
        *value = minor;
        break;
    case cudaDevAttrL2CacheSize:
        *value = 1 << 20;
        break;
    default:
        *value = 0;
    }
    return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int *version)
{
    return cudaDriverGetVersion(version);
}

/* EMULATOR_MEMORY=BYTES makes larger requests fail. */
cudaError_t cudaMalloc(void **memory, size_t bytes)
{
    const char *wish = getenv("EMULATOR_MEMORY");
    size_t limit = wish ? strtoull(wish, nullptr, 10) : (size_t)1 << 32;
    *memory = bytes > limit ? nullptr : aligned_alloc(256, (bytes + 256) & ~(size_t)255);
    if (!*memory) return emulator_keep(cudaErrorMemoryAllocation);
    memset(*memory, 0xff, bytes);
    return emulator_outcome();
}
cudaError_t cudaFree(void *memory)
{
    emulator_drain(); /* frees after everything queued, as CUDA does */
    free(memory);
    return cudaSuccess;
}
cudaError_t cudaMallocAsync(void **memory, size_t bytes, cudaStream_t)
{
    return cudaMalloc(memory, bytes);
}
cudaError_t cudaFreeAsync(void *memory, cudaStream_t)
{
    return cudaFree(memory);
}
cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *pool, int)
{
    *pool = nullptr;
    return emulator_outcome();
}
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, enum cudaMemPoolAttr, void *)
{
    return emulator_outcome();
}
/* It keeps nothing. */
cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t, enum cudaMemPoolAttr, void *value)
{
    *(uint64_t *)value = 0;
    return emulator_outcome();
}
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t, size_t)
{
    return emulator_outcome();
}
cudaError_t cudaMallocHost(void **memory, size_t bytes)
{
    return cudaMalloc(memory, bytes);
}
cudaError_t cudaFreeHost(void *memory)
{
    return cudaFree(memory);
}
cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total)
{
    *free_bytes = *total = (size_t)1 << 32;
    return cudaSuccess;
}
cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind)
{
    memcpy(to, from, bytes);
    return emulator_outcome();
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind,
                            cudaStream_t stream)
{
    emulator_record(stream, [=] { memcpy(to, from, bytes); });
    return emulator_outcome();
}
cudaError_t cudaMemset(void *to, int value, size_t bytes)
{
    memset(to, value, bytes);
    return emulator_outcome();
}
cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream)
{
    emulator_record(stream, [=] { memset(to, value, bytes); });
    return emulator_outcome();
}
cudaError_t cudaFuncSetAttribute(const void *, enum cudaFuncAttribute, int)
{
    return cudaSuccess;
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *attributes, const void *)
{
    attributes->ptxVersion = 90;
    return cudaSuccess;
}
