/* Cases of matrix products and linear maps. */
#include "support/ops_case.h"

#include "support/test.h"

#include <string.h>

/* Dimensions: B m, L n, K k. */
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
    /* {rows, in, out, first option, last option}; option 4: three maps at once. Some: more than one block of
     * a product in every direction, and more than one part of d_weight. */
    static const int64_t linear[][5] = {{0, 16, 70, 0, 4},   {1, 33, 8, 0, 4},    {6, 16, 70, 0, 4},
                                        {77, 33, 8, 0, 4},   {520, 16, 70, 0, 4}, {300, 136, 48, 0, 4},
                                        {1, 8, 8, 0, 4},     {70, 72, 200, 2, 4}, {65, 384, 24, 2, 2},
                                        {65, 24, 384, 3, 4}, {8200, 8, 16, 4, 4}, {1100, 270, 140, 3, 3},
                                        {300, 136, 1, 4, 4}, {70, 264, 2, 0, 0},  {2100, 8, 2, 4, 4}};
    for (size_t i = 0; i < sizeof linear / sizeof linear[0]; i++)
        for (int64_t option = linear[i][3]; option <= linear[i][4]; option++) {
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
