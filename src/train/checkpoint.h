/* Checkpoints: a model file, complete in itself, and an optimiser file beside it.
 *
 * The pair is committed by one rename. The optimiser file is named after its step and written first; the
 * model file, which names it in its metadata, replaces the old one by rename; only then is the older
 * optimiser file removed. A crash at any moment leaves a model file and the optimiser file it names, never a
 * mixture. docs/training.md lists the metadata. */
#ifndef BLURRY_TRAIN_CHECKPOINT_H
#define BLURRY_TRAIN_CHECKPOINT_H
#include "train/trainer.h"

#define CHECKPOINT_FORMAT           "blurry-checkpoint 1"
#define CHECKPOINT_OPTIMISER_FORMAT "blurry-optimiser 1"
#define CHECKPOINT_MODEL            "model.safetensors"
#define CHECKPOINT_BEST             "best.safetensors"

/* What a run knows beside weights and moments. */
typedef struct run_state {
    int64_t step;
    int64_t best_step;      /* 0 before any evaluation */
    double best;            /* of the watched metric */
    int64_t unimproved;     /* evaluations since the best */
    int64_t evaluated_step; /* of `metrics`; 0 before any */
    blurry_metrics metrics; /* the latest evaluation */
    char end[16];           /* why the run is over: steps, stop_at, patience, give_up; "" while it is not */
    char data[65];          /* fingerprint of the task's data */
} run_state;

/* SHA-256 over evenly spaced samples of every split, and over the whole file of a text. */
blurry_status checkpoint_fingerprint(const blurry_settings *settings, const blurry_task *task, char hex[65]);

/* Saves weights and run state to `path`; optimiser_name (NULL: none) is the file beside it that completes
 * them. */
blurry_status checkpoint_save_model(const char *path, const blurry_trainer *t, const run_state *state,
                                    const char *optimiser_name);
/* Saves the pair in `folder` and removes what it replaces. */
blurry_status checkpoint_save(const char *folder, const blurry_trainer *t, const run_state *state);
/* Fills weights, moments, step and state from the pair in `folder`. */
blurry_status checkpoint_resume(const char *folder, blurry_trainer *t, run_state *state);
/* Removes optimiser files other than `keep` (NULL: all) and temporary files that a killed process left. */
void checkpoint_sweep(const char *folder, const char *keep);

/* The model file meant by a path: itself, or in a folder best.safetensors, else model.safetensors. Free
 * *file. */
blurry_status checkpoint_find(const char *path, char **file);
/* A model with the file's weights. */
blurry_status checkpoint_load_model(const char *file, const blurry_settings *settings, int64_t batch,
                                    int training, blurry_model **model);
/* Refuses another task than the checkpoint's, and data that changed although its settings did not. */
blurry_status checkpoint_check_data(const char *file, const blurry_settings *settings,
                                    const blurry_task *task);

#endif
