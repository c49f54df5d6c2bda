/* Blurry attention as an operation of the device table, over the public plan of blurry/attention.h. The plan
 * is made with device_blurry_plan (device.h) and carries shape, periods, decay, grid and kernels. */
#ifndef BLURRY_DEVICE_BLURRY_H
#define BLURRY_DEVICE_BLURRY_H
#include "blurry/attention.h"
#include "kernels/kernel.h"

typedef struct blurry_args {
    const blurry_attn_plan *plan;
    const int64_t
        *offsets; /* NULL: B sequences of L tokens; else [B+1] in host memory, as in blurry/attention.h:
                     how a pass uses fewer or shorter sequences than the plan allows */
    const int64_t *rows; /* NULL: all tokens; else [row_count] ascending tokens, those whose outputs are
                            wanted: q, o, d_o, d_q are [row_count, H, D]. CPU only */
    int64_t row_count;
    const void *q, *k, *v; /* [B, L, H, Dk], [B, L, Hkv, Dk], [B, L, Hkv, Dv] */
    void *o;               /* [B, L, H, Dv] */
    const void *state_in;  /* B states of blurry_attn_state_bytes each, as the plan's state_init makes them;
                              NULL: empty */
    void *state_out;       /* NULL: not wanted; may be state_in */
    void *saved;           /* kernel_sizes.saved bytes; NULL: no backward will follow */
    const void *d_o;
    void *d_q, *d_k, *d_v;
    double *d_period; /* [Hkv] overwritten; NULL: not wanted */
} blurry_args;

/* One token for each of `count` sequences, each with its own state. */
typedef struct blurry_step_args {
    const blurry_attn_plan *plan;
    int64_t count;
    const void *q, *k, *v; /* [count, H, Dk], ... */
    void *o;
    void *states; /* [count] one after another */
} blurry_step_args;

#endif
