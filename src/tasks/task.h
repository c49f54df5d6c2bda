/* What a task consists of inside the library.
 *
 * A kind says how settings become data and what counts as right; a source hands out samples. Most kinds are
 * their own source; samples read from a file come from the file's source under the kind that wrote it. */
#ifndef BLURRY_TASKS_TASK_H
#define BLURRY_TASKS_TASK_H
#include "base/settings.h"
#include "base/status.h"
#include "blurry/task.h"

#include <stdbool.h>

/* Where one sample is written. Arrays are as long as the task's longest sample needs. */
typedef struct task_sample {
    int32_t *tokens;   /* [length_of(index)], zeroed beforehand */
    int64_t row_count; /* set by the source */
    int64_t *rows;     /* [row_count] labelled positions within the sample, ascending */
    int32_t *labels;   /* [row_count] */
    uint32_t *legal;   /* [row_count], NULL without masks */
    int32_t *states;   /* [row_count], NULL without masks */
} task_sample;

typedef struct task_source {
    void (*destroy)(void *self);
    /* Scratch memory of one user of the task, released with memory_free; NULL: none is needed. */
    blurry_status (*scratch)(const void *self, void **scratch);
    /* Tokens of a sample. */
    int64_t (*length_of)(const void *self, blurry_split split, int64_t index);
    /* Makes a sample; cannot fail, touches nothing but scratch and sample. */
    void (*sample)(const void *self, void *scratch, blurry_split split, int64_t index, task_sample *sample);
} task_source;

typedef enum task_accuracy {
    TASK_ACCURACY_SEQUENCES, /* share of right labels per sequence, then the mean over sequences */
    TASK_ACCURACY_LEGAL,     /* share of labelled positions whose arg-max is a legal symbol */
    TASK_ACCURACY_LABELS     /* share of labelled positions whose arg-max is the label */
} task_accuracy;

/* Statistics being collected. */
typedef struct task_statistics {
    blurry_statistic *list; /* [BLURRY_STATISTICS_MAX] */
    int count;
} task_statistics;
void task_statistic(task_statistics *to, const char *name, double value, const char *meaning);

typedef struct task_kind {
    const char *name, *summary, *metric;
    task_accuracy accuracy;
    bool metric_descends, has_legal;
    bool counts_bytes;          /* bits per byte is defined */
    int64_t vocabulary, states; /* where fixed: tokens, and automaton states that samples may name; else 0 */
    /* Checks the settings and sets self and source, and in info vocabulary, length, max_labels and samples.
     */
    blurry_status (*create)(const struct settings *settings, blurry_task *task);
    /* Describes the first `samples` of a split, from the samples alone where it can. */
    blurry_status (*statistics)(const blurry_task *task, blurry_split split, int64_t samples,
                                task_statistics *to);
} task_kind;

struct blurry_task {
    const task_kind *kind;
    const task_source *source;
    void *self;
    blurry_task_info info;
    blurry_settings settings; /* a copy; `data` is empty */
};

#define TASK(name) extern const task_kind task_##name;
#include "tasks/tasks.def"

/* The kind of this name, or BLURRY_E_INVALID listing those there are. */
blurry_status task_find(const char *name, const task_kind **kind);

/* Makes task->self and source from a file that blurry_task_save wrote; kind is set. */
blurry_status task_datafile_open(blurry_task *task, const char *path);

/* mqar's log weights of the query places [*places], where samples are made on the fly; else NULL. */
const double *task_mqar_weights(const blurry_task *task, int64_t *places);

/* samples = wanted, or `fallback` where wanted is 0. */
static inline int64_t task_samples_or(int64_t wanted, int64_t fallback)
{
    return wanted ? wanted : fallback;
}

#endif
