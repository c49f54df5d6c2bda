/* Reference of rows_gather and rows_scatter. */
#include "kernels/rows/rows.h"
#include "kernels/variant.h"

KERNEL(rows_gather, rows_args)
{
    const real *x = a->x;
    for (int64_t i = 0; i < a->count; i++)
        for (int64_t j = 0; j < a->width; j++) ((real *)a->y)[i * a->width + j] = x[a->row[i] * a->width + j];
}

KERNEL(rows_scatter, rows_args)
{
    real *y = a->y;
    for (int64_t i = 0; i < a->total * a->width && a->clear; i++) y[i] = 0;
    for (int64_t i = 0; i < a->count; i++)
        for (int64_t j = 0; j < a->width; j++)
            y[a->row[i] * a->width + j] += ((const real *)a->x)[(a->from ? a->from[i] : i) * a->width + j];
}
