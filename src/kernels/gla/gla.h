/* Gated linear attention, one gate per key channel:
 *     h_t = diag(e^{g_t}) h_{t-1} + k_t v_t^T,   o_t = scale * h_t^T q_t         h [dim_k, dim_v] per head
 * Linear time in chunks; backward starts from the states at chunk boundaries. Gates are any g <= 0. */
#ifndef BLURRY_KERNELS_GLA_H
#define BLURRY_KERNELS_GLA_H
#include "kernels/kernel.h"

typedef struct gla_args {
    int64_t batch, length, heads, dim_k, dim_v;
    double scale;
    const void *q, *k, *v, *g; /* q, k, g [batch, length, heads, dim_k], v [.., dim_v] */
    void *o;                   /* [batch, length, heads, dim_v] */
    const void *state_in;      /* [batch, heads, dim_k, dim_v]; NULL: zero */
    void *state_out;           /* NULL: not wanted; may be state_in */
    void *saved;               /* kernel_sizes.saved bytes; NULL: no backward will follow */
    const void *d_o;           /* backward reads q, k, v, g, state_in, saved, d_o */
    void *d_q, *d_k, *d_v, *d_g;
} gla_args;

#endif
