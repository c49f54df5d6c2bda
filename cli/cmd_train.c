/* blurry train TASK ...: trains a model in a run directory, or continues the run that is there. */
#include "blurry/ranks.h"
#include "blurry/train.h"
#include "cli/cli.h"
#include "cli/options.h"
#include "cli/progress.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static void print_help(void)
{
    printf("usage: blurry train TASK [FILE] --out DIR [--preset NAME] [--config FILE.yaml] [--set key=value "
           "...]\n"
           "                    [--key value ...] [--pause-at STEP] [--quiet]\n\n"
           "Trains a model and keeps configuration, log, checkpoints and the best model in DIR. The same "
           "command on the\n"
           "same DIR continues an interrupted run; a DIR with anything else in it is refused. A preset is "
           "applied first,\n"
           "then a configuration file, then single settings. On a terminal one line shows the progress, "
           "elsewhere the\n"
           "log's JSON lines are written. Ctrl-C saves a checkpoint and stops; --pause-at does so at a given "
           "step.\n"
           "Under mpirun every rank works on its share of each batch; the first one keeps DIR.\n\n"
           "tasks:\n");
    for (int i = 0; i < blurry_task_count(); i++)
        printf("  %-15s %s\n", blurry_task_name(i), blurry_task_summary(i));
    printf("\npresets:\n");
    for (int i = 0; i < blurry_preset_count(); i++)
        printf("  %-15s %s\n", blurry_preset_name(i), blurry_preset_summary(i));
    printf("\nmixers:\n");
    for (int i = 0; i < blurry_mixer_count(); i++)
        printf("  %-15s %s\n", blurry_mixer_name(i), blurry_mixer_summary(i));
    printf("\nEach setting is --key value or --set key=value; in brackets default and range.\n");
    options_help(BLURRY_SETTINGS_ALL);
}

/* The task and file of the line. A preset or configuration that names a task must agree with it. */
static int settle_task(blurry_settings *settings, const char *const *positional, int count)
{
    char named[1024] = "", file[1024] = "";
    if (count < 1) return options_usage("train", "the task is missing");
    const char *task = positional[0];
    int known = 0;
    for (int k = 0; k < blurry_task_count(); k++) known |= !strcmp(task, blurry_task_name(k));
    if (!known) return options_usage("train", "task '%s' is not known", task);
    blurry_settings_get(settings, "task", named, sizeof named);
    if (strcmp(named, task) && strcmp(named, "mqar")) /* mqar may be no more than the default */
        return options_usage("train", "task is %s, but the settings are for task %s", task, named);
    if (count > 1 && strcmp(task, "text"))
        return options_usage("train", "argument '%s' is not understood", positional[1]);
    blurry_status status = blurry_settings_set(settings, "task", task);
    if (status == BLURRY_OK && count > 1) status = blurry_settings_set(settings, "file", positional[1]);
    if (status != BLURRY_OK) return cli_report(status, "train");
    blurry_settings_get(settings, "file", file, sizeof file);
    char data[1024] = "";
    blurry_settings_get(settings, "data", data, sizeof data);
    if (!strcmp(task, "text") && !file[0] && !data[0])
        return options_usage("train", "task text needs a FILE: blurry train text FILE --out DIR");
    return CLI_OK;
}

static void print_result(const progress_view *view, const char *out)
{
    const blurry_progress *p = &view->last;
    FILE *to = view->terminal ? stdout : stderr;
    fprintf(to, "%s: %s at step %lld of %lld", out, view->end_reason, (long long)p->step,
            (long long)p->steps);
    if (isfinite(p->best)) fprintf(to, "; best %.6g at step %lld", p->best, (long long)p->best_step);
    fputc('\n', to);
}

/* What all ranks know of (the end, a stop, a loss that is not finite, wrong settings) the first one reports
 * with its exit code. A failure that only this rank has seen ends all of them. */
static int other_rank(blurry_status status)
{
    if (status == BLURRY_OK || status == BLURRY_E_CANCELLED || status == BLURRY_E_NUMERIC ||
        status == BLURRY_E_INVALID)
        return CLI_OK;
    int code = cli_report(status, "train");
    blurry_ranks_abort(code);
    return code;
}

static int train(blurry_settings *settings, const char *out, long long pause_at, int quiet)
{
    char task[1024] = "", mixer[1024] = "", title[80];
    blurry_settings_get(settings, "task", task, sizeof task);
    blurry_settings_get(settings, "mixer", mixer, sizeof mixer);
    snprintf(title, sizeof title, "%s %s", task, mixer);
    progress_view view;
    progress_open(&view, stdout, title, quiet);
    if (blurry_ranks_size() > 1) view.terminal = 0; /* mpirun passes on lines */
    view.pause_at = pause_at;
    blurry_status status = blurry_train(settings, out, progress_show, &view);
    progress_close(&view);
    if (blurry_ranks_rank() > 0) return other_rank(status);
    /* Unreadable input is a mistake of the command line as long as the run had not begun. */
    if (!view.begun) return cli_report_input(status, "train");
    if (status == BLURRY_E_CANCELLED && pause_at > 0 && view.last.step >= pause_at)
        status = BLURRY_OK; /* as asked */
    if (status == BLURRY_OK && !quiet) print_result(&view, out);
    int code = cli_report(status, "train");
    if (status != BLURRY_OK && status != BLURRY_E_CANCELLED && status != BLURRY_E_NUMERIC)
        blurry_ranks_abort(code);
    return code;
}

int cmd_train(int argc, char **argv)
{
    if (options_help_wanted(argc, argv)) {
        print_help();
        return CLI_OK;
    }
    const char *positional[2], *out = NULL, *pause = NULL;
    long long pause_at = 0;
    int quiet = 0;
    const cli_option own[] = {{.name = "--out", .value = &out},
                              {.name = "--pause-at", .value = &pause},
                              {.name = "--quiet", .flag = &quiet}};
    cli_line line = {
        .verb = "train", .own = own, .own_count = 3, .positional = positional, .positional_max = 2};
    blurry_status status = blurry_settings_create(&line.settings);
    if (status != BLURRY_OK) return cli_report(status, "train");
    int code = options_parse(&line, argc, argv);
    if (code == CLI_OK) code = settle_task(line.settings, positional, line.positional_count);
    if (code == CLI_OK && !out) code = options_usage("train", "--out DIR is missing");
    if (code == CLI_OK && pause && (!options_integer(pause, &pause_at) || pause_at < 1))
        code = options_usage("train", "pause-at is '%s': give a step from 1 on", pause);
    if (code == CLI_OK) code = cli_report(blurry_ranks_open(), "train");
    if (code == CLI_OK) code = train(line.settings, out, pause_at, quiet);
    blurry_ranks_close();
    blurry_settings_destroy(&line.settings);
    return code;
}
