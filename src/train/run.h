/* A run under way, and how it tells of itself: lines in log.jsonl and calls of the user's progress function.
 */
#ifndef BLURRY_TRAIN_RUN_H
#define BLURRY_TRAIN_RUN_H
#include "train/checkpoint.h"
#include "train/run_folder.h"

typedef struct run {
    blurry_trainer *trainer;
    run_folder folder;
    run_state state;
    blurry_progress_fn progress;
    void *context;
    int cancelled;
    int64_t eval_every, save_every, log_every;
    int64_t saved_step, first_step;
    double started, window_start; /* seconds; the window measures tokens per second */
    double told;                  /* when the latest step was reported */
    int64_t window_tokens;        /* the trainer's when it began */
    double tokens_per_second;
    blurry_step last;
} run;

/* Seconds of a clock that only goes forward. */
double run_now(void);

/* Calls the progress function; `json` is the line just logged, or NULL. Its wish to stop is kept in
 * r->cancelled. */
void run_tell(run *r, blurry_event event, const char *json);

/* Each writes its line and tells. run_report_step writes only every log_every steps. */
blurry_status run_report_start(run *r);
blurry_status run_report_step(run *r);
blurry_status run_report_eval(run *r, int improved);
blurry_status run_report_end(run *r, const char *message);

#endif
