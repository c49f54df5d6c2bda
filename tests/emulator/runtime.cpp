/* The host side of the emulated runtime: memory, streams that run at once, graphs as lists of actions. */
#include "emulator.h"

#include <chrono>
#include <vector>

struct CUstream_st {
    std::vector<std::function<void()>> *recording;
};
struct CUevent_st {
    std::chrono::steady_clock::time_point at;
};
struct CUgraph_st {
    std::vector<std::function<void()>> actions;
};
struct CUgraphExec_st {
    std::vector<std::function<void()>> actions;
};

static thread_local cudaError_t last_error;

static cudaError_t keep(cudaError_t error)
{
    if (error != cudaSuccess) last_error = error;
    return error;
}

void emulator_record(cudaStream_t stream, std::function<void()> action)
{
    if (stream && stream->recording)
        stream->recording->push_back(action);
    else
        action();
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
    return e == cudaSuccess ? "no error" : "emulated error";
}
const char *cudaGetErrorName(cudaError_t e)
{
    return e == cudaSuccess ? "cudaSuccess" : "cudaErrorEmulated";
}
/* EMULATOR_DEVICES=0 plays a machine without a GPU. */
cudaError_t cudaGetDeviceCount(int *count)
{
    const char *wish = getenv("EMULATOR_DEVICES");
    *count = wish ? atoi(wish) : 1;
    return *count ? cudaSuccess : keep(cudaErrorNoDevice);
}
cudaError_t cudaSetDevice(int device)
{
    return device ? keep(cudaErrorInvalidDevice) : cudaSuccess;
}
cudaError_t cudaGetDevice(int *device)
{
    *device = 0;
    return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int device)
{
    if (device) return keep(cudaErrorInvalidDevice);
    *p = cudaDeviceProp();
    strcpy(p->name, "emulator");
    p->major = 9, p->multiProcessorCount = 4, p->l2CacheSize = 1 << 20;
    p->totalGlobalMem = (size_t)1 << 32, p->sharedMemPerBlockOptin = 227 * 1024;
    return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int)
{
    switch (attribute) {
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
        *value = 227 * 1024;
        break;
    case cudaDevAttrMultiProcessorCount:
        *value = 4;
        break;
    case cudaDevAttrComputeCapabilityMajor:
        *value = 9;
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
    if (!*memory) return keep(cudaErrorMemoryAllocation);
    memset(*memory, 0xff, bytes);
    return cudaSuccess;
}
cudaError_t cudaFree(void *memory)
{
    free(memory);
    return cudaSuccess;
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
    return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind,
                            cudaStream_t stream)
{
    emulator_record(stream, [=] { memcpy(to, from, bytes); });
    return cudaSuccess;
}
cudaError_t cudaMemset(void *to, int value, size_t bytes)
{
    memset(to, value, bytes);
    return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream)
{
    emulator_record(stream, [=] { memset(to, value, bytes); });
    return cudaSuccess;
}
cudaError_t cudaStreamCreate(cudaStream_t *stream)
{
    *stream = new CUstream_st();
    return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned)
{
    return cudaStreamCreate(stream);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    delete stream;
    return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t)
{
    return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t)
{
    return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize(void)
{
    return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t *event)
{
    *event = new CUevent_st();
    return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned)
{
    return cudaEventCreate(event);
}
cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    delete event;
    return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t)
{
    event->at = std::chrono::steady_clock::now();
    return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t)
{
    return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t stop)
{
    *ms = std::chrono::duration<float, std::milli>(stop->at - start->at).count();
    return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned)
{
    return cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode)
{
    if (!stream || stream->recording) return keep(cudaErrorInvalidValue);
    stream->recording = new std::vector<std::function<void()>>();
    return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
    if (!stream || !stream->recording) return keep(cudaErrorInvalidValue);
    *graph = new CUgraph_st{*stream->recording};
    delete stream->recording;
    stream->recording = nullptr;
    return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long)
{
    *exec = new CUgraphExec_st{graph->actions};
    return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t)
{
    for (const std::function<void()> &action : exec->actions) action();
    return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    delete graph;
    return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    delete exec;
    return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void *, enum cudaFuncAttribute, int)
{
    return cudaSuccess;
}
