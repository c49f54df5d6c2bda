/* Linear maps in bf16 whose sides are short: which kernel serves which shape. */
#include "kernels/gemm/cuda_skinny.h"
#include "kernels/cuda_vector.h"
#include "kernels/gemm/cuda_skinny.cuh"
#include "kernels/gemm/cuda_skinny_weight.cuh"

enum {
    CHIP = 132,       /* multiprocessors that the shapes were chosen for */
    MANY_ROWS = 8192, /* from here on blocks of all columns fill the chip */
    MAPS_MOST = 16,
    SMALL = 64 * 384, /* elements of all weights: with more, cuBLASLt's use of the tensor cores wins */
};

static int64_t weights_of(const linear_args *a)
{
    return kernel_max(a->maps, 1) * a->out * a->in;
}

static bool suits(const linear_args *a, const void *first, const void *second, const void *third)
{
    return a->rows > 0 && a->in > 0 && a->out > 0 && a->in % CHUNK == 0 && a->out % CHUNK == 0 &&
           a->in <= SKINNY_MOST && a->out <= SKINNY_MOST && a->maps <= MAPS_MOST &&
           all_aligned(first, second, third);
}

template <bool GRADIENT> static void multiply(const kernel_run *run, const skinny_product *p)
{
    if (!GRADIENT && p->rows >= MANY_ROWS && p->n % 128 == 0)
        skinny_launch<skinny_tile<64, 128, 2, 2, 2>, GRADIENT>(run, p, 1);
    else
        skinny_launch<skinny_tile<64, 64, 2, 2, 3>, GRADIENT>(
            run, p, p->rows < MANY_ROWS || p->n <= 128 ? kernel_blocks(p->n, 64) : 1);
}

int skinny_forward(const kernel_run *run, const linear_args *a)
{
    if (weights_of(a) > SMALL || !suits(a, a->x, a->weight, a->y) || !all_aligned(a->residual, a->bias))
        return 0;
    int64_t maps = kernel_max(a->maps, 1);
    skinny_product p = {};
    p.a = (const bf16 *)a->x, p.b = (const bf16 *)a->weight, p.c = (bf16 *)a->y;
    p.start = (const bf16 *)a->residual, p.bias = (const bf16 *)a->bias;
    p.rows = a->rows, p.k = (int)a->in, p.width = (int)a->out, p.n = (int)(maps * a->out), p.segments = 1;
    multiply<false>(run, &p);
    return 1;
}

int skinny_input_gradient(const kernel_run *run, const linear_args *a)
{
    if (weights_of(a) > SMALL || !suits(a, a->d_x, a->weight, a->d_y)) return 0;
    skinny_product p = {};
    p.a = (const bf16 *)a->d_y, p.b = (const bf16 *)a->weight, p.c = (bf16 *)a->d_x;
    p.start = a->add_d_x ? p.c : NULL;
    p.rows = a->rows, p.k = (int)a->out, p.n = p.width = (int)a->in, p.segments = (int)kernel_max(a->maps, 1);
    multiply<true>(run, &p);
    return 1;
}

int skinny_weight_gradient(const kernel_run *run, const linear_args *a)
{
    bool wins = weights_of(a) <= SMALL || a->maps > 1 || a->rows < MANY_ROWS;
    if (!wins || !suits(a, a->x, a->d_weight, a->d_y)) return 0;
    skinny_gradient p = {};
    p.d_y = (const bf16 *)a->d_y, p.x = (const bf16 *)a->x;
    p.rows = a->rows, p.in = (int)a->in, p.out = (int)a->out, p.maps = (int)kernel_max(a->maps, 1);
    gradient_launch<gradient_tile<64, 64, 2, 2, 64, 3>>(run, p, (float *)a->d_weight, CHIP);
    return 1;
}
