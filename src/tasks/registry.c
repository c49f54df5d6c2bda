/* Finding tasks, making them, and filling batches from whatever source they have. */
#include "tasks/task.h"

#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

static const task_kind *const kinds[] = {
#define TASK(name) &task_##name,
#include "tasks/tasks.def"
};
enum { KIND_COUNT = sizeof kinds / sizeof kinds[0] };

int blurry_task_count(void)
{
    return KIND_COUNT;
}
const char *blurry_task_name(int index)
{
    return index >= 0 && index < KIND_COUNT ? kinds[index]->name : NULL;
}
const char *blurry_task_summary(int index)
{
    return index >= 0 && index < KIND_COUNT ? kinds[index]->summary : NULL;
}

static const char *const split_names[BLURRY_SPLITS] = {"train", "val", "test"};

const char *blurry_split_name(blurry_split split)
{
    return (unsigned)split < BLURRY_SPLITS ? split_names[split] : NULL;
}

blurry_status blurry_split_parse(const char *text, blurry_split *split)
{
    if (!text || !split) return status_fail(BLURRY_E_INVALID, "text or split is NULL");
    for (int i = 0; i < BLURRY_SPLITS; i++)
        if (!strcmp(text, split_names[i])) {
            *split = (blurry_split)i;
            return BLURRY_OK;
        }
    return status_fail(BLURRY_E_INVALID, "split is '%s': use train, val or test", text);
}

blurry_status task_find(const char *name, const task_kind **kind)
{
    for (int i = 0; i < KIND_COUNT; i++)
        if (!strcmp(name, kinds[i]->name)) {
            *kind = kinds[i];
            return BLURRY_OK;
        }
    char known[256] = "";
    for (int i = 0; i < KIND_COUNT; i++) {
        if (i) strcat(known, i + 1 < KIND_COUNT ? ", " : " or ");
        strcat(known, kinds[i]->name);
    }
    return status_fail(BLURRY_E_INVALID, "task is '%s': use %s", name, known);
}

blurry_status blurry_task_create(blurry_task **out, const blurry_settings *settings)
{
    if (!out) return status_fail(BLURRY_E_INVALID, "task is NULL: pass where to store it");
    *out = NULL;
    if (!settings) return status_fail(BLURRY_E_INVALID, "settings is NULL");
    const struct settings *values = settings_values(settings);
    const task_kind *kind;
    STATUS_TRY(task_find(values->task, &kind));
    void *memory;
    STATUS_TRY(memory_alloc(&memory, 1, sizeof(blurry_task), "task"));
    blurry_task *task = memory;
    task->kind = kind;
    task->settings = *settings;
    task->settings.values.data[0] = 0;
    task->info.name = kind->name;
    task->info.metric = kind->metric;
    task->info.metric_descends = kind->metric_descends;
    task->info.has_legal = kind->has_legal;
    blurry_status status =
        values->data[0] ? task_datafile_open(task, values->data) : kind->create(values, task);
    if (status != BLURRY_OK) {
        memory_free(task);
        return status;
    }
    *out = task;
    return BLURRY_OK;
}

void blurry_task_destroy(blurry_task **task)
{
    if (!task || !*task) return;
    (*task)->source->destroy((*task)->self);
    memory_free(*task);
    *task = NULL;
}

void blurry_task_describe(const blurry_task *task, blurry_task_info *info)
{
    if (task && info) *info = task->info;
}

/* ---- samples ---- */

static blurry_status allocate_samples(blurry_samples *s, const blurry_task *task, int64_t capacity)
{
    size_t count = (size_t)capacity, tokens, rows;
    if (!memory_mul(count, (size_t)task->info.length, &tokens) ||
        !memory_mul(count, (size_t)task->info.max_labels, &rows))
        return status_fail(BLURRY_E_MEMORY, "capacity is %lld: %lld tokens each do not fit in memory",
                           (long long)capacity, (long long)task->info.length);
    s->capacity = capacity;
    STATUS_TRY(memory_alloc((void **)&s->tokens, tokens, sizeof *s->tokens, "tokens of a batch"));
    STATUS_TRY(memory_alloc((void **)&s->lengths, count, sizeof *s->lengths, "lengths of a batch"));
    STATUS_TRY(memory_alloc((void **)&s->row_offsets, count + 1, sizeof *s->row_offsets, "row offsets"));
    STATUS_TRY(memory_alloc((void **)&s->rows, rows, sizeof *s->rows, "rows of a batch"));
    STATUS_TRY(memory_alloc((void **)&s->labels, rows, sizeof *s->labels, "labels of a batch"));
    if (task->info.has_legal) {
        STATUS_TRY(memory_alloc((void **)&s->legal, rows, sizeof *s->legal, "legal symbols of a batch"));
        STATUS_TRY(memory_alloc((void **)&s->states, rows, sizeof *s->states, "states of a batch"));
    }
    return task->source->scratch ? task->source->scratch(task->self, &s->scratch) : BLURRY_OK;
}

blurry_status blurry_samples_create(blurry_samples **out, const blurry_task *task, int64_t capacity)
{
    if (!out) return status_fail(BLURRY_E_INVALID, "samples is NULL: pass where to store it");
    *out = NULL;
    if (!task) return status_fail(BLURRY_E_INVALID, "task is NULL");
    if (capacity < 1)
        return status_fail(BLURRY_E_INVALID, "capacity is %lld: give at least 1", (long long)capacity);
    blurry_samples *s;
    STATUS_TRY(memory_alloc((void **)&s, 1, sizeof *s, "samples"));
    blurry_status status = allocate_samples(s, task, capacity);
    if (status != BLURRY_OK) {
        blurry_samples_destroy(&s);
        return status;
    }
    *out = s;
    return BLURRY_OK;
}

void blurry_samples_destroy(blurry_samples **samples)
{
    if (!samples || !*samples) return;
    blurry_samples *s = *samples;
    void *parts[] = {s->tokens, s->lengths, s->row_offsets, s->rows, s->labels,
                     s->legal,  s->states,  s->scratch,     s};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) memory_free(parts[i]);
    *samples = NULL;
}

/* Checks a fill and finds its length. */
static blurry_status check_fill(const blurry_task *task, blurry_split split, const int64_t *indices,
                                int64_t count, int64_t *length, const blurry_samples *s)
{
    if (!task || !s || (!indices && count))
        return status_fail(BLURRY_E_INVALID, "%s is NULL", !task ? "task" : !s ? "samples" : "indices");
    if ((unsigned)split >= BLURRY_SPLITS)
        return status_fail(BLURRY_E_INVALID, "split is %d: use train, val or test", (int)split);
    if (count < 0 || count > s->capacity)
        return status_fail(BLURRY_E_INVALID, "count is %lld: these samples hold 0 to %lld", (long long)count,
                           (long long)s->capacity);
    int64_t longest = 0, available = task->info.samples[split];
    for (int64_t b = 0; b < count; b++) {
        if (indices[b] < 0 || indices[b] >= available)
            return status_fail(BLURRY_E_INVALID, "index is %lld: %s of %s has %lld samples",
                               (long long)indices[b], split_names[split], task->info.name,
                               (long long)available);
        int64_t tokens = task->source->length_of(task->self, split, indices[b]);
        if (tokens > longest) longest = tokens;
    }
    if (*length == 0) *length = longest;
    if (*length < longest || *length > task->info.length)
        return status_fail(BLURRY_E_INVALID, "length is %lld: give 0, or %lld (the longest here) to %lld",
                           (long long)*length, (long long)longest, (long long)task->info.length);
    return BLURRY_OK;
}

blurry_status blurry_task_fill(const blurry_task *task, blurry_split split, const int64_t *indices,
                               int64_t count, int64_t length, blurry_samples *s)
{
    STATUS_TRY(check_fill(task, split, indices, count, &length, s));
    s->count = count;
    s->length = length;
    s->row_offsets[0] = 0;
    memset(s->tokens, 0, (size_t)(count * length) * sizeof *s->tokens);
    for (int64_t b = 0; b < count; b++) {
        int64_t first = s->row_offsets[b];
        task_sample one = {.tokens = s->tokens + b * length,
                           .rows = s->rows + first,
                           .labels = s->labels + first,
                           .legal = s->legal ? s->legal + first : NULL,
                           .states = s->states ? s->states + first : NULL};
        s->lengths[b] = task->source->length_of(task->self, split, indices[b]);
        task->source->sample(task->self, s->scratch, split, indices[b], &one);
        for (int64_t r = 0; r < one.row_count; r++) one.rows[r] += b * length;
        s->row_offsets[b + 1] = first + one.row_count;
    }
    s->row_count = s->row_offsets[count];
    return BLURRY_OK;
}
