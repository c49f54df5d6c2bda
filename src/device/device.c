/* Creation, memory and failures of a device, and the CPU's backend. */
#include "device/device.h"

#include "base/memory.h"
#include "base/status.h"
#include "base/threads.h"
#include "kernels/blas.h"

#include <stdio.h>
#include <string.h>

/* ---- the CPU ---- */
static void cpu_destroy(device *dev)
{
    (void)dev;
}

static blurry_status cpu_alloc(device *dev, size_t bytes, const char *what, void **memory)
{
    (void)dev;
    if (memory_alloc(memory, bytes, 1, what) == BLURRY_OK) return BLURRY_OK;
    return status_fail(
        BLURRY_E_MEMORY,
        "%s: %zu bytes do not fit in this machine's memory; make batch, length or width smaller", what,
        bytes);
}

static void cpu_release(device *dev, void *memory)
{
    (void)dev;
    memory_free(memory);
}

static void cpu_copy(device *dev, void *to, const void *from, size_t bytes)
{
    (void)dev;
    memmove(to, from, bytes);
}

static blurry_status cpu_transfer(device *dev, void *to, const void *from, size_t bytes)
{
    cpu_copy(dev, to, from, bytes);
    return BLURRY_OK;
}

static void cpu_zero(device *dev, void *memory, size_t bytes)
{
    (void)dev;
    memset(memory, 0, bytes);
}

static blurry_status cpu_wait(device *dev)
{
    (void)dev;
    return BLURRY_OK;
}

static const device_backend cpu_backend = {.destroy = cpu_destroy,
                                           .alloc = cpu_alloc,
                                           .release = cpu_release,
                                           .upload = cpu_transfer,
                                           .download = cpu_transfer,
                                           .copy = cpu_copy,
                                           .zero = cpu_zero,
                                           .wait = cpu_wait};

static blurry_status cpu_open(device *d, const device_options *options)
{
    if (options->dtype == BLURRY_BF16)
        return status_fail(BLURRY_E_UNSUPPORTED, "precision is bf16: on the CPU give f32 or f64");
    d->element = options->dtype == BLURRY_F64 ? sizeof(double) : sizeof(float);
    d->param_element = d->stat_element = d->element;
    d->reference = options->reference != 0;
    d->ops = device_cpu_table(d->dtype, d->reference ? -1 : (int)cpu_isa_select());
    d->backend = &cpu_backend;
    blas_init();
    return BLURRY_OK;
}

/* ---- every device ---- */
static blurry_status check_options(const device_options *options)
{
    if (options->kind != DEVICE_CPU && options->kind != DEVICE_CUDA)
        return status_fail(BLURRY_E_INVALID, "device is %d: give DEVICE_CPU or DEVICE_CUDA",
                           (int)options->kind);
    if (options->dtype != BLURRY_F32 && options->dtype != BLURRY_F64 && options->dtype != BLURRY_BF16)
        return status_fail(BLURRY_E_INVALID, "dtype is %d: give BLURRY_F32, BLURRY_F64 or BLURRY_BF16",
                           (int)options->dtype);
    if (options->threads < 0 || options->threads > THREADS_MAX)
        return status_fail(BLURRY_E_INVALID, "threads is %d: give 0 (all cores) to %d", options->threads,
                           THREADS_MAX);
    return BLURRY_OK;
}

blurry_status device_create(device **dev, const device_options *options)
{
    if (!dev || !options)
        return status_fail(BLURRY_E_INVALID, "%s is NULL: give one", dev ? "options" : "dev");
    *dev = NULL;
    STATUS_TRY(check_options(options));
    void *memory = NULL;
    STATUS_TRY(memory_alloc(&memory, 1, sizeof(device), "device"));
    device *d = memory;
    d->kind = options->kind;
    d->dtype = options->dtype;
    d->threads = options->threads ? options->threads : threads_default();
    blurry_status status = d->kind == DEVICE_CPU ? cpu_open(d, options) : device_cuda_open(d, options);
    d->one_queue = options->one_queue;
    d->run.threads = d->threads;
    d->run.element = d->element;
    int64_t scratch =
        d->kind == DEVICE_CUDA ? KERNEL_SCRATCH_CUDA : kernel_max(KERNEL_SCRATCH_CPU, LINEAR_SCRATCH);
    if (status == BLURRY_OK) status = device_reserve(d, (size_t)scratch);
    if (status != BLURRY_OK) device_destroy(&d);
    *dev = d;
    return status;
}

void device_destroy(device **dev)
{
    if (!dev || !*dev) return;
    device *d = *dev;
    if (d->backend) {
        (void)d->backend->wait(d); /* nobody is left to tell */
        if (d->run.scratch) d->backend->release(d, d->run.scratch);
        d->backend->destroy(d);
    }
    memory_free(d);
    *dev = NULL;
}

blurry_status device_alloc(device *dev, size_t bytes, void **memory)
{
    return dev->backend->alloc(dev, bytes, "device memory", memory);
}

void device_free(device *dev, void *memory)
{
    if (memory) dev->backend->release(dev, memory);
}

blurry_status device_upload(device *dev, void *to, const void *from_host, size_t bytes)
{
    return bytes ? dev->backend->upload(dev, to, from_host, bytes) : BLURRY_OK;
}

blurry_status device_download(device *dev, void *to_host, const void *from, size_t bytes)
{
    return bytes ? dev->backend->download(dev, to_host, from, bytes) : BLURRY_OK;
}

void device_copy(device *dev, void *to, const void *from, size_t bytes)
{
    if (bytes) dev->backend->copy(dev, to, from, bytes);
}

void device_zero(device *dev, void *memory, size_t bytes)
{
    if (bytes) dev->backend->zero(dev, memory, bytes);
}

blurry_status device_reserve(device *dev, size_t bytes)
{
    if (bytes <= dev->run.scratch_bytes) return BLURRY_OK;
    void *larger = NULL;
    STATUS_TRY(dev->backend->alloc(dev, bytes, "scratch of the device", &larger));
    if (dev->run.scratch) dev->backend->release(dev, dev->run.scratch);
    dev->run.scratch = larger;
    dev->run.scratch_bytes = bytes;
    return BLURRY_OK;
}

void device_fail(device *dev, blurry_status status, const char *message)
{
    if (status == BLURRY_OK || dev->failure != BLURRY_OK) return;
    dev->failure = status;
    snprintf(dev->message, sizeof dev->message, "%s", message);
}

blurry_status device_sync(device *dev)
{
    blurry_status waited = dev->backend->wait(dev);
    if (waited != BLURRY_OK) device_fail(dev, waited, blurry_last_error());
    blurry_status failure = dev->failure;
    dev->failure = BLURRY_OK;
    return failure == BLURRY_OK ? BLURRY_OK : status_fail(failure, "%s", dev->message);
}

int device_makes_mqar(const device *dev)
{
    return dev->backend->mqar != NULL;
}

void device_mqar(device *dev, const mqar_args *a)
{
    dev->backend->mqar(dev, a);
}

/* ---- work beside ---- */
blurry_status device_side_reserve(device *dev, size_t handed)
{
    return dev->backend->side && !dev->one_queue ? dev->backend->side->reserve(dev, handed) : BLURRY_OK;
}

void device_side_open(device *dev)
{
    if (dev->backend->side) dev->backend->side->open(dev);
}

void device_side_mark(device *dev, int slot)
{
    if (dev->run.side) dev->backend->side->mark(dev, slot);
}

void device_side_wait(device *dev, int slot)
{
    if (dev->run.side) dev->backend->side->wait(dev, slot);
}

void device_side_close(device *dev)
{
    if (dev->run.side) dev->backend->side->close(dev);
}

const kernel_run *device_side_run(device *dev)
{
    kernel_side *side = dev->run.side;
    if (!side) return &dev->run;
    side->fork(side);
    return &side->run;
}

/* ---- graphs ---- */
int device_records(const device *dev)
{
    return dev->backend->capture_begin != NULL;
}

blurry_status device_capture_begin(device *dev)
{
    if (!device_records(dev))
        return status_fail(BLURRY_E_UNSUPPORTED, "device is cpu: graphs are recorded on cuda only");
    return dev->backend->capture_begin(dev);
}

blurry_status device_capture_end(device *dev, device_graph **graph)
{
    *graph = NULL;
    return dev->backend->capture_end(dev, graph);
}

blurry_status device_graph_run(device *dev, device_graph *graph)
{
    return dev->backend->graph_run(dev, graph);
}

void device_graph_destroy(device *dev, device_graph **graph)
{
    if (*graph) dev->backend->graph_destroy(graph);
}
