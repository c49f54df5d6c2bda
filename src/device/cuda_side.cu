/* The second queue of a CUDA device: a stream with scratch and products of its own, tied to the main stream
 * by events. Every join is an edge of the graph where a step is recorded. */
#include "device/cuda_own.h"
#include "kernels/cuda_blas.h"

extern "C" {
#include "base/memory.h"
#include "base/status.h"
}

#include <string.h>

struct cuda_side {
    kernel_side shared; /* first: what operations see */
    device *dev;
    cudaStream_t stream;
    cudaEvent_t forked, marks[DEVICE_SIDE_MARKS];
    int marked[DEVICE_SIDE_MARKS]; /* since open */
};

/* The side goes on after what the main queue has now. */
static void fork_side(kernel_side *shared)
{
    struct cuda_side *side = (struct cuda_side *)shared;
    cuda_keep(side->dev, cudaEventRecord(side->forked, cuda_own_of(side->dev)->stream.queue), "forking");
    cuda_keep(side->dev, cudaStreamWaitEvent(side->stream, side->forked, 0), "forking");
}

/* ---- making it ---- */
static blurry_status make_side(device *dev, struct cuda_side *side)
{
    char message[192] = "";
    kernel_run *run = &side->shared.run;
    void *scratch = NULL;
    STATUS_TRY(
        cuda_status(cudaStreamCreateWithFlags(&side->stream, cudaStreamNonBlocking), "making a stream"));
    STATUS_TRY(
        cuda_status(cudaEventCreateWithFlags(&side->forked, cudaEventDisableTiming), "making an event"));
    for (int i = 0; i < DEVICE_SIDE_MARKS; i++)
        STATUS_TRY(cuda_status(cudaEventCreateWithFlags(&side->marks[i], cudaEventDisableTiming),
                               "making an event"));
    STATUS_TRY(device_alloc(dev, KERNEL_SCRATCH_CUDA, &scratch));
    *run = dev->run;
    run->stream = side->stream;
    run->scratch = scratch;
    run->scratch_bytes = KERNEL_SCRATCH_CUDA;
    run->side = NULL;
    run->blas = cuda_blas_create(cuda_own_of(dev)->tf32, message, sizeof message);
    return run->blas ? BLURRY_OK : status_fail(BLURRY_E_DEVICE, "device is cuda: %s", message);
}

static blurry_status side_reserve(device *dev, size_t handed)
{
    struct cuda_own *own = cuda_own_of(dev);
    void *memory = NULL;
    if (!own->side) {
        STATUS_TRY(memory_alloc(&memory, 1, sizeof(struct cuda_side), "second queue"));
        own->side = (struct cuda_side *)memory;
        own->side->dev = dev;
        own->side->shared.fork = fork_side;
        blurry_status status = make_side(dev, own->side);
        if (status != BLURRY_OK) {
            cuda_side_destroy(dev);
            return status;
        }
    }
    kernel_side *shared = &own->side->shared;
    if (handed <= shared->bytes) return BLURRY_OK;
    STATUS_TRY(device_alloc(dev, handed, &memory));
    device_free(dev, shared->memory);
    shared->memory = (char *)memory;
    shared->bytes = handed;
    return BLURRY_OK;
}

void cuda_side_destroy(device *dev)
{
    struct cuda_side *side = cuda_own_of(dev)->side;
    if (!side) return;
    if (side->stream) (void)cudaStreamSynchronize(side->stream);
    cuda_blas_destroy(side->shared.run.blas);
    if (side->shared.run.scratch) cuda_stream_give(&cuda_own_of(dev)->stream, side->shared.run.scratch);
    if (side->shared.memory) cuda_stream_give(&cuda_own_of(dev)->stream, side->shared.memory);
    if (side->forked) (void)cudaEventDestroy(side->forked);
    for (int i = 0; i < DEVICE_SIDE_MARKS; i++)
        if (side->marks[i]) (void)cudaEventDestroy(side->marks[i]);
    if (side->stream) (void)cudaStreamDestroy(side->stream);
    memory_free(side);
    cuda_own_of(dev)->side = NULL;
    dev->run.side = NULL;
}

void cuda_side_check(device *dev)
{
    struct cuda_side *side = cuda_own_of(dev)->side;
    const char *product = side ? cuda_blas_take_failure(side->shared.run.blas) : NULL;
    if (product) device_fail(dev, BLURRY_E_DEVICE, product);
}

/* ---- using it ---- */
static void side_open(device *dev)
{
    struct cuda_side *side = cuda_own_of(dev)->side;
    if (!side) return;
    side->shared.used = 0;
    memset(side->marked, 0, sizeof side->marked);
    dev->run.side = &side->shared;
    fork_side(&side->shared);
}

static void side_mark(device *dev, int slot)
{
    struct cuda_side *side = cuda_own_of(dev)->side;
    side->marked[slot] = 1;
    cuda_keep(dev, cudaEventRecord(side->marks[slot], side->stream), "marking");
}

static void side_wait(device *dev, int slot)
{
    struct cuda_side *side = cuda_own_of(dev)->side;
    if (!side->marked[slot]) return;
    cuda_keep(dev, cudaStreamWaitEvent(cuda_own_of(dev)->stream.queue, side->marks[slot], 0), "joining");
}

static void side_close(device *dev)
{
    side_mark(dev, 0);
    side_wait(dev, 0);
    dev->run.side = NULL;
}

const device_side cuda_side_functions = {side_reserve, side_open, side_mark, side_wait, side_close};
