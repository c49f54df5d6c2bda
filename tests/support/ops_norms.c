/* Cases of the norms. */
#include "support/ops_case.h"

#include "support/test.h"

#include <string.h>

static norm_args norm_of(const op_call *call)
{
    const op_case *c = call->c;
    return (norm_args){.rows = c->L,
                       .width = c->K,
                       .eps = 1e-5,
                       .x = call->x[0],
                       .weight = call->x[1],
                       .bias = call->x[2],
                       .y = call->x[3],
                       .mean = call->x[4],
                       .rstd = call->x[5],
                       .d_y = call->d[3],
                       .d_x = call->d[0],
                       .d_weight = call->d[1],
                       .d_bias = call->d[2]};
}

static void rmsnorm_forward(const op_call *call)
{
    norm_args a = norm_of(call);
    call->dev->ops->rmsnorm_forward(&call->dev->run, &a);
}

static void rmsnorm_backward(const op_call *call)
{
    norm_args a = norm_of(call);
    call->dev->ops->rmsnorm_backward(&call->dev->run, &a);
}

static void layernorm_forward(const op_call *call)
{
    norm_args a = norm_of(call);
    call->dev->ops->layernorm_forward(&call->dev->run, &a);
}

static void layernorm_backward(const op_call *call)
{
    norm_args a = norm_of(call);
    call->dev->ops->layernorm_backward(&call->dev->run, &a);
}

/* A residual stream: y2 = x + norm(x); its gradient reaches d_x twice. */
static void residual_forward(const op_call *call)
{
    rmsnorm_forward(call);
    add_args a = {.count = call->c->L * call->c->K,
                  .alpha = 1,
                  .beta = 1,
                  .a = call->x[0],
                  .b = call->x[3],
                  .y = call->x[3]};
    call->dev->ops->add(&call->dev->run, &a);
}

static void residual_backward(const op_call *call)
{
    norm_args a = norm_of(call);
    size_t bytes = (size_t)(a.rows * a.width) * call->dev->element;
    memcpy(a.d_x, a.d_y, bytes);
    a.d_residual = a.d_x;
    call->dev->ops->rmsnorm_backward(&call->dev->run, &a);
}

/* The same where the stream goes on at some rows alone: z [S, K] = those rows of x beside y = norm(x). */
static void picked_forward(const op_call *call)
{
    rmsnorm_forward(call);
    call->dev->ops->rows_gather(&call->dev->run, &(rows_args){.count = call->c->S,
                                                              .total = call->c->L,
                                                              .width = call->c->K,
                                                              .row = call->x[7],
                                                              .x = call->x[0],
                                                              .y = call->x[6]});
}

static void picked_backward(const op_call *call)
{
    norm_args a = norm_of(call);
    a.d_residual = call->d[6], a.residual_place = call->x[8];
    call->dev->ops->rmsnorm_backward(&call->dev->run, &a);
}

static headnorm_args headnorm_of(const op_call *call)
{
    const op_case *c = call->c;
    return (headnorm_args){.rows = c->L,
                           .heads = c->H,
                           .width = c->K,
                           .eps = 1e-5,
                           .x = call->x[0],
                           .gate = c->option ? call->x[1] : NULL,
                           .weight = call->x[2],
                           .y = call->x[3],
                           .rstd = call->x[4],
                           .d_y = call->d[3],
                           .d_x = call->d[0],
                           .d_gate = c->option ? call->d[1] : NULL,
                           .d_weight = call->d[2]};
}

static void headnorm_forward(const op_call *call)
{
    headnorm_args a = headnorm_of(call);
    call->dev->ops->headnorm_forward(&call->dev->run, &a);
}

static void headnorm_backward(const op_call *call)
{
    headnorm_args a = headnorm_of(call);
    call->dev->ops->headnorm_backward(&call->dev->run, &a);
}

static l2norm_args l2norm_of(const op_call *call)
{
    return (l2norm_args){.rows = call->c->L,
                         .width = call->c->K,
                         .eps = 1e-6,
                         .x = call->x[0],
                         .y = call->x[1],
                         .d_y = call->d[1],
                         .d_x = call->d[0]};
}

static void l2norm_forward(const op_call *call)
{
    l2norm_args a = l2norm_of(call);
    call->dev->ops->l2norm_forward(&call->dev->run, &a);
}

static void l2norm_backward(const op_call *call)
{
    l2norm_args a = l2norm_of(call);
    call->dev->ops->l2norm_backward(&call->dev->run, &a);
}

/* Every third row. */
static void check_picked(const op_case *rms)
{
    int64_t row[128], place[384], rows = rms->L, count = (rows + 2) / 3;
    assert_true(rows <= 384);
    for (int64_t i = 0; i < count; i++) row[i] = 3 * i;
    for (int64_t r = 0; r < rows; r++) place[r] = r % 3 ? -1 : r / 3;
    op_case picked = *rms;
    picked.family = "rmsnorm in a residual stream of some rows";
    picked.forward = picked_forward;
    picked.backward = picked_backward;
    picked.S = count;
    picked.tensor[6] = (op_tensor){"z", OP_OUTPUT, count * rms->K};
    picked.tensor[7] = (op_tensor){"row", OP_INT, count, .ints = row};
    picked.tensor[8] = (op_tensor){"place", OP_INT, rows, .ints = place};
    op_case_check(&picked);
}

static void check_norms(int64_t rows, int64_t width)
{
    int64_t n = rows * width;
    op_case rms = {.family = "rmsnorm",
                   .note = "",
                   .forward = rmsnorm_forward,
                   .backward = rmsnorm_backward,
                   .L = rows,
                   .K = width,
                   .tensor = {{"x", OP_INPUT, n},
                              {"weight", OP_PARAM, width},
                              {"bias", OP_FIXED, width, .type = OP_PARAMETER},
                              {"y", OP_OUTPUT, n},
                              {"mean", OP_FIXED, rows, .type = OP_STATISTIC},
                              {"rstd", OP_RESULT, rows}}};
    op_case_check(&rms);
    op_case residual = rms;
    residual.family = "rmsnorm in a residual stream";
    residual.forward = residual_forward;
    residual.backward = residual_backward;
    op_case_check(&residual);
    check_picked(&rms);
    op_case layer = rms;
    layer.family = "layernorm";
    layer.forward = layernorm_forward;
    layer.backward = layernorm_backward;
    layer.tensor[2].role = OP_PARAM;
    layer.tensor[4].role = OP_RESULT;
    op_case_check(&layer);
    op_case l2 = {.family = "l2norm",
                  .note = "",
                  .forward = l2norm_forward,
                  .backward = l2norm_backward,
                  .L = rows,
                  .K = width,
                  .tensor = {{"x", OP_INPUT, n}, {"y", OP_OUTPUT, n}}};
    op_case_check(&l2);
    for (int64_t gate = 0; gate < 2; gate++) {
        op_case head = {.family = "headnorm",
                        .note = gate ? "gate" : "plain",
                        .forward = headnorm_forward,
                        .backward = headnorm_backward,
                        .L = rows,
                        .H = 3,
                        .K = width,
                        .option = gate,
                        .tensor = {{"x", OP_INPUT, 3 * n},
                                   {"gate", gate ? OP_INPUT : OP_FIXED, 3 * n},
                                   {"weight", OP_PARAM, width},
                                   {"y", OP_OUTPUT, 3 * n},
                                   {"rstd", OP_RESULT, 3 * rows}}};
        op_case_check(&head);
    }
}

void ops_norms(void **state)
{
    (void)state;
    static const int64_t shapes[][2] = {{0, 8},    {1, 3},   {5, 7},   {3, 128}, {301, 33},
                                        {70, 200}, {37, 64}, {6, 520}, {4, 1032}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) check_norms(shapes[i][0], shapes[i][1]);
}
