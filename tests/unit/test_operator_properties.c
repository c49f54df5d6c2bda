/* What must not change a result: later tokens, the thread count, repetition, where a sequence is split,
 * packing, other threads using the same plan. */
#include "support/operator.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static op_variant all[16];
static int n_all;

static int setup(void **state)
{
    (void)state;
    n_all = op_variants(all, 16, 1);
    return 0;
}

static const op_case shapes[] = {
    {.B = 2, .L = 150, .H = 2, .Hkv = 1, .Dk = 8, .Dv = 12, .M = 8, .period = {30}, .decay = 1, .seed = 1},
    {.B = 1,
     .L = 170,
     .H = 2,
     .Hkv = 2,
     .Dk = 10,
     .Dv = 7,
     .M = 20,
     .period = {78, 97.3},
     .decay = 0,
     .with_state = 1},
    {.B = 1,
     .L = 140,
     .H = 1,
     .Hkv = 1,
     .Dk = 16,
     .Dv = 16,
     .M = 9,
     .period = {41.5},
     .relative = 1,
     .with_state = 1},
    {.B = 1,
     .L = 300,
     .H = 1,
     .Hkv = 1,
     .Dk = 16,
     .Dv = 16,
     .M = 16,
     .period = {31},
     .decay = 1,
     .with_state = 1},
};
enum { SHAPES = 4 };

/* A change of token t leaves every earlier output bit-equal and does reach a later one. */
static void causality(void **state)
{
    (void)state;
    static const int64_t changed[] = {0, 1, 31, 64, 65, 100, 139};
    for (int i = 0; i < SHAPES; i++)
        for (int v = 0; v < n_all; v++) {
            const op_case *c = &shapes[i];
            op_tensors a, b;
            op_tensors_init(c, &a);
            op_tensors_init(c, &b);
            op_forward(c, &all[v], &a);
            int64_t row = c->H * c->Dv;
            for (int n = 0; n < 7; n++) {
                int64_t t = changed[n];
                double *k = b.k + t * c->Hkv * c->Dk, *x = b.v + t * c->Hkv * c->Dv, old_k = *k, old_v = *x;
                *k += 1, *x += 1;
                op_forward(c, &all[v], &b);
                *k = old_k, *x = old_v;
                if (t > 0) assert_memory_equal(a.o, b.o, (size_t)(t * row) * sizeof(double));
                assert_memory_not_equal(a.o + t * row, b.o + t * row, (size_t)row * sizeof(double));
            }
            op_tensors_free(&a);
            op_tensors_free(&b);
        }
}

static void same_bits(const op_case *c, const op_tensors *a, const op_tensors *b)
{
    int64_t n = op_tokens(c), slots = c->B * c->Hkv * op_slots(c);
    assert_memory_equal(a->o, b->o, (size_t)(n * c->H * c->Dv) * sizeof(double));
    assert_memory_equal(a->k_out, b->k_out, (size_t)(slots * c->Dk) * sizeof(double));
    assert_memory_equal(a->v_out, b->v_out, (size_t)(slots * c->Dv) * sizeof(double));
    assert_memory_equal(a->d_q, b->d_q, (size_t)(n * c->H * c->Dk) * sizeof(double));
    assert_memory_equal(a->d_k, b->d_k, (size_t)(n * c->Hkv * c->Dk) * sizeof(double));
    assert_memory_equal(a->d_v, b->d_v, (size_t)(n * c->Hkv * c->Dv) * sizeof(double));
    assert_memory_equal(a->d_k_in, b->d_k_in, (size_t)(slots * c->Dk) * sizeof(double));
    assert_memory_equal(a->d_v_in, b->d_v_in, (size_t)(slots * c->Dv) * sizeof(double));
    assert_memory_equal(a->d_period, b->d_period, (size_t)c->Hkv * sizeof(double));
}

static void threads_and_reruns(void **state)
{
    (void)state;
    static const int threads[] = {1, 1, 2, 3, 7};
    for (int i = 0; i < SHAPES; i++)
        for (int v = 0; v < n_all; v++) {
            op_case c = shapes[i];
            op_tensors a, b;
            op_tensors_init(&c, &a);
            op_tensors_init(&c, &b);
            c.threads = 1;
            op_run(&c, &all[v], &a);
            for (int n = 0; n < 5; n++) {
                c.threads = threads[n];
                op_run(&c, &all[v], &b);
                same_bits(&c, &a, &b);
            }
            op_tensors_free(&a);
            op_tensors_free(&b);
        }
}

/* Two calls with the state between them equal one call, wherever the cut is. */
static void split_points(void **state)
{
    (void)state;
    static const int64_t cuts[] = {0, 1, 17, 63, 64, 65, 128, 139};
    for (int i = 0; i < SHAPES; i++)
        for (int v = 0; v < n_all; v++)
            for (int n = 0; n < 8; n++) {
                op_case whole = shapes[i];
                whole.B = 1;
                op_case first = whole, second = whole;
                first.L = cuts[n], second.L = whole.L - cuts[n], second.position = cuts[n],
                second.with_state = 1;
                op_tensors a, b, c;
                op_tensors_init(&whole, &a);
                op_tensors_init(&whole, &b); /* room for the first part, same inputs */
                op_tensors_init(&second, &c);
                op_forward(&whole, &all[v], &a);
                op_forward(&first, &all[v], &b);
                int64_t t = cuts[n], slots = whole.Hkv * op_slots(&whole);
                memcpy(c.q, a.q + t * whole.H * whole.Dk,
                       (size_t)(second.L * whole.H * whole.Dk) * sizeof(double));
                memcpy(c.k, a.k + t * whole.Hkv * whole.Dk,
                       (size_t)(second.L * whole.Hkv * whole.Dk) * sizeof(double));
                memcpy(c.v, a.v + t * whole.Hkv * whole.Dv,
                       (size_t)(second.L * whole.Hkv * whole.Dv) * sizeof(double));
                memcpy(c.k_in, b.k_out, (size_t)(slots * whole.Dk) * sizeof(double));
                memcpy(c.v_in, b.v_out, (size_t)(slots * whole.Dv) * sizeof(double));
                op_forward(&second, &all[v], &c);
                memcpy(b.o + t * whole.H * whole.Dv, c.o,
                       (size_t)(second.L * whole.H * whole.Dv) * sizeof(double));
                memcpy(b.k_out, c.k_out, (size_t)(slots * whole.Dk) * sizeof(double));
                memcpy(b.v_out, c.v_out, (size_t)(slots * whole.Dv) * sizeof(double));
                op_compare(&whole, &all[v], &b, &a, OP_FORWARD);
                op_tensors_free(&a);
                op_tensors_free(&b);
                op_tensors_free(&c);
            }
}

/* Packed sequences give what each gives alone, to the bit. */
static void packing(void **state)
{
    (void)state;
    op_case packed = {.B = 4,
                      .H = 2,
                      .Hkv = 1,
                      .Dk = 9,
                      .Dv = 6,
                      .M = 7,
                      .period = {33.3},
                      .decay = 1,
                      .packed = 1,
                      .offsets = {0, 70, 70, 71, 140},
                      .position = 3};
    for (int v = 0; v < n_all; v++) {
        op_tensors a;
        op_tensors_init(&packed, &a);
        op_forward(&packed, &all[v], &a);
        for (int64_t s = 0; s < packed.B; s++) {
            op_case one = packed;
            int64_t from = packed.offsets[s];
            one.B = 1, one.packed = 0, one.L = packed.offsets[s + 1] - from;
            op_tensors b;
            op_tensors_init(&one, &b);
            memcpy(b.q, a.q + from * 18, (size_t)(one.L * 18) * sizeof(double));
            memcpy(b.k, a.k + from * 9, (size_t)(one.L * 9) * sizeof(double));
            memcpy(b.v, a.v + from * 6, (size_t)(one.L * 6) * sizeof(double));
            op_forward(&one, &all[v], &b);
            double error = op_error(a.o + from * 12, b.o, one.L * 12);
            if (error != 0)
                fail_msg("%s: sequence %lld differs by %g when packed", op_variant_name(&all[v]),
                         (long long)s, error);
            op_tensors_free(&b);
        }
        op_tensors_free(&a);
    }
}

/* ---- one plan, many threads
 * ----------------------------------------------------------------------------------- */

typedef struct user {
    const blurry_attn_plan *plan;
    const float *x;
    float o[200 * 16];
    int failed;
} user;

static void *use_plan(void *argument)
{
    user *u = argument;
    size_t bytes = blurry_attn_forward_workspace(u->plan);
    void *workspace = aligned_alloc(64, bytes);
    for (int i = 0; i < 5; i++) {
        blurry_attn_forward_args a = {
            .q = u->x, .k = u->x, .v = u->x, .o = u->o, .workspace = workspace, .workspace_bytes = bytes};
        u->failed |= blurry_attn_forward(u->plan, &a) != BLURRY_OK;
    }
    free(workspace);
    return NULL;
}

static void one_plan_many_threads(void **state)
{
    (void)state;
    blurry_attn_desc d;
    blurry_attn_desc_init(&d);
    d.length = 200, d.dim_k = 16, d.threads = 3;
    blurry_attn_plan *plan;
    assert_ok(blurry_attn_plan_create(&plan, &d));
    static float x[200 * 16];
    uint64_t seed = 5;
    for (int i = 0; i < 200 * 16; i++) x[i] = (float)op_random(&seed);
    static user users[4];
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) users[i].plan = plan, users[i].x = x;
    for (int i = 0; i < 4; i++) pthread_create(&threads[i], NULL, use_plan, &users[i]);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < 4; i++) {
        assert_false(users[i].failed);
        assert_memory_equal(users[i].o, users[0].o, sizeof users[0].o);
    }
    blurry_attn_plan_destroy(&plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(causality), cmocka_unit_test(threads_and_reruns),    cmocka_unit_test(split_points),
        cmocka_unit_test(packing),   cmocka_unit_test(one_plan_many_threads),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
