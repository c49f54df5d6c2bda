/* Matrix products and linear maps over cuBLASLt, and over kernels of our own for linear maps in bf16 whose
 * sides are short. Bias and residual are part of the product; weight gradients are added up in float by it.
 */
#include "kernels/gemm/gemm.h"
#include "kernels/gemm/cuda_skinny.h"
#include "kernels/gemm/cuda_thin.h"
#include "kernels/cuda.h"
#include "kernels/cuda_blas.h"
#include "kernels/cuda_side.h"

template <typename E> static cuda_blas_type type_of(void);
template <> cuda_blas_type type_of<float>(void)
{
    return CUDA_BLAS_F32;
}
template <> cuda_blas_type type_of<bf16>(void)
{
    return CUDA_BLAS_BF16;
}

template <typename E> static void gemm(const kernel_run *run, const gemm_args *a)
{
    cuda_blas_product p = {};
    p.m = a->m, p.n = a->n, p.k = a->k;
    p.trans_a = a->trans_a, p.trans_b = a->trans_b;
    p.alpha = (float)a->alpha, p.beta = (float)a->beta;
    p.type = p.type_out = type_of<E>();
    p.a = a->a, p.b = a->b, p.c = a->c, p.d = a->c;
    p.lda = a->lda, p.ldb = a->ldb, p.ldc = p.ldd = a->ldc;
    p.batch = a->batch, p.stride_a = a->stride_a, p.stride_b = a->stride_b;
    p.stride_c = p.stride_d = a->stride_c;
    cuda_blas_multiply(run, &p);
}

/* y [maps, rows, out] = x W^T + bias + residual */
template <typename E> static void linear_forward(const kernel_run *run, const linear_args *a)
{
    if (type_of<E>() == CUDA_BLAS_BF16 && (thin_forward(run, a) || skinny_forward(run, a))) return;
    cuda_blas_product p = {};
    p.m = a->rows, p.n = a->out, p.k = a->in;
    p.trans_b = 1;
    p.alpha = 1, p.beta = a->residual ? 1.0f : 0.0f;
    p.type = p.type_out = type_of<E>();
    p.a = a->x, p.b = a->weight, p.c = a->residual, p.d = a->y, p.bias = a->bias;
    p.lda = p.ldb = a->in, p.ldc = p.ldd = a->out;
    p.batch = a->maps, p.stride_b = a->out * a->in, p.stride_c = p.stride_d = a->rows * a->out;
    cuda_blas_multiply(run, &p);
}

/* ---- d_bias += column sums of d_y, in two stages of fixed order ---- */
enum { SUM_ROWS = 512, SUM_THREADS = 128, SUM_PARTS_MOST = 64 };

/* part [parts, out]: block (x, y) sums rows y*per .. of SUM_THREADS columns. */
template <typename E>
static __global__ void column_parts(const E *d_y, int64_t rows, int64_t out, int64_t per, float *part)
{
    int64_t j = (int64_t)blockIdx.x * SUM_THREADS + threadIdx.x;
    if (j >= out) return;
    int64_t first = (int64_t)blockIdx.y * per, last = first + per < rows ? first + per : rows;
    float sum = 0;
    for (int64_t r = first; r < last; r++) sum += cuda_load(d_y + r * out + j);
    part[(int64_t)blockIdx.y * out + j] = sum;
}

static __global__ void add_parts(const float *part, int64_t parts, int64_t out, float *d_bias)
{
    int64_t j = (int64_t)blockIdx.x * SUM_THREADS + threadIdx.x;
    if (j >= out) return;
    float sum = d_bias[j];
    for (int64_t i = 0; i < parts; i++) sum += part[i * out + j];
    d_bias[j] = sum;
}

/* The parts lie in scratch, as many as fit the least that every device has. */
template <typename E> static void bias_gradient(const kernel_run *run, const linear_args *a)
{
    int64_t fit = (int64_t)(run->scratch_bytes / sizeof(float)) / kernel_max(a->out, 1);
    int64_t parts = kernel_min(kernel_min(kernel_blocks(a->rows, SUM_ROWS), SUM_PARTS_MOST), fit);
    cudaStream_t stream = (cudaStream_t)run->stream;
    unsigned columns = (unsigned)kernel_blocks(a->out, SUM_THREADS);
    if (a->rows < 1 || a->out < 1) return;
    if (parts < 1) parts = 1;
    cuda_launch(column_parts<E>, dim3(columns, (unsigned)parts), SUM_THREADS, 0, stream, (const E *)a->d_y,
                a->rows, a->out, kernel_blocks(a->rows, parts), (float *)run->scratch);
    cuda_launch(add_parts, columns, SUM_THREADS, 0, stream, (const float *)run->scratch, parts, a->out,
                (float *)a->d_bias);
}

/* d_x [rows, in] (+)= the sum over the maps of d_y W */
template <typename E> static void input_gradient(const kernel_run *run, const linear_args *a)
{
    if (type_of<E>() == CUDA_BLAS_BF16 && (thin_input_gradient(run, a) || skinny_input_gradient(run, a)))
        return;
    cuda_blas_product p = {};
    p.m = a->rows, p.n = a->in, p.k = a->out;
    p.alpha = 1;
    p.type = p.type_out = type_of<E>();
    p.c = p.d = a->d_x;
    p.lda = a->out, p.ldb = p.ldc = p.ldd = a->in;
    for (int64_t map = 0; map < kernel_max(a->maps, 1); map++) {
        p.beta = a->add_d_x || map ? 1.0f : 0.0f;
        p.a = (const E *)a->d_y + map * a->rows * a->out, p.b = (const E *)a->weight + map * a->out * a->in;
        cuda_blas_multiply(run, &p);
    }
}

/* d_weight [maps, out, in] += d_y^T x, in float. One product per map: cuBLASLt splits the long sum over the
 * rows of one product over the chip, but not that of a batch (H200, 16384 rows of width 128, three maps: 19
 * us against 25). */
template <typename E> static void weight_gradient(const kernel_run *run, const linear_args *a)
{
    if (type_of<E>() == CUDA_BLAS_BF16 && (thin_weight_gradient(run, a) || skinny_weight_gradient(run, a)))
        return;
    cuda_blas_product p = {};
    p.m = a->out, p.n = a->in, p.k = a->rows;
    p.trans_a = 1;
    p.alpha = p.beta = 1;
    p.type = type_of<E>(), p.type_out = CUDA_BLAS_F32;
    p.b = a->x;
    p.lda = a->out, p.ldb = p.ldc = p.ldd = a->in;
    for (int64_t map = 0; map < kernel_max(a->maps, 1) && a->rows > 0; map++) {
        p.a = (const E *)a->d_y + map * a->rows * a->out;
        p.c = p.d = (float *)a->d_weight + map * a->out * a->in;
        cuda_blas_multiply(run, &p);
    }
}

template <typename E> static void linear_backward(const kernel_run *run, const linear_args *a)
{
    if (a->d_weight || a->d_bias) {
        const kernel_run *beside = side_run(run);
        if (a->d_weight) weight_gradient<E>(beside, a);
        if (a->d_bias) bias_gradient<E>(beside, a);
    }
    if (a->d_x) input_gradient<E>(run, a);
}

#define ENTRIES(name, args)                                                                                  \
    extern "C" void name##_cuda_f32(const kernel_run *run, const args *a)                                    \
    {                                                                                                        \
        name<float>(run, a);                                                                                 \
    }                                                                                                        \
    extern "C" void name##_cuda_bf16(const kernel_run *run, const args *a)                                   \
    {                                                                                                        \
        name<bf16>(run, a);                                                                                  \
    }
ENTRIES(gemm, gemm_args)
ENTRIES(linear_forward, linear_args)
ENTRIES(linear_backward, linear_args)
