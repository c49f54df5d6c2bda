/* Embedding: forward over blocks of tokens; backward over blocks of columns, tokens in order, so that the
 * sums are the same bits for every thread count. */
#include "kernels/embed/dropout.h"
#include "kernels/embed/embed.h"
#include "kernels/vector_functions.h"

#include "base/threads.h"

enum { TOKENS = 64, COLUMNS = 32 };

static int64_t position_row(const embed_args *a, int64_t r)
{
    int64_t p = (a->position ? a->position[r / a->length] : 0) + r % a->length;
    return kernel_min(p, a->max_length - 1);
}

/* y[0..count) *= mask of elements first, first+1, ... */
static void drop(const embed_args *a, int64_t first, int64_t count, real *y)
{
    real kept = (real)(1 / (1 - a->dropout));
    int keep[4];
    int64_t block = -1;
    for (int64_t i = 0; i < count; i++) {
        if ((first + i) / 4 != block) dropout_keep(a, block = (first + i) / 4, keep);
        y[i] *= keep[(first + i) % 4] ? kept : 0;
    }
}

static void forward_task(void *context, int64_t task, int worker)
{
    (void)worker;
    const embed_args *a = context;
    int64_t n = a->width, end = kernel_min(a->batch * a->length, (task + 1) * TOKENS);
    for (int64_t r = task * TOKENS; r < end; r++) {
        const real *w = (const real *)a->weight + a->id[r] * n;
        const real *place =
            a->position_weight ? (const real *)a->position_weight + position_row(a, r) * n : NULL;
        real *y = (real *)a->y + r * n;
        for (int64_t i = 0, left; left = n - i, left > 0; i += VL) {
            vreal x = v_load_up_to(w + i, left);
            v_store_up_to(y + i, place ? x + v_load_up_to(place + i, left) : x, left);
        }
        if (a->dropout > 0) drop(a, r * n, n, y);
    }
}

KERNEL(embed_forward, embed_args)
{
    threads_run(run->threads, kernel_blocks(a->batch * a->length, TOKENS), forward_task, (void *)a);
}

static void add_to(real *to, const real *d, int64_t count)
{
    for (int64_t i = 0, left; left = count - i, left > 0; i += VL)
        v_store_up_to(to + i, v_load_up_to(to + i, left) + v_load_up_to(d + i, left), left);
}

static void backward_task(void *context, int64_t task, int worker)
{
    (void)worker;
    const embed_args *a = context;
    int64_t n = a->width, first = task * COLUMNS, count = kernel_min(COLUMNS, n - first);
    real kept[COLUMNS];
    for (int64_t r = 0; r < a->batch * a->length; r++) {
        const real *d = (const real *)a->d_y + r * n + first;
        if (a->dropout > 0) {
            memcpy(kept, d, (size_t)count * sizeof(real));
            drop(a, r * n + first, count, kept);
            d = kept;
        }
        add_to((real *)a->d_weight + a->id[r] * n + first, d, count);
        if (a->d_position_weight)
            add_to((real *)a->d_position_weight + position_row(a, r) * n + first, d, count);
    }
}

KERNEL(embed_backward, embed_args)
{
    threads_run(run->threads, kernel_blocks(a->width, COLUMNS), backward_task, (void *)a);
}
