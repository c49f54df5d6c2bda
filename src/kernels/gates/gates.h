/* How abc and the gated delta rule make their log keep weights. */
#ifndef BLURRY_KERNELS_GATES_H
#define BLURRY_KERNELS_GATES_H
#include "kernels/kernel.h"

/* abc's gate: z_t = log sum_{u <= t} e^{s_u} along time, g_t = z_{t-1} - z_t, so that e^{g} is the keep
 * weight and 1 - e^{g} = e^{s_t - z_t} the write weight. The first token of all has keep weight 0; there g is
 * a large negative number and its gradient 0. s, g [batch, length, channels] with channels = heads * slots.
 */
typedef struct slots_gate_args {
    int64_t batch, length, channels;
    const void *s;
    void *g;
    const void
        *state_in;   /* [batch, channels] the running z; NULL: -infinity, nothing seen (also as a value) */
    void *state_out; /* NULL: not wanted; may be state_in */
    const void *d_g; /* backward reads s, g, state_in, d_g */
    void *d_s;       /* may be d_g */
} slots_gate_args;

/* The gate: g = -exp(A[h]) softplus(x + dt_bias[h]); x, g [rows, heads], A, dt_bias [heads] parameters. */
typedef struct gdn_gate_args {
    int64_t rows, heads;
    const void *x, *A, *dt_bias;
    void *g;
    const void *d_g;
    void *d_x, *d_A, *d_dt_bias; /* d_x may be d_g */
} gdn_gate_args;

#endif
