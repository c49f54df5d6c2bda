#include "support/mixer_case.h"
#include "support/test.h"

#include "base/rng.h"
#include "mixers/values.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *const case_device_name[CASE_ALL_DEVICES] = {"reference f64", "fast f64", "reference f32",
                                                        "fast f32",      "cuda f32", "cuda bf16"};

blurry_settings *settings_from(const char *options)
{
    blurry_settings *settings;
    char text[1024], *rest = text;
    assert_ok(blurry_settings_create(&settings));
    assert_true(strlen(options) < sizeof text);
    strcpy(text, options);
    for (char *word; (word = strsep(&rest, " "));)
        if (*word) assert_ok(blurry_settings_assign(settings, word));
    return settings;
}

double *draw_normal(int64_t count, uint64_t seed)
{
    double *x = malloc((size_t)(count ? count : 1) * sizeof *x);
    assert_non_null(x);
    for (int64_t i = 0; i < count; i++) x[i] = rng_normal_at(seed, RNG_TEST, 0, (uint64_t)i);
    return x;
}

double relative_error(const double *a, const double *b, int64_t count)
{
    double worst = 0, size = 1e-300;
    for (int64_t i = 0; i < count; i++) {
        if (isnan(a[i]) || isnan(b[i])) return INFINITY;
        worst = fmax(worst, fabs(a[i] - b[i]));
        size = fmax(size, fabs(b[i]));
    }
    return worst / size;
}

double relative_distance(const double *a, const double *b, int64_t count, double least)
{
    double distance = 0, size = 0;
    for (int64_t i = 0; i < count; i++) {
        distance += (a[i] - b[i]) * (a[i] - b[i]);
        size += b[i] * b[i];
    }
    size = fmax(size, least * least * (double)count);
    return count ? sqrt(distance / size) : 0;
}

/* ---- memory as double, in the device's type ---- */
/* NaN everywhere: nothing may be read before it is written. */
static void poison(mixer_case *c, void *memory, size_t bytes)
{
    unsigned char piece[4096];
    memset(piece, 0xff, sizeof piece);
    for (size_t at = 0; at < bytes; at += sizeof piece)
        assert_ok(device_upload(c->dev, (char *)memory + at, piece,
                                bytes - at < sizeof piece ? bytes - at : sizeof piece));
}

static void *poisoned(mixer_case *c, size_t bytes)
{
    void *memory;
    assert_ok(device_alloc(c->dev, bytes, &memory));
    poison(c, memory, bytes);
    return memory;
}

static void *to_device(mixer_case *c, const double *values, int64_t count)
{
    void *memory = poisoned(c, (size_t)count * c->dev->element);
    if (values) assert_ok(values_write_activations(c->dev, memory, count, values));
    return memory;
}

static void open_device(mixer_case *c, case_device kind)
{
    device_options options = {.kind = kind >= CASE_CUDA_F32 ? DEVICE_CUDA : DEVICE_CPU,
                              .dtype = kind == CASE_REF_F64 || kind == CASE_FAST_F64 ? BLURRY_F64
                                       : kind == CASE_CUDA_BF16                      ? BLURRY_BF16
                                                                                     : BLURRY_F32,
                              .threads = kind == CASE_REF_F64 || kind == CASE_REF_F32 ? 1 : 2,
                              .reference = kind == CASE_REF_F64 || kind == CASE_REF_F32};
    assert_ok(device_create(&c->dev, &options));
}

/* Parameters and their gradients; where the types differ also the copy that products read. */
static void open_parameters(mixer_case *c)
{
    for (int i = 0; i < c->list.count; i++) {
        mixer_parameter slot = c->list.spec[i].slot;
        size_t bytes = (size_t)mixer_case_elements(c, i) * c->dev->param_element;
        c->layer.parameter[slot] = poisoned(c, bytes);
        c->layer.gradient[slot] = poisoned(c, bytes);
        c->layer.weight[slot] = c->dev->element == c->dev->param_element
                                    ? c->layer.parameter[slot]
                                    : to_device(c, NULL, mixer_case_elements(c, i));
    }
}

void mixer_case_open(mixer_case *c, case_device kind, const char *options, int64_t batch, int64_t length,
                     int64_t capacity)
{
    mixer_config config;
    *c = (mixer_case){0};
    open_device(c, kind);
    blurry_settings *settings = settings_from(options);
    assert_ok(mixer_config_init(&config, settings_values(settings), settings_values(settings)->mixer));
    blurry_settings_destroy(&settings);
    mixer_layer_init(&c->layer, &config, c->dev, batch, length, capacity);
    mixer_parameters(&c->layer.config, &c->list);
    open_parameters(c);
    mixer_case_draw(c, 1);
    mixer_case_zero_gradients(c);
    assert_ok(mixer_layer_prepare(&c->layer));
    mixer_layer_sizes(&c->layer, 1, &c->sizes);
    assert_ok(device_reserve(c->dev, c->sizes.scratch));
    c->saved = poisoned(c, c->sizes.saved);
    c->work = poisoned(c, c->sizes.work);
    c->state = poisoned(c, c->sizes.state);
    void *position;
    assert_ok(device_alloc(c->dev, (size_t)batch * sizeof(int64_t), &position));
    c->position = position;
}

void mixer_case_close(mixer_case *c)
{
    for (int i = 0; i < MIXER_PARAMETER_COUNT; i++) {
        if (c->layer.weight[i] && c->layer.weight[i] != c->layer.parameter[i])
            device_free(c->dev, (void *)c->layer.weight[i]);
        if (c->layer.parameter[i]) device_free(c->dev, c->layer.parameter[i]);
        if (c->layer.gradient[i]) device_free(c->dev, c->layer.gradient[i]);
    }
    device_free(c->dev, c->saved);
    device_free(c->dev, c->work);
    device_free(c->dev, c->state);
    device_free(c->dev, c->position);
    mixer_layer_release(&c->layer);
    device_destroy(&c->dev);
}

/* ---- parameters ---- */
int64_t mixer_case_elements(const mixer_case *c, int parameter)
{
    return c->list.spec[parameter].shape[0] * c->list.spec[parameter].shape[1];
}

void mixer_case_set(mixer_case *c, int parameter, const double *values)
{
    mixer_parameter slot = c->list.spec[parameter].slot;
    int64_t count = mixer_case_elements(c, parameter);
    assert_ok(values_write(c->dev, c->layer.parameter[slot], count, values));
    if (c->layer.weight[slot] != c->layer.parameter[slot])
        assert_ok(values_write_activations(c->dev, (void *)c->layer.weight[slot], count, values));
}

void mixer_case_values(mixer_case *c, int parameter, double *values)
{
    const void *from = c->layer.parameter[c->list.spec[parameter].slot];
    assert_ok(values_read(c->dev, from, mixer_case_elements(c, parameter), values));
}

void mixer_case_gradient(mixer_case *c, int parameter, double *values)
{
    const void *from = c->layer.gradient[c->list.spec[parameter].slot];
    assert_ok(values_read(c->dev, from, mixer_case_elements(c, parameter), values));
}

void mixer_case_zero_gradients(mixer_case *c)
{
    for (int i = 0; i < c->list.count; i++)
        device_zero(c->dev, c->layer.gradient[c->list.spec[i].slot],
                    (size_t)mixer_case_elements(c, i) * c->dev->param_element);
}

void mixer_case_draw(mixer_case *c, uint64_t seed)
{
    for (int i = 0; i < c->list.count; i++) {
        const mixer_parameter_spec *spec = &c->list.spec[i];
        int64_t n = mixer_case_elements(c, i);
        double *values = draw_normal(n, seed * 100 + (uint64_t)i);
        for (int64_t j = 0; j < n; j++) {
            switch (spec->init) {
            case INIT_ONE:
                values[j] = 1 + 0.2 * values[j];
                break;
            case INIT_GIVEN:
                values[j] = spec->values[j] * (1 + 0.1 * fabs(values[j]));
                break;
            case INIT_GDN_A:
                values[j] = 0.5 * values[j];
                break;
            case INIT_LOG_STEP:
                values[j] = -3 + 0.5 * values[j];
                break;
            case INIT_NORMAL:
                values[j] *= 1 / sqrt((double)spec->shape[1]);
                break;
            default:
                values[j] *= 0.5;
            }
        }
        mixer_case_set(c, i, values);
        free(values);
    }
}

/* ---- passes ---- */
static void read_back(mixer_case *c, const void *from, int64_t count, double *to)
{
    assert_ok(device_sync(c->dev));
    assert_ok(values_read_activations(c->dev, from, count, to));
}

/* The wanted rows, their positions and all rows' places among them on the device, one list after the other;
 * NULL where all are wanted. */
static int64_t *lend_rows(mixer_case *c, mixer_pass *p)
{
    void *memory;
    if (!c->row_count) return NULL;
    assert_ok(device_alloc(c->dev, (size_t)(2 * c->row_count + p->B * p->L) * sizeof(int64_t), &memory));
    int64_t *list = memory;
    for (int64_t i = 0; i < c->row_count; i++) {
        int64_t place = c->rows[i] % p->L;
        assert_ok(device_upload(c->dev, list + i, &c->rows[i], sizeof place));
        assert_ok(device_upload(c->dev, list + c->row_count + i, &place, sizeof place));
    }
    p->row_count = c->row_count, p->rows = list, p->row_position = list + c->row_count;
    p->row_place = list + 2 * c->row_count;
    for (int64_t r = 0, next = 0; r < p->B * p->L; r++) {
        int64_t place = next < c->row_count && c->rows[next] == r ? next++ : -1;
        assert_ok(device_upload(c->dev, list + 2 * c->row_count + r, &place, sizeof place));
    }
    return list;
}

void mixer_case_forward(mixer_case *c, int64_t batch, int64_t length, const double *x, double *y)
{
    int64_t d = c->layer.config.width, count = batch * length * d;
    int64_t results = c->row_count ? c->row_count * d : count;
    void *input = to_device(c, x, count), *output = to_device(c, NULL, results);
    mixer_pass p = {.layer = &c->layer,
                    .B = batch,
                    .L = length,
                    .keep = 1,
                    .saved = c->saved,
                    .work = c->work,
                    .x = input,
                    .y = output};
    assert_ok(mixer_layer_refresh(&c->layer));
    int64_t *rows = lend_rows(c, &p);
    c->layer.config.type->forward(&p);
    read_back(c, output, results, y);
    if (rows) device_free(c->dev, rows);
    device_free(c->dev, input);
    device_free(c->dev, output);
}

void mixer_case_backward(mixer_case *c, int64_t batch, int64_t length, const double *x, const double *d_y,
                         double *d_x)
{
    int64_t d = c->layer.config.width, count = batch * length * d;
    void *input = to_device(c, x, count),
         *d_output = to_device(c, d_y, c->row_count ? c->row_count * d : count),
         *d_input = to_device(c, NULL, count);
    mixer_pass p = {.layer = &c->layer,
                    .B = batch,
                    .L = length,
                    .keep = 1,
                    .saved = c->saved,
                    .work = c->work,
                    .x = input,
                    .d_y = d_output,
                    .d_x = d_input};
    int64_t *rows = lend_rows(c, &p);
    c->layer.config.type->backward(&p);
    read_back(c, d_input, count, d_x);
    if (rows) device_free(c->dev, rows);
    device_free(c->dev, input);
    device_free(c->dev, d_output);
    device_free(c->dev, d_input);
}

void mixer_case_start(mixer_case *c)
{
    poison(c, c->state, c->sizes.state);
    assert_ok(mixer_state_init(&c->layer, c->state));
    device_zero(c->dev, c->position, (size_t)c->layer.batch * sizeof *c->position);
}

void mixer_case_continue(mixer_case *c, int64_t length, const double *x, double *y)
{
    int64_t count = c->layer.batch * length * c->layer.config.width;
    void *input = to_device(c, x, count), *output = to_device(c, NULL, count);
    mixer_pass p = {.layer = &c->layer,
                    .B = c->layer.batch,
                    .L = length,
                    .state = c->state,
                    .position = c->position,
                    .saved = c->saved,
                    .work = c->work,
                    .x = input,
                    .y = output};
    assert_ok(mixer_layer_refresh(&c->layer));
    c->layer.config.type->forward(&p);
    c->dev->ops->advance(&c->dev->run, &(advance_args){.batch = p.B, .by = length, .position = c->position});
    read_back(c, output, count, y);
    device_free(c->dev, input);
    device_free(c->dev, output);
}
