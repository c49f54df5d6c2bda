/* Decode: prefill and steps equal one long forward, for every fold, in every variant; sequences at different
 * positions; forks; states that travel between forward and step. */
#include "support/operator.h"

#include "support/device_memory.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static const op_variant reference = {BLURRY_F64, 1, CPU_ISA_BASE};
static op_variant all[16];
static int n_all;

static int setup(void **state)
{
    (void)state;
    n_all = op_variants(all, 16, 1);
    return 0;
}

static op_case one_token(op_case c, int64_t tokens)
{
    c.L = tokens;
    return c;
}

typedef struct decoder {
    op_case c;
    op_variant v;
    blurry_attn_plan *plan;
    size_t e, bytes;
    blurry_dtype slot; /* type of slots handed over */
    char *states;      /* [B] */
    void *q, *k, *v_in, *o, *workspace;
    void **pointers;
} decoder;

static decoder decoder_open(op_case c, op_variant v, int64_t fold, const op_tensors *t)
{
    decoder d = {.c = c, .v = v, .e = op_element(v.dtype), .slot = op_slot_type(&v)};
    c.L = 1;
    d.plan = op_plan(&c, &v, fold);
    d.bytes = blurry_attn_state_bytes(d.plan);
    d.states = op_guarded((size_t)c.B * d.bytes);
    d.q = op_guarded((size_t)(c.B * c.H * c.Dk) * d.e);
    d.k = op_guarded((size_t)(c.B * c.Hkv * c.Dk) * d.e);
    d.v_in = op_guarded((size_t)(c.B * c.Hkv * c.Dv) * d.e);
    d.o = op_guarded((size_t)(c.B * c.H * c.Dv) * d.e);
    d.workspace = op_guarded(blurry_attn_step_workspace(d.plan));
    d.pointers = op_guarded((size_t)c.B * sizeof(void *));
    int64_t nk = c.Hkv * op_slots(&c) * c.Dk, nv = c.Hkv * op_slots(&c) * c.Dv;
    void *k = malloc((size_t)nk * op_element(d.slot)), *v_slots = malloc((size_t)nv * op_element(d.slot));
    for (int64_t b = 0; b < c.B; b++) {
        d.pointers[b] = d.states + (size_t)b * d.bytes;
        op_to(d.slot, t->k_in + b * nk, k, nk);
        op_to(d.slot, t->v_in + b * nv, v_slots, nv);
        assert_ok(blurry_attn_state_set(d.plan, d.pointers[b], c.position, k, v_slots));
    }
    free(k);
    free(v_slots);
    return d;
}

static void decoder_close(decoder *d)
{
    op_guarded_free(d->states);
    op_guarded_free(d->q);
    op_guarded_free(d->k);
    op_guarded_free(d->v_in);
    op_guarded_free(d->o);
    op_guarded_free(d->workspace);
    op_guarded_free(d->pointers);
    blurry_attn_plan_destroy(&d->plan);
}

/* Whether the pointers are those of the states in their order. */
static int in_a_row(const decoder *d)
{
    for (int64_t b = 0; b < d->c.B; b++)
        if (d->pointers[b] != d->states + (size_t)b * d->bytes) return 0;
    return 1;
}

/* Token i of every sequence, half of them with the states as one batch; the outputs go to the same place in
 * t->o. */
static void decoder_step(decoder *d, op_tensors *t, int64_t i)
{
    const op_case *c = &d->c;
    for (int64_t b = 0; b < c->B; b++) {
        int64_t n = b * c->L + i;
        op_to(d->v.dtype, t->q + n * c->H * c->Dk, (char *)d->q + (size_t)(b * c->H * c->Dk) * d->e,
              c->H * c->Dk);
        op_to(d->v.dtype, t->k + n * c->Hkv * c->Dk, (char *)d->k + (size_t)(b * c->Hkv * c->Dk) * d->e,
              c->Hkv * c->Dk);
        op_to(d->v.dtype, t->v + n * c->Hkv * c->Dv, (char *)d->v_in + (size_t)(b * c->Hkv * c->Dv) * d->e,
              c->Hkv * c->Dv);
    }
    memset(d->o, 0xFF, (size_t)(c->B * c->H * c->Dv) * d->e);
    memset(d->workspace, 0xFF, blurry_attn_step_workspace(d->plan));
    blurry_attn_step_args a = {.count = c->B,
                               .q = d->q,
                               .k = d->k,
                               .v = d->v_in,
                               .o = d->o,
                               .states = d->pointers,
                               .workspace = d->workspace,
                               .workspace_bytes = blurry_attn_step_workspace(d->plan)};
    if (i % 2) a.states = NULL, a.state_batch = in_a_row(d) ? d->states : NULL;
    if (!a.state_batch) a.states = d->pointers;
    assert_ok(blurry_attn_step(d->plan, &a));
    op_wait(d->plan);
    for (int64_t b = 0; b < c->B; b++)
        op_from(d->v.dtype, (char *)d->o + (size_t)(b * c->H * c->Dv) * d->e,
                t->o + (b * c->L + i) * c->H * c->Dv, c->H * c->Dv);
}

static void decoder_slots(const decoder *d, op_tensors *t, int64_t seen)
{
    const op_case *c = &d->c;
    int64_t nk = c->Hkv * op_slots(c) * c->Dk, nv = c->Hkv * op_slots(c) * c->Dv, position;
    void *k = op_guarded((size_t)nk * op_element(d->slot)), *v = op_guarded((size_t)nv * op_element(d->slot));
    for (int64_t b = 0; b < c->B; b++) {
        assert_ok(blurry_attn_state_get(d->plan, d->pointers[b], &position, k, v));
        assert_int_equal(position, c->position + seen);
        op_from(d->slot, k, t->k_out + b * nk, nk);
        op_from(d->slot, v, t->v_out + b * nv, nv);
    }
    op_guarded_free(k);
    op_guarded_free(v);
}

/* Tokens first .. first+count-1 by forward on the decoder's states, pending tokens and all. */
static void decoder_forward(decoder *d, op_tensors *t, int64_t first, int64_t count)
{
    op_case c = one_token(d->c, count);
    blurry_attn_desc desc;
    blurry_attn_plan_desc(d->plan, &desc);
    desc.length = count;
    blurry_attn_plan *plan;
    assert_ok(blurry_attn_plan_create(&plan, &desc));
    int64_t nq = c.H * c.Dk, nk = c.Hkv * c.Dk, nv = c.Hkv * c.Dv, no = c.H * c.Dv;
    char *q = op_guarded((size_t)(c.B * count * nq) * d->e),
         *k = op_guarded((size_t)(c.B * count * nk) * d->e);
    char *v = op_guarded((size_t)(c.B * count * nv) * d->e),
         *o = op_guarded((size_t)(c.B * count * no) * d->e);
    for (int64_t b = 0; b < c.B; b++) {
        int64_t from = b * d->c.L + first, to = b * count;
        op_to(d->v.dtype, t->q + from * nq, q + (size_t)(to * nq) * d->e, count * nq);
        op_to(d->v.dtype, t->k + from * nk, k + (size_t)(to * nk) * d->e, count * nk);
        op_to(d->v.dtype, t->v + from * nv, v + (size_t)(to * nv) * d->e, count * nv);
    }
    size_t bytes = blurry_attn_forward_workspace(plan);
    void *workspace = op_guarded(bytes);
    blurry_attn_forward_args f = {.q = q,
                                  .k = k,
                                  .v = v,
                                  .o = o,
                                  .state_in = d->states,
                                  .workspace = workspace,
                                  .workspace_bytes = bytes};
    assert_ok(blurry_attn_forward(plan, &f)); /* leaves the states alone: done again with state_out below */
    op_wait(plan);
    double *alone = calloc((size_t)(c.B * count * no), sizeof(double));
    op_from(d->v.dtype, o, alone, c.B * count * no);
    f.state_out = d->states;
    assert_ok(blurry_attn_forward(plan, &f));
    op_wait(plan);
    for (int64_t b = 0; b < c.B; b++)
        op_from(d->v.dtype, o + (size_t)(b * count * no) * d->e, t->o + (b * d->c.L + first) * no,
                count * no);
    for (int64_t b = 0; b < c.B; b++)
        assert_memory_equal(alone + b * count * no, t->o + (b * d->c.L + first) * no,
                            (size_t)(count * no) * sizeof(double));
    free(alone);
    op_guarded_free(q);
    op_guarded_free(k);
    op_guarded_free(v);
    op_guarded_free(o);
    op_guarded_free(workspace);
    blurry_attn_plan_destroy(&plan);
}

static const op_case shapes[] = {
    {.B = 2, .L = 60, .H = 2, .Hkv = 2, .Dk = 8, .Dv = 8, .M = 4, .period = {7, 14}, .decay = 1, .seed = 1},
    {.B = 2,
     .L = 60,
     .H = 4,
     .Hkv = 2,
     .Dk = 7,
     .Dv = 19,
     .M = 12,
     .period = {37.5, 61.2},
     .decay = 1,
     .with_state = 1},
    {.B = 1,
     .L = 50,
     .H = 3,
     .Hkv = 1,
     .Dk = 33,
     .Dv = 5,
     .M = 20,
     .period = {100},
     .decay = 0,
     .position = 1000003},
    {.B = 1,
     .L = 70,
     .H = 2,
     .Hkv = 1,
     .Dk = 16,
     .Dv = 64,
     .M = 33,
     .period = {130},
     .decay = 1,
     .position = 999999999989,
     .with_state = 1},
    {.B = 2,
     .L = 45,
     .H = 2,
     .Hkv = 2,
     .Dk = 12,
     .Dv = 10,
     .M = 9,
     .period = {34, 20.7},
     .relative = 1,
     .with_state = 1},
    {.B = 1, .L = 20, .H = 1, .Hkv = 1, .Dk = 3, .Dv = 2, .M = 1, .period = {1}, .decay = 1},
    {.B = 1, .L = 20, .H = 1, .Hkv = 1, .Dk = 3, .Dv = 2, .M = 1, .period = {5.5}, .decay = 0},
    {.B = 1, .L = 80, .H = 1, .Hkv = 1, .Dk = 64, .Dv = 64, .M = 64, .period = {254}, .decay = 1},
    {.B = 3,
     .L = 22,
     .H = 8,
     .Hkv = 8,
     .Dk = 64,
     .Dv = 64,
     .M = 8,
     .period = {15, 15, 15, 22.5, 22.5, 30, 30, 41.3},
     .decay = 1,
     .with_state = 1},
    {.B = 2,
     .L = 12,
     .H = 6,
     .Hkv = 2,
     .Dk = 128,
     .Dv = 128,
     .M = 32,
     .period = {63, 150.25},
     .decay = 0,
     .position = 1000003},
    {.B = 2,
     .L = 12,
     .H = 2,
     .Hkv = 1,
     .Dk = 64,
     .Dv = 64,
     .M = 100,
     .period = {777.7},
     .decay = 1,
     .position = 999999999989,
     .with_state = 1},
    {.B = 1, .L = 18, .H = 2, .Hkv = 2, .Dk = 128, .Dv = 128, .M = 40, .period = {80, 95.5}, .decay = 1},
};
enum {
    SHAPES = sizeof shapes / sizeof shapes[0],
    WIDE = 8
}; /* from WIDE on: widths with a kernel of their own */

/* Steps alone; prefill then steps; steps, a forward in between, steps again. */
static void check(const op_case *c, const op_variant *v, int64_t fold, int64_t prefill, int64_t middle)
{
    op_tensors want, got;
    op_tensors_init(c, &want);
    op_tensors_init(c, &got);
    op_forward(c, &reference, &want);
    decoder d = decoder_open(*c, *v, fold, &got);
    int64_t i = 0;
    if (prefill > 0) decoder_forward(&d, &got, 0, prefill), i = prefill;
    for (; i < c->L; i++) {
        if (middle > 0 && i == c->L / 2) {
            decoder_forward(&d, &got, i, middle);
            i += middle - 1;
            continue;
        }
        decoder_step(&d, &got, i);
        if (i == c->L / 3) decoder_slots(&d, &got, i + 1); /* reading does not disturb */
    }
    decoder_slots(&d, &got, c->L);
    op_compare(c, v, &got, &want, OP_FORWARD);
    decoder_close(&d);
    op_tensors_free(&want);
    op_tensors_free(&got);
}

static void steps_equal_forward(void **state)
{
    (void)state;
    static const int64_t folds[] = {0, 1, 2, 3, 8, 16, 31};
    for (int i = 0; i < SHAPES; i++)
        for (int v = 0; v < n_all; v++)
            for (int f = 0; f < 7; f++) {
                if (f % 3 != v % 3 && i > 1)
                    continue; /* all folds on the first shapes, a third of them on the rest */
                if (TEST_EMULATED && i < WIDE && (i + 2 * f + v) % 5) continue;
                if (TEST_EMULATED && i >= WIDE && (folds[f] > 16 || (i + f / 2) % 2)) continue;
                if (!TEST_EMULATED || i < WIDE) check(&shapes[i], &all[v], folds[f], 0, 0);
                if (!TEST_EMULATED || i < WIDE) check(&shapes[i], &all[v], folds[f], shapes[i].L / 2 + 1, 0);
                check(&shapes[i], &all[v], folds[f], 3, 4);
            }
}

/* A copy of a state goes its own way; the original gives the same bits as without the copy. */
static void forks(void **state)
{
    (void)state;
    const op_case *c = &shapes[1];
    for (int v = 0; v < n_all; v++) {
        op_tensors a, b;
        op_tensors_init(c, &a);
        op_tensors_init(c, &b);
        decoder d = decoder_open(*c, all[v], 0, &a);
        for (int64_t i = 0; i < 21; i++) decoder_step(&d, &a, i);
        void *kept = malloc((size_t)c->B * d.bytes);
        memcpy(kept, d.states, (size_t)c->B * d.bytes);
        for (int64_t i = 21; i < c->L; i++) decoder_step(&d, &a, i);
        memcpy(d.states, kept, (size_t)c->B * d.bytes);
        for (int64_t i = 30; i < 40; i++) decoder_step(&d, &b, i); /* another continuation */
        memcpy(d.states, kept, (size_t)c->B * d.bytes);
        for (int64_t i = 21; i < c->L; i++) decoder_step(&d, &b, i);
        for (int64_t s = 0; s < c->B; s++)
            assert_memory_equal(a.o + (s * c->L + 21) * c->H * c->Dv, b.o + (s * c->L + 21) * c->H * c->Dv,
                                (size_t)((c->L - 21) * c->H * c->Dv) * sizeof(double));
        free(kept);
        decoder_close(&d);
        op_tensors_free(&a);
        op_tensors_free(&b);
    }
}

/* Sequences of one batch at different positions, in any order of memory, give the bits they give alone. Dv is
 * not below Dk. */
static void check_mixed_positions(op_case c)
{
    for (int v = 0; v < n_all; v++)
        for (int threads = 1; threads <= (TEST_ON_CUDA ? 1 : 4); threads += 3) {
            op_tensors together, alone;
            c.threads = threads;
            op_tensors_init(&c, &together);
            op_tensors_init(&c, &alone);
            decoder d = decoder_open(c, all[v], 0, &together), single = decoder_open(c, all[v], 0, &alone);
            int64_t slots = op_slots(&c);
            void *zero = calloc((size_t)(slots * c.Hkv * c.Dv), sizeof(double));
            for (int64_t b = 0; b < 3; b++) {
                static const int64_t at[] = {5, 1000000, 77};
                assert_ok(blurry_attn_state_set(d.plan, d.pointers[b], at[b], zero, zero));
                assert_ok(blurry_attn_state_set(d.plan, single.pointers[b], at[b], zero, zero));
            }
            free(zero);
            for (int64_t i = 0; i < c.L; i++) {
                decoder_step(&d, &together, i);
                /* the same by three calls of one sequence each */
                for (int64_t b = 0; b < 3; b++) {
                    int64_t n = b * c.L + i;
                    op_to(all[v].dtype, alone.q + n * c.H * c.Dk, single.q, c.H * c.Dk);
                    op_to(all[v].dtype, alone.k + n * c.Hkv * c.Dk, single.k, c.Hkv * c.Dk);
                    op_to(all[v].dtype, alone.v + n * c.Hkv * c.Dv, single.v_in, c.Hkv * c.Dv);
                    blurry_attn_step_args a = {.count = 1,
                                               .q = single.q,
                                               .k = single.k,
                                               .v = single.v_in,
                                               .o = single.o,
                                               .states = &single.pointers[b],
                                               .workspace = single.workspace,
                                               .workspace_bytes = blurry_attn_step_workspace(single.plan)};
                    assert_ok(blurry_attn_step(single.plan, &a));
                    op_wait(single.plan);
                    op_from(all[v].dtype, single.o, alone.o + n * c.H * c.Dv, c.H * c.Dv);
                }
            }
            assert_memory_equal(together.o, alone.o, (size_t)(c.B * c.L * c.H * c.Dv) * sizeof(double));
            /* states lying in another order are found to be distinct, twice the same is refused */
            void *swap = d.pointers[0];
            d.pointers[0] = d.pointers[2], d.pointers[2] = swap;
            decoder_step(&d, &together, 0);
            d.pointers[0] = d.pointers[2];
            if (TEST_ON_CUDA) { /* the pointers are in device memory: not looked at by the host */
                decoder_close(&d);
                decoder_close(&single);
                op_tensors_free(&together);
                op_tensors_free(&alone);
                continue;
            }
            blurry_attn_step_args a = {.count = 3,
                                       .q = d.q,
                                       .k = d.k,
                                       .v = d.v_in,
                                       .o = d.o,
                                       .states = d.pointers,
                                       .workspace = d.workspace,
                                       .workspace_bytes = blurry_attn_step_workspace(d.plan)};
            assert_fails(blurry_attn_step(d.plan, &a), BLURRY_E_INVALID, "given twice");
            decoder_close(&d);
            decoder_close(&single);
            op_tensors_free(&together);
            op_tensors_free(&alone);
        }
}

static void mixed_positions(void **state)
{
    (void)state;
    check_mixed_positions((op_case){
        .B = 3, .L = 30, .H = 2, .Hkv = 1, .Dk = 9, .Dv = 11, .M = 10, .period = {41.5}, .decay = 1});
    check_mixed_positions((op_case){.B = 3,
                                    .L = 9,
                                    .H = 5,
                                    .Hkv = 5,
                                    .Dk = 64,
                                    .Dv = 64,
                                    .M = 6,
                                    .period = {11, 11, 20, 20, 20.5},
                                    .decay = 1});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_equal_forward),
        cmocka_unit_test(forks),
        cmocka_unit_test(mixed_positions),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
