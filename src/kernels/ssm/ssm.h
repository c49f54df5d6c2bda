/* Diagonal state space (S4D-Lin), per channel with `modes` conjugate pairs (N = 2 * modes):
 *     A_n = -1/2 + i pi n,  step = e^{log_step[c]},  a_n = e^{A_n step},  b_n = (a_n - 1) / A_n (zero-order
 * hold, B = 1) h_t[n] = a_n h_{t-1}[n] + b_n u_t,   y_t = 2 Re sum_n C[c, n] h_t[n] + D[c] u_t Scanned in
 * linear time; backward starts from states kept at block boundaries. */
#ifndef BLURRY_KERNELS_SSM_H
#define BLURRY_KERNELS_SSM_H
#include "kernels/kernel.h"

typedef struct ssm_args {
    int64_t batch, length, channels, modes;
    const void *u;                          /* [batch, length, channels] */
    const void *log_step, *c_re, *c_im, *d; /* [channels], [channels, modes] twice, [channels] */
    void *y;                                /* [batch, length, channels] */
    const void *state_in;                   /* [batch, modes, 2, channels] real and imaginary h; NULL: zero */
    void *state_out;                        /* NULL: not wanted; may be state_in */
    void *saved;                            /* kernel_sizes.saved bytes; NULL: no backward will follow */
    const void *d_y;                        /* backward reads u, parameters, state_in, saved, d_y */
    void *d_u, *d_log_step, *d_c_re, *d_c_im, *d_d;
} ssm_args;

#endif
