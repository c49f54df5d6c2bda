/* Tables that depend on positions only: write weights phi, and with decay the products of 1 - phi. Internal
 * to simd.c.
 *
 * Decay inside a chunk. Token u's share of slot j at t >= u is W[t,u,j] = phi_u[j] * prod_{u < s <= t} (1 -
 * phi_s[j]). As a quotient c_t[j] / c_u[j] of running products it turns both sums over u into matrix
 * products. A gate that is exactly 0 would make that 0/0: gates below GATE_LEAST are raised to it in c (not
 * in b), which changes W by less than rounding. Where many small gates follow each other (large T/S) c can
 * leave the range of the type; such a slot is called awkward and takes the direct route: its column of P is 0
 * and W itself is formed for it, C*C/2 numbers. There are never more than a few in a chunk unless S is tiny.
 */
#ifndef BLURRY_KERNELS_BLURRY_SIMD_TABLES_H
#define BLURRY_KERNELS_BLURRY_SIMD_TABLES_H
#include "base/dirichlet.h"
#include "kernels/blurry/simd_layout.h"
#include <math.h>
#include <stdlib.h>

#if REAL_IS_FLOAT
#define GATE_LEAST  0x1p-30
#define SCALE_START 0x1p45
#define SCALE_LEAST 0x1p-45
#define KEEP_LEAST  0x1p-110
#else
#define GATE_LEAST  0x1p-60
#define SCALE_START 0x1p120
#define SCALE_LEAST 0x1p-120
#define KEEP_LEAST  0x1p-900
#endif

enum { SLOTS_AT_ONCE = 64 }; /* whose running products are carried along in double */

/* Weights for one period. Integer periods of moderate length are tabulated once: rows t mod T, and C more so
 * that any chunk is a contiguous block; and transposed. Others are computed wave by wave. */
typedef struct weights {
    double period;
    int64_t rows; /* 0: not tabulated */
    real *phi;    /* [rows + C, lds] */
    real *phi_t;  /* [Sp, ld_t] */
    int64_t ld_t;
    int64_t *visible;      /* [S] first position at which a slot may be attended to */
    double *sine, *cosine; /* [2S] of pi d / S, for offsets d = S-1 .. -(S-1), times the sign (-1)^d */
} weights;

typedef struct tables {
    int64_t distinct;
    weights *list;
    int64_t *of_head; /* [Hkv] index into list */
} tables;

enum { TABLE_ROWS_MOST = 1 << 16, TABLE_ELEMENTS_MOST = 1 << 23 };

/* phi for position t into row [lds], zero beyond S. As dirichlet_weights, with the sines of pi (f + d) / S by
 * angle addition from tables: three sines a row instead of S. */
static void weights_row(const weights *w, int64_t S, int64_t lds, int64_t t, real *row)
{
    const double pi = 3.14159265358979323846264338327950288;
    int64_t n;
    double f = dirichlet_nearest(S, w->period, t, &n);
    if (fabs(f) < 1e-150) { /* also where the quotient would be one of subnormal numbers */
        for (int64_t j = 0; j < lds; j++) row[j] = j == n;
        return;
    }
    double share = sin(pi * f) / (double)S, sine = sin(pi * f / (double)S), cosine = cos(pi * f / (double)S);
    /* offsets d = n - j for j = 0 .. S-1 are entries S-1-n .. of the descending tables */
    const double *restrict sd = w->sine + (S - 1 - n), *restrict cd = w->cosine + (S - 1 - n);
    for (int64_t j = 0; j < S; j++) row[j] = (real)(share / (sine * cd[j] + cosine * sd[j]));
    for (int64_t j = S; j < lds; j++) row[j] = 0;
}

static void tables_release(void *opaque)
{
    tables *t = opaque;
    if (!t) return;
    for (int64_t i = 0; t->list && i < t->distinct; i++) {
        free(t->list[i].phi);
        free(t->list[i].phi_t);
        free(t->list[i].visible);
        free(t->list[i].sine);
        free(t->list[i].cosine);
    }
    free(t->list);
    free(t->of_head);
    free(t);
}

static int weights_build(weights *w, const bla_shape *shape, const layout *z, double period)
{
    int64_t S = shape->S;
    const double pi = 3.14159265358979323846264338327950288;
    w->period = period;
    w->visible = malloc((size_t)S * sizeof *w->visible);
    w->sine = malloc((size_t)(2 * S) * sizeof *w->sine);
    w->cosine = malloc((size_t)(2 * S) * sizeof *w->cosine);
    if (!w->visible || !w->sine || !w->cosine) return 0;
    for (int64_t j = 0; j < S; j++) w->visible[j] = dirichlet_visible_from(S, period, j);
    for (int64_t i = 0; i < 2 * S; i++) {
        int64_t d = S - 1 - i;
        double sign = d & 1 ? -1 : 1;
        w->sine[i] = sign * sin(pi * (double)d / (double)S);
        w->cosine[i] = sign * cos(pi * (double)d / (double)S);
    }
    if (period != rint(period) || period > TABLE_ROWS_MOST) return 1;
    int64_t rows = (int64_t)period, all = round_up(rows + z->C, VL);
    if (all * z->lds > TABLE_ELEMENTS_MOST) return 1;
    w->ld_t = all;
    w->phi = aligned_alloc(64, (size_t)round_up(all * z->lds * (int64_t)sizeof(real), 64));
    w->phi_t = aligned_alloc(64, (size_t)round_up(z->Sp * all * (int64_t)sizeof(real), 64));
    if (!w->phi || !w->phi_t) return 0;
    for (int64_t t = 0; t < all; t++) weights_row(w, S, z->lds, t, w->phi + t * z->lds);
    transpose(all, z->Sp, w->phi, z->lds, w->phi_t, all);
    w->rows = rows;
    return 1;
}

static blurry_status tables_prepare(const bla_shape *shape, void **out)
{
    layout z = layout_of(shape);
    tables *t = calloc(1, sizeof *t);
    if (t) t->list = calloc((size_t)shape->Hkv, sizeof *t->list);
    if (t) t->of_head = calloc((size_t)shape->Hkv, sizeof *t->of_head);
    int good = t && t->list && t->of_head;
    for (int64_t h = 0; good && h < shape->Hkv; h++) {
        int64_t i = 0;
        while (i < t->distinct && t->list[i].period != shape->period[h]) i++;
        if (i == t->distinct) {
            t->distinct++;
            good = weights_build(&t->list[i], shape, &z, shape->period[h]);
        }
        t->of_head[h] = i;
    }
    if (!good) {
        tables_release(t);
        return BLURRY_E_MEMORY;
    }
    *out = t;
    return BLURRY_OK;
}

/* The tables of one chunk of n tokens. */
typedef struct chunk_tables {
    int64_t n;
    const real *phi;    /* [n, lds] */
    const real *P, *PT; /* [n, lds]; [S, ld_pt] */
    int64_t ld_pt;
    const real *b, *c; /* [n, lds], NULL without decay: both are 1 */
    int64_t *awkward;  /* slots on the direct route */
    int64_t n_awkward;
} chunk_tables;

/* One token's step of running products c [m], in double: 64 factors in float would cost several roundings.
 * Their values, kept [m] times them and phi over them are stored; least [m] is the smallest so far. From a
 * gate below GATE_LEAST on kept is 0. */
static inline void decay_step(int64_t m, const real *restrict phi, double *restrict c, double *restrict least,
                              real *restrict kept, real *restrict b, real *restrict scale, real *restrict P)
{
    const double floor = SCALE_LEAST * GATE_LEAST; /* an awkward slot's c is not used: keep it finite */
    for (int64_t j = 0; j < m; j++) {
        double gate = 1 - (double)phi[j];
        double product = c[j] * (gate < GATE_LEAST ? GATE_LEAST : gate);
        product = product < floor ? floor : product;
        least[j] = product < least[j] ? product : least[j];
        c[j] = product;
        scale[j] = (real)product;
    }
    for (int64_t j = 0; j < m; j++) {
        kept[j] = 1 - phi[j] < (real)GATE_LEAST ? 0 : kept[j];
        b[j] = kept[j] * scale[j];
        P[j] = phi[j] / scale[j];
    }
}

/* With decay: b_t = product of gates since the chunk's start, c and P = phi / c as described above. */
static void decay_tables(const layout *z, int64_t S, int64_t n, const real *phi, scratch *s, chunk_tables *ct)
{
    for (int64_t j = 0; j < z->Sp; j += SLOTS_AT_ONCE) {
        int64_t m = z->Sp - j < SLOTS_AT_ONCE ? z->Sp - j : SLOTS_AT_ONCE;
        double c[SLOTS_AT_ONCE], least[SLOTS_AT_ONCE];
        real kept[SLOTS_AT_ONCE];
        for (int64_t i = 0; i < m; i++) c[i] = least[i] = SCALE_START, kept[i] = (real)(1 / SCALE_START);
        for (int64_t t = 0; t < n; t++) {
            int64_t at = t * z->lds + j;
            decay_step(m, phi + at, c, least, kept, s->b + at, s->c + at, s->P + at);
        }
        for (int64_t i = 0; i < m && j + i < S; i++)
            if (least[i] < SCALE_LEAST) ct->awkward[ct->n_awkward++] = j + i;
    }
    for (int64_t a = 0; a < ct->n_awkward; a++)
        for (int64_t t = 0; t < n; t++) s->P[t * z->lds + ct->awkward[a]] = 0;
    ct->b = s->b, ct->c = s->c;
}

/* Tables for reading a chunk. `phi` [n, lds] and, where tabulated, phi_t [S, ld_t] are given. */
static chunk_tables read_tables(const bla_shape *shape, const layout *z, int64_t n, const real *phi,
                                const real *phi_t, int64_t ld_t, scratch *s, int64_t *awkward)
{
    chunk_tables ct = {.n = n, .phi = phi, .P = phi, .PT = phi_t, .ld_pt = ld_t, .awkward = awkward};
    if (shape->decay) {
        decay_tables(z, shape->S, n, phi, s, &ct);
        ct.P = s->P;
        ct.PT = NULL;
    }
    if (!ct.PT) {
        transpose(n, z->Sp, ct.P, z->lds, s->PT, z->ldc);
        ct.PT = s->PT, ct.ld_pt = z->ldc;
    }
    return ct;
}

/* weight [m] = phi times what is kept of a token after it; then a token earlier. */
static inline void write_step(int64_t m, const real *restrict phi, double *restrict keep,
                              real *restrict weight)
{
    for (int64_t j = 0; j < m; j++) {
        weight[j] = (real)(phi[j] * keep[j]);
        double product = keep[j] * (1 - (double)phi[j]);
        keep[j] = product < KEEP_LEAST ? 0 : product;
    }
}

/* Weights with which a chunk's tokens arrive in the slots at its end, and what the old slots keep: end [lds].
 * Without decay the weights are phi itself. */
static const real *write_tables(const bla_shape *shape, const layout *z, int64_t n, const real *phi,
                                scratch *s, real *end)
{
    if (!shape->decay) {
        for (int64_t j = 0; j < z->lds; j++) end[j] = 1;
        return phi;
    }
    for (int64_t j = 0; j < z->Sp; j += SLOTS_AT_ONCE) {
        int64_t m = z->Sp - j < SLOTS_AT_ONCE ? z->Sp - j : SLOTS_AT_ONCE;
        double keep[SLOTS_AT_ONCE];
        for (int64_t i = 0; i < m; i++) keep[i] = 1;
        for (int64_t t = n - 1; t >= 0; t--) write_step(m, phi + t * z->lds + j, keep, s->P + t * z->lds + j);
        for (int64_t i = 0; i < m; i++) end[j + i] = (real)keep[i];
    }
    return s->P;
}

/* W [n, ldc] of one awkward slot: W[t, u] for u <= t, zero right of the diagonal. */
static void awkward_weights(const layout *z, const chunk_tables *ct, int64_t j, real *W)
{
    double running[CHUNK_MOST] = {0};
    for (int64_t t = 0; t < ct->n; t++) {
        double f = ct->phi[t * z->lds + j], gate = 1 - f;
        real *row = W + t * z->ldc;
        for (int64_t u = 0; u < z->Cp; u++) {
            running[u] = running[u] * gate;
            row[u] = (real)running[u];
        }
        row[t] = ct->phi[t * z->lds + j], running[t] = f;
    }
}

/* How many slots may be attended to at position t: a prefix, and `from` (the count at t - 1, or 0) only
 * grows. */
static inline int64_t visible_slots(const weights *w, int64_t S, int64_t t, int64_t from)
{
    while (from < S && w->visible[from] <= t) from++;
    return from;
}

#endif
