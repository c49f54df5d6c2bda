/* Training, evaluation and checkpoints.
 *
 * blurry_train() runs a whole training in a run directory. blurry_trainer is the same engine one step at a
 * time, for programs that keep the loop in their own hands. Both are deterministic: the same settings at the
 * same thread count give the same bits, and a run resumed from its checkpoint continues as if it had never
 * stopped.
 *
 * A run directory holds
 *     config.yaml               the settings the run was started with
 *     log.jsonl                 one JSON object per line, "event" being start, train, eval or end
 *     model.safetensors         the latest checkpoint; `__metadata__` carries settings, seed, data, metrics,
 * version optimiser-STEP.safetensors  the optimiser state that belongs to it best.safetensors          the
 * weights of the best evaluation so far (keep_best) */
#ifndef BLURRY_TRAIN_H
#define BLURRY_TRAIN_H
#include "blurry/model.h"
#include "blurry/settings.h"
#include "blurry/status.h"
#include "blurry/task.h" /* blurry_metrics, blurry_split */

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum blurry_event {
    BLURRY_EVENT_START,      /* the run is set up: step says where it starts, after 0 when resumed */
    BLURRY_EVENT_STEP,       /* one optimiser step is done */
    BLURRY_EVENT_EVAL,       /* `metrics` holds the validation result */
    BLURRY_EVENT_CHECKPOINT, /* a checkpoint of this step is safely on disk */
    BLURRY_EVENT_END         /* `reason` says why */
} blurry_event;

typedef struct blurry_progress {
    blurry_event event;
    int64_t step, steps;  /* steps done; steps of the whole run */
    double epoch;         /* passes over the training data so far */
    double loss;          /* this step's, in nats per label */
    double lr, grad_norm; /* this step's rate, and gradient norm before clipping */
    double accuracy;      /* of the latest evaluation, NaN before any */
    double best;          /* the best value of the watched metric so far, NaN before any */
    int64_t best_step;
    double tokens_per_second; /* over the latest seconds */
    double seconds;           /* of this process, since the run was set up */
    double eta_seconds;       /* to the last step, evaluations and checkpoints included; NaN before known */
    const blurry_metrics *metrics; /* BLURRY_EVENT_EVAL, else NULL */
    const char
        *reason; /* BLURRY_EVENT_END: steps, stop_at, patience, give_up, cancelled or non_finite; else NULL */
    const char *json; /* the line just written to log.jsonl, without newline; NULL when there is none */
} blurry_progress;

/* Called from the training thread. Returning anything but 0 ends the run with a checkpoint and
 * BLURRY_E_CANCELLED. */
typedef int (*blurry_progress_fn)(void *context, const blurry_progress *progress);

/* Trains in directory `out`. A new or empty directory is set up; one that holds the same run (equal settings;
 * threads and device may differ) is continued, or found complete; anything else is refused untouched with a
 * message naming the first key that differs. A loss that is not finite ends the run with BLURRY_E_NUMERIC,
 * naming the step and the first bad tensor, and leaves the last good checkpoint. `progress` may be NULL. */
BLURRY_API blurry_status blurry_train(const blurry_settings *settings, const char *out,
                                      blurry_progress_fn progress, void *context);

/* ---- one step at a time ---- */
typedef struct blurry_trainer blurry_trainer;

typedef struct blurry_step {
    int64_t step;   /* steps done, this one included */
    int64_t tokens; /* of this step's samples, padding not counted */
    double loss, lr, grad_norm;
} blurry_step;

BLURRY_API blurry_status blurry_trainer_create(const blurry_settings *settings, blurry_trainer **trainer);
/* Frees and sets *trainer to NULL. */
BLURRY_API void blurry_trainer_destroy(blurry_trainer **trainer);
/* One optimiser step. After BLURRY_E_NUMERIC the weights are those before the step. With `report` NULL a GPU
 * is not waited for: what such a step found is told by the next one with a report, or by an evaluation. */
BLURRY_API blurry_status blurry_trainer_step(blurry_trainer *trainer, blurry_step *report);
/* `split` is "val" or "test". */
BLURRY_API blurry_status blurry_trainer_evaluate(blurry_trainer *trainer, const char *split,
                                                 blurry_metrics *metrics);
/* Bytes that the trainer planned: parameters, gradients, optimiser, activations and workspace together. */
BLURRY_API size_t blurry_trainer_bytes(const blurry_trainer *trainer);

/* ---- checkpoints ---- */
/* In the first three `path` is a model file or a run directory (its best.safetensors where there is one,
 * else model.safetensors). */

/* The settings a checkpoint was trained with, vocab and length as the task has them. Destroy *settings. */
BLURRY_API blurry_status blurry_checkpoint_settings(const char *path, blurry_settings **settings);
/* A model without gradients, for up to `batch` sequences, with the checkpoint's weights. `settings` are those
 * of blurry_checkpoint_settings, perhaps with another device, length or number of threads. */
BLURRY_API blurry_status blurry_checkpoint_load(const char *path, const blurry_settings *settings,
                                                int64_t batch, blurry_model **model);
/* Evaluates a checkpoint on its own task; `split` is "val" or "test". `settings` NULL means those of the
 * checkpoint; with others (another length, more samples) the task must be the same. */
BLURRY_API blurry_status blurry_evaluate(const char *path, const char *split, const blurry_settings *settings,
                                         blurry_metrics *metrics);

/* Saves a model, made or trained elsewhere, as a model file that all of the above and the command line take.
 * `settings` are those it was made with; where they describe a task that can be set up here, the file names
 * its data, so that it can be evaluated. */
BLURRY_API blurry_status blurry_checkpoint_save(const char *path, const blurry_model *model,
                                                const blurry_settings *settings);

/* ---- presets ---- */
/* Ready settings by name; NULL outside [0, blurry_preset_count()). */
BLURRY_API int blurry_preset_count(void);
BLURRY_API const char *blurry_preset_name(int index);
BLURRY_API const char *blurry_preset_summary(int index); /* one line of help */
/* Sets the options of the preset and leaves the others. */
BLURRY_API blurry_status blurry_preset_apply(blurry_settings *settings, const char *name);

#ifdef __cplusplus
}
#endif
#endif
