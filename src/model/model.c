/* Creating a model, and access to its parameters and sizes. */
#include "model/model.h"

#include "base/memory.h"
#include "base/status.h"
#include "mixers/values.h"

#include <string.h>

/* Hidden width of the MLP: SwiGLU 8/3 d rounded up to a multiple of 32, GELU 4 d. */
static int64_t hidden_width(const struct settings *s)
{
    switch (s->mlp) {
    case SETTINGS_mlp_swiglu:
        return (8 * s->width + 95) / 96 * 32;
    case SETTINGS_mlp_gelu:
        return 4 * s->width;
    default:
        return 0;
    }
}

static void device_from_settings(const struct settings *s, device_options *options)
{
    *options = (device_options){.kind = s->device == SETTINGS_device_cuda ? DEVICE_CUDA : DEVICE_CPU,
                                .dtype = s->precision == SETTINGS_precision_f64    ? BLURRY_F64
                                         : s->precision == SETTINGS_precision_bf16 ? BLURRY_BF16
                                                                                   : BLURRY_F32,
                                .threads = (int)s->threads,
                                .tf32 = s->tf32,
                                .one_queue = s->overlap == SETTINGS_overlap_none,
                                .early_starts = s->overlap == SETTINGS_overlap_starts};
}

static blurry_status build(blurry_model *model, int training, mixer_config *configs,
                           const device_options *options)
{
    const struct settings *s = &model->settings;
    int64_t batch = (s->batch + s->accumulate - 1) / s->accumulate;
    model->layers = s->layers;
    model->width = s->width;
    model->vocab = s->vocab;
    model->hidden = hidden_width(s);
    STATUS_TRY(device_create(&model->dev, options));
    STATUS_TRY(parameters_list(model, configs));
    STATUS_TRY(parameters_allocate(model, training));
    STATUS_TRY(parameters_initialise(model, (uint64_t)s->seed));
    return network_create(&model->net, model, configs, batch, s->length, training, 0);
}

blurry_status model_create_on(blurry_model **out, const struct settings *s, int training,
                              const device_options *options)
{
    mixer_config *configs;
    void *memory;
    *out = NULL;
    STATUS_TRY(network_configs(s, &configs));
    blurry_status status = memory_alloc(&memory, 1, sizeof(blurry_model), "model");
    if (status == BLURRY_OK) {
        blurry_model *model = memory;
        model->settings = *s;
        status = build(model, training != 0, configs, options);
        if (status == BLURRY_OK)
            *out = model;
        else
            blurry_model_destroy(&model);
    }
    network_configs_free(configs, s->layers);
    return status;
}

blurry_status blurry_model_create(blurry_model **model, const blurry_settings *settings, int training)
{
    device_options options;
    if (!model) return status_fail(BLURRY_E_INVALID, "model is NULL: give the address of a model pointer");
    *model = NULL;
    if (!settings) return status_fail(BLURRY_E_INVALID, "settings is NULL");
    device_from_settings(settings_values(settings), &options);
    return model_create_on(model, settings_values(settings), training, &options);
}

void blurry_model_destroy(blurry_model **model)
{
    if (!model || !*model) return;
    network_release(&(*model)->net);
    parameters_release(*model);
    device_destroy(&(*model)->dev);
    memory_free(*model);
    *model = NULL;
}

/* ---- parameters ---- */
int64_t blurry_model_parameter_count(const blurry_model *model)
{
    return model ? model->parameter_count : 0;
}

int64_t blurry_model_parameter_elements(const blurry_model *model)
{
    int64_t total = 0;
    for (int64_t i = 0; model && i < model->parameter_count; i++) total += model->parameter[i].elements;
    return total;
}

static blurry_status check_place(const blurry_model *model, int64_t index)
{
    if (!model) return status_fail(BLURRY_E_INVALID, "model is NULL");
    if (index >= 0 && index < model->parameter_count) return BLURRY_OK;
    return status_fail(BLURRY_E_INVALID, "parameter index is %lld: the model has %lld", (long long)index,
                       (long long)model->parameter_count);
}

blurry_status blurry_model_parameter(const blurry_model *model, int64_t index, blurry_parameter *parameter)
{
    STATUS_TRY(check_place(model, index));
    if (!parameter) return status_fail(BLURRY_E_INVALID, "parameter is NULL");
    const model_parameter *p = &model->parameter[index];
    *parameter = (blurry_parameter){.name = p->name,
                                    .rank = p->rank,
                                    .shape = {p->shape[0], p->shape[1]},
                                    .elements = p->elements,
                                    .data = parameter_data(model, index),
                                    .gradient = parameter_gradient(model, index),
                                    .decay = p->decay};
    return BLURRY_OK;
}

int64_t blurry_model_find_parameter(const blurry_model *model, const char *name)
{
    for (int64_t i = 0; model && name && i < model->parameter_count; i++)
        if (!strcmp(model->parameter[i].name, name)) return i;
    return MODEL_NONE;
}

static blurry_status check_values(const blurry_model *model, int64_t index, const void *values, size_t bytes)
{
    STATUS_TRY(check_place(model, index));
    size_t need = (size_t)model->parameter[index].elements * sizeof(double);
    if (!values) return status_fail(BLURRY_E_INVALID, "values is NULL: give %zu bytes", need);
    if (bytes == need) return BLURRY_OK;
    return status_fail(BLURRY_E_INVALID, "bytes is %zu: %s has %zu", bytes, model->parameter[index].name,
                       need);
}

blurry_status blurry_model_read_parameter(const blurry_model *model, int64_t index, double *values,
                                          size_t bytes)
{
    STATUS_TRY(check_values(model, index, values, bytes));
    return values_read(model->dev, parameter_data(model, index), model->parameter[index].elements, values);
}

blurry_status blurry_model_write_parameter(blurry_model *model, int64_t index, const double *values,
                                           size_t bytes)
{
    STATUS_TRY(check_values(model, index, values, bytes));
    parameters_changed(model);
    return values_write(model->dev, parameter_data(model, index), model->parameter[index].elements, values);
}

blurry_status blurry_model_read_gradient(const blurry_model *model, int64_t index, double *values,
                                         size_t bytes)
{
    STATUS_TRY(check_values(model, index, values, bytes));
    if (!model->gradient)
        return status_fail(BLURRY_E_INVALID, "the model was made without training: no gradients");
    return values_read(model->dev, parameter_gradient(model, index), model->parameter[index].elements,
                       values);
}

/* ---- sizes ---- */
blurry_dtype blurry_model_dtype(const blurry_model *model)
{
    return model ? model->dev->dtype : BLURRY_F32;
}

int64_t blurry_model_vocabulary(const blurry_model *model)
{
    return model ? model->vocab : 0;
}

int64_t blurry_model_length(const blurry_model *model)
{
    return model ? model->net.length : 0;
}

int64_t blurry_model_batch(const blurry_model *model)
{
    return model ? model->net.batch : 0;
}

void blurry_model_memory_use(const blurry_model *model, blurry_model_memory *memory)
{
    if (!memory) return;
    *memory = (blurry_model_memory){0};
    if (!model) return;
    memory->parameters = model->parameter_bytes;
    memory->gradients = model->gradient ? model->parameter_bytes : 0;
    memory->activations = model->net.saved_bytes;
    memory->workspace = model->net.work_bytes + model->dev->run.scratch_bytes;
}
