/* Gates of the mixers: slots that are written, and the gated delta rule. */
#include "cases.h"

#include "kernels/gates/gates.h"

DECLARE(slots_gate_forward, slots_gate_args)
DECLARE(slots_gate_backward, slots_gate_args)
DECLARE(gdn_gate_forward, gdn_gate_args)
DECLARE(gdn_gate_backward, gdn_gate_args)

enum : int64_t { H = 8, SLOTS = 64 };

static slots_gate_args slots_gate_of(void **x)
{
    slots_gate_args a = {};
    a.batch = B, a.length = L, a.channels = SLOTS, a.s = x[0], a.g = x[1], a.d_g = x[2], a.d_s = x[3];
    return a;
}

static gdn_gate_args gdn_gate_of(void **x)
{
    gdn_gate_args a = {};
    a.rows = ROWS, a.heads = H, a.x = x[0], a.A = x[1], a.dt_bias = x[2], a.g = x[3], a.d_g = x[4],
    a.d_x = x[5];
    a.d_A = x[6], a.d_dt_bias = x[7];
    return a;
}

void gate_cases(case_list &to)
{
    add_case(
        to, "slots_gate_forward",
        [](type t, const kernel_run *r, void **x, int64_t) {
            call_slots_gate_forward(t, r, slots_gate_of(x));
        },
        {act(ROWS * SLOTS), act_out(ROWS * SLOTS)}, moves(2 * ROWS * SLOTS, 0));
    add_case(
        to, "slots_gate_backward",
        [](type t, const kernel_run *r, void **x, int64_t) {
            call_slots_gate_backward(t, r, slots_gate_of(x));
        },
        {act(ROWS * SLOTS), act(ROWS * SLOTS, -1, -0.001), act(ROWS * SLOTS), act_out(ROWS * SLOTS)},
        moves(3 * ROWS * SLOTS, 0));
    add_case(
        to, "gdn_gate_forward",
        [](type t, const kernel_run *r, void **x, int64_t) { call_gdn_gate_forward(t, r, gdn_gate_of(x)); },
        {act(ROWS * H), par(H), par(H), act_out(ROWS * H)}, moves(2 * ROWS * H, 0));
    add_case(
        to, "gdn_gate_backward",
        [](type t, const kernel_run *r, void **x, int64_t) { call_gdn_gate_backward(t, r, gdn_gate_of(x)); },
        {act(ROWS * H), par(H), par(H), act(ROWS * H), act(ROWS * H), act_out(ROWS * H), par_sum(H),
         par_sum(H)},
        moves(3 * ROWS * H, 0));
}
