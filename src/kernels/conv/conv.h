/* Short causal depthwise convolution, then SiLU where asked:
 *     c_t[ch] = sum_{i < kernel} weight[ch, i] x_{t - kernel + 1 + i}[ch],   y_t = silu ? SiLU(c_t) : c_t
 * (weight's last column belongs to the newest token). x before the call's first token comes from state_in. */
#ifndef BLURRY_KERNELS_CONV_H
#define BLURRY_KERNELS_CONV_H
#include "kernels/kernel.h"

enum { CONV_KERNEL_MAX = 8 };

typedef struct conv_args {
    int64_t batch, length, channels, kernel;
    int silu;
    const void *x, *weight; /* [batch, length, channels], [channels, kernel] */
    void *y;
    const void *state_in; /* [batch, kernel-1, channels], oldest token first; NULL: zero */
    void *state_out;      /* NULL: not wanted; may be state_in */
    const void *d_y;      /* backward recomputes c from x and state_in */
    void *d_x, *d_weight;
} conv_args;

#endif
