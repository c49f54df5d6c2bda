/* Normalisations in vectors: outputs over blocks of rows, parameter gradients over blocks of columns, every
 * column summed over the rows in order, so that no result depends on the number of threads. */
#include "kernels/norm/norm.h"
#include "kernels/vector_functions.h"

#include "base/threads.h"

enum { ROWS = 64, COLUMNS = 8 * VL };

#define FOR_WIDTH(n) for (int64_t i = 0, left; left = (n)-i, left > 0; i += VL)
#define ROW(name, r) ((const real *)a->name + (r)*n)

typedef enum norm_kind { RMS, LAYER } norm_kind;

V_INLINE void norm_forward_rows(norm_kind kind, const norm_args *a, int64_t task)
{
    int64_t n = a->width, end = kernel_min(a->rows, (task + 1) * ROWS);
    const real *w = a->weight, *b = kind == LAYER ? a->bias : NULL;
    for (int64_t r = task * ROWS; r < end; r++) {
        const real *x = ROW(x, r);
        real *y = (real *)a->y + r * n, mean = 0;
        vreal sum = v_zero(), square = v_zero();
        if (kind == LAYER) {
            FOR_WIDTH(n) sum += v_load_up_to(x + i, left);
            mean = v_sum(sum) / (real)n;
        }
        FOR_WIDTH(n)
        {
            vreal c = left >= VL ? v_load(x + i) - mean : v_load_part(x + i, left, mean) - mean;
            square += c * c;
        }
        real rstd = 1 / (real)sqrt((double)(v_sum(square) / (real)n) + a->eps);
        FOR_WIDTH(n)
        {
            vreal out = (v_load_up_to(x + i, left) - mean) * rstd * v_load_up_to(w + i, left);
            if (b) out += v_load_up_to(b + i, left);
            v_store_up_to(y + i, out, left);
        }
        if (kind == LAYER && a->mean) ((real *)a->mean)[r] = mean;
        if (a->rstd) ((real *)a->rstd)[r] = rstd;
    }
}

V_INLINE void norm_backward_rows(norm_kind kind, const norm_args *a, int64_t task)
{
    int64_t n = a->width, end = kernel_min(a->rows, (task + 1) * ROWS);
    const real *w = a->weight;
    for (int64_t r = task * ROWS; r < end; r++) {
        int64_t beside = norm_residual_row(a, r);
        const real *x = ROW(x, r), *d_y = ROW(d_y, r),
                   *d_residual = beside >= 0 ? ROW(d_residual, beside) : NULL;
        real *d_x = (real *)a->d_x + r * n, rstd = ((const real *)a->rstd)[r];
        real mean = kind == LAYER ? ((const real *)a->mean)[r] : 0;
        vreal along_sum = v_zero(), level_sum = v_zero();
        FOR_WIDTH(n)
        {
            vreal d = v_load_up_to(w + i, left) * v_load_up_to(d_y + i, left);
            along_sum += (v_load_up_to(x + i, left) - mean) * rstd * d;
            level_sum += d;
        }
        real along = v_sum(along_sum) / (real)n, level = kind == LAYER ? v_sum(level_sum) / (real)n : 0;
        FOR_WIDTH(n)
        {
            vreal xhat = (v_load_up_to(x + i, left) - mean) * rstd;
            vreal d = rstd * (v_load_up_to(w + i, left) * v_load_up_to(d_y + i, left) - xhat * along - level);
            if (d_residual) d += v_load_up_to(d_residual + i, left);
            v_store_up_to(d_x + i, d, left);
        }
    }
}

V_INLINE void norm_backward_columns(norm_kind kind, const norm_args *a, int64_t task)
{
    int64_t n = a->width, first = task * COLUMNS, width = kernel_min(COLUMNS, n - first);
    vreal d_w[COLUMNS / VL], d_b[COLUMNS / VL];
    for (int i = 0; i < COLUMNS / VL; i++) d_w[i] = d_b[i] = v_zero();
    for (int64_t r = 0; r < a->rows; r++) {
        const real *x = ROW(x, r) + first, *d_y = ROW(d_y, r) + first;
        real rstd = ((const real *)a->rstd)[r], mean = kind == LAYER ? ((const real *)a->mean)[r] : 0;
        FOR_WIDTH(width)
        {
            vreal d = v_load_up_to(d_y + i, left);
            d_w[i / VL] += (v_load_up_to(x + i, left) - mean) * rstd * d;
            if (kind == LAYER) d_b[i / VL] += d;
        }
    }
    FOR_WIDTH(width)
    {
        real *to = (real *)a->d_weight + first + i;
        if (a->d_weight) v_store_up_to(to, v_load_up_to(to, left) + d_w[i / VL], left);
        if (kind == RMS || !a->d_bias) continue;
        to = (real *)a->d_bias + first + i;
        v_store_up_to(to, v_load_up_to(to, left) + d_b[i / VL], left);
    }
}

#define NORM_TASK(name, body, kind)                                                                          \
    static void name(void *context, int64_t task, int worker)                                                \
    {                                                                                                        \
        (void)worker;                                                                                        \
        body(kind, context, task);                                                                           \
    }
NORM_TASK(rms_forward_task, norm_forward_rows, RMS)
NORM_TASK(layer_forward_task, norm_forward_rows, LAYER)
NORM_TASK(rms_rows_task, norm_backward_rows, RMS)
NORM_TASK(layer_rows_task, norm_backward_rows, LAYER)
NORM_TASK(rms_columns_task, norm_backward_columns, RMS)
NORM_TASK(layer_columns_task, norm_backward_columns, LAYER)

KERNEL(rmsnorm_forward, norm_args)
{
    threads_run(run->threads, kernel_blocks(a->rows, ROWS), rms_forward_task, (void *)a);
}

KERNEL(layernorm_forward, norm_args)
{
    threads_run(run->threads, kernel_blocks(a->rows, ROWS), layer_forward_task, (void *)a);
}

/* Columns first: d_x may be the memory of d_y. */
KERNEL(rmsnorm_backward, norm_args)
{
    if (a->d_weight) threads_run(run->threads, kernel_blocks(a->width, COLUMNS), rms_columns_task, (void *)a);
    threads_run(run->threads, kernel_blocks(a->rows, ROWS), rms_rows_task, (void *)a);
}

KERNEL(layernorm_backward, norm_args)
{
    threads_run(run->threads, kernel_blocks(a->width, COLUMNS), layer_columns_task, (void *)a);
    threads_run(run->threads, kernel_blocks(a->rows, ROWS), layer_rows_task, (void *)a);
}

static void headnorm_forward_task(void *context, int64_t task, int worker)
{
    (void)worker;
    const headnorm_args *a = context;
    int64_t n = a->width, end = kernel_min(a->rows * a->heads, (task + 1) * ROWS);
    const real *w = a->weight;
    for (int64_t r = task * ROWS; r < end; r++) {
        const real *x = ROW(x, r), *gate = a->gate ? ROW(gate, r) : NULL;
        real *y = (real *)a->y + r * n;
        vreal square = v_zero();
        FOR_WIDTH(n)
        {
            vreal v = v_load_up_to(x + i, left);
            square += v * v;
        }
        real rstd = 1 / (real)sqrt((double)(v_sum(square) / (real)n) + a->eps);
        FOR_WIDTH(n)
        {
            vreal out = v_load_up_to(x + i, left) * rstd * v_load_up_to(w + i, left);
            if (gate) {
                vreal g = v_load_up_to(gate + i, left);
                out *= g * v_sigmoid(g);
            }
            v_store_up_to(y + i, out, left);
        }
        if (a->rstd) ((real *)a->rstd)[r] = rstd;
    }
}

KERNEL(headnorm_forward, headnorm_args)
{
    threads_run(run->threads, kernel_blocks(a->rows * a->heads, ROWS), headnorm_forward_task, (void *)a);
}

static void headnorm_rows_task(void *context, int64_t task, int worker)
{
    (void)worker;
    const headnorm_args *a = context;
    int64_t n = a->width, end = kernel_min(a->rows * a->heads, (task + 1) * ROWS);
    const real *w = a->weight;
    for (int64_t r = task * ROWS; r < end; r++) {
        const real *x = ROW(x, r), *d_y = ROW(d_y, r), *gate = a->gate ? ROW(gate, r) : NULL;
        real *d_x = (real *)a->d_x + r * n, rstd = ((const real *)a->rstd)[r];
        vreal sum = v_zero();
        FOR_WIDTH(n)
        {
            vreal d = v_load_up_to(w + i, left) * v_load_up_to(d_y + i, left),
                  xhat = v_load_up_to(x + i, left) * rstd;
            if (gate) {
                vreal g = v_load_up_to(gate + i, left), s = v_sigmoid(g);
                v_store_up_to((real *)a->d_gate + r * n + i, d * xhat * s * (1 + g * (1 - s)), left);
                d *= g * s;
            }
            v_store_up_to(d_x + i, d, left); /* finished below */
            sum += xhat * d;
        }
        real along = v_sum(sum) / (real)n;
        FOR_WIDTH(n)
        {
            vreal xhat = v_load_up_to(x + i, left) * rstd;
            v_store_up_to(d_x + i, rstd * (v_load_up_to(d_x + i, left) - xhat * along), left);
        }
    }
}

static void headnorm_columns_task(void *context, int64_t task, int worker)
{
    (void)worker;
    const headnorm_args *a = context;
    int64_t n = a->width, first = task * VL, left = kernel_min(VL, n - first);
    vreal d_w = v_zero();
    for (int64_t r = 0; r < a->rows * a->heads; r++) {
        vreal d = v_load_up_to(ROW(x, r) + first, left) * ((const real *)a->rstd)[r] *
                  v_load_up_to(ROW(d_y, r) + first, left);
        if (a->gate) {
            vreal g = v_load_up_to(ROW(gate, r) + first, left);
            d *= g * v_sigmoid(g);
        }
        d_w += d;
    }
    real *to = (real *)a->d_weight + first;
    v_store_up_to(to, v_load_up_to(to, left) + d_w, left);
}

KERNEL(headnorm_backward, headnorm_args)
{
    threads_run(run->threads, kernel_blocks(a->width, VL), headnorm_columns_task, (void *)a);
    threads_run(run->threads, kernel_blocks(a->rows * a->heads, ROWS), headnorm_rows_task, (void *)a);
}

V_INLINE void l2norm_rows(const l2norm_args *a, int64_t task, int backward)
{
    int64_t n = a->width, end = kernel_min(a->rows, (task + 1) * ROWS);
    for (int64_t r = task * ROWS; r < end; r++) {
        const real *x = ROW(x, r), *d_y = backward ? ROW(d_y, r) : NULL;
        real *to = (real *)(backward ? a->d_x : a->y) + r * n;
        vreal square = v_zero(), cross = v_zero();
        FOR_WIDTH(n)
        {
            vreal v = v_load_up_to(x + i, left);
            square += v * v;
            if (backward) cross += v * v_load_up_to(d_y + i, left);
        }
        real inverse = 1 / (real)sqrt((double)v_sum(square) + a->eps);
        real along = backward ? v_sum(cross) * inverse * inverse : 0;
        FOR_WIDTH(n)
        {
            vreal v = v_load_up_to(x + i, left);
            v_store_up_to(to + i, inverse * (backward ? v_load_up_to(d_y + i, left) - v * along : v), left);
        }
    }
}

static void l2norm_forward_task(void *context, int64_t task, int worker)
{
    (void)worker;
    l2norm_rows(context, task, 0);
}

static void l2norm_backward_task(void *context, int64_t task, int worker)
{
    (void)worker;
    l2norm_rows(context, task, 1);
}

KERNEL(l2norm_forward, l2norm_args)
{
    threads_run(run->threads, kernel_blocks(a->rows, ROWS), l2norm_forward_task, (void *)a);
}

KERNEL(l2norm_backward, l2norm_args)
{
    threads_run(run->threads, kernel_blocks(a->rows, ROWS), l2norm_backward_task, (void *)a);
}
