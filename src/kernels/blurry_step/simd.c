/* Decoding with vectors. Per sequence and key/value head, each slot's K and V row is read once:
 *   K pass: rows of the due block are brought up to date and stored; dot products of all rows with the
 * group's queries; logits: what the other blocks miss is applied to the logits, l <- l + phi_u (<q,k_u> - l)
 * for each pending u with decay (l + phi_u <q,k_u> without), because the recurrence of K is linear in K;
 *   softmax, then the same recurrence backwards turns p into weights of V rows and of the pending v_u;
 *   V pass: as the K pass, rows added into o.
 * The weights of a token are made once per sequence and distinct period, in double, from tables of sines.
 * While one pass computes, the next one's rows are fetched: V during the K pass, the next head's K during the
 * V pass. */
#include "base/dirichlet.h"
#include "base/sizes.h"
#include "base/threads.h"
#include "kernels/blurry_step/blurry_step.h"
#include "kernels/vector_math.h"

#include <math.h>
#include <string.h>

/* One task's view. Rows of weights are [padded]; blocks begin at multiples of BLA_STEP_ALIGN, so whole
 * vectors belong to one block. */
typedef struct head {
    const bla_step_shape *s;
    const bla_step_sequence *x;
    int64_t t, at;         /* position, its ring index */
    int64_t due;           /* block to bring up to date, or -1 */
    int64_t due_tokens;    /* tokens it misses, this one included */
    const real *phi;       /* [fold, padded] */
    const real *q;         /* [group, Dk] */
    real *k, *v;           /* [S, Dk], [S, Dv] */
    real *ring_k, *ring_v; /* [fold, Dk], [fold, Dv] */
    real *keep;            /* [block] what the due rows keep */
    real *take;            /* [fold, block] what they take of each missed token, oldest first */
    real *logits;          /* [group, padded], then the weights of V rows */
    real *spare;           /* [3 * padded] */
    real *scores;          /* [fold] <q, k_u>, then the weights of v_u; by ring index */
    real *partial;         /* [fold, VL] */
    real *sums;            /* [group, Dv rounded up] */
    int64_t *missed;       /* [n_blocks] tokens that each block misses after this step */
    int64_t ahead;         /* heads that follow in this task: worth fetching */
} head;

typedef struct step_job {
    const bla_step_shape *shape;
    const bla_step *args;
    int64_t heads; /* per task, a divisor of Hkv */
} step_job;

static int64_t round_up(int64_t n)
{
    return (n + VL - 1) / VL * VL;
}

/* Elements of a worker's share. */
static size_t share_bytes(const bla_step_shape *s)
{
    int64_t group = s->H / s->Hkv;
    size_t n = size_add(size_of(s->block, (size_t)s->fold + 1), size_of(s->padded, (size_t)group + 3));
    n = size_add(n, (size_t)(round_up(s->fold) + s->fold * VL));
    n = size_add(n, size_of(round_up(s->Dv), (size_t)group));
    return size_add(size_align(size_mul(n, sizeof(real))), size_align((size_t)s->n_blocks * sizeof(int64_t)));
}

static size_t workspace(const bla_step_shape *s)
{
    return size_mul(share_bytes(s), (size_t)s->threads);
}

/* ---- weights of the new token
 * --------------------------------------------------------------------------------- */

/* phi for position t into row [padded]: as dirichlet_weights, with sin(pi (f - e) / S) for e = j - n from the
 * tables. */
static void weights_row(const bla_step_shape *s, int64_t period, int64_t t, real *restrict row)
{
    const double pi = 3.14159265358979323846264338327950288;
    int64_t S = s->S, n;
    double f = dirichlet_nearest(S, s->period[period], t, &n);
    for (int64_t j = S; j < s->padded; j++) row[j] = 0;
    if (fabs(f) < 1e-150) {
        for (int64_t j = 0; j < S; j++) row[j] = j == n;
        return;
    }
    double share = sin(pi * f) / (double)S, sine = sin(pi * f / (double)S), cosine = cos(pi * f / (double)S);
    const double *restrict ce = s->sines + S - 1 - n, *restrict se = ce + 2 * s->padded;
    for (int64_t j = 0; j < S; j++) row[j] = (real)(share / (sine * ce[j] - cosine * se[j]));
}

enum { ROWS_PER_TASK = 32 };

static void weights_task(void *context, int64_t task, int worker)
{
    const bla_step_shape *s = ((const step_job *)context)->shape;
    const bla_step *a = ((const step_job *)context)->args;
    (void)worker;
    int64_t end = (task + 1) * ROWS_PER_TASK, all = a->count * s->n_periods;
    for (int64_t i = task * ROWS_PER_TASK; i < end && i < all; i++) {
        const bla_step_sequence *x = &a->sequences[i / s->n_periods];
        int64_t p = i % s->n_periods;
        weights_row(s, p, x->position,
                    (real *)x->ring_phi + (p * s->fold + x->position % s->fold) * s->padded);
    }
}

/* ---- bringing a block up to date
 * ------------------------------------------------------------------------------ */

/* keep_j = prod (1 - phi_u[j]) and take_u[j] = phi_u[j] prod_{s > u} (1 - phi_s[j]) over the tokens missed.
 */
static void due_coefficients(const head *h)
{
    const bla_step_shape *s = h->s;
    for (int64_t i = 0; i < s->block && h->due * s->block + i < s->padded; i += VL) {
        vreal keep = v_set1(1);
        for (int64_t m = h->due_tokens - 1; m >= 0; m--) {
            int64_t u = h->t - h->due_tokens + 1 + m;
            vreal phi = v_load(h->phi + u % s->fold * s->padded + h->due * s->block + i);
            v_store(h->take + m * s->block + i, keep * phi);
            if (s->decay) keep *= 1 - phi;
        }
        v_store(h->keep + i, keep);
    }
}

enum { TILE = 8 }; /* vectors of a row that stay in registers */

/* row [D] of the due block, its i-th slot: row = keep row + sum_m take_m token_m. */
static void update_row(const head *h, int64_t i, int64_t D, const real *ring, real *row)
{
    const int64_t fold = h->s->fold, block = h->s->block, n = h->due_tokens;
    const int64_t first =
        h->at + 1 >= n ? h->at + 1 - n : h->at + 1 - n + fold; /* of the oldest token missed */
    const real keep = h->keep[i], *take = h->take + i;
    int64_t d = 0;
    for (; d + TILE * VL <= D; d += TILE * VL) {
        vreal acc[TILE];
        for (int e = 0; e < TILE; e++) acc[e] = keep * v_load(row + d + e * VL);
        for (int64_t m = 0, u = first; m < n; m++, u = u + 1 == fold ? 0 : u + 1) {
            const real *token = ring + u * D + d;
            for (int e = 0; e < TILE; e++) acc[e] += take[m * block] * v_load(token + e * VL);
        }
        for (int e = 0; e < TILE; e++) v_store(row + d + e * VL, acc[e]);
    }
    for (; d + VL <= D; d += VL) {
        vreal acc = keep * v_load(row + d);
        for (int64_t m = 0, u = first; m < n; m++, u = u + 1 == fold ? 0 : u + 1)
            acc += take[m * block] * v_load(ring + u * D + d);
        v_store(row + d, acc);
    }
    for (; d < D; d++) {
        real acc = keep * row[d];
        for (int64_t m = 0, u = first; m < n; m++, u = u + 1 == fold ? 0 : u + 1)
            acc += take[m * block] * ring[u * D + d];
        row[d] = acc;
    }
}

/* ---- reading K
 * -------------------------------------------------------------------------------------------------- */

static real dot(const real *a, const real *b, int64_t n)
{
    vreal sum = v_zero();
    int64_t i = 0;
    for (; i + VL <= n; i += VL) sum += v_load(a + i) * v_load(b + i);
    real rest = 0;
    for (; i < n; i++) rest += a[i] * b[i];
    return v_sum(sum) + rest;
}

/* Eight rows at once: the query is loaded once, and the chains of additions overlap. */
static void dot8(const real *q, const real *rows, int64_t n, real *out)
{
    vreal sum[8];
    for (int r = 0; r < 8; r++) sum[r] = v_zero();
    int64_t i = 0;
    for (; i + VL <= n; i += VL) {
        vreal x = v_load(q + i);
        for (int r = 0; r < 8; r++) sum[r] += x * v_load(rows + r * n + i);
    }
    v_sum8(sum, out);
    for (; i < n; i++)
        for (int r = 0; r < 8; r++) out[r] += q[i] * rows[r * n + i];
}

/* Fetches n elements towards the core's own cache. */
static inline void fetch(const real *from, int64_t n)
{
    for (int64_t i = 0; i < n; i += 64 / (int64_t)sizeof(real)) __builtin_prefetch(from + i, 0, 2);
}

static void read_keys(const head *h, int64_t group)
{
    const bla_step_shape *s = h->s;
    for (int64_t from = 0; from < s->S; from += BLA_STEP_ALIGN) {
        int64_t end = from + BLA_STEP_ALIGN < s->S ? from + BLA_STEP_ALIGN : s->S;
        if (from / s->block == h->due)
            for (int64_t j = from; j < end; j++)
                update_row(h, j - h->due * s->block, s->Dk, h->ring_k, h->k + j * s->Dk);
        fetch(h->v + from * s->Dv, (end - from) * s->Dv);
        for (int64_t g = 0; g < group; g++) {
            const real *q = h->q + g * s->Dk;
            real *out = h->logits + g * s->padded;
            for (int64_t j = from; j < end; j += 8) {
                int64_t first = j + 8 <= end ? j : end - 8; /* the last rows overlap the eight before them */
                if (first >= 0)
                    dot8(q, h->k + first * s->Dk, s->Dk, out + first);
                else
                    for (int64_t r = j; r < end; r++) out[r] = dot(q, h->k + r * s->Dk, s->Dk);
            }
        }
    }
}

/* ---- from logits to weights
 * ------------------------------------------------------------------------------------- */

static void apply_pending(const head *h, real *logits)
{
    const bla_step_shape *s = h->s;
    for (int64_t r = 0; r < s->n_blocks; r++) {
        int64_t pending = h->missed[r], end = (r + 1) * s->block < s->padded ? (r + 1) * s->block : s->padded;
        if (pending == 0) continue;
        for (int64_t j = r * s->block; j < end; j += VL) {
            vreal l = v_load(logits + j);
            int64_t u = (h->t - pending + 1) % s->fold;
            for (int64_t m = 0; m < pending; m++, u = u + 1 == s->fold ? 0 : u + 1) {
                vreal phi = v_load(h->phi + u * s->padded + j);
                l += s->decay ? phi * (h->scores[u] - l) : phi * h->scores[u];
            }
            v_store(logits + j, l);
        }
    }
}

/* scores[u] = sum_j w_j phi_u[j] (later gates), and w_j loses what later tokens overwrote. Newest token
 * first. */
static void split_weights(const head *h, int64_t held, real *w)
{
    const bla_step_shape *s = h->s;
    memset(h->partial, 0, (size_t)(s->fold * VL) * sizeof(real));
    for (int64_t r = 0; r < s->n_blocks; r++) {
        int64_t pending = h->missed[r], end = (r + 1) * s->block < s->padded ? (r + 1) * s->block : s->padded;
        for (int64_t j = r * s->block; j < end; j += VL) {
            vreal x = v_load(w + j);
            for (int64_t m = 0, u = h->at; m < pending; m++, u = u == 0 ? s->fold - 1 : u - 1) {
                vreal part = x * v_load(h->phi + u * s->padded + j);
                v_store(h->partial + u * VL, v_load(h->partial + u * VL) + part);
                if (s->decay) x -= part;
            }
            v_store(w + j, x);
        }
    }
    for (int64_t m = 0, u = h->at; m < held; m++, u = u == 0 ? s->fold - 1 : u - 1)
        h->scores[u] = v_sum(v_load(h->partial + u * VL));
}

/* x [padded] <- sum_i phi_t[(i + j) mod S] x_i, the relative grid's mix; zero beyond S. */
static void mix(const head *h, real *x)
{
    const bla_step_shape *s = h->s;
    real *twice = h->spare; /* [2 S + VL <= 2 padded + ...] */
    memcpy(twice, h->phi + h->at * s->padded, (size_t)s->S * sizeof(real));
    memcpy(twice + s->S, twice, (size_t)s->S * sizeof(real));
    real *out = h->spare + 2 * s->padded;
    int64_t j = 0;
    for (; j + VL <= s->S; j += VL) {
        vreal sum = v_zero();
        for (int64_t i = 0; i < s->S; i++) sum += x[i] * v_load(twice + i + j);
        v_store(out + j, sum);
    }
    for (; j < s->S; j++) {
        real sum = 0;
        for (int64_t i = 0; i < s->S; i++) sum += x[i] * twice[i + j];
        out[j] = sum;
    }
    memcpy(x, out, (size_t)s->S * sizeof(real));
}

/* x [padded] becomes the softmax of scale * x over the first `visible`, 0 elsewhere. */
static void softmax(const bla_step_shape *s, int64_t visible, real *x)
{
    for (int64_t j = visible; j < s->padded; j++) x[j] = -INFINITY;
    vreal top = v_set1(-INFINITY), sum = v_zero();
    real scale = (real)s->scale;
    for (int64_t j = 0; j < s->padded; j += VL) {
        vreal y = scale * v_load(x + j);
        v_store(x + j, y);
        top = v_max(top, y);
    }
    real high = v_hmax(top);
    for (int64_t j = 0; j < s->padded; j += VL) {
        vreal y = v_exp(v_load(x + j) - high);
        v_store(x + j, y);
        sum += y;
    }
    real share = 1 / v_sum(sum);
    for (int64_t j = 0; j < s->padded; j += VL) v_store(x + j, share * v_load(x + j));
}

/* ---- reading V
 * -------------------------------------------------------------------------------------------------- */

/* sum [n] += sum over `count` rows of w_i row_i; rows are D apart. Columns in tiles that stay in registers.
 */
static void add_rows(const real *w, const real *rows, int64_t count, int64_t D, real *sum)
{
    int64_t d = 0;
    for (; d + TILE * VL <= D; d += TILE * VL) {
        vreal acc[TILE];
        for (int e = 0; e < TILE; e++) acc[e] = v_load(sum + d + e * VL);
        for (int64_t i = 0; i < count; i++)
            for (int e = 0; e < TILE; e++) acc[e] += w[i] * v_load(rows + i * D + d + e * VL);
        for (int e = 0; e < TILE; e++) v_store(sum + d + e * VL, acc[e]);
    }
    for (; d + VL <= D; d += VL) {
        vreal acc = v_load(sum + d);
        for (int64_t i = 0; i < count; i++) acc += w[i] * v_load(rows + i * D + d);
        v_store(sum + d, acc);
    }
    for (; d < D; d++)
        for (int64_t i = 0; i < count; i++) sum[d] += w[i] * rows[i * D + d];
}

static void read_values(const head *h, int64_t group)
{
    const bla_step_shape *s = h->s;
    for (int64_t from = 0; from < s->S; from += BLA_STEP_ALIGN) {
        int64_t end = from + BLA_STEP_ALIGN < s->S ? from + BLA_STEP_ALIGN : s->S;
        if (from / s->block == h->due)
            for (int64_t j = from; j < end; j++)
                update_row(h, j - h->due * s->block, s->Dv, h->ring_v, h->v + j * s->Dv);
        if (h->ahead > 0) fetch(h->k + (s->S + from) * s->Dk, (end - from) * s->Dk);
        for (int64_t g = 0; g < group; g++)
            add_rows(h->logits + g * s->padded + from, h->v + from * s->Dv, end - from, s->Dv,
                     h->sums + g * round_up(s->Dv));
    }
}

/* ---- one step
 * --------------------------------------------------------------------------------------------------- */

static head open_head(const bla_step_shape *s, const bla_step *a, int64_t b, int64_t kv, real *share)
{
    const bla_step_sequence *x = &a->sequences[b];
    int64_t group = s->H / s->Hkv;
    head h = {.s = s, .x = x, .t = x->position, .at = x->position % s->fold, .due = -1};
    h.phi = (const real *)x->ring_phi + s->period_of[kv] * s->fold * s->padded;
    h.q = (const real *)a->q + (b * s->H + kv * group) * s->Dk;
    h.k = (real *)x->k + kv * s->S * s->Dk, h.v = (real *)x->v + kv * s->S * s->Dv;
    h.ring_k = (real *)x->ring_k + kv * s->fold * s->Dk, h.ring_v = (real *)x->ring_v + kv * s->fold * s->Dv;
    h.keep = share, share += s->block;
    h.take = share, share += s->fold * s->block;
    h.logits = share, share += group * s->padded;
    h.spare = share, share += 3 * s->padded;
    h.scores = share, share += round_up(s->fold);
    h.partial = share, share += s->fold * VL;
    h.sums = share, share += group * round_up(s->Dv);
    h.missed = (int64_t *)(((uintptr_t)share + 63) & ~(uintptr_t)63);
    int64_t held = h.t + 1 - x->empty_at;
    for (int64_t r = 0; r < s->n_blocks; r++) {
        int64_t since = h.at - bla_step_phase(s, r);
        if (since == 0) h.due = r, h.due_tokens = held < s->fold ? held : s->fold;
        since += since < 0 ? s->fold : 0;
        h.missed[r] = since < held ? since : held;
    }
    return h;
}

static void step_head(const bla_step *a, head h, int64_t b, int64_t kv)
{
    const bla_step_shape *s = h.s;
    const int64_t group = s->H / s->Hkv, seen = h.t + 1 - h.x->empty_at;
    const int64_t held = seen < s->fold ? seen : s->fold; /* ring entries in use */
    memcpy(h.ring_k + h.at * s->Dk, (const real *)a->k + (b * s->Hkv + kv) * s->Dk,
           (size_t)s->Dk * sizeof(real));
    memcpy(h.ring_v + h.at * s->Dv, (const real *)a->v + (b * s->Hkv + kv) * s->Dv,
           (size_t)s->Dv * sizeof(real));
    if (h.due >= 0) due_coefficients(&h);
    read_keys(&h, group);
    int64_t visible = bla_step_visible(s, s->period_of[kv], h.t);
    memset(h.sums, 0, (size_t)(group * round_up(s->Dv)) * sizeof(real));
    for (int64_t g = 0; g < group; g++) {
        real *w = h.logits + g * s->padded;
        for (int64_t j = s->S; j < s->padded; j++) w[j] = 0;
        for (int64_t m = 0, u = h.at; m < held; m++, u = u == 0 ? s->fold - 1 : u - 1)
            h.scores[u] = dot(h.q + g * s->Dk, h.ring_k + u * s->Dk, s->Dk);
        apply_pending(&h, w);
        if (s->relative) mix(&h, w);
        softmax(s, visible, w);
        if (s->relative) mix(&h, w);
        split_weights(&h, held, w);
        for (int64_t m = 0, u = h.at; m < held; m++, u = u == 0 ? s->fold - 1 : u - 1)
            add_rows(&h.scores[u], h.ring_v + u * s->Dv, 1, s->Dv, h.sums + g * round_up(s->Dv));
    }
    read_values(&h, group);
    for (int64_t g = 0; g < group; g++)
        memcpy((real *)a->o + (b * s->H + kv * group + g) * s->Dv, h.sums + g * round_up(s->Dv),
               (size_t)s->Dv * sizeof(real));
}

static void step_task(void *context, int64_t task, int worker)
{
    const step_job *job = context;
    const bla_step_shape *s = job->shape;
    const bla_step *a = job->args;
    int64_t first = task * job->heads, b = first / s->Hkv, kv = first % s->Hkv;
    for (int64_t i = 0; i < job->heads; i++) {
        head h = open_head(s, a, b, kv + i, (real *)((char *)a->workspace + (size_t)worker * share_bytes(s)));
        h.ahead = job->heads - 1 - i;
        step_head(a, h, b, kv + i);
    }
}

static void run(const bla_step_shape *shape, const bla_step *args)
{
    /* Whole sequences where there are enough of them to share out evenly, else single heads. */
    step_job job = {shape, args, args->count >= 8 * shape->threads ? shape->Hkv : 1};
    int64_t rows = args->count * shape->n_periods;
    threads_run(shape->threads, (rows + ROWS_PER_TASK - 1) / ROWS_PER_TASK, weights_task, &job);
    threads_run(shape->threads, args->count * shape->Hkv / job.heads, step_task, &job);
}

#define NAME_TEXT_(suffix) #suffix
#define NAME_TEXT(suffix)  NAME_TEXT_(suffix)

const bla_step_kernel VARIANT(bla_step_kernel) = {
    .name = NAME_TEXT(BLURRY_VARIANT_SUFFIX),
    .dtype = REAL_IS_FLOAT ? BLURRY_F32 : BLURRY_F64,
    .workspace = workspace,
    .run = run,
};
