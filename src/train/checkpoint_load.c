/* Reading checkpoints. A file may come from anywhere: every name, shape and number is checked before it is
 * used. */
#include "base/file.h"
#include "base/memory.h"
#include "base/safetensors.h"
#include "model/model.h"
#include "train/checkpoint.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- metadata ---- */
static blurry_status bad_metadata(const char *key, const char *value)
{
    return status_fail(BLURRY_E_FORMAT, "metadata %s is '%s': not a checkpoint of this program", key,
                       value ? value : "missing");
}

static blurry_status get_integer(const safetensors *file, const char *key, int64_t *value)
{
    const char *text = safetensors_metadata(file, key);
    char *end = NULL;
    errno = 0;
    long long number = text ? strtoll(text, &end, 10) : -1;
    if (!text || end == text || *end || errno || number < 0) return bad_metadata(key, text);
    *value = number;
    return BLURRY_OK;
}

static blurry_status get_number(const safetensors *file, const char *key, double *value)
{
    const char *text = safetensors_metadata(file, key);
    char *end = NULL;
    if (text) *value = strtod(text, &end);
    if (!text || end == text || *end) return bad_metadata(key, text);
    return BLURRY_OK;
}

static blurry_status get_text(const safetensors *file, const char *key, char *value, size_t capacity)
{
    const char *text = safetensors_metadata(file, key);
    if (!text || strlen(text) >= capacity) return bad_metadata(key, text);
    strcpy(value, text);
    return BLURRY_OK;
}

static blurry_status open_format(const char *path, const char *format, safetensors **file)
{
    STATUS_TRY(safetensors_open(file, path));
    const char *found = safetensors_metadata(*file, "format");
    if (found && !strcmp(found, format)) return BLURRY_OK;
    bad_metadata("format", found);
    safetensors_close(file);
    return status_context(BLURRY_E_FORMAT, "%s", path);
}

static blurry_status get_metrics(const safetensors *file, run_state *state)
{
    STATUS_TRY(get_integer(file, "evaluated_step", &state->evaluated_step));
    if (state->evaluated_step == 0) return BLURRY_OK;
    STATUS_TRY(get_integer(file, "val_sequences", &state->metrics.sequences));
    STATUS_TRY(get_integer(file, "val_labels", &state->metrics.labels));
    STATUS_TRY(get_number(file, "val_loss", &state->metrics.loss));
    STATUS_TRY(get_number(file, "val_accuracy", &state->metrics.accuracy));
    STATUS_TRY(get_number(file, "val_exact_match", &state->metrics.exact_match));
    STATUS_TRY(get_number(file, "val_l1", &state->metrics.l1));
    return get_number(file, "val_bits_per_byte", &state->metrics.bits_per_byte);
}

static blurry_status get_state(const safetensors *file, run_state *state)
{
    STATUS_TRY(get_integer(file, "step", &state->step));
    STATUS_TRY(get_number(file, "best", &state->best));
    STATUS_TRY(get_integer(file, "best_step", &state->best_step));
    STATUS_TRY(get_integer(file, "unimproved", &state->unimproved));
    STATUS_TRY(get_text(file, "end", state->end, sizeof state->end));
    STATUS_TRY(get_text(file, "data", state->data, sizeof state->data));
    return get_metrics(file, state);
}

static blurry_status get_settings(const safetensors *file, const char *path, blurry_settings **settings)
{
    const char *text = safetensors_metadata(file, "settings");
    if (!text) return bad_metadata("settings", NULL);
    STATUS_TRY(blurry_settings_create(settings));
    blurry_status status = blurry_settings_parse_yaml(*settings, text, strlen(text), path);
    if (status != BLURRY_OK) blurry_settings_destroy(settings);
    return status;
}

/* ---- tensors ---- */
/* Uploads tensor "prefix" + the parameter's name to `to`; `host` has room for it. */
static blurry_status load_tensor(const safetensors *file, device *dev, const blurry_parameter *p,
                                 const char *prefix, void *host, void *to)
{
    char name[256];
    if (snprintf(name, sizeof name, "%s%s", prefix, p->name) >= (int)sizeof name)
        return status_fail(BLURRY_E_INTERNAL, "parameter name %s is too long", p->name);
    if (dev->param_element == sizeof(double))
        STATUS_TRY(safetensors_read_f64(file, name, p->shape, p->rank, p->elements, host));
    else
        STATUS_TRY(safetensors_read_f32(file, name, p->shape, p->rank, p->elements, host));
    return device_upload(dev, to, host, (size_t)p->elements * dev->param_element);
}

static blurry_status check_count(const safetensors *file, int64_t expected)
{
    if ((int64_t)safetensors_count(file) == expected) return BLURRY_OK;
    return status_fail(BLURRY_E_FORMAT, "it holds %zu tensors, its settings ask for %lld",
                       safetensors_count(file), (long long)expected);
}

static blurry_status load_weights(const safetensors *file, blurry_model *model)
{
    device *dev = model->dev;
    int64_t tensors = blurry_model_parameter_count(model);
    STATUS_TRY(check_count(file, tensors));
    parameters_changed(model);
    void *host = NULL;
    STATUS_TRY(memory_alloc(&host, (size_t)blurry_model_parameter_elements(model), dev->param_element,
                            "parameters"));
    blurry_status status = BLURRY_OK;
    for (int64_t i = 0; i < tensors && status == BLURRY_OK; i++) {
        blurry_parameter p;
        status = blurry_model_parameter(model, i, &p);
        if (status == BLURRY_OK) status = load_tensor(file, dev, &p, "", host, p.data);
    }
    memory_free(host);
    return status;
}

static blurry_status load_moments(const safetensors *file, optimiser *o)
{
    STATUS_TRY(check_count(file, 2 * o->tensors));
    void *host = NULL;
    STATUS_TRY(memory_alloc(&host, (size_t)o->elements, o->dev->param_element, "moments"));
    blurry_status status = BLURRY_OK;
    for (int64_t i = 0; i < o->tensors && status == BLURRY_OK; i++) {
        size_t at = (size_t)o->offset[i] * o->dev->param_element;
        status = load_tensor(file, o->dev, &o->parameters[i], "m.", host, (char *)o->m + at);
        if (status == BLURRY_OK)
            status = load_tensor(file, o->dev, &o->parameters[i], "v.", host, (char *)o->v + at);
    }
    memory_free(host);
    return status;
}

/* ---- resuming ---- */
static blurry_status resume_optimiser(const char *folder, const char *name, blurry_trainer *t, int64_t step)
{
    if (!name || strchr(name, '/')) return bad_metadata("optimiser", name);
    char hash[65], *path = file_join(folder, name);
    if (!path) return status_fail(BLURRY_E_MEMORY, "checkpoint: out of memory for a path");
    safetensors *file = NULL;
    int64_t own_step = -1;
    blurry_settings_hash(t->settings, BLURRY_SETTINGS_ALL & ~BLURRY_SETTINGS_RUN, hash);
    blurry_status status = open_format(path, CHECKPOINT_OPTIMISER_FORMAT, &file);
    if (status == BLURRY_OK) status = get_integer(file, "step", &own_step);
    const char *own_hash = status == BLURRY_OK ? safetensors_metadata(file, "settings_sha256") : NULL;
    if (status == BLURRY_OK && (own_step != step || !own_hash || strcmp(own_hash, hash)))
        status =
            status_fail(BLURRY_E_FORMAT,
                        "it belongs to step %lld of another checkpoint than model.safetensors (step %lld)",
                        (long long)own_step, (long long)step);
    if (status == BLURRY_OK) status = load_moments(file, &t->optimiser);
    if (status != BLURRY_OK && file) status_context(status, "%s", path);
    safetensors_close(&file);
    free(path);
    return status;
}

static blurry_status resume_from(const safetensors *file, const char *folder, blurry_trainer *t,
                                 run_state *state)
{
    blurry_settings *saved = NULL;
    run_state found = *state;
    STATUS_TRY(get_state(file, &found));
    STATUS_TRY(get_settings(file, CHECKPOINT_MODEL, &saved));
    const char *key =
        blurry_settings_difference(saved, t->settings, BLURRY_SETTINGS_ALL & ~BLURRY_SETTINGS_RUN);
    blurry_settings_destroy(&saved);
    if (key)
        return status_fail(BLURRY_E_INVALID, "its setting %s differs from this run's: give another --out",
                           key);
    if (strcmp(found.data, state->data))
        return status_fail(BLURRY_E_INVALID,
                           "the training data is not what this run was started with: give another --out");
    if (found.step > t->schedule.steps) return bad_metadata("step", safetensors_metadata(file, "step"));
    STATUS_TRY(resume_optimiser(folder, safetensors_metadata(file, "optimiser"), t, found.step));
    STATUS_TRY(load_weights(file, t->model));
    t->step = found.step;
    *state = found;
    return BLURRY_OK;
}

blurry_status checkpoint_resume(const char *folder, blurry_trainer *t, run_state *state)
{
    char *path = file_join(folder, CHECKPOINT_MODEL);
    if (!path) return status_fail(BLURRY_E_MEMORY, "checkpoint: out of memory for a path");
    safetensors *file = NULL;
    blurry_status status = open_format(path, CHECKPOINT_FORMAT, &file);
    if (status == BLURRY_OK) {
        status = resume_from(file, folder, t, state);
        if (status != BLURRY_OK) status_context(status, "%s", path);
    }
    safetensors_close(&file);
    free(path);
    return status;
}

/* ---- single model files ---- */
blurry_status checkpoint_find(const char *path, char **file)
{
    *file = NULL;
    if (!file_is_folder(path)) {
        *file = strdup(path);
        return *file ? BLURRY_OK : status_fail(BLURRY_E_MEMORY, "checkpoint: out of memory for a path");
    }
    static const char *const names[] = {CHECKPOINT_BEST, CHECKPOINT_MODEL};
    for (int i = 0; i < 2; i++) {
        *file = file_join(path, names[i]);
        if (!*file) return status_fail(BLURRY_E_MEMORY, "checkpoint: out of memory for a path");
        if (file_exists(*file)) return BLURRY_OK;
        free(*file);
    }
    *file = NULL;
    return status_fail(BLURRY_E_INVALID, "%s holds no checkpoint (neither %s nor %s)", path, CHECKPOINT_BEST,
                       CHECKPOINT_MODEL);
}

blurry_status checkpoint_load_model(const char *path, const blurry_settings *settings, int64_t batch,
                                    int training, blurry_model **model)
{
    safetensors *file = NULL;
    *model = NULL;
    STATUS_TRY(open_format(path, CHECKPOINT_FORMAT, &file));
    blurry_status status = trainer_make_model(settings, batch, training, model);
    if (status == BLURRY_OK) status = load_weights(file, *model);
    if (status != BLURRY_OK) {
        status_context(status, "%s", path);
        blurry_model_destroy(model);
    }
    safetensors_close(&file);
    return status;
}

blurry_status checkpoint_check_data(const char *path, const blurry_settings *settings,
                                    const blurry_task *task)
{
    blurry_settings *saved = NULL;
    STATUS_TRY(blurry_checkpoint_settings(path, &saved));
    const char *task_then = settings_values(saved)->task, *task_now = settings_values(settings)->task;
    blurry_status status = BLURRY_OK;
    if (strcmp(task_then, task_now))
        status =
            status_fail(BLURRY_E_INVALID, "%s is a checkpoint of task %s, not %s", path, task_then, task_now);
    int same = !blurry_settings_difference(saved, settings, BLURRY_SETTINGS_TASK);
    blurry_settings_destroy(&saved);
    if (status != BLURRY_OK || !same) return status;
    char now[65];
    STATUS_TRY(checkpoint_fingerprint(settings, task, now));
    safetensors *file = NULL;
    STATUS_TRY(open_format(path, CHECKPOINT_FORMAT, &file));
    const char *then = safetensors_metadata(file, "data");
    if (!then || strcmp(then, now))
        status =
            status_fail(BLURRY_E_INVALID,
                        "%s: the data is not what the model was trained with (was a file changed?)", path);
    safetensors_close(&file);
    return status;
}

blurry_status blurry_checkpoint_settings(const char *path, blurry_settings **settings)
{
    if (!path || !settings) return status_fail(BLURRY_E_INVALID, "path or settings is NULL");
    *settings = NULL;
    char *name = NULL;
    STATUS_TRY(checkpoint_find(path, &name));
    safetensors *file = NULL;
    blurry_status status = open_format(name, CHECKPOINT_FORMAT, &file);
    if (status == BLURRY_OK) status = get_settings(file, name, settings);
    safetensors_close(&file);
    free(name);
    return status;
}

blurry_status blurry_checkpoint_load(const char *path, const blurry_settings *settings, int64_t batch,
                                     blurry_model **model)
{
    if (!path || !settings || !model) return status_fail(BLURRY_E_INVALID, "path, settings or model is NULL");
    *model = NULL;
    if (batch < 1) return status_fail(BLURRY_E_INVALID, "batch is %lld: give at least 1", (long long)batch);
    char *name = NULL;
    STATUS_TRY(checkpoint_find(path, &name));
    blurry_status status = checkpoint_load_model(name, settings, batch, 0, model);
    free(name);
    return status;
}
