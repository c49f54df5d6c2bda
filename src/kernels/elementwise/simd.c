/* Operations element by element, in vectors, over blocks of elements. */
#include "kernels/elementwise/elementwise.h"
#include "kernels/vector_functions.h"

#include "base/threads.h"

enum { BLOCK = 8192 };

/* The loop over block `task` of `count` elements. */
#define FOR_BLOCK(count)                                                                                     \
    for (int64_t i = task * BLOCK, last_ = kernel_min(count, i + BLOCK), left; left = last_ - i, left > 0;   \
         i += VL)

static void add_block(void *context, int64_t task, int worker)
{
    (void)worker;
    const add_args *a = context;
    const real *x = a->a, *z = a->b;
    real *y = a->y, alpha = (real)a->alpha, beta = (real)a->beta;
    FOR_BLOCK(a->count)
    {
        vreal sum = alpha * v_load_up_to(x + i, left);
        if (z) sum += beta * v_load_up_to(z + i, left);
        v_store_up_to(y + i, sum, left);
    }
}

KERNEL(add, add_args)
{
    threads_run(run->threads, kernel_blocks(a->count, BLOCK), add_block, (void *)a);
}

V_INLINE vreal unary_value(unary_kind kind, vreal x, real limit)
{
    switch (kind) {
    case UNARY_SILU:
        return x * v_sigmoid(x);
    case UNARY_GELU:
        return x * v_normal(x);
    case UNARY_SIGMOID:
        return v_sigmoid(x);
    case UNARY_LOGSIGMOID:
        return -v_softplus(-x);
    case UNARY_CLAMP:
        return v_max(v_set1(-limit), v_min(v_set1(limit), x));
    case UNARY_KIND_COUNT:
        break;
    }
    return x;
}

V_INLINE vreal unary_slope(unary_kind kind, vreal x, real limit)
{
    vreal s;
    switch (kind) {
    case UNARY_SILU:
        s = v_sigmoid(x);
        return s * (1 + x * (1 - s));
    case UNARY_GELU:
        return v_normal(x) + x * v_exp((real)-0.5 * x * x) * (real)0.39894228040143267794;
    case UNARY_SIGMOID:
        s = v_sigmoid(x);
        return s * (1 - s);
    case UNARY_LOGSIGMOID:
        return v_sigmoid(-x);
    case UNARY_CLAMP:
        return v_select((vint)(v_abs(x) <= limit), v_set1(1), v_zero());
    case UNARY_KIND_COUNT:
        break;
    }
    return x;
}

V_INLINE void unary_forward_kind(unary_kind kind, const unary_args *a, int64_t task)
{
    const real *x = a->x;
    real *y = a->y, scale = a->scale == 0 ? 1 : (real)a->scale, limit = (real)a->limit;
    FOR_BLOCK(a->count)
    v_store_up_to(y + i, scale * unary_value(kind, v_load_up_to(x + i, left), limit), left);
}

V_INLINE void unary_backward_kind(unary_kind kind, const unary_args *a, int64_t task)
{
    const real *x = a->x, *d_y = a->d_y;
    real *d_x = a->d_x, scale = a->scale == 0 ? 1 : (real)a->scale, limit = (real)a->limit;
    FOR_BLOCK(a->count)
    v_store_up_to(d_x + i,
                  scale * v_load_up_to(d_y + i, left) * unary_slope(kind, v_load_up_to(x + i, left), limit),
                  left);
}

/* The kind becomes a constant of each loop. */
#define UNARY_BLOCK(direction)                                                                               \
    static void unary_##direction##_block(void *context, int64_t task, int worker)                           \
    {                                                                                                        \
        (void)worker;                                                                                        \
        const unary_args *a = context;                                                                       \
        switch (a->kind) {                                                                                   \
        case UNARY_SILU:                                                                                     \
            unary_##direction##_kind(UNARY_SILU, a, task);                                                   \
            break;                                                                                           \
        case UNARY_GELU:                                                                                     \
            unary_##direction##_kind(UNARY_GELU, a, task);                                                   \
            break;                                                                                           \
        case UNARY_SIGMOID:                                                                                  \
            unary_##direction##_kind(UNARY_SIGMOID, a, task);                                                \
            break;                                                                                           \
        case UNARY_LOGSIGMOID:                                                                               \
            unary_##direction##_kind(UNARY_LOGSIGMOID, a, task);                                             \
            break;                                                                                           \
        case UNARY_CLAMP:                                                                                    \
            unary_##direction##_kind(UNARY_CLAMP, a, task);                                                  \
            break;                                                                                           \
        case UNARY_KIND_COUNT:                                                                               \
            break;                                                                                           \
        }                                                                                                    \
    }
UNARY_BLOCK(forward)
UNARY_BLOCK(backward)

KERNEL(unary_forward, unary_args)
{
    threads_run(run->threads, kernel_blocks(a->count, BLOCK), unary_forward_block, (void *)a);
}

KERNEL(unary_backward, unary_args)
{
    threads_run(run->threads, kernel_blocks(a->count, BLOCK), unary_backward_block, (void *)a);
}

static void swiglu_forward_block(void *context, int64_t task, int worker)
{
    (void)worker;
    const swiglu_args *a = context;
    const real *gate = a->gate, *up = a->up;
    real *y = a->y;
    FOR_BLOCK(a->count)
    {
        vreal x = v_load_up_to(gate + i, left);
        v_store_up_to(y + i, x * v_sigmoid(x) * v_load_up_to(up + i, left), left);
    }
}

KERNEL(swiglu_forward, swiglu_args)
{
    threads_run(run->threads, kernel_blocks(a->count, BLOCK), swiglu_forward_block, (void *)a);
}

static void swiglu_backward_block(void *context, int64_t task, int worker)
{
    (void)worker;
    const swiglu_args *a = context;
    const real *gate = a->gate, *up = a->up, *d_y = a->d_y;
    real *d_gate = a->d_gate, *d_up = a->d_up;
    FOR_BLOCK(a->count)
    {
        vreal x = v_load_up_to(gate + i, left), s = v_sigmoid(x), d = v_load_up_to(d_y + i, left);
        vreal u = v_load_up_to(up + i, left);
        v_store_up_to(d_up + i, d * x * s, left);
        v_store_up_to(d_gate + i, d * u * s * (1 + x * (1 - s)), left);
    }
}

KERNEL(swiglu_backward, swiglu_args)
{
    threads_run(run->threads, kernel_blocks(a->count, BLOCK), swiglu_backward_block, (void *)a);
}
