/* Cases of the sequence operations: attention, gated scans, delta rule, state space, convolution, rotary
 * positions. */
#include "support/ops_case.h"
#include "support/test.h"

#include <math.h>

/* L around the chunk sizes of the kernels, widths that fill no vector. */
static const int64_t lengths[] = {0, 1, 5, 16, 33, 70, 131};
enum { LENGTHS = sizeof lengths / sizeof *lengths };

/* ---- rotary positions ---- */
static rope_args rope_of(const op_call *call)
{
    const op_case *c = call->c;
    rope_args a = {.batch = c->B,
                   .length = call->count,
                   .heads = c->H,
                   .dim = c->K,
                   .base = 10000,
                   .position = call->x[3],
                   .x = op_at(call, 0),
                   .y = op_at(call, 1),
                   .d_y = op_grad_at(call, 1),
                   .d_x = op_grad_at(call, 0)};
    if (c->option) a.table = call->x[2];
    if (c->option == 1) a.position = NULL;
    if (c->option == 2) a.table_length = call->count; /* some positions lie beyond it */
    return a;
}

static void rope_forward(const op_call *call)
{
    rope_args a = rope_of(call);
    if (a.table) call->dev->ops->rope_table(&call->dev->run, &a);
    call->dev->ops->rope_forward(&call->dev->run, &a);
}

static void rope_backward(const op_call *call)
{
    rope_args a = rope_of(call);
    call->dev->ops->rope_backward(&call->dev->run, &a);
}

void ops_rope(void **state)
{
    (void)state;
    static const int64_t far[] = {3, 1000000007, 12};
    for (int i = 0; i < LENGTHS; i++)
        for (int64_t table = 0; table < 3; table++) {
            int64_t B = 3, L = lengths[i], H = 2, K = i % 2 ? 16 : 11, n = B * L * H * K;
            op_case c = {.family = "rope",
                         .note = table == 2   ? "positions and table"
                                 : table == 1 ? "table"
                                              : "positions",
                         .forward = rope_forward,
                         .backward = rope_backward,
                         .B = B,
                         .L = L,
                         .H = H,
                         .K = K,
                         .option = table,
                         .tensor = {{"x", OP_INPUT, n, H * K},
                                    {"y", OP_OUTPUT, n, H * K},
                                    {"table", OP_FIXED, L * (K / 2) * 2, .type = OP_STATISTIC},
                                    {"position", OP_INT, B, .ints = far}}};
            op_case_check(&c);
        }
}

/* Streams side by side: H heads of K, S streams of length V. */
static rope_args join_of(const op_call *call)
{
    const op_case *c = call->c;
    return (rope_args){.batch = c->B,
                       .length = c->V,
                       .heads = c->H,
                       .dim = c->K,
                       .base = 10000,
                       .table = call->x[2],
                       .d_y = call->x[0],
                       .d_x = call->x[1],
                       .streams = c->S,
                       .turned = c->option};
}

static void rope_join(const op_call *call)
{
    rope_args a = join_of(call);
    call->dev->ops->rope_table(&call->dev->run, &a);
    call->dev->ops->rope_join(&call->dev->run, &a);
}

/* The reference is rope_backward of each stream that is turned, at its place. */
static void check_join(const op_case *c)
{
    enum { MOST = 3 * 2 * 5 * 2 * 16 };
    double d_y[MOST], d_x[MOST], turned[MOST];
    int64_t row = c->H * c->K, tokens = c->B * c->V, count = c->S * tokens * row;
    device *dev = NULL;
    assert_true(count <= MOST);
    assert_ok(device_create(&dev, &(device_options){.dtype = BLURRY_F64, .reference = 1}));
    for (int64_t i = 0; i < count; i++) d_y[i] = turned[i] = sin((double)i);
    rope_args a = {.batch = c->B, .length = c->V, .heads = c->H, .dim = c->K, .base = 10000};
    a.d_y = d_y, a.d_x = d_x, a.streams = c->S, a.turned = c->option;
    dev->ops->rope_join(&dev->run, &a);
    dev->ops->rope_backward(&dev->run, &(rope_args){.batch = c->option * c->B,
                                                    .length = c->V,
                                                    .heads = c->H,
                                                    .dim = c->K,
                                                    .base = 10000,
                                                    .d_y = d_y,
                                                    .d_x = turned});
    for (int64_t i = 0; i < count; i++) {
        int64_t stream = i / (tokens * row), token = i / row % tokens;
        assert_true(turned[i] == d_x[(token * c->S + stream) * row + i % row]);
    }
    device_destroy(&dev);
}

void ops_rope_join(void **state)
{
    (void)state;
    static const int64_t shapes[][5] = {
        {1, 5, 1, 16, 2}, {2, 5, 2, 16, 2}, {2, 3, 2, 11, 1}, {2, 4, 1, 12, 3}, {1, 4, 2, 1, 2}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        int64_t B = shapes[i][0], V = shapes[i][1], H = shapes[i][2], K = shapes[i][3], n = 3 * B * V * H * K;
        op_case c = {.family = "rope",
                     .note = "side by side",
                     .forward = rope_join,
                     .B = B,
                     .H = H,
                     .K = K,
                     .S = 3,
                     .V = V,
                     .option = shapes[i][4],
                     .tensor = {{"d_y", OP_FIXED, n, .type = OP_ACTIVATION},
                                {"d_x", OP_RESULT, n, .type = OP_ACTIVATION},
                                {"table", OP_FIXED, V * (K / 2) * 2, .type = OP_STATISTIC}}};
        check_join(&c);
        op_case_check(&c);
    }
}

/* ---- short convolution ---- */
static conv_args conv_of(const op_call *call)
{
    const op_case *c = call->c;
    void *carried = call->carry ? call->x[3] : NULL;
    const void *before = call->carry ? carried : c->number > 0 ? call->x[4] : NULL;
    return (conv_args){.batch = c->B,
                       .length = call->count,
                       .channels = c->K,
                       .kernel = c->S,
                       .silu = (int)c->option,
                       .x = op_at(call, 0),
                       .weight = call->x[1],
                       .y = op_at(call, 2),
                       .state_in = before,
                       .state_out = carried,
                       .d_y = op_grad_at(call, 2),
                       .d_x = op_grad_at(call, 0),
                       .d_weight = call->d[1]};
}

static void conv_forward(const op_call *call)
{
    conv_args a = conv_of(call);
    call->dev->ops->conv_forward(&call->dev->run, &a);
}

static void conv_backward(const op_call *call)
{
    conv_args a = conv_of(call);
    call->dev->ops->conv_backward(&call->dev->run, &a);
}

void ops_convolution(void **state)
{
    (void)state;
    for (int i = 0; i < LENGTHS; i++)
        for (int64_t B = 1; B <= 3; B += 2) {
            int64_t L = lengths[i], K = i % 2 ? 37 : 16,
                    S = i == 3   ? 3
                        : i == 4 ? 8
                                 : 4,
                    n = B * L * K, carried = B * (S - 1) * K;
            op_case c = {.family = "conv",
                         .note = B > 1 ? "batch, from a state" : "split",
                         .forward = conv_forward,
                         .backward = conv_backward,
                         .B = B,
                         .L = L,
                         .K = K,
                         .S = S,
                         .option = i != 2,
                         .number = B > 1,
                         .splits = B == 1,
                         .tensor = {{"x", OP_INPUT, n, K},
                                    {"weight", OP_PARAM, K * S},
                                    {"y", OP_OUTPUT, n, K},
                                    {"carried", OP_CARRIED, carried},
                                    {"state_in", OP_FIXED, carried, .type = OP_STATISTIC}}};
            op_case_check(&c);
        }
}

/* ---- softmax attention ---- */
static attention_args attention_of(const op_call *call)
{
    const op_case *c = call->c;
    static int64_t position;
    position = call->first;
    attention_args a = {.batch = c->B,
                        .length = call->count,
                        .heads = c->H,
                        .heads_kv = c->G,
                        .dim_k = c->K,
                        .dim_v = c->V,
                        .window = c->option,
                        .scale = c->number,
                        .q = op_at(call, 0),
                        .k = op_at(call, 1),
                        .v = op_at(call, 2),
                        .o = op_at(call, 3),
                        .lse = call->keep ? call->x[4] : NULL,
                        .capacity = c->S,
                        .d_o = op_grad_at(call, 3),
                        .d_q = op_grad_at(call, 0),
                        .d_k = op_grad_at(call, 1),
                        .d_v = op_grad_at(call, 2)};
    if (call->carry) {
        a.cache_k = call->x[5];
        a.cache_v = call->x[6];
        a.position = op_lend(call, &position, sizeof position);
    }
    return a;
}

static void attention_sizes(const op_case *c, device *dev, kernel_sizes *sizes)
{
    attention_args a = {.batch = c->B,
                        .length = c->L,
                        .heads = c->H,
                        .heads_kv = c->G,
                        .dim_k = c->K,
                        .dim_v = c->V,
                        .window = c->option,
                        .capacity = c->S};
    dev->ops->attention_sizes(&dev->run, &a, sizes);
}

static void attention_forward(const op_call *call)
{
    attention_args a = attention_of(call);
    call->dev->ops->attention_forward(&call->dev->run, &a);
}

static void attention_backward(const op_call *call)
{
    attention_args a = attention_of(call);
    call->dev->ops->attention_backward(&call->dev->run, &a);
}

static void check_attention(int64_t B, int64_t L, int64_t window, int64_t H, int64_t G, int64_t K, int64_t V)
{
    int64_t capacity = window ? window : L + 1, NK = B * L * G * K, NV = B * L * G * V;
    op_case c = {.family = "attention",
                 .note = window ? "window" : "full",
                 .forward = attention_forward,
                 .backward = attention_backward,
                 .sizes = attention_sizes,
                 .B = B,
                 .L = L,
                 .H = H,
                 .G = G,
                 .K = K,
                 .V = V,
                 .S = capacity,
                 .option = window,
                 .number = 0.7,
                 .splits = B == 1,
                 .tensor = {{"q", OP_INPUT, B * L * H * K, H * K},
                            {"k", OP_INPUT, NK, G * K},
                            {"v", OP_INPUT, NV, G * V},
                            {"o", OP_OUTPUT, B * L * H * V, H * V},
                            {"lse", OP_FIXED, B * H * L, .type = OP_STATISTIC},
                            {"cache_k", OP_CARRIED, B * capacity * G * K},
                            {"cache_v", OP_CARRIED, B * capacity * G * V}}};
    op_case_check(&c);
}

void ops_attention(void **state)
{
    (void)state;
    for (int i = 0; i < LENGTHS; i++) {
        check_attention(1, lengths[i], 0, 4, 2, 19, 8);
        check_attention(1, lengths[i], 6, 2, 1, 8, 11);
        check_attention(2, lengths[i], i % 2 ? 64 : 33, 2, 2, 16, 16);
    }
    check_attention(1, 40, 1, 1, 1, 5, 3);
    check_attention(1, 150, 65, 1, 1, 24, 40);
    check_attention(2, 150, 0, 1, 1, 32, 17);
}

/* ---- scans over a state ---- */
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
    for (int i = 0; i < LENGTHS; i++) {
        check_gla(1, lengths[i], 2, 8, 16, -0.3);
        check_gla(3, lengths[i], 1, 19, 11, -0.05);
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
    for (int i = 0; i < LENGTHS; i++) {
        check_slots(1, lengths[i], 2, 8, 16, 7, -0.4);
        check_slots(3, lengths[i], 1, 19, 11, 16, -0.1);
        check_slots_gate(1, lengths[i], 21, 1);
        check_slots_gate(2, lengths[i], 8, 32);
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
    for (int i = 0; i < LENGTHS; i++) {
        check_gdn(1, lengths[i], 2, 8, 16, -0.3);
        check_gdn(3, lengths[i], 1, 19, 11, -0.05);
        int64_t H = i % 2 ? 3 : 8, n = lengths[i] * H;
        op_case c = {.family = "gdn_gate",
                     .note = "",
                     .forward = gdn_gate_forward,
                     .backward = gdn_gate_backward,
                     .L = lengths[i],
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

void ops_ssm(void **state)
{
    (void)state;
    for (int i = 0; i < LENGTHS; i++)
        for (int64_t B = 1; B <= 2; B++) {
            int64_t L = lengths[i], K = B == 1 ? 11 : 24, S = i % 2 ? 5 : 8, n = B * L * K,
                    size = B * K * S * 2;
            op_case c = {.family = "ssm",
                         .note = B > 1 ? "batch, from a state" : "split",
                         .forward = ssm_forward,
                         .backward = ssm_backward,
                         .sizes = ssm_sizes,
                         .B = B,
                         .L = L,
                         .K = K,
                         .S = S,
                         .option = B > 1,
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
}
