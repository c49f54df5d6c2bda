/* The CUDA device: one stream of its own, memory, transfers through pinned memory, graphs, and failures in
 * words that name the remedy. Host code only; kernels are under src/kernels. */
#include "device/cuda.h"
#include "kernels/cuda.h"
#include "kernels/cuda_blas.h"

extern "C" {
#include "base/memory.h"
#include "base/status.h"
}

#include <stdio.h>
#include <string.h>

/* Transfers pass through a ring of pinned slots; a slot is used again when its event has passed. */
enum { SLOTS = 16, SLOT_BYTES = 1 << 18, OLDEST_MAJOR = 8 };

struct cuda_own {
    cudaStream_t stream;
    char *pinned; /* [SLOTS][SLOT_BYTES] */
    cudaEvent_t passed[SLOTS];
    int events, next;
};

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

/* A status for a failed call; OK for cudaSuccess. */
static blurry_status cuda_status(cudaError_t error, const char *doing)
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

/* ---- memory ---- */
static struct cuda_own *own_of(device *dev)
{
    return (struct cuda_own *)dev->own;
}

static blurry_status cuda_alloc(device *dev, size_t bytes, const char *what, void **memory)
{
    *memory = NULL;
    size_t available = 0, total = 0;
    size_t need = bytes ? bytes : 1;
    cudaError_t error = bytes > SIZE_MAX / 2 ? cudaErrorMemoryAllocation : cudaMalloc(memory, need);
    if (error == cudaErrorMemoryAllocation) {
        *memory = NULL;
        (void)cudaMemGetInfo(&available, &total);
        (void)cudaGetLastError();
        return status_fail(BLURRY_E_MEMORY,
                           "%s: %zu bytes do not fit on the GPU (%zu of %zu are free); make batch, length or "
                           "width smaller, or use device=cpu",
                           what, bytes, available, total);
    }
    if (error == cudaSuccess) error = cudaMemsetAsync(*memory, 0, need, own_of(dev)->stream);
    if (error == cudaSuccess) return BLURRY_OK;
    if (*memory) (void)cudaFree(*memory);
    *memory = NULL;
    return cuda_status(error, what);
}

static void cuda_release(device *dev, void *memory)
{
    (void)cudaStreamSynchronize(own_of(dev)->stream);
    (void)cudaFree(memory);
    (void)cudaGetLastError();
}

/* The next slot, free to be overwritten. */
static cudaError_t next_slot(struct cuda_own *own, int *slot)
{
    *slot = own->next;
    own->next = (own->next + 1) % SLOTS;
    return cudaEventSynchronize(own->passed[*slot]);
}

static blurry_status cuda_upload(device *dev, void *to, const void *from_host, size_t bytes)
{
    struct cuda_own *own = own_of(dev);
    cudaError_t error = cudaSuccess;
    for (size_t at = 0; at < bytes && error == cudaSuccess; at += SLOT_BYTES) {
        size_t n = bytes - at < SLOT_BYTES ? bytes - at : (size_t)SLOT_BYTES;
        int slot;
        error = next_slot(own, &slot);
        if (error != cudaSuccess) break;
        char *pinned = own->pinned + (size_t)slot * SLOT_BYTES;
        memcpy(pinned, (const char *)from_host + at, n);
        error = cudaMemcpyAsync((char *)to + at, pinned, n, cudaMemcpyHostToDevice, own->stream);
        if (error == cudaSuccess) error = cudaEventRecord(own->passed[slot], own->stream);
    }
    return cuda_status(error, "copying to the GPU");
}

static blurry_status cuda_download(device *dev, void *to_host, const void *from, size_t bytes)
{
    struct cuda_own *own = own_of(dev);
    cudaError_t error = cudaSuccess;
    for (size_t at = 0; at < bytes && error == cudaSuccess; at += SLOT_BYTES) {
        size_t n = bytes - at < SLOT_BYTES ? bytes - at : (size_t)SLOT_BYTES;
        int slot;
        error = next_slot(own, &slot);
        if (error != cudaSuccess) break;
        char *pinned = own->pinned + (size_t)slot * SLOT_BYTES;
        error = cudaMemcpyAsync(pinned, (const char *)from + at, n, cudaMemcpyDeviceToHost, own->stream);
        if (error == cudaSuccess) error = cudaStreamSynchronize(own->stream);
        if (error == cudaSuccess) memcpy((char *)to_host + at, pinned, n);
    }
    return cuda_status(error, "copying from the GPU");
}

/* Operations cannot return a status: what goes wrong is kept for device_sync. */
static void keep(device *dev, cudaError_t error, const char *doing)
{
    blurry_status status = cuda_status(error, doing);
    if (status != BLURRY_OK) device_fail(dev, status, blurry_last_error());
}

static void cuda_copy(device *dev, void *to, const void *from, size_t bytes)
{
    keep(dev, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, own_of(dev)->stream),
         "copying on the GPU");
}

static void cuda_zero(device *dev, void *memory, size_t bytes)
{
    keep(dev, cudaMemsetAsync(memory, 0, bytes, own_of(dev)->stream), "clearing memory on the GPU");
}

static blurry_status cuda_wait(device *dev)
{
    struct cuda_own *own = own_of(dev);
    keep(dev, cudaGetLastError(), "starting a kernel on the GPU");
    keep(dev, cudaStreamSynchronize(own->stream), "running a kernel on the GPU");
    const char *product = dev->run.blas ? cuda_blas_take_failure(dev->run.blas) : NULL;
    if (product) device_fail(dev, BLURRY_E_DEVICE, product);
    return BLURRY_OK;
}

/* ---- graphs ---- */
static blurry_status cuda_capture_begin(device *dev)
{
    keep(dev, cudaGetLastError(), "starting a kernel on the GPU");
    return cuda_status(cudaStreamBeginCapture(own_of(dev)->stream, cudaStreamCaptureModeThreadLocal),
                       "recording a step");
}

static blurry_status cuda_capture_end(device *dev, device_graph **graph)
{
    cudaGraph_t recorded = NULL;
    void *memory = NULL;
    STATUS_TRY(cuda_status(cudaStreamEndCapture(own_of(dev)->stream, &recorded), "recording a step"));
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
    return cuda_status(cudaGraphLaunch(graph->exec, own_of(dev)->stream), "running a recorded step");
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
    struct cuda_own *own = own_of(dev);
    if (!own) return;
    cuda_blas_destroy(dev->run.blas);
    for (int i = 0; i < own->events; i++) (void)cudaEventDestroy(own->passed[i]);
    if (own->pinned) (void)cudaFreeHost(own->pinned);
    if (own->stream) (void)cudaStreamDestroy(own->stream);
    (void)cudaGetLastError();
    memory_free(own);
    dev->own = NULL;
}

static const device_backend cuda_backend = {
    cuda_close,     cuda_alloc,         cuda_release, cuda_upload,        cuda_download,
    cuda_copy,      cuda_zero,          cuda_wait,    cuda_capture_begin, cuda_capture_end,
    cuda_graph_run, cuda_graph_destroy, cuda_mqar};

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

static blurry_status open_stream(device *dev, struct cuda_own *own, int tf32)
{
    char message[192] = "";
    STATUS_TRY(
        cuda_status(cudaStreamCreateWithFlags(&own->stream, cudaStreamNonBlocking), "making a stream"));
    dev->run.stream = own->stream;
    STATUS_TRY(cuda_status(cudaMallocHost((void **)&own->pinned, (size_t)SLOTS * SLOT_BYTES),
                           "pinned memory for transfers"));
    for (; own->events < SLOTS; own->events++)
        STATUS_TRY(cuda_status(cudaEventCreateWithFlags(&own->passed[own->events], cudaEventDisableTiming),
                               "making an event"));
    int *seen = (int *)own->pinned; /* pinned memory is visible to kernels */
    cuda_launch(probe_kernel, 1, 1, 0, own->stream, seen);
    STATUS_TRY(cuda_status(cudaGetLastError(), "trying a kernel"));
    STATUS_TRY(cuda_status(cudaStreamSynchronize(own->stream), "trying a kernel"));
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
    blurry_status status = open_stream(dev, (struct cuda_own *)memory, options->tf32);
    if (status == BLURRY_OK)
        dev->backend = &cuda_backend;
    else
        cuda_close(dev);
    return status;
}
