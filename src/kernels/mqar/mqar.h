/* Batches of multi-query associative recall made on the device, the very ones that src/tasks/mqar.c makes:
 * token for token the same function of seed and sample. */
#ifndef BLURRY_KERNELS_MQAR_H
#define BLURRY_KERNELS_MQAR_H
#include "kernels/kernel.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { MQAR_PLACES_MOST = 2048 }; /* more are made on the host */

/* Which sample lies at place end - 1 of the order; end 0: nothing was looked up. */
typedef struct mqar_ahead {
    int64_t end, sample;
} mqar_ahead;

typedef struct mqar_args {
    int64_t batch, length, pairs, vocab, places; /* B, L, K, V, n = (L - 2K) / 2 */
    int64_t samples;                             /* in the training split */
    uint64_t data_seed, order_seed;
    uint32_t purpose; /* RNG_MQAR + split */
    int random_filler;
    const double *log_weight;    /* [places] in device memory */
    const uint64_t *first_place; /* in device memory: sample b is at place *first_place + b of the order */
    int64_t step;                /* from a place to that of the step after */
    mqar_ahead *ahead; /* [B] zeroed before the first call: a call looks up the next one's samples */
    int32_t *ids;      /* [B, L] */
    int64_t *rows;     /* [B, K] */
    int32_t *targets;  /* [B, K] */
    int64_t *place;    /* [B, L] where in `rows` each token stands, -1: nowhere */
} mqar_args;

void mqar_cuda(const kernel_run *run, const mqar_args *a);

#ifdef __cplusplus
}
#endif
#endif
