/* blurry_sweep_run: from a sweep and a database to results for every run. See coordinator.h. */
#include "sweep/coordinator.h"
#include "base/file.h"
#include "sweep/ranks.h"
#include "sweep/slot.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { POLL_MILLISECONDS = 100 };
static const double BEAT_SECONDS = 10, COUNT_SECONDS = 1, TICK_SECONDS = 0.2, BURY_SECONDS = 3;

double coordinator_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void coordinator_fail(coordinator *c, blurry_status status)
{
    if (c->failure == BLURRY_OK) {
        c->failure = status;
        snprintf(c->message, sizeof c->message, "%s", blurry_last_error());
    }
    coordinator_stop(c);
}

/* ---- setting up ---- */
static bool on_cuda(const coordinator *c)
{
    if (c->options->device) return !strcmp(c->options->device, "cuda");
    for (int64_t i = 0; i < c->sweep->count; i++)
        if (settings_values(c->sweep->run[i].settings)->device == SETTINGS_device_cuda) return true;
    return false;
}

static blurry_status choose_jobs(coordinator *c)
{
    c->shared = on_cuda(c);
    c->jobs = c->options->jobs ? c->options->jobs : sweep_jobs_default(c->shared);
    if (c->jobs < 1 || c->jobs > WORKER_SLOTS_MAX)
        return status_fail(BLURRY_E_INVALID, "jobs is %d: give 1 to %d", c->jobs, WORKER_SLOTS_MAX);
    if (c->jobs > c->sweep->count) c->jobs = (int)c->sweep->count;
    return BLURRY_OK;
}

static blurry_status allocate(coordinator *c)
{
    size_t runs = (size_t)c->sweep->count, groups = (size_t)c->sweep->grid.group_count;
    c->lost = calloc(runs, sizeof *c->lost);
    c->done = calloc(runs, sizeof *c->done);
    c->groups = calloc(groups, sizeof *c->groups);
    c->processes = calloc((size_t)c->jobs, sizeof *c->processes);
    if (c->options->folder)
        c->folder = strdup(c->options->folder);
    else if (asprintf(&c->folder, "%s.runs", c->options->database) < 0)
        c->folder = NULL;
    if (c->lost && c->done && c->groups && c->processes && c->folder) return BLURRY_OK;
    return status_fail(BLURRY_E_MEMORY, "sweep: out of memory");
}

/* A crash between recording a result and removing its folder leaves the folder; nobody needs it. */
static void remove_leftover(void *context, int64_t index, const char *state, double best, double seconds)
{
    coordinator *c = context;
    (void)state, (void)best, (void)seconds;
    char *path = slot_folder(c->folder, c->sweep->run[index].key);
    if (path && file_exists(path)) slot_remove_folder(path);
    free(path);
}

static blurry_status open_database(coordinator *c)
{
    int64_t requeued;
    STATUS_TRY(database_open(&c->database, c->options->database, 1));
    STATUS_TRY(database_register(&c->database, c->sweep));
    STATUS_TRY(database_requeue_dead(&c->database, &requeued));
    STATUS_TRY(database_retry(&c->database, c->options->retry));
    if (!c->options->keep) STATUS_TRY(database_results(&c->database, remove_leftover, c));
    return coordinator_refresh(c);
}

static blurry_status set_up(coordinator *c)
{
    STATUS_TRY(choose_jobs(c));
    STATUS_TRY(allocate(c));
    c->plan.folder = c->folder;
    c->plan.cuda = c->shared;
    STATUS_TRY(open_database(c));
    return file_make_folders(c->folder);
}

/* MPI is left before the workers are forked. */
static blurry_status start(coordinator *c)
{
    if (c->counts.done + c->counts.diverged + c->counts.failed == c->counts.total) {
        blurry_sweep_dismiss();
        return BLURRY_OK;
    }
    STATUS_TRY(sweep_ranks_invite(&c->listener, c->plan.token));
    return coordinator_start_workers(c);
}

/* ---- the loop ---- */
static blurry_status keep_up(coordinator *c)
{
    double now = coordinator_now();
    if (now - c->beaten > BEAT_SECONDS) {
        STATUS_TRY(database_beat(&c->database));
        c->beaten = now;
    }
    if (now - c->counted > COUNT_SECONDS) {
        int64_t before = c->counts.done + c->counts.diverged + c->counts.failed, requeued = 0;
        STATUS_TRY(database_count(&c->database, &c->counts));
        if (c->counts.done + c->counts.diverged + c->counts.failed != before)
            STATUS_TRY(coordinator_refresh(c));
        if (c->counts.running > c->counts.mine && now - c->counted > BURY_SECONDS - COUNT_SECONDS)
            STATUS_TRY(database_requeue_dead(&c->database, &requeued));
        c->counted = now;
    }
    return BLURRY_OK;
}

static void check_limits(coordinator *c)
{
    double limit = c->options->limit_seconds;
    if (limit > 0 && coordinator_now() - c->started > limit && !c->stopping) {
        c->paused = true;
        coordinator_stop(c);
    }
}

static bool finished(const coordinator *c)
{
    if (coordinator_busy(c)) return false;
    return c->stopping || (c->counts.pending == 0 && c->counts.running == 0);
}

static blurry_status turn(coordinator *c)
{
    if (!c->stopping) STATUS_TRY(coordinator_hand_out(c));
    STATUS_TRY(coordinator_listen(c, POLL_MILLISECONDS));
    STATUS_TRY(keep_up(c));
    check_limits(c);
    if (coordinator_now() - c->ticked > TICK_SECONDS) {
        c->ticked = coordinator_now();
        coordinator_tell(c, BLURRY_SWEEP_TICK, -1, NULL, NULL, NAN, 0);
    }
    return BLURRY_OK;
}

/* A database that cannot be written stops everything, but runs under way still get to save their checkpoints.
 */
static void run_all(coordinator *c)
{
    while (!finished(c)) {
        blurry_status status = turn(c);
        if (status == BLURRY_OK) continue;
        bool again = c->failure != BLURRY_OK;
        coordinator_fail(c, status);
        if (again && !coordinator_busy(c)) break;
    }
    if (c->failure == BLURRY_OK) {
        blurry_status status = database_count(&c->database, &c->counts);
        if (status != BLURRY_OK) coordinator_fail(c, status);
    }
}

static void summarise(const coordinator *c, blurry_sweep_summary *summary)
{
    if (!summary) return;
    *summary = (blurry_sweep_summary){.total = c->counts.total,
                                      .done = c->counts.done,
                                      .diverged = c->counts.diverged,
                                      .failed = c->counts.failed,
                                      .pending = c->counts.pending + c->counts.running,
                                      .stopped = c->stopping,
                                      .seconds = coordinator_now() - c->started};
}

static void tear_down(coordinator *c)
{
    coordinator_end_workers(c);
    if (c->listener >= 0) close(c->listener);
    if (c->folder && !c->options->keep) rmdir(c->folder); /* only where nothing is left in it */
    database_leave(&c->database);
    database_close(&c->database);
    free(c->folder);
    free(c->lost);
    free(c->done);
    free(c->groups);
    free(c->processes);
    free(c->slots);
    free(c->active);
}

blurry_status blurry_sweep_run(const blurry_sweep *sweep, const blurry_sweep_options *options,
                               blurry_sweep_summary *summary)
{
    if (!sweep || !options || !options->database)
        return status_fail(BLURRY_E_INVALID, "sweep, options or database is NULL");
    coordinator c = {.sweep = sweep, .options = options, .listener = -1, .started = coordinator_now()};
    blurry_status status = set_up(&c);
    if (status == BLURRY_OK) status = start(&c);
    if (status != BLURRY_OK) {
        char message[1024];
        snprintf(message, sizeof message, "%s", blurry_last_error());
        blurry_sweep_dismiss();
        tear_down(&c);
        return status_fail(status, "%s", message);
    }
    run_all(&c);
    summarise(&c, summary);
    tear_down(&c);
    if (c.failure != BLURRY_OK) return status_fail(c.failure, "%s", c.message);
    if (c.stopping && !c.paused)
        return status_fail(BLURRY_E_CANCELLED, "stopped: the same command continues");
    return BLURRY_OK;
}
