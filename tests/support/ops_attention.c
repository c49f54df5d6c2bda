/* Cases of rotary positions, the short convolution and softmax attention. */
#include "support/ops_case.h"

#include "support/test.h"

#include <math.h>

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
    for (int i = 0; i < OP_LENGTHS; i++)
        for (int64_t table = 0; table < 3; table++) {
            int64_t B = 3, L = op_lengths[i], H = 2, K = i % 2 ? 16 : 11, n = B * L * H * K;
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
                       .x = c->number > 0 ? call->x[3] : NULL,
                       .streams = c->S,
                       .turned = c->option};
}

static void rope_join(const op_call *call)
{
    rope_args a = join_of(call);
    call->dev->ops->rope_table(&call->dev->run, &a);
    call->dev->ops->rope_join(&call->dev->run, &a);
}

/* The reference is rope_backward of each stream that is turned, at its place, times SiLU's slope. */
static void check_join(const op_case *c)
{
    enum { MOST = 3 * 2 * 5 * 2 * 16 };
    double d_y[MOST], d_x[MOST], turned[MOST], x[MOST];
    int64_t row = c->H * c->K, tokens = c->B * c->V, count = c->S * tokens * row;
    device *dev = NULL;
    assert_true(count <= MOST);
    assert_ok(device_create(&dev, &(device_options){.dtype = BLURRY_F64, .reference = 1}));
    for (int64_t i = 0; i < count; i++) d_y[i] = turned[i] = sin((double)i), x[i] = 3 * cos((double)i);
    rope_args a = {.batch = c->B, .length = c->V, .heads = c->H, .dim = c->K, .base = 10000};
    a.d_y = d_y, a.d_x = d_x, a.streams = c->S, a.turned = c->option, a.x = c->number > 0 ? x : NULL;
    dev->ops->rope_join(&dev->run, &a);
    dev->ops->rope_backward(&dev->run, &(rope_args){.batch = c->option * c->B,
                                                    .length = c->V,
                                                    .heads = c->H,
                                                    .dim = c->K,
                                                    .base = 10000,
                                                    .d_y = d_y,
                                                    .d_x = turned});
    if (a.x)
        dev->ops->unary_backward(
            &dev->run,
            &(unary_args){
                .kind = UNARY_SILU, .count = count, .scale = 1, .x = x, .d_y = turned, .d_x = turned});
    for (int64_t i = 0; i < count; i++) {
        int64_t stream = i / (tokens * row), token = i / row % tokens;
        assert_true(fabs(turned[i] - d_x[(token * c->S + stream) * row + i % row]) <= (a.x ? 1e-14 : 0));
    }
    device_destroy(&dev);
}

void ops_rope_join(void **state)
{
    (void)state;
    static const int64_t shapes[][6] = {{1, 5, 1, 16, 2, 0}, {2, 5, 2, 16, 2, 1}, {2, 3, 2, 11, 1, 1},
                                        {2, 4, 1, 12, 3, 0}, {1, 4, 2, 1, 2, 0},  {2, 5, 1, 16, 0, 1}};
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
                     .number = (double)shapes[i][5],
                     .tensor = {{"d_y", OP_FIXED, n, .type = OP_ACTIVATION},
                                {"d_x", OP_RESULT, n, .type = OP_ACTIVATION},
                                {"table", OP_FIXED, V * (K / 2) * 2, .type = OP_STATISTIC},
                                {"x", OP_FIXED, n, .type = OP_ACTIVATION}}};
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
    for (int i = 0; i < OP_LENGTHS; i++)
        for (int64_t B = 1; B <= 3; B += 2) {
            int64_t L = op_lengths[i], K = i % 2 ? 37 : 16,
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
    for (int i = 0; i < OP_LENGTHS; i++) {
        check_attention(1, op_lengths[i], 0, 4, 2, 19, 8);
        check_attention(1, op_lengths[i], 6, 2, 1, 8, 11);
        check_attention(2, op_lengths[i], i % 2 ? 64 : 33, 2, 2, 16, 16);
    }
    check_attention(1, 40, 1, 1, 1, 5, 3);
    check_attention(1, 150, 65, 1, 1, 24, 40);
    check_attention(2, 150, 0, 1, 1, 32, 17);
    check_attention(1, 140, 0, 2, 1, 72, 66); /* two groups of warps */
    check_attention(1, 200, 70, 1, 1, 65, 80);
}
