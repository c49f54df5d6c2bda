/* Chains, waves and the scan of states over chunks. Internal to simd.c. */
#ifndef BLURRY_KERNELS_BLURRY_SIMD_WAVES_H
#define BLURRY_KERNELS_BLURRY_SIMD_WAVES_H
#include "base/threads.h"
#include "kernels/blurry/simd_forward.h"

enum { SCAN_PARTS = 8 };

/* Everything a task may look at. One struct for forward and backward; the latter's fields are NULL in the
 * former. */
typedef struct run {
    const bla_shape *shape;
    const tables *tables;
    layout z;
    const bla_sequence *sequences;
    int64_t n_sequences;
    const real *q, *k, *v, *d_o;
    bla_rows rows;
    real *o, *d_q, *d_k, *d_v;
    bla_slots in, out, d_out, d_in;
    int want_out;
    double *d_period, *d_period_abs;
    /* memory */
    scratch *workers;    /* [threads] */
    int64_t *wave_base;  /* [batch] waves of all earlier sequences: where a sequence's saved states start */
    int64_t *chunk_base; /* [batch] the same in chunks */
    real *saved;         /* state before each wave, [waves, Hkv, state], or NULL */
    real *running;       /* [together, state] */
    real *states;        /* [together, wave, state] increments, then the state before each chunk */
    real *every;         /* [chunks, Hkv, state] the same of all chains, in place of `states`; or NULL */
    real *kept;          /* [together, wave, lds] share of the old slots that survives a chunk */
    real *phi;           /* [together, wave, C, lds] for periods that are not tabulated */
    real *d_running;     /* [together, d_state] */
    real
        *d_states; /* [together, wave, d_state] increments, then the gradient of the state after each chunk */
    double *partial;  /* [together, wave, 2] d_period and d_period_abs of a chunk */
    double *of_chain; /* [chains, 2] */
    /* the piece now worked on */
    int64_t chain0, n_chains; /* chains chain0 .. chain0+n_chains-1 */
    int64_t wave0;            /* first chunk of the wave */
} run;

/* A chunk's place: `there` is 0 beyond the end of its sequence. */
typedef struct place {
    int there;
    int64_t chain, b, h;     /* chain in all, its sequence and key/value head */
    int64_t local, g;        /* chain within the group, chunk within the wave */
    int64_t index, n, first; /* chunk of the sequence, tokens in it, its first token */
    int64_t position;
    int last;           /* the sequence's last chunk */
    int64_t row0, rows; /* find_rows: its rows of q and o */
} place;

static place place_of(const run *r, int64_t local, int64_t g)
{
    place p = {.local = local, .g = g, .chain = r->chain0 + local};
    p.b = p.chain / r->shape->Hkv, p.h = p.chain % r->shape->Hkv;
    p.index = r->wave0 + g;
    const bla_sequence *q = &r->sequences[p.b];
    int64_t from = p.index * r->z.C;
    p.there = from < q->count;
    if (!p.there) return p;
    p.n = q->count - from < r->z.C ? q->count - from : r->z.C;
    p.first = q->first + from;
    p.position = q->position + from;
    p.last = from + p.n == q->count;
    return p;
}

/* The rows whose tokens lie in the chunk. */
static void find_rows(const run *r, place *p)
{
    p->row0 = bla_rows_from(&r->rows, p->first);
    p->rows = bla_rows_from(&r->rows, p->first + p->n) - p->row0;
}

static int64_t chunks_of(const run *r, int64_t b)
{
    return (r->sequences[b].count + r->z.C - 1) / r->z.C;
}

static inline real *state_at(const run *r, const place *p)
{
    if (r->every) return r->every + ((r->chunk_base[p->b] + p->index) * r->shape->Hkv + p->h) * r->z.state;
    return r->states + (p->local * r->z.wave + p->g) * r->z.state;
}

static inline real *d_state_at(const run *r, const place *p)
{
    return r->d_states + (p->local * r->z.wave + p->g) * r->z.d_state;
}

static inline real *kept_at(const run *r, const place *p)
{
    return r->kept + (p->local * r->z.wave + p->g) * r->z.lds;
}

static inline real *phi_at(const run *r, const place *p)
{
    return r->phi + (p->local * r->z.wave + p->g) * r->z.C * r->z.lds;
}

/* The saved state before the wave that starts at r->wave0. */
static inline real *saved_at(const run *r, int64_t chain)
{
    int64_t b = chain / r->shape->Hkv, h = chain % r->shape->Hkv;
    return r->saved + ((r->wave_base[b] + r->wave0 / r->z.wave) * r->shape->Hkv + h) * r->z.state;
}

static inline const weights *weights_of(const run *r, const place *p)
{
    return &r->tables->list[r->tables->of_head[p->h]];
}

/* The earliest chain of the group whose weights are the same: it computes them for all. */
static int64_t phi_owner(const run *r, const place *p)
{
    for (int64_t other = 0; other < p->local; other++) {
        place q = place_of(r, other, p->g);
        if (q.there && q.n >= p->n && q.position == p->position && weights_of(r, &q) == weights_of(r, p))
            return other;
    }
    return p->local;
}

/* phi [n, lds] of a chunk: a block of the table, or computed for this wave. */
static const real *chunk_phi(const run *r, const place *p, const real **phi_t, int64_t *ld_t)
{
    const weights *w = weights_of(r, p);
    *phi_t = NULL, *ld_t = 0;
    if (w->rows) {
        int64_t row = p->position % w->rows;
        *phi_t = w->phi_t + row, *ld_t = w->ld_t;
        return w->phi + row * r->z.lds;
    }
    place owner = *p;
    owner.local = phi_owner(r, p);
    return phi_at(r, &owner);
}

static void phi_task(void *context, int64_t task, int worker)
{
    (void)worker;
    run *r = context;
    place p = place_of(r, task / r->z.wave, task % r->z.wave);
    if (!p.there || weights_of(r, &p)->rows || phi_owner(r, &p) != p.local) return;
    for (int64_t t = 0; t < p.n; t++)
        weights_row(weights_of(r, &p), r->shape->S, r->z.lds, p.position + t, phi_at(r, &p) + t * r->z.lds);
}

static void gather_task(void *context, int64_t task, int worker)
{
    run *r = context;
    const bla_shape *shape = r->shape;
    scratch *s = &r->workers[worker];
    place p = place_of(r, task / r->z.wave, task % r->z.wave);
    if (!p.there || (p.last && !r->want_out)) return;
    const real *phi_t;
    int64_t ld_t;
    const real *phi = chunk_phi(r, &p, &phi_t, &ld_t);
    const real *weight = write_tables(shape, &r->z, p.n, phi, s, kept_at(r, &p));
    pack_rows(p.n, shape->Dk, r->k + (p.first * shape->Hkv + p.h) * shape->Dk, shape->Hkv * shape->Dk, 1,
              s->k, r->z.ldk);
    pack_rows(p.n, shape->Dv, r->v + (p.first * shape->Hkv + p.h) * shape->Dv, shape->Hkv * shape->Dv, 1,
              s->v, r->z.ldv);
    gather_chunk(shape, &r->z, p.n, weight, s, state_at(r, &p));
}

/* One step of the scan over some rows of a state: before = running, running = keep * running + increment,
 * where `increment` is overwritten by `before`. Rows below z.Dk are KT's (keep per column), the others V's
 * (keep per row). */
static void scan_rows(const run *r, int64_t from, int64_t to, const real *kept, real *running, real *slot)
{
    const layout *z = &r->z;
    const int64_t Dk = r->shape->Dk;
    for (int64_t row = from; row < to; row++) {
        int64_t key = row < Dk, width = key ? z->Sp : z->Dvp;
        int64_t at = key ? row * z->lds : z->Dkp * z->lds + (row - Dk) * z->ldv;
        real *a = running + at, *b = slot + at;
        vreal same = key ? v_zero() : v_set1(kept[row - Dk]);
        for (int64_t j = 0; j < width; j += VL) {
            vreal keep = key ? v_load(kept + j) : same;
            vreal old = v_load(a + j), add = v_load(b + j);
            v_store(b + j, old);
            v_store(a + j, keep * old + add);
        }
    }
}

static void scan_task(void *context, int64_t task, int worker)
{
    (void)worker;
    run *r = context;
    int64_t local = task / SCAN_PARTS, part = task % SCAN_PARTS, rows = r->shape->Dk + r->shape->S;
    int64_t from = rows * part / SCAN_PARTS, to = rows * (part + 1) / SCAN_PARTS;
    const layout *z = &r->z;
    real *running = r->running + local * z->state;
    for (int64_t g = 0; g < z->wave; g++) {
        place p = place_of(r, local, g);
        if (!p.there) break;
        if (g == 0 && r->saved) {
            /* each part keeps its own rows of the state before the wave */
            real *save = saved_at(r, p.chain);
            for (int64_t row = from; row < to; row++) {
                int64_t key = row < r->shape->Dk;
                int64_t at = key ? row * z->lds : z->Dkp * z->lds + (row - r->shape->Dk) * z->ldv;
                memcpy(save + at, running + at, (size_t)(key ? z->Sp : z->Dvp) * sizeof *save);
            }
        }
        if (p.last && !r->want_out) {
            /* nothing was gathered: only hand over the state */
            for (int64_t row = from; row < to; row++) {
                int64_t key = row < r->shape->Dk;
                int64_t at = key ? row * z->lds : z->Dkp * z->lds + (row - r->shape->Dk) * z->ldv;
                memcpy(state_at(r, &p) + at, running + at, (size_t)(key ? z->Sp : z->Dvp) * sizeof *running);
            }
            break;
        }
        scan_rows(r, from, to, kept_at(r, &p), running, state_at(r, &p));
    }
}

/* Slots as the caller keeps them, [S, Dk] and [S, Dv], to a state and back. */
static void state_load(const run *r, int64_t chain, real *state)
{
    const bla_shape *shape = r->shape;
    int64_t b = chain / shape->Hkv, h = chain % shape->Hkv, S = shape->S;
    memset(state, 0, (size_t)r->z.state * sizeof *state);
    if (!r->in.k) return;
    const real *k = (const real *)r->in.k + b * r->in.stride_k + h * S * shape->Dk;
    const real *v = (const real *)r->in.v + b * r->in.stride_v + h * S * shape->Dv;
    for (int64_t j = 0; j < S; j++)
        for (int64_t d = 0; d < shape->Dk; d++) state[d * r->z.lds + j] = k[j * shape->Dk + d];
    real *V = state + r->z.Dkp * r->z.lds;
    for (int64_t j = 0; j < S; j++)
        memcpy(V + j * r->z.ldv, v + j * shape->Dv, (size_t)shape->Dv * sizeof *V);
}

static void state_store(const run *r, int64_t chain, const real *state)
{
    const bla_shape *shape = r->shape;
    int64_t b = chain / shape->Hkv, h = chain % shape->Hkv, S = shape->S;
    real *k = (real *)r->out.k + b * r->out.stride_k + h * S * shape->Dk;
    real *v = (real *)r->out.v + b * r->out.stride_v + h * S * shape->Dv;
    for (int64_t j = 0; j < S; j++)
        for (int64_t d = 0; d < shape->Dk; d++) k[j * shape->Dk + d] = state[d * r->z.lds + j];
    const real *V = state + r->z.Dkp * r->z.lds;
    for (int64_t j = 0; j < S; j++)
        memcpy(v + j * shape->Dv, V + j * r->z.ldv, (size_t)shape->Dv * sizeof *V);
}

static void load_task(void *context, int64_t task, int worker)
{
    (void)worker;
    run *r = context;
    state_load(r, r->chain0 + task, r->running + task * r->z.state);
}

static void store_task(void *context, int64_t task, int worker)
{
    (void)worker;
    run *r = context;
    state_store(r, r->chain0 + task, r->running + task * r->z.state);
}

/* Chunks of the longest sequence among the chains now worked on. */
static int64_t group_chunks(const run *r)
{
    int64_t most = 0;
    for (int64_t i = 0; i < r->n_chains; i++) {
        int64_t chunks = chunks_of(r, (r->chain0 + i) / r->shape->Hkv);
        if (chunks > most) most = chunks;
    }
    return most;
}

static int any_untabulated(const run *r)
{
    for (int64_t i = 0; i < r->tables->distinct; i++)
        if (!r->tables->list[i].rows) return 1;
    return 0;
}

/* What the old slots keep of a chunk, where its state is there already. */
static void kept_task(void *context, int64_t task, int worker)
{
    run *r = context;
    place p = place_of(r, task / r->z.wave, task % r->z.wave);
    if (!p.there || (p.last && !r->want_out)) return;
    const real *phi_t;
    int64_t ld_t;
    const real *phi = chunk_phi(r, &p, &phi_t, &ld_t);
    write_tables(r->shape, &r->z, p.n, phi, &r->workers[worker], kept_at(r, &p));
}

/* Tables and shares kept for the wave at r->wave0, whose states the forward pass left. */
static void wave_tables(run *r)
{
    int64_t tasks = r->n_chains * r->z.wave;
    if (any_untabulated(r)) threads_run(r->shape->threads, tasks, phi_task, r);
    threads_run(r->shape->threads, tasks, kept_task, r);
}

/* States before every chunk of the wave at r->wave0, and r->running moved past it. */
static void wave_states(run *r)
{
    int threads = r->shape->threads;
    int64_t tasks = r->n_chains * r->z.wave;
    if (any_untabulated(r)) threads_run(threads, tasks, phi_task, r);
    threads_run(threads, tasks, gather_task, r);
    threads_run(threads, r->n_chains * SCAN_PARTS, scan_task, r);
}

static void wave_bases(run *r)
{
    int64_t waves = 0, chunks = 0;
    for (int64_t b = 0; b < r->n_sequences; b++) {
        r->wave_base[b] = waves, r->chunk_base[b] = chunks;
        waves += (chunks_of(r, b) + r->z.wave - 1) / r->z.wave;
        chunks += chunks_of(r, b);
    }
}

/* Starts a chunk for reading: its tables, packed k and v and k transposed. */
static chunk open_chunk(const run *r, const place *p, scratch *s)
{
    const bla_shape *shape = r->shape;
    const layout *z = &r->z;
    const real *phi_t;
    int64_t ld_t;
    const real *phi = chunk_phi(r, p, &phi_t, &ld_t);
    const real *state = state_at(r, p);
    chunk c = {.shape = shape, .z = z, .w = weights_of(r, p), .s = s, .n = p->n, .position = p->position};
    c.ct = read_tables(shape, z, p->n, phi, phi_t, ld_t, s, s->awkward);
    c.KT = state, c.V = state + z->Dkp * z->lds;
    c.empty = p->index == 0 && !r->in.k;
    c.rows = p->rows, c.token = s->token;
    for (int64_t i = 0; i < p->rows; i++)
        s->token[i] = r->rows.rows ? r->rows.rows[p->row0 + i] - p->first : i;
    pack_rows(p->n, shape->Dk, r->k + (p->first * shape->Hkv + p->h) * shape->Dk, shape->Hkv * shape->Dk, 1,
              s->k, z->ldk);
    pack_rows(p->n, shape->Dv, r->v + (p->first * shape->Hkv + p->h) * shape->Dv, shape->Hkv * shape->Dv, 1,
              s->v, z->ldv);
    transpose(p->n, z->Dkp, s->k, z->ldk, s->k_t, z->ldc);
    return c;
}

#endif
