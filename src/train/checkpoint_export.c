/* blurry_checkpoint_save: a model from elsewhere as a model file. The metadata are those of a run that has
 * made no step yet (docs/training.md). */
#include "base/memory.h"
#include "base/safetensors.h"
#include "model/model.h"
#include "train/checkpoint.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The data a model may be evaluated on: of the settings' task, where it can be set up and fits the model. */
static void data_of(const blurry_settings *settings, const blurry_model *model, char hex[65])
{
    blurry_task *task = NULL;
    blurry_task_info info;
    *hex = 0;
    if (blurry_task_create(&task, settings) != BLURRY_OK) return;
    blurry_task_describe(task, &info);
    if (info.vocabulary != blurry_model_vocabulary(model) ||
        checkpoint_fingerprint(settings, task, hex) != BLURRY_OK)
        *hex = 0;
    blurry_task_destroy(&task);
}

/* All parameters one after another in `host`, in the type they are kept in. */
static blurry_status download(const blurry_model *model, char *host, safetensors_tensor *tensors)
{
    size_t element = model->dev->param_element;
    for (int64_t i = 0; i < blurry_model_parameter_count(model); i++) {
        blurry_parameter p;
        STATUS_TRY(blurry_model_parameter(model, i, &p));
        tensors[i] = (safetensors_tensor){.name = p.name,
                                          .dtype = element == 8 ? SAFETENSORS_F64 : SAFETENSORS_F32,
                                          .rank = p.rank,
                                          .data = host};
        memcpy(tensors[i].shape, p.shape, sizeof p.shape);
        STATUS_TRY(device_download(model->dev, host, p.data, (size_t)p.elements * element));
        host += (size_t)p.elements * element;
    }
    return BLURRY_OK;
}

static blurry_status save(const char *path, const blurry_model *model, const blurry_settings *settings,
                          const safetensors_tensor *tensors, char *text)
{
    const struct settings *s = settings_values(settings);
    char data[65], seed[32], elements[32];
    data_of(settings, model, data);
    snprintf(seed, sizeof seed, "%lld", (long long)s->seed);
    snprintf(elements, sizeof elements, "%lld", (long long)blurry_model_parameter_elements(model));
    const char *const pairs[][2] = {{"format", CHECKPOINT_FORMAT},
                                    {"version", blurry_version()},
                                    {"task", s->task},
                                    {"mixer", s->mixer},
                                    {"seed", seed},
                                    {"data", data},
                                    {"parameters", elements},
                                    {"step", "0"},
                                    {"evaluated_step", "0"},
                                    {"end", ""},
                                    {"settings", text}};
    enum { PAIRS = sizeof pairs / sizeof pairs[0] };
    const char *keys[PAIRS], *values[PAIRS];
    for (int i = 0; i < PAIRS; i++) keys[i] = pairs[i][0], values[i] = pairs[i][1];
    return safetensors_save(path, tensors, (size_t)blurry_model_parameter_count(model), keys, values, PAIRS);
}

/* The settings must describe this very model, or the file could not be loaded again. */
static blurry_status check_settings(const blurry_model *model, const blurry_settings *settings)
{
    blurry_settings own = {.values = model->settings};
    const char *key =
        blurry_settings_difference(&own, settings, BLURRY_SETTINGS_MODEL | BLURRY_SETTINGS_MIXER);
    if (key) return status_fail(BLURRY_E_INVALID, "settings: %s is not what the model was made with", key);
    if (settings_values(settings)->vocab != blurry_model_vocabulary(model))
        return status_fail(BLURRY_E_INVALID, "settings: vocab is %lld: the model has %lld",
                           (long long)settings_values(settings)->vocab,
                           (long long)blurry_model_vocabulary(model));
    if (own.values.position == SETTINGS_position_learned &&
        settings_values(settings)->length != own.values.length)
        return status_fail(BLURRY_E_INVALID,
                           "settings: length is %lld: the model has learned positions for %lld",
                           (long long)settings_values(settings)->length, (long long)own.values.length);
    return BLURRY_OK;
}

blurry_status blurry_checkpoint_save(const char *path, const blurry_model *model,
                                     const blurry_settings *settings)
{
    if (!path || !model || !settings)
        return status_fail(BLURRY_E_INVALID, "%s is NULL", !path ? "path" : !model ? "model" : "settings");
    STATUS_TRY(check_settings(model, settings));
    size_t size = blurry_settings_text(settings, BLURRY_SETTINGS_ALL, NULL, 0) + 1;
    void *text = NULL, *host = NULL, *tensors = NULL;
    blurry_status status = memory_alloc(&text, size, 1, "settings");
    if (status == BLURRY_OK)
        status = memory_alloc(&host, (size_t)blurry_model_parameter_elements(model),
                              model->dev->param_element, "copy of the parameters");
    if (status == BLURRY_OK)
        status = memory_alloc(&tensors, (size_t)blurry_model_parameter_count(model),
                              sizeof(safetensors_tensor), "list of tensors");
    if (status == BLURRY_OK) {
        blurry_settings_text(settings, BLURRY_SETTINGS_ALL, text, size);
        status = download(model, host, tensors);
    }
    if (status == BLURRY_OK) status = save(path, model, settings, tensors, text);
    memory_free(text);
    memory_free(host);
    memory_free(tensors);
    return status;
}
