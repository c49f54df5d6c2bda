/* Optimiser and reductions in vectors. Sums go over fixed blocks whose results are added in order. */
#include "kernels/optim/optim.h"
#include "kernels/vector_functions.h"

#include "base/threads.h"

#include <string.h>

enum { BLOCK = 16384, SUMS = 4096 }; /* SUMS: blocks whose partial sums fit the scratch every device has */

typedef struct update {
    const adamw_args *a;
    int64_t first, end; /* elements of this range, decayed alike */
    real b1, b2, eps, scale, shrink, rate, root;
} update;

static void adamw_block(void *context, int64_t task, int worker)
{
    (void)worker;
    const update *u = context;
    real *p = u->a->param, *m = u->a->m, *v = u->a->v, *copy = u->a->copy, *grad = u->a->grad;
    int64_t start = u->first + task * BLOCK, end = kernel_min(u->end, start + BLOCK);
    real per_root = 1 / u->root;
    for (int64_t i = start, left; left = end - i, left > 0; i += VL) {
        vreal g = v_load_up_to(grad + i, left) * u->scale;
        vreal mean = u->b1 * v_load_up_to(m + i, left) + (1 - u->b1) * g;
        vreal square = u->b2 * v_load_up_to(v + i, left) + (1 - u->b2) * g * g;
        v_store_up_to(m + i, mean, left);
        v_store_up_to(v + i, square, left);
        vreal step = u->rate * mean / (v_sqrt(square) * per_root + u->eps);
        vreal value = u->shrink * v_load_up_to(p + i, left) - step;
        v_store_up_to(p + i, value, left);
        if (copy) v_store_up_to(copy + i, value, left);
        if (u->a->clear) v_store_up_to(grad + i, v_zero(), left);
    }
}

KERNEL(adamw, adamw_args)
{
    const adamw_scalars *s = a->scalars;
    int64_t decayed = kernel_min(a->decayed, a->count);
    for (int decay = 0; decay < 2 && s->bad_step == 0; decay++) {
        update u = {a,
                    decay ? 0 : decayed,
                    decay ? decayed : a->count,
                    (real)s->beta1,
                    (real)s->beta2,
                    (real)s->eps,
                    (real)s->grad_scale,
                    decay ? (real)s->shrink : 1,
                    (real)s->rate,
                    (real)s->root};
        threads_run(run->threads, kernel_blocks(u.end - u.first, BLOCK), adamw_block, &u);
    }
    if (s->bad_step != 0 && a->clear) memset(a->grad, 0, (size_t)a->count * sizeof(real));
}

typedef struct reduction {
    const reduce_args *a;
    int64_t first_block, block;
    double *sums; /* one per block */
    int squares;
} reduction;

/* Short runs in vectors of reals, their totals in double. */
static double block_sum(const real *x, int64_t count, int squares)
{
    enum { RUN = 32 * VL };
    double total = 0;
    for (int64_t start = 0; start < count; start += RUN) {
        int64_t n = kernel_min(RUN, count - start);
        vreal sum = v_zero();
        for (int64_t i = 0, left; left = n - i, left > 0; i += VL) {
            vreal v = v_load_up_to(x + start + i, left);
            sum += squares ? v * v : v;
        }
        total += v_sum(sum);
    }
    return total;
}

static void sum_block(void *context, int64_t task, int worker)
{
    (void)worker;
    const reduction *r = context;
    int64_t first = (r->first_block + task) * r->block;
    r->sums[task] =
        block_sum((const real *)r->a->x + first, kernel_min(r->block, r->a->count - first), r->squares);
}

static void reduce(const kernel_run *run, const reduce_args *a, int squares)
{
    int64_t blocks = kernel_blocks(a->count, BLOCK);
    for (int64_t first = 0; first < blocks; first += SUMS) {
        int64_t count = kernel_min(SUMS, blocks - first);
        reduction r = {a, first, BLOCK, run->scratch, squares};
        threads_run(run->threads, count, sum_block, &r);
        for (int64_t i = 0; i < count; i++) *a->out += r.sums[i];
    }
}

KERNEL(clip, clip_args)
{
    double sum = 0;
    reduce(run, &(reduce_args){.count = a->count, .x = a->x, .out = &sum}, 1);
    clip_by(a, sum);
}

KERNEL(sum, reduce_args)
{
    reduce(run, a, 0);
}

typedef struct search {
    const reduce_args *a;
    int64_t first_block;
    int64_t *found; /* per block: index of the first bad element or -1 */
} search;

static void search_block(void *context, int64_t task, int worker)
{
    (void)worker;
    const search *s = context;
    int64_t first = (s->first_block + task) * BLOCK, count = kernel_min(BLOCK, s->a->count - first);
    const real *x = (const real *)s->a->x + first;
    vreal bad = v_zero();
    for (int64_t i = 0, left; left = count - i, left > 0; i += VL) {
        vreal v = v_load_up_to(x + i, left);
        bad += v - v; /* NaN as soon as one element is not finite */
    }
    s->found[task] = -1;
    if (v_sum(bad) == 0) return;
    for (int64_t i = 0; i < count && s->found[task] < 0; i++)
        if (!isfinite(x[i])) s->found[task] = first + i;
}

KERNEL(nonfinite, reduce_args)
{
    int64_t blocks = kernel_blocks(a->count, BLOCK);
    *a->first = -1;
    for (int64_t first = 0; first < blocks && *a->first < 0; first += SUMS) {
        int64_t count = kernel_min(SUMS, blocks - first);
        search s = {a, first, run->scratch};
        threads_run(run->threads, count, search_block, &s);
        for (int64_t i = 0; i < count && *a->first < 0; i++) *a->first = s.found[i];
    }
}
