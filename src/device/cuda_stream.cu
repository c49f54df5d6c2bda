/* See cuda_stream.h. */
#include "device/cuda_stream.h"

#include <atomic>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

enum { SLOT_BYTES = 1 << 18, SMALL_BYTES = 256, THREADS = 256, MARKS_CROWDED = 4 };

static std::atomic<int> open_streams;

/* ---- memory ---- */
static cudaError_t pool_of_current(cudaMemPool_t *pool)
{
    int current = 0;
    cudaError_t error = cudaGetDevice(&current);
    return error == cudaSuccess ? cudaDeviceGetDefaultMemPool(pool, current) : error;
}

/* The pool keeps what is given back for the next device of this process. */
static cudaError_t keep_pool(void)
{
    cudaMemPool_t pool;
    uint64_t all = UINT64_MAX;
    cudaError_t error = pool_of_current(&pool);
    if (error == cudaSuccess) error = cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &all);
    return error;
}

/* What the pool keeps in pieces too small goes back to the GPU. */
static void trim_pool(void)
{
    cudaMemPool_t pool;
    if (pool_of_current(&pool) == cudaSuccess) (void)cudaMemPoolTrimTo(pool, 0);
}

/* Whether it can be there. Asked before large pieces are taken: the pool would first map all memory there is,
 * which takes minutes. */
static bool may_fit(size_t bytes)
{
    enum { LARGE = 1 << 30 };
    cudaMemPool_t pool;
    size_t available = 0, total = 0;
    uint64_t held = 0, used = 0;
    if (bytes < LARGE) return true;
    cudaError_t error = cudaMemGetInfo(&available, &total);
    if (error == cudaSuccess) error = pool_of_current(&pool);
    if (error == cudaSuccess) error = cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemCurrent, &held);
    if (error == cudaSuccess) error = cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &used);
    return error != cudaSuccess || bytes <= available + (held - used);
}

cudaError_t cuda_stream_take(cuda_stream *s, size_t bytes, void **memory)
{
    *memory = NULL;
    if (bytes > SIZE_MAX / 2 || !may_fit(bytes)) return cudaErrorMemoryAllocation;
    cudaError_t error = cudaMallocAsync(memory, bytes, s->queue);
    if (error == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError();
        trim_pool();
        error = cudaMallocAsync(memory, bytes, s->queue);
    }
    if (error != cudaSuccess) {
        *memory = NULL;
        return error;
    }
    error = cudaMemsetAsync(*memory, 0, bytes, s->queue);
    if (error == cudaSuccess) return cudaSuccess;
    (void)cudaFreeAsync(*memory, s->queue);
    *memory = NULL;
    return error;
}

void cuda_stream_give(cuda_stream *s, void *memory)
{
    cudaError_t error = cudaFreeAsync(memory, s->queue);
    if (error == cudaSuccess) error = cuda_stream_wait(s);
    if (error != cudaSuccess) (void)cudaGetLastError(); /* its own; a launch's is left to device_sync */
}

/* ---- pinned memory ---- */
/* Taking and giving back pinned memory stops the GPU: pieces are kept for the next device of this process. */
enum { PINNED_KEPT = 64 };
static pthread_mutex_t pinned_lock = PTHREAD_MUTEX_INITIALIZER;
static char *pinned_kept[PINNED_KEPT];
static int pinned_count;

static cudaError_t take_pinned(char **memory)
{
    pthread_mutex_lock(&pinned_lock);
    *memory = pinned_count > 0 ? pinned_kept[--pinned_count] : NULL;
    pthread_mutex_unlock(&pinned_lock);
    return *memory ? cudaSuccess : cudaMallocHost((void **)memory, (size_t)CUDA_STREAM_SLOTS * SLOT_BYTES);
}

static void give_pinned(char *memory)
{
    pthread_mutex_lock(&pinned_lock);
    int kept = pinned_count < PINNED_KEPT;
    if (kept) pinned_kept[pinned_count++] = memory;
    pthread_mutex_unlock(&pinned_lock);
    if (!kept) (void)cudaFreeHost(memory);
}

/* ---- transfers ---- */
/* The next piece of pinned memory, free to be overwritten; `passed` is for the end of its use. */
static cudaError_t next_piece(cuda_stream *s, char **pinned, cudaEvent_t *passed)
{
    *pinned = s->pinned + (size_t)s->slot * SLOT_BYTES;
    *passed = s->passed[s->slot];
    s->slot = (s->slot + 1) % CUDA_STREAM_SLOTS;
    return cudaEventSynchronize(*passed);
}

struct small_bytes {
    unsigned char at[SMALL_BYTES];
};

/* Threads as many as bytes. */
__global__ void write_kernel(unsigned char *to, small_bytes from)
{
    to[threadIdx.x] = from.at[threadIdx.x];
}

static cudaError_t upload_small(cuda_stream *s, void *to, const void *from_host, size_t bytes)
{
    small_bytes from;
    memset(&from, 0, sizeof from);
    memcpy(from.at, from_host, bytes);
    cuda_launch(write_kernel, 1, (unsigned)bytes, 0, s->queue, (unsigned char *)to, from);
    return cudaPeekAtLastError();
}

cudaError_t cuda_stream_upload(cuda_stream *s, void *to, const void *from_host, size_t bytes)
{
    cudaError_t error = cudaSuccess;
    if (bytes <= SMALL_BYTES) return upload_small(s, to, from_host, bytes);
    for (size_t at = 0; at < bytes && error == cudaSuccess; at += SLOT_BYTES) {
        size_t n = bytes - at < SLOT_BYTES ? bytes - at : (size_t)SLOT_BYTES;
        char *pinned;
        cudaEvent_t passed;
        error = next_piece(s, &pinned, &passed);
        if (error != cudaSuccess) break;
        memcpy(pinned, (const char *)from_host + at, n);
        error = cudaMemcpyAsync((char *)to + at, pinned, n, cudaMemcpyHostToDevice, s->queue);
        if (error == cudaSuccess) error = cudaEventRecord(passed, s->queue);
    }
    return error;
}

/* One block; pinned memory is visible to kernels. */
__global__ void read_kernel(unsigned char *pinned, const unsigned char *from, int bytes)
{
    for (int i = (int)threadIdx.x; i < bytes; i += THREADS) pinned[i] = from[i];
}

static cudaError_t download_small(cuda_stream *s, void *to_host, const void *from, size_t bytes)
{
    char *pinned;
    cudaEvent_t passed;
    cudaError_t error = next_piece(s, &pinned, &passed);
    if (error != cudaSuccess) return error;
    cuda_launch(read_kernel, 1, THREADS, 0, s->queue, (unsigned char *)pinned, (const unsigned char *)from,
                (int)bytes);
    error = cudaPeekAtLastError();
    if (error == cudaSuccess) error = cuda_stream_wait(s);
    if (error == cudaSuccess) memcpy(to_host, pinned, bytes);
    return error;
}

/* As many pieces as there are at a time, and one wait for all of them. */
cudaError_t cuda_stream_download(cuda_stream *s, void *to_host, const void *from, size_t bytes)
{
    cudaError_t error = cudaSuccess;
    if (bytes <= SMALL_BYTES) return download_small(s, to_host, from, bytes);
    for (size_t at = 0; at < bytes && error == cudaSuccess;) {
        char *pinned[CUDA_STREAM_SLOTS];
        size_t size[CUDA_STREAM_SLOTS], first = at;
        int count = 0;
        for (; count < CUDA_STREAM_SLOTS && at < bytes && error == cudaSuccess; at += size[count++]) {
            cudaEvent_t passed;
            size[count] = bytes - at < SLOT_BYTES ? bytes - at : (size_t)SLOT_BYTES;
            error = next_piece(s, &pinned[count], &passed);
            if (error == cudaSuccess)
                error = cudaMemcpyAsync(pinned[count], (const char *)from + at, size[count],
                                        cudaMemcpyDeviceToHost, s->queue);
        }
        if (error == cudaSuccess) error = cuda_stream_wait(s);
        for (int i = 0; i < count && error == cudaSuccess; first += size[i++])
            memcpy((char *)to_host + first, pinned[i], size[i]);
    }
    return error;
}

__global__ void zero_kernel(uint4 *memory, size_t count)
{
    size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < count) memory[i] = make_uint4(0, 0, 0, 0);
}

/* By a kernel where that is possible: graphs of nothing but kernels are started at once. */
cudaError_t cuda_stream_zero(cuda_stream *s, void *memory, size_t bytes)
{
    size_t count = bytes / sizeof(uint4), blocks = (count + THREADS - 1) / THREADS;
    if ((uintptr_t)memory % sizeof(uint4) || bytes % sizeof(uint4) || blocks > INT32_MAX)
        return cudaMemsetAsync(memory, 0, bytes, s->queue);
    cuda_launch(zero_kernel, (unsigned)blocks, THREADS, 0, s->queue, (uint4 *)memory, count);
    return cudaPeekAtLastError();
}

/* ---- waiting ---- */
/* Waiting by asking again and again is quickest, as long as there is a core for it. */
static int crowded(void)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    return 2L * open_streams.load() > cores;
}

cudaError_t cuda_stream_wait(cuda_stream *s)
{
    if (!crowded()) return cudaStreamSynchronize(s->queue);
    cudaError_t error = cudaStreamQuery(s->queue);
    if (error != cudaErrorNotReady) return error;
    error = cudaEventRecord(s->ended, s->queue);
    return error == cudaSuccess ? cudaEventSynchronize(s->ended) : error;
}

cudaError_t cuda_stream_make_room(cuda_stream *s)
{
    int ahead = crowded() ? (int)MARKS_CROWDED : (int)CUDA_STREAM_MARKS;
    return cudaEventSynchronize(s->marks[(s->mark + CUDA_STREAM_MARKS - ahead) % CUDA_STREAM_MARKS]);
}

cudaError_t cuda_stream_mark(cuda_stream *s)
{
    cudaError_t error = cudaEventRecord(s->marks[s->mark], s->queue);
    s->mark = (s->mark + 1) % CUDA_STREAM_MARKS;
    return error;
}

/* ---- opening and closing ---- */
static cudaError_t make_event(cudaEvent_t *event)
{
    return cudaEventCreateWithFlags(event, cudaEventDisableTiming | cudaEventBlockingSync);
}

static cudaError_t make_events(cuda_stream *s)
{
    cudaError_t error = make_event(&s->ended);
    for (int i = 0; i < CUDA_STREAM_SLOTS && error == cudaSuccess; i++) error = make_event(&s->passed[i]);
    for (int i = 0; i < CUDA_STREAM_MARKS && error == cudaSuccess; i++) error = make_event(&s->marks[i]);
    return error;
}

/* Before the side queue's blocks (cuda_side.cu) where both wait for a place on the chip. */
static cudaError_t make_queue(cudaStream_t *queue)
{
    int least = 0, greatest = 0;
    cudaError_t error = cudaDeviceGetStreamPriorityRange(&least, &greatest);
    if (error == cudaSuccess) error = cudaStreamCreateWithPriority(queue, cudaStreamNonBlocking, greatest);
    return error;
}

cudaError_t cuda_stream_open(cuda_stream *s)
{
    cudaError_t error = make_queue(&s->queue);
    if (error == cudaSuccess) error = keep_pool();
    if (error == cudaSuccess) error = take_pinned(&s->pinned);
    if (error == cudaSuccess) error = make_events(s);
    if (error == cudaSuccess) {
        s->counted = 1;
        open_streams++;
    }
    return error;
}

static void drop(cudaEvent_t event)
{
    if (event) (void)cudaEventDestroy(event);
}

void cuda_stream_close(cuda_stream *s)
{
    if (s->counted) open_streams--;
    if (s->queue) (void)cudaStreamSynchronize(s->queue);
    drop(s->ended);
    for (int i = 0; i < CUDA_STREAM_SLOTS; i++) drop(s->passed[i]);
    for (int i = 0; i < CUDA_STREAM_MARKS; i++) drop(s->marks[i]);
    if (s->pinned) give_pinned(s->pinned);
    if (s->queue) (void)cudaStreamDestroy(s->queue);
    memset(s, 0, sizeof *s);
}
