/* Gated slot attention (gsa, and abc through slots_gate of kernels/gates): S slots per head that fade and are
 * written, K_t[j] = e^{g_t[j]} K_{t-1}[j] + (1 - e^{g_t[j]}) k_t,   V likewise o_t = sum_j softmax_j(scale
 * <q_t, K_t[j]>) V_t[j] Linear time in chunks; backward starts from the states at chunk boundaries. Gates are
 * any g <= 0. */
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

#endif
