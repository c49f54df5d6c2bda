/* Gated slot attention in chunks of C tokens, every term a small matrix product. With G_t the sum of gates
 * since the chunk's start (per slot), w = 1 - e^g, w~_u = w_u e^{-G_u} and w^_u = w_u e^{G_end - G_u}:
 *     logits_t = scale e^{G_t} (q_t K0^T + sum_{u<=t} (q_t.k_u) w~_u)
 *     o_t      = (p_t e^{G_t}) V0 + sum_{u<=t} ((p_t e^{G_t}).w~_u) v_u
 *     K1       = e^{G_end} K0 + w^^T k,   V1 likewise
 * e^{G} e^{-G} loses |G| units in the last place: a chunk ends before its gates fade any slot by more than
 * FADE_MOST, or after one token (abc's very first, which fades everything). Padding lanes have g = 0, so they
 * keep what they hold, zeros. K is kept transposed, [Dk, Sp]. */
#include "kernels/chunk.h"
#include "kernels/slots/slots.h"

#include "base/threads.h"

enum { C = 64 };
#define FADE_MOST ((real)(REAL_IS_FLOAT ? 16 : 200))

typedef struct scratch {
    real *KT, *V;                  /* state: [K, Sp], [S, Vp] */
    real *eG, *keep, *w, *wt, *wh; /* [C, Sp]: e^G, e^g, w, w~, w^ */
    real *wtT;                     /* w~ transposed [S, C] */
    real *fade;                    /* e^{G_end} [Sp] */
    real *q, *k, *v, *kT;          /* [C, Kp], [C, Kp], [C, Vp], [K, C] */
    real *QK, *PW;                 /* [C, C] lower triangular */
    real *P, *PG, *o;              /* [C, Sp] weights, weights times e^G; [C, Vp] */
    /* backward only */
    real *DK, *DV, *DKT, *DVT;      /* gradients of the state: [S, Kp], [S, Vp], [K, Sp], [V, Sp] */
    real *K0, *V0T;                 /* [S, Kp], [V, Sp] */
    real *d_o, *vT;                 /* [C, Vp], [V, C] */
    real *dPW, *dQK;                /* [C, C] */
    real *dP, *dX, *dG, *dwt, *dwh; /* [C, Sp] */
    real *dq, *dk, *dv;             /* [C, Kp], [C, Kp], [C, Vp] */
} scratch;

static size_t layout(const slots_args *a, char *base, scratch *s)
{
    int64_t K = a->dim_k, V = a->dim_v, S = a->slots, Kp = chunk_pad(K), Vp = chunk_pad(V), Sp = chunk_pad(S);
    chunk_arena next = {base, 0};
    real **by_slot[] = {&s->eG, &s->keep, &s->w,  &s->wt, &s->wh,  &s->P,
                        &s->PG, &s->dP,   &s->dX, &s->dG, &s->dwt, &s->dwh};
    real **by_key[] = {&s->q, &s->k, &s->dq, &s->dk}, **by_value[] = {&s->v, &s->o, &s->d_o, &s->dv};
    real **square[] = {&s->QK, &s->PW, &s->dPW, &s->dQK};
    for (size_t i = 0; i < sizeof by_slot / sizeof *by_slot; i++) *by_slot[i] = chunk_take(&next, C * Sp);
    for (int i = 0; i < 4; i++) {
        *by_key[i] = chunk_take(&next, C * Kp);
        *by_value[i] = chunk_take(&next, C * Vp);
        *square[i] = chunk_take(&next, C * C);
    }
    s->KT = chunk_take(&next, K * Sp);
    s->V = chunk_take(&next, S * Vp);
    s->wtT = chunk_take(&next, S * C);
    s->fade = chunk_take(&next, Sp);
    s->kT = chunk_take(&next, K * C);
    s->vT = chunk_take(&next, V * C);
    s->DK = chunk_take(&next, S * Kp);
    s->DV = chunk_take(&next, S * Vp);
    s->DKT = chunk_take(&next, K * Sp);
    s->DVT = chunk_take(&next, V * Sp);
    s->K0 = chunk_take(&next, S * Kp);
    s->V0T = chunk_take(&next, V * Sp);
    return next.used;
}

typedef struct head {
    const slots_args *a;
    int64_t K, V, S, Kp, Vp, Sp, H, at,
        state; /* at: index of the head's first token in units of [token, head] */
    scratch s;
} head;

typedef struct job {
    const slots_args *a;
    char *scratch;
    size_t per_worker;
} job;

static head head_of(const job *j, int64_t task, int worker)
{
    const slots_args *a = j->a;
    head x = {.a = a,
              .K = a->dim_k,
              .V = a->dim_v,
              .S = a->slots,
              .Kp = chunk_pad(a->dim_k),
              .Vp = chunk_pad(a->dim_v),
              .Sp = chunk_pad(a->slots),
              .H = a->heads,
              .at = task / a->heads * a->length * a->heads + task % a->heads,
              .state = task};
    layout(a, j->scratch + (size_t)worker * j->per_worker, &x.s);
    return x;
}

#define TOKEN(name, t, width)     ((const real *)x->a->name + (x->at + (t)*x->H) * (width))
#define TOKEN_OUT(name, t, width) ((real *)x->a->name + (x->at + (t)*x->H) * (width))

/* How many tokens from t0 on fade no slot by more than FADE_MOST in all; at least one, at most `most`. */
static int64_t chunk_length(const head *x, int64_t t0, int64_t most)
{
    const real *sum = x->s.fade;
    chunk_zero(x->s.fade, x->Sp);
    for (int64_t n = 0; n < most; n++) {
        const real *g = TOKEN(g, t0 + n, x->S);
        vreal least = v_zero();
        for (int64_t j = 0, left; left = x->S - j, left > 0; j += VL) {
            vreal G = v_load(sum + j) + v_load_up_to(g + j, left);
            v_store(x->s.fade + j, G);
            least = v_max(least, -G);
        }
        if (v_hmax(least) > FADE_MOST) return n > 0 ? n : 1;
    }
    return most;
}

/* Gates of tokens t0 .. t0+n-1 in all their forms. A single harsh token is scaled so that w~ e^G = w stays
 * exact. */
static void gates(const head *x, int64_t t0, int64_t n)
{
    const scratch *s = &x->s;
    for (int64_t j = 0, left; left = x->S - j, left > 0; j += VL) {
        vreal G = v_zero();
        for (int64_t t = 0; t < n; t++) {
            vreal g = v_load_up_to(TOKEN(g, t0 + t, x->S) + j, left), keep = v_exp(g);
            /* 1 - e^g without cancellation for small |g|. */
            vreal small =
                -g *
                (1 + g * ((real)0.5 + g * ((real)(1. / 6) + g * ((real)(1. / 24) + g * (real)(1. / 120)))));
            vreal w = v_select((vint)(g > (REAL_IS_FLOAT ? (real)-0.04 : (real)-0.001)), small, 1 - keep);
            G += g;
            v_store(s->keep + t * x->Sp + j, keep);
            v_store(s->w + t * x->Sp + j, w);
            v_store(s->eG + t * x->Sp + j, G); /* G itself for now */
        }
        vreal end = v_max(G, v_set1(-FADE_MOST - 10)); /* one harsh token alone: e^{G_end} is 0 to rounding */
        for (int64_t t = 0; t < n; t++) {
            vreal Gt = v_max(v_load(s->eG + t * x->Sp + j), v_set1(-FADE_MOST - 10)),
                  w = v_load(s->w + t * x->Sp + j);
            v_store(s->eG + t * x->Sp + j, v_exp(Gt));
            v_store(s->wt + t * x->Sp + j, w * v_exp(-Gt));
            v_store(s->wh + t * x->Sp + j, w * v_exp(end - Gt));
        }
        v_store(s->fade + j, v_exp(end));
    }
}

/* Everything of the chunk up to P, PG and PW; wants K0 in KT, V0 in V. */
static void chunk_weights(const head *x, int64_t t0, int64_t n)
{
    const scratch *s = &x->s;
    int64_t Cn = chunk_pad(n);
    real scale = (real)x->a->scale;
    gates(x, t0, n);
    chunk_rows(TOKEN(q, t0, x->K), x->H * x->K, n, x->K, s->q, x->Kp);
    chunk_rows(TOKEN(k, t0, x->K), x->H * x->K, n, x->K, s->k, x->Kp);
    chunk_rows(TOKEN(v, t0, x->V), x->H * x->V, n, x->V, s->v, x->Vp);
    chunk_columns(TOKEN(k, t0, x->K), x->H * x->K, n, x->K, s->kT, Cn);
    chunk_columns(s->wt, x->Sp, n, x->S, s->wtT, Cn);
    tile_gemm_lower_c(n, Cn, x->K, chunk_a(s->q, x->Kp), s->kT, Cn, s->QK, C);
    tile_gemm(n, x->Sp, x->K, chunk_a(s->q, x->Kp), s->KT, x->Sp, s->P, x->Sp, 0);
    tile_gemm_lower_a(n, x->Sp, n, chunk_a(s->QK, C), s->wt, x->Sp, s->P, x->Sp, 1);
    for (int64_t t = 0; t < n; t++) {
        real *p = s->P + t * x->Sp, *pg = s->PG + t * x->Sp, *eG = s->eG + t * x->Sp;
        vreal most = v_set1(-(real)INFINITY), sum = v_zero();
        for (int64_t j = 0; j < x->Sp; j += VL) {
            vreal z = v_load(p + j) * v_load(eG + j) * scale;
            for (int64_t i = x->S - j; i < VL; i++) z[i] = -(real)INFINITY;
            v_store(p + j, z);
            v_store(s->dX + t * x->Sp + j, z); /* backward wants the logits */
            most = v_max(most, z);
        }
        real largest = v_hmax(most);
        for (int64_t j = 0; j < x->Sp; j += VL) {
            vreal e = v_exp(v_load(p + j) - largest);
            v_store(p + j, e);
            sum += e;
        }
        real inverse = 1 / v_sum(sum);
        for (int64_t j = 0; j < x->Sp; j += VL) {
            vreal weight = v_load(p + j) * inverse;
            v_store(p + j, weight);
            v_store(pg + j, weight * v_load(eG + j));
        }
    }
    tile_gemm_lower_c(n, Cn, x->S, chunk_a(s->PG, x->Sp), s->wtT, Cn, s->PW, C);
}

/* state [K or S rows] *= e^{G_end}, then the chunk's own writes. */
static void chunk_advance(const head *x, int64_t n)
{
    const scratch *s = &x->s;
    for (int64_t i = 0; i < x->K; i++)
        for (int64_t j = 0; j < x->Sp; j += VL)
            v_store(s->KT + i * x->Sp + j, v_load(s->KT + i * x->Sp + j) * v_load(s->fade + j));
    for (int64_t j = 0; j < x->S; j++)
        for (int64_t i = 0; i < x->Vp; i += VL)
            v_store(s->V + j * x->Vp + i, v_load(s->V + j * x->Vp + i) * s->fade[j]);
    tile_gemm(x->K, x->Sp, n, chunk_at(s->k, x->Kp), s->wh, x->Sp, s->KT, x->Sp, 1);
    tile_gemm(x->S, x->Vp, n, chunk_at(s->wh, x->Sp), s->v, x->Vp, s->V, x->Vp, 1);
}

static void load_state(const head *x, const real *from)
{
    const scratch *s = &x->s;
    int64_t row = x->K + x->V;
    if (!from) {
        chunk_zero(s->KT, x->K * x->Sp);
        chunk_zero(s->V, x->S * x->Vp);
        return;
    }
    chunk_columns(from, row, x->S, x->K, s->KT, x->Sp);
    chunk_rows(from + x->K, row, x->S, x->V, s->V, x->Vp);
}

/* States at chunk starts are saved as they are here, KT then V; chunks never cross multiples of C. */
static real *saved_at(const head *x, int64_t t0)
{
    int64_t size = x->K * x->Sp + x->S * x->Vp, chunks = kernel_blocks(x->a->length, C);
    return (real *)x->a->saved + (x->state * chunks + t0 / C) * size;
}

static void forward_chunk(const head *x, int64_t t0, int64_t n)
{
    const scratch *s = &x->s;
    chunk_weights(x, t0, n);
    tile_gemm(n, x->Vp, x->S, chunk_a(s->PG, x->Sp), s->V, x->Vp, s->o, x->Vp, 0);
    tile_gemm_lower_a(n, x->Vp, n, chunk_a(s->PW, C), s->v, x->Vp, s->o, x->Vp, 1);
    chunk_rows_out(s->o, x->Vp, n, x->V, TOKEN_OUT(o, t0, x->V), x->H * x->V, 0);
    chunk_advance(x, n);
}

static void store_state(const head *x, real *to)
{
    int64_t row = x->K + x->V;
    for (int64_t j = 0; j < x->S; j++) {
        for (int64_t i = 0; i < x->K; i++) to[j * row + i] = x->s.KT[i * x->Sp + j];
        memcpy(to + j * row + x->K, x->s.V + j * x->Vp, (size_t)x->V * sizeof(real));
    }
}

static void forward_task(void *context, int64_t task, int worker)
{
    head own = head_of(context, task, worker), *x = &own;
    const slots_args *a = x->a;
    int64_t size = x->S * (x->K + x->V);
    load_state(x, a->state_in ? (const real *)a->state_in + task * size : NULL);
    for (int64_t t0 = 0, n; t0 < a->length; t0 += n) {
        if (a->saved && t0 % C == 0) {
            real *to = saved_at(x, t0);
            memcpy(to, x->s.KT, (size_t)(x->K * x->Sp) * sizeof(real));
            memcpy(to + x->K * x->Sp, x->s.V, (size_t)(x->S * x->Vp) * sizeof(real));
        }
        n = chunk_length(x, t0, kernel_min(C - t0 % C, a->length - t0));
        forward_chunk(x, t0, n);
    }
    if (a->state_out) store_state(x, (real *)a->state_out + task * size);
}

KERNEL(slots_forward, slots_args)
{
    scratch s;
    job j = {a, run->scratch, layout(a, NULL, &s)};
    threads_run(run->threads, a->batch * a->heads, forward_task, &j);
}

KERNEL_SIZES(slots_sizes, slots_args)
{
    scratch s;
    int64_t heads = a->batch * a->heads, Sp = chunk_pad(a->slots);
    int64_t padded = a->dim_k * Sp + a->slots * chunk_pad(a->dim_v);
    *sizes = (kernel_sizes){
        .state = kernel_round64((size_t)(heads * a->slots * (a->dim_k + a->dim_v)) * sizeof(real)),
        .saved = kernel_round64((size_t)(heads * kernel_blocks(a->length, C) * padded) * sizeof(real)),
        .scratch = (size_t)run->threads * layout(a, NULL, &s)};
}

/* ---- backward ---- */

/* dX and dG from dP, the gradient of p e^G; dX holds the logits on entry. */
static void softmax_backward(const head *x, int64_t n)
{
    const scratch *s = &x->s;
    real scale = (real)x->a->scale;
    for (int64_t t = 0; t < n; t++) {
        int64_t row = t * x->Sp;
        vreal sum = v_zero();
        for (int64_t j = row; j < row + x->Sp; j += VL) sum += v_load(s->PG + j) * v_load(s->dP + j);
        real mean = v_sum(sum);
        for (int64_t j = row; j < row + x->Sp; j += VL) {
            vreal eG = v_load(s->eG + j), d = v_load(s->dP + j), p = v_load(s->P + j);
            vreal d_logit = p * (d * eG - mean), logit = v_load(s->dX + j);
            v_store(s->dX + j, d_logit * eG * scale);
            v_store(s->dG + j, v_load(s->PG + j) * d + d_logit * logit);
        }
    }
}

/* d_g of the chunk from dG (sums so far), dwt, dwh; own: e^{G_end} (sum K0 DK + V0 DV) per slot, in s->dP's
 * first row. */
static void gate_backward(const head *x, int64_t t0, int64_t n)
{
    const scratch *s = &x->s;
    for (int64_t j = 0, left; left = x->S - j, left > 0; j += VL) {
        vreal later = v_load(s->dP + j), fade = v_load(s->fade + j);
        for (int64_t t = 0; t < n; t++)
            later += v_load(s->wh + t * x->Sp + j) * v_load(s->dwh + t * x->Sp + j);
        for (int64_t t = n - 1; t >= 0; t--) {
            int64_t e = t * x->Sp + j;
            vreal eG = v_load(s->eG + e), keep = v_load(s->keep + e);
            vreal at_wt = v_load(s->wt + e) * v_load(s->dwt + e),
                  at_wh = v_load(s->wh + e) * v_load(s->dwh + e);
            vreal d_w = v_load(s->dwt + e) / eG + v_load(s->dwh + e) * (fade / eG);
            later += v_load(s->dG + e) - at_wt - at_wh;
            v_store_up_to(TOKEN_OUT(d_g, t0 + t, x->S) + j, later - d_w * keep, left);
        }
    }
}

/* dP's first row = e^{G_end} (sum_i K0 DK + sum_i V0 DV); then D moves to the chunk's start. */
static void state_backward(const head *x, int64_t n)
{
    const scratch *s = &x->s;
    for (int64_t j = 0; j < x->Sp; j += VL) {
        vreal sum = v_zero();
        for (int64_t i = 0; i < x->K; i++)
            sum += v_load(s->KT + i * x->Sp + j) * v_load(s->DKT + i * x->Sp + j);
        for (int64_t i = 0; i < x->V; i++)
            sum += v_load(s->V0T + i * x->Sp + j) * v_load(s->DVT + i * x->Sp + j);
        v_store(s->dP + j, sum * v_load(s->fade + j));
    }
    for (int64_t j = 0; j < x->S; j++) {
        real *dk = s->DK + j * x->Kp, *dv = s->DV + j * x->Vp, fade = s->fade[j];
        for (int64_t i = 0; i < x->Kp; i += VL) v_store(dk + i, v_load(dk + i) * fade);
        for (int64_t i = 0; i < x->Vp; i += VL) v_store(dv + i, v_load(dv + i) * fade);
    }
    tile_gemm(x->S, x->Kp, n, chunk_at(s->dX, x->Sp), s->q, x->Kp, s->DK, x->Kp, 1);
    tile_gemm(x->S, x->Vp, n, chunk_at(s->PG, x->Sp), s->d_o, x->Vp, s->DV, x->Vp, 1);
}

static void backward_chunk(const head *x, int64_t t0, int64_t n)
{
    const scratch *s = &x->s;
    int64_t Cn = chunk_pad(n), K = x->K, V = x->V, S = x->S, Kp = x->Kp, Vp = x->Vp, Sp = x->Sp;
    chunk_weights(x, t0, n);
    chunk_rows(TOKEN(d_o, t0, V), x->H * V, n, V, s->d_o, Vp);
    chunk_columns(TOKEN(v, t0, V), x->H * V, n, V, s->vT, Cn);
    chunk_columns(s->KT, Sp, K, S, s->K0, Kp);
    chunk_columns(s->V, Vp, S, V, s->V0T, Sp);
    chunk_columns(s->DK, Kp, S, K, s->DKT, Sp);
    chunk_columns(s->DV, Vp, S, V, s->DVT, Sp);
    /* weights */
    tile_gemm_lower_c(n, Cn, V, chunk_a(s->d_o, Vp), s->vT, Cn, s->dPW, C);
    tile_gemm(n, Sp, V, chunk_a(s->d_o, Vp), s->V0T, Sp, s->dP, Sp, 0);
    tile_gemm_lower_a(n, Sp, n, chunk_a(s->dPW, C), s->wt, Sp, s->dP, Sp, 1);
    softmax_backward(x, n);
    tile_gemm_lower_c(n, Cn, S, chunk_a(s->dX, Sp), s->wtT, Cn, s->dQK, C);
    /* queries, keys, values */
    tile_gemm(n, Kp, S, chunk_a(s->dX, Sp), s->K0, Kp, s->dq, Kp, 0);
    tile_gemm_lower_a(n, Kp, n, chunk_a(s->dQK, C), s->k, Kp, s->dq, Kp, 1);
    tile_gemm(n, Kp, S, chunk_a(s->wh, Sp), s->DK, Kp, s->dk, Kp, 0);
    tile_gemm_upper_a(n, Kp, n, chunk_at(s->dQK, C), s->q, Kp, s->dk, Kp, 1);
    tile_gemm(n, Vp, S, chunk_a(s->wh, Sp), s->DV, Vp, s->dv, Vp, 0);
    tile_gemm_upper_a(n, Vp, n, chunk_at(s->PW, C), s->d_o, Vp, s->dv, Vp, 1);
    /* write weights */
    tile_gemm_upper_a(n, Sp, n, chunk_at(s->QK, C), s->dX, Sp, s->dwt, Sp, 0);
    tile_gemm_upper_a(n, Sp, n, chunk_at(s->dPW, C), s->PG, Sp, s->dwt, Sp, 1);
    tile_gemm(n, Sp, K, chunk_a(s->k, Kp), s->DKT, Sp, s->dwh, Sp, 0);
    tile_gemm(n, Sp, V, chunk_a(s->v, Vp), s->DVT, Sp, s->dwh, Sp, 1);
    state_backward(x, n);
    gate_backward(x, t0, n);
    chunk_rows_out(s->dq, Kp, n, K, TOKEN_OUT(d_q, t0, K), x->H * K, 0);
    chunk_rows_out(s->dk, Kp, n, K, TOKEN_OUT(d_k, t0, K), x->H * K, 0);
    chunk_rows_out(s->dv, Vp, n, V, TOKEN_OUT(d_v, t0, V), x->H * V, 0);
}

/* The state at t0 from the one saved at the start of its block of C tokens, then the chunks of that block
 * backwards. Blocks that were not cut short, the usual case, have one chunk. */
static void backward_block(const head *x, int64_t block, int64_t count)
{
    int64_t starts[C + 1], chunks = 0, t = 0;
    for (; t < count; chunks++) {
        starts[chunks] = t;
        t += chunk_length(x, block + t, count - t);
    }
    starts[chunks] = count;
    const real *from = saved_at(x, block);
    for (int64_t c = chunks - 1; c >= 0; c--) {
        memcpy(x->s.KT, from, (size_t)(x->K * x->Sp) * sizeof(real));
        memcpy(x->s.V, from + x->K * x->Sp, (size_t)(x->S * x->Vp) * sizeof(real));
        for (int64_t i = 0; i < c; i++) {
            chunk_weights(x, block + starts[i], starts[i + 1] - starts[i]);
            chunk_advance(x, starts[i + 1] - starts[i]);
        }
        backward_chunk(x, block + starts[c], starts[c + 1] - starts[c]);
    }
}

static void backward_task(void *context, int64_t task, int worker)
{
    head own = head_of(context, task, worker), *x = &own;
    chunk_zero(x->s.DK, x->S * x->Kp);
    chunk_zero(x->s.DV, x->S * x->Vp);
    for (int64_t block = (kernel_blocks(x->a->length, C) - 1) * C; block >= 0; block -= C)
        backward_block(x, block, kernel_min(C, x->a->length - block));
}

KERNEL(slots_backward, slots_args)
{
    scratch s;
    job j = {a, run->scratch, layout(a, NULL, &s)};
    threads_run(run->threads, a->batch * a->heads, backward_task, &j);
}
