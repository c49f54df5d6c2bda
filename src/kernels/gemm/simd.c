/* Matrix products through OpenBLAS. */
#include "kernels/blas.h"
#include "kernels/gemm/gemm.h"
#include "kernels/vector_math.h"

#include "base/threads.h"

#include <string.h>

#if REAL_IS_FLOAT
#define BLAS(name) name##_f32
#else
#define BLAS(name) name##_f64
#endif

KERNEL(gemm, gemm_args)
{
    blas_product p = {a->m, a->n, a->k, a->trans_a, a->trans_b, a->alpha, a->beta,
                      a->a, a->b, a->c, a->lda,     a->ldb,     a->ldc};
    BLAS(blas_gemm_batch)(run->threads, &p, a->batch ? a->batch : 1, a->stride_a, a->stride_b, a->stride_c);
}

enum { ROWS = 256, COLUMNS = 64 };

static void add_bias_rows(void *context, int64_t task, int worker)
{
    (void)worker;
    const linear_args *a = context;
    const real *bias = a->bias;
    int64_t last = kernel_min(a->rows, (task + 1) * ROWS);
    for (int64_t r = task * ROWS; r < last; r++) {
        real *y = (real *)a->y + r * a->out;
        for (int64_t j = 0; j < a->out; j++) y[j] += bias[j];
    }
}

KERNEL(linear_forward, linear_args)
{
    if (a->residual && a->residual != a->y)
        memcpy(a->y, a->residual, (size_t)(a->rows * a->out) * sizeof(real));
    for (int64_t map = 0; map < kernel_max(a->maps, 1); map++) {
        const real *weight = (const real *)a->weight + map * a->out * a->in;
        real *y = (real *)a->y + map * a->rows * a->out;
        blas_product p = {a->rows, a->out, a->in, 0,     1,     1,     a->residual ? 1 : 0,
                          a->x,    weight, y,     a->in, a->in, a->out};
        BLAS(blas_gemm_parallel)(run->threads, &p);
    }
    if (a->bias) threads_run(run->threads, kernel_blocks(a->rows, ROWS), add_bias_rows, (void *)a);
}

/* Columns of d_bias, every column summed over the rows in order. */
static void sum_columns(void *context, int64_t task, int worker)
{
    (void)worker;
    const linear_args *a = context;
    int64_t first = task * COLUMNS, count = kernel_min(COLUMNS, a->out - first);
    real sum[COLUMNS] = {0};
    for (int64_t r = 0; r < a->rows; r++) {
        const real *d_y = (const real *)a->d_y + r * a->out + first;
        for (int64_t j = 0; j < count; j++) sum[j] += d_y[j];
    }
    for (int64_t j = 0; j < count; j++) ((real *)a->d_bias)[first + j] += sum[j];
}

KERNEL(linear_backward, linear_args)
{
    for (int64_t map = 0; map < kernel_max(a->maps, 1); map++) {
        const real *weight = (const real *)a->weight + map * a->out * a->in;
        const real *d_y = (const real *)a->d_y + map * a->rows * a->out;
        if (a->d_x) {
            blas_product p = {a->rows, a->in,  a->out, 0,      0,     1,    a->add_d_x || map ? 1 : 0,
                              d_y,     weight, a->d_x, a->out, a->in, a->in};
            BLAS(blas_gemm_parallel)(run->threads, &p);
        }
        if (a->d_weight) {
            real *d_weight = (real *)a->d_weight + map * a->out * a->in;
            blas_product p = {a->out, a->in, a->rows, 1, 0, 1, 1, d_y, a->x, d_weight, a->out, a->in, a->in};
            BLAS(blas_gemm_parallel)(run->threads, &p);
        }
    }
    if (a->d_bias) threads_run(run->threads, kernel_blocks(a->out, COLUMNS), sum_columns, (void *)a);
}
