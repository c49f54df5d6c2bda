/* Generation: token by token, in pieces and all at once give the logits of a whole forward; a saved state
 * continues bit for bit; foreign, cut and altered states are refused; memory does not grow with the number of
 * tokens. */
#include "support/model_case.h"
#include "support/test.h"

#include <malloc.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const models[] = {
    "mixer=softmax layers=2 width=8 heads=2 vocab=11 length=40 batch=2",
    "mixer=swa layers=2 width=8 heads=2 kv_heads=1 window=5 vocab=11 length=40 batch=2 conv=true",
    "mixer=abc layers=2 width=8 heads=2 slots=3 vocab=11 length=40 batch=2",
    "mixer=gsa layers=1 width=8 heads=2 slots=3 vocab=11 length=40 batch=2 conv=true",
    "mixer=gla layers=2 width=8 heads=2 vocab=11 length=40 batch=2 position=learned",
    "mixer=gdn layers=2 width=8 heads=2 vocab=11 length=40 batch=2 conv=true",
    "mixer=s4d layers=2 width=8 state=4 vocab=11 length=40 batch=2 tied=false",
    "mixer=blurry layers=2 width=8 heads=2 modes=3 vocab=11 length=40 batch=2",
    "mixer=blurry layers=2 width=8 heads=2 modes=3 vocab=11 length=40 batch=2 decay=true learned_period=true",
    ("mixer=blurry layers=2 width=8 heads=2 modes=3 vocab=11 length=40 batch=2 grid=relative mlp=none "
     "norm=layernorm"),
    "mixer=blurry,blurry,softmax,blurry layers=4 width=8 heads=2 modes=3 vocab=11 length=40 batch=2",
};
enum { MODELS = sizeof models / sizeof models[0], V = 11, L = 40, B = 2 };

/* Logits at every position of B sequences, by one forward. */
static void whole_logits(blurry_model *model, const int32_t *tokens, float *logits)
{
    int64_t rows[B * L];
    for (int64_t i = 0; i < B * L; i++) rows[i] = i;
    blurry_batch batch = {B, L, tokens, B * L, rows, NULL};
    blurry_outputs out = {.logits = logits};
    assert_ok(blurry_model_evaluate(model, &batch, &out));
}

static void draw_tokens(blurry_model *model, int32_t *tokens)
{
    model_batch b;
    model_batch_draw(&b, model, B, L, 77);
    memcpy(tokens, b.tokens, B * L * sizeof *tokens);
}

/* Feeds the tokens in pieces; after each, compares with the forward's logits at that position. */
static void check_pieces(blurry_generator *g, const int32_t *tokens, const float *want, const int64_t *piece,
                         int pieces, double limit, const char *name)
{
    assert_ok(blurry_generator_reset(g));
    for (int64_t from = 0, k = 0; from < L; k++) {
        int64_t n = piece[k < pieces ? k : pieces - 1];
        int32_t part[B * L];
        float logits[B * V];
        if (n > L - from) n = L - from;
        for (int64_t b = 0; b < B; b++) memcpy(part + b * n, tokens + b * L + from, (size_t)n * sizeof *part);
        assert_ok(blurry_generator_feed(g, part, n, logits));
        from += n;
        assert_int_equal(blurry_generator_position(g), from);
        for (int64_t b = 0; b < B; b++)
            for (int64_t v = 0; v < V; v++) {
                double difference = fabs((double)logits[b * V + v] - want[(b * L + from - 1) * V + v]);
                if (!(difference <= limit))
                    fail_msg("%s: after %lld tokens: off by %g", name, (long long)from, difference);
            }
    }
}

static void feeding_equals_forward(void **state)
{
    (void)state;
    for (int kind = 0; kind < CASE_DEVICES; kind++)
        for (int m = 0; m < MODELS; m++) {
            blurry_model *model = model_open((case_device)kind, models[m], 0);
            blurry_generator *g;
            int32_t tokens[B * L];
            static float want[B * L * V];
            double limit = kind <= CASE_FAST_F64 ? 1e-6 : 1e-4; /* logits of size 1 are reported as float */
            model_stir(model, 3);
            draw_tokens(model, tokens);
            whole_logits(model, tokens, want);
            assert_ok(blurry_generator_create(&g, model, B, 0));
            check_pieces(g, tokens, want, (int64_t[]){1}, 1, limit, models[m]);
            check_pieces(g, tokens, want, (int64_t[]){L}, 1, limit, models[m]);
            check_pieces(g, tokens, want, (int64_t[]){9, 1, 1, 17, 2}, 5, limit, models[m]);
            blurry_generator_destroy(&g);
            blurry_model_destroy(&model);
        }
}

/* A prompt longer than one chunk of prefill, against steps. */
static void long_prompts(void **state)
{
    (void)state;
    enum { LONG = 700 };
    static int32_t tokens[LONG];
    for (int i = 0; i < LONG; i++) tokens[i] = (i * i + 3 * i) % V;
    for (int m = 0; m < MODELS; m++) {
        if (strstr(models[m], "learned ") || strstr(models[m], "position")) continue;
        blurry_model *model = model_open(CASE_FAST_F64, models[m], 0);
        blurry_generator *prompt, *steps;
        float a[V], b[V];
        model_stir(model, 4);
        assert_ok(blurry_generator_create(&prompt, model, 1, LONG));
        assert_ok(blurry_generator_create(&steps, model, 1, LONG));
        assert_ok(blurry_generator_feed(prompt, tokens, LONG, a));
        for (int i = 0; i < LONG; i++)
            assert_ok(blurry_generator_feed(steps, tokens + i, 1, i == LONG - 1 ? b : NULL));
        for (int v = 0; v < V; v++) assert_true(fabs((double)a[v] - b[v]) < 1e-6);
        blurry_generator_destroy(&prompt), blurry_generator_destroy(&steps);
        blurry_model_destroy(&model);
    }
}

/* ---- saved states ---- */
static void saved_states_continue(void **state)
{
    (void)state;
    for (int m = 0; m < MODELS; m++) {
        blurry_model *model = model_open(CASE_FAST_F32, models[m], 0);
        blurry_generator *g, *other;
        int32_t tokens[B * L];
        float want[B * V], got[B * V];
        draw_tokens(model, tokens);
        assert_ok(blurry_generator_create(&g, model, B, 0));
        assert_ok(blurry_generator_create(&other, model, B, 0));
        assert_ok(blurry_generator_feed(g, tokens, 13, NULL));
        size_t size = blurry_generator_state_bytes(g);
        void *bytes = malloc(size);
        assert_ok(blurry_generator_save(g, bytes, size));
        for (int i = 0; i < 9; i++) assert_ok(blurry_generator_feed(g, tokens + 2 * i, 1, want));
        assert_ok(blurry_generator_feed(other, tokens, 2, NULL)); /* whatever it did before is forgotten */
        assert_ok(blurry_generator_restore(other, bytes, size));
        assert_int_equal(blurry_generator_position(other), 13);
        for (int i = 0; i < 9; i++) assert_ok(blurry_generator_feed(other, tokens + 2 * i, 1, got));
        assert_memory_equal(want, got, sizeof want);
        free(bytes);
        blurry_generator_destroy(&g), blurry_generator_destroy(&other);
        blurry_model_destroy(&model);
    }
}

static void foreign_states_are_refused(void **state)
{
    (void)state;
    blurry_model *model = model_open(CASE_FAST_F32, models[7], 0),
                 *moved = model_open(CASE_FAST_F32, models[7], 0);
    blurry_model *decays = model_open(CASE_FAST_F32,
                                      "mixer=blurry layers=2 width=8 heads=2 modes=3 vocab=11 length=40 "
                                      "batch=2 decay=true",
                                      0);
    blurry_generator *g, *h, *wide, *decaying;
    int32_t tokens[B * L];
    float before[B * V], after[B * V];
    draw_tokens(model, tokens);
    model_stir(moved, 8);
    assert_ok(blurry_generator_create(&g, model, B, 0));
    assert_ok(blurry_generator_create(&h, moved, B, 0));
    assert_ok(blurry_generator_create(&wide, model, B + 1, 0));
    assert_ok(blurry_generator_create(&decaying, decays, B, 0));
    assert_ok(blurry_generator_feed(g, tokens, 5, NULL));
    size_t size = blurry_generator_state_bytes(g);
    unsigned char *bytes = malloc(size), *copy = malloc(size + 1);
    assert_ok(blurry_generator_save(g, bytes, size));
    memcpy(copy, bytes, size);
    assert_fails(blurry_generator_restore(h, bytes, size), BLURRY_E_INVALID, "another model");
    assert_fails(blurry_generator_restore(decaying, bytes, size), BLURRY_E_INVALID, "another model");
    assert_fails(blurry_generator_restore(wide, bytes, size), BLURRY_E_INVALID, "batch 2");
    assert_fails(blurry_generator_restore(g, bytes, 10), BLURRY_E_FORMAT, "cut");
    assert_fails(blurry_generator_restore(g, bytes, size - 1), BLURRY_E_FORMAT, "cut");
    assert_fails(blurry_generator_restore(g, copy, size + 1), BLURRY_E_FORMAT, "cut or padded");
    assert_fails(blurry_generator_restore(g, NULL, size), BLURRY_E_INVALID, "bytes is NULL");
    assert_fails(blurry_generator_save(g, bytes, size - 1), BLURRY_E_INVALID, "size is");
    assert_ok(blurry_generator_feed(g, tokens, 1, before));
    assert_ok(blurry_generator_restore(g, bytes, size));
    for (size_t i = 0; i < size; i += i < 128 ? 1 : 37) { /* one altered byte anywhere */
        copy[i] ^= 0x10;
        if (blurry_generator_restore(g, copy, size) == BLURRY_OK)
            fail_msg("byte %zu altered and accepted", i);
        copy[i] ^= 0x10;
    }
    assert_ok(blurry_generator_feed(g, tokens, 1, after)); /* refusals left the state as it was */
    assert_memory_equal(before, after, sizeof before);
    free(bytes), free(copy);
    blurry_generator_destroy(&g), blurry_generator_destroy(&h), blurry_generator_destroy(&wide);
    blurry_generator_destroy(&decaying);
    blurry_model_destroy(&model), blurry_model_destroy(&moved), blurry_model_destroy(&decays);
}

static void limits_are_kept(void **state)
{
    (void)state;
    blurry_model *model = model_open(CASE_FAST_F32, models[0], 0),
                 *learned = model_open(CASE_FAST_F32, models[4], 0);
    blurry_generator *g;
    int32_t tokens[B * L] = {0}, bad[2] = {0, 11};
    assert_ok(blurry_generator_create(&g, model, 1, 20));
    assert_ok(blurry_generator_feed(g, tokens, 20, NULL));
    assert_fails(blurry_generator_feed(g, tokens, 1, NULL), BLURRY_E_INVALID,
                 "max_length is 20: 20 tokens are fed already");
    assert_ok(blurry_generator_reset(g));
    assert_fails(blurry_generator_feed(g, tokens, 21, NULL), BLURRY_E_INVALID, "max_length is 20");
    assert_fails(blurry_generator_feed(g, bad, 2, NULL), BLURRY_E_INVALID, "tokens[1] is 11");
    assert_fails(blurry_generator_feed(g, tokens, 0, NULL), BLURRY_E_INVALID, "count is 0");
    assert_fails(blurry_generator_feed(g, NULL, 1, NULL), BLURRY_E_INVALID, "tokens is NULL");
    assert_int_equal(blurry_generator_position(g), 0);
    blurry_generator_destroy(&g);
    assert_fails(blurry_generator_create(&g, learned, 1, 41), BLURRY_E_INVALID, "max_length is 41");
    assert_fails(blurry_generator_create(&g, model, 0, 41), BLURRY_E_INVALID, "batch is 0");
    assert_null(g);
    blurry_model_destroy(&model), blurry_model_destroy(&learned);
}

/* Bounded mixers: far more tokens than `length`, no allocation left behind, and the state keeps its size. */
static void memory_is_constant(void **state)
{
    (void)state;
    for (int m = 1; m < 10; m++) {
        if (strstr(models[m], "position")) continue;
        blurry_model *model = model_open(CASE_FAST_F32, models[m], 0);
        blurry_generator *g;
        float logits[V];
        assert_ok(blurry_generator_create(&g, model, 1, 0));
        int32_t token = 1;
        for (int i = 0; i < 50; i++) assert_ok(blurry_generator_feed(g, &token, 1, logits));
        size_t state_bytes = blurry_generator_state_bytes(g), heap = mallinfo2().uordblks;
        for (int i = 0; i < 3000; i++) {
            assert_ok(blurry_generator_feed(g, &token, 1, logits));
            token = (token * 5 + i) % V;
        }
        assert_int_equal(blurry_generator_state_bytes(g), state_bytes);
        assert_true(mallinfo2().uordblks <= heap);
        for (int v = 0; v < V; v++) assert_true(isfinite(logits[v]));
        blurry_generator_destroy(&g);
        blurry_model_destroy(&model);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(feeding_equals_forward), cmocka_unit_test(long_prompts),
        cmocka_unit_test(saved_states_continue),  cmocka_unit_test(foreign_states_are_refused),
        cmocka_unit_test(limits_are_kept),        cmocka_unit_test(memory_is_constant),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
