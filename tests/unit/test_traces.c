/* Ten training steps per mixer against the traces of tests/golden/traces, which an independent float64
 * program made: from its initial weights and batches, model, clipping, AdamW and schedule must arrive at its
 * losses. */
#include "support/test.h"

#include "base/safetensors.h"
#include "base/settings.h"
#include "blurry/model.h"
#include "model/model.h"
#include "train/optimiser.h"
#include "train/schedule.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 10, TRACES_MIN = 12 };

/* Largest relative error of a loss and of a gradient norm, per precision. The twin itself run in single
 * precision stays within 3e-6 of the losses. */
typedef struct precision {
    const char *name;
    double loss, norm;
} precision;
static const precision double_precision = {"f64", 1e-10, 1e-10}, single_precision = {"f32", 1e-4, 1e-3};

typedef struct trace {
    const char *name;
    safetensors *file;
    blurry_settings *settings;
    blurry_model *model;
    optimiser adamw;
    schedule rates;
    int64_t sequences, length, rows;                           /* of one step's batch */
    double loss[STEPS], lr[STEPS], grad_norm[STEPS], final[1]; /* wanted */
    int32_t *tokens, *labels;                                  /* [STEPS, sequences, length], [STEPS, rows] */
    int64_t *labelled;                                         /* [STEPS, rows] */
} trace;

/* An I64 tensor of the file with STEPS as its first dimension, as 64-bit integers. */
static int64_t *load_integers(const trace *t, const char *name, int rank, int64_t shape[3])
{
    const safetensors_tensor *tensor = safetensors_find(t->file, name);
    assert_non_null(tensor);
    assert_int_equal(tensor->dtype, SAFETENSORS_I64);
    assert_int_equal(tensor->rank, rank);
    assert_int_equal(tensor->shape[0], STEPS);
    memcpy(shape, tensor->shape, (size_t)rank * sizeof *shape);
    int64_t *values = malloc(tensor->bytes);
    assert_non_null(values);
    memcpy(values, tensor->data, tensor->bytes);
    return values;
}

static int32_t *narrowed(int64_t *wide, int64_t count)
{
    int32_t *values = malloc((size_t)count * sizeof *values);
    assert_non_null(values);
    for (int64_t i = 0; i < count; i++) values[i] = (int32_t)wide[i];
    free(wide);
    return values;
}

static void load_batches(trace *t)
{
    int64_t tokens[3], rows[3], labels[3];
    int64_t *ids = load_integers(t, "trace.tokens", 3, tokens);
    t->labelled = load_integers(t, "trace.rows", 2, rows);
    int64_t *targets = load_integers(t, "trace.labels", 2, labels);
    assert_int_equal(rows[1], labels[1]);
    t->sequences = tokens[1], t->length = tokens[2], t->rows = rows[1];
    t->tokens = narrowed(ids, STEPS * t->sequences * t->length);
    t->labels = narrowed(targets, STEPS * t->rows);
}

/* Every parameter of the model from the file; none of the file's may be left over. */
static void load_parameters(trace *t)
{
    size_t others = 0;
    for (size_t i = 0; i < safetensors_count(t->file); i++)
        others += !strncmp(safetensors_at(t->file, i)->name, "trace.", 6);
    int64_t count = blurry_model_parameter_count(t->model);
    assert_int_equal(count, safetensors_count(t->file) - others);
    for (int64_t i = 0; i < count; i++) {
        blurry_parameter p;
        assert_ok(blurry_model_parameter(t->model, i, &p));
        size_t bytes = (size_t)p.elements * sizeof(double);
        double *values = malloc(bytes);
        assert_non_null(values);
        assert_ok(safetensors_read_f64(t->file, p.name, p.shape, p.rank, p.elements, values));
        assert_ok(blurry_model_write_parameter(t->model, i, values, bytes));
        free(values);
    }
}

static void trace_open(trace *t, const char *path, const char *name, const precision *type)
{
    *t = (trace){.name = name};
    assert_ok(safetensors_open(&t->file, path));
    assert_ok(blurry_settings_create(&t->settings));
    for (size_t i = 0; i < safetensors_metadata_count(t->file); i++)
        assert_ok(blurry_settings_set(t->settings, safetensors_metadata_key(t->file, i),
                                      safetensors_metadata_value(t->file, i)));
    assert_ok(blurry_settings_set(t->settings, "precision", type->name));
    const struct settings *s = settings_values(t->settings);
    assert_ok(blurry_model_create(&t->model, t->settings, 1));
    assert_ok(optimiser_create(&t->adamw, t->model->dev, t->model, s));
    assert_ok(schedule_init(&t->rates, s, STEPS));
    assert_ok(safetensors_read_f64(t->file, "trace.loss", NULL, -1, STEPS, t->loss));
    assert_ok(safetensors_read_f64(t->file, "trace.lr", NULL, -1, STEPS, t->lr));
    assert_ok(safetensors_read_f64(t->file, "trace.grad_norm", NULL, -1, STEPS, t->grad_norm));
    assert_ok(safetensors_read_f64(t->file, "trace.final_loss", NULL, -1, 1, t->final));
    load_parameters(t);
    load_batches(t);
}

static void trace_close(trace *t)
{
    optimiser_destroy(&t->adamw);
    blurry_model_destroy(&t->model);
    blurry_settings_destroy(&t->settings);
    safetensors_close(&t->file);
    free(t->tokens), free(t->labels), free(t->labelled);
}

static void expect(const trace *t, const precision *type, const char *what, int64_t step, double got,
                   double want, double limit)
{
    double error = fabs(got - want) / fabs(want);
    if (!(error <= limit))
        fail_msg("%s in %s, step %lld: %s is %.15g, wanted %.15g (relative error %.2g, allowed %g)", t->name,
                 type->name, (long long)step, what, got, want, error, limit);
}

static blurry_batch batch_of(const trace *t, int64_t step)
{
    return (blurry_batch){.sequences = t->sequences,
                          .length = t->length,
                          .tokens = t->tokens + step * t->sequences * t->length,
                          .row_count = t->rows,
                          .rows = t->labelled + step * t->rows,
                          .labels = t->labels + step * t->rows};
}

static void follow(trace *t, const precision *type)
{
    for (int64_t step = 0; step < STEPS; step++) {
        blurry_batch batch = batch_of(t, step);
        blurry_outputs outputs = {0};
        double norm, rate = schedule_rate(&t->rates, step);
        assert_ok(blurry_model_zero_gradient(t->model));
        assert_ok(blurry_model_gradient(t->model, &batch, 1.0 / (double)t->rows, 0, &outputs));
        assert_ok(optimiser_measure(&t->adamw, &norm));
        expect(t, type, "loss", step, outputs.loss / (double)t->rows, t->loss[step], type->loss);
        expect(t, type, "gradient norm", step, norm, t->grad_norm[step], type->norm);
        expect(t, type, "learning rate", step, rate, t->lr[step], 1e-14);
        assert_ok(optimiser_apply(&t->adamw, step + 1, rate));
    }
    blurry_batch batch = batch_of(t, 0);
    blurry_outputs outputs = {0};
    assert_ok(blurry_model_evaluate(t->model, &batch, &outputs));
    expect(t, type, "final loss", STEPS, outputs.loss / (double)t->rows, t->final[0], type->loss);
}

static void check_trace(const char *path, const char *name, void *type)
{
    trace t;
    trace_open(&t, path, name, type);
    follow(&t, type);
    trace_close(&t);
}

static void traces(void **state)
{
    assert_true(test_golden_files("traces", check_trace, *state) >= TRACES_MIN);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        {"traces in double precision", traces, NULL, NULL, (void *)&double_precision},
        {"traces in single precision", traces, NULL, NULL, (void *)&single_precision},
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
