/* blurry_model_attention: two independent paths (softmax by hand, the operator with one-hot values) must
 * agree where the operator's identities say so, in every layer of a whole model. */
#include "support/test.h"
#include "blurry/model.h"

#include <math.h>
#include <stdlib.h>

enum { LENGTH = 24, VOCAB = 40 };

static blurry_model *make_model(const char *const *assignments)
{
    static const char *const shape[] = {"vocab=40", "length=24", "width=32",      "heads=4", "kv_heads=2",
                                        "layers=2", "batch=1",   "precision=f64", "seed=5",  NULL};
    blurry_settings *settings = NULL;
    blurry_model *model = NULL;
    assert_ok(blurry_settings_create(&settings));
    for (int i = 0; shape[i]; i++) assert_ok(blurry_settings_assign(settings, shape[i]));
    for (int i = 0; assignments[i]; i++) assert_ok(blurry_settings_assign(settings, assignments[i]));
    assert_ok(blurry_model_create(&model, settings, 0));
    blurry_settings_destroy(&settings);
    return model;
}

/* Larger queries and keys than the initial ones, so that the weights differ from uniform ones. */
static void sharpen(blurry_model *model)
{
    for (int64_t i = 0; i < blurry_model_parameter_count(model); i++) {
        blurry_parameter p;
        assert_ok(blurry_model_parameter(model, i, &p));
        double *values = malloc((size_t)p.elements * sizeof *values);
        assert_non_null(values);
        assert_ok(blurry_model_read_parameter(model, i, values, (size_t)p.elements * sizeof *values));
        for (int64_t j = 0; j < p.elements; j++) values[j] *= p.rank == 2 ? 12 : 1;
        assert_ok(blurry_model_write_parameter(model, i, values, (size_t)p.elements * sizeof *values));
        free(values);
    }
}

static void fill_tokens(int32_t *tokens)
{
    for (int t = 0; t < LENGTH; t++) tokens[t] = (int32_t)((t * 7 + t * t) % VOCAB);
}

static void assert_same_maps(const char *const *first, const char *const *second)
{
    static double a[LENGTH * LENGTH], b[LENGTH * LENGTH];
    int32_t tokens[LENGTH];
    fill_tokens(tokens);
    blurry_model *x = make_model(first), *y = make_model(second);
    sharpen(x);
    sharpen(y);
    double spread = 0;
    for (int64_t layer = 0; layer < 2; layer++)
        for (int64_t head = 0; head < 4; head++) {
            assert_ok(blurry_model_attention(x, tokens, LENGTH, layer, head, a));
            assert_ok(blurry_model_attention(y, tokens, LENGTH, layer, head, b));
            for (int i = 0; i < LENGTH * LENGTH; i++) {
                assert_true(fabs(a[i] - b[i]) < 1e-10);
                if (i % LENGTH > i / LENGTH) assert_true(a[i] == 0 && b[i] == 0);
            }
            for (int t = 0; t < LENGTH; t++) {
                double sum = 0;
                for (int u = 0; u <= t; u++) sum += a[t * LENGTH + u];
                assert_true(fabs(sum - 1) < 1e-12);
                spread = fmax(spread, fabs(a[t * LENGTH] - 1.0 / (t + 1)));
            }
        }
    assert_true(spread > 0.05); /* not merely uniform weights */
    blurry_model_destroy(&x);
    blurry_model_destroy(&y);
}

static void blurry_at_full_resolution_is_full_attention(void **state)
{
    (void)state;
    assert_same_maps((const char *const[]){"mixer=softmax", NULL},
                     (const char *const[]){"mixer=blurry", "modes=13", "resolution=1", NULL});
}

static void blurry_with_decay_is_a_window(void **state)
{
    (void)state;
    assert_same_maps((const char *const[]){"mixer=swa", "window=7", NULL},
                     (const char *const[]){"mixer=blurry", "modes=4", "resolution=1", "decay=true", NULL});
}

static void wrong_arguments_are_refused(void **state)
{
    (void)state;
    static double map[LENGTH * LENGTH];
    int32_t tokens[LENGTH];
    fill_tokens(tokens);
    blurry_model *model = make_model((const char *const[]){"mixer=softmax,gla", NULL});
    assert_fails(blurry_model_attention(NULL, tokens, LENGTH, 0, 0, map), BLURRY_E_INVALID, "model");
    assert_fails(blurry_model_attention(model, NULL, LENGTH, 0, 0, map), BLURRY_E_INVALID, "tokens");
    assert_fails(blurry_model_attention(model, tokens, LENGTH, 0, 0, NULL), BLURRY_E_INVALID, "weights");
    assert_fails(blurry_model_attention(model, tokens, 0, 0, 0, map), BLURRY_E_INVALID, "length");
    assert_fails(blurry_model_attention(model, tokens, LENGTH + 1, 0, 0, map), BLURRY_E_INVALID, "length");
    assert_fails(blurry_model_attention(model, tokens, LENGTH, 2, 0, map), BLURRY_E_INVALID, "layer");
    assert_fails(blurry_model_attention(model, tokens, LENGTH, -1, 0, map), BLURRY_E_INVALID, "layer");
    assert_fails(blurry_model_attention(model, tokens, LENGTH, 0, 4, map), BLURRY_E_INVALID, "head");
    assert_fails(blurry_model_attention(model, tokens, LENGTH, 1, 0, map), BLURRY_E_UNSUPPORTED, "gla");
    tokens[3] = VOCAB;
    assert_fails(blurry_model_attention(model, tokens, LENGTH, 0, 0, map), BLURRY_E_INVALID, "tokens[3]");
    blurry_model_destroy(&model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blurry_at_full_resolution_is_full_attention),
        cmocka_unit_test(blurry_with_decay_is_a_window),
        cmocka_unit_test(wrong_arguments_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
