/* NCCL behind collective.h: opened at run time, so that nothing needs it but several GPUs at once. */
#include "device/collective.h"

extern "C" {
#include "base/status.h"
}

#include <cuda_runtime.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#if defined(__CUDACC__) && __has_include(<nccl.h>)
#include <nccl.h>

static_assert(sizeof(ncclUniqueId) == COLLECTIVE_ID, "the id travels as so many bytes");

struct collective {
    ncclComm_t group;
};

struct nccl_functions {
    decltype(&ncclGetUniqueId) id;
    decltype(&ncclCommInitRank) join;
    decltype(&ncclCommDestroy) leave;
    decltype(&ncclAllReduce) sum;
    decltype(&ncclGetErrorString) words;
    int found;
};
static nccl_functions nccl;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void find(void)
{
    void *library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (!library) return;
    nccl.id = (decltype(nccl.id))dlsym(library, "ncclGetUniqueId");
    nccl.join = (decltype(nccl.join))dlsym(library, "ncclCommInitRank");
    nccl.leave = (decltype(nccl.leave))dlsym(library, "ncclCommDestroy");
    nccl.sum = (decltype(nccl.sum))dlsym(library, "ncclAllReduce");
    nccl.words = (decltype(nccl.words))dlsym(library, "ncclGetErrorString");
    nccl.found = nccl.id && nccl.join && nccl.leave && nccl.sum && nccl.words;
}

static blurry_status status_of(ncclResult_t result, const char *doing)
{
    if (result == ncclSuccess) return BLURRY_OK;
    return status_fail(BLURRY_E_DEVICE, "NCCL, %s: %s; NCCL_DEBUG=INFO tells more", doing,
                       nccl.words(result));
}

int collective_available(int processes)
{
    int gpus = 0;
    pthread_once(&once, find);
    return nccl.found && cudaGetDeviceCount(&gpus) == cudaSuccess && gpus >= processes;
}

static blurry_status need_library(void)
{
    pthread_once(&once, find);
    return nccl.found ? BLURRY_OK : status_fail(BLURRY_E_UNSUPPORTED, "NCCL is not here: install libnccl2");
}

blurry_status collective_id(char id[COLLECTIVE_ID])
{
    STATUS_TRY(need_library());
    return status_of(nccl.id((ncclUniqueId *)id), "making a group");
}

blurry_status collective_open(collective **c, const char id[COLLECTIVE_ID], int rank, int size)
{
    ncclUniqueId group;
    *c = NULL;
    STATUS_TRY(need_library());
    memcpy(&group, id, sizeof group);
    *c = (collective *)calloc(1, sizeof **c);
    if (!*c) return status_fail(BLURRY_E_MEMORY, "NCCL: out of memory");
    blurry_status status = status_of(nccl.join(&(*c)->group, size, group, rank), "joining a group");
    if (status != BLURRY_OK) {
        free(*c);
        *c = NULL;
    }
    return status;
}

void collective_close(collective **c)
{
    if (!*c) return;
    (void)nccl.leave((*c)->group);
    free(*c);
    *c = NULL;
}

blurry_status collective_sum(collective *c, device *dev, void *data, size_t count)
{
    return status_of(nccl.sum(data, data, count, ncclFloat, ncclSum, c->group, (cudaStream_t)dev->run.stream),
                     "summing gradients");
}

#else /* without NCCL's header, and under the emulator: sums go through the host */

int collective_available(int processes)
{
    (void)processes;
    return 0;
}

blurry_status collective_id(char id[COLLECTIVE_ID])
{
    (void)id;
    return status_fail(BLURRY_E_UNSUPPORTED, "this build has no NCCL");
}

blurry_status collective_open(collective **c, const char id[COLLECTIVE_ID], int rank, int size)
{
    (void)id, (void)rank, (void)size;
    *c = NULL;
    return status_fail(BLURRY_E_UNSUPPORTED, "this build has no NCCL");
}

void collective_close(collective **c)
{
    *c = NULL;
}

blurry_status collective_sum(collective *c, device *dev, void *data, size_t count)
{
    (void)c, (void)dev, (void)data, (void)count;
    return status_fail(BLURRY_E_UNSUPPORTED, "this build has no NCCL");
}
#endif

blurry_status collective_choose_gpu(int place)
{
    int gpus = 0;
    if (cudaGetDeviceCount(&gpus) != cudaSuccess || gpus < 1) {
        (void)cudaGetLastError(); /* making the device says what is missing */
        return BLURRY_OK;
    }
    return cudaSetDevice(place % gpus) == cudaSuccess
               ? BLURRY_OK
               : status_fail(BLURRY_E_DEVICE, "device is cuda: GPU %d cannot be used", place % gpus);
}
