/* What the CUDA sources of this folder share on the host side. */
#ifndef BLURRY_KERNELS_BLURRY_STEP_CUDA_HOST_H
#define BLURRY_KERNELS_BLURRY_STEP_CUDA_HOST_H
#include "kernels/blurry_step/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Entry `run` of the table, and the shared memory it needs. */
blurry_status bla_step_cuda_run(const bla_step_cuda_shape *shape, const bla_step_cuda_states *states,
                                const void *q, const void *k, const void *v, void *o, blurry_stream stream);
size_t bla_step_cuda_shared(const bla_step_cuda_shape *shape);

/* The same where the fast kernel takes the shape (cuda_stream.cu); otherwise false, and nothing was done. */
bool bla_step_cuda_stream(const bla_step_cuda_shape *shape, const bla_step_cuda_states *states, const void *q,
                          const void *k, const void *v, void *o, blurry_stream stream);

/* Whether the launch just made was accepted; `what` for the message. */
blurry_status bla_step_cuda_launched(const char *what);

#ifdef __cplusplus
}
#endif
#endif
