/* Any file as bytes: predict the next one. V = 256.
 *
 * The last val_share of the file is for validation. Its windows lie side by side, the first one starting one
 * byte early, so that every validation byte is predicted exactly once; the last window is as short as it must
 * be. Training windows of length + 1 bytes start at a random place of their own stretch of the training part,
 * so that together they cover it evenly; by default there are as many as lie side by side. There is no test
 * split. */
#include "tasks/task.h"

#include "base/file.h"
#include "base/memory.h"
#include "base/rng.h"
#include "tasks/statistics.h"

#include <stdlib.h>
#include <string.h>

static const size_t FILE_LIMIT = (size_t)1 << 36;

typedef struct text {
    uint8_t *bytes;
    int64_t size, train_size; /* bytes of the file; of its training part, the rest is for validation */
    int64_t length;           /* L */
    int64_t train_samples;
    uint64_t seed;
} text;

static void destroy(void *self)
{
    text *t = self;
    free(t->bytes);
    memory_free(t);
}

/* Window `index`: predicts the `count` bytes from `first` on. */
typedef struct window {
    int64_t first, count;
} window;

static window window_at(const text *t, blurry_split split, int64_t index)
{
    if (split == BLURRY_VAL) {
        int64_t first = t->train_size + index * t->length, rest = t->size - first;
        return (window){first, rest < t->length ? rest : t->length};
    }
    /* Starts 0 .. starts-1 are cut into train_samples stretches; a stretch may be empty when there are more
     * samples than starts, and then counts as its first start. */
    int64_t starts = t->train_size - t->length;
    int64_t low = (int64_t)((__int128)starts * index / t->train_samples);
    int64_t high = (int64_t)((__int128)starts * (index + 1) / t->train_samples);
    rng r = rng_stream(t->seed, RNG_WINDOW, (uint64_t)index);
    return (window){rng_between(&r, low, high > low ? high - 1 : low) + 1, t->length};
}

static int64_t length_of(const void *self, blurry_split split, int64_t index)
{
    return window_at(self, split, index).count;
}

static void sample(const void *self, void *scratch, blurry_split split, int64_t index, task_sample *out)
{
    (void)scratch;
    const text *t = self;
    window w = window_at(t, split, index);
    out->row_count = w.count;
    for (int64_t i = 0; i < w.count; i++) {
        out->tokens[i] = t->bytes[w.first + i - 1];
        out->labels[i] = t->bytes[w.first + i];
        out->rows[i] = i;
    }
}

static const task_source source = {destroy, NULL, length_of, sample};

/* Reads the file and cuts it in two. */
static blurry_status load(text *t, const struct settings *s)
{
    if (!s->file[0]) return status_fail(BLURRY_E_INVALID, "file is empty: name the text to learn");
    size_t size;
    blurry_status status = file_read(s->file, FILE_LIMIT, (void **)&t->bytes, &size);
    if (status == BLURRY_E_IO) return status_context(BLURRY_E_INVALID, "file cannot be used as text");
    STATUS_TRY(status);
    t->size = (int64_t)size;
    t->train_size = t->size - (int64_t)((double)t->size * s->val_share);
    if (t->train_size == t->size) t->train_size = t->size - 1;
    if (t->size == 0) return status_fail(BLURRY_E_INVALID, "file is %s: it is empty", s->file);
    if (t->train_size <= t->length)
        return status_fail(
            BLURRY_E_INVALID,
            "file is %s: its training part has %lld bytes, length %lld needs at least %lld; use a "
            "longer text or a smaller length",
            s->file, (long long)t->train_size, (long long)t->length, (long long)t->length + 1);
    return BLURRY_OK;
}

static blurry_status create(const struct settings *s, blurry_task *task)
{
    text *t;
    STATUS_TRY(memory_alloc((void **)&t, 1, sizeof *t, "text"));
    t->length = s->length;
    t->seed = (uint64_t)s->data_seed;
    blurry_status status = load(t, s);
    if (status != BLURRY_OK) {
        destroy(t);
        return status;
    }
    int64_t L = t->length, val_windows = (t->size - t->train_size + L - 1) / L;
    t->train_samples = task_samples_or(s->train_samples, (t->train_size - 1) / L);
    task->info.samples[BLURRY_TRAIN] = t->train_samples;
    task->info.samples[BLURRY_VAL] =
        s->val_samples && s->val_samples < val_windows ? s->val_samples : val_windows;
    task->info.samples[BLURRY_TEST] = 0;
    task->info.vocabulary = task_text.vocabulary;
    task->info.length = L;
    task->info.max_labels = L;
    task->self = t;
    task->source = &source;
    return BLURRY_OK;
}

const task_kind task_text = {
    .name = "text",
    .summary = "predict the next byte of any file",
    .metric = "bits_per_byte",
    .metric_descends = true,
    .accuracy = TASK_ACCURACY_LABELS,
    .counts_bytes = true,
    .vocabulary = 256,
    .create = create,
    .statistics = statistics_text,
};
