/* The layout of data files, writing them, and the hash of a task's data. */
#include "tasks/datafile.h"

#include "base/memory.h"
#include "base/safetensors.h"
#include "base/sha256.h"

#include <stdio.h>
#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "hashes and files hold little-endian numbers");

const datafile_field datafile_fields[DATAFILE_TENSORS] = {
    {"row_offsets", SAFETENSORS_I64, 8, false, offsetof(datafile_split, row_offsets)},
    {"lengths", SAFETENSORS_I64, 8, false, offsetof(datafile_split, lengths)},
    {"tokens", SAFETENSORS_I32, 4, false, offsetof(datafile_split, tokens)},
    {"positions", SAFETENSORS_I32, 4, false, offsetof(datafile_split, positions)},
    {"labels", SAFETENSORS_I32, 4, false, offsetof(datafile_split, labels)},
    {"legal", SAFETENSORS_U32, 4, true, offsetof(datafile_split, legal)},
    {"states", SAFETENSORS_I32, 4, true, offsetof(datafile_split, states)},
};
enum { FIELD_ROW_OFFSETS, FIELD_LENGTHS, FIELD_TOKENS };

static void **field_pointer(datafile_split *split, int field)
{
    return (void **)((char *)split + datafile_fields[field].place);
}

int datafile_shape(const datafile_split *split, int field, int64_t shape[2])
{
    shape[0] = field == FIELD_ROW_OFFSETS ? split->samples + 1
               : field <= FIELD_TOKENS    ? split->samples
                                          : split->rows;
    shape[1] = split->length;
    return field == FIELD_TOKENS ? 2 : 1;
}

void datafile_release(datafile_split *split)
{
    for (int i = 0; i < DATAFILE_TENSORS; i++) {
        memory_free(*field_pointer(split, i));
        *field_pointer(split, i) = NULL;
    }
}

/* ---- hash ---- */

static void hash_samples(sha256 *hash, const blurry_samples *s)
{
    for (int64_t b = 0; b < s->count; b++) {
        int64_t first = s->row_offsets[b], rows = s->row_offsets[b + 1] - first;
        const int64_t sizes[2] = {s->lengths[b], rows};
        sha256_update(hash, sizes, sizeof sizes);
        sha256_update(hash, s->tokens + b * s->length, (size_t)s->lengths[b] * sizeof *s->tokens);
        for (int64_t r = first; r < first + rows; r++) {
            int32_t position = (int32_t)(s->rows[r] - b * s->length);
            sha256_update(hash, &position, sizeof position);
        }
        sha256_update(hash, s->labels + first, (size_t)rows * sizeof *s->labels);
        if (!s->legal) continue;
        sha256_update(hash, s->legal + first, (size_t)rows * sizeof *s->legal);
        sha256_update(hash, s->states + first, (size_t)rows * sizeof *s->states);
    }
}

blurry_status blurry_task_hash(const blurry_task *task, char hex[65])
{
    if (!task || !hex) return status_fail(BLURRY_E_INVALID, "%s is NULL", !task ? "task" : "hex");
    blurry_samples *one;
    STATUS_TRY(blurry_samples_create(&one, task, 1));
    sha256 hash;
    sha256_init(&hash);
    blurry_status status = BLURRY_OK;
    for (int split = 0; split < BLURRY_SPLITS; split++) {
        int64_t samples = task->info.samples[split];
        sha256_update(&hash, &samples, sizeof samples);
        for (int64_t i = 0; i < samples && status == BLURRY_OK; i++) {
            status = blurry_task_fill(task, (blurry_split)split, &i, 1, 0, one);
            if (status == BLURRY_OK) hash_samples(&hash, one);
        }
    }
    blurry_samples_destroy(&one);
    uint8_t digest[32];
    sha256_final(&hash, digest);
    sha256_hex(digest, hex);
    return status;
}

/* ---- writing ---- */

static const size_t FILE_LIMIT = (size_t)1 << 40; /* a file is made in memory first */

/* Allocates a split's arrays for N samples, with room for the longest and the most labels there can be. */
static blurry_status allocate(datafile_split *d, const blurry_task *task, blurry_split split)
{
    size_t samples = (size_t)task->info.samples[split], bytes;
    size_t tokens = (size_t)task->info.length, rows = (size_t)task->info.max_labels;
    if (!memory_mul(samples, 16 + 4 * tokens + 16 * rows, &bytes) || bytes > FILE_LIMIT)
        return status_fail(
            BLURRY_E_INVALID,
            "%s samples are %zu: a file of them takes more than 1 TiB; use fewer, or leave them to be "
            "made on the fly",
            blurry_split_name(split), samples);
    d->samples = task->info.samples[split];
    STATUS_TRY(memory_alloc((void **)&d->row_offsets, samples + 1, 8, "data file"));
    STATUS_TRY(memory_alloc((void **)&d->lengths, samples, 8, "data file"));
    for (int64_t i = 0; i < d->samples; i++) {
        d->lengths[i] = task->source->length_of(task->self, split, i);
        if (d->lengths[i] > d->length) d->length = d->lengths[i];
    }
    STATUS_TRY(memory_alloc((void **)&d->tokens, samples * (size_t)d->length, 4, "data file"));
    STATUS_TRY(memory_alloc((void **)&d->positions, samples * rows, 4, "data file"));
    STATUS_TRY(memory_alloc((void **)&d->labels, samples * rows, 4, "data file"));
    if (!task->info.has_legal) return BLURRY_OK;
    STATUS_TRY(memory_alloc((void **)&d->legal, samples * rows, 4, "data file"));
    return memory_alloc((void **)&d->states, samples * rows, 4, "data file");
}

/* Adds the one sample in `s` as number i. */
static void append(datafile_split *d, int64_t i, const blurry_samples *s)
{
    size_t rows = (size_t)s->row_count;
    memcpy(d->tokens + i * d->length, s->tokens, (size_t)s->lengths[0] * sizeof *s->tokens);
    for (size_t r = 0; r < rows; r++) d->positions[d->rows + (int64_t)r] = (int32_t)s->rows[r];
    memcpy(d->labels + d->rows, s->labels, rows * sizeof *s->labels);
    if (s->legal) memcpy(d->legal + d->rows, s->legal, rows * sizeof *s->legal);
    if (s->legal) memcpy(d->states + d->rows, s->states, rows * sizeof *s->states);
    d->rows += s->row_count;
    d->row_offsets[i + 1] = d->rows;
}

static blurry_status collect(datafile_split *d, const blurry_task *task, blurry_split split,
                             blurry_samples *one)
{
    STATUS_TRY(allocate(d, task, split));
    for (int64_t i = 0; i < d->samples; i++) {
        STATUS_TRY(blurry_task_fill(task, split, &i, 1, 0, one));
        append(d, i, one);
    }
    return BLURRY_OK;
}

static blurry_status write_file(const blurry_task *task, datafile_split splits[BLURRY_SPLITS],
                                const char *path)
{
    safetensors_tensor tensors[BLURRY_SPLITS * DATAFILE_TENSORS];
    char names[BLURRY_SPLITS * DATAFILE_TENSORS][32];
    size_t count = 0;
    /* Fields outside, splits inside: the 8-byte types come first, so every tensor is aligned. */
    for (int field = 0; field < DATAFILE_TENSORS; field++)
        for (int split = 0; split < BLURRY_SPLITS; split++) {
            datafile_split *d = &splits[split];
            if (d->samples == 0 || (datafile_fields[field].masks && !task->info.has_legal)) continue;
            safetensors_tensor *t = &tensors[count];
            memset(t, 0, sizeof *t);
            snprintf(names[count], sizeof names[count], "%s.%s", blurry_split_name((blurry_split)split),
                     datafile_fields[field].name);
            t->name = names[count++];
            t->dtype = (safetensors_dtype)datafile_fields[field].dtype;
            t->rank = datafile_shape(d, field, t->shape);
            t->count = t->rank == 2 ? t->shape[0] * t->shape[1] : t->shape[0];
            t->data = *field_pointer(d, field);
            t->bytes = (size_t)t->count * datafile_fields[field].size;
        }
    char hex[65], vocabulary[32], settings[16384];
    STATUS_TRY(blurry_task_hash(task, hex));
    snprintf(vocabulary, sizeof vocabulary, "%lld", (long long)task->info.vocabulary);
    if (blurry_settings_text(&task->settings, BLURRY_SETTINGS_TASK, settings, sizeof settings) >=
        sizeof settings)
        return status_fail(BLURRY_E_INTERNAL, "the settings' text does not fit");
    const char *keys[] = {"format", "version", "task", "vocabulary", "settings", "sha256"};
    const char *values[] = {"blurry-data", "1", task->info.name, vocabulary, settings, hex};
    return safetensors_save(path, tensors, count, keys, values, sizeof keys / sizeof keys[0]);
}

blurry_status blurry_task_save(const blurry_task *task, const char *path)
{
    if (!task || !path) return status_fail(BLURRY_E_INVALID, "%s is NULL", !task ? "task" : "path");
    datafile_split splits[BLURRY_SPLITS] = {0};
    blurry_samples *one;
    STATUS_TRY(blurry_samples_create(&one, task, 1));
    blurry_status status = BLURRY_OK;
    for (int i = 0; i < BLURRY_SPLITS && status == BLURRY_OK; i++)
        status = collect(&splits[i], task, (blurry_split)i, one);
    if (status == BLURRY_OK) status = write_file(task, splits, path);
    for (int i = 0; i < BLURRY_SPLITS; i++) datafile_release(&splits[i]);
    blurry_samples_destroy(&one);
    return status;
}
