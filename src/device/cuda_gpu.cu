/* blurry/device.h on CUDA: memory, copies, and times by events around calls or graph replays. */
extern "C" {
#include "base/status.h"
}
#include "device/gpu.h"
#include "kernels/cuda.h"

#include <stdio.h>

enum { OLDEST_MAJOR = 8 };

static blurry_status status_of(cudaError_t error, const char *doing)
{
    if (error == cudaSuccess) return BLURRY_OK;
    (void)cudaGetLastError(); /* reported here */
    if (error == cudaErrorMemoryAllocation)
        return status_fail(BLURRY_E_MEMORY,
                           "%s: out of device memory; make the sizes smaller, or use device=cpu", doing);
    return status_fail(BLURRY_E_DEVICE, "%s: %s; see whether nvidia-smi shows a GPU, or use device=cpu",
                       doing, cudaGetErrorString(error));
}

static blurry_status properties(cudaDeviceProp *gpu)
{
    int count = 0, current = 0;
    STATUS_TRY(status_of(cudaGetDeviceCount(&count), "device is cuda"));
    if (count < 1)
        return status_fail(BLURRY_E_DEVICE, "device is cuda: no NVIDIA GPU was found; use device=cpu");
    STATUS_TRY(status_of(cudaGetDevice(&current), "device is cuda"));
    return status_of(cudaGetDeviceProperties(gpu, current), "device is cuda");
}

static blurry_status check(void)
{
    cudaDeviceProp gpu;
    STATUS_TRY(properties(&gpu));
    if (gpu.major < OLDEST_MAJOR)
        return status_fail(
            BLURRY_E_DEVICE,
            "device is cuda: %s has compute capability %d.%d, too old: %d.0 is needed; use device=cpu",
            gpu.name, gpu.major, gpu.minor, (int)OLDEST_MAJOR);
    return BLURRY_OK;
}

static blurry_status name(char *text, size_t bytes)
{
    cudaDeviceProp gpu;
    STATUS_TRY(properties(&gpu));
    snprintf(text, bytes, "%s", gpu.name);
    return BLURRY_OK;
}

static blurry_status alloc(size_t bytes, void **memory)
{
    STATUS_TRY(status_of(cudaMalloc(memory, bytes ? bytes : 1), "device memory"));
    blurry_status status = status_of(cudaMemset(*memory, 0, bytes), "clearing device memory");
    if (status == BLURRY_OK) status = status_of(cudaDeviceSynchronize(), "clearing device memory");
    if (status == BLURRY_OK) return BLURRY_OK;
    (void)cudaFree(*memory);
    *memory = NULL;
    return status;
}

static void release(void *memory)
{
    (void)cudaFree(memory);
}

static blurry_status copy(void *to, const void *from, size_t bytes)
{
    STATUS_TRY(status_of(cudaDeviceSynchronize(), "work under way"));
    STATUS_TRY(status_of(cudaMemcpy(to, from, bytes, cudaMemcpyDefault), "a copy"));
    return status_of(cudaDeviceSynchronize(), "a copy");
}

static blurry_status memory(size_t *free_bytes, size_t *total_bytes)
{
    return status_of(cudaMemGetInfo(free_bytes, total_bytes), "asking for free device memory");
}

/* ---- times ---- */
struct stopwatch {
    cudaStream_t stream;
    cudaEvent_t start, stop;
    cudaGraph_t graph;
    cudaGraphExec_t replay;
};

static blurry_status call(blurry_work work, void *context, cudaStream_t stream, int times)
{
    for (int i = 0; i < times; i++) STATUS_TRY(work(context, stream));
    return BLURRY_OK;
}

static blurry_status record(stopwatch *w, const blurry_timing *how, blurry_work work, void *context)
{
    STATUS_TRY(status_of(cudaStreamBeginCapture(w->stream, cudaStreamCaptureModeThreadLocal), "recording"));
    blurry_status status = call(work, context, w->stream, how->calls);
    blurry_status ended = status_of(cudaStreamEndCapture(w->stream, &w->graph), "recording");
    if (status != BLURRY_OK) return status;
    STATUS_TRY(ended);
    STATUS_TRY(status_of(cudaGraphInstantiate(&w->replay, w->graph, 0), "recording"));
    return status_of(cudaGraphLaunch(w->replay, w->stream), "a replay");
}

static blurry_status run(stopwatch *w, const blurry_timing *how, blurry_work work, void *context,
                         double *seconds)
{
    STATUS_TRY(status_of(cudaStreamCreateWithFlags(&w->stream, cudaStreamNonBlocking), "a stream"));
    STATUS_TRY(status_of(cudaEventCreate(&w->start), "an event"));
    STATUS_TRY(status_of(cudaEventCreate(&w->stop), "an event"));
    STATUS_TRY(call(work, context, w->stream, how->warmup));
    if (how->graph) STATUS_TRY(record(w, how, work, context));
    STATUS_TRY(status_of(cudaStreamSynchronize(w->stream), "what is timed"));
    for (int i = 0; i < how->repeats; i++) {
        float ms = 0;
        STATUS_TRY(status_of(cudaEventRecord(w->start, w->stream), "an event"));
        if (how->graph)
            STATUS_TRY(status_of(cudaGraphLaunch(w->replay, w->stream), "a replay"));
        else
            STATUS_TRY(call(work, context, w->stream, how->calls));
        STATUS_TRY(status_of(cudaEventRecord(w->stop, w->stream), "an event"));
        STATUS_TRY(status_of(cudaEventSynchronize(w->stop), "what is timed"));
        STATUS_TRY(status_of(cudaEventElapsedTime(&ms, w->start, w->stop), "an event"));
        seconds[i] = 1e-3 * (double)ms / how->calls;
    }
    return BLURRY_OK;
}

static blurry_status time_work(const blurry_timing *how, blurry_work work, void *context, double *seconds)
{
    stopwatch w = {};
    blurry_status status = run(&w, how, work, context, seconds);
    if (w.stream) (void)cudaStreamSynchronize(w.stream);
    if (w.replay) (void)cudaGraphExecDestroy(w.replay);
    if (w.graph) (void)cudaGraphDestroy(w.graph);
    if (w.start) (void)cudaEventDestroy(w.start);
    if (w.stop) (void)cudaEventDestroy(w.stop);
    if (w.stream) (void)cudaStreamDestroy(w.stream);
    return status;
}

static const device_gpu services = {check, name, alloc, release, copy, memory, time_work};

const device_gpu *device_gpu_services(void)
{
    return &services;
}
