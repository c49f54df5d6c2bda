/* Rotary positions and the short convolution. */
#include "cases.h"

#include "kernels/conv/conv.h"
#include "kernels/rope/rope.h"

#include <math.h>

DECLARE(rope_table, rope_args)
DECLARE(rope_forward, rope_args)
DECLARE(rope_backward, rope_args)
DECLARE(conv_forward, conv_args)
DECLARE(conv_backward, conv_args)

static conv_args conv_of(void **x)
{
    conv_args a = {};
    a.batch = B, a.length = L, a.channels = D, a.kernel = 4, a.silu = 1, a.x = x[0], a.weight = x[1],
    a.y = x[2];
    a.d_y = x[3], a.d_x = x[4], a.d_weight = x[5];
    return a;
}

static rope_args rope_of(void **x)
{
    rope_args a = {};
    a.batch = B, a.length = L, a.heads = 1, a.dim = D, a.base = 10000, a.table = x[1], a.x = x[0], a.y = x[2];
    a.d_y = x[0], a.d_x = x[2];
    return a;
}

void sequence_cases(case_list &to)
{
    const double N = (double)(ROWS * D);
    tensor table = par(L * D);
    for (int64_t i = 0; i < L * D; i++) {
        double angle = (double)(i / D) * pow(10000, -2.0 * (double)(i % D / 2) / D);
        table.values.push_back((float)(i % 2 ? sin(angle) : cos(angle)));
    }
    add_case(
        to, "rope_table",
        [](type t, const kernel_run *r, void **x, int64_t) { call_rope_table(t, r, rope_of(x)); },
        {act(ROWS * D), stat_out(L * D), act(ROWS * D)}, moves(0, L * D));
    add_case(
        to, "rope_forward",
        [](type t, const kernel_run *r, void **x, int64_t) { call_rope_forward(t, r, rope_of(x)); },
        {act(ROWS * D), table, act_out(ROWS * D)}, moves(2 * N, L * D));
    add_case(
        to, "rope_backward",
        [](type t, const kernel_run *r, void **x, int64_t) { call_rope_backward(t, r, rope_of(x)); },
        {act(ROWS * D), table, act_out(ROWS * D)}, moves(2 * N, L * D));
    add_case(
        to, "conv_forward",
        [](type t, const kernel_run *r, void **x, int64_t) { call_conv_forward(t, r, conv_of(x)); },
        {act(ROWS * D), par(4 * D), act_out(ROWS * D)}, moves(2 * N, 4 * D));
    add_case(
        to, "conv_backward",
        [](type t, const kernel_run *r, void **x, int64_t) { call_conv_backward(t, r, conv_of(x)); },
        {act(ROWS * D), par(4 * D), act(ROWS * D), act(ROWS * D), act_out(ROWS * D), par_sum(4 * D)},
        moves(3 * N, 4 * D));
}
