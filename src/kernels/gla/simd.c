/* Gated linear attention in chunks of C tokens, every term a small matrix product. With G_t the sum of gates
 * since the chunk's start (per key channel), q~ = q e^G, k~ = k e^{-G}, k^ = k e^{G_end - G}: o  = scale (q~
 * h0 + lower(q~ k~^T) v),    h1 = e^{G_end} h0 + k^^T v e^{-G} must stay finite: a chunk ends before its
 * gates fade any channel by more than FADE_MOST, or after one token. Padding lanes have g = 0 and hold zeros.
 */
#include "kernels/chunk.h"
#include "kernels/gla/gla.h"

#include "base/threads.h"

enum { C = 64 };
#define FADE_MOST ((real)(REAL_IS_FLOAT ? 60 : 500))

typedef struct scratch {
    real *h;                         /* state [K, Vp] */
    real *eG, *q, *k, *qt, *kt, *kh; /* [C, Kp]: e^G, q, k, q~, k~, k^ */
    real *ktT;                       /* k~ transposed [K, C] */
    real *fade;                      /* e^{G_end} [Kp] */
    real *v, *o;                     /* [C, Vp] */
    real *A;                         /* [C, C] lower triangular */
    /* backward only */
    real *D, *DT, *hT;          /* gradient of the state [K, Vp], both transposed [V, Kp] */
    real *d_o, *vT, *dA;        /* [C, Vp], [V, C], [C, C] */
    real *dqt, *dkt, *dkh, *dv; /* [C, Kp] three times, [C, Vp] */
    real *own;                  /* [Kp] */
} scratch;

static size_t layout(const gla_args *a, char *base, scratch *s)
{
    int64_t K = a->dim_k, V = a->dim_v, Kp = chunk_pad(K), Vp = chunk_pad(V);
    chunk_arena next = {base, 0};
    real **by_key[] = {&s->eG, &s->q, &s->k, &s->qt, &s->kt, &s->kh, &s->dqt, &s->dkt, &s->dkh};
    real **by_value[] = {&s->v, &s->o, &s->d_o, &s->dv};
    for (int i = 0; i < 9; i++) *by_key[i] = chunk_take(&next, C * Kp);
    for (int i = 0; i < 4; i++) *by_value[i] = chunk_take(&next, C * Vp);
    s->h = chunk_take(&next, K * Vp);
    s->D = chunk_take(&next, K * Vp);
    s->DT = chunk_take(&next, V * Kp);
    s->hT = chunk_take(&next, V * Kp);
    s->ktT = chunk_take(&next, K * C);
    s->vT = chunk_take(&next, V * C);
    s->A = chunk_take(&next, C * C);
    s->dA = chunk_take(&next, C * C);
    s->fade = chunk_take(&next, Kp);
    s->own = chunk_take(&next, Kp);
    return next.used;
}

typedef struct head {
    const gla_args *a;
    int64_t K, V, Kp, Vp, H, at, state; /* at: index of the head's first token in units of [token, head] */
    real scale;
    scratch s;
} head;

typedef struct job {
    const gla_args *a;
    char *scratch;
    size_t per_worker;
} job;

static head head_of(const job *j, int64_t task, int worker)
{
    const gla_args *a = j->a;
    head x = {.a = a,
              .K = a->dim_k,
              .V = a->dim_v,
              .Kp = chunk_pad(a->dim_k),
              .Vp = chunk_pad(a->dim_v),
              .H = a->heads,
              .at = task / a->heads * a->length * a->heads + task % a->heads,
              .state = task,
              .scale = (real)a->scale};
    layout(a, j->scratch + (size_t)worker * j->per_worker, &x.s);
    return x;
}

#define TOKEN(name, t, width)     ((const real *)x->a->name + (x->at + (t)*x->H) * (width))
#define TOKEN_OUT(name, t, width) ((real *)x->a->name + (x->at + (t)*x->H) * (width))

/* How many tokens from t0 on fade no channel by more than FADE_MOST in all; at least one, at most `most`. */
static int64_t chunk_length(const head *x, int64_t t0, int64_t most)
{
    chunk_zero(x->s.fade, x->Kp);
    for (int64_t n = 0; n < most; n++) {
        const real *g = TOKEN(g, t0 + n, x->K);
        vreal least = v_zero();
        for (int64_t i = 0, left; left = x->K - i, left > 0; i += VL) {
            vreal G = v_load(x->s.fade + i) + v_load_up_to(g + i, left);
            v_store(x->s.fade + i, G);
            least = v_max(least, -G);
        }
        if (v_hmax(least) > FADE_MOST) return n > 0 ? n : 1;
    }
    return most;
}

/* q and k of tokens t0 .. t0+n-1 under the gates. */
static void gates(const head *x, int64_t t0, int64_t n)
{
    const scratch *s = &x->s;
    for (int64_t i = 0, left; left = x->K - i, left > 0; i += VL) {
        vreal G = v_zero(),
              floor = v_set1(-FADE_MOST - 10); /* one harsh token alone: e^{G_end} is 0 to rounding */
        for (int64_t t = 0; t < n; t++) {
            G += v_load_up_to(TOKEN(g, t0 + t, x->K) + i, left);
            v_store(s->eG + t * x->Kp + i, G); /* G itself for now */
        }
        vreal end = v_max(G, floor);
        for (int64_t t = 0; t < n; t++) {
            int64_t e = t * x->Kp + i;
            vreal Gt = v_max(v_load(s->eG + e), floor), up = v_exp(Gt);
            vreal q = v_load_up_to(TOKEN(q, t0 + t, x->K) + i, left),
                  k = v_load_up_to(TOKEN(k, t0 + t, x->K) + i, left);
            v_store(s->eG + e, up);
            v_store(s->q + e, q);
            v_store(s->k + e, k);
            v_store(s->qt + e, q * up);
            v_store(s->kt + e, k * v_exp(-Gt));
            v_store(s->kh + e, k * v_exp(end - Gt));
        }
        v_store(s->fade + i, v_exp(end));
    }
    chunk_rows(TOKEN(v, t0, x->V), x->H * x->V, n, x->V, s->v, x->Vp);
    chunk_columns(s->kt, x->Kp, n, x->K, s->ktT, chunk_pad(n));
}

static void chunk_scores(const head *x, int64_t n)
{
    int64_t Cn = chunk_pad(n);
    tile_gemm_lower_c(n, Cn, x->K, chunk_a(x->s.qt, x->Kp), x->s.ktT, Cn, x->s.A, C);
}

static void scale_rows(real *m, int64_t rows, int64_t ld, const real *factor)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < ld; i += VL) v_store(m + r * ld + i, v_load(m + r * ld + i) * factor[r]);
}

static void chunk_advance(const head *x, int64_t n)
{
    scale_rows(x->s.h, x->K, x->Vp, x->s.fade);
    tile_gemm(x->K, x->Vp, n, chunk_at(x->s.kh, x->Kp), x->s.v, x->Vp, x->s.h, x->Vp, 1);
}

static void forward_chunk(const head *x, int64_t t0, int64_t n)
{
    const scratch *s = &x->s;
    gates(x, t0, n);
    chunk_scores(x, n);
    tile_gemm(n, x->Vp, x->K, chunk_a(s->qt, x->Kp), s->h, x->Vp, s->o, x->Vp, 0);
    tile_gemm_lower_a(n, x->Vp, n, chunk_a(s->A, C), s->v, x->Vp, s->o, x->Vp, 1);
    for (int64_t i = 0; i < n * x->Vp; i += VL) v_store(s->o + i, v_load(s->o + i) * x->scale);
    chunk_rows_out(s->o, x->Vp, n, x->V, TOKEN_OUT(o, t0, x->V), x->H * x->V, 0);
    chunk_advance(x, n);
}

/* States at multiples of C are saved padded, as they are here; chunks never cross them. */
static real *saved_at(const head *x, int64_t t0)
{
    return (real *)x->a->saved + (x->state * kernel_blocks(x->a->length, C) + t0 / C) * x->K * x->Vp;
}

static void forward_task(void *context, int64_t task, int worker)
{
    head own = head_of(context, task, worker), *x = &own;
    const gla_args *a = x->a;
    int64_t size = x->K * x->V;
    if (a->state_in)
        chunk_rows((const real *)a->state_in + task * size, x->V, x->K, x->V, x->s.h, x->Vp);
    else
        chunk_zero(x->s.h, x->K * x->Vp);
    for (int64_t t0 = 0, n; t0 < a->length; t0 += n) {
        if (a->saved && t0 % C == 0) memcpy(saved_at(x, t0), x->s.h, (size_t)(x->K * x->Vp) * sizeof(real));
        n = chunk_length(x, t0, kernel_min(C - t0 % C, a->length - t0));
        forward_chunk(x, t0, n);
    }
    if (a->state_out) chunk_rows_out(x->s.h, x->Vp, x->K, x->V, (real *)a->state_out + task * size, x->V, 0);
}

KERNEL(gla_forward, gla_args)
{
    scratch s;
    job j = {a, run->scratch, layout(a, NULL, &s)};
    threads_run(run->threads, a->batch * a->heads, forward_task, &j);
}

KERNEL_SIZES(gla_sizes, gla_args)
{
    scratch s;
    int64_t heads = a->batch * a->heads, padded = a->dim_k * chunk_pad(a->dim_v);
    *sizes = (kernel_sizes){
        .state = kernel_round64((size_t)(heads * a->dim_k * a->dim_v) * sizeof(real)),
        .saved = kernel_round64((size_t)(heads * kernel_blocks(a->length, C) * padded) * sizeof(real)),
        .scratch = (size_t)run->threads * layout(a, NULL, &s)};
}

/* ---- backward ---- */

/* d_q, d_k, d_g from the gradients of q~, k~, k^: q and k enter through e^G with opposite signs. */
static void gates_backward(const head *x, int64_t t0, int64_t n)
{
    const scratch *s = &x->s;
    for (int64_t i = 0, left; left = x->K - i, left > 0; i += VL) {
        vreal later = v_load(s->own + i), fade = v_load(s->fade + i);
        for (int64_t t = 0; t < n; t++)
            later += v_load(s->kh + t * x->Kp + i) * v_load(s->dkh + t * x->Kp + i);
        for (int64_t t = n - 1; t >= 0; t--) {
            int64_t e = t * x->Kp + i;
            vreal up = v_load(s->eG + e), dqt = v_load(s->dqt + e), dkt = v_load(s->dkt + e),
                  dkh = v_load(s->dkh + e);
            later += v_load(s->qt + e) * dqt - v_load(s->kt + e) * dkt - v_load(s->kh + e) * dkh;
            v_store_up_to(TOKEN_OUT(d_q, t0 + t, x->K) + i, dqt * up, left);
            v_store_up_to(TOKEN_OUT(d_k, t0 + t, x->K) + i, (dkt + dkh * fade) / up, left);
            v_store_up_to(TOKEN_OUT(d_g, t0 + t, x->K) + i, later, left);
        }
    }
}

/* own = e^{G_end} sum_j h0 D; then D moves to the chunk's start: e^{G_end} D + scale q~^T d_o. */
static void state_backward(const head *x, int64_t n)
{
    const scratch *s = &x->s;
    for (int64_t i = 0; i < x->K; i++) {
        vreal sum = v_zero();
        for (int64_t j = 0; j < x->Vp; j += VL)
            sum += v_load(s->h + i * x->Vp + j) * v_load(s->D + i * x->Vp + j);
        s->own[i] = v_sum(sum) * s->fade[i];
    }
    scale_rows(s->D, x->K, x->Vp, s->fade);
    tile_gemm(x->K, x->Vp, n, chunk_at(s->qt, x->Kp), s->d_o, x->Vp, s->D, x->Vp, 1);
}

static void backward_chunk(const head *x, int64_t t0, int64_t n)
{
    const scratch *s = &x->s;
    int64_t Cn = chunk_pad(n), K = x->K, V = x->V, Kp = x->Kp, Vp = x->Vp;
    gates(x, t0, n);
    chunk_scores(x, n);
    chunk_rows(TOKEN(d_o, t0, V), x->H * V, n, V, s->d_o, Vp);
    for (int64_t i = 0; i < n * Vp; i += VL) v_store(s->d_o + i, v_load(s->d_o + i) * x->scale);
    chunk_columns(TOKEN(v, t0, V), x->H * V, n, V, s->vT, Cn);
    chunk_columns(s->h, Vp, K, V, s->hT, Kp);
    chunk_columns(s->D, Vp, K, V, s->DT, Kp);
    tile_gemm_lower_c(n, Cn, V, chunk_a(s->d_o, Vp), s->vT, Cn, s->dA, C);
    tile_gemm(n, Kp, V, chunk_a(s->d_o, Vp), s->hT, Kp, s->dqt, Kp, 0);
    tile_gemm_lower_a(n, Kp, n, chunk_a(s->dA, C), s->kt, Kp, s->dqt, Kp, 1);
    tile_gemm_upper_a(n, Kp, n, chunk_at(s->dA, C), s->qt, Kp, s->dkt, Kp, 0);
    tile_gemm(n, Kp, V, chunk_a(s->v, Vp), s->DT, Kp, s->dkh, Kp, 0);
    tile_gemm(n, Vp, K, chunk_a(s->kh, Kp), s->D, Vp, s->dv, Vp, 0);
    tile_gemm_upper_a(n, Vp, n, chunk_at(s->A, C), s->d_o, Vp, s->dv, Vp, 1);
    state_backward(x, n);
    gates_backward(x, t0, n);
    chunk_rows_out(s->dv, Vp, n, V, TOKEN_OUT(d_v, t0, V), x->H * V, 0);
}

/* Chunks of the C tokens from `block` backwards, each from the state at its start. Usually there is one. */
static void backward_block(const head *x, int64_t block, int64_t count)
{
    int64_t starts[C + 1], chunks = 0, t = 0;
    for (; t < count; chunks++) {
        starts[chunks] = t;
        t += chunk_length(x, block + t, count - t);
    }
    starts[chunks] = count;
    for (int64_t c = chunks - 1; c >= 0; c--) {
        memcpy(x->s.h, saved_at(x, block), (size_t)(x->K * x->Vp) * sizeof(real));
        for (int64_t i = 0; i < c; i++) {
            gates(x, block + starts[i], starts[i + 1] - starts[i]);
            chunk_advance(x, starts[i + 1] - starts[i]);
        }
        backward_chunk(x, block + starts[c], starts[c + 1] - starts[c]);
    }
}

static void backward_task(void *context, int64_t task, int worker)
{
    head own = head_of(context, task, worker), *x = &own;
    chunk_zero(x->s.D, x->K * x->Vp);
    chunk_zero(x->s.own, x->Kp);
    for (int64_t block = (kernel_blocks(x->a->length, C) - 1) * C; block >= 0; block -= C)
        backward_block(x, block, kernel_min(C, x->a->length - block));
}

KERNEL(gla_backward, gla_args)
{
    scratch s;
    job j = {a, run->scratch, layout(a, NULL, &s)};
    threads_run(run->threads, a->batch * a->heads, backward_task, &j);
}
