/* One chunk of the backward pass. Internal to simd.c.
 *
 * With x the logits, p their softmax, w the weights on the absolute grid's slots (w = p there, w = R p on the
 * relative grid, R the correlation with phi_t), and d_ for gradients: d_w[t,j] = <d_o_t, V_t[j]>,  d_p = d_w
 * or R d_w,  d_x = p (d_p - <p, d_p>) or R of it, and then every product of the forward pass has two, with
 * the same tables. */
#ifndef BLURRY_KERNELS_BLURRY_SIMD_BACKWARD_H
#define BLURRY_KERNELS_BLURRY_SIMD_BACKWARD_H
#include "kernels/blurry/simd_waves.h"

/* What the probabilities' gradient gives: rows of weights and of logit gradients, plain and split by decay.
 */
typedef struct head_gradient {
    const real *w, *w_before, *w_own;    /* [rows, lds] */
    const real *dx, *dx_before, *dx_own; /* [rows, lds] */
} head_gradient;

static void softmax_backward_row(const layout *z, const real *p, real *d)
{
    vreal sum = v_zero();
    for (int64_t j = 0; j < z->Sp; j += VL) sum += v_load(p + j) * v_load(d + j);
    vreal mean = v_set1(v_sum(sum));
    for (int64_t j = 0; j < z->Sp; j += VL) v_store(d + j, v_load(p + j) * (v_load(d + j) - mean));
}

/* Recomputes the probabilities of one query head and their gradients. s->q, s->d_o, s->k_t, s->v_t, s->VT are
 * packed. */
static head_gradient gradient_of_logits(const chunk *c)
{
    scratch *s = c->s;
    const layout *z = c->z;
    probabilities(c);
    head_gradient g;
    if (c->shape->relative) {
        /* x and y hold the logits of both grids; keep them, d_period wants them */
        correlate_rows(c, s->p, s->w);
        against_slots(c, c->shape->Dv, s->d_o, z->ldv, s->VT, s->v_t, s->d_mix, NULL, s->dw);
        correlate_rows(c, s->dw, s->z);
        for (int64_t i = 0; i < c->rows; i++) softmax_backward_row(z, s->p + i * z->lds, s->z + i * z->lds);
        correlate_rows(c, s->z, s->dp);
        g.w = g.w_before = g.w_own = s->w;
        g.dx = g.dx_before = g.dx_own = s->dp;
        return g;
    }
    against_slots(c, c->shape->Dv, s->d_o, z->ldv, s->VT, s->v_t, s->d_mix, s->y, s->dp);
    for (int64_t i = 0; i < c->rows; i++) softmax_backward_row(z, s->p + i * z->lds, s->dp + i * z->lds);
    g.w = g.w_before = g.w_own = s->p;
    g.dx = g.dx_before = g.dx_own = s->dp;
    if (c->ct.b) {
        split_by_decay(c, s->p, s->pb, s->y);
        split_by_decay(c, s->dp, s->db, s->x);
        g.w_before = s->pb, g.w_own = s->y;
        g.dx_before = s->db, g.dx_own = s->x;
    }
    return g;
}

/* One query head: s->dq [rows, ldk] set; s->dk, s->dv and the state gradient's increment, d_K [S, ldk] and
 * d_V [S, ldv], accumulated unless `first`. */
static void differentiate_head(const chunk *c, real *increment, int first)
{
    scratch *s = c->s;
    const layout *z = c->z;
    int64_t rows = c->rows, S = c->shape->S;
    head_gradient g = gradient_of_logits(c);
    onto_tokens(c, g.dx, g.dx_own, s->d_mix);
    if (!c->empty)
        tile_gemm(rows, z->Dkp, S, (tile_a){g.dx_before, z->lds, 1}, s->K, z->ldk, s->dq, z->ldk, 0);
    rows_from_tokens(c, z->Dkp, s->d_mix, s->k, z->ldk, s->dq, z->ldk, !c->empty);
    tokens_from_rows(c, z->Dkp, s->d_mix, s->q, z->ldk, s->dk, z->ldk, !first);
    onto_tokens(c, g.w, g.w_own, s->mix);
    tokens_from_rows(c, z->Dvp, s->mix, s->d_o, z->ldv, s->dv, z->ldv, !first);
    if (!increment) return;
    real *d_K = increment, *d_V = increment + z->Sp * z->ldk;
    tile_gemm(S, z->Dkp, rows, (tile_a){g.dx_before, 1, z->lds}, s->q, z->ldk, d_K, z->ldk, !first);
    tile_gemm(S, z->Dvp, rows, (tile_a){g.w_before, 1, z->lds}, s->d_o, z->ldv, d_V, z->ldv, !first);
}

/* Packs one query head's q (scaled) and d_o. */
static void pack_head(const run *r, const place *p, int64_t head, scratch *s)
{
    const bla_shape *shape = r->shape;
    pack_rows(p->rows, shape->Dk, r->q + (p->row0 * shape->H + head) * shape->Dk, shape->H * shape->Dk,
              (real)shape->scale, s->q, r->z.ldk);
    if (r->d_o)
        pack_rows(p->rows, shape->Dv, r->d_o + (p->row0 * shape->H + head) * shape->Dv, shape->H * shape->Dv,
                  1, s->d_o, r->z.ldv);
}

/* Starts a chunk for differentiation: the state in the other orientation, and v transposed. */
static chunk open_chunk_backward(const run *r, const place *p, scratch *s)
{
    chunk c = open_chunk(r, p, s);
    transpose(p->n, r->z.Dvp, s->v, r->z.ldv, s->v_t, r->z.ldc);
    if (!c.empty) {
        transpose(r->shape->Dk, r->z.Sp, c.KT, r->z.lds, s->K, r->z.ldk);
        transpose(r->shape->S, r->z.Dvp, c.V, r->z.ldv, s->VT, r->z.lds);
        /* a state has no rows beyond S: the columns they became must not hold what memory held */
        for (int64_t d = 0; d < r->shape->Dv; d++)
            for (int64_t j = r->shape->S; j < r->z.Sp; j++) s->VT[d * r->z.lds + j] = 0;
    }
    return c;
}

/* A chunk none of whose tokens is read: so far its tokens and the slots before it have no gradient. */
static void nothing_read(const run *r, const place *p, real *increment)
{
    const bla_shape *shape = r->shape;
    int64_t k = shape->Hkv * shape->Dk, v = shape->Hkv * shape->Dv;
    for (int64_t t = p->first; t < p->first + p->n; t++) {
        memset(r->d_k + t * k + p->h * shape->Dk, 0, (size_t)shape->Dk * sizeof(real));
        memset(r->d_v + t * v + p->h * shape->Dv, 0, (size_t)shape->Dv * sizeof(real));
    }
    if (increment) memset(increment, 0, (size_t)r->z.d_state * sizeof(real));
}

/* The first half of a chunk's backward pass: everything that does not need the gradient of the slots after
 * it. */
static void differentiate_task(void *context, int64_t task, int worker)
{
    run *r = context;
    const bla_shape *shape = r->shape;
    const layout *z = &r->z;
    scratch *s = &r->workers[worker];
    place p = place_of(r, task / z->wave, task % z->wave);
    if (!p.there) return;
    find_rows(r, &p);
    /* The gradient of empty slots is wanted only where the caller asks for it. */
    real *increment = p.index == 0 && !r->d_in.k ? NULL : d_state_at(r, &p);
    if (!p.rows) {
        nothing_read(r, &p, increment);
        return;
    }
    chunk c = open_chunk_backward(r, &p, s);
    for (int64_t i = 0; i < z->group; i++) {
        int64_t head = p.h * z->group + i;
        pack_head(r, &p, head, s);
        differentiate_head(&c, increment, i == 0);
        unpack_rows(p.rows, shape->Dk, s->dq, z->ldk, (real)shape->scale,
                    r->d_q + (p.row0 * shape->H + head) * shape->Dk, shape->H * shape->Dk);
    }
    unpack_rows(p.n, shape->Dk, s->dk, z->ldk, 1, r->d_k + (p.first * shape->Hkv + p.h) * shape->Dk,
                shape->Hkv * shape->Dk);
    unpack_rows(p.n, shape->Dv, s->dv, z->ldv, 1, r->d_v + (p.first * shape->Hkv + p.h) * shape->Dv,
                shape->Hkv * shape->Dv);
}

/* Right to left: after = running, running = keep * running + increment; `increment` is overwritten by
 * `after`. */
static void d_scan_task(void *context, int64_t task, int worker)
{
    (void)worker;
    run *r = context;
    const layout *z = &r->z;
    int64_t local = task / SCAN_PARTS, part = task % SCAN_PARTS, S = r->shape->S;
    int64_t from = S * part / SCAN_PARTS, to = S * (part + 1) / SCAN_PARTS;
    real *running = r->d_running + local * z->d_state;
    for (int64_t g = z->wave - 1; g >= 0; g--) {
        place p = place_of(r, local, g);
        if (!p.there) continue;
        real *slot = d_state_at(r, &p);
        const real *kept = kept_at(r, &p);
        int ends = p.index == 0 && !r->d_in.k; /* no increment was formed, none is needed */
        int starts = p.last && !r->d_out.k;    /* `running` is zero and `kept` was not formed */
        for (int64_t j = from; j < to; j++)
            for (int half = 0; half < 2; half++) {
                int64_t at = half ? z->Sp * z->ldk + j * z->ldv : j * z->ldk, width = half ? z->Dvp : z->Dkp;
                for (int64_t d = 0; d < width; d += VL) {
                    vreal after = v_load(running + at + d);
                    vreal add = ends ? v_zero() : v_load(slot + at + d);
                    v_store(slot + at + d, after);
                    v_store(running + at + d, starts ? add : kept[j] * after + add);
                }
            }
    }
}

/* to += sum_j weight[u, j] after[j]: the gradient that reaches a token through the slots after its chunk. */
static void add_through_slots(const run *r, const place *p, const real *weight, const real *after, int64_t ld,
                              int64_t D, real *scratch_rows, real *to)
{
    int64_t stride = r->shape->Hkv * D;
    tile_gemm(p->n, round_up(D, VL), r->shape->S, (tile_a){weight, r->z.lds, 1}, after, ld, scratch_rows, ld,
              0);
    for (int64_t t = 0; t < p->n; t++)
        for (int64_t d = 0; d < D; d++) to[t * stride + d] += scratch_rows[t * ld + d];
}

/* The second half: what a chunk's tokens owe to the slots after it. */
static void through_slots_task(void *context, int64_t task, int worker)
{
    run *r = context;
    const bla_shape *shape = r->shape;
    const layout *z = &r->z;
    scratch *s = &r->workers[worker];
    place p = place_of(r, task / z->wave, task % z->wave);
    if (!p.there || (p.last && !r->d_out.k)) return;
    const real *phi_t;
    int64_t ld_t;
    const real *phi = chunk_phi(r, &p, &phi_t, &ld_t);
    const real *weight = write_tables(shape, z, p.n, phi, s, s->keep);
    const real *after = d_state_at(r, &p);
    add_through_slots(r, &p, weight, after, z->ldk, shape->Dk, s->dk,
                      r->d_k + (p.first * shape->Hkv + p.h) * shape->Dk);
    add_through_slots(r, &p, weight, after + z->Sp * z->ldk, z->ldv, shape->Dv, s->dv,
                      r->d_v + (p.first * shape->Hkv + p.h) * shape->Dv);
}

static void d_load_task(void *context, int64_t task, int worker)
{
    (void)worker;
    run *r = context;
    const bla_shape *shape = r->shape;
    int64_t chain = r->chain0 + task, b = chain / shape->Hkv, h = chain % shape->Hkv, S = shape->S;
    real *to = r->d_running + task * r->z.d_state;
    memset(to, 0, (size_t)r->z.d_state * sizeof *to);
    if (!r->d_out.k) return;
    const real *k = (const real *)r->d_out.k + b * r->d_out.stride_k + h * S * shape->Dk;
    const real *v = (const real *)r->d_out.v + b * r->d_out.stride_v + h * S * shape->Dv;
    for (int64_t j = 0; j < S; j++) {
        memcpy(to + j * r->z.ldk, k + j * shape->Dk, (size_t)shape->Dk * sizeof *to);
        memcpy(to + r->z.Sp * r->z.ldk + j * r->z.ldv, v + j * shape->Dv, (size_t)shape->Dv * sizeof *to);
    }
}

static void d_store_task(void *context, int64_t task, int worker)
{
    (void)worker;
    run *r = context;
    const bla_shape *shape = r->shape;
    int64_t chain = r->chain0 + task, b = chain / shape->Hkv, h = chain % shape->Hkv, S = shape->S;
    const real *from = r->d_running + task * r->z.d_state;
    real *k = (real *)r->d_in.k + b * r->d_in.stride_k + h * S * shape->Dk;
    real *v = (real *)r->d_in.v + b * r->d_in.stride_v + h * S * shape->Dv;
    for (int64_t j = 0; j < S; j++) {
        memcpy(k + j * shape->Dk, from + j * r->z.ldk, (size_t)shape->Dk * sizeof *k);
        memcpy(v + j * shape->Dv, from + r->z.Sp * r->z.ldk + j * r->z.ldv, (size_t)shape->Dv * sizeof *v);
    }
}

#endif
