/* Cases of the operations that do not carry anything along a sequence. */
#include "support/ops_case.h"

#include "support/test.h"

#include <math.h>
#include <string.h>

static const int64_t counts[] = {0, 1, 7, 64, 1003, 20011};
enum { COUNTS = sizeof counts / sizeof *counts };

/* ---- element by element ---- */
static void add_forward(const op_call *call)
{
    const op_case *c = call->c;
    add_args a = {.count = c->L,
                  .alpha = 0.5,
                  .beta = -2,
                  .a = call->x[0],
                  .b = c->option ? call->x[1] : NULL,
                  .y = call->x[2]};
    call->dev->ops->add(&call->dev->run, &a);
}

static unary_args unary_of(const op_call *call)
{
    return (unary_args){.kind = (unary_kind)call->c->option,
                        .count = call->c->L,
                        .scale = call->c->number,
                        .limit = 2,
                        .x = call->x[0],
                        .y = call->x[1],
                        .d_y = call->d[1],
                        .d_x = call->d[0]};
}

static void unary_forward(const op_call *call)
{
    unary_args a = unary_of(call);
    call->dev->ops->unary_forward(&call->dev->run, &a);
}

static void unary_backward(const op_call *call)
{
    unary_args a = unary_of(call);
    call->dev->ops->unary_backward(&call->dev->run, &a);
}

static swiglu_args swiglu_of(const op_call *call)
{
    return (swiglu_args){.count = call->c->L,
                         .gate = call->x[0],
                         .up = call->x[1],
                         .y = call->x[2],
                         .d_y = call->d[2],
                         .d_gate = call->d[0],
                         .d_up = call->d[1]};
}

static void swiglu_forward(const op_call *call)
{
    swiglu_args a = swiglu_of(call);
    call->dev->ops->swiglu_forward(&call->dev->run, &a);
}

static void swiglu_backward(const op_call *call)
{
    swiglu_args a = swiglu_of(call);
    call->dev->ops->swiglu_backward(&call->dev->run, &a);
}

static void advance_forward(const op_call *call)
{
    int64_t start[3] = {0, 5, 1000000000000};
    int64_t *position = op_lend(call, start, sizeof start);
    call->dev->ops->advance(&call->dev->run, &(advance_args){.batch = 3, .by = 7, .position = position});
    op_wait(call);
    assert_int_equal(position[0], 7);
    assert_int_equal(position[2], 1000000000007);
}

void ops_elementwise(void **state)
{
    (void)state;
    for (int i = 0; i < COUNTS; i++) {
        int64_t n = counts[i];
        for (int64_t two = 0; two < 2; two++) {
            op_case c = {.family = "add",
                         .note = two ? "two" : "one",
                         .forward = add_forward,
                         .L = n,
                         .option = two,
                         .tensor = {{"a", OP_FIXED, n}, {"b", OP_FIXED, n}, {"y", OP_OUTPUT, n}}};
            op_case_check(&c);
        }
        for (int64_t kind = 0; kind < UNARY_KIND_COUNT; kind++)
            for (int wide = 0; wide < 2; wide++) {
                double reach = wide ? 100 : 3;
                op_case c = {
                    .family = "unary",
                    .note = wide ? "wide" : "near",
                    .forward = unary_forward,
                    .backward = unary_backward,
                    .L = n,
                    .option = kind,
                    .number = kind % 2 ? 0.125 : 0,
                    .tensor = {{"x", OP_INPUT, n, .low = -reach, .high = reach}, {"y", OP_OUTPUT, n}}};
                op_case_check(&c);
            }
        op_case c = {.family = "swiglu",
                     .note = "",
                     .forward = swiglu_forward,
                     .backward = swiglu_backward,
                     .L = n,
                     .tensor = {{"gate", OP_INPUT, n, .low = -20, .high = 20},
                                {"up", OP_INPUT, n},
                                {"y", OP_OUTPUT, n}}};
        op_case_check(&c);
    }
    op_case c = {.family = "advance", .note = "", .forward = advance_forward};
    op_case_check(&c);
}

/* ---- products: B m, L n, K k ---- */
static void gemm_forward(const op_call *call)
{
    const op_case *c = call->c;
    int trans_a = c->option & 1, trans_b = c->option >> 1 & 1;
    int64_t lda = (trans_a ? c->B : c->K) + 1, ldb = (trans_b ? c->K : c->L) + 2, ldc = c->L;
    gemm_args a = {.m = c->B,
                   .n = c->L,
                   .k = c->K,
                   .trans_a = trans_a,
                   .trans_b = trans_b,
                   .alpha = 1.5,
                   .beta = c->number,
                   .a = call->x[0],
                   .b = call->x[1],
                   .c = call->x[2],
                   .lda = lda,
                   .ldb = ldb,
                   .ldc = ldc,
                   .batch = c->H,
                   .stride_a = (trans_a ? c->K : c->B) * lda,
                   .stride_b = (trans_b ? c->L : c->K) * ldb,
                   .stride_c = c->B * ldc};
    if (c->number != 0) memcpy(call->x[2], call->x[3], (size_t)(c->H * c->B * ldc) * call->dev->element);
    call->dev->ops->gemm(&call->dev->run, &a);
}

static linear_args linear_of(const op_call *call)
{
    const op_case *c = call->c;
    return (linear_args){.rows = c->L,
                         .in = c->K,
                         .out = c->V,
                         .maps = c->B,
                         .x = call->x[0],
                         .weight = call->x[1],
                         .bias = c->option ? call->x[2] : NULL,
                         .residual = c->option == 2   ? call->x[3]
                                     : c->option == 3 ? call->x[4]
                                                      : NULL,
                         .y = call->x[3],
                         .d_y = call->d[3],
                         .d_x = call->d[0],
                         .d_weight = call->d[1],
                         .d_bias = c->option ? call->d[2] : NULL};
}

static void linear_forward(const op_call *call)
{
    linear_args a = linear_of(call);
    if (a.residual == a.y) memcpy(a.y, call->x[4], (size_t)(a.rows * a.out) * call->dev->element);
    call->dev->ops->linear_forward(&call->dev->run, &a);
}

static void linear_backward(const op_call *call)
{
    linear_args a = linear_of(call);
    if (call->c->option == 2) { /* half of the gradient twice: the second call adds */
        call->dev->ops->add(
            &call->dev->run,
            &(add_args){.count = a.rows * a.out, .alpha = 0.5, .a = a.d_y, .y = (void *)a.d_y});
        call->dev->ops->linear_backward(&call->dev->run, &a);
        a.add_d_x = 1;
    }
    call->dev->ops->linear_backward(&call->dev->run, &a);
    if (call->c->option == 2)
        call->dev->ops->add(&call->dev->run,
                            &(add_args){.count = a.rows * a.out, .alpha = 2, .a = a.d_y, .y = (void *)a.d_y});
}

void ops_products(void **state)
{
    (void)state;
    static const int64_t shapes[][4] = {
        {1, 1, 1, 1}, {3, 5, 7, 2}, {65, 130, 33, 1}, {300, 40, 65, 1}, {4, 4, 0, 1}};
    for (int i = 0; i < 5; i++)
        for (int64_t transposes = 0; transposes < 4; transposes++) {
            int64_t m = shapes[i][0], n = shapes[i][1], k = shapes[i][2], batch = shapes[i][3];
            int64_t size_a = batch * (transposes & 1 ? k * (m + 1) : m * (k + 1));
            int64_t size_b = batch * (transposes & 2 ? n * (k + 2) : k * (n + 2));
            op_case c = {.family = "gemm",
                         .note = "",
                         .forward = gemm_forward,
                         .B = m,
                         .L = n,
                         .K = k,
                         .H = batch,
                         .option = transposes,
                         .number = i % 2 ? 0.5 : 0,
                         .tensor = {{"a", OP_FIXED, size_a},
                                    {"b", OP_FIXED, size_b},
                                    {"c", OP_OUTPUT, batch * m * n},
                                    {"c before", OP_FIXED, batch * m * n}}};
            op_case_check(&c);
        }
    /* the last: more than one block of a product in every direction, and more than one part of d_weight */
    static const int64_t linear[][3] = {{0, 16, 70},   {1, 33, 8},     {6, 16, 70},     {77, 33, 8},
                                        {520, 16, 70}, {300, 136, 48}, {1100, 270, 140}};
    for (int i = 0; i < 7; i++)
        for (int64_t option = i == 6 ? 3 : 0; option < (i == 6 ? 4 : 5);
             option++) { /* 4: three maps at once */
            int64_t n = linear[i][0], in = linear[i][1], out = linear[i][2], maps = option == 4 ? 3 : 1;
            op_case c = {.family = "linear",
                         .note = maps > 1 ? "several maps"
                                 : option ? "bias"
                                          : "plain",
                         .forward = linear_forward,
                         .backward = linear_backward,
                         .B = maps,
                         .L = n,
                         .K = in,
                         .V = out,
                         .option = maps > 1 ? 0 : option,
                         .tensor = {{"x", OP_INPUT, n * in},
                                    {"weight", OP_WEIGHT, maps * out * in},
                                    {"bias", option % 4 ? OP_WEIGHT : OP_FIXED, out},
                                    {"y", OP_OUTPUT, maps * n * out},
                                    {"residual", OP_FIXED, n * out}}};
            op_case_check(&c);
        }
}

/* ---- norms ---- */
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

/* ---- embedding: vocabulary S, width K ---- */
static int32_t ids[4 * 200];
static const uint64_t dropout_key[2] = {11, 3};

static embed_args embed_of(const op_call *call)
{
    const op_case *c = call->c;
    return (embed_args){.batch = c->B,
                        .length = c->L,
                        .width = c->K,
                        .vocab = c->S,
                        .id = op_lend(call, ids, sizeof ids),
                        .weight = call->x[0],
                        .position_weight = c->option ? call->x[1] : NULL,
                        .max_length = c->V,
                        .position = call->x[3],
                        .dropout = c->number,
                        .key = op_lend(call, dropout_key, sizeof dropout_key),
                        .y = call->x[2],
                        .saved = c->option ? call->x[4] : NULL,
                        .d_y = call->d[2],
                        .d_weight = call->d[0],
                        .d_position_weight = c->option ? call->d[1] : NULL};
}

static void embed_sizes(const op_case *c, device *dev, kernel_sizes *sizes)
{
    dev->ops->embed_sizes(&dev->run,
                          &(embed_args){.batch = c->B, .length = c->L, .width = c->K, .vocab = c->S}, sizes);
}

static void embed_forward(const op_call *call)
{
    embed_args a = embed_of(call);
    call->dev->ops->embed_forward(&call->dev->run, &a);
}

static void embed_backward(const op_call *call)
{
    embed_args a = embed_of(call);
    call->dev->ops->embed_backward(&call->dev->run, &a);
}

void ops_embedding(void **state)
{
    (void)state;
    static const int64_t position[] = {0, 3, 1},
                         shapes[][3] = {{0, 8, 23}, {1, 5, 23}, {17, 33, 23}, {200, 70, 23}, {150, 16, 9001}};
    for (int i = 0; i < 5; i++)
        for (int64_t option = 0; option < (i < 4 ? 2 : 1); option++) {
            int64_t B = 3, L = shapes[i][0], K = shapes[i][1], S = shapes[i][2], V = L > 1 ? L : 2;
            for (int64_t r = 0; r < B * L; r++) ids[r] = (int32_t)(r % 3 ? r * 7 % S : 0);
            op_case c = {.family = "embed",
                         .note = option ? "positions and dropout" : "plain",
                         .sizes = embed_sizes,
                         .forward = embed_forward,
                         .backward = embed_backward,
                         .B = B,
                         .L = L,
                         .K = K,
                         .S = S,
                         .V = V,
                         .option = option,
                         .number = option ? 0.3 : 0,
                         .tensor = {{"weight", OP_PARAM, S * K},
                                    {"positions", option ? OP_PARAM : OP_FIXED, V * K, .type = OP_PARAMETER},
                                    {"y", OP_OUTPUT, B * L * K},
                                    {"position", OP_INT, B, .ints = position},
                                    {"saved", OP_BYTES}}};
            op_case_check(&c);
        }
}

/* ---- rows: B of L rows of width K ---- */
static rows_args rows_of(const op_call *call)
{
    const op_case *c = call->c;
    return (rows_args){.count = c->B, .total = c->L, .width = c->K, .row = call->x[2], .clear = 1};
}

static void rows_forward(const op_call *call)
{
    rows_args a = rows_of(call);
    a.x = call->x[0], a.y = call->x[1];
    call->dev->ops->rows_gather(&call->dev->run, &a);
}

static void rows_backward(const op_call *call)
{
    rows_args a = rows_of(call);
    a.x = call->d[1], a.y = call->d[0];
    call->dev->ops->rows_scatter(&call->dev->run, &a);
}

/* y = those rows of x, in the order given and backwards, elsewhere 0: the second call adds. */
static void rows_twice(const op_call *call)
{
    rows_args a = rows_of(call);
    a.x = call->x[0], a.y = call->x[1];
    call->dev->ops->rows_scatter(&call->dev->run, &a);
    a.clear = 0, a.from = call->x[3];
    call->dev->ops->rows_scatter(&call->dev->run, &a);
}

void ops_rows(void **state)
{
    (void)state;
    static const int64_t shapes[][3] = {{0, 0, 8}, {0, 5, 8}, {1, 1, 7}, {40, 300, 33}, {700, 300, 16}};
    int64_t list[700], back[700];
    for (int i = 0; i < 5; i++) {
        int64_t B = shapes[i][0], L = shapes[i][1], K = shapes[i][2];
        for (int64_t r = 0; r < B; r++)
            list[r] = r * r / (B > 1 ? B - 1 : 1) * L / (B + 1); /* also repeated */
        for (int64_t r = 0; r < B; r++) back[r] = B - 1 - r;
        op_case c = {
            .family = "rows",
            .note = "gather and back",
            .forward = rows_forward,
            .backward = rows_backward,
            .B = B,
            .L = L,
            .K = K,
            .tensor = {{"x", OP_INPUT, L * K}, {"y", OP_OUTPUT, B * K}, {"row", OP_INT, B, .ints = list}}};
        op_case_check(&c);
        op_case twice = {.family = "rows",
                         .note = "added twice",
                         .forward = rows_twice,
                         .B = B,
                         .L = L,
                         .K = K,
                         .tensor = {{"x", OP_FIXED, B * K},
                                    {"y", OP_OUTPUT, L * K},
                                    {"row", OP_INT, B, .ints = list},
                                    {"from", OP_INT, B, .ints = back}}};
        op_case_check(&twice);
    }
}

/* ---- head and cross-entropy: labels B, rows L, width K, vocabulary V ---- */
enum { LABELS_MOST = 1400 };
static int32_t targets[LABELS_MOST], best[LABELS_MOST];
static int64_t label_rows[LABELS_MOST], label_count;
static const double gradient_scale = 0.25;

static xent_args xent_of(const op_call *call)
{
    const op_case *c = call->c;
    label_count = c->B - 1;
    return (xent_args){.labels = c->B,
                       .count = c->option ? op_lend(call, &label_count, sizeof label_count) : NULL,
                       .n_hidden = c->L,
                       .width = c->K,
                       .vocab = c->V,
                       .hidden = call->x[0],
                       .weight = call->x[1],
                       .row = op_lend(call, label_rows, (size_t)c->B * sizeof *label_rows),
                       .target = op_lend(call, targets, (size_t)c->B * sizeof *targets),
                       .log_prob = call->x[2],
                       .argmax = op_lend(call, best, (size_t)c->B * sizeof *best),
                       .logits = call->x[3],
                       .grad_scale = op_lend(call, &gradient_scale, sizeof gradient_scale),
                       .d_hidden = call->d[0],
                       .d_weight = call->d[1]};
}

static void xent_sizes(const op_case *c, device *dev, kernel_sizes *sizes)
{
    xent_args a = {.labels = c->B, .n_hidden = c->L, .width = c->K, .vocab = c->V};
    dev->ops->xent_sizes(&dev->run, &a, sizes);
}

/* The arg-max is the first largest of the logits. */
static void check_best(const op_call *call, const xent_args *a, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        for (int64_t v = 0; v < a->vocab; v++) {
            int64_t at = i * a->vocab;
            double x = op_get(call, 3, at + v), top = op_get(call, 3, at + a->argmax[i]);
            assert_true(v < a->argmax[i] ? x < top : x <= top);
        }
}

/* The harness differentiates sum(d_y * log_prob); the operation sum(-0.25 log_prob): give it that objective.
 */
static void xent_forward(const op_call *call)
{
    xent_args a = xent_of(call);
    for (int64_t i = 0; i < a.labels; i++) {
        op_set(call, 2, i, 0);
        if (call->dev->stat_element == 4)
            ((float *)call->d[2])[i] = -0.25f;
        else
            ((double *)call->d[2])[i] = -0.25;
    }
    memset(a.logits, 0, (size_t)(a.labels * a.vocab) * op_bytes(call, 3));
    call->dev->ops->xent_forward(&call->dev->run, &a);
    op_wait(call);
    check_best(call, &a, a.count ? label_count : a.labels);
}

static void xent_backward(const op_call *call)
{
    xent_args a = xent_of(call);
    a.logits = NULL;
    call->dev->ops->xent_backward(&call->dev->run, &a);
}

void ops_head(void **state)
{
    (void)state;
    static const int64_t shapes[][4] = {{1, 1, 3, 2},        {5, 9, 8, 33},      {70, 40, 33, 100},
                                        {1300, 600, 8, 70},  {140, 90, 72, 130}, {150, 300, 128, 333},
                                        {300, 310, 270, 500}};
    for (int i = 0; i < 7; i++) {
        int64_t labels = shapes[i][0], rows = shapes[i][1], width = shapes[i][2], vocab = shapes[i][3];
        for (int64_t k = 0; k < labels; k++) {
            label_rows[k] = k * 13 % rows;
            targets[k] = k % 11 == 5 ? -1 : (int32_t)(k * 31 % vocab);
        }
        op_case c = {
            .family = "xent",
            .note = "",
            .forward = xent_forward,
            .backward = xent_backward,
            .sizes = xent_sizes,
            .B = labels,
            .L = rows,
            .K = width,
            .V = vocab,
            .option = i == 2 || i == 4,
            .tensor = {{"hidden", OP_INPUT, rows * width, .low = i == 4 ? -6 : -1, .high = i == 4 ? 6 : 1},
                       {"weight", OP_WEIGHT, vocab * width},
                       {"log_prob", OP_OUTPUT, labels, .type = OP_STATISTIC},
                       {"logits", OP_RESULT, labels * vocab}}};
        op_case_check(&c);
    }
}

/* ---- optimiser and reductions ---- */
typedef struct optimiser_case {
    adamw_scalars scalars;
    double total, norm;
} optimiser_case;

static void adamw_forward(const op_call *call)
{
    const op_case *c = call->c;
    optimiser_case begin = {
        .scalars = {.lr = 0.01, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .weight_decay = 0.1}};
    optimiser_case *o = op_lend(call, &begin, sizeof begin);
    size_t bytes = (size_t)c->L * call->dev->param_element;
    memcpy(call->x[4], call->x[0], bytes);
    memset(call->x[2], 0, bytes);
    memset(call->x[3], 0, bytes);
    call->dev->ops->sum_squares(&call->dev->run,
                                &(reduce_args){.count = c->L, .x = call->x[1], .out = &o->total});
    call->dev->ops->clip(&call->dev->run, &(clip_args){.sum_squares = &o->total,
                                                       .average = 0.5,
                                                       .limit = 0.3,
                                                       .norm = &o->norm,
                                                       .scalars = &o->scalars});
    op_wait(call);
    assert_true(c->L == 0 || o->norm > 0);
    for (int step = 1; step <= 4; step++) {
        o->scalars.step = step;
        o->scalars.bad_step = step == 4 ? 4 : 0; /* the last changes nothing */
        call->dev->ops->adamw(&call->dev->run, &(adamw_args){.count = c->L,
                                                             .param = call->x[4],
                                                             .m = call->x[2],
                                                             .v = call->x[3],
                                                             .copy = call->x[5],
                                                             .grad = call->x[1],
                                                             .decayed = c->option ? (c->L + 1) / 2 : 0,
                                                             .scalars = &o->scalars});
        op_wait(call);
    }
}

/* A norm or a loss that is not finite is noted, once. */
static void clip_forward(const op_call *call)
{
    static const double totals[] = {4, NAN, INFINITY, 4, 4}, losses[] = {1, 1, 1, NAN, -INFINITY};
    for (int i = 0; i < 5; i++) {
        optimiser_case begin = {.scalars = {.step = 7}, .total = totals[i], .norm = losses[i]};
        optimiser_case *o = op_lend(call, &begin, sizeof begin);
        clip_args a = {.sum_squares = &o->total, .average = 1, .loss = &o->norm, .scalars = &o->scalars};
        call->dev->ops->clip(&call->dev->run, &a);
        op_wait(call);
        assert_true(o->scalars.bad_step == (i ? 7 : 0) && (i || o->scalars.grad_scale == 1));
        o->scalars.step = 8;
        call->dev->ops->clip(&call->dev->run, &a);
        op_wait(call);
        assert_true(o->scalars.bad_step == (i ? 7 : 0));
    }
}

static void convert_forward(const op_call *call)
{
    call->dev->ops->convert(&call->dev->run,
                            &(convert_args){.count = call->c->L, .x = call->x[0], .y = call->x[1]});
}

typedef struct reduce_case {
    double squares, sum;
    int64_t first;
} reduce_case;

static void reduce_forward(const op_call *call)
{
    const op_case *c = call->c;
    reduce_case begin = {3, 1, 77};
    reduce_case *r = op_lend(call, &begin, sizeof begin);
    const device_ops *ops = call->dev->ops;
    reduce_args a = {.count = c->L,
                     .x = call->x[0],
                     .out = &r->squares,
                     .first = &r->first,
                     .activations = (int)c->option};
    ops->sum_squares(&call->dev->run, &a);
    ops->nonfinite(&call->dev->run, &a);
    a.out = &r->sum;
    ops->sum(&call->dev->run, &a);
    op_wait(call);
    assert_int_equal(r->first, -1);
    double want_squares = 3, want_sum = 1;
    for (int64_t i = 0; i < c->L; i++) {
        double x = op_get(call, 0, i);
        want_squares += x * x;
        want_sum += x;
    }
    double slack = call->dev->stat_element == 4 ? 1e-6 : 1e-13;
    assert_true(fabs(r->squares - want_squares) < slack * want_squares);
    assert_true(fabs(r->sum - want_sum) < slack * want_squares);
    for (int64_t at = c->L - 1; at >= 0; at -= c->L / 7 + 1) {
        op_set(call, 0, at, at % 2 ? NAN : -INFINITY);
        ops->nonfinite(&call->dev->run, &a);
        op_wait(call);
        assert_int_equal(r->first, at);
    }
}

void ops_optimiser(void **state)
{
    (void)state;
    for (int i = 0; i < COUNTS; i++) {
        int64_t n = counts[i];
        for (int64_t decay = 0; decay < 2; decay++) {
            op_case c = {.family = "adamw",
                         .note = decay ? "decay" : "plain",
                         .forward = adamw_forward,
                         .L = n,
                         .option = decay,
                         .tensor = {{"before", OP_FIXED, n, .type = OP_PARAMETER},
                                    {"grad", OP_FIXED, n, .type = OP_PARAMETER},
                                    {"m", OP_RESULT, n},
                                    {"v", OP_RESULT, n},
                                    {"param", OP_RESULT, n},
                                    {"copy", OP_RESULT, n, .type = OP_ACTIVATION}}};
            op_case_check(&c);
        }
        op_case convert = {
            .family = "convert",
            .note = "",
            .forward = convert_forward,
            .L = n,
            .tensor = {{"x", OP_FIXED, n, .type = OP_PARAMETER}, {"y", OP_RESULT, n, .type = OP_ACTIVATION}}};
        op_case_check(&convert);
        for (int64_t activations = 0; activations < 2; activations++) {
            op_case c = {.family = "reduce",
                         .note = activations ? "activations" : "parameters",
                         .forward = reduce_forward,
                         .L = n,
                         .option = activations,
                         .tensor = {{"x", OP_FIXED, n, .type = activations ? OP_ACTIVATION : OP_PARAMETER}}};
            op_case_check(&c);
        }
    }
    op_case c = {.family = "clip", .note = "not finite", .forward = clip_forward};
    op_case_check(&c);
}
