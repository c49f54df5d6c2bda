/* A finished or running training as it lies in its directory: config.yaml and log.jsonl
 * (include/blurry/train.h). The files may come from anywhere; nothing in them is trusted. */
#ifndef BLURRY_CLI_RUN_READ_H
#define BLURRY_CLI_RUN_READ_H
#include "blurry/settings.h"
#include <stddef.h>
#include <stdint.h>

typedef struct run_eval {
    int64_t step;
    double loss;
    double metric; /* what the task counts: accuracy or bits per byte */
} run_eval;

typedef struct run {
    char *path;
    blurry_settings *settings;
    char task[64];
    int descends; /* 1: a smaller metric is better (bits per byte) */
    run_eval *evals;
    size_t count;       /* of evaluations, at least 1 */
    size_t best;        /* index of the best one; the earliest of equals */
    int64_t steps;      /* the last step that the log mentions */
    double seconds;     /* of training, as the log has it; NaN: unknown */
    int64_t parameters; /* elements; 0: unknown */
    char reason[32];    /* why it ended; "" while it runs */
} run;

/* Returns CLI_OK; else prints what is wrong with which file and line, returns CLI_USAGE (bad input) or
 * CLI_FAILED and leaves nothing to free. */
int run_read(const char *path, run *r);
void run_free(run *r);

/* An option in text form, "" where the settings do not have it. */
const char *run_option(const run *r, const char *key, char text[1024]);
int64_t run_integer(const run *r, const char *key);

#endif
