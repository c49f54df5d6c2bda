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

/* y = x rotated by direction * angle; `apart` elements between the tokens of y. */
static void rotate(const rope_args *a, const real *x, real *y, int64_t apart, double direction)
{
    int64_t half = a->dim / 2;
    int64_t row = a->heads * a->dim;
    for (int64_t b = 0; b < a->batch; b++)
        for (int64_t t = 0; t < a->length; t++) {
            const real *from = x + (b * a->length + t) * row;
            real *to = y + (b * a->length + t) * apart;
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
    rotate(a, a->x, a->y, a->heads * a->dim, 1);
}

KERNEL(rope_backward, rope_args)
{
    rotate(a, a->d_y, a->d_x, a->heads * a->dim, -1);
}

static real silu_slope(real x)
{
    real y = (real)(1 / (1 + exp(-(double)x)));
    return y * (1 + x * (1 - y));
}

KERNEL(rope_join, rope_args)
{
    int64_t row = a->heads * a->dim, tokens = a->batch * a->length;
    for (int64_t stream = 0; stream < a->streams; stream++) {
        const real *from = (const real *)a->d_y + stream * tokens * row;
        real *to = (real *)a->d_x + stream * row;
        if (stream < a->turned)
            rotate(a, from, to, a->streams * row, -1);
        else
            for (int64_t t = 0; t < tokens; t++)
                for (int64_t i = 0; i < row; i++) to[t * a->streams * row + i] = from[t * row + i];
        const real *x = a->x ? (const real *)a->x + stream * tokens * row : NULL;
        for (int64_t i = 0; x && i < tokens * row; i++)
            to[i / row * a->streams * row + i % row] *= silu_slope(x[i]);
    }
}
