/* Gated delta rule, a scalar gate per head:
 *     S <- e^{g_t} S;  u_t = beta_t (v_t - S^T k_t);  S <- S + k_t u_t^T;  o_t = scale * S^T q_t     S
 * [dim_k, dim_v] Linear time in chunks; backward starts from the states at chunk boundaries. g <= 0. */
#ifndef BLURRY_KERNELS_GDN_H
#define BLURRY_KERNELS_GDN_H
#include "kernels/kernel.h"

typedef struct gdn_args {
    int64_t batch, length, heads, dim_k, dim_v;
    double scale;
    const void *q, *k, *v; /* [batch, length, heads, dim_k], the same, [.., dim_v] */
    const void *beta, *g;  /* [batch, length, heads] */
    void *o;               /* [batch, length, heads, dim_v] */
    const void *state_in;  /* [batch, heads, dim_k, dim_v]; NULL: zero */
    void *state_out;       /* NULL: not wanted; may be state_in */
    void *saved;           /* kernel_sizes.saved bytes; NULL: no backward will follow */
    const void *d_o;       /* backward reads q, k, v, beta, g, state_in, saved, d_o */
    void *d_q, *d_k, *d_v, *d_beta, *d_g;
} gdn_args;

#endif
