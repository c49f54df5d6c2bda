/* One chunk of the forward pass: logits, softmax over the slots, outputs; and what a chunk writes into the
 * slots. Internal to simd.c. Formulas: docs/operator.md, "Chunked form". */
#ifndef BLURRY_KERNELS_BLURRY_SIMD_FORWARD_H
#define BLURRY_KERNELS_BLURRY_SIMD_FORWARD_H
#include "kernels/blurry/simd_tables.h"

/* A chunk being read: n tokens from `position`, the slots before it, its tables. Its rows are the queries:
 * one per token, or one for each token that is wanted; row i reads the slots after token[i], ascending. */
typedef struct chunk {
    const bla_shape *shape;
    const layout *z;
    const weights *w;
    scratch *s;
    chunk_tables ct;
    int64_t n, position;
    int64_t rows;         /* 1 .. n */
    const int64_t *token; /* [rows] */
    const real *KT, *V;   /* [Dk, lds], [S, ldv] slots before the chunk */
    int empty;            /* the slots before the chunk are all zero */
} chunk;

/* to [n, ld] = factor * rows of `from`, zero beyond D and in the rows up to a whole vector. */
static void pack_rows(int64_t n, int64_t D, const real *from, int64_t stride, real factor, real *to,
                      int64_t ld)
{
    for (int64_t t = 0; t < n; t++) {
        const real *f = from + t * stride;
        real *row = to + t * ld;
        int64_t d = 0;
        for (; d + VL <= D; d += VL) v_store(row + d, v_load(f + d) * factor);
        for (; d < D; d++) row[d] = f[d] * factor;
        for (; d < ld; d++) row[d] = 0;
    }
    if (n % VL) memset(to + n * ld, 0, (size_t)((VL - n % VL) * ld) * sizeof *to);
}

static void unpack_rows(int64_t n, int64_t D, const real *from, int64_t ld, real factor, real *to,
                        int64_t stride)
{
    for (int64_t t = 0; t < n; t++) {
        const real *f = from + t * ld;
        real *row = to + t * stride;
        int64_t d = 0;
        for (; d + VL <= D; d += VL) v_store(row + d, v_load(f + d) * factor);
        for (; d < D; d++) row[d] = f[d] * factor;
    }
}

/* out[j] = sum_i phi[(i + j) mod S] in[i] for j < S, zero beyond: from slots of the absolute grid to those of
 * the relative grid at the row's position, and back (the map is symmetric). */
static void correlate(const layout *z, int64_t S, const real *phi, const real *in, real *out, real *twice)
{
    enum { WIDE = 4 };
    memcpy(twice, phi, (size_t)S * sizeof *phi);
    memcpy(twice + S, phi, (size_t)S * sizeof *phi);
    memset(twice + 2 * S, 0, (size_t)(2 * z->lds + VL - 2 * S) * sizeof *phi);
    for (int64_t j = 0; j < z->Sp; j += WIDE * VL) {
        int64_t left = (z->Sp - j) / VL;
        vreal sum[WIDE] = {v_zero(), v_zero(), v_zero(), v_zero()};
        if (left >= WIDE)
            for (int64_t i = 0; i < S; i++) {
                vreal x = v_set1(in[i]);
#pragma GCC unroll 4
                for (int v = 0; v < WIDE; v++) sum[v] += x * v_load(twice + i + j + v * VL);
            }
        else
            for (int64_t v = 0; v < left; v++)
                for (int64_t i = 0; i < S; i++) sum[v] += in[i] * v_load(twice + i + j + v * VL);
        for (int64_t v = 0; v < WIDE && v < left; v++) v_store(out + j + v * VL, sum[v]);
    }
    for (int64_t j = S; j < z->lds; j++) out[j] = 0;
}

static void correlate_rows(const chunk *c, const real *in, real *out)
{
    const layout *z = c->z;
    for (int64_t i = 0; i < c->rows; i++)
        correlate(z, c->shape->S, c->ct.phi + c->token[i] * z->lds, in + i * z->lds, out + i * z->lds,
                  c->s->keep);
}

/* ---- products with [rows, tokens] matrices, which are zero where the token comes after the row's ---- */
/* out [rows, ldc] = a [rows, k] b [k, tokens], zero after each row's token. */
static void rows_by_tokens(const chunk *c, int64_t k, const real *a, int64_t lda, const real *b, int64_t ldb,
                           real *out)
{
    const layout *z = c->z;
    for (int64_t i = 0; i < c->rows; i += TILE_ROWS) {
        int64_t rows = c->rows - i < TILE_ROWS ? c->rows - i : TILE_ROWS;
        int64_t columns = round_up(c->token[i + rows - 1] + 1, VL);
        tile_some_rows(rows, columns, k, (tile_a){a + i * lda, lda, 1}, b, ldb, out + i * z->ldc, z->ldc, 0);
        for (int64_t r = i; r < i + rows; r++)
            for (int64_t u = c->token[r] + 1; u < z->Cp; u++) out[r * z->ldc + u] = 0;
    }
}

/* out [rows, width] (+)= a [rows, ldc] b [tokens, width]. */
static void rows_from_tokens(const chunk *c, int64_t width, const real *a, const real *b, int64_t ldb,
                             real *out, int64_t ldo, int accumulate)
{
    for (int64_t i = 0; i < c->rows; i += TILE_ROWS) {
        int64_t rows = c->rows - i < TILE_ROWS ? c->rows - i : TILE_ROWS, reach = c->token[i + rows - 1] + 1;
        tile_some_rows(rows, width, reach, (tile_a){a + i * c->z->ldc, c->z->ldc, 1}, b, ldb, out + i * ldo,
                       ldo, accumulate);
    }
}

/* out [tokens, width] (+)= a [rows, ldc] transposed, times b [rows, width]. */
static void tokens_from_rows(const chunk *c, int64_t width, const real *a, const real *b, int64_t ldb,
                             real *out, int64_t ldo, int accumulate)
{
    for (int64_t u = 0, i = 0; u < c->n; u += TILE_ROWS) {
        while (i < c->rows && c->token[i] < u) i++; /* the first row that sees token u */
        tile_some_rows(c->n - u, width, c->rows - i, (tile_a){a + i * c->z->ldc + u, 1, c->z->ldc},
                       b + i * ldb, ldb, out + u * ldo, ldo, accumulate);
    }
}

/* rows [rows, lds] = <left, slot> for every slot at every row's token: left [rows, ldl] against the slots
 * before the chunk, state_t [D, lds], and against the chunk's own tokens, tokens_t [D, ldc]; `inner` [rows,
 * ldc] receives <left_i, token_u>, `part` [rows, lds] is scratch. The forward pass calls it with q and K, the
 * backward pass with d_o and V. */
static void against_slots(const chunk *c, int64_t D, const real *left, int64_t ldl, const real *state_t,
                          const real *tokens_t, real *inner, real *part, real *rows)
{
    const layout *z = c->z;
    rows_by_tokens(c, D, left, ldl, tokens_t, z->ldc, inner);
    if (!c->empty) tile_gemm(c->rows, z->Sp, D, (tile_a){left, ldl, 1}, state_t, z->lds, rows, z->lds, 0);
    if (!c->ct.b) {
        rows_from_tokens(c, z->Sp, inner, c->ct.P, z->lds, rows, z->lds, !c->empty);
        return;
    }
    rows_from_tokens(c, z->Sp, inner, c->ct.P, z->lds, part, z->lds, 0);
    for (int64_t i = 0; i < c->rows; i++)
        for (int64_t j = 0; j < z->Sp; j += VL) {
            int64_t at = i * z->lds + j, table = c->token[i] * z->lds + j;
            vreal sum = v_load(c->ct.c + table) * v_load(part + at);
            if (!c->empty) sum += v_load(c->ct.b + table) * v_load(rows + at);
            v_store(rows + at, sum);
        }
    for (int64_t a = 0; a < c->ct.n_awkward; a++) {
        int64_t j = c->ct.awkward[a];
        awkward_weights(z, &c->ct, j, c->s->W);
        for (int64_t i = 0; i < c->rows; i++) {
            vreal sum = v_zero();
            for (int64_t u = 0; u <= c->token[i]; u += VL)
                sum += v_load(inner + i * z->ldc + u) * v_load(c->s->W + c->token[i] * z->ldc + u);
            rows[i * z->lds + j] += v_sum(sum);
        }
    }
}

/* mix [rows, ldc] = the weight with which a row's slot weights reach token u of the chunk: scaled [rows, lds]
 * are the slot weights times c, plain the weights themselves. */
static void onto_tokens(const chunk *c, const real *plain, const real *scaled, real *mix)
{
    const layout *z = c->z;
    rows_by_tokens(c, c->shape->S, scaled, z->lds, c->ct.PT, c->ct.ld_pt, mix);
    for (int64_t a = 0; a < c->ct.n_awkward; a++) {
        int64_t j = c->ct.awkward[a];
        awkward_weights(z, &c->ct, j, c->s->W);
        for (int64_t i = 0; i < c->rows; i++) {
            vreal p = v_set1(plain[i * z->lds + j]);
            for (int64_t u = 0; u <= c->token[i]; u += VL) {
                real *at = mix + i * z->ldc + u;
                v_store(at, v_load(at) + p * v_load(c->s->W + c->token[i] * z->ldc + u));
            }
        }
    }
}

/* Softmax of a row over its first `visible` entries, the rest of the padded row 0. */
static void softmax_row(const layout *z, const real *logits, int64_t visible, real *p)
{
    int64_t whole = visible / VL * VL;
    vreal top = v_set1(-(real)INFINITY);
    for (int64_t j = 0; j < whole; j += VL) top = v_max(top, v_load(logits + j));
    if (whole < visible) top = v_max(top, v_load_part(logits + whole, visible - whole, -(real)INFINITY));
    real most = v_hmax(top);
    vreal sum = v_zero();
    for (int64_t j = 0; j < whole; j += VL) {
        vreal e = v_exp(v_load(logits + j) - most);
        sum += e;
        v_store(p + j, e);
    }
    if (whole < visible) {
        vreal e = v_exp(v_load_part(logits + whole, visible - whole, -(real)INFINITY) - most);
        sum += e;
        v_store(p + whole, e);
    }
    for (int64_t j = round_up(visible, VL); j < z->lds; j += VL) v_store(p + j, v_zero());
    real share = 1 / v_sum(sum);
    for (int64_t j = 0; j < visible; j += VL) v_store(p + j, v_load(p + j) * share);
}

/* s->p [rows, lds]: the slots' probabilities. s->x holds the logits on the absolute grid's slots; on the
 * relative grid s->y the logits of its own. s->q and s->k_t must be packed. */
static void probabilities(const chunk *c)
{
    scratch *s = c->s;
    const layout *z = c->z;
    against_slots(c, c->shape->Dk, s->q, z->ldk, c->KT, s->k_t, s->scores, s->y, s->x);
    const real *logits = s->x;
    if (c->shape->relative) {
        correlate_rows(c, s->x, s->y);
        logits = s->y;
    }
    int64_t visible = 0;
    for (int64_t i = 0; i < c->rows; i++) {
        visible = visible_slots(c->w, c->shape->S, c->position + c->token[i], visible);
        softmax_row(z, logits + i * z->lds, visible, s->p + i * z->lds);
    }
}

/* With decay: by_b = rows * b and by_c = rows * c, for the slots before the chunk and its own tokens. */
static void split_by_decay(const chunk *c, const real *rows, real *by_b, real *by_c)
{
    const layout *z = c->z;
    for (int64_t i = 0; i < c->rows; i++)
        for (int64_t j = 0; j < z->Sp; j += VL) {
            int64_t at = i * z->lds + j, table = c->token[i] * z->lds + j;
            vreal x = v_load(rows + at);
            v_store(by_b + at, x * v_load(c->ct.b + table));
            v_store(by_c + at, x * v_load(c->ct.c + table));
        }
}

/* One query head of a chunk: s->o [rows, ldv]. s->q, s->k_t, s->v must be packed. */
static void emit_head(const chunk *c)
{
    scratch *s = c->s;
    const layout *z = c->z;
    probabilities(c);
    real *slots = s->p, *before = s->p, *own = s->p;
    if (c->shape->relative) {
        correlate_rows(c, s->p, s->x);
        slots = before = own = s->x;
    } else if (c->ct.b) {
        before = s->pb, own = s->y;
        split_by_decay(c, s->p, before, own);
    }
    onto_tokens(c, slots, own, s->mix);
    if (!c->empty)
        tile_gemm(c->rows, z->Dvp, c->shape->S, (tile_a){before, z->lds, 1}, c->V, z->ldv, s->o, z->ldv, 0);
    rows_from_tokens(c, z->Dvp, s->mix, s->v, z->ldv, s->o, z->ldv, !c->empty);
}

/* What a chunk's tokens, s->k and s->v packed, leave in the slots: increment = KT [Dk, lds], V [S, ldv]. */
static void gather_chunk(const bla_shape *shape, const layout *z, int64_t n, const real *weight, scratch *s,
                         real *increment)
{
    real *KT = increment, *V = increment + z->Dkp * z->lds;
    tile_gemm(shape->Dk, z->Sp, n, (tile_a){s->k, 1, z->ldk}, weight, z->lds, KT, z->lds, 0);
    tile_gemm(shape->S, z->Dvp, n, (tile_a){weight, 1, z->lds}, s->v, z->ldv, V, z->ldv, 0);
}

#endif
