/* blurry_train: steps, evaluations, checkpoints and the reasons to stop, in a run directory. */
#include "base/file.h"
#include "train/parallel.h"
#include "train/run.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SECONDS_UNTOLD 0.05 /* of a GPU that is not waited for */

enum { LINES_PER_RUN = 200 }; /* of "train" in the log, where log_every is 0 */

/* ---- saving and evaluating ---- */
/* A checkpoint is good when its weights are finite and give a finite loss: only such ones replace an older
 * one. An evaluation of this very step has shown the latter; else one batch is tried. */
static blurry_status check_weights(run *r)
{
    blurry_trainer *t = r->trainer;
    const char *tensor = blurry_model_first_nonfinite(t->model);
    if (tensor)
        return status_fail(BLURRY_E_NUMERIC,
                           "step %lld: first bad tensor: %s. Try a smaller lr, or a longer warmup",
                           (long long)t->step, tensor);
    if (r->state.evaluated_step == t->step) return BLURRY_OK;
    blurry_metrics ignored;
    blurry_status status =
        evaluator_run(&t->evaluator, t->model, t->task, BLURRY_VAL, t->part_size, &ignored);
    return status == BLURRY_OK ? status : status_context(status, "step %lld", (long long)t->step);
}

static blurry_status save(run *r)
{
    if (r->saved_step == r->trainer->step && !r->state.end[0]) return BLURRY_OK;
    STATUS_TRY(check_weights(r));
    r->state.step = r->trainer->step;
    if (blurry_ranks_rank() > 0) { /* the first of several ranks keeps the directory */
        r->saved_step = r->trainer->step;
        return BLURRY_OK;
    }
    STATUS_TRY(run_log_sync(&r->folder.log));
    STATUS_TRY(checkpoint_save(r->folder.path, r->trainer, &r->state));
    r->saved_step = r->trainer->step;
    run_tell(r, BLURRY_EVENT_CHECKPOINT, NULL);
    return BLURRY_OK;
}

static blurry_status save_best(run *r)
{
    if (!settings_values(r->trainer->settings)->keep_best || blurry_ranks_rank() > 0) return BLURRY_OK;
    char *path = file_join(r->folder.path, CHECKPOINT_BEST);
    if (!path) return status_fail(BLURRY_E_MEMORY, "checkpoint: out of memory for a path");
    r->state.step = r->trainer->step;
    blurry_status status = checkpoint_save_model(path, r->trainer, &r->state, NULL);
    free(path);
    return status;
}

static double watched(const run *r)
{
    return !strcmp(r->trainer->info.metric, "bits_per_byte") ? r->state.metrics.bits_per_byte
                                                             : r->state.metrics.accuracy;
}

/* The rule looks at this run's own past alone, so it does not matter when and where the run was carried out.
 */
static int hopeless(const run *r, const struct settings *s)
{
    const blurry_trainer *t = r->trainer;
    if (s->give_up_after <= 0 || t->step >= t->schedule.steps ||
        (double)t->step < s->give_up_after * (double)t->schedule.steps)
        return 0;
    return t->info.metric_descends ? r->state.best > s->give_up_below : r->state.best < s->give_up_below;
}

static blurry_status evaluate(run *r)
{
    const struct settings *s = settings_values(r->trainer->settings);
    run_state *state = &r->state;
    double begin = run_now();
    blurry_status status = blurry_trainer_evaluate(r->trainer, "val", &state->metrics);
    if (status != BLURRY_OK) return status_context(status, "step %lld", (long long)r->trainer->step);
    state->evaluated_step = r->trainer->step;
    double value = watched(r);
    int descends = r->trainer->info.metric_descends;
    int improved = state->best_step == 0 || (descends ? value < state->best : value > state->best);
    if (improved) {
        state->best = value;
        state->best_step = r->trainer->step;
    }
    state->unimproved = improved ? 0 : state->unimproved + 1;
    if (s->stop_at > 0 && (descends ? value <= s->stop_at : value >= s->stop_at))
        strcpy(state->end, "stop_at");
    else if (s->patience > 0 && state->unimproved >= s->patience)
        strcpy(state->end, "patience");
    else if (hopeless(r, s))
        strcpy(state->end, "give_up");
    STATUS_TRY(run_report_eval(r, improved));
    if (improved) STATUS_TRY(save_best(r));
    r->window_start += run_now() - begin; /* tokens per second speaks of training alone */
    return BLURRY_OK;
}

/* ---- the loop ---- */
static void measure_speed(run *r)
{
    double seconds = run_now() - r->window_start;
    int64_t tokens = r->trainer->tokens - r->window_tokens;
    r->tokens_per_second = (double)tokens / (seconds > 1e-9 ? seconds : 1e-9);
    if (seconds < 2) return;
    r->window_tokens = r->trainer->tokens;
    r->window_start = run_now();
}

/* Whether the coming step's results are wanted: always where they cost nothing, else when there is something
 * to log, evaluate or save, and often enough for whoever watches. */
static int step_is_due(const run *r)
{
    const blurry_trainer *t = r->trainer;
    int64_t next = t->step + 1;
    return trainer_waits(t) || r->last.tokens == 0 || next >= t->schedule.steps || next % r->log_every == 0 ||
           next % r->eval_every == 0 || next % r->save_every == 0 || run_now() - r->told > SECONDS_UNTOLD;
}

static blurry_status loop(run *r)
{
    blurry_trainer *t = r->trainer;
    while (!r->state.end[0] && !r->cancelled) {
        int due = step_is_due(r);
        STATUS_TRY(blurry_trainer_step(t, due ? &r->last : NULL));
        measure_speed(r);
        if (!due) continue;
        r->told = run_now();
        STATUS_TRY(run_report_step(r));
        ranks_broadcast(&r->cancelled, sizeof r->cancelled); /* only the first of several ranks is told */
        int last = t->step >= t->schedule.steps;
        if (last || t->step % r->eval_every == 0) STATUS_TRY(evaluate(r));
        if (last && !r->state.end[0]) strcpy(r->state.end, "steps");
        if (!r->state.end[0] && t->step % r->save_every == 0) STATUS_TRY(save(r));
    }
    if (r->state.end[0]) {
        STATUS_TRY(run_report_end(r, NULL));
        return save(r);
    }
    STATUS_TRY(save(r));
    strcpy(r->state.end, "cancelled"); /* after the checkpoint: the run can be continued */
    STATUS_TRY(run_report_end(r, NULL));
    return status_fail(BLURRY_E_CANCELLED, "stopped at step %lld: the same command continues",
                       (long long)t->step);
}

/* The log gets the reason, the caller the message; the directory keeps its last good checkpoint. */
static blurry_status end_not_finite(run *r)
{
    char message[512];
    snprintf(message, sizeof message, "%s", blurry_last_error());
    strcpy(r->state.end, "non_finite");
    blurry_status logged = run_report_end(r, message);
    return logged == BLURRY_OK ? status_fail(BLURRY_E_NUMERIC, "%s", message) : logged;
}

/* From the directory's checkpoint; several ranks get it from the first. */
static blurry_status resume(run *r)
{
    blurry_status status = BLURRY_OK;
    if (blurry_ranks_rank() == 0) status = checkpoint_resume(r->folder.path, r->trainer, &r->state);
    STATUS_TRY(parallel_agree(status));
    STATUS_TRY(parallel_share(r->trainer, &r->state));
    r->saved_step = r->trainer->step;
    r->first_step = r->trainer->step;
    if (blurry_ranks_rank() == 0)
        STATUS_TRY(run_log_rewind(&r->folder.log, r->trainer->step, r->state.end[0] != 0));
    run_tell(r, BLURRY_EVENT_START, NULL);
    return BLURRY_OK;
}

static blurry_status start(run *r)
{
    r->started = r->window_start = run_now();
    r->saved_step = -1;
    r->state.best = NAN;
    STATUS_TRY(checkpoint_fingerprint(r->trainer->settings, r->trainer->task, r->state.data));
    ranks_broadcast(&r->folder.has_checkpoint, sizeof r->folder.has_checkpoint);
    if (r->folder.has_checkpoint) return resume(r);
    if (blurry_ranks_rank() == 0) {
        STATUS_TRY(run_log_rewind(&r->folder.log, -1, 0));
        checkpoint_sweep(r->folder.path, NULL);
    }
    STATUS_TRY(run_report_start(r));
    return save(r);
}

static void plan_intervals(run *r)
{
    const struct settings *s = settings_values(r->trainer->settings);
    int64_t samples = r->trainer->info.samples[BLURRY_TRAIN], steps = r->trainer->schedule.steps;
    r->eval_every = s->eval_every > 0 ? s->eval_every : (samples + s->batch - 1) / s->batch;
    r->save_every = s->save_every > 0 ? s->save_every : r->eval_every;
    r->log_every = s->log_every > 0 ? s->log_every : (steps + LINES_PER_RUN - 1) / LINES_PER_RUN;
}

blurry_status blurry_train(const blurry_settings *settings, const char *out, blurry_progress_fn progress,
                           void *context)
{
    if (!settings || !out || !*out)
        return status_fail(BLURRY_E_INVALID, "settings or out is missing: name the run directory");
    run r = {.progress = progress, .context = context, .folder = {.lock = -1, .log = {.fd = -1}}};
    /* The trainer first: wrong settings must fail before the directory is touched. */
    STATUS_TRY(blurry_trainer_create(settings, &r.trainer));
    blurry_status status = BLURRY_OK;
    if (blurry_ranks_rank() == 0) status = run_folder_open(&r.folder, out, settings);
    status = parallel_agree(status);
    if (status == BLURRY_OK) {
        plan_intervals(&r);
        status = start(&r);
        if (status == BLURRY_OK && r.state.end[0])
            run_tell(&r, BLURRY_EVENT_END, NULL); /* found complete */
        else if (status == BLURRY_OK)
            status = loop(&r);
        if (status == BLURRY_E_NUMERIC) status = end_not_finite(&r);
    }
    run_folder_close(&r.folder);
    blurry_trainer_destroy(&r.trainer);
    return status;
}
