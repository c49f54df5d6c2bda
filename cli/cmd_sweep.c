/* blurry sweep FILE.yaml --db results.db ...: carries out every run of a grid, or goes on with it. */
#include "blurry/ranks.h"
#include "blurry/sweep.h"
#include "cli/cli.h"
#include "cli/options.h"
#include "cli/sweep_view.h"
#include "cli/terminal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "usage: blurry sweep FILE.yaml --db FILE.db [--jobs N] [--device cpu|cuda] [--dry-run] [options]\n"
    "       mpirun --enable-recovery -n N blurry sweep FILE.yaml --db FILE.db ...\n\n"
    "Trains every run of the grid in FILE.yaml and keeps the results in an SQLite database. The same command "
    "again\n"
    "continues after any interruption; several commands may share one database. docs/sweeps.md has the "
    "file's format.\n\n"
    "  --db FILE          results; made where it is missing\n"
    "  --jobs N           runs at once (under mpirun: per rank); default: the cores, 32 on a GPU\n"
    "  --device D         cpu or cuda; default: as the runs' settings say\n"
    "  --dry-run          list the runs with state size and estimated time, and do nothing\n"
    "  --only A,B         these groups of the file only\n"
    "  --set KEY=VALUE    over what the file fixes, in every run; may be repeated; not for an axis\n"
    "  --no-early-stop    every run goes to its last step: stop_at, patience and give_up_after are switched "
    "off\n"
    "  --retry WHICH      failed, diverged or all: try those runs again\n"
    "  --limit-seconds S  pause after that time; runs under way keep a checkpoint\n"
    "  --memory GB        runs at once may need this much together\n"
    "  --keep             keep the folder (model, log) of every run that is done\n"
    "  --folder DIR       checkpoints of runs under way; default: FILE.db.runs\n"
    "  --quiet            show nothing\n\n"
    "Exit code 0: every run has a result (or the limit paused it), 1: it was stopped or could not go on, 2: "
    "wrong input.\n";

typedef struct request {
    const char *file, *jobs, *memory, *limit, *retry;
    int dry_run, quiet;
    blurry_sweep_choice choice;
    blurry_sweep_options options;
} request;

/* ---- the command line ---- */
/* Moves "--set X" out of argv into the choice's list; returns the new argc, -1 where a value is missing. */
static int take_overrides(request *q, int argc, char **argv, const char **list)
{
    int kept = 1;
    for (int i = 1; i < argc; i++) {
        if (!strncmp(argv[i], "--set=", 6)) {
            list[q->choice.override_count++] = argv[i] + 6;
        } else if (!strcmp(argv[i], "--set")) {
            if (i + 1 >= argc) return -1;
            list[q->choice.override_count++] = argv[++i];
        } else
            argv[kept++] = argv[i];
    }
    q->choice.overrides = list;
    return kept;
}

static int read_numbers(request *q)
{
    long long jobs = 0;
    double memory = 0, limit = 0;
    if (q->jobs && (!options_integer(q->jobs, &jobs) || jobs < 1 || jobs > 256))
        return options_usage("sweep", "jobs is '%s': give 1 to 256", q->jobs);
    if (q->memory && (!options_number(q->memory, &memory) || !(memory > 0)))
        return options_usage("sweep", "memory is '%s': give gigabytes", q->memory);
    if (q->limit && (!options_number(q->limit, &limit) || !(limit > 0)))
        return options_usage("sweep", "limit-seconds is '%s': give seconds above 0", q->limit);
    q->options.jobs = (int)jobs;
    q->options.memory_bytes = memory * 1e9;
    q->options.limit_seconds = limit;
    const char *device = q->options.device;
    if (device && strcmp(device, "cpu") && strcmp(device, "cuda"))
        return options_usage("sweep", "device is '%s': give cpu or cuda", device);
    if (!q->retry) return CLI_OK;
    if (!strcmp(q->retry, "failed"))
        q->options.retry = BLURRY_RETRY_FAILED;
    else if (!strcmp(q->retry, "diverged"))
        q->options.retry = BLURRY_RETRY_DIVERGED;
    else if (!strcmp(q->retry, "all"))
        q->options.retry = BLURRY_RETRY_FAILED | BLURRY_RETRY_DIVERGED;
    else
        return options_usage("sweep", "retry is '%s': give failed, diverged or all", q->retry);
    return CLI_OK;
}

static int parse(request *q, int argc, char **argv)
{
    const cli_option own[] = {{.name = "--db", .value = &q->options.database},
                              {.name = "--jobs", .value = &q->jobs},
                              {.name = "--device", .value = &q->options.device},
                              {.name = "--dry-run", .flag = &q->dry_run},
                              {.name = "--only", .value = &q->choice.groups},
                              {.name = "--no-early-stop", .flag = &q->choice.no_early_stop},
                              {.name = "--retry", .value = &q->retry},
                              {.name = "--limit-seconds", .value = &q->limit},
                              {.name = "--memory", .value = &q->memory},
                              {.name = "--keep", .flag = &q->options.keep},
                              {.name = "--folder", .value = &q->options.folder},
                              {.name = "--quiet", .flag = &q->quiet}};
    cli_line line = {.verb = "sweep",
                     .own = own,
                     .own_count = sizeof own / sizeof own[0],
                     .positional = &q->file,
                     .positional_max = 1};
    int code = options_parse(&line, argc, argv);
    if (code == CLI_OK && line.positional_count < 1)
        code = options_usage("sweep", "the sweep file is missing");
    if (code == CLI_OK && !q->options.database && !q->dry_run)
        code = options_usage("sweep", "--db FILE is missing");
    return code == CLI_OK ? read_numbers(q) : code;
}

/* ---- --dry-run ---- */
static void list_runs(const blurry_sweep *sweep, const double *seconds)
{
    printf("%-12s %-16s %12s %12s %9s %9s  %s\n", "group", "key", "state", "parameters", "steps", "time",
           "settings");
    for (int64_t i = 0; i < blurry_sweep_count(sweep); i++) {
        blurry_sweep_entry e;
        char time[32];
        if (blurry_sweep_at(sweep, i, &e) != BLURRY_OK) continue;
        terminal_duration(time, sizeof time, seconds[i]);
        printf("%-12s %.16s %12lld %12lld %9lld %9s  %s\n", e.group, e.key, (long long)e.state_elements,
               (long long)e.parameters, (long long)e.steps, time, e.label);
    }
}

static int dry_run(const request *q, const blurry_sweep *sweep)
{
    int64_t n = blurry_sweep_count(sweep);
    double *seconds = malloc((size_t)n * sizeof *seconds), total = 0;
    const char *source = "";
    if (!seconds) return CLI_FAILED;
    blurry_status status = blurry_sweep_estimate(sweep, &q->options, seconds, &source);
    if (status == BLURRY_OK) {
        char time[32];
        list_runs(sweep, seconds);
        for (int64_t i = 0; i < n; i++) total += seconds[i];
        terminal_duration(time, sizeof time, total);
        printf("\n%s: %lld runs, %s one after another (%s); state: elements of all layers\n",
               blurry_sweep_name(sweep), (long long)n, time, source);
    }
    free(seconds);
    return cli_report(status, "sweep");
}

/* ---- the sweep ---- */
static void print_summary(const request *q, const blurry_sweep_summary *s)
{
    char time[32];
    terminal_duration(time, sizeof time, s->seconds);
    printf("%s: %lld of %lld done", q->options.database, (long long)s->done, (long long)s->total);
    if (s->diverged) printf(", %lld diverged", (long long)s->diverged);
    if (s->failed) printf(", %lld failed", (long long)s->failed);
    if (s->pending) printf(", %lld to go: the same command continues", (long long)s->pending);
    printf(" (%s)\n", time);
    if (s->diverged + s->failed)
        printf("`--retry all` tries those again; their reasons: sqlite3 %s 'SELECT * FROM failures'\n",
               q->options.database);
}

/* Open MPI ends all ranks when one dies, unless it is told otherwise; it passes on whether it was. */
static void warn_of_mpirun(void)
{
    if (blurry_ranks_size() > 1 && getenv("OMPI_COMM_WORLD_SIZE") && !getenv("OMPI_MCA_orte_enable_recovery"))
        fputs("blurry: sweep: mpirun will end all ranks when one is lost (the same command continues then); "
              "start it with "
              "--enable-recovery to keep the others\n",
              stderr);
}

static int carry_out(request *q, const blurry_sweep *sweep)
{
    sweep_view view;
    blurry_sweep_summary summary = {0};
    if (!q->quiet) warn_of_mpirun();
    sweep_view_open(&view, sweep, q->quiet);
    q->options.progress = sweep_view_show;
    q->options.context = &view;
    blurry_status status = blurry_sweep_run(sweep, &q->options, &summary);
    if (!q->quiet && summary.total) print_summary(q, &summary);
    /* Before the first run only input was looked at: a database that cannot be used is such. */
    return summary.total ? cli_report(status, "sweep") : cli_report_input(status, "sweep");
}

static int sweep(request *q)
{
    blurry_sweep *sweep = NULL;
    if (blurry_ranks_rank() > 0) return cli_report(blurry_sweep_serve(&q->options), "sweep");
    blurry_status status = blurry_sweep_load(&sweep, q->file, &q->choice);
    int code = status == BLURRY_OK ? CLI_OK : cli_report_input(status, "sweep");
    if (code == CLI_OK) code = q->dry_run ? dry_run(q, sweep) : carry_out(q, sweep);
    blurry_sweep_destroy(&sweep);
    blurry_sweep_dismiss(); /* ranks that still wait for work */
    return code;
}

int cmd_sweep(int argc, char **argv)
{
    if (options_help_wanted(argc, argv)) {
        fputs(usage, stdout);
        return CLI_OK;
    }
    request q = {0};
    const char **overrides = calloc((size_t)argc + 1, sizeof *overrides);
    if (!overrides) return CLI_FAILED;
    int count = take_overrides(&q, argc, argv, overrides);
    int code = count < 0 ? options_usage("sweep", "--set needs key=value") : parse(&q, count, argv);
    if (code == CLI_OK) code = cli_report(blurry_ranks_open(), "sweep");
    if (code == CLI_OK) code = sweep(&q);
    blurry_ranks_close();
    free(overrides);
    return code;
}
