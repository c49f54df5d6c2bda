/* Cases of the operations that scan along a sequence with a state: gated linear attention, gated slots, the
 * delta rule, the diagonal state space. */
#include "support/ops_case.h"

#include "support/test.h"

#include <math.h>

enum { Q, KEY, VAL, GATE, OUT, SAVED, CARRY, BEFORE, BETA };

static void *state_before(const op_call *call)
{
    return call->carry ? call->x[CARRY] : call->c->option ? call->x[BEFORE] : NULL;
}

static gla_args gla_of(const op_call *call)
{
    const op_case *c = call->c;
    return (gla_args){.batch = c->B,
                      .length = call->count,
                      .heads = c->H,
                      .dim_k = c->K,
                      .dim_v = c->V,
                      .scale = c->number,
                      .q = op_at(call, Q),
                      .k = op_at(call, KEY),
                      .v = op_at(call, VAL),
                      .g = op_at(call, GATE),
                      .o = op_at(call, OUT),
                      .state_in = state_before(call),
                      .state_out = call->carry ? call->x[CARRY] : NULL,
                      .saved = call->keep ? call->x[SAVED] : NULL,
                      .d_o = op_grad_at(call, OUT),
                      .d_q = op_grad_at(call, Q),
                      .d_k = op_grad_at(call, KEY),
                      .d_v = op_grad_at(call, VAL),
                      .d_g = op_grad_at(call, GATE)};
}

static void gla_sizes(const op_case *c, device *dev, kernel_sizes *sizes)
{
    gla_args a = {.batch = c->B, .length = c->L, .heads = c->H, .dim_k = c->K, .dim_v = c->V};
    dev->ops->gla_sizes(&dev->run, &a, sizes);
}

static void gla_forward(const op_call *call)
{
    gla_args a = gla_of(call);
    call->dev->ops->gla_forward(&call->dev->run, &a);
}

static void gla_backward(const op_call *call)
{
    gla_args a = gla_of(call);
    call->dev->ops->gla_backward(&call->dev->run, &a);
}

static void check_gla(int64_t B, int64_t L, int64_t H, int64_t K, int64_t V, double lowest)
{
    int64_t N = B * L * H, size = B * H * K * V;
    op_case c = {.family = "gla",
                 .note = lowest < -10 ? "harsh gates" : "gates",
                 .forward = gla_forward,
                 .backward = gla_backward,
                 .sizes = gla_sizes,
                 .B = B,
                 .L = L,
                 .H = H,
                 .K = K,
                 .V = V,
                 .option = B > 1,
                 .number = 0.4,
                 .splits = B == 1,
                 .tensor = {[Q] = {"q", OP_INPUT, N * K, H * K},
                            [KEY] = {"k", OP_INPUT, N * K, H * K},
                            [VAL] = {"v", OP_INPUT, N * V, H * V},
                            [GATE] = {"g", OP_INPUT, N * K, H * K, lowest, -1e-4},
                            [OUT] = {"o", OP_OUTPUT, N * V, H * V},
                            [SAVED] = {"saved", OP_BYTES},
                            [CARRY] = {"state", OP_CARRIED, size},
                            [BEFORE] = {"state_in", OP_FIXED, size, .type = OP_STATISTIC}}};
    op_case_check(&c);
}

void ops_gla(void **state)
{
    (void)state;
    for (int i = 0; i < OP_LENGTHS; i++) {
        check_gla(1, op_lengths[i], 2, 8, 16, -0.3);
        check_gla(3, op_lengths[i], 1, 19, 11, -0.05);
    }
    check_gla(1, 70, 1, 8, 8, -60);
    check_gla(2, 50, 2, 16, 24, -3);
    check_gla(1, 90, 1, 64, 33, -8);
}

static slots_args slots_of(const op_call *call)
{
    const op_case *c = call->c;
    return (slots_args){.batch = c->B,
                        .length = call->count,
                        .heads = c->H,
                        .dim_k = c->K,
                        .dim_v = c->V,
                        .slots = c->S,
                        .scale = c->number,
                        .q = op_at(call, Q),
                        .k = op_at(call, KEY),
                        .v = op_at(call, VAL),
                        .g = op_at(call, GATE),
                        .o = op_at(call, OUT),
                        .state_in = state_before(call),
                        .state_out = call->carry ? call->x[CARRY] : NULL,
                        .saved = call->keep ? call->x[SAVED] : NULL,
                        .d_o = op_grad_at(call, OUT),
                        .d_q = op_grad_at(call, Q),
                        .d_k = op_grad_at(call, KEY),
                        .d_v = op_grad_at(call, VAL),
                        .d_g = op_grad_at(call, GATE)};
}

static void slots_sizes(const op_case *c, device *dev, kernel_sizes *sizes)
{
    slots_args a = {
        .batch = c->B, .length = c->L, .heads = c->H, .dim_k = c->K, .dim_v = c->V, .slots = c->S};
    dev->ops->slots_sizes(&dev->run, &a, sizes);
}

static void slots_forward(const op_call *call)
{
    slots_args a = slots_of(call);
    call->dev->ops->slots_forward(&call->dev->run, &a);
}

static void slots_backward(const op_call *call)
{
    slots_args a = slots_of(call);
    call->dev->ops->slots_backward(&call->dev->run, &a);
}

static void check_slots(int64_t B, int64_t L, int64_t H, int64_t K, int64_t V, int64_t S, double lowest)
{
    int64_t N = B * L * H, size = B * H * S * (K + V);
    op_case c = {.family = "slots",
                 .note = lowest < -10 ? "harsh gates" : "gates",
                 .forward = slots_forward,
                 .backward = slots_backward,
                 .sizes = slots_sizes,
                 .B = B,
                 .L = L,
                 .H = H,
                 .K = K,
                 .V = V,
                 .S = S,
                 .option = B > 1,
                 .number = 0.9,
                 .splits = B == 1,
                 .tensor = {[Q] = {"q", OP_INPUT, N * K, H * K},
                            [KEY] = {"k", OP_INPUT, N * K, H * K},
                            [VAL] = {"v", OP_INPUT, N * V, H * V},
                            [GATE] = {"g", OP_INPUT, N * S, H * S, lowest, -1e-3},
                            [OUT] = {"o", OP_OUTPUT, N * V, H * V},
                            [SAVED] = {"saved", OP_BYTES},
                            [CARRY] = {"state", OP_CARRIED, size},
                            [BEFORE] = {"state_in", OP_FIXED, size, .type = OP_STATISTIC}}};
    op_case_check(&c);
}

/* abc's gate, alone. */
static slots_gate_args gate_of(const op_call *call)
{
    const op_case *c = call->c;
    return (slots_gate_args){.batch = c->B,
                             .length = call->count,
                             .channels = c->S,
                             .s = op_at(call, 0),
                             .g = op_at(call, 1),
                             .state_in = call->carry ? call->x[2]
                                         : c->option ? call->x[3]
                                                     : NULL,
                             .state_out = call->carry ? call->x[2] : NULL,
                             .d_g = op_grad_at(call, 1),
                             .d_s = op_grad_at(call, 0)};
}

static void gate_forward(const op_call *call)
{
    slots_gate_args a = gate_of(call);
    call->dev->ops->slots_gate_forward(&call->dev->run, &a);
}

static void gate_backward(const op_call *call)
{
    slots_gate_args a = gate_of(call);
    call->dev->ops->slots_gate_backward(&call->dev->run, &a);
}

static void check_slots_gate(int64_t B, int64_t L, int64_t S, double reach)
{
    int64_t n = B * L * S;
    op_case c = {.family = "slots_gate",
                 .note = reach > 4 ? "wide" : "narrow",
                 .forward = gate_forward,
                 .backward = gate_backward,
                 .B = B,
                 .L = L,
                 .S = S,
                 .option = B > 1,
                 .splits = B == 1,
                 .tensor = {{"s", OP_INPUT, n, S, -reach, reach},
                            {"g", OP_OUTPUT, n, S},
                            {"z", OP_CARRIED, B * S, .low = -INFINITY},
                            {"z_in", OP_FIXED, B * S, .type = OP_STATISTIC}}};
    op_case_check(&c);
}

void ops_slots(void **state)
{
    (void)state;
    for (int i = 0; i < OP_LENGTHS; i++) {
        check_slots(1, op_lengths[i], 2, 8, 16, 7, -0.4);
        check_slots(3, op_lengths[i], 1, 19, 11, 16, -0.1);
        check_slots_gate(1, op_lengths[i], 21, 1);
        check_slots_gate(2, op_lengths[i], 8, 32);
    }
    check_slots(1, 70, 1, 8, 8, 9, -60);
    check_slots(2, 50, 2, 16, 24, 33, -3);
    check_slots(1, 90, 1, 40, 32, 64, -8);
}

static gdn_args gdn_of(const op_call *call)
{
    const op_case *c = call->c;
    return (gdn_args){.batch = c->B,
                      .length = call->count,
                      .heads = c->H,
                      .dim_k = c->K,
                      .dim_v = c->V,
                      .scale = c->number,
                      .q = op_at(call, Q),
                      .k = op_at(call, KEY),
                      .v = op_at(call, VAL),
                      .g = op_at(call, GATE),
                      .beta = op_at(call, BETA),
                      .o = op_at(call, OUT),
                      .state_in = state_before(call),
                      .state_out = call->carry ? call->x[CARRY] : NULL,
                      .saved = call->keep ? call->x[SAVED] : NULL,
                      .d_o = op_grad_at(call, OUT),
                      .d_q = op_grad_at(call, Q),
                      .d_k = op_grad_at(call, KEY),
                      .d_v = op_grad_at(call, VAL),
                      .d_g = op_grad_at(call, GATE),
                      .d_beta = op_grad_at(call, BETA)};
}

static void gdn_sizes(const op_case *c, device *dev, kernel_sizes *sizes)
{
    gdn_args a = {.batch = c->B, .length = c->L, .heads = c->H, .dim_k = c->K, .dim_v = c->V};
    dev->ops->gdn_sizes(&dev->run, &a, sizes);
}

static void gdn_forward(const op_call *call)
{
    gdn_args a = gdn_of(call);
    call->dev->ops->gdn_forward(&call->dev->run, &a);
}

static void gdn_backward(const op_call *call)
{
    gdn_args a = gdn_of(call);
    call->dev->ops->gdn_backward(&call->dev->run, &a);
}

static void check_gdn(int64_t B, int64_t L, int64_t H, int64_t K, int64_t V, double lowest)
{
    int64_t N = B * L * H, size = B * H * K * V;
    double reach = 1.7 / sqrt((double)K); /* keys of about unit length, as the mixer makes them */
    op_case c = {.family = "gdn",
                 .note = lowest < -10 ? "harsh gates" : "gates",
                 .forward = gdn_forward,
                 .backward = gdn_backward,
                 .sizes = gdn_sizes,
                 .B = B,
                 .L = L,
                 .H = H,
                 .K = K,
                 .V = V,
                 .option = B > 1,
                 .number = 0.4,
                 .splits = B == 1,
                 .tensor = {[Q] = {"q", OP_INPUT, N * K, H * K},
                            [KEY] = {"k", OP_INPUT, N * K, H * K, -reach, reach},
                            [VAL] = {"v", OP_INPUT, N * V, H * V},
                            [GATE] = {"g", OP_INPUT, N, H, lowest, -1e-4},
                            [OUT] = {"o", OP_OUTPUT, N * V, H * V},
                            [SAVED] = {"saved", OP_BYTES},
                            [CARRY] = {"state", OP_CARRIED, size},
                            [BEFORE] = {"state_in", OP_FIXED, size, .type = OP_STATISTIC},
                            [BETA] = {"beta", OP_INPUT, N, H, 0.01, 0.99}}};
    op_case_check(&c);
}

/* The gate of the delta rule. */
static gdn_gate_args gdn_gate_of(const op_call *call)
{
    return (gdn_gate_args){.rows = call->c->L,
                           .heads = call->c->H,
                           .x = call->x[0],
                           .A = call->x[1],
                           .dt_bias = call->x[2],
                           .g = call->x[3],
                           .d_g = call->d[3],
                           .d_x = call->d[0],
                           .d_A = call->d[1],
                           .d_dt_bias = call->d[2]};
}

static void gdn_gate_forward(const op_call *call)
{
    gdn_gate_args a = gdn_gate_of(call);
    call->dev->ops->gdn_gate_forward(&call->dev->run, &a);
}

static void gdn_gate_backward(const op_call *call)
{
    gdn_gate_args a = gdn_gate_of(call);
    call->dev->ops->gdn_gate_backward(&call->dev->run, &a);
}

void ops_gdn(void **state)
{
    (void)state;
    for (int i = 0; i < OP_LENGTHS; i++) {
        check_gdn(1, op_lengths[i], 2, 8, 16, -0.3);
        check_gdn(3, op_lengths[i], 1, 19, 11, -0.05);
        int64_t H = i % 2 ? 3 : 8, n = op_lengths[i] * H;
        op_case c = {.family = "gdn_gate",
                     .note = "",
                     .forward = gdn_gate_forward,
                     .backward = gdn_gate_backward,
                     .L = op_lengths[i],
                     .H = H,
                     .tensor = {{"x", OP_INPUT, n, .low = -9, .high = 9},
                                {"A", OP_PARAM, H, .low = -1, .high = 2.7},
                                {"dt_bias", OP_PARAM, H, .low = -5, .high = 0},
                                {"g", OP_OUTPUT, n}}};
        op_case_check(&c);
    }
    check_gdn(1, 70, 1, 8, 8, -60);
    check_gdn(2, 50, 2, 16, 24, -3);
    check_gdn(1, 90, 1, 40, 33, -8);
    check_gdn(2, 67, 1, 40, 72, -0.3);
}

/* ---- diagonal state space ---- */
static ssm_args ssm_of(const op_call *call)
{
    const op_case *c = call->c;
    return (ssm_args){.batch = c->B,
                      .length = call->count,
                      .channels = c->K,
                      .modes = c->S,
                      .u = op_at(call, 0),
                      .log_step = call->x[1],
                      .c_re = call->x[2],
                      .c_im = call->x[3],
                      .d = call->x[4],
                      .y = op_at(call, 5),
                      .state_in = call->carry ? call->x[7]
                                  : c->option ? call->x[8]
                                              : NULL,
                      .state_out = call->carry ? call->x[7] : NULL,
                      .saved = call->keep ? call->x[6] : NULL,
                      .d_y = op_grad_at(call, 5),
                      .d_u = op_grad_at(call, 0),
                      .d_log_step = call->d[1],
                      .d_c_re = call->d[2],
                      .d_c_im = call->d[3],
                      .d_d = call->d[4]};
}

static void ssm_sizes(const op_case *c, device *dev, kernel_sizes *sizes)
{
    ssm_args a = {.batch = c->B, .length = c->L, .channels = c->K, .modes = c->S};
    dev->ops->ssm_sizes(&dev->run, &a, sizes);
}

static void ssm_forward(const op_call *call)
{
    ssm_args a = ssm_of(call);
    call->dev->ops->ssm_forward(&call->dev->run, &a);
}

static void ssm_backward(const op_call *call)
{
    ssm_args a = ssm_of(call);
    call->dev->ops->ssm_backward(&call->dev->run, &a);
}

static void check_ssm(int64_t B, int64_t L, int64_t K, int64_t S, int from_state)
{
    int64_t n = B * L * K, size = B * K * S * 2;
    op_case c = {.family = "ssm",
                 .note = from_state ? "batch, from a state"
                         : B > 1    ? "batch, from rest"
                                    : "split",
                 .forward = ssm_forward,
                 .backward = ssm_backward,
                 .sizes = ssm_sizes,
                 .B = B,
                 .L = L,
                 .K = K,
                 .S = S,
                 .option = from_state,
                 .splits = B == 1,
                 .tensor = {{"u", OP_INPUT, n, K},
                            {"log_step", OP_PARAM, K, .low = -6.9, .high = -2.3},
                            {"c_re", OP_PARAM, K * S},
                            {"c_im", OP_PARAM, K * S},
                            {"d", OP_PARAM, K},
                            {"y", OP_OUTPUT, n, K},
                            {"saved", OP_BYTES},
                            {"state", OP_CARRIED, size},
                            {"state_in", OP_FIXED, size, .type = OP_STATISTIC}}};
    op_case_check(&c);
}

void ops_ssm(void **state)
{
    (void)state;
    for (int i = 0; i < OP_LENGTHS; i++) {
        check_ssm(1, op_lengths[i], i % 2 ? 11 : 16, i % 2 ? 5 : 8, 0);
        check_ssm(2, op_lengths[i], 24, i % 2 ? 5 : 8, 1);
    }
    check_ssm(9, 131, 8, 10, 0);
    check_ssm(2, 512, 8, 1, 0);
}
