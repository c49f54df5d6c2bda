/* Reference of rows_gather and rows_scatter. */
#include "kernels/rows/rows.h"
#include "kernels/variant.h"

KERNEL(rows_gather, rows_args)
{
    const real *x = a->x, *other = a->other_x;
    int64_t n = a->width, m = a->other_width;
    for (int64_t i = 0; i < a->count; i++) {
        for (int64_t j = 0; j < n; j++) ((real *)a->y)[i * n + j] = x[a->row[i] * n + j];
        for (int64_t j = 0; j < m; j++) ((real *)a->other_y)[i * m + j] = other[a->row[i] * m + j];
    }
}

KERNEL(rows_scatter, rows_args)
{
    real *y = a->y;
    for (int64_t i = 0; i < a->total * a->width && a->clear; i++) y[i] = 0;
    for (int64_t i = 0; i < a->count; i++)
        for (int64_t j = 0; j < a->width; j++)
            y[a->row[i] * a->width + j] += ((const real *)a->x)[(a->from ? a->from[i] : i) * a->width + j];
}
