/* A CUDA device's own stream: memory, transfers, and waiting for it.
 *
 * Many devices may work at once in one process, each from its own thread (sweeps run 32), so nothing here
 * makes one wait for another: memory comes from a pool that is given back without stopping the GPU, what is
 * small is carried by kernels instead of the copy engine, whose queue all streams share in the order of their
 * calls, and where there are more devices than idle cores a waiting thread sleeps. */
#ifndef BLURRY_DEVICE_CUDA_STREAM_H
#define BLURRY_DEVICE_CUDA_STREAM_H
#include "kernels/cuda.h"

enum { CUDA_STREAM_SLOTS = 16, CUDA_STREAM_MARKS = 16 };

typedef struct cuda_stream {
    cudaStream_t queue;
    char *pinned;                          /* [CUDA_STREAM_SLOTS] pieces that transfers pass through */
    cudaEvent_t passed[CUDA_STREAM_SLOTS]; /* a piece may be used again */
    cudaEvent_t marks[CUDA_STREAM_MARKS];  /* after the latest graphs */
    cudaEvent_t ended;
    int slot, mark; /* the next of each */
    int counted;    /* among the open ones */
} cuda_stream;

/* Zeroed before; on failure close takes back what was made. */
cudaError_t cuda_stream_open(cuda_stream *s);
void cuda_stream_close(cuda_stream *s);

/* Memory, zeroed, aligned to 256. Giving it back waits for this stream alone. */
cudaError_t cuda_stream_take(cuda_stream *s, size_t bytes, void **memory);
void cuda_stream_give(cuda_stream *s, void *memory);

/* In order with the stream; host memory may be reused on return. */
cudaError_t cuda_stream_upload(cuda_stream *s, void *to, const void *from_host, size_t bytes);
cudaError_t cuda_stream_download(cuda_stream *s, void *to_host, const void *from, size_t bytes);
cudaError_t cuda_stream_zero(cuda_stream *s, void *memory, size_t bytes);

/* For all that was queued. */
cudaError_t cuda_stream_wait(cuda_stream *s);
/* Until few marks are still to be reached; and sets one. A thread that queues without limit ends up waiting
 * inside of the driver, and the others with it. */
cudaError_t cuda_stream_make_room(cuda_stream *s);
cudaError_t cuda_stream_mark(cuda_stream *s);

#endif
