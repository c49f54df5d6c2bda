/* Some rows of a matrix: x [total, width] and its rows row[0] .. row[count-1].
 *     rows_gather   y [count, width]:  y[i] = x[row[i]];  of a second matrix of as many rows too, where there
 * is one rows_scatter  y [total, width]:  y[row[i]] += x[from[i]], x being [count, width]; the gradient of
 * rows_gather. The list of rows_scatter ascends; a row that stands in it several times receives its summands
 * in the list's order. */
#ifndef BLURRY_KERNELS_ROWS_H
#define BLURRY_KERNELS_ROWS_H
#include "kernels/kernel.h"

typedef struct rows_args {
    int64_t count, total, width;
    const int64_t *row; /* [count] in device memory, each in [0, total) */
    const void *x;
    void *y;
    int64_t other_width; /* rows_gather: of the second matrix; 0: there is none */
    const void *other_x;
    void *other_y;
    const int64_t *from; /* rows_scatter: [count], each in [0, count); NULL: 0, 1, 2 .. */
    int clear;           /* rows_scatter: y is 0 before */
    /* rows_scatter: NULL, or [total] in device memory: where in the list each row stands, -1: nowhere. For a
     * list in which no row stands twice, with clear and without `from`; where it is given, either of both may
     * be read. */
    const int64_t *place;
} rows_args;

/* The first place in the list whose row is not before `row`. */
KERNEL_INLINE int64_t rows_place(const rows_args *a, int64_t row)
{
    int64_t from = 0, to = a->count;
    while (from < to) {
        int64_t middle = from + (to - from) / 2;
        if (a->row[middle] < row)
            from = middle + 1;
        else
            to = middle;
    }
    return from;
}

#endif
