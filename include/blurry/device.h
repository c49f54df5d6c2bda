/* Memory and times of a device, for programs that use plans on CUDA without the CUDA toolkit: tests,
 * benchmarks, bindings. On BLURRY_DEVICE_CPU the same calls use ordinary memory and the clock. These calls
 * wait for the device; what runs on it is the caller's affair. */
#ifndef BLURRY_DEVICE_MEMORY_H
#define BLURRY_DEVICE_MEMORY_H
#include "blurry/attention.h"
#include "blurry/status.h"
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* BLURRY_OK where the device can be used, else what is missing and the remedy. */
BLURRY_API blurry_status blurry_device_check(blurry_device device);

/* Its name, for example "NVIDIA H200", cut off at `bytes` with its end. */
BLURRY_API blurry_status blurry_device_name(blurry_device device, char *name, size_t bytes);

/* Memory aligned to 64 and zeroed. Freeing NULL is fine. */
BLURRY_API blurry_status blurry_device_alloc(blurry_device device, size_t bytes, void **memory);
BLURRY_API void blurry_device_free(blurry_device device, void *memory);

/* Between host and device memory, in any direction. */
BLURRY_API blurry_status blurry_device_copy(blurry_device device, void *to, const void *from, size_t bytes);

/* Bytes of the device's memory that are free, and all of them; either may be NULL. */
BLURRY_API blurry_status blurry_device_memory(blurry_device device, size_t *free_bytes, size_t *total_bytes);

/* Work to be timed: queues itself on the stream, which is not NULL on CUDA. */
typedef blurry_status (*blurry_work)(void *context, blurry_stream stream);

typedef struct blurry_timing {
    int warmup;  /* calls before the first measurement */
    int repeats; /* measurements */
    int calls;   /* calls within one measurement, one after another */
    int graph; /* 1: the calls of a measurement are captured once as a CUDA graph, whose replays are timed */
} blurry_timing;

/* Seconds per call of each measurement, seconds [repeats], by the device's own events. A failure of the work
 * ends the measurement and is returned. */
BLURRY_API blurry_status blurry_device_time(blurry_device device, const blurry_timing *how, blurry_work work,
                                            void *context, double *seconds);

#ifdef __cplusplus
}
#endif
#endif
