/* Blurry attention in chunks, vectorised: forward and backward, compiled once per instruction set and element
 * type. simd_layout.h says how the work is cut up, simd_tables.h how decay is made safe, simd_forward.h and
 * simd_backward.h what a chunk computes, simd_period.h the gradient by the period. */
#include "kernels/blurry/simd_period.h"

extern const bla_kernel VARIANT(bla_kernel);

static int64_t saved_states(const bla_shape *shape, const layout *z)
{
    /* a sequence of n tokens has at most n / (C * wave) + 1 waves */
    return shape->Hkv * (shape->tokens / (z->C * z->wave) + shape->batch);
}

/* Lays out the workspace; with base NULL it only measures. */
static void run_carve(run *r, carver *m, int backward)
{
    const layout *z = &r->z;
    int64_t chunks = z->together * z->wave;
    r->workers = (scratch *)(void *)carve(m, r->shape->threads, (int64_t)(sizeof(scratch) / sizeof(float)));
    for (int i = 0; i < r->shape->threads; i++) {
        scratch s = scratch_carve(m, z, backward);
        if (m->base) r->workers[i] = s;
    }
    r->wave_base = (int64_t *)(void *)carve(m, 2, r->shape->batch);
    r->chunk_base = (int64_t *)(void *)carve(m, 2, r->shape->batch);
    r->running = carve(m, z->together, z->state);
    r->states = carve(m, chunks, z->state);
    r->kept = carve(m, chunks, z->lds);
    r->phi = carve(m, chunks, z->C * z->lds);
    if (!backward) return;
    r->saved = carve(m, saved_states(r->shape, z), z->state);
    r->d_running = carve(m, z->together, z->d_state);
    r->d_states = carve(m, chunks, z->d_state);
    r->partial = (double *)(void *)carve(m, 4, chunks);
    r->of_chain = (double *)(void *)carve(m, 4, z->chains);
}

static size_t forward_workspace(const bla_shape *shape)
{
    run r = {.shape = shape, .z = layout_of(shape)};
    carver m = {0};
    run_carve(&r, &m, 0);
    return m.used;
}

static size_t backward_workspace(const bla_shape *shape)
{
    run r = {.shape = shape, .z = layout_of(shape)};
    carver m = {0};
    run_carve(&r, &m, 1);
    return m.used;
}

static size_t saved_bytes(const bla_shape *shape)
{
    layout z = layout_of(shape);
    int64_t states = z.every ? shape->Hkv * (shape->tokens / z.C + shape->batch) : saved_states(shape, &z);
    return size_align(size_mul(size_of(states, (size_t)z.state), sizeof(real)));
}

static void emit_task(void *context, int64_t task, int worker)
{
    run *r = context;
    const bla_shape *shape = r->shape;
    const layout *z = &r->z;
    scratch *s = &r->workers[worker];
    place p = place_of(r, task / z->wave, task % z->wave);
    if (!p.there) return;
    find_rows(r, &p);
    if (!p.rows) return;
    chunk c = open_chunk(r, &p, s);
    for (int64_t i = 0; i < z->group; i++) {
        int64_t head = p.h * z->group + i;
        pack_head(r, &p, head, s);
        emit_head(&c);
        unpack_rows(p.rows, shape->Dv, s->o, z->ldv, 1, r->o + (p.row0 * shape->H + head) * shape->Dv,
                    shape->H * shape->Dv);
    }
}

/* All waves of the chains now chosen, left to right: states, and outputs unless only the saved states are
 * wanted. */
static void forward_chains(run *r, int outputs)
{
    int threads = r->shape->threads;
    int64_t chunks = group_chunks(r);
    threads_run(threads, r->n_chains, load_task, r);
    for (r->wave0 = 0; r->wave0 < chunks; r->wave0 += r->z.wave) {
        wave_states(r);
        if (outputs) threads_run(threads, r->n_chains * r->z.wave, emit_task, r);
    }
    if (r->out.k) threads_run(threads, r->n_chains, store_task, r);
}

static void forward(const bla_shape *shape, const void *prepared, const bla_forward *args)
{
    run r = {.shape = shape,
             .tables = prepared,
             .z = layout_of(shape),
             .sequences = args->sequences,
             .n_sequences = args->n_sequences,
             .q = args->q,
             .k = args->k,
             .v = args->v,
             .o = args->o,
             .rows = args->rows,
             .in = args->in,
             .out = args->out};
    carver m = {.base = args->workspace};
    run_carve(&r, &m, 0);
    if (r.z.every)
        r.every = args->saved;
    else
        r.saved = args->saved;
    r.want_out = r.out.k != NULL;
    wave_bases(&r);
    int64_t chains = r.n_sequences * shape->Hkv;
    for (r.chain0 = 0; r.chain0 < chains; r.chain0 += r.z.together) {
        r.n_chains = chains - r.chain0 < r.z.together ? chains - r.chain0 : r.z.together;
        forward_chains(&r, 1);
    }
}

static void restore_task(void *context, int64_t task, int worker)
{
    (void)worker;
    run *r = context;
    int64_t chain = r->chain0 + task;
    if (r->wave0 < chunks_of(r, chain / r->shape->Hkv))
        memcpy(r->running + task * r->z.state, saved_at(r, chain), (size_t)r->z.state * sizeof(real));
}

/* All waves of the chains now chosen, right to left. */
static void backward_chains(run *r, real *saved)
{
    int threads = r->shape->threads;
    int64_t chunks = group_chunks(r), tasks = r->n_chains * r->z.wave;
    threads_run(threads, r->n_chains, d_load_task, r);
    for (r->wave0 = (chunks - 1) / r->z.wave * r->z.wave; chunks > 0 && r->wave0 >= 0;
         r->wave0 -= r->z.wave) {
        if (r->every) {
            wave_tables(r);
        } else {
            r->saved = saved;
            threads_run(threads, r->n_chains, restore_task, r);
            r->saved = NULL; /* they are there already */
            wave_states(r);
        }
        threads_run(threads, tasks, differentiate_task, r);
        threads_run(threads, r->n_chains * SCAN_PARTS, d_scan_task, r);
        threads_run(threads, tasks, through_slots_task, r);
        if (!r->d_period && !r->d_period_abs) continue;
        threads_run(threads, tasks, period_task, r);
        period_collect(r);
    }
    if (r->d_in.k) threads_run(threads, r->n_chains, d_store_task, r);
}

static void backward(const bla_shape *shape, const void *prepared, const bla_backward *args)
{
    run r = {.shape = shape,
             .tables = prepared,
             .z = layout_of(shape),
             .sequences = args->sequences,
             .n_sequences = args->n_sequences,
             .q = args->q,
             .k = args->k,
             .v = args->v,
             .d_o = args->d_o,
             .rows = args->rows,
             .d_q = args->d_q,
             .d_k = args->d_k,
             .d_v = args->d_v,
             .in = args->in,
             .d_out = args->d_out,
             .d_in = args->d_in,
             .d_period = args->d_period,
             .d_period_abs = args->d_period_abs};
    carver m = {.base = args->workspace};
    run_carve(&r, &m, 1);
    real *saved = r.saved;
    if (r.z.every) r.every = (real *)args->saved;
    wave_bases(&r);
    memset(r.of_chain, 0, (size_t)(2 * r.z.chains) * sizeof *r.of_chain);
    int64_t chains = r.n_sequences * shape->Hkv;
    for (r.chain0 = 0; r.chain0 < chains; r.chain0 += r.z.together) {
        r.n_chains = chains - r.chain0 < r.z.together ? chains - r.chain0 : r.z.together;
        if (!args->saved) {
            r.saved = saved;
            forward_chains(&r, 0);
        }
        /* the share of the slots that survives the last chunk matters only where the slots after it have a
         * gradient */
        r.want_out = r.d_out.k != NULL;
        backward_chains(&r, args->saved ? (real *)args->saved : saved);
        r.want_out = 0;
    }
    period_finish(&r);
}

const bla_kernel VARIANT(bla_kernel) = {
#define NAME_OF(x) #x
#define TEXT_OF(x) NAME_OF(x)
    .name = TEXT_OF(BLURRY_VARIANT_SUFFIX),
    .dtype = REAL_IS_FLOAT ? BLURRY_F32 : BLURRY_F64,
    .prepare = tables_prepare,
    .release = tables_release,
    .forward_workspace = forward_workspace,
    .backward_workspace = backward_workspace,
    .saved_bytes = saved_bytes,
    .forward = forward,
    .backward = backward,
};
