/* Output head and cross-entropy, a block of labels at a time: gather the rows, one product for the logits,
 * softmax row by row in place, then two products for the gradients. */
#include "kernels/blas.h"
#include "kernels/vector_functions.h"
#include "kernels/xent/xent.h"

#include "base/threads.h"

#include <string.h>

#if REAL_IS_FLOAT
#define BLAS(name) name##_f32
#else
#define BLAS(name) name##_f64
#endif

enum { LOGITS_MOST = 1 << 21, LABELS_LEAST = 64, ROWS = 8, ZERO_ROWS = 256 };
/* d_hidden is a product with many terms and few results: the vocabulary is cut into PARTS whose sums are
 * added in order. */
enum { PARTS = 8 };

typedef struct block {
    const xent_args *a;
    int64_t first, count;   /* labels */
    real *x, *logits, *d_x; /* [count, width], [count, vocab], [PARTS, count, width] */
    int backward;
} block;

static int64_t block_labels(const xent_args *a)
{
    int64_t fit = kernel_max(LABELS_LEAST, LOGITS_MOST / kernel_max(1, a->vocab));
    return kernel_min(fit, kernel_max(1, a->labels));
}

KERNEL_SIZES(xent_sizes, xent_args)
{
    int64_t labels = block_labels(a);
    size_t x = kernel_round64((size_t)(labels * a->width) * sizeof(real));
    size_t logits = kernel_round64((size_t)(labels * a->vocab) * sizeof(real));
    *sizes = (kernel_sizes){.scratch = x + logits + PARTS * x};
}

/* Softmax of one row of n logits in place, without the division: returns 1 / sum; *top is the index of the
 * first largest. */
static real softmax_row(real *z, int64_t n, int64_t *top, real *most)
{
    vreal best = v_set1(z[0]), sum = v_zero();
    int64_t i = 0;
    for (; i + VL <= n; i += VL) best = v_max(best, v_load(z + i));
    real largest = v_hmax(best), rest = 0;
    for (; i < n; i++) largest = z[i] > largest ? z[i] : largest;
    for (*top = 0; *top + 1 < n && z[*top] != largest;) ++*top;
    for (i = 0; i + VL <= n; i += VL) {
        vreal e = v_exp(v_load(z + i) - largest);
        v_store(z + i, e);
        sum += e;
    }
    for (; i < n; i++) rest += z[i] = v_exp(v_set1(z[i] - largest))[0];
    *most = largest;
    return 1 / (v_sum(sum) + rest);
}

static void scale_row(real *z, int64_t n, real factor)
{
    int64_t i = 0;
    for (; i + VL <= n; i += VL) v_store(z + i, v_load(z + i) * factor);
    for (; i < n; i++) z[i] *= factor;
}

static void softmax_rows(void *context, int64_t task, int worker)
{
    (void)worker;
    const block *k = context;
    const xent_args *a = k->a;
    int64_t end = kernel_min(k->count, (task + 1) * ROWS);
    for (int64_t r = task * ROWS; r < end; r++) {
        int64_t i = k->first + r, target = a->target[i], top;
        real *z = k->logits + r * a->vocab, most, chosen = target < 0 ? 0 : z[target];
        if (a->logits) memcpy((real *)a->logits + i * a->vocab, z, (size_t)a->vocab * sizeof(real));
        real inverse = softmax_row(z, a->vocab, &top, &most);
        ((real *)a->log_prob)[i] = target < 0 ? 0 : chosen - most + (real)log(inverse);
        a->argmax[i] = (int32_t)top;
        if (!k->backward) continue;
        real scale = target < 0 ? 0 : (real)*a->grad_scale;
        scale_row(z, a->vocab, inverse * scale);
        if (target >= 0) z[target] -= scale;
    }
}

static void gather_rows(void *context, int64_t task, int worker)
{
    (void)worker;
    const block *k = context;
    int64_t n = k->a->width, end = kernel_min(k->count, (task + 1) * ROWS);
    for (int64_t r = task * ROWS; r < end; r++)
        memcpy(k->x + r * n, (const real *)k->a->hidden + k->a->row[k->first + r] * n,
               (size_t)n * sizeof(real));
}

static void zero_rows(void *context, int64_t task, int worker)
{
    (void)worker;
    const xent_args *a = context;
    int64_t count = kernel_min(ZERO_ROWS, a->n_hidden - task * ZERO_ROWS);
    memset((real *)a->d_hidden + task * ZERO_ROWS * a->width, 0, (size_t)(count * a->width) * sizeof(real));
}

/* Part `task` of d_x: the sum over its share of the vocabulary. */
static void d_x_part(void *context, int64_t task, int worker)
{
    (void)worker;
    const block *k = context;
    int64_t n = k->a->width, V = k->a->vocab, first = V * task / PARTS,
            count = V * (task + 1) / PARTS - first;
    BLAS(blas_gemm)
    (&(blas_product){k->count, n, count, 0, 0, 1, 0, k->logits + first,
                     (const real *)k->a->weight + first * n, k->d_x + task * k->count * n, V, n, n});
}

/* Labels in order, so that rows with several labels are summed in one order. */
static void scatter(const block *k)
{
    int64_t n = k->a->width;
    for (int64_t r = 0; r < k->count; r++) {
        real *to = (real *)k->a->d_hidden + k->a->row[k->first + r] * n;
        for (int64_t i = 0, left; left = n - i, left > 0; i += VL) {
            vreal sum = v_zero();
            for (int64_t p = 0; p < PARTS; p++)
                sum += v_load_up_to(k->d_x + (p * k->count + r) * n + i, left);
            v_store_up_to(to + i, v_load_up_to(to + i, left) + sum, left);
        }
    }
}

static void run_block(const kernel_run *run, block *k)
{
    const xent_args *a = k->a;
    int64_t n = a->width, V = a->vocab;
    threads_run(run->threads, kernel_blocks(k->count, ROWS), gather_rows, k);
    BLAS(blas_gemm_parallel)
    (run->threads, &(blas_product){k->count, V, n, 0, 1, 1, 0, k->x, a->weight, k->logits, n, n, V});
    threads_run(run->threads, kernel_blocks(k->count, ROWS), softmax_rows, k);
    if (!k->backward) return;
    threads_run(run->threads, PARTS, d_x_part, k);
    scatter(k);
    if (a->d_weight) BLAS(blas_gemm_parallel)
    (run->threads, &(blas_product){V, n, k->count, 1, 0, 1, 1, k->logits, k->x, a->d_weight, V, n, n});
}

static void run_all(const kernel_run *run, const xent_args *a, int backward)
{
    int64_t count = a->count ? *a->count : a->labels, labels = block_labels(a);
    char *x = run->scratch, *logits = x + kernel_round64((size_t)(labels * a->width) * sizeof(real));
    char *d_x = logits + kernel_round64((size_t)(labels * a->vocab) * sizeof(real));
    for (int64_t first = 0; first < count; first += labels)
        run_block(run, &(block){a, first, kernel_min(labels, count - first), (real *)x, (real *)logits,
                                (real *)d_x, backward});
}

KERNEL(xent_forward, xent_args)
{
    run_all(run, a, 0);
}

KERNEL(xent_backward, xent_args)
{
    threads_run(run->threads, kernel_blocks(a->n_hidden, ZERO_ROWS), zero_rows, (void *)a);
    run_all(run, a, 1);
}
