/* The CUDA device: a stream of its own (cuda_stream.h), graphs, and failures in words that name the remedy.
 */
#include "device/cuda.h"
#include "device/cuda_own.h"
#include "kernels/cuda_blas.h"

extern "C" {
#include "base/memory.h"
#include "base/status.h"
}

#include <stdio.h>
#include <string.h>

enum { OLDEST_MAJOR = 8 };

struct device_graph {
    cudaGraphExec_t exec;
};

/* ---- failures ---- */
static blurry_status old_driver(void)
{
    int driver = 0, runtime = 0;
    (void)cudaDriverGetVersion(&driver);
    (void)cudaRuntimeGetVersion(&runtime);
    (void)cudaGetLastError();
    if (!driver)
        return status_fail(
            BLURRY_E_DEVICE,
            "device is cuda: this machine has no NVIDIA driver; use device=cpu, or install one");
    return status_fail(BLURRY_E_DEVICE,
                       "device is cuda: the driver supports CUDA %d.%d, this build needs %d.%d; update the "
                       "driver, or use device=cpu",
                       driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
}

blurry_status cuda_status(cudaError_t error, const char *doing)
{
    if (error == cudaSuccess) return BLURRY_OK;
    (void)cudaGetLastError(); /* reported here: not again by the next check */
    if (error == cudaErrorInsufficientDriver) return old_driver();
    if (error == cudaErrorNoDevice)
        return status_fail(BLURRY_E_DEVICE, "device is cuda: no NVIDIA GPU was found; use device=cpu, or see "
                                            "whether nvidia-smi and CUDA_VISIBLE_DEVICES show one");
    if (error == cudaErrorNoKernelImageForDevice)
        return status_fail(BLURRY_E_DEVICE, "device is cuda: this build has no code for this GPU; build with "
                                            "-DCMAKE_CUDA_ARCHITECTURES=<its number>, or use device=cpu");
    if (error == cudaErrorMemoryAllocation)
        return status_fail(BLURRY_E_MEMORY,
                           "%s: out of device memory; make batch, length or width smaller, or use device=cpu",
                           doing);
    return status_fail(BLURRY_E_DEVICE, "%s: %s (%s); start again, or use device=cpu", doing,
                       cudaGetErrorString(error), cudaGetErrorName(error));
}

void cuda_keep(device *dev, cudaError_t error, const char *doing)
{
    blurry_status status = cuda_status(error, doing);
    if (status != BLURRY_OK) device_fail(dev, status, blurry_last_error());
}

/* ---- memory ---- */
static cuda_stream *stream_of(device *dev)
{
    return &cuda_own_of(dev)->stream;
}

static blurry_status cuda_alloc(device *dev, size_t bytes, const char *what, void **memory)
{
    size_t available = 0, total = 0;
    cudaError_t error = cuda_stream_take(stream_of(dev), bytes ? bytes : 1, memory);
    if (error != cudaErrorMemoryAllocation) return cuda_status(error, what);
    (void)cudaMemGetInfo(&available, &total);
    (void)cudaGetLastError();
    return status_fail(BLURRY_E_MEMORY,
                       "%s: %zu bytes do not fit on the GPU (%zu of %zu are free); make batch, length or "
                       "width smaller, or use device=cpu",
                       what, bytes, available, total);
}

static void cuda_release(device *dev, void *memory)
{
    cuda_stream_give(stream_of(dev), memory);
}

static blurry_status cuda_upload(device *dev, void *to, const void *from_host, size_t bytes)
{
    return cuda_status(cuda_stream_upload(stream_of(dev), to, from_host, bytes), "copying to the GPU");
}

static blurry_status cuda_download(device *dev, void *to_host, const void *from, size_t bytes)
{
    return cuda_status(cuda_stream_download(stream_of(dev), to_host, from, bytes), "copying from the GPU");
}

static void cuda_copy(device *dev, void *to, const void *from, size_t bytes)
{
    cuda_keep(dev, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream_of(dev)->queue),
              "copying on the GPU");
}

static void cuda_zero(device *dev, void *memory, size_t bytes)
{
    cuda_keep(dev, cuda_stream_zero(stream_of(dev), memory, bytes), "clearing memory on the GPU");
}

static blurry_status cuda_wait(device *dev)
{
    cuda_keep(dev, cudaGetLastError(), "starting a kernel on the GPU");
    cuda_keep(dev, cuda_stream_wait(stream_of(dev)), "running a kernel on the GPU");
    const char *product = dev->run.blas ? cuda_blas_take_failure(dev->run.blas) : NULL;
    if (product) device_fail(dev, BLURRY_E_DEVICE, product);
    cuda_side_check(dev);
    return BLURRY_OK;
}

/* ---- graphs ---- */
static blurry_status cuda_capture_begin(device *dev)
{
    cuda_keep(dev, cudaGetLastError(), "starting a kernel on the GPU");
    return cuda_status(cudaStreamBeginCapture(stream_of(dev)->queue, cudaStreamCaptureModeThreadLocal),
                       "recording a step");
}

static blurry_status cuda_capture_end(device *dev, device_graph **graph)
{
    cudaGraph_t recorded = NULL;
    void *memory = NULL;
    STATUS_TRY(cuda_status(cudaStreamEndCapture(stream_of(dev)->queue, &recorded), "recording a step"));
    blurry_status status = memory_alloc(&memory, 1, sizeof(device_graph), "graph");
    if (status == BLURRY_OK) {
        *graph = (device_graph *)memory;
        status = cuda_status(cudaGraphInstantiate(&(*graph)->exec, recorded, 0), "preparing a recorded step");
    }
    (void)cudaGraphDestroy(recorded);
    if (status != BLURRY_OK && *graph) {
        memory_free(*graph);
        *graph = NULL;
    }
    return status;
}

static blurry_status cuda_graph_run(device *dev, device_graph *graph)
{
    cuda_stream *own = stream_of(dev);
    cudaError_t error = cuda_stream_make_room(own);
    if (error == cudaSuccess) error = cudaGraphLaunch(graph->exec, own->queue);
    if (error == cudaSuccess) error = cuda_stream_mark(own);
    return cuda_status(error, "running a recorded step");
}

static void cuda_graph_destroy(device_graph **graph)
{
    (void)cudaGraphExecDestroy((*graph)->exec);
    memory_free(*graph);
    *graph = NULL;
}

static void cuda_mqar(device *dev, const mqar_args *a)
{
    mqar_cuda(&dev->run, a);
}

/* ---- opening and closing ---- */
static void cuda_close(device *dev)
{
    struct cuda_own *own = cuda_own_of(dev);
    if (!own) return;
    cuda_side_destroy(dev);
    cuda_blas_destroy(dev->run.blas);
    cuda_stream_close(&own->stream);
    (void)cudaGetLastError();
    memory_free(own);
    dev->own = NULL;
}

static const device_backend cuda_backend = {
    cuda_close,     cuda_alloc,         cuda_release, cuda_upload,         cuda_download,
    cuda_copy,      cuda_zero,          cuda_wait,    cuda_capture_begin,  cuda_capture_end,
    cuda_graph_run, cuda_graph_destroy, cuda_mqar,    &cuda_side_functions};

__global__ void probe_kernel(int *seen)
{
    *seen = 1;
}

/* A GPU this build can run on. */
static blurry_status check_gpu(void)
{
    int count = 0, current = 0;
    cudaDeviceProp gpu;
    STATUS_TRY(cuda_status(cudaGetDeviceCount(&count), "looking for GPUs"));
    if (count < 1) return cuda_status(cudaErrorNoDevice, "looking for GPUs");
    STATUS_TRY(cuda_status(cudaGetDevice(&current), "choosing a GPU"));
    STATUS_TRY(cuda_status(cudaGetDeviceProperties(&gpu, current), "asking the GPU for its properties"));
    if (gpu.major < OLDEST_MAJOR)
        return status_fail(BLURRY_E_DEVICE,
                           "device is cuda: %s has compute capability %d.%d, too old: %d.0 is needed; use "
                           "device=cpu",
                           gpu.name, gpu.major, gpu.minor, OLDEST_MAJOR);
    return BLURRY_OK;
}

static blurry_status open_stream(device *dev, int tf32, int early)
{
    char message[192] = "";
    cudaFuncAttributes code;
    cuda_stream *own = stream_of(dev);
    cuda_own_of(dev)->tf32 = tf32;
    STATUS_TRY(cuda_status(cuda_stream_open(own), "opening a stream"));
    dev->run.stream = own->queue;
    int *seen = (int *)own->pinned; /* pinned memory is visible to kernels */
    cuda_launch(probe_kernel, 1, 1, 0, own->queue, seen);
    STATUS_TRY(cuda_status(cudaGetLastError(), "trying a kernel"));
    STATUS_TRY(cuda_status(cudaStreamSynchronize(own->queue), "trying a kernel"));
    STATUS_TRY(cuda_status(cudaFuncGetAttributes(&code, (const void *)probe_kernel), "looking at a kernel"));
    dev->run.early = early && code.ptxVersion >= 90; /* else kernels do not wait: cuda_wait_previous */
    dev->run.blas = cuda_blas_create(tf32, message, sizeof message);
    return dev->run.blas ? BLURRY_OK : status_fail(BLURRY_E_DEVICE, "device is cuda: %s", message);
}

blurry_status device_cuda_open(device *dev, const device_options *options)
{
    void *memory = NULL;
    if (options->dtype == BLURRY_F64)
        return status_fail(BLURRY_E_UNSUPPORTED,
                           "precision is f64: on cuda give f32 or bf16, or use device=cpu");
    if (options->reference)
        return status_fail(BLURRY_E_UNSUPPORTED,
                           "reference is 1: the reference runs on the cpu, use device=cpu");
    STATUS_TRY(check_gpu());
    dev->ops = device_cuda_table(options->dtype);
    STATUS_TRY(memory_alloc(&memory, 1, sizeof(struct cuda_own), "CUDA device"));
    dev->own = memory;
    dev->element = options->dtype == BLURRY_BF16 ? 2 : sizeof(float);
    dev->param_element = dev->stat_element = sizeof(float);
    blurry_status status = open_stream(dev, options->tf32, options->early_starts);
    if (status == BLURRY_OK)
        dev->backend = &cuda_backend;
    else
        cuda_close(dev);
    return status;
}
