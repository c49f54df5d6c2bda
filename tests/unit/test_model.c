/* The language model: gradients end to end by finite differences for every mixer and every choice of norm,
 * MLP, head and position; fast device against reference; accumulation, dropout, initial values, parameter
 * names, refusals. */
#include "support/model_case.h"
#include "support/test.h"

#include "base/rng.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const models[] = {
    "mixer=softmax layers=2 width=8 heads=2 vocab=11 length=12 batch=3 mlp=swiglu norm=rmsnorm tied=true",
    "mixer=swa layers=2 width=8 heads=2 kv_heads=1 vocab=11 length=12 batch=3 window=4 mlp=gelu "
    "norm=layernorm tied=false",
    "mixer=abc layers=1 width=8 heads=2 slots=3 vocab=11 length=12 batch=3 mlp=none norm=rmsnorm tied=false",
    "mixer=gsa layers=2 width=8 heads=1 slots=3 vocab=11 length=12 batch=3 mlp=gelu norm=rmsnorm tied=true "
    "conv=true",
    "mixer=gla layers=1 width=8 heads=2 vocab=11 length=12 batch=3 mlp=swiglu norm=layernorm tied=true "
    "position=learned",
    "mixer=gdn layers=2 width=8 heads=2 vocab=11 length=12 batch=3 mlp=none norm=layernorm tied=true "
    "conv=true",
    "mixer=s4d layers=2 width=8 state=4 vocab=11 length=12 batch=3 mlp=swiglu norm=rmsnorm tied=false "
    "position=learned",
    "mixer=blurry layers=2 width=8 heads=2 modes=2 vocab=11 length=12 batch=3 mlp=swiglu tied=true",
    "mixer=blurry layers=1 width=8 heads=2 modes=2 vocab=11 length=12 batch=3 mlp=none decay=true "
    "learned_period=true "
    "rope=false position=learned",
    "mixer=blurry,gla,softmax layers=3 width=8 heads=2 modes=2 vocab=11 length=12 batch=3 mlp=gelu "
    "norm=layernorm "
    "tied=false",
};
enum { MODELS = sizeof models / sizeof models[0] };

static double *gradient_of(blurry_model *model, int64_t k)
{
    size_t bytes = (size_t)model->parameter[k].elements * sizeof(double);
    double *values = malloc(bytes);
    assert_ok(blurry_model_read_gradient(model, k, values, bytes));
    return values;
}

/* ---- finite differences ---- */
static double loss_of(blurry_model *model, const blurry_batch *batch)
{
    blurry_outputs out = {0};
    assert_ok(blurry_model_evaluate(model, batch, &out));
    return out.loss;
}

/* Slope of the loss when parameter k moves along `direction`, by differences of fourth order. */
static double slope(blurry_model *model, const blurry_batch *batch, int64_t k, const double *values,
                    const double *direction)
{
    const double h = 1e-5;
    int64_t n = model->parameter[k].elements;
    size_t bytes = (size_t)n * sizeof(double);
    double *moved = malloc(bytes), at[5];
    for (int s = -2; s <= 2; s++) {
        for (int64_t i = 0; i < n; i++) moved[i] = values[i] + s * h * direction[i];
        assert_ok(blurry_model_write_parameter(model, k, moved, bytes));
        if (s) at[s + 2] = loss_of(model, batch);
    }
    assert_ok(blurry_model_write_parameter(model, k, values, bytes));
    free(moved);
    return (8 * (at[3] - at[1]) - (at[4] - at[0])) / (12 * h);
}

/* Random directions through the whole tensor, and single elements. */
static void check_parameter(blurry_model *model, const blurry_batch *batch, int64_t k, const char *options)
{
    enum { WHOLE = 3, SINGLE = 12 };
    int64_t n = model->parameter[k].elements;
    double *values = malloc((size_t)n * sizeof *values), *gradient = gradient_of(model, k), size = 0;
    assert_ok(blurry_model_read_parameter(model, k, values, (size_t)n * sizeof *values));
    for (int64_t i = 0; i < n; i++) size = fmax(size, fabs(gradient[i]));
    for (int trial = 0; trial < WHOLE + SINGLE; trial++) {
        double *direction =
            trial < WHOLE ? draw_normal(n, 900 + (uint64_t)trial) : calloc((size_t)n, sizeof(double));
        if (trial >= WHOLE) direction[(trial * 7919) % n] = 1;
        double want = slope(model, batch, k, values, direction), got = 0, norm = 0;
        for (int64_t i = 0; i < n; i++) got += gradient[i] * direction[i], norm += fabs(direction[i]);
        if (!(fabs(got - want) <= 1e-6 * size * sqrt(norm) + 1e-9))
            fail_msg("%s: %s: slope %.12g, gradient %.12g", options, model->parameter[k].name, want, got);
        free(direction);
    }
    if (size == 0 && strstr(model->parameter[k].name, "position") == NULL)
        fail_msg("%s: %s: gradient is zero", options, model->parameter[k].name);
    free(values), free(gradient);
}

static void gradients_are_slopes(void **state)
{
    (void)state;
    for (int m = 0; m < MODELS; m++) {
        blurry_model *model = model_open(CASE_REF_F64, models[m], 1);
        model_batch b;
        blurry_outputs out = {0};
        model_stir(model, 5);
        model_batch_draw(&b, model, 2, 12, 1); /* fewer sequences than planned */
        assert_ok(blurry_model_gradient(model, &b.batch, 1, 0, &out));
        assert_true(fabs(out.loss - loss_of(model, &b.batch)) < 1e-10);
        for (int64_t k = 0; k < model->parameter_count; k++) check_parameter(model, &b.batch, k, models[m]);
        blurry_model_destroy(&model);
    }
}

/* The last layer at the labelled rows alone, and at all rows; the first layer's maps once for each different
 * token, and for every token. */
static void wanted_rows_equal_all(void **state)
{
    (void)state;
    int folded = 0; /* with 11 tokens at 36 places */
    for (int m = 0; m < MODELS; m++)
        for (int kind = CASE_REF_F64; kind <= CASE_FAST_F64; kind++) {
            blurry_model *some = model_open((case_device)kind, models[m], 1),
                         *all = model_open((case_device)kind, models[m], 1);
            model_batch b;
            blurry_outputs out = {0}, expected = {0};
            model_stir(some, 5), model_stir(all, 5);
            model_batch_draw(&b, some, 3, 12, 2);
            assert_true(some->net.picks && b.batch.row_count <= mixer_rows_most(3 * 12));
            folded += some->net.folds;
            all->net.picks = all->net.folds = 0;
            assert_ok(blurry_model_gradient(some, &b.batch, 0.1, 0, &out));
            assert_ok(blurry_model_gradient(all, &b.batch, 0.1, 0, &expected));
            assert_true(fabs(out.loss - expected.loss) <= 1e-13 * expected.loss);
            for (int64_t k = 0; k < all->parameter_count; k++) {
                double *a = gradient_of(some, k), *e = gradient_of(all, k);
                double error = relative_error(a, e, all->parameter[k].elements);
                if (!(error <= 1e-12))
                    fail_msg("%s, %s, %s: relative error %g", models[m], case_device_name[kind],
                             all->parameter[k].name, error);
                free(a), free(e);
            }
            blurry_model_destroy(&some), blurry_model_destroy(&all);
        }
    assert_int_equal(folded, 2 * 4);
}

/* Evaluations as well, in models for training and others: those give the same bits. */
static void evaluations_at_wanted_rows_equal_all(void **state)
{
    (void)state;
    enum { V = 11 };
    static float logits[3][512 * V];
    static int32_t argmax[3][512];
    for (int m = 0; m < MODELS; m++)
        for (int kind = CASE_REF_F64; kind <= CASE_FAST_F64; kind++) {
            blurry_outputs out[3];
            model_batch b;
            for (int i = 0; i < 3; i++) { /* all rows; wanted rows; wanted rows, not for training */
                blurry_model *model = model_open((case_device)kind, models[m], i < 2);
                model_stir(model, 5);
                model_batch_draw(&b, model, 3, 12, 2);
                assert_true(model->net.picks && b.batch.row_count <= mixer_rows_most(3 * 12));
                if (i == 0) model->net.picks = 0;
                model->net.block = 4; /* several blocks of rows */
                out[i] = (blurry_outputs){.argmax = argmax[i], .logits = logits[i]};
                assert_ok(blurry_model_evaluate(model, &b.batch, &out[i]));
                assert_true(fabs(out[i].loss - loss_of(model, &b.batch)) <=
                            1e-13 * out[i].loss); /* one block */
                blurry_model_destroy(&model);
            }
            assert_true(fabs(out[1].loss - out[0].loss) <= 1e-13 * out[0].loss && out[2].loss == out[1].loss);
            size_t rows = (size_t)b.batch.row_count;
            for (size_t i = 0; i < rows * V; i++)
                assert_true(fabs((double)(logits[1][i] - logits[0][i])) <= 1e-6);
            for (int i = 0; i < 2; i++) assert_memory_equal(argmax[i], argmax[2], rows * sizeof *argmax[i]);
            assert_memory_equal(logits[1], logits[2], rows * V * sizeof *logits[1]);
        }
}

/* ---- devices ---- */
static void fast_agrees_with_reference(void **state)
{
    (void)state;
    for (int m = 0; m < MODELS; m++) {
        blurry_model *want = model_open(CASE_REF_F64, models[m], 1);
        model_batch b;
        blurry_outputs expected = {0};
        model_stir(want, 5);
        model_batch_draw(&b, want, 3, 12, 2);
        assert_ok(blurry_model_gradient(want, &b.batch, 0.1, 0, &expected));
        for (int kind = CASE_FAST_F64; kind < CASE_DEVICES; kind++) {
            blurry_model *got = model_open((case_device)kind, models[m], 1);
            blurry_outputs out = {0};
            double limit = kind == CASE_FAST_F64 ? 1e-11 : 2e-4;
            model_stir(got, 5);
            assert_ok(blurry_model_gradient(got, &b.batch, 0.1, 0, &out));
            assert_true(fabs(out.loss - expected.loss) <=
                        (kind == CASE_FAST_F64 ? 1e-12 : 2e-5) * expected.loss);
            for (int64_t k = 0; k < want->parameter_count; k++) {
                double *a = gradient_of(got, k), *e = gradient_of(want, k);
                double error = relative_error(a, e, want->parameter[k].elements);
                if (!(error <= limit))
                    fail_msg("%s, %s, %s: relative error %g", models[m], case_device_name[kind],
                             want->parameter[k].name, error);
                free(a), free(e);
            }
            blurry_model_destroy(&got);
        }
        blurry_model_destroy(&want);
    }
}

/* The same bits for every number of threads, and on every rerun. */
static void threads_change_nothing(void **state)
{
    (void)state;
    for (int m = 0; m < MODELS; m++) {
        blurry_model *model[3];
        model_batch b;
        for (int t = 0; t < 3; t++) {
            char options[512];
            snprintf(options, sizeof options, "%s threads=%d", models[m], t == 2 ? 2 : t + 1);
            model[t] = model_open(CASE_FAST_F32, options, 1);
            model_batch_draw(&b, model[t], 3, 12, 3);
            assert_ok(blurry_model_gradient(model[t], &b.batch, 1, 0, NULL));
            assert_memory_equal(model[t]->data, model[0]->data, model[0]->parameter_bytes);
            if (t) assert_memory_equal(model[t]->gradient, model[t - 1]->gradient, model[0]->parameter_bytes);
        }
        for (int t = 0; t < 3; t++) blurry_model_destroy(&model[t]);
    }
}

/* ---- batches ---- */
static void sub_batch(model_batch *part, const model_batch *whole, int64_t sequence, int64_t length)
{
    int64_t count = 0;
    memcpy(part->tokens, whole->tokens + sequence * length, (size_t)length * sizeof *part->tokens);
    for (int64_t i = 0; i < whole->batch.row_count; i++) {
        if (whole->rows[i] / length != sequence) continue;
        part->rows[count] = whole->rows[i] % length;
        part->labels[count++] = whole->labels[i];
    }
    part->batch = (blurry_batch){1, length, part->tokens, count, part->rows, part->labels};
}

static void accumulation_is_a_sum(void **state)
{
    (void)state;
    for (int m = 0; m < MODELS; m++) {
        blurry_model *whole = model_open(CASE_FAST_F64, models[m], 1),
                     *parts = model_open(CASE_FAST_F64, models[m], 1);
        model_batch b, part;
        blurry_outputs out = {0}, sum = {0};
        model_batch_draw(&b, whole, 3, 12, 4);
        assert_ok(blurry_model_gradient(whole, &b.batch, 0.25, 0, &out));
        for (int64_t s = 0; s < 3; s++) {
            blurry_outputs one = {0};
            sub_batch(&part, &b, s, 12);
            assert_ok(blurry_model_gradient(parts, &part.batch, 0.25, 0, &one));
            sum.loss += one.loss;
        }
        assert_true(fabs(sum.loss - out.loss) < 1e-10);
        for (int64_t k = 0; k < whole->parameter_count; k++) {
            double *a = gradient_of(parts, k), *e = gradient_of(whole, k);
            assert_true(relative_error(a, e, whole->parameter[k].elements) < 1e-10);
            free(a), free(e);
        }
        assert_ok(blurry_model_zero_gradient(whole));
        double *zero = gradient_of(whole, 0);
        for (int64_t i = 0; i < whole->parameter[0].elements; i++) assert_true(zero[i] == 0);
        free(zero);
        blurry_model_destroy(&whole), blurry_model_destroy(&parts);
    }
}

/* Loss, argmax, probabilities and logits tell the same story. */
static void outputs_agree(void **state)
{
    (void)state;
    blurry_model *model = model_open(CASE_FAST_F64, models[7], 0);
    model_batch b;
    enum { V = 11 };
    static float logits[512 * V], probabilities[512 * V];
    static int32_t argmax[512], again[512];
    blurry_outputs out = {.argmax = argmax, .logits = logits, .probabilities = probabilities};
    blurry_outputs plain = {.argmax = again};
    double loss = 0;
    model_stir(model, 9);
    model_batch_draw(&b, model, 3, 12, 5);
    model->net.block = 2; /* several blocks of rows */
    assert_ok(blurry_model_evaluate(model, &b.batch, &out));
    for (int64_t i = 0; i < b.batch.row_count; i++) {
        double sum = 0;
        for (int v = 0; v < V; v++) {
            assert_true(logits[i * V + v] <= logits[i * V + argmax[i]]);
            sum += probabilities[i * V + v];
        }
        assert_true(fabs(sum - 1) < 1e-5);
        loss -= log((double)probabilities[i * V + b.labels[i]]);
    }
    assert_true(fabs(loss - out.loss) < 1e-4);
    b.batch.labels = NULL; /* predictions only */
    assert_ok(blurry_model_evaluate(model, &b.batch, &plain));
    assert_true(plain.loss == 0);
    assert_memory_equal(argmax, again, (size_t)b.batch.row_count * sizeof *argmax);
    b.batch.row_count = 0;
    assert_ok(blurry_model_evaluate(model, &b.batch, &plain));
    blurry_model_destroy(&model);
}

/* ---- dropout ---- */
static void dropout_depends_on_draw(void **state)
{
    (void)state;
    char options[512];
    snprintf(options, sizeof options, "%s dropout=0.3", models[0]);
    blurry_model *model = model_open(CASE_FAST_F64, options, 1),
                 *plain = model_open(CASE_FAST_F64, models[0], 1);
    model_batch b;
    blurry_outputs first = {0}, same = {0}, other = {0}, none = {0};
    model_batch_draw(&b, model, 3, 12, 6);
    assert_ok(blurry_model_gradient(model, &b.batch, 1, 17, &first));
    double *gradient = gradient_of(model, 0);
    assert_ok(blurry_model_zero_gradient(model));
    assert_ok(blurry_model_gradient(model, &b.batch, 1, 18, &other));
    assert_ok(blurry_model_zero_gradient(model));
    assert_ok(blurry_model_gradient(model, &b.batch, 1, 17, &same));
    double *again = gradient_of(model, 0);
    assert_true(first.loss == same.loss && first.loss != other.loss);
    assert_memory_equal(gradient, again, (size_t)model->parameter[0].elements * sizeof *again);
    assert_ok(blurry_model_evaluate(model, &b.batch, &first)); /* evaluation is without dropout */
    assert_ok(blurry_model_evaluate(plain, &b.batch, &none));
    assert_true(first.loss == none.loss);
    free(gradient), free(again);
    blurry_model_destroy(&model), blurry_model_destroy(&plain);
}

/* The gradient under one mask is the slope of the loss under that mask: move the embedding of one token. */
static void dropout_gradient_is_slope(void **state)
{
    (void)state;
    char options[512];
    snprintf(options, sizeof options, "%s dropout=0.4", models[4]);
    blurry_model *model = model_open(CASE_REF_F64, options, 1);
    model_batch b;
    model_stir(model, 5);
    model_batch_draw(&b, model, 3, 12, 6);
    int64_t n = model->parameter[0].elements;
    double *values = malloc((size_t)n * sizeof *values), side[2];
    assert_ok(blurry_model_read_parameter(model, 0, values, (size_t)n * sizeof *values));
    assert_ok(blurry_model_gradient(model, &b.batch, 1, 3, NULL));
    double *gradient = gradient_of(model, 0);
    for (int64_t i = 0; i < n; i += 5) {
        double at = values[i];
        for (int s = 0; s < 2; s++) {
            blurry_outputs out = {0};
            values[i] = at + (s ? 1e-5 : -1e-5);
            assert_ok(blurry_model_write_parameter(model, 0, values, (size_t)n * sizeof *values));
            assert_ok(blurry_model_gradient(model, &b.batch, 1, 3, &out));
            side[s] = out.loss;
        }
        values[i] = at;
        assert_true(fabs((side[1] - side[0]) / 2e-5 - gradient[i]) < 1e-6 * (1 + fabs(gradient[i])));
    }
    free(values), free(gradient);
    blurry_model_destroy(&model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_are_slopes),
        cmocka_unit_test(wanted_rows_equal_all),
        cmocka_unit_test(evaluations_at_wanted_rows_equal_all),
        cmocka_unit_test(fast_agrees_with_reference),
        cmocka_unit_test(threads_change_nothing),
        cmocka_unit_test(accumulation_is_a_sum),
        cmocka_unit_test(outputs_agree),
        cmocka_unit_test(dropout_depends_on_draw),
        cmocka_unit_test(dropout_gradient_is_slope),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
