/* Every mixer against the goldens of tests/golden/mixers, which an independent float64 program made: output,
 * gradient of the input and of every parameter, on the reference and the fast device, in double and single
 * precision. */
#include "support/mixer_case.h"
#include "support/test.h"

#include "base/safetensors.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Relative to the largest element of the tensor. In single precision the inputs themselves are rounded; where
 * that alone moves a tensor (a norm of something near zero), the allowance grows with it: `share` times the
 * movement seen when the double reference is given the rounded inputs. */
static const double tolerance[CASE_DEVICES] = {1e-11, 1e-11, 2e-5, 2e-5};
static const double share = 30; /* the computation rounds many times, the inputs once */
enum { TENSORS_MAX = MIXER_PARAMETER_COUNT + 2 };

typedef struct golden {
    safetensors *file;
    const char *name;
    char options[1024];
    int64_t B, L, count; /* count = B L d */
} golden;

/* The tensor, rounded to single precision where asked. */
static double *load(const golden *g, const char *name, int64_t count, int rounded)
{
    double *values = malloc((size_t)count * sizeof *values);
    assert_ok(safetensors_read_f64(g->file, name, NULL, -1, count, values));
    for (int64_t i = 0; rounded && i < count; i++) values[i] = (float)values[i];
    return values;
}

static void golden_open(golden *g, const char *path, const char *name)
{
    size_t used = 0;
    *g = (golden){.name = name};
    assert_ok(safetensors_open(&g->file, path));
    for (size_t i = 0; i < safetensors_metadata_count(g->file); i++) {
        used +=
            (size_t)snprintf(g->options + used, sizeof g->options - used, "%s=%s ",
                             safetensors_metadata_key(g->file, i), safetensors_metadata_value(g->file, i));
        assert_true(used < sizeof g->options);
    }
    const safetensors_tensor *input = safetensors_find(g->file, "x");
    assert_non_null(input);
    g->B = input->shape[0], g->L = input->shape[1], g->count = input->count;
}

/* Runs the golden on a device and reports the relative error of y, d_x and every parameter's gradient. */
static int golden_errors(const golden *g, case_device kind, int rounded, double *error,
                         char key[TENSORS_MAX][64])
{
    mixer_case c;
    mixer_case_open(&c, kind, g->options, g->B, g->L, g->L);
    for (int i = 0; i < c.list.count; i++) {
        double *values = load(g, c.list.spec[i].name, mixer_case_elements(&c, i), rounded);
        mixer_case_set(&c, i, values);
        free(values);
    }
    double *x = load(g, "x", g->count, rounded), *y = load(g, "y", g->count, 0);
    double *d_y = load(g, "d_y", g->count, rounded), *d_x = load(g, "d_x", g->count, 0);
    double *got = malloc((size_t)g->count * sizeof *got);
    strcpy(key[0], "y");
    mixer_case_forward(&c, g->B, g->L, x, got);
    error[0] = relative_error(got, y, g->count);
    strcpy(key[1], "d_x");
    mixer_case_backward(&c, g->B, g->L, x, d_y, got);
    error[1] = relative_error(got, d_x, g->count);
    for (int i = 0; i < c.list.count; i++) {
        int64_t n = mixer_case_elements(&c, i);
        snprintf(key[i + 2], 64, "d_%s", c.list.spec[i].name);
        double *want = load(g, key[i + 2], n, 0), *gradient = malloc((size_t)n * sizeof *gradient);
        mixer_case_gradient(&c, i, gradient);
        error[i + 2] = relative_error(gradient, want, n);
        free(want), free(gradient);
    }
    int tensors = c.list.count + 2;
    free(x), free(y), free(d_y), free(d_x), free(got);
    mixer_case_close(&c);
    return tensors;
}

static void check_file(const char *path, const char *name, void *context)
{
    case_device kind = *(case_device *)context;
    golden g;
    double error[TENSORS_MAX], moved[TENSORS_MAX] = {0};
    char key[TENSORS_MAX][64];
    int single = kind == CASE_REF_F32 || kind == CASE_FAST_F32;
    golden_open(&g, path, name);
    if (single) golden_errors(&g, CASE_REF_F64, 1, moved, key);
    int tensors = golden_errors(&g, kind, 0, error, key);
    for (int i = 0; i < tensors; i++) {
        double limit = fmax(tolerance[kind], share * moved[i]);
        if (!(error[i] <= limit))
            fail_msg("%s, %s, %s: relative error %g, allowed %g", name, case_device_name[kind], key[i],
                     error[i], limit);
    }
    safetensors_close(&g.file);
}

static void goldens(void **state)
{
    assert_true(test_golden_files("mixers", check_file, *state) >= 31);
}

int main(void)
{
    static case_device kind[CASE_DEVICES] = {CASE_REF_F64, CASE_FAST_F64, CASE_REF_F32, CASE_FAST_F32};
    const struct CMUnitTest tests[] = {
        {"goldens, reference f64", goldens, NULL, NULL, &kind[0]},
        {"goldens, fast f64", goldens, NULL, NULL, &kind[1]},
        {"goldens, reference f32", goldens, NULL, NULL, &kind[2]},
        {"goldens, fast f32", goldens, NULL, NULL, &kind[3]},
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
