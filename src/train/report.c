/* What a run tells: see run.h. */
#include "train/run.h"
#include "train/ranks.h"

#include <math.h>
#include <stdlib.h>
#include <time.h>

double run_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void run_tell(run *r, blurry_event event, const char *json)
{
    if (!r->progress || blurry_ranks_rank() > 0) return;
    const blurry_trainer *t = r->trainer;
    int64_t done = t->step - r->first_step, seen = t->step * settings_values(t->settings)->batch;
    double seconds = run_now() - r->started;
    blurry_progress p = {
        .event = event,
        .step = t->step,
        .steps = t->schedule.steps,
        .epoch = (double)seen / (double)t->info.samples[BLURRY_TRAIN],
        .loss = r->last.loss,
        .lr = r->last.lr,
        .grad_norm = r->last.grad_norm,
        .accuracy = r->state.evaluated_step ? r->state.metrics.accuracy : NAN,
        .best = r->state.best_step ? r->state.best : NAN,
        .best_step = r->state.best_step,
        .tokens_per_second = r->tokens_per_second,
        .seconds = seconds,
        .eta_seconds = done > 0 ? seconds / (double)done * (double)(t->schedule.steps - t->step) : NAN,
        .metrics = event == BLURRY_EVENT_EVAL ? &r->state.metrics : NULL,
        .reason = event == BLURRY_EVENT_END ? r->state.end : NULL,
        .json = json,
    };
    if (r->progress(r->context, &p)) r->cancelled = 1;
}

/* Writes a line to the log and tells the caller; of several ranks the first one does. */
static blurry_status report(run *r, blurry_event event, const log_field *fields, int n)
{
    char *line = NULL;
    if (blurry_ranks_rank() > 0) return BLURRY_OK;
    STATUS_TRY(run_log_format(fields, n, &line));
    blurry_status status = run_log_append(&r->folder.log, line);
    if (status == BLURRY_OK) run_tell(r, event, line);
    free(line);
    return status;
}

blurry_status run_report_start(run *r)
{
    const blurry_trainer *t = r->trainer;
    const struct settings *s = settings_values(t->settings);
    int64_t state_size = 0;
    STATUS_TRY(blurry_state_size_model(t->settings, t->info.length, &state_size));
    const log_field fields[] = {
        LOG_STR("event", "start"),
        LOG_INT("step", t->step),
        LOG_INT("steps", t->schedule.steps),
        LOG_STR("task", s->task),
        LOG_STR("mixer", s->mixer),
        LOG_INT("parameters", t->optimiser.elements),
        LOG_INT("state_elements", state_size),
        LOG_INT("train_sequences", t->info.samples[BLURRY_TRAIN]),
        LOG_STR("metric", t->info.metric),
        LOG_INT("seed", s->seed),
        LOG_STR("data", r->state.data),
        LOG_STR("version", blurry_version()),
    };
    return report(r, BLURRY_EVENT_START, fields, sizeof fields / sizeof fields[0]);
}

blurry_status run_report_step(run *r)
{
    const blurry_trainer *t = r->trainer;
    double seen = (double)(t->step * settings_values(t->settings)->batch);
    if (t->step % r->log_every && t->step != t->schedule.steps) {
        run_tell(r, BLURRY_EVENT_STEP, NULL);
        return BLURRY_OK;
    }
    const log_field fields[] = {
        LOG_STR("event", "train"),
        LOG_INT("step", t->step),
        LOG_REAL("epoch", seen / (double)t->info.samples[BLURRY_TRAIN]),
        LOG_REAL("loss", r->last.loss),
        LOG_REAL("lr", r->last.lr),
        LOG_REAL("grad_norm", r->last.grad_norm),
        LOG_REAL("tokens_per_second", r->tokens_per_second),
        LOG_REAL("seconds", run_now() - r->started),
    };
    return report(r, BLURRY_EVENT_STEP, fields, sizeof fields / sizeof fields[0]);
}

blurry_status run_report_eval(run *r, int improved)
{
    const blurry_metrics *m = &r->state.metrics;
    log_field fields[12] = {LOG_STR("event", "eval"),
                            LOG_INT("step", r->trainer->step),
                            LOG_STR("split", "val"),
                            LOG_INT("sequences", m->sequences),
                            LOG_REAL("loss", m->loss),
                            LOG_REAL("accuracy", m->accuracy),
                            LOG_REAL("exact_match", m->exact_match)};
    int n = 7;
    if (!isnan(m->l1)) fields[n++] = LOG_REAL("l1", m->l1);
    if (!isnan(m->bits_per_byte)) fields[n++] = LOG_REAL("bits_per_byte", m->bits_per_byte);
    fields[n++] = LOG_INT("improved", improved);
    fields[n++] = LOG_REAL("seconds", run_now() - r->started);
    return report(r, BLURRY_EVENT_EVAL, fields, n);
}

blurry_status run_report_end(run *r, const char *message)
{
    const log_field fields[] = {
        LOG_STR("event", "end"),
        LOG_INT("step", r->trainer->step),
        LOG_STR("reason", r->state.end),
        LOG_STR("metric", r->trainer->info.metric),
        LOG_REAL("best", r->state.best_step ? r->state.best : NAN),
        LOG_INT("best_step", r->state.best_step),
        LOG_REAL("seconds", run_now() - r->started),
        LOG_STR("message", message),
    };
    return report(r, BLURRY_EVENT_END, fields, message ? 8 : 7);
}
