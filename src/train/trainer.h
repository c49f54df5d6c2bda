/* The training engine: task, model, optimiser and schedule of one run, advanced one step at a time.
 * Everything random is a function of (seed, step), so `step`, the weights and the moments are all there is to
 * save. */
#ifndef BLURRY_TRAIN_TRAINER_H
#define BLURRY_TRAIN_TRAINER_H
#include "base/settings.h"
#include "blurry/model.h"
#include "blurry/task.h"
#include "blurry/train.h"
#include "device/collective.h"
#include "train/optimiser.h"
#include "train/schedule.h"

/* Buffers of an evaluation over a model's batches. */
typedef struct evaluator {
    blurry_samples *samples;
    int64_t *indices;     /* [batch] */
    int32_t *argmax;      /* [batch * max_labels] */
    float *probabilities; /* [batch * max_labels, vocabulary] where the task scores them, else NULL */
    int64_t batch;
} evaluator;

blurry_status evaluator_create(evaluator *e, const blurry_task *task, int64_t batch);
void evaluator_destroy(evaluator *e);
/* The first `limit` samples of the split (0: all), in order. BLURRY_E_NUMERIC when the loss is not finite. */
blurry_status evaluator_run(evaluator *e, blurry_model *model, const blurry_task *task, blurry_split split,
                            int64_t limit, blurry_metrics *metrics);

struct blurry_trainer {
    blurry_settings *settings; /* resolved: vocab and length are the task's */
    blurry_task *task;
    blurry_task_info info;
    blurry_model *model;
    optimiser optimiser;
    schedule schedule;
    evaluator evaluator;
    blurry_samples **parts;        /* [accumulate] micro-batches of one step */
    int64_t part_count, part_size; /* of this rank */
    int64_t *indices;              /* [part_size] */
    int64_t step;                  /* steps done */
    int64_t tokens;                /* of the samples of all steps since the trainer was made */
    collective *collective;        /* several ranks: NCCL between their GPUs, or NULL */
    void *exchange;                /* several ranks: gradients in host memory on their way, or NULL */
    struct recorded *recorded;     /* steps as a graph (recorded.h), or NULL */
};

/* Settings as the model sees them: vocabulary and length as the task has them. The caller destroys *resolved.
 */
blurry_status trainer_resolve(const blurry_settings *settings, const blurry_task *task,
                              blurry_settings **resolved);
/* Optimiser steps of a run with these settings. Refuses what no run can have: a batch that cannot be split, a
 * task without samples, too many steps, a warm-up longer than the run. */
blurry_status trainer_steps(const struct settings *s, const blurry_task_info *info, int64_t *steps);
/* Tokens of the samples of the latest fill, padding not counted. */
int64_t trainer_count_tokens(const blurry_samples *samples);
/* Whether every step waits for its results; else only those that are asked to report. */
int trainer_waits(const blurry_trainer *t);
/* A model for these resolved settings with memory for `batch` sequences. */
blurry_status trainer_make_model(const blurry_settings *resolved, int64_t batch, int training,
                                 blurry_model **model);

#endif
