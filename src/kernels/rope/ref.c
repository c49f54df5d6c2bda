/* Reference rotary positions. */
#include "kernels/rope/angle.h"
#include "kernels/rope/rope.h"
#include "kernels/variant.h"

KERNEL(rope_table, rope_args)
{
    int64_t half = a->dim / 2;
    real *table = a->table;
    for (int64_t i = 0; i < half; i++) {
        double frequency = rope_frequency(a->base, i, a->dim);
        for (int64_t t = 0; t < a->length; t++) {
            table[(t * half + i) * 2] = (real)cos((double)t * frequency);
            table[(t * half + i) * 2 + 1] = (real)sin((double)t * frequency);
        }
    }
}

/* y = x rotated by direction * angle. */
static void rotate(const rope_args *a, const real *x, real *y, double direction)
{
    int64_t half = a->dim / 2;
    int64_t row = a->heads * a->dim;
    for (int64_t b = 0; b < a->batch; b++)
        for (int64_t t = 0; t < a->length; t++) {
            const real *from = x + (b * a->length + t) * row;
            real *to = y + (b * a->length + t) * row;
            double position = (double)((a->position ? a->position[b] : 0) + t);
            for (int64_t i = 0; i < half; i++) {
                double angle = position * rope_frequency(a->base, i, a->dim);
                real c = (real)cos(angle), s = (real)(direction * sin(angle));
                for (int64_t at = i; at < row; at += a->dim) {
                    real low = from[at], high = from[at + half];
                    to[at] = low * c - high * s;
                    to[at + half] = high * c + low * s;
                }
            }
            for (int64_t at = a->dim - 1; a->dim % 2 && at < row; at += a->dim) to[at] = from[at];
        }
}

KERNEL(rope_forward, rope_args)
{
    rotate(a, a->x, a->y, 1);
}

KERNEL(rope_backward, rope_args)
{
    rotate(a, a->d_y, a->d_x, -1);
}
