/* The reference of decoding: every slot is brought up to date in double for the read, and kept where its
 * block is due. */
#include "base/dirichlet.h"
#include "base/sizes.h"
#include "base/threads.h"
#include "kernels/blurry_step/blurry_step.h"
#include "kernels/variant.h"

#include <math.h>
#include <string.h>

void VARIANT(bla_step_settle)(const bla_step_shape *s, const bla_step_sequence *x, void *k, void *v);

/* row [n] = columns from .. from+n-1 of slot j of head h, with the last `pending` of `seen` tokens taken in,
 * oldest first. slots [Hkv, S, D], ring [Hkv, fold, D]. */
static void current_row(const bla_step_shape *s, const bla_step_sequence *x, const real *slots,
                        const real *ring, int64_t D, int64_t h, int64_t j, int64_t seen, int64_t pending,
                        int64_t from, int64_t n, double *row)
{
    const real *phi = (const real *)x->ring_phi + s->period_of[h] * s->fold * s->padded + j;
    for (int64_t i = 0; i < n; i++) row[i] = (double)slots[(h * s->S + j) * D + from + i];
    for (int64_t u = seen - pending; u < seen; u++) {
        double w = (double)phi[u % s->fold * s->padded], keep = s->decay ? 1.0 - w : 1.0;
        const real *token = ring + (h * s->fold + u % s->fold) * D + from;
        for (int64_t i = 0; i < n; i++) row[i] = keep * row[i] + w * (double)token[i];
    }
}

/* The row after the token at x->position, stored back where its block is due. */
static void step_row(const bla_step_shape *s, const bla_step_sequence *x, real *slots, const real *ring,
                     int64_t D, int64_t h, int64_t j, double *row)
{
    int64_t t = x->position, r = j / s->block;
    current_row(s, x, slots, ring, D, h, j, t + 1, bla_step_pending(s, x, r, t) + 1, 0, D, row);
    if (t % s->fold != bla_step_phase(s, r)) return;
    for (int64_t i = 0; i < D; i++) slots[(h * s->S + j) * D + i] = (real)row[i];
}

/* ---- reading
 * ------------------------------------------------------------------------------------------------ */

/* x [S] in place by the relative grid's mix, its own transpose: x_j <- sum_i phi_t[(i + j) mod S] x_i; spare
 * [S]. */
static void mix(const bla_step_shape *s, const real *phi, double *x, double *spare)
{
    memcpy(spare, x, (size_t)s->S * sizeof *x);
    for (int64_t j = 0; j < s->S; j++) {
        x[j] = 0;
        for (int64_t i = 0; i < s->S; i++) x[j] += (double)phi[(i + j) % s->S] * spare[i];
    }
}

/* Logits [S] of one query become the weight of each slot's value. */
static void weigh(const bla_step_shape *s, const real *phi, int64_t visible, double *x, double *spare)
{
    if (s->relative) mix(s, phi, x, spare);
    double top = -INFINITY, sum = 0;
    for (int64_t j = 0; j < visible; j++) top = x[j] > top ? x[j] : top;
    for (int64_t j = 0; j < visible; j++) sum += x[j] = exp(x[j] - top);
    for (int64_t j = 0; j < s->S; j++) x[j] = j < visible ? x[j] / sum : 0.0;
    if (s->relative) mix(s, phi, x, spare);
}

/* ---- one step
 * ----------------------------------------------------------------------------------------------- */

typedef struct step_job {
    const bla_step_shape *shape;
    const bla_step *args;
} step_job;

/* Per worker, in doubles: weights [group, S], spare [S], sums [group, Dv], row [max(Dk, Dv)]. */
static size_t share_bytes(const bla_step_shape *s)
{
    int64_t group = s->H / s->Hkv;
    size_t numbers = size_add(size_of(s->S, (size_t)(group + 1)), size_of(s->Dv, (size_t)group));
    return size_align(size_mul(size_add(numbers, (size_t)(s->Dk > s->Dv ? s->Dk : s->Dv)), sizeof(double)));
}

static size_t workspace(const bla_step_shape *s)
{
    return size_mul(share_bytes(s), (size_t)s->threads);
}

static void add_weights(const bla_step_shape *s, const bla_step_sequence *x, double *row)
{
    for (int64_t p = 0; p < s->n_periods; p++) {
        real *to = (real *)x->ring_phi + (p * s->fold + x->position % s->fold) * s->padded;
        dirichlet_weights(s->S, s->period[p], x->position, row);
        for (int64_t j = 0; j < s->padded; j++) to[j] = j < s->S ? (real)row[j] : (real)0;
    }
}

static void step_task(void *context, int64_t task, int worker)
{
    const bla_step_shape *s = ((const step_job *)context)->shape;
    const bla_step *a = ((const step_job *)context)->args;
    const int64_t b = task / s->Hkv, h = task % s->Hkv, group = s->H / s->Hkv;
    const bla_step_sequence *x = &a->sequences[b];
    const int64_t t = x->position, p = s->period_of[h], at = h * s->fold + t % s->fold;
    const real *q = (const real *)a->q + (b * s->H + h * group) * s->Dk;
    const real *phi = (const real *)x->ring_phi + (p * s->fold + t % s->fold) * s->padded;
    real *ring_k = x->ring_k, *ring_v = x->ring_v, *o = (real *)a->o + (b * s->H + h * group) * s->Dv;
    double *weights = (double *)((char *)a->workspace + (size_t)worker * share_bytes(s));
    double *spare = weights + group * s->S, *sums = spare + s->S, *row = sums + group * s->Dv;
    memcpy(ring_k + at * s->Dk, (const real *)a->k + (b * s->Hkv + h) * s->Dk, (size_t)s->Dk * sizeof(real));
    memcpy(ring_v + at * s->Dv, (const real *)a->v + (b * s->Hkv + h) * s->Dv, (size_t)s->Dv * sizeof(real));
    for (int64_t j = 0; j < s->S; j++) {
        step_row(s, x, x->k, ring_k, s->Dk, h, j, row);
        for (int64_t g = 0; g < group; g++) {
            double sum = 0;
            for (int64_t i = 0; i < s->Dk; i++) sum += (double)q[g * s->Dk + i] * row[i];
            weights[g * s->S + j] = s->scale * sum;
        }
    }
    for (int64_t g = 0; g < group; g++) weigh(s, phi, bla_step_visible(s, p, t), weights + g * s->S, spare);
    memset(sums, 0, (size_t)(group * s->Dv) * sizeof *sums);
    for (int64_t j = 0; j < s->S; j++) {
        step_row(s, x, x->v, ring_v, s->Dv, h, j, row);
        for (int64_t g = 0; g < group; g++)
            for (int64_t i = 0; i < s->Dv; i++) sums[g * s->Dv + i] += weights[g * s->S + j] * row[i];
    }
    for (int64_t i = 0; i < group * s->Dv; i++) o[i] = (real)sums[i];
}

static void run(const bla_step_shape *shape, const bla_step *args)
{
    step_job job = {shape, args};
    for (int64_t b = 0; b < args->count; b++) add_weights(shape, &args->sequences[b], args->workspace);
    threads_run(shape->threads, args->count * shape->Hkv, step_task, &job);
}

/* ---- everything pending taken in
 * ---------------------------------------------------------------------------- */

/* Pieces of rows go through a small buffer, so that `out` may be `slots` itself. */
static void settle_slots(const bla_step_shape *s, const bla_step_sequence *x, const real *slots,
                         const real *ring, int64_t D, real *out)
{
    enum { PIECE = 64 };
    double piece[PIECE];
    for (int64_t row = 0; row < s->Hkv * s->S; row++) {
        int64_t h = row / s->S, j = row % s->S, seen = x->position;
        int64_t pending = bla_step_pending(s, x, j / s->block, seen);
        for (int64_t from = 0; from < D; from += PIECE) {
            int64_t n = D - from < PIECE ? D - from : PIECE;
            current_row(s, x, slots, ring, D, h, j, seen, pending, from, n, piece);
            for (int64_t i = 0; i < n; i++) out[row * D + from + i] = (real)piece[i];
        }
    }
}

void VARIANT(bla_step_settle)(const bla_step_shape *s, const bla_step_sequence *x, void *k, void *v)
{
    if (k) settle_slots(s, x, x->k, x->ring_k, s->Dk, k);
    if (v) settle_slots(s, x, x->v, x->ring_v, s->Dv, v);
}

const bla_step_kernel VARIANT(bla_step_kernel) = {
    .name = "ref",
    .dtype = REAL_IS_FLOAT ? BLURRY_F32 : BLURRY_F64,
    .workspace = workspace,
    .run = run,
};
