/* The gradient by the period, on request. Internal to simd.c.
 *
 * d_T = sum_{s,j} d_phi_s[j] * (d phi_s[j] / d T). A weight acts when token s is written (and, with decay,
 * through the gate 1 - phi): with lambda_s[j] the gradient of K_s[j] and mu_s[j] that of V_s[j], d_phi_s[j] =
 * <lambda_s[j], k_s - decay K_{s-1}[j]> + <mu_s[j], v_s - decay V_{s-1}[j]>, one slot at a time: K_s[j]
 * forwards through the chunk, then lambda_s[j] backwards. On the relative grid phi_s also stands in the map
 * R_s between the grids, which adds sum_{i+j = n} (d_z[j] x[i] + d_w[i] p[j]). */
#ifndef BLURRY_KERNELS_BLURRY_SIMD_PERIOD_H
#define BLURRY_KERNELS_BLURRY_SIMD_PERIOD_H
#include "kernels/blurry/simd_backward.h"

/* d_phi[s, j] += for one of K and V and one slot j. pull [rows, lds]: the weights with which each row's read
 * pulls on the slot (d_x or w); left [rows, ld]: what it pulls towards (q or d_o); tokens [n, ld]: k or v.
 * `adjoint` [ld] is the gradient of the slot after the chunk and is carried backwards; `slot` with stride
 * `slot_step`: the slot before it. */
static void period_slot(const chunk *c, int64_t j, int64_t D, int64_t ld, const real *left, const real *pull,
                        const real *tokens, const real *slot, int64_t slot_step, real *adjoint)
{
    const layout *z = c->z;
    real *before = c->s->track; /* [n, ld] the slot before token s */
    int decay = c->shape->decay;
    if (decay)
        for (int64_t s = 0; s < c->n; s++)
            for (int64_t d = 0; d < D; d++) {
                real f = s ? c->ct.phi[(s - 1) * z->lds + j] : 0;
                real old = s ? before[(s - 1) * ld + d] : c->empty ? 0 : slot[d * slot_step];
                before[s * ld + d] = s ? (1 - f) * old + f * tokens[(s - 1) * ld + d] : old;
            }
    for (int64_t s = c->n - 1, i = c->rows - 1; s >= 0; s--) {
        real f = c->ct.phi[s * z->lds + j], sum = 0;
        if (i >= 0 && c->token[i] == s) {
            for (int64_t d = 0; d < D; d++) adjoint[d] += pull[i * z->lds + j] * left[i * ld + d];
            i--;
        }
        for (int64_t d = 0; d < D; d++) {
            sum += adjoint[d] * (tokens[s * ld + d] - (decay ? before[s * ld + d] : 0));
            if (decay) adjoint[d] *= 1 - f;
        }
        c->s->d_phi[s * z->lds + j] += sum;
    }
}

/* The part of d_phi that comes from the relative grid's map between the grids. */
static void period_map(const chunk *c)
{
    const scratch *s = c->s;
    int64_t S = c->shape->S;
    for (int64_t n = 0; n < c->rows; n++) {
        int64_t row = n * c->z->lds;
        real *d_phi = s->d_phi + c->token[n] * c->z->lds;
        for (int64_t i = 0; i < S; i++)
            for (int64_t j = 0; j < S; j++)
                d_phi[(i + j) % S] += s->z[row + j] * s->x[row + i] + s->dw[row + i] * s->p[row + j];
    }
}

/* d_phi of a chunk for one query head; the gradient of the slots after the chunk counts once, with the first
 * head. */
static void period_head(const chunk *c, const real *after, int first)
{
    scratch *s = c->s;
    const layout *z = c->z;
    const bla_shape *shape = c->shape;
    head_gradient g = {0};
    if (c->rows) g = gradient_of_logits(c);
    if (shape->relative) period_map(c);
    real *adjoint = s->adjoint;
    for (int64_t j = 0; j < shape->S; j++) {
        for (int64_t d = 0; d < shape->Dk; d++) adjoint[d] = first && after ? after[j * z->ldk + d] : 0;
        period_slot(c, j, shape->Dk, z->ldk, s->q, g.dx, s->k, c->KT + j, z->lds, adjoint);
        for (int64_t d = 0; d < shape->Dv; d++)
            adjoint[d] = first && after ? after[z->Sp * z->ldk + j * z->ldv + d] : 0;
        period_slot(c, j, shape->Dv, z->ldv, s->d_o, g.w, s->v, c->V + j * z->ldv, 1, adjoint);
    }
}

static void period_task(void *context, int64_t task, int worker)
{
    run *r = context;
    const layout *z = &r->z;
    const bla_shape *shape = r->shape;
    scratch *s = &r->workers[worker];
    place p = place_of(r, task / z->wave, task % z->wave);
    double *to = r->partial + 2 * (p.local * z->wave + p.g);
    to[0] = to[1] = 0;
    if (!p.there || shape->raised[p.h]) return;
    find_rows(r, &p);
    chunk c = open_chunk_backward(r, &p, s);
    memset(s->d_phi, 0, (size_t)(z->Cp * z->lds) * sizeof(real));
    const real *after = p.last && !r->d_out.k ? NULL : d_state_at(r, &p);
    for (int64_t i = 0; i < z->group; i++) {
        pack_head(r, &p, p.h * z->group + i, s);
        period_head(&c, after, i == 0);
    }
    for (int64_t t = 0; t < p.n; t++) {
        dirichlet_weights_dT(shape->S, c.w->period, p.position + t, s->row, s->row_dT);
        for (int64_t j = 0; j < shape->S; j++) {
            double part = (double)s->d_phi[t * z->lds + j] * s->row_dT[j];
            to[0] += part;
            to[1] += fabs(part);
        }
    }
}

/* Adds the wave's chunks to their chains, right to left: the same order for every wave length. */
static void period_collect(run *r)
{
    for (int64_t local = 0; local < r->n_chains; local++)
        for (int64_t g = r->z.wave - 1; g >= 0; g--)
            for (int i = 0; i < 2; i++)
                r->of_chain[2 * (r->chain0 + local) + i] += r->partial[2 * (local * r->z.wave + g) + i];
}

static void period_finish(run *r)
{
    for (int64_t h = 0; h < r->shape->Hkv; h++) {
        double sum[2] = {0, 0};
        for (int64_t b = 0; b < r->n_sequences; b++)
            for (int i = 0; i < 2; i++) sum[i] += r->of_chain[2 * (b * r->shape->Hkv + h) + i];
        if (r->d_period) r->d_period[h] = sum[0];
        if (r->d_period_abs) r->d_period_abs[h] = sum[1];
    }
}

#endif
