/* Reading data files: nothing in them is believed before it was checked, the hash last. */
#include "tasks/datafile.h"

#include "base/memory.h"
#include "base/number.h"
#include "base/safetensors.h"

#include <stdio.h>
#include <string.h>

typedef struct datafile {
    datafile_split splits[BLURRY_SPLITS];
} datafile;

static void destroy(void *self)
{
    datafile *d = self;
    for (int i = 0; i < BLURRY_SPLITS; i++) datafile_release(&d->splits[i]);
    memory_free(d);
}

static int64_t length_of(const void *self, blurry_split split, int64_t index)
{
    return ((const datafile *)self)->splits[split].lengths[index];
}

static void sample(const void *self, void *scratch, blurry_split split, int64_t index, task_sample *out)
{
    (void)scratch;
    const datafile_split *d = &((const datafile *)self)->splits[split];
    int64_t first = d->row_offsets[index];
    out->row_count = d->row_offsets[index + 1] - first;
    size_t rows = (size_t)out->row_count;
    memcpy(out->tokens, d->tokens + index * d->length, (size_t)d->lengths[index] * sizeof *d->tokens);
    for (int64_t r = 0; r < out->row_count; r++) out->rows[r] = d->positions[first + r];
    memcpy(out->labels, d->labels + first, rows * sizeof *d->labels);
    if (d->legal) memcpy(out->legal, d->legal + first, rows * sizeof *d->legal);
    if (d->legal) memcpy(out->states, d->states + first, rows * sizeof *d->states);
}

static const task_source source = {destroy, NULL, length_of, sample};

/* ---- checks ---- */

static blurry_status check_rows(const datafile_split *d, int64_t index, int64_t vocabulary, int64_t states)
{
    int64_t first = d->row_offsets[index], end = d->row_offsets[index + 1], previous = -1;
    for (int64_t r = first; r < end; r++) {
        if (d->positions[r] <= previous || d->positions[r] >= d->lengths[index])
            return status_fail(BLURRY_E_FORMAT, "positions[%lld] is %d: not ascending within the sample",
                               (long long)r, d->positions[r]);
        previous = d->positions[r];
        if (d->labels[r] < 0 || d->labels[r] >= vocabulary)
            return status_fail(BLURRY_E_FORMAT, "labels[%lld] is %d: the vocabulary has %lld tokens",
                               (long long)r, d->labels[r], (long long)vocabulary);
        if (!d->legal) continue;
        if (d->legal[r] == 0 || d->legal[r] >> (vocabulary - 1) > 1)
            return status_fail(BLURRY_E_FORMAT, "legal[%lld] is %u: not a set of tokens", (long long)r,
                               d->legal[r]);
        if (!(d->legal[r] >> d->labels[r] & 1))
            return status_fail(BLURRY_E_FORMAT, "labels[%lld] is %d: not legal there", (long long)r,
                               d->labels[r]);
        if (d->states[r] < 0 || d->states[r] >= states)
            return status_fail(BLURRY_E_FORMAT, "states[%lld] is %d: there are %lld", (long long)r,
                               d->states[r], (long long)states);
    }
    return BLURRY_OK;
}

blurry_status datafile_check(const datafile_split *d, int64_t vocabulary, int64_t states)
{
    if (d->row_offsets[0] != 0 || d->row_offsets[d->samples] != d->rows)
        return status_fail(BLURRY_E_FORMAT, "row_offsets does not run from 0 to %lld", (long long)d->rows);
    for (int64_t i = 0; i < d->samples; i++)
        if (d->row_offsets[i + 1] < d->row_offsets[i])
            return status_fail(BLURRY_E_FORMAT, "row_offsets[%lld] is %lld: it descends", (long long)i + 1,
                               (long long)d->row_offsets[i + 1]);
    for (int64_t i = 0; i < d->samples; i++) {
        if (d->lengths[i] < 1 || d->lengths[i] > d->length)
            return status_fail(BLURRY_E_FORMAT, "lengths[%lld] is %lld: give 1 to %lld", (long long)i,
                               (long long)d->lengths[i], (long long)d->length);
        STATUS_TRY(check_rows(d, i, vocabulary, states));
    }
    for (int64_t i = 0; i < d->samples * d->length; i++)
        if (d->tokens[i] < 0 || d->tokens[i] >= vocabulary)
            return status_fail(BLURRY_E_FORMAT, "tokens[%lld] is %d: the vocabulary has %lld tokens",
                               (long long)i, d->tokens[i], (long long)vocabulary);
    return BLURRY_OK;
}

/* ---- reading ---- */

/* Copies a tensor after checking its type and shape. */
static blurry_status read_tensor(const safetensors *file, blurry_split split, int field, int rank,
                                 const int64_t *shape, void **copy)
{
    char name[32];
    const datafile_field *f = &datafile_fields[field];
    snprintf(name, sizeof name, "%s.%s", blurry_split_name(split), f->name);
    const safetensors_tensor *t = safetensors_find(file, name);
    if (!t) return status_fail(BLURRY_E_FORMAT, "tensor %s is missing", name);
    bool fits = (int)t->dtype == f->dtype && t->rank == rank;
    for (int i = 0; i < rank && fits; i++) fits = t->shape[i] == shape[i];
    if (!fits)
        return status_fail(BLURRY_E_FORMAT, "tensor %s has another type or shape than its split needs", name);
    STATUS_TRY(memory_alloc(copy, (size_t)t->count, f->size, name));
    if (t->bytes) memcpy(*copy, t->data, t->bytes);
    return BLURRY_OK;
}

static blurry_status read_split(const safetensors *file, blurry_split split, bool masks, datafile_split *d)
{
    char name[32];
    snprintf(name, sizeof name, "%s.tokens", blurry_split_name(split));
    const safetensors_tensor *tokens = safetensors_find(file, name), *t;
    if (!tokens) return BLURRY_OK; /* an empty split */
    if (tokens->rank != 2 || tokens->shape[0] < 1 || tokens->shape[1] < 1)
        return status_fail(BLURRY_E_FORMAT, "tensor %s is not a table of samples", name);
    d->samples = tokens->shape[0];
    d->length = tokens->shape[1];
    snprintf(name, sizeof name, "%s.labels", blurry_split_name(split));
    t = safetensors_find(file, name);
    d->rows = t && t->rank == 1 ? t->shape[0] : 0;
    for (int field = 0; field < DATAFILE_TENSORS; field++) {
        if (datafile_fields[field].masks && !masks) continue;
        int64_t shape[2];
        int rank = datafile_shape(d, field, shape);
        void **place = (void **)((char *)d + datafile_fields[field].place);
        STATUS_TRY(read_tensor(file, split, field, rank, shape, place));
    }
    return BLURRY_OK;
}

static const char *metadata_or_empty(const safetensors *file, const char *key)
{
    const char *value = safetensors_metadata(file, key);
    return value ? value : "";
}

/* Who wrote it, for which task, with which settings. */
static blurry_status read_header(blurry_task *task, const safetensors *file)
{
    if (strcmp(metadata_or_empty(file, "format"), "blurry-data"))
        return status_fail(BLURRY_E_FORMAT, "not a file of `blurry data`");
    if (strcmp(metadata_or_empty(file, "version"), "1"))
        return status_fail(BLURRY_E_FORMAT, "version is '%s': this library reads version 1",
                           metadata_or_empty(file, "version"));
    const char *name = metadata_or_empty(file, "task"), *text = metadata_or_empty(file, "settings");
    if (strcmp(name, task->info.name))
        return status_fail(BLURRY_E_INVALID, "it holds samples of '%s', but task is %s", name,
                           task->info.name);
    STATUS_TRY(blurry_settings_parse_yaml(&task->settings, text, strlen(text), "settings"));
    task->settings.values.data[0] = 0;
    int64_t vocabulary = 0;
    if (!number_parse_int(metadata_or_empty(file, "vocabulary"), &vocabulary) || vocabulary < 2 ||
        vocabulary > 1 << 24 || (task->kind->vocabulary && vocabulary != task->kind->vocabulary))
        return status_fail(BLURRY_E_FORMAT, "vocabulary is '%s': not one of %s",
                           metadata_or_empty(file, "vocabulary"), task->info.name);
    task->info.vocabulary = vocabulary;
    return BLURRY_OK;
}

static blurry_status read_splits(blurry_task *task, datafile *d, const safetensors *file)
{
    for (int i = 0; i < BLURRY_SPLITS; i++) {
        datafile_split *split = &d->splits[i];
        STATUS_TRY(read_split(file, (blurry_split)i, task->info.has_legal, split));
        if (split->samples == 0) continue;
        blurry_status status = datafile_check(split, task->info.vocabulary, task->kind->states);
        if (status != BLURRY_OK) return status_context(status, "%s", blurry_split_name((blurry_split)i));
        task->info.samples[i] = split->samples;
        if (split->length > task->info.length) task->info.length = split->length;
        for (int64_t k = 0; k < split->samples; k++) {
            int64_t labels = split->row_offsets[k + 1] - split->row_offsets[k];
            if (labels > task->info.max_labels) task->info.max_labels = labels;
        }
    }
    if (task->info.length == 0) return status_fail(BLURRY_E_FORMAT, "it holds no samples");
    return BLURRY_OK;
}

static blurry_status check_hash(const blurry_task *task, const safetensors *file)
{
    char hex[65];
    STATUS_TRY(blurry_task_hash(task, hex));
    const char *stated = metadata_or_empty(file, "sha256");
    if (!strcmp(hex, stated)) return BLURRY_OK;
    return status_fail(BLURRY_E_FORMAT,
                       "sha256 is %s but the content has %s: the file was altered, write it again", stated,
                       hex);
}

static blurry_status read_all(blurry_task *task, datafile *d, const char *path)
{
    safetensors *file;
    blurry_status status = safetensors_open(&file, path);
    if (status == BLURRY_E_IO) return BLURRY_E_INVALID; /* the user named a file that cannot be read */
    STATUS_TRY(status);
    status = read_header(task, file);
    if (status == BLURRY_OK) status = read_splits(task, d, file);
    task->self = d;
    task->source = &source;
    if (status == BLURRY_OK) status = check_hash(task, file);
    safetensors_close(&file);
    return status;
}

blurry_status task_datafile_open(blurry_task *task, const char *path)
{
    datafile *d;
    STATUS_TRY(memory_alloc((void **)&d, 1, sizeof *d, "data file"));
    blurry_status status = read_all(task, d, path);
    if (status == BLURRY_OK) return BLURRY_OK;
    destroy(d);
    return status_context(status, "data is %s", path);
}
