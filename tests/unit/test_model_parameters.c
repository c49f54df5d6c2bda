/* Names, shapes, decay and initial values of parameters; what models and batches refuse; memory figures;
 * finding what is not finite. */
#include "support/model_case.h"
#include "support/test.h"

#include "base/rng.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct expected {
    const char *name;
    int rank;
    int64_t rows, columns;
    int decay;
} expected;

static void check_list(const char *options, const expected *want, size_t count)
{
    blurry_model *model = model_open(CASE_FAST_F32, options, 1);
    assert_int_equal(blurry_model_parameter_count(model), count);
    int64_t total = 0;
    for (size_t i = 0; i < count; i++) {
        blurry_parameter p;
        assert_ok(blurry_model_parameter(model, (int64_t)i, &p));
        assert_string_equal(p.name, want[i].name);
        assert_int_equal(p.rank, want[i].rank);
        assert_int_equal(p.shape[0], want[i].rows);
        if (p.rank == 2) assert_int_equal(p.shape[1], want[i].columns);
        assert_int_equal(p.decay, want[i].decay);
        assert_non_null(p.data);
        assert_non_null(p.gradient);
        assert_int_equal(blurry_model_find_parameter(model, p.name), i);
        total += p.elements;
    }
    assert_int_equal(blurry_model_parameter_elements(model), total);
    assert_int_equal(blurry_model_find_parameter(model, "nothing"), -1);
    blurry_model_destroy(&model);
}

static void names_and_shapes(void **state)
{
    (void)state;
    const expected hybrid[] = {
        {"embed.weight", 2, 10, 12, 1},
        {"position.weight", 2, 7, 12, 1},
        {"layers.0.norm1.weight", 1, 12, 0, 0},
        {"layers.0.norm1.bias", 1, 12, 0, 0},
        {"layers.0.mixer.q.weight", 2, 12, 12, 1},
        {"layers.0.mixer.k.weight", 2, 6, 12, 1},
        {"layers.0.mixer.v.weight", 2, 6, 12, 1},
        {"layers.0.mixer.conv_q.weight", 2, 12, 4, 0},
        {"layers.0.mixer.conv_k.weight", 2, 6, 4, 0},
        {"layers.0.mixer.conv_v.weight", 2, 6, 4, 0},
        {"layers.0.mixer.period", 1, 1, 0, 0},
        {"layers.0.mixer.o.weight", 2, 12, 12, 1},
        {"layers.0.norm2.weight", 1, 12, 0, 0},
        {"layers.0.norm2.bias", 1, 12, 0, 0},
        {"layers.0.mlp.fc1.weight", 2, 48, 12, 1},
        {"layers.0.mlp.fc2.weight", 2, 12, 48, 1},
        {"layers.1.norm1.weight", 1, 12, 0, 0},
        {"layers.1.norm1.bias", 1, 12, 0, 0},
        {"layers.1.mixer.log_step", 1, 12, 0, 0},
        {"layers.1.mixer.C_re", 2, 12, 3, 0},
        {"layers.1.mixer.C_im", 2, 12, 3, 0},
        {"layers.1.mixer.D", 1, 12, 0, 0},
        {"layers.1.mixer.conv_x.weight", 2, 12, 4, 0},
        {"layers.1.mixer.o.weight", 2, 12, 12, 1},
        {"layers.1.norm2.weight", 1, 12, 0, 0},
        {"layers.1.norm2.bias", 1, 12, 0, 0},
        {"layers.1.mlp.fc1.weight", 2, 48, 12, 1},
        {"layers.1.mlp.fc2.weight", 2, 12, 48, 1},
        {"norm.weight", 1, 12, 0, 0},
        {"norm.bias", 1, 12, 0, 0},
        {"head.weight", 2, 10, 12, 1},
    };
    check_list(
        "mixer=blurry,s4d layers=2 width=12 heads=2 kv_heads=1 modes=2 learned_period=true conv=true state=6 "
        "mlp=gelu norm=layernorm tied=false position=learned vocab=10 length=7 batch=1",
        hybrid, sizeof hybrid / sizeof hybrid[0]);
    const expected gdn[] = {
        {"embed.weight", 2, 10, 12, 1},
        {"layers.0.norm1.weight", 1, 12, 0, 0},
        {"layers.0.mixer.q.weight", 2, 12, 12, 1},
        {"layers.0.mixer.k.weight", 2, 12, 12, 1},
        {"layers.0.mixer.v.weight", 2, 24, 12, 1},
        {"layers.0.mixer.b.weight", 2, 2, 12, 1},
        {"layers.0.mixer.a.weight", 2, 2, 12, 1},
        {"layers.0.mixer.A", 1, 2, 0, 0},
        {"layers.0.mixer.dt_bias", 1, 2, 0, 0},
        {"layers.0.mixer.g.weight", 2, 24, 12, 1},
        {"layers.0.mixer.norm.weight", 1, 12, 0, 0},
        {"layers.0.mixer.o.weight", 2, 12, 24, 1},
        {"layers.0.norm2.weight", 1, 12, 0, 0},
        {"layers.0.mlp.gate.weight", 2, 32, 12, 1},
        {"layers.0.mlp.up.weight", 2, 32, 12, 1},
        {"layers.0.mlp.down.weight", 2, 12, 32, 1},
        {"norm.weight", 1, 12, 0, 0},
    };
    check_list("mixer=gdn layers=1 width=12 heads=2 expand_v=2 vocab=10 length=7 batch=1", gdn,
               sizeof gdn / sizeof gdn[0]);
}

static double *values_of(const blurry_model *model, const char *name, int64_t *count)
{
    int64_t k = blurry_model_find_parameter(model, name);
    assert_true(k >= 0);
    *count = model->parameter[k].elements;
    double *values = malloc((size_t)*count * sizeof *values);
    assert_ok(blurry_model_read_parameter(model, k, values, (size_t)*count * sizeof *values));
    return values;
}

static void check_moments(const blurry_model *model, const char *name, double mean, double deviation)
{
    int64_t n;
    double *v = values_of(model, name, &n), sum = 0, squares = 0;
    for (int64_t i = 0; i < n; i++) sum += v[i], squares += v[i] * v[i];
    double m = sum / (double)n, s = sqrt(squares / (double)n - m * m);
    if (fabs(m - mean) > 5 * deviation / sqrt((double)n) + 1e-12 ||
        fabs(s - deviation) > 5 * deviation / sqrt((double)n))
        fail_msg("%s: mean %g, deviation %g, expected %g, %g", name, m, s, mean, deviation);
    free(v);
}

static void check_range(const blurry_model *model, const char *name, double low, double high)
{
    int64_t n;
    double *v = values_of(model, name, &n), least = v[0], most = v[0];
    for (int64_t i = 0; i < n; i++) least = fmin(least, v[i]), most = fmax(most, v[i]);
    if (least < low || most > high || (n > 1 && most - least < 0.5 * (high - low) && high > low))
        fail_msg("%s: %g .. %g, expected %g .. %g", name, least, most, low, high);
    free(v);
}

static void initial_values(void **state)
{
    (void)state;
    blurry_model *model =
        model_open(CASE_FAST_F64,
                   "mixer=gdn,s4d,blurry layers=3 width=128 heads=32 vocab=100 length=8 batch=1 conv=true "
                   "state=64 modes=2 learned_period=true resolution=3 norm=layernorm tied=false "
                   "position=learned seed=5",
                   1);
    check_moments(model, "embed.weight", 0, 0.02);
    check_moments(model, "position.weight", 0, 0.02);
    check_moments(model, "head.weight", 0, 0.02);
    check_moments(model, "layers.0.mixer.q.weight", 0, 0.02);
    check_moments(model, "layers.0.mixer.conv_q.weight", 0, sqrt(1.0 / 12));
    check_moments(model, "layers.1.mixer.C_re", 0, sqrt(0.5));
    check_moments(model, "layers.1.mixer.D", 0, 1);
    check_range(model, "layers.0.norm1.weight", 1, 1);
    check_range(model, "layers.0.norm1.bias", 0, 0);
    int64_t n;
    double *A = values_of(model, "layers.0.mixer.A", &n), mean = 0; /* log of a uniform number below 16 */
    for (int64_t i = 0; i < n; i++) {
        assert_true(A[i] < log(16));
        mean += exp(A[i]) / (double)n;
    }
    assert_true(fabs(mean - 8) < 5 * 16 / sqrt(12.0 * (double)n));
    free(A);
    double low = 1e-3 + log(-expm1(-1e-3)), high = 0.1 + log(-expm1(-0.1));
    check_range(model, "layers.0.mixer.dt_bias", low, high);
    check_range(model, "layers.1.mixer.log_step", log(1e-3), log(0.1));
    check_range(model, "layers.2.mixer.period", 9, 9);
    blurry_model_destroy(&model);
}

/* A parameter's values follow from seed and name: other layers, widths of other tensors and threads do not
 * matter. */
static void initial_values_follow_names(void **state)
{
    (void)state;
    blurry_model *a = model_open(CASE_FAST_F32,
                                 "mixer=gla,softmax layers=2 width=16 vocab=9 length=4 batch=1 threads=1", 0);
    blurry_model *b = model_open(CASE_FAST_F32,
                                 "mixer=swa,softmax layers=2 width=16 vocab=9 length=4 batch=2 mlp=none "
                                 "threads=2",
                                 0);
    blurry_model *c =
        model_open(CASE_FAST_F32, "mixer=swa,softmax layers=2 width=16 vocab=9 length=4 batch=2 seed=1", 0);
    int64_t n;
    double *x = values_of(a, "layers.1.mixer.q.weight", &n), *y = values_of(b, "layers.1.mixer.q.weight", &n);
    double *z = values_of(c, "layers.1.mixer.q.weight", &n), *k = values_of(a, "layers.1.mixer.k.weight", &n);
    assert_memory_equal(x, y, (size_t)n * sizeof *x);
    assert_memory_not_equal(x, z, (size_t)n * sizeof *x);
    assert_memory_not_equal(x, k, (size_t)n * sizeof *x);
    free(x), free(y), free(z), free(k);
    blurry_model_destroy(&a), blurry_model_destroy(&b), blurry_model_destroy(&c);
}

static void bad_batches_are_refused(void **state)
{
    (void)state;
    blurry_model *model =
        model_open(CASE_FAST_F32, "mixer=softmax layers=1 width=8 vocab=11 length=6 batch=2", 1);
    blurry_model *fixed =
        model_open(CASE_FAST_F32, "mixer=softmax layers=1 width=8 vocab=11 length=6 batch=2", 0);
    int32_t tokens[12] = {0}, labels[12] = {0};
    int64_t rows[12] = {0, 3, 5};
    float logits[1];
    blurry_batch good = {2, 6, tokens, 3, rows, labels}, b;
    blurry_outputs with_logits = {.logits = logits};
    assert_ok(blurry_model_evaluate(model, &good, NULL));
    assert_fails(blurry_model_evaluate(NULL, &good, NULL), BLURRY_E_INVALID, "model is NULL");
    assert_fails(blurry_model_evaluate(model, NULL, NULL), BLURRY_E_INVALID, "batch is NULL");
    b = good, b.sequences = 3;
    assert_fails(blurry_model_evaluate(model, &b, NULL), BLURRY_E_INVALID, "sequences is 3: give 1 to 2");
    b = good, b.length = 7;
    assert_fails(blurry_model_evaluate(model, &b, NULL), BLURRY_E_INVALID, "length is 7: give 1 to 6");
    b = good, b.tokens = NULL;
    assert_fails(blurry_model_evaluate(model, &b, NULL), BLURRY_E_INVALID, "tokens is NULL");
    b = good, b.row_count = 13;
    assert_fails(blurry_model_evaluate(model, &b, NULL), BLURRY_E_INVALID, "row_count is 13");
    b = good, b.rows = NULL;
    assert_fails(blurry_model_evaluate(model, &b, NULL), BLURRY_E_INVALID, "rows is NULL");
    rows[1] = 0;
    assert_fails(blurry_model_evaluate(model, &good, NULL), BLURRY_E_INVALID, "rows[1] is 0");
    rows[1] = 12;
    assert_fails(blurry_model_evaluate(model, &good, NULL), BLURRY_E_INVALID, "rows[1] is 12");
    rows[1] = 3, tokens[7] = 11;
    assert_fails(blurry_model_gradient(model, &good, 1, 0, NULL), BLURRY_E_INVALID,
                 "tokens[7] is 11: the vocabulary is 0 .. 10");
    tokens[7] = 0, labels[2] = -1;
    assert_fails(blurry_model_gradient(model, &good, 1, 0, NULL), BLURRY_E_INVALID, "labels[2] is -1");
    labels[2] = 0, b = good, b.labels = NULL;
    assert_fails(blurry_model_gradient(model, &b, 1, 0, NULL), BLURRY_E_INVALID, "labels is NULL");
    assert_fails(blurry_model_gradient(model, &good, 1, 0, &with_logits), BLURRY_E_INVALID,
                 "logits is not NULL");
    assert_fails(blurry_model_gradient(fixed, &good, 1, 0, NULL), BLURRY_E_INVALID, "without training");
    assert_fails(blurry_model_zero_gradient(fixed), BLURRY_E_INVALID, "without training");
    blurry_model_destroy(&model), blurry_model_destroy(&fixed);
}

static void bad_models_are_refused(void **state)
{
    (void)state;
    blurry_model *model = (blurry_model *)&state;
    blurry_settings *s = settings_from("mixer=blurry,softmax layers=3");
    assert_fails(blurry_model_create(&model, s, 1), BLURRY_E_INVALID, "mixer");
    assert_null(model);
    blurry_settings_destroy(&s);
    s = settings_from("batch=16777216 length=1073741824 width=64");
    assert_fails(blurry_model_create(&model, s, 1), BLURRY_E_MEMORY,
                 "batch 16777216 times length 1073741824 does not fit in memory");
    assert_ok(blurry_settings_assign(s, "precision=bf16"));
    assert_fails(blurry_model_create(&model, s, 1), BLURRY_E_UNSUPPORTED, "precision is bf16");
    assert_fails(blurry_model_create(&model, NULL, 1), BLURRY_E_INVALID, "settings is NULL");
    assert_fails(blurry_model_create(NULL, s, 1), BLURRY_E_INVALID, "model is NULL");
    blurry_settings_destroy(&s);
    blurry_model_destroy(&model); /* NULL is fine */
    blurry_model_destroy(NULL);
}

static void nonfinite_values_are_found(void **state)
{
    (void)state;
    blurry_model *model =
        model_open(CASE_FAST_F32, "mixer=softmax layers=2 width=8 vocab=11 length=6 batch=2", 1);
    model_batch b;
    model_batch_draw(&b, model, 2, 6, 1);
    assert_ok(blurry_model_gradient(model, &b.batch, 1, 0, NULL));
    assert_null(blurry_model_first_nonfinite(model));
    int64_t k = blurry_model_find_parameter(model, "layers.1.mixer.v.weight");
    float *gradient = parameter_gradient(model, k), *data = parameter_data(model, k);
    gradient[3] = INFINITY;
    assert_string_equal(blurry_model_first_nonfinite(model), "gradient of layers.1.mixer.v.weight");
    for (int i = 0; i < 64; i++) data[i] = 3e38f; /* overflows on the way */
    assert_ok(blurry_model_evaluate(model, &b.batch, NULL));
    assert_string_equal(blurry_model_first_nonfinite(model), "output of layers.1.mixer");
    data[5] = NAN;
    assert_string_equal(blurry_model_first_nonfinite(model), "layers.1.mixer.v.weight");
    blurry_model_destroy(&model);
}

/* Memory is planned: activations for training grow with layers, without training they do not. */
static void memory_is_planned(void **state)
{
    (void)state;
    blurry_model_memory two, four, fixed_two, fixed_four;
    const char *options[] = {"layers=2 width=64 vocab=100 length=64 batch=8",
                             "layers=4 width=64 vocab=100 length=64 batch=8"};
    blurry_model_memory *of[2][2] = {{&fixed_two, &two}, {&fixed_four, &four}};
    for (int i = 0; i < 2; i++)
        for (int training = 0; training < 2; training++) {
            blurry_model *model = model_open(CASE_FAST_F32, options[i], training);
            blurry_model_memory_use(model, of[i][training]);
            assert_true(of[i][training]->parameters >=
                        (size_t)blurry_model_parameter_elements(model) * sizeof(float));
            blurry_model_destroy(&model);
        }
    assert_true(two.gradients == two.parameters && fixed_two.gradients == 0);
    assert_true(four.activations > two.activations);
    assert_true(fixed_four.activations == fixed_two.activations && fixed_two.activations < two.activations);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_and_shapes),
        cmocka_unit_test(initial_values),
        cmocka_unit_test(initial_values_follow_names),
        cmocka_unit_test(bad_batches_are_refused),
        cmocka_unit_test(bad_models_are_refused),
        cmocka_unit_test(nonfinite_values_are_found),
        cmocka_unit_test(memory_is_planned),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
