/* Norms of rows, of heads with their gate, and to length 1. */
#include "cases.h"

#include "kernels/norm/norm.h"

DECLARE(rmsnorm_forward, norm_args)
DECLARE(rmsnorm_backward, norm_args)
DECLARE(layernorm_forward, norm_args)
DECLARE(layernorm_backward, norm_args)
DECLARE(headnorm_forward, headnorm_args)
DECLARE(headnorm_backward, headnorm_args)
DECLARE(l2norm_forward, l2norm_args)
DECLARE(l2norm_backward, l2norm_args)

static norm_args norm_of(void **x)
{
    norm_args a = {};
    a.rows = ROWS, a.width = D, a.eps = 1e-5, a.x = x[0], a.weight = x[1], a.bias = x[2], a.y = x[3];
    a.mean = x[4], a.rstd = x[5], a.d_y = x[6], a.d_x = x[7], a.d_weight = x[8], a.d_bias = x[9];
    a.d_residual = x[10];
    return a;
}
static std::vector<tensor> norm_tensors(int backward)
{
    std::vector<tensor> t = {act(ROWS * D),  par(D),         par(D),        act_out(ROWS * D),
                             stat_out(ROWS), stat_out(ROWS), act(ROWS * D), act_out(ROWS * D),
                             par_sum(D),     par_sum(D),     act(ROWS * D)};
    if (backward) { /* statistics are inputs: any numbers serve */
        t[4] = par(ROWS, -0.1, 0.1), t[5] = par(ROWS, 0.5, 2);
        t[3].written = 0;
    } else {
        t[7].written = t[8].written = t[9].written = 0;
    }
    return t;
}

static headnorm_args headnorm_of(void **x)
{
    headnorm_args a = {};
    a.rows = ROWS, a.heads = 2, a.width = D / 2, a.eps = 1e-5, a.x = x[0], a.gate = x[1], a.weight = x[2];
    a.y = x[3], a.rstd = x[4], a.d_y = x[5], a.d_x = x[6], a.d_gate = x[7], a.d_weight = x[8];
    return a;
}

void norm_cases(case_list &to)
{
    const double N = (double)(ROWS * D);
    add_case(
        to, "rmsnorm_forward",
        [](type t, const kernel_run *r, void **x, int64_t) {
            norm_args a = norm_of(x);
            a.mean = NULL;
            call_rmsnorm_forward(t, r, a);
        },
        norm_tensors(0), moves(2 * N, ROWS));
    add_case(
        to, "rmsnorm_backward",
        [](type t, const kernel_run *r, void **x, int64_t) { call_rmsnorm_backward(t, r, norm_of(x)); },
        norm_tensors(1), moves(4 * N, ROWS));
    add_case(
        to, "layernorm_forward",
        [](type t, const kernel_run *r, void **x, int64_t) { call_layernorm_forward(t, r, norm_of(x)); },
        norm_tensors(0), moves(2 * N, 2 * ROWS));
    add_case(
        to, "layernorm_backward",
        [](type t, const kernel_run *r, void **x, int64_t) { call_layernorm_backward(t, r, norm_of(x)); },
        norm_tensors(1), moves(4 * N, 2 * ROWS));
    add_case(
        to, "headnorm_forward",
        [](type t, const kernel_run *r, void **x, int64_t) { call_headnorm_forward(t, r, headnorm_of(x)); },
        {act(ROWS * D), act(ROWS * D, -4, 4), par(D / 2), act_out(ROWS * D), stat_out(2 * ROWS)},
        moves(3 * N, 2 * ROWS));
    add_case(
        to, "headnorm_backward",
        [](type t, const kernel_run *r, void **x, int64_t) { call_headnorm_backward(t, r, headnorm_of(x)); },
        {act(ROWS * D), act(ROWS * D, -4, 4), par(D / 2), act(ROWS * D), par(2 * ROWS, 0.5, 2), act(ROWS * D),
         act_out(ROWS * D), act_out(ROWS * D), par_sum(D / 2)},
        moves(5 * N, 2 * ROWS));
    add_case(
        to, "l2norm_forward",
        [](type t, const kernel_run *r, void **x, int64_t) {
            l2norm_args a = {};
            a.rows = ROWS, a.width = D, a.eps = 1e-6, a.x = x[0], a.y = x[1];
            call_l2norm_forward(t, r, a);
        },
        {act(ROWS * D), act_out(ROWS * D)}, moves(2 * N, 0));
    add_case(
        to, "l2norm_backward",
        [](type t, const kernel_run *r, void **x, int64_t) {
            l2norm_args a = {};
            a.rows = ROWS, a.width = D, a.eps = 1e-6, a.x = x[0], a.d_y = x[1], a.d_x = x[2];
            call_l2norm_backward(t, r, a);
        },
        {act(ROWS * D), act(ROWS * D), act_out(ROWS * D)}, moves(3 * N, 0));
}
