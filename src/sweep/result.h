/* What a run came to, as it travels from the worker that trained it to the database. */
#ifndef BLURRY_SWEEP_RESULT_H
#define BLURRY_SWEEP_RESULT_H
#include "base/status.h"
#include "blurry/sweep.h"

#include <jansson.h>
#include <stdbool.h>

typedef enum run_outcome {
    RUN_DONE,      /* it ended as its settings say */
    RUN_DIVERGED,  /* a number was not finite */
    RUN_FAILED,    /* anything else that will happen again */
    RUN_CANCELLED, /* stopped on request; it can be continued */
    RUN_NO_MEMORY, /* perhaps with fewer runs at once */
    RUN_NO_DISK,   /* files cannot be written: no run can go on */
    RUN_NO_DEVICE  /* the accelerator failed: this process can do no more */
} run_outcome;

typedef struct run_result {
    run_outcome outcome;
    char reason[512]; /* steps, stop_at, patience, give_up; or a message */
    char host[64], device[64], version[32], metric[32], data[65];
    int64_t threads, steps, parameters, best_step;
    double best, seconds;
    blurry_result_eval *evals; /* [eval_count] */
    int64_t eval_count;
} run_result;

const char *run_outcome_name(run_outcome outcome); /* "done", ... */
void run_result_free(run_result *result);

/* Reads the evaluations and the end of a run from log.jsonl in its folder. */
blurry_status run_result_read(run_result *result, const char *folder);

/* To and from a JSON object. */
blurry_status run_result_to_json(const run_result *result, json_t *object);
blurry_status run_result_from_json(run_result *result, const json_t *object);

#endif
