/* Sums, activations and their gates. */
#include "cases.h"

#include "kernels/elementwise/elementwise.h"

DECLARE(add, add_args)
DECLARE(unary_forward, unary_args)
DECLARE(unary_backward, unary_args)
DECLARE(swiglu_forward, swiglu_args)
DECLARE(swiglu_backward, swiglu_args)

void elementwise_cases(case_list &to)
{
    const double N = (double)(ROWS * D);
    add_case(
        to, "add",
        [](type t, const kernel_run *r, void **x, int64_t) {
            add_args a = {};
            a.count = ROWS * D, a.alpha = 0.5, a.beta = 2, a.a = x[0], a.b = x[1], a.y = x[2];
            call_add(t, r, a);
        },
        {act(ROWS * D), act(ROWS * D), act_out(ROWS * D)}, moves(3 * N, 0));
    add_case(
        to, "unary_forward gelu",
        [](type t, const kernel_run *r, void **x, int64_t) {
            unary_args a = {};
            a.kind = UNARY_GELU, a.count = ROWS * D, a.x = x[0], a.y = x[1];
            call_unary_forward(t, r, a);
        },
        {act(ROWS * D, -4, 4), act_out(ROWS * D)}, moves(2 * N, 0));
    add_case(
        to, "unary_backward gelu",
        [](type t, const kernel_run *r, void **x, int64_t) {
            unary_args a = {};
            a.kind = UNARY_GELU, a.count = ROWS * D, a.x = x[0], a.d_y = x[1], a.d_x = x[2];
            call_unary_backward(t, r, a);
        },
        {act(ROWS * D, -4, 4), act(ROWS * D), act_out(ROWS * D)}, moves(3 * N, 0));
    add_case(
        to, "swiglu_forward",
        [](type t, const kernel_run *r, void **x, int64_t) {
            swiglu_args a = {};
            a.count = ROWS * D, a.gate = x[0], a.up = x[1], a.y = x[2];
            call_swiglu_forward(t, r, a);
        },
        {act(ROWS * D, -4, 4), act(ROWS * D), act_out(ROWS * D)}, moves(3 * N, 0));
    add_case(
        to, "swiglu_backward",
        [](type t, const kernel_run *r, void **x, int64_t) {
            swiglu_args a = {};
            a.count = ROWS * D, a.gate = x[0], a.up = x[1], a.d_y = x[2], a.d_gate = x[3], a.d_up = x[4];
            call_swiglu_backward(t, r, a);
        },
        {act(ROWS * D, -4, 4), act(ROWS * D), act(ROWS * D), act_out(ROWS * D), act_out(ROWS * D)},
        moves(5 * N, 0));
}
