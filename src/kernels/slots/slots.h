/* Gated slot attention (gsa, and abc through slots_gate): S slots per head that fade and are written,
 *     K_t[j] = e^{g_t[j]} K_{t-1}[j] + (1 - e^{g_t[j]}) k_t,   V likewise
 *     o_t = sum_j softmax_j(scale <q_t, K_t[j]>) V_t[j]
 * Linear time in chunks; backward starts from the states at chunk boundaries. Gates are any g <= 0. */
#ifndef BLURRY_KERNELS_SLOTS_H
#define BLURRY_KERNELS_SLOTS_H
#include "kernels/kernel.h"

typedef struct slots_args {
    int64_t batch, length, heads, dim_k, dim_v, slots;
    double scale;
    const void *q, *k, *v, *g; /* q, k [batch, length, heads, dim_k], v [.., dim_v], g [.., slots] */
    void *o;                   /* [batch, length, heads, dim_v] */
    const void *state_in;      /* [batch, heads, slots, dim_k + dim_v], K before V in a row; NULL: zero */
    void *state_out;           /* NULL: not wanted; may be state_in */
    void *saved;               /* kernel_sizes.saved bytes; NULL: no backward will follow */
    const void *d_o;           /* backward reads q, k, v, g, state_in, saved, d_o */
    void *d_q, *d_k, *d_v, *d_g;
} slots_args;

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

#endif
