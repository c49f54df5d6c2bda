/* Tasks: where training and evaluation data comes from, and what counts as right.
 *
 * A task is made from settings and never changes afterwards, so any number of threads may use it at once,
 * each with its own blurry_samples. Sample i of a split is a pure function of the settings (its seed
 * included): the same on every machine, for every thread count and order, in every epoch. Samples are made on
 * the fly, or read from a file that blurry_task_save wrote (setting `data`). docs/tasks.md has the
 * definitions. */
#ifndef BLURRY_TASK_H
#define BLURRY_TASK_H
#include "blurry/settings.h"
#include "blurry/status.h"
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct blurry_task blurry_task;

typedef enum blurry_split {
    BLURRY_TRAIN = 0,
    BLURRY_VAL = 1,
    BLURRY_TEST = 2,
    BLURRY_SPLITS = 3
} blurry_split;

/* "train", "val", "test"; NULL for any other value. */
BLURRY_API const char *blurry_split_name(blurry_split split);
/* BLURRY_E_INVALID for any other text. */
BLURRY_API blurry_status blurry_split_parse(const char *text, blurry_split *split);

/* The tasks' names as the setting `task` takes them; NULL outside [0, blurry_task_count()). */
BLURRY_API int blurry_task_count(void);
BLURRY_API const char *blurry_task_name(int index);
BLURRY_API const char *blurry_task_summary(int index); /* one line of help */

typedef struct blurry_task_info {
    const char *name;               /* "mqar", "regbench", "text" */
    int64_t vocabulary;             /* tokens are in [0, vocabulary) */
    int64_t length;                 /* tokens of the longest sample of any split */
    int64_t max_labels;             /* the most labelled positions of one sample */
    int64_t samples[BLURRY_SPLITS]; /* a split may be empty: text has no test split */
    int has_legal;       /* samples carry legal-symbol masks; metrics want probabilities (regbench) */
    const char *metric;  /* the one that counts: "accuracy" or "bits_per_byte" */
    int metric_descends; /* 1 where less is better */
} blurry_task_info;

/* Checks the settings together and prepares the task. */
BLURRY_API blurry_status blurry_task_create(blurry_task **task, const blurry_settings *settings);
/* Releases the task and sets the pointer to NULL; NULL is fine. */
BLURRY_API void blurry_task_destroy(blurry_task **task);
BLURRY_API void blurry_task_describe(const blurry_task *task, blurry_task_info *info);

/* ---- samples ----------------------------------------------------------------------------------------------
 */

/* A batch of samples in plain arrays; made for one task and a largest count, used by one thread at a time.
 * `rows` and `labels` are what blurry_batch takes. */
typedef struct blurry_samples {
    int64_t count;        /* samples B of the latest fill */
    int64_t length;       /* its tokens per sample L */
    int32_t *tokens;      /* [B, L]; shorter samples are padded with token 0 and have no labels there */
    int64_t *lengths;     /* [B] tokens of each sample */
    int64_t row_count;    /* R labelled positions */
    int64_t *row_offsets; /* [B+1] the rows of sample b are row_offsets[b] .. row_offsets[b+1]-1 */
    int64_t *rows;        /* [R] b*L + position, ascending */
    int32_t *labels;      /* [R] the right token at that position */
    uint32_t *legal;      /* [R] bit v: token v is legal here; NULL where the task has no masks */
    int32_t *states;      /* [R] the automaton's state there; NULL where the task has none */
    int64_t capacity;     /* the largest count */
    void *scratch;        /* private */
} blurry_samples;

BLURRY_API blurry_status blurry_samples_create(blurry_samples **samples, const blurry_task *task,
                                               int64_t capacity);
BLURRY_API void blurry_samples_destroy(blurry_samples **samples);

/* Samples indices[0 .. count-1] of a split. `length` 0 pads to the longest of them; else to exactly `length`
 * tokens, which none may exceed. Allocates nothing. */
BLURRY_API blurry_status blurry_task_fill(const blurry_task *task, blurry_split split, const int64_t *indices,
                                          int64_t count, int64_t length, blurry_samples *samples);

/* ---- metrics ----------------------------------------------------------------------------------------------
 */

/* What an evaluation found. A number that the task does not define is NaN. */
typedef struct blurry_metrics {
    int64_t sequences;
    int64_t labels;       /* labelled positions */
    double loss;          /* mean cross-entropy over labelled positions, in nats */
    double accuracy;      /* as the task defines it, 0 .. 1 */
    double exact_match;   /* share of labelled positions whose arg-max token is the label */
    double l1;            /* regbench: mean L1 distance to the uniform distribution over legal symbols */
    double bits_per_byte; /* text */
} blurry_metrics;

/* Running sums; start from all zeros. Sums of parts of a split may be added up in a fixed order. */
typedef struct blurry_score {
    int64_t sequences, labels, exact, legal;
    int64_t l1_labels;     /* labels for which probabilities were given */
    double loss;           /* sum over labels, in nats */
    double sequence_share; /* sum over sequences of the share of exact labels */
    double l1;             /* sum over labels */
} blurry_score;

/* Adds one batch: argmax [R] the predicted tokens, probabilities [R, vocabulary] or NULL, `loss` the sum over
 * the rows of the cross-entropy in nats. */
BLURRY_API blurry_status blurry_task_score(const blurry_task *task, const blurry_samples *samples,
                                           const int32_t *argmax, const float *probabilities, double loss,
                                           blurry_score *score);
BLURRY_API void blurry_task_metrics(const blurry_task *task, const blurry_score *score,
                                    blurry_metrics *metrics);

/* ---- files, hashes, statistics ----------------------------------------------------------------------------
 */

/* SHA-256 as 64 hexadecimal digits over all samples of all splits: equal hash, equal data. */
BLURRY_API blurry_status blurry_task_hash(const blurry_task *task, char hex[65]);

/* Writes all samples of all splits with their settings and hash to a safetensors file, atomically. With the
 * setting `data` naming that file, blurry_task_create checks every value and the hash and gives the same
 * samples. */
BLURRY_API blurry_status blurry_task_save(const blurry_task *task, const char *path);

/* Numbers that describe a split, such as query distances or how well simple predictors do. */
typedef struct blurry_statistic {
    char name[64];
    double value;
    const char *meaning; /* one line; static */
} blurry_statistic;

enum { BLURRY_STATISTICS_MAX = 64 };
/* At most `samples` of the split are looked at (0: all). list [BLURRY_STATISTICS_MAX]. */
BLURRY_API blurry_status blurry_task_statistics(const blurry_task *task, blurry_split split, int64_t samples,
                                                blurry_statistic *list, int *count);

#ifdef __cplusplus
}
#endif
#endif
