/* Sweeps: grids of trainings in one file, carried out by many workers, with the results in a database.
 *
 * A sweep file (YAML, docs/sweeps.md) names settings, axes and groups; it is expanded to a list of runs,
 * always the same one. A run's key is the hash of its settings, so the same run of another file is the same
 * run. Results live in an SQLite database that any number of processes may use at once; a sweep that was
 * killed is continued by running it again. */
#ifndef BLURRY_SWEEP_H
#define BLURRY_SWEEP_H
#include "blurry/settings.h"
#include "blurry/status.h"
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- the file ---- */
typedef struct blurry_sweep blurry_sweep;

/* Choices about a file, from the command line for example; zeros are fine. */
typedef struct blurry_sweep_choice {
    const char *const *overrides; /* [override_count] "key=value", over what the file fixes; not of an axis */
    int override_count;
    const char *groups; /* names separated by commas; NULL: all groups */
    int no_early_stop;  /* switches stop_at, patience and give_up_after off in every run */
} blurry_sweep_choice;

/* Reads, expands and checks a file; `choice` may be NULL. BLURRY_E_INVALID with file and line where it is
 * wrong: unknown keys, axes without values, axes given twice, combinations that no run can have. */
BLURRY_API blurry_status blurry_sweep_load(blurry_sweep **sweep, const char *path,
                                           const blurry_sweep_choice *choice);
/* The same from memory; `name` stands for the file in messages. */
BLURRY_API blurry_status blurry_sweep_parse(blurry_sweep **sweep, const char *text, size_t length,
                                            const char *name, const blurry_sweep_choice *choice);
/* Releases it and sets the pointer to NULL; NULL is fine. */
BLURRY_API void blurry_sweep_destroy(blurry_sweep **sweep);

BLURRY_API const char *blurry_sweep_name(const blurry_sweep *sweep);
BLURRY_API int64_t blurry_sweep_count(const blurry_sweep *sweep); /* runs */

typedef struct blurry_sweep_entry {
    char key[65];      /* SHA-256 of the settings that differ from their defaults, `run` settings left out */
    const char *group; /* of the file */
    const char *label; /* what the axes chose: "modes=8 lr=0.001 seed=0" */
    const blurry_settings *settings;
    int64_t steps;          /* optimiser steps */
    int64_t state_elements; /* of all layers after the task's length */
    int64_t parameters;     /* elements */
    double work;            /* multiply-adds of the whole run, roughly */
    double bytes;           /* memory of the run, roughly */
} blurry_sweep_entry;

/* BLURRY_E_INVALID when index is not in [0, count). Texts and settings are valid until destroy. */
BLURRY_API blurry_status blurry_sweep_at(const blurry_sweep *sweep, int64_t index, blurry_sweep_entry *entry);

/* ---- carrying it out ---- */
enum { BLURRY_RETRY_FAILED = 1, BLURRY_RETRY_DIVERGED = 2 };

typedef struct blurry_sweep_running {
    int64_t entry; /* index in the sweep */
    int64_t step, steps;
    double accuracy, best; /* NaN before known */
    double seconds;        /* since it was handed out */
    const char *host;
} blurry_sweep_running;

typedef struct blurry_sweep_group {
    const char *name;
    int64_t total, done; /* done: with a result, a failure included */
    double best;         /* of the watched metric, NaN before any */
    int64_t best_entry;  /* -1 before any */
} blurry_sweep_group;

typedef enum blurry_sweep_event {
    BLURRY_SWEEP_TICK,     /* several times a second */
    BLURRY_SWEEP_FINISHED, /* `entry` has a result: `state` says which */
    BLURRY_SWEEP_REQUEUED  /* `entry` lost its worker and waits for another one */
} blurry_sweep_event;

typedef struct blurry_sweep_progress {
    blurry_sweep_event event;
    int64_t entry;      /* of the event, else -1 */
    const char *state;  /* "done", "diverged", "failed", "pending" */
    const char *reason; /* why it ended: steps, stop_at, ..., or a message */
    double best, entry_seconds;
    int64_t total, done, diverged, failed, pending, running, elsewhere; /* elsewhere: in other processes */
    double seconds, eta_seconds;        /* since the start; NaN before known */
    const blurry_sweep_running *active; /* [running] */
    const blurry_sweep_group *groups;   /* [group_count] */
    int64_t group_count;
} blurry_sweep_progress;

/* Called from the coordinating thread. Anything but 0 stops: runs under way save a checkpoint. */
typedef int (*blurry_sweep_progress_fn)(void *context, const blurry_sweep_progress *progress);

typedef struct blurry_sweep_options {
    const char *database;
    const char *folder;   /* of checkpoints of runs under way; NULL: the database's name with ".runs" */
    const char *device;   /* "cpu", "cuda"; NULL: as the runs' settings say */
    int jobs;             /* runs at once in this process (under mpirun: per rank); 0: as many as pays */
    int keep;             /* keep the folder of every run that is done */
    unsigned retry;       /* BLURRY_RETRY_ bits: states to try again */
    double limit_seconds; /* pause after this time; 0: never */
    double memory_bytes;  /* runs at once may need this much together; 0: no limit */
    blurry_sweep_progress_fn progress;
    void *context;
} blurry_sweep_options;

typedef struct blurry_sweep_summary {
    int64_t total, done, diverged, failed, pending;
    int stopped; /* by the progress function or the time limit */
    double seconds;
} blurry_sweep_summary;

/* Runs what has no result yet. Under mpirun rank 0 owns the database and hands runs to all ranks; the others
 * return when there is nothing left. BLURRY_OK when every run has a result, also one of failure, and where a
 * limit paused it; BLURRY_E_CANCELLED when the progress function asked to stop; BLURRY_E_IO where the
 * database cannot be written: results that did not get in stay in their folders and are taken from there next
 * time. `summary` may be NULL. */
BLURRY_API blurry_status blurry_sweep_run(const blurry_sweep *sweep, const blurry_sweep_options *options,
                                          blurry_sweep_summary *summary);
/* What ranks other than 0 call instead, with their own jobs, folder, device. */
BLURRY_API blurry_status blurry_sweep_serve(const blurry_sweep_options *options);
/* Rank 0, where it will not call blurry_sweep_run: lets the waiting ranks go. */
BLURRY_API void blurry_sweep_dismiss(void);

/* Seconds that each run would take alone on this machine: seconds [count], NaN where nothing is known. Runs
 * of the database (NULL: none) are the measure where there are some; else a few steps are timed. *source says
 * which. */
BLURRY_API blurry_status blurry_sweep_estimate(const blurry_sweep *sweep, const blurry_sweep_options *options,
                                               double *seconds, const char **source);

/* ---- results ---- */
typedef struct blurry_results blurry_results;

typedef struct blurry_result_eval {
    int64_t step;
    double loss, accuracy, exact_match, l1, bits_per_byte; /* NaN where the task has none */
} blurry_result_eval;

typedef struct blurry_result {
    const char *key, *sweep, *group;
    const blurry_settings *settings;
    const char *state;  /* pending, running, done, diverged, failed */
    const char *reason; /* of the end or the failure */
    const char *host, *device, *version;
    int64_t state_elements, parameters, steps, attempts;
    const char *metric; /* "accuracy" or "bits_per_byte" */
    double best;        /* of the metric; NaN: no evaluation */
    int64_t best_step;
    double seconds;
    const blurry_result_eval *evals; /* [eval_count] by step */
    int64_t eval_count;
} blurry_result;

typedef struct blurry_results_sweep {
    const char *name, *title, *figure; /* figure: pareto, state, resolution, width, choices, none or "" */
} blurry_results_sweep;

/* Reads the whole database as it is now; it is not changed. */
BLURRY_API blurry_status blurry_results_open(blurry_results **results, const char *database);
BLURRY_API void blurry_results_close(blurry_results **results);
BLURRY_API int64_t blurry_results_sweep_count(const blurry_results *results);
BLURRY_API blurry_status blurry_results_sweep_at(const blurry_results *results, int64_t index,
                                                 blurry_results_sweep *sweep);
/* Runs by sweep, in the order of its file; a run of two groups comes twice. */
BLURRY_API int64_t blurry_results_count(const blurry_results *results);
BLURRY_API blurry_status blurry_results_at(const blurry_results *results, int64_t index,
                                           blurry_result *result);

#ifdef __cplusplus
}
#endif
#endif
