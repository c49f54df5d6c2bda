/* The reference of blurry attention: the recurrence as docs/operator.md states it, in plain loops.
 *
 * It is the specification of every other variant, so all arithmetic is in double for both element types; only
 * inputs and results are of type `real`. One task is one sequence and key/value head. Backward keeps a state
 * every sqrt(n) tokens and replays one such segment at a time, so memory grows with sqrt(n), not n. */
#include "base/dirichlet.h"
#include "base/sizes.h"
#include "base/threads.h"
#include "kernels/blurry/blurry.h"
#include "kernels/variant.h"

#include <math.h>
#include <string.h>

/* Slots of one head, in double: k [S, Dk], v [S, Dv]. */
typedef struct slots {
    double *k, *v;
} slots;

typedef struct forward_job {
    const bla_shape *shape;
    const bla_forward *args;
} forward_job;

static inline double dot(const real *a, const double *b, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += (double)a[i] * b[i];
    return sum;
}

static void load(double *to, const real *from, int64_t n)
{
    for (int64_t i = 0; i < n; i++) to[i] = from ? (double)from[i] : 0.0;
}

static void store(real *to, const double *from, int64_t n)
{
    for (int64_t i = 0; i < n; i++) to[i] = (real)from[i];
}

/* Slots of sequence b, head h within the caller's memory; NULL where the caller gave none. */
static real *slots_at(const void *base, int64_t stride, int64_t b, int64_t h, int64_t size)
{
    return base ? (real *)base + b * stride + h * size : NULL;
}

/* Slots visible at position t: the first n, because rint(j*T/S) does not fall with j. */
static int64_t visible_slots(int64_t S, double T, int64_t t)
{
    int64_t n = 0;
    while (n < S && t >= dirichlet_visible_from(S, T, n)) n++;
    return n;
}

/* One token's write: x [D] into slots [S, D]. */
static void write_token(const bla_shape *s, const double *phi, const real *x, int64_t D, double *slot)
{
    for (int64_t j = 0; j < s->S; j++) {
        double keep = s->decay ? 1.0 - phi[j] : 1.0;
        for (int64_t i = 0; i < D; i++) slot[j * D + i] = keep * slot[j * D + i] + phi[j] * (double)x[i];
    }
}

/* phi [2S]: the weights of position t, twice, so that phi[i + j] is phi_t[(i + j) mod S]; dphi_dT [S] or
 * NULL. */
static void weights(const bla_shape *s, double T, int64_t t, double *phi, double *dphi_dT)
{
    dirichlet_weights_dT(s->S, T, t, phi, dphi_dT);
    memcpy(phi + s->S, phi, (size_t)s->S * sizeof *phi);
}

/* Relative slot j is the mix sum_i phi_t[(i + j) mod S] slot_i; by linearity it is applied to numbers per
 * slot. The matrix is symmetric, so the same function is its transpose. */
static void mix(const bla_shape *s, const double *phi, const double *in, double *out)
{
    for (int64_t j = 0; j < s->S; j++) {
        double sum = 0;
        for (int64_t i = 0; i < s->S; i++) sum += phi[i + j] * in[i];
        out[j] = sum;
    }
}

/* d_phi [2S] += the mix's gradient, to be folded modulo S: both factors of out_j = sum_i phi[i + j] in_i. */
static void mix_gradient(const bla_shape *s, const double *d_out, const double *in, double *d_phi)
{
    for (int64_t j = 0; j < s->S; j++)
        for (int64_t i = 0; i < s->S; i++) d_phi[i + j] += d_out[j] * in[i];
}

/* p [S]: the softmax over the first `visible` entries of `logits`, 0 elsewhere. */
static void softmax(int64_t S, int64_t visible, const double *logits, double *p)
{
    double top = -INFINITY, sum = 0;
    for (int64_t j = 0; j < visible; j++) top = logits[j] > top ? logits[j] : top;
    for (int64_t j = 0; j < visible; j++) sum += p[j] = exp(logits[j] - top);
    for (int64_t j = 0; j < S; j++) p[j] = j < visible ? p[j] / sum : 0.0;
}

/* What one query sees: per absolute slot <q,K_i> (raw), the logits and p per slot of the grid, and the weight
 * that each absolute slot's value gets (weight = p on the absolute grid). All [S]. */
typedef struct reading {
    double *raw, *logits, *p, *weight;
} reading;

static void read_slots(const bla_shape *s, const double *phi, int64_t visible, const real *q, const double *k,
                       reading *r)
{
    for (int64_t j = 0; j < s->S; j++) r->raw[j] = s->scale * dot(q, k + j * s->Dk, s->Dk);
    if (s->relative)
        mix(s, phi, r->raw, r->logits);
    else
        memcpy(r->logits, r->raw, (size_t)s->S * sizeof *r->raw);
    softmax(s->S, visible, r->logits, r->p);
    if (s->relative)
        mix(s, phi, r->p, r->weight);
    else
        memcpy(r->weight, r->p, (size_t)s->S * sizeof *r->p);
}

/* Hands out doubles from a worker's share of the workspace. */
static double *take(double **from, int64_t n)
{
    double *taken = *from;
    *from += n;
    return taken;
}

static slots take_slots(double **from, const bla_shape *s)
{
    slots taken = {take(from, s->S * s->Dk), 0};
    taken.v = take(from, s->S * s->Dv);
    return taken;
}

/* ---- forward
 * ------------------------------------------------------------------------------------------------ */

static size_t forward_share(const bla_shape *s)
{
    size_t numbers = size_add(size_of(s->S, (size_t)(s->Dk + s->Dv + 6)), (size_t)s->Dv);
    return size_align(size_mul(numbers, sizeof(double)));
}

static size_t forward_workspace(const bla_shape *s)
{
    return size_mul(forward_share(s), (size_t)s->threads);
}

static void forward_task(void *context, int64_t task, int worker)
{
    const forward_job *job = context;
    const bla_shape *s = job->shape;
    const bla_forward *a = job->args;
    const int64_t b = task / s->Hkv, h = task % s->Hkv, group = s->H / s->Hkv;
    const bla_sequence *seq = &a->sequences[b];
    double *share = (double *)((char *)a->workspace + (size_t)worker * forward_share(s));
    slots x = take_slots(&share, s);
    double *phi = take(&share, 2 * s->S);
    reading r = {take(&share, s->S), take(&share, s->S), take(&share, s->S), take(&share, s->S)};
    double *sum = take(&share, s->Dv);
    load(x.k, slots_at(a->in.k, a->in.stride_k, b, h, s->S * s->Dk), s->S * s->Dk);
    load(x.v, slots_at(a->in.k ? a->in.v : NULL, a->in.stride_v, b, h, s->S * s->Dv), s->S * s->Dv);
    for (int64_t i = 0; i < seq->count; i++) {
        int64_t n = seq->first + i, t = seq->position + i;
        int64_t visible = visible_slots(s->S, s->period[h], t);
        weights(s, s->period[h], t, phi, NULL);
        write_token(s, phi, (const real *)a->k + (n * s->Hkv + h) * s->Dk, s->Dk, x.k);
        write_token(s, phi, (const real *)a->v + (n * s->Hkv + h) * s->Dv, s->Dv, x.v);
        int64_t row = bla_row_of(&a->rows, n);
        for (int64_t g = h * group; g < (h + 1) * group && row >= 0; g++) {
            read_slots(s, phi, visible, (const real *)a->q + (row * s->H + g) * s->Dk, x.k, &r);
            memset(sum, 0, (size_t)s->Dv * sizeof *sum);
            for (int64_t j = 0; j < s->S; j++)
                for (int64_t d = 0; d < s->Dv; d++) sum[d] += r.weight[j] * x.v[j * s->Dv + d];
            store((real *)a->o + (row * s->H + g) * s->Dv, sum, s->Dv);
        }
    }
    if (!a->out.k) return;
    store(slots_at(a->out.k, a->out.stride_k, b, h, s->S * s->Dk), x.k, s->S * s->Dk);
    store(slots_at(a->out.v, a->out.stride_v, b, h, s->S * s->Dv), x.v, s->S * s->Dv);
}

static void forward(const bla_shape *shape, const void *tables, const bla_forward *args)
{
    (void)tables;
    forward_job job = {shape, args};
    threads_run(shape->threads, args->n_sequences * shape->Hkv, forward_task, &job);
}

/* ---- backward
 * ----------------------------------------------------------------------------------------------- */

/* Tokens per replayed segment for a sequence of n tokens: the smallest c with c*c >= n. */
static int64_t segment_length(int64_t n)
{
    int64_t c = (int64_t)sqrt((double)n);
    while (c * c < n) c++;
    return c < 1 ? 1 : c;
}

typedef struct backward_job {
    const bla_shape *shape;
    const bla_backward *args;
    double *period_sums; /* [n_sequences * Hkv, 2] d_period and d_period_abs of each task */
} backward_job;

/* A worker's memory. `replay` [c + 1] are the states before and after each token of the current segment. */
typedef struct backward_scratch {
    double *checkpoints, *replay;
    int64_t state_size; /* S * (Dk + Dv) */
    slots grad;         /* gradient of the slots after the current token */
    double *phi, *dphi_dT, *d_phi, *d_p, *d_logits, *d_raw;
    reading r;
    double *row;
} backward_scratch;

static size_t backward_share(const bla_shape *s)
{
    size_t state = size_of(s->S, (size_t)(s->Dk + s->Dv));
    size_t states = size_mul(state, 2 * (size_t)segment_length(s->tokens) + 2);
    size_t rows = size_add(size_of(s->S, 12), (size_t)(s->Dk + s->Dv));
    return size_align(size_mul(size_add(states, rows), sizeof(double)));
}

static size_t period_sums_bytes(const bla_shape *s)
{
    return size_align(size_mul(size_of(s->batch, (size_t)s->Hkv), 2 * sizeof(double)));
}

static size_t backward_workspace(const bla_shape *s)
{
    return size_add(size_mul(backward_share(s), (size_t)s->threads), period_sums_bytes(s));
}

static backward_scratch carve(const bla_shape *s, double *share, int64_t count)
{
    backward_scratch w = {.state_size = s->S * (s->Dk + s->Dv)};
    int64_t c = segment_length(count);
    w.checkpoints = take(&share, c * w.state_size);
    w.replay = take(&share, (c + 1) * w.state_size);
    w.grad = take_slots(&share, s);
    w.phi = take(&share, 2 * s->S);
    w.d_phi = take(&share, 2 * s->S);
    double **rows[] = {&w.dphi_dT, &w.d_p, &w.d_logits, &w.d_raw, &w.r.raw, &w.r.p, &w.r.logits, &w.r.weight};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) *rows[i] = take(&share, s->S);
    w.row = take(&share, s->Dk + s->Dv);
    return w;
}

static slots state_at(const backward_scratch *w, const bla_shape *s, double *states, int64_t index)
{
    double *k = states + index * w->state_size;
    return (slots){k, k + s->S * s->Dk};
}

/* The state after token i of sequence b from the one before it. */
static void advance(const bla_shape *s, const bla_backward *a, int64_t b, int64_t h, int64_t i, double *phi,
                    slots to)
{
    int64_t n = a->sequences[b].first + i;
    weights(s, s->period[h], a->sequences[b].position + i, phi, NULL);
    write_token(s, phi, (const real *)a->k + (n * s->Hkv + h) * s->Dk, s->Dk, to.k);
    write_token(s, phi, (const real *)a->v + (n * s->Hkv + h) * s->Dv, s->Dv, to.v);
}

/* Runs the sequence once, keeping the state before every segment. */
static void lay_checkpoints(const bla_shape *s, const bla_backward *a, int64_t b, int64_t h,
                            backward_scratch *w)
{
    int64_t count = a->sequences[b].count, c = segment_length(count);
    slots x = state_at(w, s, w->replay, 0);
    load(x.k, slots_at(a->in.k, a->in.stride_k, b, h, s->S * s->Dk), s->S * s->Dk);
    load(x.v, slots_at(a->in.k ? a->in.v : NULL, a->in.stride_v, b, h, s->S * s->Dv), s->S * s->Dv);
    for (int64_t i = 0; i < count; i++) {
        if (i % c == 0)
            memcpy(w->checkpoints + i / c * w->state_size, x.k, (size_t)w->state_size * sizeof(double));
        advance(s, a, b, h, i, w->phi, x);
    }
}

/* Fills replay[0 .. n] with the states before token `start` and after each of the n tokens from there. */
static void replay_segment(const bla_shape *s, const bla_backward *a, int64_t b, int64_t h, int64_t start,
                           int64_t n, backward_scratch *w)
{
    int64_t c = segment_length(a->sequences[b].count);
    size_t bytes = (size_t)w->state_size * sizeof(double);
    memcpy(w->replay, w->checkpoints + start / c * w->state_size, bytes);
    for (int64_t i = 0; i < n; i++) {
        memcpy(w->replay + (i + 1) * w->state_size, w->replay + i * w->state_size, bytes);
        advance(s, a, b, h, start + i, w->phi, state_at(w, s, w->replay, i + 1));
    }
}

/* One query's gradients: writes d_q, adds to the slots' gradient and, on the relative grid, to d_phi. */
static void backward_read(const bla_shape *s, int64_t visible, const real *q, const real *d_o, slots x,
                          real *d_q, backward_scratch *w)
{
    read_slots(s, w->phi, visible, q, x.k, &w->r);
    double mean = 0;
    for (int64_t i = 0; i < s->S; i++)
        w->d_raw[i] = dot(d_o, x.v + i * s->Dv, s->Dv); /* d loss / d weight_i */
    if (s->relative) mix_gradient(s, w->r.p, w->d_raw, w->d_phi);
    if (s->relative)
        mix(s, w->phi, w->d_raw, w->d_p);
    else
        memcpy(w->d_p, w->d_raw, (size_t)s->S * sizeof(double));
    for (int64_t j = 0; j < visible; j++) mean += w->r.p[j] * w->d_p[j];
    for (int64_t j = 0; j < s->S; j++) w->d_logits[j] = j < visible ? w->r.p[j] * (w->d_p[j] - mean) : 0.0;
    if (s->relative) mix_gradient(s, w->d_logits, w->r.raw, w->d_phi);
    if (s->relative)
        mix(s, w->phi, w->d_logits, w->d_raw);
    else
        memcpy(w->d_raw, w->d_logits, (size_t)s->S * sizeof(double));
    memset(w->row, 0, (size_t)s->Dk * sizeof(double));
    for (int64_t j = 0; j < s->S; j++) {
        double d = s->scale * w->d_raw[j];
        for (int64_t i = 0; i < s->Dk; i++) {
            w->row[i] += d * x.k[j * s->Dk + i];
            w->grad.k[j * s->Dk + i] += d * (double)q[i];
        }
        for (int64_t i = 0; i < s->Dv; i++) w->grad.v[j * s->Dv + i] += w->r.weight[j] * (double)d_o[i];
    }
    store(d_q, w->row, s->Dk);
}

/* The write's gradients: d_x [D] of the token, d_phi [S] added, and the slots' gradient moved before the
 * token. */
static void backward_write(const bla_shape *s, const real *x, int64_t D, const double *before, double *grad,
                           real *d_x, backward_scratch *w)
{
    memset(w->row, 0, (size_t)D * sizeof(double));
    for (int64_t j = 0; j < s->S; j++) {
        double sum = 0;
        for (int64_t i = 0; i < D; i++) {
            double g = grad[j * D + i];
            w->row[i] += w->phi[j] * g;
            sum += g * ((double)x[i] - (s->decay ? before[j * D + i] : 0.0));
            if (s->decay) grad[j * D + i] = (1.0 - w->phi[j]) * g;
        }
        w->d_phi[j] += sum;
    }
    store(d_x, w->row, D);
}

static void backward_token(const bla_shape *s, const bla_backward *a, int64_t b, int64_t h, int64_t i,
                           slots before, slots after, backward_scratch *w, double *period_sums)
{
    int64_t n = a->sequences[b].first + i, t = a->sequences[b].position + i, group = s->H / s->Hkv;
    int64_t visible = visible_slots(s->S, s->period[h], t);
    weights(s, s->period[h], t, w->phi, w->dphi_dT);
    memset(w->d_phi, 0, 2 * (size_t)s->S * sizeof(double));
    int64_t row = bla_row_of(&a->rows, n);
    for (int64_t g = h * group; g < (h + 1) * group && row >= 0; g++)
        backward_read(s, visible, (const real *)a->q + (row * s->H + g) * s->Dk,
                      (const real *)a->d_o + (row * s->H + g) * s->Dv, after,
                      (real *)a->d_q + (row * s->H + g) * s->Dk, w);
    backward_write(s, (const real *)a->k + (n * s->Hkv + h) * s->Dk, s->Dk, before.k, w->grad.k,
                   (real *)a->d_k + (n * s->Hkv + h) * s->Dk, w);
    backward_write(s, (const real *)a->v + (n * s->Hkv + h) * s->Dv, s->Dv, before.v, w->grad.v,
                   (real *)a->d_v + (n * s->Hkv + h) * s->Dv, w);
    for (int64_t j = 0; j < s->S; j++) {
        double part = (w->d_phi[j] + w->d_phi[s->S + j]) * w->dphi_dT[j];
        period_sums[0] += part;
        period_sums[1] += fabs(part);
    }
}

static void backward_task(void *context, int64_t task, int worker)
{
    const backward_job *job = context;
    const bla_shape *s = job->shape;
    const bla_backward *a = job->args;
    const int64_t b = task / s->Hkv, h = task % s->Hkv, count = a->sequences[b].count,
                  c = segment_length(count);
    char *shares = (char *)a->workspace + period_sums_bytes(s);
    backward_scratch w = carve(s, (double *)(shares + (size_t)worker * backward_share(s)), count);
    double *sums = job->period_sums + 2 * task;
    sums[0] = sums[1] = 0;
    load(w.grad.k, slots_at(a->d_out.k, a->d_out.stride_k, b, h, s->S * s->Dk), s->S * s->Dk);
    load(w.grad.v, slots_at(a->d_out.v, a->d_out.stride_v, b, h, s->S * s->Dv), s->S * s->Dv);
    lay_checkpoints(s, a, b, h, &w);
    for (int64_t start = (count - 1) / c * c; count > 0 && start >= 0; start -= c) {
        int64_t n = count - start < c ? count - start : c;
        replay_segment(s, a, b, h, start, n, &w);
        for (int64_t i = n - 1; i >= 0; i--)
            backward_token(s, a, b, h, start + i, state_at(&w, s, w.replay, i),
                           state_at(&w, s, w.replay, i + 1), &w, sums);
    }
    real *d_k = slots_at(a->d_in.k, a->d_in.stride_k, b, h, s->S * s->Dk);
    real *d_v = slots_at(a->d_in.v, a->d_in.stride_v, b, h, s->S * s->Dv);
    if (d_k) store(d_k, w.grad.k, s->S * s->Dk);
    if (d_v) store(d_v, w.grad.v, s->S * s->Dv);
}

static void backward(const bla_shape *shape, const void *tables, const bla_backward *args)
{
    (void)tables;
    backward_job job = {shape, args, args->workspace};
    threads_run(shape->threads, args->n_sequences * shape->Hkv, backward_task, &job);
    for (int which = 0; which < 2; which++) {
        double *out = which == 0 ? args->d_period : args->d_period_abs;
        for (int64_t h = 0; out && h < shape->Hkv; h++) {
            out[h] = 0;
            for (int64_t b = 0; b < args->n_sequences && !shape->raised[h]; b++)
                out[h] += job.period_sums[2 * (b * shape->Hkv + h) + which];
        }
    }
}

/* ---- the table entry
 * ---------------------------------------------------------------------------------------- */

static blurry_status prepare(const bla_shape *shape, void **tables)
{
    (void)shape;
    *tables = NULL;
    return BLURRY_OK;
}

static void release(void *tables)
{
    (void)tables;
}

static size_t saved_bytes(const bla_shape *shape)
{
    (void)shape;
    return 0;
}

const bla_kernel VARIANT(bla_kernel) = {
    .name = "ref",
    .dtype = REAL_IS_FLOAT ? BLURRY_F32 : BLURRY_F64,
    .prepare = prepare,
    .release = release,
    .forward_workspace = forward_workspace,
    .backward_workspace = backward_workspace,
    .saved_bytes = saved_bytes,
    .forward = forward,
    .backward = backward,
};
