/* Ten training steps of every mixer against the traces of tests/golden/traces, which the PyTorch twin made:
 * the losses and gradient norms of every step. The steps here are made of the device's own operations:
 * gradient, clipping, AdamW. */
#include "support/model_case.h"
#include "support/test.h"

#include "base/safetensors.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 10, SEQUENCES = 4, TOKENS = 24, LABELS = 20 };

typedef struct trace {
    safetensors *file;
    blurry_settings *settings;
    blurry_model *model;
    char *moments;
    adamw_scalars scalars;
} trace;

/* Relative to the trace's value. In single precision the twin itself strays 3e-6. */
static const double tolerance[CASE_DEVICES] = {1e-9, 1e-9, 3e-5, 3e-5};

static void read_numbers(const trace *t, const char *name, int64_t count, double *values)
{
    assert_ok(safetensors_read_f64(t->file, name, NULL, -1, count, values));
}

static const int64_t *integers(const trace *t, const char *name)
{
    const safetensors_tensor *tensor = safetensors_find(t->file, name);
    assert_non_null(tensor);
    assert_int_equal(tensor->dtype, SAFETENSORS_I64);
    int64_t *copy = malloc(tensor->bytes);
    memcpy(copy, tensor->data, tensor->bytes);
    return copy;
}

static void trace_open(trace *t, const char *path, case_device kind)
{
    char options[2048];
    size_t used = 0;
    *t = (trace){0};
    assert_ok(safetensors_open(&t->file, path));
    for (size_t i = 0; i < safetensors_metadata_count(t->file); i++) {
        used +=
            (size_t)snprintf(options + used, sizeof options - used, "%s=%s ",
                             safetensors_metadata_key(t->file, i), safetensors_metadata_value(t->file, i));
        assert_true(used < sizeof options);
    }
    t->settings = settings_from(options);
    t->model = model_open(kind, options, 1);
    t->moments = calloc(2, t->model->parameter_bytes);
    for (int64_t k = 0; k < t->model->parameter_count; k++) {
        const model_parameter *p = &t->model->parameter[k];
        double *values = malloc((size_t)p->elements * sizeof *values);
        assert_ok(safetensors_read_f64(t->file, p->name, p->shape, p->rank, p->elements, values));
        assert_ok(blurry_model_write_parameter(t->model, k, values, (size_t)p->elements * sizeof *values));
        free(values);
    }
}

static void trace_close(trace *t)
{
    free(t->moments);
    blurry_model_destroy(&t->model);
    blurry_settings_destroy(&t->settings);
    safetensors_close(&t->file);
}

static void make_batch(model_batch *b, const int64_t *tokens, const int64_t *rows, const int64_t *labels)
{
    for (int i = 0; i < SEQUENCES * TOKENS; i++) b->tokens[i] = (int32_t)tokens[i];
    for (int i = 0; i < LABELS; i++) b->rows[i] = rows[i], b->labels[i] = (int32_t)labels[i];
    b->batch = (blurry_batch){SEQUENCES, TOKENS, b->tokens, LABELS, b->rows, b->labels};
}

/* Clipping and AdamW; returns the gradient's norm. */
static double update(trace *t, double rate, int step)
{
    const struct settings *s = settings_values(t->settings);
    blurry_model *m = t->model;
    double squares = 0, norm = 0;
    for (int64_t k = 0; k < m->parameter_count; k++)
        m->dev->ops->sum_squares(&m->dev->run, &(reduce_args){.count = m->parameter[k].elements,
                                                              .x = parameter_gradient(m, k),
                                                              .out = &squares});
    t->scalars = (adamw_scalars){.lr = rate,
                                 .beta1 = s->beta1,
                                 .beta2 = s->beta2,
                                 .eps = s->eps,
                                 .weight_decay = s->weight_decay,
                                 .step = step + 1};
    m->dev->ops->clip(
        &m->dev->run,
        &(clip_args){
            .sum_squares = &squares, .average = 1, .limit = s->clip, .norm = &norm, .scalars = &t->scalars});
    for (int64_t k = 0; k < m->parameter_count; k++) {
        const model_parameter *p = &m->parameter[k];
        m->dev->ops->adamw(&m->dev->run, &(adamw_args){.count = p->elements,
                                                       .param = parameter_data(m, k),
                                                       .m = t->moments + p->offset,
                                                       .v = t->moments + m->parameter_bytes + p->offset,
                                                       .grad = parameter_gradient(m, k),
                                                       .decay = p->decay,
                                                       .scalars = &t->scalars});
    }
    return norm;
}

static void expect(const char *file, const char *what, int step, double got, double want, double limit)
{
    if (!(fabs(got - want) <= limit * fabs(want)))
        fail_msg("%s, %s at step %d: %.12g, expected %.12g", file, what, step, got, want);
}

static void check_trace(const char *path, const char *name, case_device kind)
{
    trace t;
    double loss[STEPS], rate[STEPS], norm[STEPS], last;
    model_batch b;
    trace_open(&t, path, kind);
    read_numbers(&t, "trace.loss", STEPS, loss);
    read_numbers(&t, "trace.lr", STEPS, rate);
    read_numbers(&t, "trace.grad_norm", STEPS, norm);
    read_numbers(&t, "trace.final_loss", 1, &last);
    const int64_t *tokens = integers(&t, "trace.tokens"), *rows = integers(&t, "trace.rows");
    const int64_t *labels = integers(&t, "trace.labels");
    for (int step = 0; step < STEPS; step++) {
        blurry_outputs out = {0};
        make_batch(&b, tokens + step * SEQUENCES * TOKENS, rows + step * LABELS, labels + step * LABELS);
        assert_ok(blurry_model_zero_gradient(t.model));
        assert_ok(blurry_model_gradient(t.model, &b.batch, 1.0 / LABELS, (uint64_t)step, &out));
        expect(name, "loss", step, out.loss / LABELS, loss[step], tolerance[kind]);
        expect(name, "gradient norm", step, update(&t, rate[step], step), norm[step], 10 * tolerance[kind]);
    }
    blurry_outputs out = {0};
    make_batch(&b, tokens, rows, labels);
    assert_ok(blurry_model_evaluate(t.model, &b.batch, &out));
    expect(name, "final loss", STEPS, out.loss / LABELS, last, tolerance[kind]);
    free((void *)tokens), free((void *)rows), free((void *)labels);
    trace_close(&t);
}

static void traces(void **state)
{
    case_device kind = *(case_device *)*state;
    const char *folder = BLURRY_TEST_DATA "/golden/traces";
    DIR *directory = opendir(folder);
    assert_non_null(directory);
    int files = 0;
    for (struct dirent *entry; (entry = readdir(directory));) {
        const char *dot = strrchr(entry->d_name, '.');
        char path[1024];
        if (!dot || strcmp(dot, ".safetensors")) continue;
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        check_trace(path, entry->d_name, kind);
        files++;
    }
    closedir(directory);
    assert_true(files >= 12);
}

int main(void)
{
    static case_device kind[CASE_DEVICES] = {CASE_REF_F64, CASE_FAST_F64, CASE_REF_F32, CASE_FAST_F32};
    const struct CMUnitTest tests[] = {
        {"ten steps, reference f64", traces, NULL, NULL, &kind[0]},
        {"ten steps, fast f64", traces, NULL, NULL, &kind[1]},
        {"ten steps, reference f32", traces, NULL, NULL, &kind[2]},
        {"ten steps, fast f32", traces, NULL, NULL, &kind[3]},
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
