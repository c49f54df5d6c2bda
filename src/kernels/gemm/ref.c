/* Reference matrix products. */
#include "kernels/gemm/gemm.h"
#include "kernels/variant.h"

KERNEL(gemm, gemm_args)
{
    int64_t batch = a->batch ? a->batch : 1;
    for (int64_t s = 0; s < batch; s++) {
        const real *A = (const real *)a->a + s * a->stride_a, *B = (const real *)a->b + s * a->stride_b;
        real *C = (real *)a->c + s * a->stride_c;
        for (int64_t i = 0; i < a->m; i++)
            for (int64_t j = 0; j < a->n; j++) {
                real sum = 0;
                for (int64_t p = 0; p < a->k; p++)
                    sum += (a->trans_a ? A[p * a->lda + i] : A[i * a->lda + p]) *
                           (a->trans_b ? B[j * a->ldb + p] : B[p * a->ldb + j]);
                real before = a->beta == 0 ? 0 : (real)a->beta * C[i * a->ldc + j];
                C[i * a->ldc + j] = (real)a->alpha * sum + before;
            }
    }
}

KERNEL(linear_forward, linear_args)
{
    const real *x = a->x, *bias = a->bias, *residual = a->residual;
    for (int64_t map = 0; map < kernel_max(a->maps, 1); map++) {
        const real *weight = (const real *)a->weight + map * a->out * a->in;
        real *y = (real *)a->y + map * a->rows * a->out;
        for (int64_t r = 0; r < a->rows; r++)
            for (int64_t j = 0; j < a->out; j++) {
                real sum = bias ? bias[j] : 0;
                for (int64_t i = 0; i < a->in; i++) sum += x[r * a->in + i] * weight[j * a->in + i];
                y[r * a->out + j] = residual ? residual[r * a->out + j] + sum : sum;
            }
    }
}

/* d_x of one map, overwritten or added to. */
static void input_gradient(const linear_args *a, const real *weight, const real *d_y, int add)
{
    real *d_x = a->d_x;
    for (int64_t r = 0; r < a->rows; r++)
        for (int64_t i = 0; i < a->in; i++) {
            real sum = 0;
            for (int64_t j = 0; j < a->out; j++) sum += d_y[r * a->out + j] * weight[j * a->in + i];
            d_x[r * a->in + i] = add ? d_x[r * a->in + i] + sum : sum;
        }
}

KERNEL(linear_backward, linear_args)
{
    const real *x = a->x;
    for (int64_t map = 0; map < kernel_max(a->maps, 1); map++) {
        const real *d_y = (const real *)a->d_y + map * a->rows * a->out;
        if (a->d_x)
            input_gradient(a, (const real *)a->weight + map * a->out * a->in, d_y, a->add_d_x || map > 0);
        real *d_weight = a->d_weight ? (real *)a->d_weight + map * a->out * a->in : NULL;
        for (int64_t j = 0; d_weight && j < a->out; j++)
            for (int64_t i = 0; i < a->in; i++) {
                real sum = 0;
                for (int64_t r = 0; r < a->rows; r++) sum += d_y[r * a->out + j] * x[r * a->in + i];
                d_weight[j * a->in + i] += sum;
            }
    }
    const real *d_y = a->d_y;
    real *d_bias = a->d_bias;
    for (int64_t j = 0; d_bias && j < a->out; j++) {
        real sum = 0;
        for (int64_t r = 0; r < a->rows; r++) sum += d_y[r * a->out + j];
        d_bias[j] += sum;
    }
}
