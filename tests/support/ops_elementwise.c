/* Cases of the operations that take every element by itself, of the optimiser and of reductions. */
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

static void collect_forward(const op_call *call)
{
    double part[2] = {1, -0.25}, was[2] = {2, 1e-9}, *values = op_lend(call, part, sizeof part);
    float single[2] = {2, 1e-9f};
    int wide = call->dev->param_element == sizeof(double);
    void *gradient = op_lend(call, wide ? (void *)was : (void *)single, wide ? sizeof was : sizeof single);
    call->dev->ops->collect(&call->dev->run,
                            &(collect_args){.count = 2, .values = values, .gradient = gradient});
    op_wait(call);
    const double sum[2] = {3, -0.25 + (wide ? 1e-9 : (double)1e-9f)};
    for (int i = 0; i < 2; i++)
        assert_true(wide ? ((double *)gradient)[i] == sum[i] : ((float *)gradient)[i] == (float)sum[i]);
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
    op_case parts = {.family = "collect", .note = "", .forward = collect_forward};
    op_case_check(&parts);
}

/* ---- optimiser and reductions ---- */
typedef struct optimiser_case {
    adamw_scalars scalars;
    double norm;
} optimiser_case;

static void adamw_forward(const op_call *call)
{
    const op_case *c = call->c;
    optimiser_case begin = {.scalars = {.beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .shrink = 0.999}};
    optimiser_case *o = op_lend(call, &begin, sizeof begin);
    size_t bytes = (size_t)c->L * call->dev->param_element;
    memcpy(call->x[4], call->x[0], bytes);
    memset(call->x[2], 0, bytes);
    memset(call->x[3], 0, bytes);
    call->dev->ops->clip(&call->dev->run, &(clip_args){.count = c->L,
                                                       .x = call->x[1],
                                                       .average = 0.5,
                                                       .limit = 0.3,
                                                       .norm = &o->norm,
                                                       .scalars = &o->scalars});
    op_wait(call);
    double want = 0;
    for (int64_t i = 0; i < c->L; i++) want += 0.25 * op_get(call, 1, i) * op_get(call, 1, i);
    assert_true(fabs(o->norm - sqrt(want)) <= (call->dev->param_element == 4 ? 1e-6 : 1e-13) * sqrt(want));
    assert_int_equal(o->scalars.arrived, 0);
    for (int step = 1; step <= 4; step++) {
        o->scalars.step = step;
        o->scalars.rate = 0.01 / (1 - pow(0.9, step)), o->scalars.root = sqrt(1 - pow(0.99, step));
        o->scalars.bad_step = step == 4 ? 4 : 0; /* the last changes nothing */
        memcpy(call->x[6], call->x[1], bytes);
        call->dev->ops->adamw(&call->dev->run, &(adamw_args){.count = c->L,
                                                             .param = call->x[4],
                                                             .m = call->x[2],
                                                             .v = call->x[3],
                                                             .copy = call->x[5],
                                                             .grad = call->x[6],
                                                             .clear = step > 2,
                                                             .decayed = c->option ? (c->L + 1) / 2 : 0,
                                                             .scalars = &o->scalars});
        op_wait(call);
        for (int64_t i = 0; i < c->L; i++)
            assert_true(op_get(call, 6, i) == (step > 2 ? 0 : op_get(call, 1, i)));
    }
}

/* A norm or a loss that is not finite is noted, once. */
static void clip_forward(const op_call *call)
{
    static const double values[] = {4, NAN, INFINITY, 4, 4}, losses[] = {1, 1, 1, NAN, -INFINITY};
    for (int i = 0; i < 5; i++) {
        optimiser_case begin = {.scalars = {.step = 7}, .norm = losses[i]};
        optimiser_case *o = op_lend(call, &begin, sizeof begin);
        op_set(call, 0, call->c->L - 1, values[i]);
        clip_args a = {
            .count = call->c->L, .x = call->x[0], .average = 1, .loss = &o->norm, .scalars = &o->scalars};
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
    double sum;
    int64_t first;
} reduce_case;

static void reduce_forward(const op_call *call)
{
    const op_case *c = call->c;
    reduce_case begin = {1, 77};
    reduce_case *r = op_lend(call, &begin, sizeof begin);
    const device_ops *ops = call->dev->ops;
    reduce_args a = {
        .count = c->L, .x = call->x[0], .out = &r->sum, .first = &r->first, .activations = (int)c->option};
    ops->nonfinite(&call->dev->run, &a);
    ops->sum(&call->dev->run, &a);
    op_wait(call);
    assert_int_equal(r->first, -1);
    double squares = 3, want_sum = 1;
    for (int64_t i = 0; i < c->L; i++) {
        double x = op_get(call, 0, i);
        squares += x * x;
        want_sum += x;
    }
    double slack = call->dev->stat_element == 4 ? 1e-6 : 1e-13;
    assert_true(fabs(r->sum - want_sum) < slack * squares);
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
                                    {"copy", OP_RESULT, n, .type = OP_ACTIVATION},
                                    {"cleared", OP_RESULT, n}}};
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
    for (int64_t n = 3; n < 20000; n += 9000) {
        op_case c = {.family = "clip",
                     .note = "not finite",
                     .forward = clip_forward,
                     .L = n,
                     .tensor = {{"x", OP_FIXED, n, .type = OP_PARAMETER}}};
        op_case_check(&c);
    }
}
