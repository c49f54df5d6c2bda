/* Rotary positions, half-rotation: for i < dim/2, angle = position * base^(-2i/dim),
 *     y[i]         = x[i] cos - x[i + dim/2] sin
 *     y[i + dim/2] = x[i + dim/2] cos + x[i] sin            an odd last channel is copied
 * Token l of sequence b stands at position[b] + l; angles are reduced in double, so large positions stay
 * exact. */
#ifndef BLURRY_KERNELS_ROPE_H
#define BLURRY_KERNELS_ROPE_H
#include "kernels/kernel.h"

typedef struct rope_args {
    int64_t batch, length, heads, dim;
    double base;
    const int64_t *position; /* [batch], NULL: all 0 */
    void *table; /* NULL, or [length, dim/2, 2] cosine and sine for positions 0 .. length-1, filled once by
                    rope_table; used where position is NULL */
    int64_t table_length; /* where position is given: positions below it may be looked up in table as well */
    const void *x;        /* [batch, length, heads, dim] */
    void *y;              /* may be x */
    const void *d_y;
    void *d_x; /* may be d_y */
    /* rope_join only: d_x [batch, length, streams, heads, dim], not d_y, gets the streams of
     * d_y [streams, batch, length, heads, dim] side by side, the first `turned` rotated back, the others
     * copied; where x is given, which has d_y's shape, all times SiLU's slope at x. What is turned needs the
     * table; all positions start at 0. */
    int64_t streams, turned;
} rope_args;

#endif
