/* Cases of the embedding, of picked rows, and of the head with its cross-entropy. */
#include "support/ops_case.h"

#include "support/test.h"

#include <string.h>

/* ---- embedding: vocabulary S, width K ---- */
static int32_t ids[3 * 3100];
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
                         shapes[][3] = {{0, 8, 23},      {1, 5, 23},     {17, 33, 23},   {200, 70, 23},
                                        {150, 16, 9001}, {400, 64, 700}, {3100, 8, 1500}};
    for (int i = 0; i < 7; i++)
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

/* Two matrices at once, of width K and V, and back by the places of the rows. */
static rows_args placed_of(const op_call *call)
{
    rows_args a = rows_of(call);
    a.place = call->x[3];
    return a;
}

static void placed_forward(const op_call *call)
{
    rows_args a = placed_of(call);
    a.x = call->x[0], a.y = call->x[1];
    a.other_width = call->c->V, a.other_x = call->x[4], a.other_y = call->x[5];
    call->dev->ops->rows_gather(&call->dev->run, &a);
}

static void placed_backward(const op_call *call)
{
    rows_args a = placed_of(call);
    a.x = call->d[1], a.y = call->d[0];
    call->dev->ops->rows_scatter(&call->dev->run, &a);
    a.x = call->d[5], a.y = call->d[4], a.width = call->c->V;
    call->dev->ops->rows_scatter(&call->dev->run, &a);
}

static void check_placed(int64_t B, int64_t L, int64_t K, int64_t V)
{
    int64_t list[64], place[300];
    for (int64_t r = 0; r < L; r++) place[r] = -1;
    for (int64_t i = 0; i < B; i++) list[i] = i * L / B, place[list[i]] = i;
    op_case c = {.family = "rows",
                 .note = "two matrices, each row once",
                 .forward = placed_forward,
                 .backward = placed_backward,
                 .B = B,
                 .L = L,
                 .K = K,
                 .V = V,
                 .tensor = {{"x", OP_INPUT, L * K},
                            {"y", OP_OUTPUT, B * K},
                            {"row", OP_INT, B, .ints = list},
                            {"place", OP_INT, L, .ints = place},
                            {"other", OP_INPUT, L * V},
                            {"other's rows", OP_OUTPUT, B * V}}};
    op_case_check(&c);
}

void ops_rows(void **state)
{
    (void)state;
    check_placed(1, 1, 8, 8), check_placed(40, 300, 64, 16), check_placed(7, 20, 128, 264);
    check_placed(33, 90, 33, 8), check_placed(5, 5, 16, 7);
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

/* ---- head and cross-entropy: labels B, rows L, width K, vocabulary V; S = 1: labels at all rows in order
 * ---- */
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
                       .row = c->S ? NULL : op_lend(call, label_rows, (size_t)c->B * sizeof *label_rows),
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
    if (call->c->S) a.argmax = NULL;
    call->dev->ops->xent_backward(&call->dev->run, &a);
}

void ops_head(void **state)
{
    (void)state;
    /* the last ones: many parts of the vocabulary, sums that grow from part to part, no label at all */
    static const int64_t shapes[][4] = {{1, 1, 3, 2},         {5, 9, 8, 33},       {70, 40, 33, 100},
                                        {1300, 600, 8, 70},   {140, 90, 72, 130},  {150, 300, 128, 333},
                                        {300, 310, 270, 500}, {140, 140, 72, 130}, {70, 70, 33, 100},
                                        {40, 40, 64, 2200},   {40, 60, 120, 2200}, {1, 3, 16, 40}};
    for (int i = 0; i < 12; i++) {
        int in_order = i >= 7 && i < 10;
        double most = i == 4 || i == 9 || i == 10 ? 6 : 1;
        int64_t labels = shapes[i][0], rows = shapes[i][1], width = shapes[i][2], vocab = shapes[i][3];
        for (int64_t k = 0; k < labels; k++) {
            label_rows[k] = k * 13 % rows;
            targets[k] = k % 11 == 5 ? -1 : (int32_t)(k * 31 % vocab);
        }
        op_case c = {.family = "xent",
                     .note = in_order ? "rows in order" : "",
                     .forward = xent_forward,
                     .backward = xent_backward,
                     .sizes = xent_sizes,
                     .B = labels,
                     .L = rows,
                     .K = width,
                     .V = vocab,
                     .S = in_order,
                     .option = i == 2 || i == 4 || i == 7 || i == 11,
                     .tensor = {{"hidden", OP_INPUT, rows * width, .low = -most, .high = most},
                                {"weight", OP_WEIGHT, vocab * width},
                                {"log_prob", OP_OUTPUT, labels, .type = OP_STATISTIC},
                                {"logits", OP_RESULT, labels * vocab}}};
        op_case_check(&c);
    }
}
