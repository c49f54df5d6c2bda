/* Rotary positions: one table row (or, for carried positions, one row computed on the spot) turns all heads
 * of a token. */
#include "kernels/rope/angle.h"
#include "kernels/rope/rope.h"
#include "kernels/vector_functions.h"

#include "base/threads.h"

enum { TOKENS = 32, PAIRS = 64 }; /* tokens per task; channel pairs whose angles are held at a time */

typedef struct rotation {
    const rope_args *a;
    const real *x;
    real *y;
    real direction;
} rotation;

/* Cosines and sines of pairs first .. first+count-1 of token t. */
static void angles(const rotation *job, int64_t b, int64_t t, int64_t first, int64_t count, real *c, real *s)
{
    const rope_args *a = job->a;
    int64_t place = (a->position ? a->position[b] : 0) + t;
    if (a->table && (!a->position || place < a->table_length)) {
        const real *row = (const real *)a->table + (place * (a->dim / 2) + first) * 2;
        for (int64_t i = 0; i < count; i++) {
            c[i] = row[2 * i];
            s[i] = row[2 * i + 1] * job->direction;
        }
        return;
    }
    for (int64_t i = 0; i < count; i++) {
        double angle = (double)place * rope_frequency(a->base, first + i, a->dim);
        c[i] = (real)cos(angle);
        s[i] = (real)sin(angle) * job->direction;
    }
}

static void turn(const real *x, real *y, const real *c, const real *s, int64_t half, int64_t count)
{
    for (int64_t i = 0, left; left = count - i, left > 0; i += VL) {
        vreal low = v_load_up_to(x + i, left), high = v_load_up_to(x + half + i, left);
        vreal cosine = v_load_up_to(c + i, left), sine = v_load_up_to(s + i, left);
        v_store_up_to(y + i, low * cosine - high * sine, left);
        v_store_up_to(y + half + i, high * cosine + low * sine, left);
    }
}

static void rotate_tokens(void *context, int64_t task, int worker)
{
    (void)worker;
    const rotation *job = context;
    const rope_args *a = job->a;
    int64_t half = a->dim / 2, row = a->heads * a->dim,
            end = kernel_min(a->batch * a->length, (task + 1) * TOKENS);
    real c[PAIRS], s[PAIRS];
    for (int64_t r = task * TOKENS; r < end; r++) {
        const real *x = job->x + r * row;
        real *y = job->y + r * row;
        for (int64_t first = 0; first < half; first += PAIRS) {
            int64_t count = kernel_min(PAIRS, half - first);
            angles(job, r / a->length, r % a->length, first, count, c, s);
            for (int64_t at = first; at < row; at += a->dim) turn(x + at, y + at, c, s, half, count);
        }
        for (int64_t at = a->dim - 1; a->dim % 2 && at < row; at += a->dim) y[at] = x[at];
    }
}

KERNEL(rope_forward, rope_args)
{
    rotation job = {a, a->x, a->y, 1};
    threads_run(run->threads, kernel_blocks(a->batch * a->length, TOKENS), rotate_tokens, &job);
}

KERNEL(rope_backward, rope_args)
{
    rotation job = {a, a->d_y, a->d_x, -1};
    threads_run(run->threads, kernel_blocks(a->batch * a->length, TOKENS), rotate_tokens, &job);
}
