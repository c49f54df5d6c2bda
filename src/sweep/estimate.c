/* How long runs will take: from runs like them in the database, else from a few steps timed here. */
#include "base/threads.h"
#include "blurry/train.h"
#include "sweep/coordinator.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Seconds per multiply-add, as timed. */
typedef struct pace {
    double work, seconds;
} pace;

typedef struct tally {
    const blurry_sweep *sweep;
    pace pace;
} tally;

static void add_result(void *context, int64_t index, const char *state, double best, double seconds)
{
    tally *c = context;
    (void)best;
    if (strcmp(state, "done") || !(seconds > 0)) return;
    c->pace.work += c->sweep->run[index].work;
    c->pace.seconds += seconds;
}

static blurry_status pace_of_database(const blurry_sweep *sweep, const char *path, pace *p)
{
    tally context = {sweep, {0, 0}};
    database d;
    if (!path || access(path, R_OK)) return BLURRY_OK;
    STATUS_TRY(database_open(&d, path, 0));
    blurry_status status = database_exec(
        &d, "CREATE TEMP TABLE wanted(position INTEGER PRIMARY KEY, key TEXT UNIQUE)", "reading");
    for (int64_t i = 0; status == BLURRY_OK && i < sweep->count; i++) {
        sqlite3_stmt *s;
        status = database_prepare(&d, "INSERT OR IGNORE INTO temp.wanted VALUES(?1,?2)", &s);
        if (status != BLURRY_OK) break;
        sqlite3_bind_int64(s, 1, i);
        sqlite3_bind_text(s, 2, sweep->run[i].key, -1, SQLITE_STATIC);
        status = database_step(&d, s, "reading");
    }
    if (status == BLURRY_OK) status = database_results(&d, add_result, &context);
    database_close(&d);
    *p = context.pace;
    return status;
}

/* The run of median work: steps of it are timed. */
static int by_work(const void *a, const void *b)
{
    const grid_run *const *x = a, *const *y = b;
    double p = (*x)->work / (double)(*x)->steps, q = (*y)->work / (double)(*y)->steps;
    return (p > q) - (p < q);
}

static const grid_run *median_run(const blurry_sweep *sweep)
{
    const grid_run **list = malloc((size_t)sweep->count * sizeof *list);
    if (!list) return &sweep->run[0];
    for (int64_t i = 0; i < sweep->count; i++) list[i] = &sweep->run[i];
    qsort(list, (size_t)sweep->count, sizeof *list, by_work);
    const grid_run *median = list[sweep->count / 2];
    free(list);
    return median;
}

/* On the CPU the thread's own time, so that a busy machine makes no difference; else the clock on the wall.
 */
static double spent(bool cpu)
{
    struct timespec t;
    clock_gettime(cpu ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static blurry_status time_steps(const grid_run *run, const char *device, double *seconds)
{
    enum { STEPS = 5 };
    blurry_settings *settings = NULL;
    blurry_trainer *trainer = NULL;
    STATUS_TRY(blurry_settings_copy(&settings, run->settings));
    blurry_status status = blurry_settings_set(settings, "threads", "1");
    if (status == BLURRY_OK && device) status = blurry_settings_set(settings, "device", device);
    if (status == BLURRY_OK) status = blurry_trainer_create(settings, &trainer);
    if (status == BLURRY_OK) status = blurry_trainer_step(trainer, NULL); /* the first one warms up */
    bool cpu = status == BLURRY_OK && settings_values(settings)->device == SETTINGS_device_cpu;
    double begin = spent(cpu);
    int done = 0;
    while (status == BLURRY_OK && done < STEPS && (done == 0 || spent(cpu) - begin < 2)) {
        status = blurry_trainer_step(trainer, NULL);
        done++;
    }
    *seconds = (spent(cpu) - begin) / (done > 0 ? done : 1);
    blurry_trainer_destroy(&trainer);
    blurry_settings_destroy(&settings);
    return status;
}

/* In a process of its own: this one must stay free of threads and devices for the workers to be forked from.
 */
static bool pace_of_steps(const blurry_sweep *sweep, const char *device, pace *p)
{
    const grid_run *run = median_run(sweep);
    int ends[2], status = 1;
    double seconds = NAN;
    if (pipe(ends)) return false;
    pid_t child = fork();
    if (child == 0) {
        int good = time_steps(run, device, &seconds) == BLURRY_OK;
        _exit(good && write(ends[1], &seconds, sizeof seconds) == sizeof seconds ? 0 : 1);
    }
    close(ends[1]);
    bool read_it = child > 0 && read(ends[0], &seconds, sizeof seconds) == sizeof seconds;
    close(ends[0]);
    if (child > 0) waitpid(child, &status, 0);
    *p = (pace){run->work / (double)run->steps, seconds};
    return read_it && status == 0;
}

blurry_status blurry_sweep_estimate(const blurry_sweep *sweep, const blurry_sweep_options *options,
                                    double *seconds, const char **source)
{
    if (!sweep || !options || !seconds || !source)
        return status_fail(BLURRY_E_INVALID, "an argument is NULL");
    pace p = {0, 0};
    STATUS_TRY(pace_of_database(sweep, options->database, &p));
    *source = "judged by the runs that are done";
    if (p.work <= 0) {
        bool timed = pace_of_steps(sweep, options->device, &p);
        *source = timed ? "judged by a few steps on one thread here" : "no step could be timed here";
        if (!timed) p = (pace){1, NAN};
    }
    for (int64_t i = 0; i < sweep->count; i++) seconds[i] = sweep->run[i].work * (p.seconds / p.work);
    return BLURRY_OK;
}
