/* Gated delta rule in chunks of C tokens, every term a small matrix product. With G_t the sum of gates since
 * the chunk's start and E[t,s] = e^{G_t - G_s} (s <= t, never above 1): (I + M) U = R,   M[t,s] = beta_t
 * E[t,s] k_t.k_s (s < t),   R = beta (v - e^G k S0) o  = scale (e^G q S0 + lower(E * q k^T) U),   S1 =
 * e^{G_end} S0 + (E[end,:] k)^T U The triangular system is solved in blocks of rows. */
#include "kernels/chunk.h"
#include "kernels/gdn/gdn.h"

#include "base/threads.h"

enum { C = 64, SOLVE = 8 };

typedef struct scratch {
    real *S;               /* state [K, Vp] */
    real *q, *k, *kT;      /* [C, Kp], [C, Kp], [K, C] */
    real *v, *KS, *U, *o;  /* [C, Vp]: v, k S0, solution, output */
    real *eG, *end, *beta; /* [C]: e^G, e^{G_end - G}, beta */
    real *E, *N, *M, *A;   /* [C, C]: E, -E k k^T (strictly lower), -M, E q k^T */
    /* backward only */
    real *D, *DT, *ST;         /* gradient of the state [K, Vp]; both transposed [V, Kp] */
    real *d_o, *dR, *dKS, *QS; /* [C, Vp] */
    real *UT, *dA, *dM;        /* [V, C], [C, C], [C, C] */
    real *dq, *dk, *dG;        /* [C, Kp], [C, Kp], [C] */
} scratch;

static size_t layout(const gdn_args *a, char *base, scratch *s)
{
    int64_t K = a->dim_k, V = a->dim_v, Kp = chunk_pad(K), Vp = chunk_pad(V);
    chunk_arena next = {base, 0};
    real **by_key[] = {&s->q, &s->k, &s->dq, &s->dk};
    real **by_value[] = {&s->v, &s->KS, &s->U, &s->o, &s->d_o, &s->dR, &s->dKS, &s->QS};
    real **square[] = {&s->E, &s->N, &s->M, &s->A, &s->dA, &s->dM};
    real **by_token[] = {&s->eG, &s->end, &s->beta, &s->dG};
    for (int i = 0; i < 4; i++) *by_key[i] = chunk_take(&next, C * Kp);
    for (int i = 0; i < 8; i++) *by_value[i] = chunk_take(&next, C * Vp);
    for (int i = 0; i < 6; i++) *square[i] = chunk_take(&next, C * C);
    for (int i = 0; i < 4; i++) *by_token[i] = chunk_take(&next, C);
    s->S = chunk_take(&next, K * Vp);
    s->D = chunk_take(&next, K * Vp);
    s->DT = chunk_take(&next, V * Kp);
    s->ST = chunk_take(&next, V * Kp);
    s->kT = chunk_take(&next, K * C);
    s->UT = chunk_take(&next, V * C);
    return next.used;
}

typedef struct head {
    const gdn_args *a;
    int64_t K, V, Kp, Vp, H, at, state; /* at: index of the head's first token in units of [token, head] */
    real scale;
    scratch s;
} head;

typedef struct job {
    const gdn_args *a;
    char *scratch;
    size_t per_worker;
} job;

static head head_of(const job *j, int64_t task, int worker)
{
    const gdn_args *a = j->a;
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

/* eG, end, beta and E. */
static void gates(const head *x, int64_t t0, int64_t n)
{
    const scratch *s = &x->s;
    real G[C + VL], sum = 0;
    for (int64_t t = 0; t < n; t++) {
        G[t] = sum += *TOKEN(g, t0 + t, 1);
        s->beta[t] = *TOKEN(beta, t0 + t, 1);
    }
    for (int64_t t = n; t < chunk_pad(n); t++) G[t] = sum;
    for (int64_t t = 0; t < chunk_pad(n); t += VL) {
        v_store(s->eG + t, v_exp(v_load(G + t)));
        v_store(s->end + t, v_exp(sum - v_load(G + t)));
    }
    for (int64_t t = 0; t < n; t++)
        for (int64_t u = 0; u < n; u += VL)
            v_store(s->E + t * C + u, v_exp(v_min(v_zero(), G[t] - v_load(G + u))));
}

/* U = (I + M)^-1 U in place, -M in s->M. Rows in blocks: first what earlier blocks give, then inside the
 * block. */
static void solve_lower(const scratch *s, int64_t n, int64_t Vp, real *U)
{
    for (int64_t r0 = 0; r0 < n; r0 += SOLVE) {
        int64_t rows = kernel_min(SOLVE, n - r0);
        if (r0 > 0) tile_gemm(rows, Vp, r0, chunk_a(s->M + r0 * C, C), U, Vp, U + r0 * Vp, Vp, 1);
        for (int64_t r = r0 + 1; r < r0 + rows; r++)
            tile_gemm(1, Vp, r - r0, chunk_a(s->M + r * C + r0, C), U + r0 * Vp, Vp, U + r * Vp, Vp, 1);
    }
}

/* (I + M)^-T, from the last block to the first. */
static void solve_upper(const scratch *s, int64_t n, int64_t Vp, real *U)
{
    for (int64_t r0 = (n - 1) / SOLVE * SOLVE; r0 >= 0; r0 -= SOLVE) {
        int64_t end = kernel_min(n, r0 + SOLVE);
        if (end < n)
            tile_gemm(end - r0, Vp, n - end, chunk_at(s->M + end * C + r0, C), U + end * Vp, Vp, U + r0 * Vp,
                      Vp, 1);
        for (int64_t r = end - 2; r >= r0; r--)
            tile_gemm(1, Vp, end - r - 1, chunk_at(s->M + (r + 1) * C + r, C), U + (r + 1) * Vp, Vp,
                      U + r * Vp, Vp, 1);
    }
}

/* Everything up to U; wants S0 in s->S. */
static void chunk_solve(const head *x, int64_t t0, int64_t n)
{
    const scratch *s = &x->s;
    int64_t Cn = chunk_pad(n), Kp = x->Kp, Vp = x->Vp;
    gates(x, t0, n);
    chunk_rows(TOKEN(q, t0, x->K), x->H * x->K, n, x->K, s->q, Kp);
    chunk_rows(TOKEN(k, t0, x->K), x->H * x->K, n, x->K, s->k, Kp);
    chunk_rows(TOKEN(v, t0, x->V), x->H * x->V, n, x->V, s->v, Vp);
    chunk_columns(TOKEN(k, t0, x->K), x->H * x->K, n, x->K, s->kT, Cn);
    tile_gemm_lower_c(n, Cn, x->K, chunk_a(s->k, Kp), s->kT, Cn, s->N, C);
    tile_gemm_lower_c(n, Cn, x->K, chunk_a(s->q, Kp), s->kT, Cn, s->A, C);
    tile_gemm(n, Vp, x->K, chunk_a(s->k, Kp), s->S, Vp, s->KS, Vp, 0);
    for (int64_t t = 0; t < n; t++) {
        for (int64_t u = 0; u < Cn; u += VL) {
            vreal e = v_load(s->E + t * C + u), kk = -e * v_load(s->N + t * C + u);
            v_store(s->N + t * C + u, kk);
            v_store(s->M + t * C + u, kk * s->beta[t]);
            v_store(s->A + t * C + u, e * v_load(s->A + t * C + u));
        }
        s->N[t * C + t] = s->M[t * C + t] = 0;
        for (int64_t j = 0; j < Vp; j += VL)
            v_store(s->U + t * Vp + j,
                    s->beta[t] * (v_load(s->v + t * Vp + j) - s->eG[t] * v_load(s->KS + t * Vp + j)));
    }
    solve_lower(s, n, Vp, s->U);
}

static void scale_rows(real *m, int64_t rows, int64_t ld, const real *factor, int64_t step)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < ld; i += VL)
            v_store(m + r * ld + i, v_load(m + r * ld + i) * factor[r * step]);
}

/* S1; scales s->k to E[end,:] k on the way. */
static void chunk_advance(const head *x, int64_t n)
{
    const scratch *s = &x->s;
    real fade = s->eG[n - 1];
    scale_rows(s->k, n, x->Kp, s->end, 1);
    scale_rows(s->S, x->K, x->Vp, &fade, 0);
    tile_gemm(x->K, x->Vp, n, chunk_at(s->k, x->Kp), s->U, x->Vp, s->S, x->Vp, 1);
}

static void forward_chunk(const head *x, int64_t t0, int64_t n)
{
    const scratch *s = &x->s;
    chunk_solve(x, t0, n);
    tile_gemm(n, x->Vp, x->K, chunk_a(s->q, x->Kp), s->S, x->Vp, s->o, x->Vp, 0);
    scale_rows(s->o, n, x->Vp, s->eG, 1);
    tile_gemm_lower_a(n, x->Vp, n, chunk_a(s->A, C), s->U, x->Vp, s->o, x->Vp, 1);
    scale_rows(s->o, n, x->Vp, &x->scale, 0);
    chunk_rows_out(s->o, x->Vp, n, x->V, TOKEN_OUT(o, t0, x->V), x->H * x->V, 0);
    chunk_advance(x, n);
}

static real *saved_at(const head *x, int64_t t0)
{
    return (real *)x->a->saved + (x->state * kernel_blocks(x->a->length, C) + t0 / C) * x->K * x->Vp;
}

static void forward_task(void *context, int64_t task, int worker)
{
    head own = head_of(context, task, worker), *x = &own;
    const gdn_args *a = x->a;
    int64_t size = x->K * x->V;
    if (a->state_in)
        chunk_rows((const real *)a->state_in + task * size, x->V, x->K, x->V, x->s.S, x->Vp);
    else
        chunk_zero(x->s.S, x->K * x->Vp);
    for (int64_t t0 = 0; t0 < a->length; t0 += C) {
        if (a->saved) memcpy(saved_at(x, t0), x->s.S, (size_t)(x->K * x->Vp) * sizeof(real));
        forward_chunk(x, t0, kernel_min(C, a->length - t0));
    }
    if (a->state_out) chunk_rows_out(x->s.S, x->Vp, x->K, x->V, (real *)a->state_out + task * size, x->V, 0);
}

KERNEL(gdn_forward, gdn_args)
{
    scratch s;
    job j = {a, run->scratch, layout(a, NULL, &s)};
    threads_run(run->threads, a->batch * a->heads, forward_task, &j);
}

KERNEL_SIZES(gdn_sizes, gdn_args)
{
    scratch s;
    int64_t heads = a->batch * a->heads, padded = a->dim_k * chunk_pad(a->dim_v);
    *sizes = (kernel_sizes){
        .state = kernel_round64((size_t)(heads * a->dim_k * a->dim_v) * sizeof(real)),
        .saved = kernel_round64((size_t)(heads * kernel_blocks(a->length, C) * padded) * sizeof(real)),
        .scratch = (size_t)run->threads * layout(a, NULL, &s)};
}

/* ---- backward ---- */
static real dot(const real *x, const real *y, int64_t padded)
{
    vreal sum = v_zero();
    for (int64_t i = 0; i < padded; i += VL) sum += v_load(x + i) * v_load(y + i);
    return v_sum(sum);
}

/* dA and dM become the gradients of q k^T and k k^T; their shares in dG, and M's in d_beta, are taken first.
 */
static void squares_backward(const head *x, int64_t t0, int64_t n)
{
    const scratch *s = &x->s;
    int64_t Cn = chunk_pad(n);
    for (int64_t t = 0; t < n; t++) {
        real *dA = s->dA + t * C, *dM = s->dM + t * C;
        const real *A = s->A + t * C, *N = s->N + t * C, *E = s->E + t * C;
        vreal row = v_zero(), by_beta = v_zero();
        for (int64_t u = 0; u < Cn; u += VL) {
            /* dM holds the gradient of -M = beta N. */
            vreal m = v_load(dM + u) * v_load(N + u), both = v_load(dA + u) * v_load(A + u) + m * s->beta[t];
            by_beta += m;
            row += both;
            v_store(s->dG + u, v_load(s->dG + u) - both);
            v_store(dA + u, v_load(dA + u) * v_load(E + u));
            v_store(dM + u, -v_load(dM + u) * v_load(E + u) * s->beta[t]);
        }
        dM[t] = 0;
        s->dG[t] += v_sum(row);
        *TOKEN_OUT(d_beta, t0 + t, 1) += v_sum(by_beta);
    }
}

/* Everything that does not need the squares: dR, dKS, d_v, first shares of d_beta and dG. */
static void rows_backward(const head *x, int64_t t0, int64_t n)
{
    const scratch *s = &x->s;
    int64_t Vp = x->Vp;
    for (int64_t t = 0; t < n; t++) {
        const real *dR = s->dR + t * Vp, *KS = s->KS + t * Vp, *v = s->v + t * Vp;
        real beta = s->beta[t], up = s->eG[t], read = dot(dR, KS, Vp);
        *TOKEN_OUT(d_beta, t0 + t, 1) = dot(dR, v, Vp) - up * read;
        s->dG[t] += up * dot(s->d_o + t * Vp, s->QS + t * Vp, Vp) - beta * up * read;
        real *d_v = TOKEN_OUT(d_v, t0 + t, x->V);
        for (int64_t j = 0; j < Vp; j += VL) {
            vreal d = v_load(dR + j) * beta;
            v_store_up_to(d_v + j, d, x->V - j);
            v_store(s->dKS + t * Vp + j, -d * up);
        }
    }
}

static void write_d_g(const head *x, int64_t t0, int64_t n)
{
    real later = 0;
    for (int64_t t = n - 1; t >= 0; t--) *TOKEN_OUT(d_g, t0 + t, 1) = later += x->s.dG[t];
}

static void backward_chunk(const head *x, int64_t t0, int64_t n)
{
    const scratch *s = &x->s;
    int64_t Cn = chunk_pad(n), K = x->K, V = x->V, Kp = x->Kp, Vp = x->Vp;
    chunk_solve(x, t0, n);
    chunk_zero(s->dG, C);
    chunk_rows(TOKEN(d_o, t0, V), x->H * V, n, V, s->d_o, Vp);
    scale_rows(s->d_o, n, Vp, &x->scale, 0);
    chunk_columns(s->U, Vp, n, V, s->UT, Cn);
    chunk_columns(s->S, Vp, K, V, s->ST, Kp);
    chunk_columns(s->D, Vp, K, V, s->DT, Kp);
    tile_gemm(n, Vp, K, chunk_a(s->q, Kp), s->S, Vp, s->QS, Vp, 0);
    /* k^ = E[end,:] k: its gradient U D^T, and what it gives to U and to the gates */
    tile_gemm(n, Kp, V, chunk_a(s->U, Vp), s->DT, Kp, s->dk, Kp, 0);
    scale_rows(s->dk, n, Kp, s->end, 1);
    for (int64_t t = 0; t < n; t++) {
        real share = dot(s->k + t * Kp, s->dk + t * Kp, Kp);
        s->dG[t] -= share;
        s->dG[n - 1] += share;
    }
    tile_gemm(n, Vp, K, chunk_a(s->k, Kp), s->D, Vp, s->dR, Vp, 0);
    scale_rows(s->dR, n, Vp, s->end, 1);
    tile_gemm_upper_a(n, Vp, n, chunk_at(s->A, C), s->d_o, Vp, s->dR, Vp, 1);
    solve_upper(s, n, Vp, s->dR);
    tile_gemm_lower_c(n, Cn, V, chunk_a(s->d_o, Vp), s->UT, Cn, s->dA, C);
    tile_gemm_lower_c(n, Cn, V, chunk_a(s->dR, Vp), s->UT, Cn, s->dM, C);
    rows_backward(x, t0, n);
    squares_backward(x, t0, n);
    s->dG[n - 1] += s->eG[n - 1] * dot(s->S, s->D, K * Vp);
    /* the state's gradient moves to the chunk's start */
    scale_rows(s->D, K, Vp, &s->eG[n - 1], 0);
    scale_rows(s->d_o, n, Vp, s->eG, 1);
    tile_gemm(K, Vp, n, chunk_at(s->q, Kp), s->d_o, Vp, s->D, Vp, 1);
    tile_gemm(K, Vp, n, chunk_at(s->k, Kp), s->dKS, Vp, s->D, Vp, 1);
    /* queries and keys */
    tile_gemm(n, Kp, V, chunk_a(s->d_o, Vp), s->ST, Kp, s->dq, Kp, 0);
    tile_gemm_lower_a(n, Kp, n, chunk_a(s->dA, C), s->k, Kp, s->dq, Kp, 1);
    tile_gemm(n, Kp, V, chunk_a(s->dKS, Vp), s->ST, Kp, s->dk, Kp, 1);
    tile_gemm_upper_a(n, Kp, n, chunk_at(s->dA, C), s->q, Kp, s->dk, Kp, 1);
    tile_gemm_lower_a(n, Kp, n, chunk_a(s->dM, C), s->k, Kp, s->dk, Kp, 1);
    tile_gemm_upper_a(n, Kp, n, chunk_at(s->dM, C), s->k, Kp, s->dk, Kp, 1);
    chunk_rows_out(s->dq, Kp, n, K, TOKEN_OUT(d_q, t0, K), x->H * K, 0);
    chunk_rows_out(s->dk, Kp, n, K, TOKEN_OUT(d_k, t0, K), x->H * K, 0);
    write_d_g(x, t0, n);
}

static void backward_task(void *context, int64_t task, int worker)
{
    head own = head_of(context, task, worker), *x = &own;
    chunk_zero(x->s.D, x->K * x->Vp);
    for (int64_t t0 = (kernel_blocks(x->a->length, C) - 1) * C; t0 >= 0; t0 -= C) {
        memcpy(x->s.S, saved_at(x, t0), (size_t)(x->K * x->Vp) * sizeof(real));
        backward_chunk(x, t0, kernel_min(C, x->a->length - t0));
    }
}

KERNEL(gdn_backward, gdn_args)
{
    scratch s;
    job j = {a, run->scratch, layout(a, NULL, &s)};
    threads_run(run->threads, a->batch * a->heads, backward_task, &j);
}
