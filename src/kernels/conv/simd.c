/* Short convolution, lanes over channels. A task is one sequence and one block of channels; the taps of a
 * block lie in scratch of the task's own stack, so that a vector holds one tap of neighbouring channels. */
#include "kernels/conv/conv.h"
#include "kernels/vector_functions.h"

#include "base/threads.h"

#include <string.h>

enum { TAPS = CONV_KERNEL_MAX };

typedef struct lane_block {
    const conv_args *a;
    int64_t b, first, left; /* sequence, first channel, channels that remain */
    vreal w[TAPS];          /* w[i] = tap i of the block's channels */
} lane_block;

static lane_block block_of(const conv_args *a, int64_t b, int64_t first)
{
    lane_block block = {.a = a, .b = b, .first = first, .left = kernel_min(VL, a->channels - first)};
    const real *w = (const real *)a->weight + first * a->kernel;
    for (int64_t i = 0; i < a->kernel; i++)
        for (int64_t c = 0; c < VL; c++) block.w[i][c] = c < block.left ? w[c * a->kernel + i] : 0;
    return block;
}

/* Input of token t; before the first token, carried state or zero. */
V_INLINE vreal input_at(const lane_block *k, int64_t t)
{
    const conv_args *a = k->a;
    if (t >= 0)
        return v_load_up_to((const real *)a->x + (k->b * a->length + t) * a->channels + k->first, k->left);
    if (!a->state_in) return v_zero();
    int64_t place = k->b * (a->kernel - 1) + t + a->kernel - 1;
    return v_load_up_to((const real *)a->state_in + place * a->channels + k->first, k->left);
}

V_INLINE vreal convolved(const lane_block *k, int64_t t)
{
    vreal sum = v_zero();
    for (int64_t i = 0; i < k->a->kernel; i++) sum += k->w[i] * input_at(k, t - k->a->kernel + 1 + i);
    return sum;
}

static void forward_task(void *context, int64_t task, int worker)
{
    (void)worker;
    const conv_args *a = context;
    int64_t blocks = kernel_blocks(a->channels, VL);
    lane_block k = block_of(a, task / blocks, task % blocks * VL);
    real *y = (real *)a->y + k.b * a->length * a->channels + k.first;
    for (int64_t t = 0; t < a->length; t++) {
        vreal sum = convolved(&k, t);
        v_store_up_to(y + t * a->channels, a->silu ? sum * v_sigmoid(sum) : sum, k.left);
    }
    if (!a->state_out) return;
    vreal last[TAPS];
    for (int64_t i = 0; i < a->kernel - 1; i++) last[i] = input_at(&k, a->length - a->kernel + 1 + i);
    for (int64_t i = 0; i < a->kernel - 1; i++)
        v_store_up_to((real *)a->state_out + (k.b * (a->kernel - 1) + i) * a->channels + k.first, last[i],
                      k.left);
}

KERNEL(conv_forward, conv_args)
{
    threads_run(run->threads, a->batch * kernel_blocks(a->channels, VL), forward_task, (void *)a);
}

/* One block of channels of all sequences in order: d_weight is summed over them. */
static void backward_task(void *context, int64_t task, int worker)
{
    (void)worker;
    const conv_args *a = context;
    int64_t C = a->channels, taps = a->kernel;
    vreal d_w[TAPS];
    lane_block k = block_of(a, 0, task * VL);
    for (int64_t i = 0; i < taps; i++) d_w[i] = v_zero();
    for (k.b = 0; k.b < a->batch; k.b++) {
        const real *d_y = (const real *)a->d_y + k.b * a->length * C + k.first;
        real *d_x = (real *)a->d_x + k.b * a->length * C + k.first;
        vreal pending[TAPS]; /* pending[i]: what later tokens have given to token t - taps + 1 + i */
        for (int64_t i = 0; i < taps; i++) pending[i] = v_zero();
        for (int64_t t = 0; t < a->length + taps - 1; t++) {
            vreal d = v_zero();
            if (t < a->length) {
                d = v_load_up_to(d_y + t * C, k.left);
                if (a->silu) {
                    vreal x = convolved(&k, t), s = v_sigmoid(x);
                    d *= s * (1 + x * (1 - s));
                }
                for (int64_t i = 0; i < taps; i++) d_w[i] += d * input_at(&k, t - taps + 1 + i);
            }
            for (int64_t i = 0; i < taps; i++) pending[i] += k.w[i] * d;
            if (t - taps + 1 >= 0) v_store_up_to(d_x + (t - taps + 1) * C, pending[0], k.left);
            for (int64_t i = 0; i + 1 < taps; i++) pending[i] = pending[i + 1];
            pending[taps - 1] = v_zero();
        }
    }
    real *to = (real *)a->d_weight + k.first * taps;
    for (int64_t c = 0; c < k.left; c++)
        for (int64_t i = 0; i < taps; i++) to[c * taps + i] += d_w[i][c];
}

KERNEL(conv_backward, conv_args)
{
    threads_run(run->threads, kernel_blocks(a->channels, VL), backward_task, (void *)a);
}
