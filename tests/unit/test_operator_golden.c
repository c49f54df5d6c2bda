/* The stored cases of tests/golden/operator: every tensor, every variant of this machine. */
#include "support/operator.h"

#include "base/safetensors.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CASES = 9 };

static int64_t number(const safetensors *file, const char *key)
{
    const char *text = safetensors_metadata(file, key);
    if (!text) fail_msg("golden lacks metadata %s", key);
    return strtoll(text, NULL, 10);
}

static int truth(const safetensors *file, const char *key)
{
    const char *text = safetensors_metadata(file, key);
    if (!text) fail_msg("golden lacks metadata %s", key);
    return !strcmp(text, "1") || !strcmp(text, "True") || !strcmp(text, "true");
}

static void load(const safetensors *file, const char *name, double *to, int64_t n)
{
    assert_ok(safetensors_read_f64(file, name, NULL, -1, n, to));
}

static op_case read_case(const safetensors *file)
{
    const safetensors_tensor *q = safetensors_find(file, "q"), *k = safetensors_find(file, "k");
    const safetensors_tensor *v = safetensors_find(file, "v");
    assert_true(q && k && v && q->rank == 4 && k->rank == 4 && v->rank == 4);
    op_case c = {.B = q->shape[0],
                 .L = q->shape[1],
                 .H = q->shape[2],
                 .Hkv = k->shape[2],
                 .Dk = q->shape[3],
                 .Dv = v->shape[3],
                 .M = number(file, "modes"),
                 .decay = truth(file, "decay"),
                 .relative = !strcmp(safetensors_metadata(file, "grid"), "relative"),
                 .position = number(file, "position")};
    assert_true(c.Hkv <= OP_HEADS_MAX);
    load(file, "period", c.period, c.Hkv);
    return c;
}

/* Inputs into both, results into `want`. */
static void read_tensors(const safetensors *file, const op_case *c, op_tensors *in, op_tensors *want)
{
    int64_t n = c->B * c->L, slots = c->B * c->Hkv * op_slots(c);
    load(file, "q", in->q, n * c->H * c->Dk);
    load(file, "k", in->k, n * c->Hkv * c->Dk);
    load(file, "v", in->v, n * c->Hkv * c->Dv);
    load(file, "d_o", in->d_o, n * c->H * c->Dv);
    load(file, "o", want->o, n * c->H * c->Dv);
    load(file, "d_q", want->d_q, n * c->H * c->Dk);
    load(file, "d_k", want->d_k, n * c->Hkv * c->Dk);
    load(file, "d_v", want->d_v, n * c->Hkv * c->Dv);
    memset(in->d_k_out, 0, (size_t)(slots * c->Dk) * sizeof(double));
    memset(in->d_v_out, 0, (size_t)(slots * c->Dv) * sizeof(double));
    if (c->relative) return;
    load(file, "k_state_in", in->k_in, slots * c->Dk);
    load(file, "v_state_in", in->v_in, slots * c->Dv);
    load(file, "d_k_state_out", in->d_k_out, slots * c->Dk);
    load(file, "d_v_state_out", in->d_v_out, slots * c->Dv);
    load(file, "k_state_out", want->k_out, slots * c->Dk);
    load(file, "v_state_out", want->v_out, slots * c->Dv);
    load(file, "d_k_state_in", want->d_k_in, slots * c->Dk);
    load(file, "d_v_state_in", want->d_v_in, slots * c->Dv);
    load(file, "d_period", want->d_period, c->Hkv);
}

static void goldens(void **state)
{
    (void)state;
    op_variant all[16];
    int variants = op_variants(all, 16, 1);
    for (int i = 1; i <= CASES; i++) {
        char path[512];
        snprintf(path, sizeof path, "%s/golden/operator/case%02d.safetensors", test_data(), i);
        safetensors *file;
        assert_ok(safetensors_open(&file, path));
        op_case c = read_case(file);
        c.with_state = !c.relative;
        op_tensors got, want;
        op_tensors_init(&c, &got);
        op_tensors_init(&c, &want);
        read_tensors(file, &c, &got, &want);
        for (int v = 0; v < variants; v++) {
            op_run(&c, &all[v], &got);
            if (c.relative) { /* not stored for this grid */
                int64_t slots = c.B * c.Hkv * op_slots(&c);
                memcpy(want.k_out, got.k_out, (size_t)(slots * c.Dk) * sizeof(double));
                memcpy(want.v_out, got.v_out, (size_t)(slots * c.Dv) * sizeof(double));
                memcpy(want.d_k_in, got.d_k_in, (size_t)(slots * c.Dk) * sizeof(double));
                memcpy(want.d_v_in, got.d_v_in, (size_t)(slots * c.Dv) * sizeof(double));
                memcpy(want.d_period, got.d_period, (size_t)c.Hkv * sizeof(double));
            }
            memcpy(want.d_period_abs, got.d_period_abs, (size_t)c.Hkv * sizeof(double));
            op_compare(&c, &all[v], &got, &want, OP_FORWARD | OP_GRADIENTS);
        }
        op_tensors_free(&got);
        op_tensors_free(&want);
        safetensors_close(&file);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(goldens)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
