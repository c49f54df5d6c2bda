/* Rows picked out of a matrix and put back, blocks of rows in parallel. */
#include "kernels/rows/rows.h"
#include "kernels/vector_functions.h"

#include "base/threads.h"

#include <string.h>

enum { BLOCK = 128 }; /* rows of the result per task */

static void copy_row(void *y, int64_t to, const void *x, int64_t from, int64_t width)
{
    if (width) memcpy((real *)y + to * width, (const real *)x + from * width, (size_t)width * sizeof(real));
}

static void gather_task(void *context, int64_t task, int worker)
{
    (void)worker;
    const rows_args *a = context;
    int64_t end = kernel_min(a->count, (task + 1) * BLOCK);
    for (int64_t i = task * BLOCK; i < end; i++) {
        copy_row(a->y, i, a->x, a->row[i], a->width);
        copy_row(a->other_y, i, a->other_x, a->row[i], a->other_width);
    }
}

static void scatter_task(void *context, int64_t task, int worker)
{
    (void)worker;
    const rows_args *a = context;
    int64_t first = task * BLOCK, end = kernel_min(a->total, first + BLOCK);
    if (a->clear)
        memset((real *)a->y + first * a->width, 0, (size_t)((end - first) * a->width) * sizeof(real));
    for (int64_t i = rows_place(a, first); i < a->count && a->row[i] < end; i++) {
        const real *from = (const real *)a->x + (a->from ? a->from[i] : i) * a->width;
        real *to = (real *)a->y + a->row[i] * a->width;
        for (int64_t j = 0, left; left = a->width - j, left > 0; j += VL)
            v_store_up_to(to + j, v_load_up_to(to + j, left) + v_load_up_to(from + j, left), left);
    }
}

KERNEL(rows_gather, rows_args)
{
    threads_run(run->threads, kernel_blocks(a->count, BLOCK), gather_task, (void *)a);
}

KERNEL(rows_scatter, rows_args)
{
    threads_run(run->threads, kernel_blocks(a->total, BLOCK), scatter_task, (void *)a);
}
