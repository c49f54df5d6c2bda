/* `blurry bench sweep`: runs per hour, many at once against one after another.
 *
 * Both are real sweeps with a database in a temporary folder, timed from the first run's start to the last
 * one's end. Opening the GPU, which a sweep does once, is what the first run of those one after another
 * takes longer than the others; it counts on neither side. */
#include "blurry/sweep.h"
#include "cli/bench.h"
#include "cli/cli.h"
#include "cli/options.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char usage[] =
    "usage: blurry bench sweep [--device cpu|cuda] [--runs N] [--serial N] [--jobs "
    "N] [--steps N] [--set KEY=VALUE] [--json]\n"
    "  Runs per hour of N MQAR trainings at once (default 32; width 64, M = 16, 512 "
    "tokens, 64 pairs, batch 32;\n"
    "  bf16 on a GPU)"
    " beside those of the same one after another, from the first start to the last end.\n"
    "  Opening a GPU, once in a sweep, counts on neither side.\n"
    "  --serial  how many of them run one after another (default: all on a GPU, 4 on the CPU)\n"
    "  --jobs    runs at once (default: all of them on a GPU, the cores on the CPU)\n"
    "  --steps   of each run (default 500 on a GPU, 20 on the CPU)\n"
    "  --set     another setting for all runs; may be repeated\n";

typedef struct request {
    const char *device, *runs_text, *serial_text, *jobs_text, *steps_text;
    int64_t runs, serial, jobs, steps;
    int json;
    const char **overrides;
    int override_count;
} request;

typedef struct clock_view {
    double first_start, first_end, last_end;
    int64_t ended;
} clock_view;

static int watch(void *context, const blurry_sweep_progress *p)
{
    clock_view *view = context;
    if (p->event != BLURRY_SWEEP_FINISHED) return 0;
    double now = bench_now(), start = now - p->entry_seconds;
    if (view->ended == 0 || start < view->first_start) view->first_start = start;
    if (view->ended == 0) view->first_end = now;
    view->last_end = now;
    view->ended++;
    return 0;
}

/* A grid of `count` runs that differ in the seed. */
static blurry_status make_sweep(const request *q, int64_t count, blurry_sweep **sweep)
{
    char *text = NULL;
    size_t size;
    FILE *to = open_memstream(&text, &size);
    if (!to) return BLURRY_E_MEMORY;
    fprintf(to,
            "name: bench\nbase: {task: mqar, length: 512, pairs: 64, vocab: 8192, mixer: blurry, modes: 16, "
            "resolution: 2, width: "
            "64, layers: 2, heads: 1, batch: 32, lr: 0.001, precision: %s, steps: %" PRId64
            ", eval_every: %" PRId64 ", eval_samples: 32, save_every: %" PRId64 "}\naxes:\n  seed: [",
            !strcmp(q->device, "cuda") ? "bf16" : "f32", q->steps, q->steps, q->steps);
    for (int64_t i = 0; i < count; i++) fprintf(to, "%s%" PRId64, i ? ", " : "", i);
    fprintf(to, "]\n");
    fclose(to);
    blurry_sweep_choice choice = {.overrides = q->overrides, .override_count = q->override_count};
    blurry_status status = blurry_sweep_parse(sweep, text, size, "bench", &choice);
    free(text);
    return status;
}

static blurry_status time_runs(const request *q, const char *folder, int64_t count, int jobs,
                               clock_view *view)
{
    blurry_sweep *sweep = NULL;
    blurry_sweep_summary summary = {0};
    char database[64];
    snprintf(database, sizeof database, "%s/%d.db", folder, jobs);
    blurry_status status = make_sweep(q, count, &sweep);
    blurry_sweep_options options = {
        .database = database, .device = q->device, .jobs = jobs, .progress = watch, .context = view};
    if (status == BLURRY_OK) status = blurry_sweep_run(sweep, &options, &summary);
    blurry_sweep_destroy(&sweep);
    unlink(database);
    if (status == BLURRY_OK && summary.done != count) {
        fprintf(stderr, "blurry: bench sweep: %" PRId64 " of %" PRId64 " runs have no result\n",
                count - summary.done, count);
        return BLURRY_E_INTERNAL;
    }
    return status;
}

static void show(const request *q, const clock_view *serial, const clock_view *many)
{
    double alone = (serial->last_end - serial->first_end) / (double)(q->serial - 1);
    double first = serial->first_end - serial->first_start;
    double opening = !strcmp(q->device, "cuda") ? fmax(0, first - alone) : 0;
    double together = (many->last_end - many->first_start - opening) / (double)q->runs;
    double gain = alone / together;
    if (q->json)
        printf("{\"device\":\"%s\",\"runs\":%" PRId64 ",\"jobs\":%" PRId64 ",\"steps\":%" PRId64
               ",\"opening_seconds\":%.6g,\"serial_seconds_per_run\":%.6g,\"serial_runs_per_hour\":%.6g,"
               "\"seconds_for_all\":%.6g,"
               "\"runs_per_hour\":%.6g,"
               "\"ratio\":%.4g}\n",
               q->device, q->runs, q->jobs, q->steps, opening, alone, 3600 / alone,
               together * (double)q->runs, 3600 / together, gain);
    else
        printf("%s, %" PRId64 " steps each\n"
               "one after another   %8.0f runs per hour (%.2f s each)\n"
               "%3" PRId64 " at once         %8.0f runs per hour (%" PRId64 " in %.2f s)\n"
               "ratio               %8.2f\n"
               "opening the device, %.2f s once, counts on neither side\n",
               q->device, q->steps, 3600 / alone, alone, q->jobs, 3600 / together, q->runs,
               together * (double)q->runs, gain, opening);
}

static int measure(const request *q)
{
    char folder[] = "/tmp/blurry-bench-XXXXXX";
    clock_view serial = {0}, many = {0};
    if (!mkdtemp(folder)) {
        fprintf(stderr, "blurry: bench sweep: cannot create a folder in /tmp\n");
        return CLI_FAILED;
    }
    blurry_status status = time_runs(q, folder, q->serial, 1, &serial);
    if (status == BLURRY_OK) status = time_runs(q, folder, q->runs, (int)q->jobs, &many);
    rmdir(folder);
    if (status == BLURRY_OK) show(q, &serial, &many);
    return cli_report(status, "bench sweep");
}

/* "--set X" may come several times: they are taken out of argv. */
static int take_overrides(request *q, int argc, char **argv)
{
    int kept = 1;
    for (int i = 1; i < argc; i++)
        if (!strcmp(argv[i], "--set") && i + 1 < argc)
            q->overrides[q->override_count++] = argv[++i];
        else
            argv[kept++] = argv[i];
    return kept;
}

static int read_numbers(request *q)
{
    int cuda = !strcmp(q->device, "cuda");
    q->runs = 32;
    q->steps = cuda ? 500 : 20;
    if (!cuda && strcmp(q->device, "cpu"))
        return options_usage("bench sweep", "device is '%s': give cpu or cuda", q->device);
    int rc = bench_whole("bench sweep", "runs", q->runs_text, 1, &q->runs);
    q->serial = !cuda ? 4 : q->runs > 2 ? q->runs : 2;
    if (rc == CLI_OK) rc = bench_whole("bench sweep", "serial", q->serial_text, 2, &q->serial);
    if (rc == CLI_OK) rc = bench_whole("bench sweep", "steps", q->steps_text, 1, &q->steps);
    q->jobs = cuda ? q->runs : bench_threads();
    if (rc == CLI_OK) rc = bench_whole("bench sweep", "jobs", q->jobs_text, 1, &q->jobs);
    if (q->jobs > 256) return options_usage("bench sweep", "jobs is %" PRId64 ": at most 256", q->jobs);
    return rc;
}

int bench_sweep(int argc, char **argv)
{
    if (options_help_wanted(argc, argv)) {
        fputs(usage, stdout);
        return CLI_OK;
    }
    request q = {.device = "cpu", .overrides = calloc((size_t)argc + 1, sizeof *q.overrides)};
    if (!q.overrides) return CLI_FAILED;
    argc = take_overrides(&q, argc, argv);
    const cli_option own[] = {
        {.name = "--device", .value = &q.device},      {.name = "--runs", .value = &q.runs_text},
        {.name = "--serial", .value = &q.serial_text}, {.name = "--jobs", .value = &q.jobs_text},
        {.name = "--steps", .value = &q.steps_text},   {.name = "--json", .flag = &q.json}};
    cli_line line = {.verb = "bench sweep", .own = own, .own_count = sizeof own / sizeof own[0]};
    int rc = options_parse(&line, argc, argv);
    if (rc == CLI_OK) rc = read_numbers(&q);
    if (rc == CLI_OK) rc = measure(&q);
    free(q.overrides);
    return rc;
}
