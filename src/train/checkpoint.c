/* Writing checkpoints: see checkpoint.h for the order that makes the pair of files atomic. */
#include "train/checkpoint.h"
#include "base/file.h"
#include "base/memory.h"
#include "base/safetensors.h"
#include "model/model.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- metadata ---- */
enum { META_MAX = 40, META_VALUE = 96 };
typedef struct metadata {
    const char *keys[META_MAX];
    const char *values[META_MAX];
    char text[META_MAX][META_VALUE]; /* where values[i] points unless it is longer */
    size_t count;
} metadata;

static void meta_text(metadata *m, const char *key, const char *value)
{
    m->keys[m->count] = key;
    m->values[m->count++] = value;
}

static void meta_integer(metadata *m, const char *key, int64_t value)
{
    snprintf(m->text[m->count], META_VALUE, "%lld", (long long)value);
    meta_text(m, key, m->text[m->count]);
}

/* 17 digits read back to the same bits. */
static void meta_number(metadata *m, const char *key, double value)
{
    snprintf(m->text[m->count], META_VALUE, "%.17g", value);
    meta_text(m, key, m->text[m->count]);
}

static void meta_metrics(metadata *m, const run_state *state)
{
    meta_integer(m, "evaluated_step", state->evaluated_step);
    if (state->evaluated_step == 0) return;
    meta_integer(m, "val_sequences", state->metrics.sequences);
    meta_integer(m, "val_labels", state->metrics.labels);
    meta_number(m, "val_loss", state->metrics.loss);
    meta_number(m, "val_accuracy", state->metrics.accuracy);
    meta_number(m, "val_exact_match", state->metrics.exact_match);
    meta_number(m, "val_l1", state->metrics.l1);
    meta_number(m, "val_bits_per_byte", state->metrics.bits_per_byte);
}

static void meta_run(metadata *m, const blurry_trainer *t, const run_state *state)
{
    const struct settings *s = settings_values(t->settings);
    meta_text(m, "version", blurry_version());
    meta_text(m, "task", s->task);
    meta_text(m, "mixer", s->mixer);
    meta_integer(m, "seed", s->seed);
    meta_text(m, "data", state->data);
    meta_integer(m, "train_sequences", t->info.samples[BLURRY_TRAIN]);
    meta_integer(m, "val_sequences_total", t->info.samples[BLURRY_VAL]);
    meta_integer(m, "parameters", t->optimiser.elements);
    meta_integer(m, "step", state->step);
    meta_integer(m, "steps", t->schedule.steps);
    meta_text(m, "metric", t->info.metric);
    meta_number(m, "best", state->best);
    meta_integer(m, "best_step", state->best_step);
    meta_integer(m, "unimproved", state->unimproved);
    meta_metrics(m, state);
    meta_text(m, "end", state->end);
}

static blurry_status settings_text(const blurry_settings *settings, char **text)
{
    size_t size = blurry_settings_text(settings, BLURRY_SETTINGS_ALL, NULL, 0) + 1;
    *text = malloc(size);
    if (!*text) return status_fail(BLURRY_E_MEMORY, "checkpoint: out of memory for the settings");
    blurry_settings_text(settings, BLURRY_SETTINGS_ALL, *text, size);
    return BLURRY_OK;
}

/* ---- tensors ---- */
/* Device blocks as named tensors. `names` owns the names that are not the parameters' own. */
typedef struct tensor_list {
    safetensors_tensor *tensors;
    char **names;
    void *host; /* what `data` points into */
    size_t count;
} tensor_list;

static void tensor_list_free(tensor_list *list)
{
    for (size_t i = 0; list->names && i < list->count; i++) free(list->names[i]);
    memory_free(list->names);
    memory_free(list->tensors);
    memory_free(list->host);
}

static blurry_status tensor_list_alloc(tensor_list *list, const optimiser *o, size_t per_parameter)
{
    *list = (tensor_list){.count = (size_t)o->tensors * per_parameter};
    STATUS_TRY(memory_alloc((void **)&list->tensors, list->count, sizeof *list->tensors, "list of tensors"));
    STATUS_TRY(memory_alloc((void **)&list->names, list->count, sizeof *list->names, "list of tensors"));
    return memory_alloc(&list->host, (size_t)o->elements * per_parameter, o->dev->param_element,
                        "copy of the parameters");
}

/* Entry `index`: parameter i's shape under "prefix" + its name. */
static blurry_status tensor_list_add(tensor_list *list, size_t index, const optimiser *o, int64_t i,
                                     const char *prefix, const void *data)
{
    const blurry_parameter *p = &o->parameters[i];
    if (asprintf(&list->names[index], "%s%s", prefix, p->name) < 0) {
        list->names[index] = NULL;
        return status_fail(BLURRY_E_MEMORY, "checkpoint: out of memory for a name");
    }
    safetensors_tensor *tensor = &list->tensors[index];
    *tensor = (safetensors_tensor){.name = list->names[index],
                                   .dtype = o->dev->param_element == 8 ? SAFETENSORS_F64 : SAFETENSORS_F32,
                                   .rank = p->rank,
                                   .count = p->elements,
                                   .data = data,
                                   .bytes = (size_t)p->elements * o->dev->param_element};
    memcpy(tensor->shape, p->shape, (size_t)p->rank * sizeof p->shape[0]);
    return BLURRY_OK;
}

/* Block number `place` of the list: an entry for every parameter, under "prefix" + its name. One download
 * brings `block`, which is laid out as the parameters are. */
static blurry_status tensor_list_add_block(tensor_list *list, size_t place, const optimiser *o,
                                           const char *prefix, const void *block)
{
    size_t bytes = (size_t)o->elements * o->dev->param_element;
    char *host = (char *)list->host + place * bytes;
    for (int64_t i = 0; i < o->tensors; i++)
        STATUS_TRY(tensor_list_add(list, place * (size_t)o->tensors + (size_t)i, o, i, prefix,
                                   host + (size_t)o->offset[i] * o->dev->param_element));
    return device_download(o->dev, host, block, bytes);
}

static blurry_status save_weights(const char *path, const blurry_trainer *t, const metadata *m)
{
    const optimiser *o = &t->optimiser;
    tensor_list list;
    blurry_status status = tensor_list_alloc(&list, o, 1);
    if (status == BLURRY_OK) status = tensor_list_add_block(&list, 0, o, "", o->model->data);
    if (status == BLURRY_OK)
        status = safetensors_save(path, list.tensors, list.count, m->keys, m->values, m->count);
    tensor_list_free(&list);
    return status;
}

static blurry_status save_moments(const char *path, const blurry_trainer *t, const metadata *m)
{
    const optimiser *o = &t->optimiser;
    tensor_list list;
    blurry_status status = tensor_list_alloc(&list, o, 2);
    if (status == BLURRY_OK) status = tensor_list_add_block(&list, 0, o, "m.", o->m);
    if (status == BLURRY_OK) status = tensor_list_add_block(&list, 1, o, "v.", o->v);
    if (status == BLURRY_OK)
        status = safetensors_save(path, list.tensors, list.count, m->keys, m->values, m->count);
    tensor_list_free(&list);
    return status;
}

/* ---- the two files ---- */
blurry_status checkpoint_save_model(const char *path, const blurry_trainer *t, const run_state *state,
                                    const char *optimiser_name)
{
    char *settings = NULL;
    STATUS_TRY(settings_text(t->settings, &settings));
    metadata m = {.count = 0};
    meta_text(&m, "format", CHECKPOINT_FORMAT);
    meta_run(&m, t, state);
    meta_text(&m, "settings", settings);
    if (optimiser_name) meta_text(&m, "optimiser", optimiser_name);
    blurry_status status = save_weights(path, t, &m);
    free(settings);
    return status;
}

blurry_status checkpoint_save(const char *folder, const blurry_trainer *t, const run_state *state)
{
    char name[64], hash[65];
    snprintf(name, sizeof name, "optimiser-%lld.safetensors", (long long)state->step);
    blurry_settings_hash(t->settings, BLURRY_SETTINGS_ALL & ~BLURRY_SETTINGS_RUN, hash);
    metadata m = {.count = 0};
    meta_text(&m, "format", CHECKPOINT_OPTIMISER_FORMAT);
    meta_text(&m, "version", blurry_version());
    meta_integer(&m, "step", state->step);
    meta_text(&m, "settings_sha256", hash);
    char *optimiser_path = file_join(folder, name), *model_path = file_join(folder, CHECKPOINT_MODEL);
    blurry_status status = optimiser_path && model_path
                               ? BLURRY_OK
                               : status_fail(BLURRY_E_MEMORY, "checkpoint: out of memory for a path");
    if (status == BLURRY_OK) status = save_moments(optimiser_path, t, &m);
    if (status == BLURRY_OK) status = checkpoint_save_model(model_path, t, state, name);
    if (status == BLURRY_OK) checkpoint_sweep(folder, name);
    free(optimiser_path);
    free(model_path);
    return status;
}

static int is_leftover(const char *name, const char *keep)
{
    static const char *const ours[] = {CHECKPOINT_MODEL, CHECKPOINT_BEST, "config.yaml"};
    for (size_t i = 0; i < sizeof ours / sizeof ours[0]; i++) {
        size_t n = strlen(ours[i]);
        if (!strncmp(name, ours[i], n) && !strcmp(name + n, ".blurry-tmp")) return 1;
    }
    if (strncmp(name, "optimiser-", 10) || !strstr(name, ".safetensors")) return 0;
    return !keep || strcmp(name, keep);
}

void checkpoint_sweep(const char *folder, const char *keep)
{
    DIR *list = opendir(folder);
    if (!list) return;
    for (struct dirent *entry = readdir(list); entry; entry = readdir(list))
        if (is_leftover(entry->d_name, keep)) unlinkat(dirfd(list), entry->d_name, 0);
    closedir(list);
}
