/* Matrix products. Linear maps go through panel_gemm.h, cut into blocks whose number depends on the shape
 * alone; products of few rows and the general batched product go to OpenBLAS. */
#include "kernels/blas.h"
#include "kernels/gemm/gemm.h"
#include "kernels/panel_gemm.h"
#include "kernels/vector_functions.h"

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

/* Fewer rows than this do not pay for the packing of the weight. */
enum { ROWS_LEAST = 24, ROWS = 4 * PANEL_ROWS };

/* C [m,n] (+)= A [m,k] B, all of A's rows many: x times W^T, or d_y times W. Of several maps one after
 * another, each a step further in A, B and C: where C does not move, it is their sum. */
typedef struct product {
    int64_t m, n, k;
    int64_t maps, step_a, step_b, step_c;
    const real *a, *b, *bias; /* bias [n] or NULL */
    const real *before;       /* [m,n] added to the product; may be c; NULL: none */
    real *c;
    int64_t ldb;
    int transposed; /* b holds B^T [n,k] */
} product;

/* One block of ROWS x PANEL_WIDTH of one map's C. */
static void product_block(const product *p, int64_t row, int64_t column)
{
    int64_t rows = kernel_min(ROWS, p->m - row), columns = kernel_min(PANEL_WIDTH, p->n - column);
    real packed[PANEL_BLOCK] __attribute__((aligned(64)));
    real *c = p->c + row * p->n + column;
    for (int64_t r = 0; r < rows && p->before && p->before != p->c; r++)
        memcpy(c + r * p->n, p->before + (row + r) * p->n + column, (size_t)columns * sizeof(real));
    for (int64_t from = 0; from < p->k; from += PANEL_DEPTH) {
        int64_t depth = kernel_min(PANEL_DEPTH, p->k - from);
        if (p->transposed)
            panel_pack_transposed(depth, columns, p->b + column * p->ldb + from, p->ldb, packed);
        else
            panel_pack(depth, columns, p->b + from * p->ldb + column, p->ldb, packed);
        panel_gemm(rows, columns, depth, (tile_a){p->a + row * p->k + from, p->k, 1}, packed, c, p->n,
                   p->before || from > 0);
    }
    for (int64_t r = 0; r < rows && p->bias; r++)
        for (int64_t j = 0; j < columns; j++) c[r * p->n + j] += p->bias[column + j];
}

/* One of the maps alone. */
static product product_of_map(const product *all, int64_t map)
{
    product p = *all;
    p.a += map * p.step_a, p.b += map * p.step_b, p.c += map * p.step_c;
    if (map && !p.step_c) p.before = p.c;
    return p;
}

/* All maps of a block, so that what they share, A or C, is fetched once. */
static void product_task(void *context, int64_t task, int worker)
{
    (void)worker;
    const product *all = context;
    int64_t across = kernel_blocks(all->n, PANEL_WIDTH);
    for (int64_t map = 0; map < all->maps; map++) {
        product p = product_of_map(all, map);
        product_block(&p, task / across * ROWS, task % across * PANEL_WIDTH);
    }
}

/* Too few rows for panels. */
static void product_few(const kernel_run *run, const product *p)
{
    if (p->before && p->before != p->c) memcpy(p->c, p->before, (size_t)(p->m * p->n) * sizeof(real));
    blas_product few = {p->m, p->n, p->k, 0,    p->transposed, 1,   p->before ? 1 : 0,
                        p->a, p->b, p->c, p->k, p->ldb,        p->n};
    BLAS(blas_gemm_parallel)(run->threads, &few);
    for (int64_t i = 0; i < p->m && p->bias; i++)
        for (int64_t j = 0; j < p->n; j++) p->c[i * p->n + j] += p->bias[j];
}

static void product_run(const kernel_run *run, const product *all)
{
    if (all->m >= ROWS_LEAST && all->k > 0) {
        threads_run(run->threads, kernel_blocks(all->m, ROWS) * kernel_blocks(all->n, PANEL_WIDTH),
                    product_task, (void *)all);
        return;
    }
    for (int64_t map = 0; map < all->maps; map++) {
        product p = product_of_map(all, map);
        product_few(run, &p);
    }
}

KERNEL(linear_forward, linear_args)
{
    product p = {.m = a->rows,
                 .n = a->out,
                 .k = a->in,
                 .maps = kernel_max(a->maps, 1),
                 .step_b = a->out * a->in,
                 .step_c = a->rows * a->out,
                 .a = a->x,
                 .b = a->weight,
                 .bias = a->bias,
                 .before = a->residual,
                 .c = a->y,
                 .ldb = a->in,
                 .transposed = 1};
    product_run(run, &p);
}

/* d_weight [out,in] += d_y^T x, a product with few results and many terms: the rows are cut into parts whose
 * sums are added in order. */
enum { PARTS = 16, PART_ROWS = 2 * PANEL_DEPTH, OUT_ROWS = 4 * PANEL_ROWS, SUM_BLOCK = 4096 };

typedef struct weight_product {
    const linear_args *a;
    const real *d_y; /* of the map */
    real *d_weight;
    int64_t across, blocks; /* blocks of d_weight in a row, and in all */
    int64_t parts;
    real *sums; /* [parts, out, in]; NULL: one part, added to d_weight at once */
} weight_product;

static void weight_task(void *context, int64_t task, int worker)
{
    (void)worker;
    const weight_product *w = context;
    const linear_args *a = w->a;
    int64_t part = task / w->blocks, block = task % w->blocks;
    int64_t row = block / w->across * OUT_ROWS, column = block % w->across * PANEL_WIDTH;
    int64_t rows = kernel_min(OUT_ROWS, a->out - row), columns = kernel_min(PANEL_WIDTH, a->in - column);
    int64_t first = a->rows * part / w->parts, end = a->rows * (part + 1) / w->parts;
    real packed[PANEL_BLOCK] __attribute__((aligned(64)));
    real *c = (w->sums ? w->sums + part * a->out * a->in : w->d_weight) + row * a->in + column;
    for (int64_t from = first; from < end; from += PANEL_DEPTH) {
        int64_t depth = kernel_min(PANEL_DEPTH, end - from);
        panel_pack(depth, columns, (const real *)a->x + from * a->in + column, a->in, packed);
        panel_gemm(rows, columns, depth, (tile_a){w->d_y + from * a->out + row, 1, a->out}, packed, c, a->in,
                   !w->sums || from > first);
    }
}

static void weight_sum_task(void *context, int64_t task, int worker)
{
    (void)worker;
    const weight_product *w = context;
    int64_t count = w->a->out * w->a->in, end = kernel_min(count, (task + 1) * SUM_BLOCK);
    real *to = w->d_weight;
    for (int64_t i = task * SUM_BLOCK, left; left = end - i, left > 0; i += VL) {
        vreal sum = v_load_up_to(w->sums + i, left);
        for (int64_t p = 1; p < w->parts; p++) sum += v_load_up_to(w->sums + p * count + i, left);
        v_store_up_to(to + i, v_load_up_to(to + i, left) + sum, left);
    }
}

static void weight_gradient(const kernel_run *run, const linear_args *a, int64_t map)
{
    weight_product w = {.a = a,
                        .d_y = (const real *)a->d_y + map * a->rows * a->out,
                        .d_weight = (real *)a->d_weight + map * a->out * a->in,
                        .across = kernel_blocks(a->in, PANEL_WIDTH)};
    int64_t count = a->out * a->in, fit = LINEAR_SCRATCH / (int64_t)sizeof(real) / kernel_max(1, count);
    w.blocks = w.across * kernel_blocks(a->out, OUT_ROWS);
    if (a->rows < 1 || w.blocks < 1) return;
    w.parts = kernel_min(kernel_blocks(PARTS, w.blocks), kernel_blocks(a->rows, PART_ROWS));
    w.parts = kernel_max(1, kernel_min(w.parts, fit));
    if (w.parts > 1) w.sums = run->scratch;
    threads_run(run->threads, w.parts * w.blocks, weight_task, &w);
    if (w.parts > 1) threads_run(run->threads, kernel_blocks(count, SUM_BLOCK), weight_sum_task, &w);
}

enum { COLUMNS = 64 };

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

static void input_gradient(const kernel_run *run, const linear_args *a)
{
    product p = {.m = a->rows,
                 .n = a->in,
                 .k = a->out,
                 .maps = kernel_max(a->maps, 1),
                 .step_a = a->rows * a->out,
                 .step_b = a->out * a->in,
                 .a = a->d_y,
                 .b = a->weight,
                 .before = a->add_d_x ? a->d_x : NULL,
                 .c = a->d_x,
                 .ldb = a->in};
    product_run(run, &p);
}

KERNEL(linear_backward, linear_args)
{
    if (a->d_x) input_gradient(run, a);
    for (int64_t map = 0; map < kernel_max(a->maps, 1) && a->d_weight; map++) weight_gradient(run, a, map);
    if (a->d_bias) threads_run(run->threads, kernel_blocks(a->out, COLUMNS), sum_columns, (void *)a);
}
