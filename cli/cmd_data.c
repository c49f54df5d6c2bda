/* blurry data TASK ...: what a task's data looks like, its statistics and hash, and writing it to a file. */
#include "blurry/task.h"
#include "cli/cli.h"
#include "cli/options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct request {
    const char *out, *show, *split_name, *samples;
    int force, stats, hash, dry_run, json;
    blurry_split split;
    long long show_index, sample_limit;
} request;

static void print_help(void)
{
    printf("usage: blurry data TASK [FILE] [options] [--set key=value ...] [--key value ...]\n\n"
           "Without options: what the data would be. Samples depend on the settings below alone.\n\n"
           "  --out FILE     write all samples to a safetensors file and print its hash; train on it with\n"
           "                 --data FILE\n"
           "  --force        replace FILE where it exists\n"
           "  --hash         print the SHA-256 of all samples without writing them\n"
           "  --show N       print sample N of the split\n"
           "  --stats        print the statistics of the split\n"
           "  --split NAME   train, val or test (default val)\n"
           "  --samples N    look at the first N samples of the split only (--stats; default all)\n"
           "  --json         statistics as JSON\n"
           "  --dry-run      check the settings and print what would be written, write nothing\n\n"
           "tasks:\n");
    for (int i = 0; i < blurry_task_count(); i++)
        printf("  %-15s %s\n", blurry_task_name(i), blurry_task_summary(i));
    printf("\nsettings; in brackets default and range:\n");
    options_help(BLURRY_SETTINGS_TASK);
}

/* ---- --show ---- */

/* One token as a reader wants to see it. */
static void print_token(const char *task, int32_t token)
{
    if (!strcmp(task, "regbench")) {
        putchar(token == 0 ? '_' : token == 19 ? '|' : 'a' + token - 1);
    } else if (!strcmp(task, "text")) {
        if (token == '\n')
            fputs("\\n", stdout);
        else if (token == '\\')
            fputs("\\\\", stdout);
        else if (token >= 32 && token < 127)
            putchar(token);
        else
            printf("\\x%02x", (unsigned)token);
    } else {
        printf("%d", token);
    }
}

/* Tokens in lines; where a position carries a label, "token>label" for numbers, plain text otherwise. */
static void print_sample(const blurry_task_info *info, const blurry_samples *s)
{
    int numbers = !strcmp(info->name, "mqar");
    int64_t row = 0, per_line = numbers ? 16 : 80;
    for (int64_t t = 0; t < s->length; t++) {
        if (t % per_line == 0)
            printf("%s%6lld  ", t ? "\n" : "", (long long)t);
        else if (numbers)
            putchar(' ');
        print_token(info->name, s->tokens[t]);
        int labelled = row < s->row_count && s->rows[row] == t;
        if (labelled && numbers) printf(">%d", s->labels[row]);
        row += labelled;
    }
    putchar('\n');
    if (numbers || s->row_count == 0) return;
    printf("labels: the next token at %lld of %lld positions; the last one is ", (long long)s->row_count,
           (long long)s->length);
    print_token(info->name, s->labels[s->row_count - 1]);
    if (s->legal) {
        printf(", legal there:");
        for (int32_t v = 0; v < info->vocabulary; v++)
            if (s->legal[s->row_count - 1] >> v & 1) putchar(' '), print_token(info->name, v);
    }
    putchar('\n');
}

static int show(const blurry_task *task, const blurry_task_info *info, const request *r)
{
    blurry_samples *one;
    blurry_status status = blurry_samples_create(&one, task, 1);
    if (status != BLURRY_OK) return cli_report(status, "data");
    int64_t index = r->show_index;
    status = blurry_task_fill(task, r->split, &index, 1, 0, one);
    if (status == BLURRY_OK) {
        printf("%s sample %lld: %lld tokens, %lld labels\n", blurry_split_name(r->split), (long long)index,
               (long long)one->length, (long long)one->row_count);
        print_sample(info, one);
    }
    blurry_samples_destroy(&one);
    return cli_report(status, "data");
}

/* ---- --stats, --hash, --out ---- */

static int print_statistics(const blurry_task *task, const blurry_task_info *info, const request *r)
{
    blurry_statistic list[BLURRY_STATISTICS_MAX];
    int count;
    blurry_status status = blurry_task_statistics(task, r->split, r->sample_limit, list, &count);
    if (status != BLURRY_OK) return cli_report(status, "data");
    if (r->json)
        printf("{\"task\": \"%s\", \"split\": \"%s\"", info->name, blurry_split_name(r->split));
    else
        printf("statistics of %s:\n", blurry_split_name(r->split));
    for (int i = 0; i < count; i++)
        if (r->json)
            printf(", \"%s\": %.10g", list[i].name, list[i].value);
        else
            printf("  %-22s %10.6g  %s\n", list[i].name, list[i].value, list[i].meaning);
    if (r->json) puts("}");
    return CLI_OK;
}

static void print_summary(const blurry_task_info *info)
{
    printf("task %s: vocabulary %lld, up to %lld tokens and %lld labels per sample\n", info->name,
           (long long)info->vocabulary, (long long)info->length, (long long)info->max_labels);
    for (int i = 0; i < BLURRY_SPLITS; i++)
        printf("  %-5s %10lld samples\n", blurry_split_name((blurry_split)i), (long long)info->samples[i]);
}

static int print_hash(const blurry_task *task)
{
    char hex[65];
    blurry_status status = blurry_task_hash(task, hex);
    if (status == BLURRY_OK) printf("sha256 %s\n", hex);
    return cli_report(status, "data");
}

static int carry_out(const blurry_task *task, const request *r)
{
    blurry_task_info info;
    blurry_task_describe(task, &info);
    int code = CLI_OK;
    if (!r->json) print_summary(&info);
    if (r->show) code = show(task, &info, r);
    if (code == CLI_OK && r->stats) code = print_statistics(task, &info, r);
    if (code == CLI_OK && r->out && !r->dry_run) {
        code = cli_report(blurry_task_save(task, r->out), "data");
        if (code == CLI_OK && !r->json) printf("wrote %s\n", r->out);
    }
    if (code == CLI_OK && !r->json && (r->hash || (r->out && !r->dry_run))) code = print_hash(task);
    return code;
}

/* ---- the command line ---- */

static int check_options(request *r)
{
    r->split = BLURRY_VAL;
    if (r->split_name && blurry_split_parse(r->split_name, &r->split) != BLURRY_OK)
        return options_usage("data", "--%s", blurry_last_error());
    if (r->show && (!options_integer(r->show, &r->show_index) || r->show_index < 0))
        return options_usage("data", "--show is '%s': give a sample's number from 0 on", r->show);
    if (r->samples && (!options_integer(r->samples, &r->sample_limit) || r->sample_limit < 1))
        return options_usage("data", "--samples is '%s': give a whole number from 1 on", r->samples);
    if (r->json && !r->stats) return options_usage("data", "--json is for --stats");
    if (r->out && !r->force && access(r->out, F_OK) == 0)
        return options_usage("data", "--out is %s: it exists; name another file, or add --force", r->out);
    return CLI_OK;
}

static int settle_task(blurry_settings *settings, const char *const *positional, int count)
{
    if (count < 1) return options_usage("data", "the task is missing");
    if (count > 1 && strcmp(positional[0], "text"))
        return options_usage("data", "argument '%s' is not understood", positional[1]);
    blurry_status status = blurry_settings_set(settings, "task", positional[0]);
    if (status == BLURRY_OK && count > 1) status = blurry_settings_set(settings, "file", positional[1]);
    return cli_report_input(status, "data");
}

int cmd_data(int argc, char **argv)
{
    if (options_help_wanted(argc, argv)) {
        print_help();
        return CLI_OK;
    }
    request r = {0};
    const char *positional[2];
    const cli_option own[] = {
        {.name = "--out", .value = &r.out},          {.name = "--force", .flag = &r.force},
        {.name = "--show", .value = &r.show},        {.name = "--stats", .flag = &r.stats},
        {.name = "--split", .value = &r.split_name}, {.name = "--samples", .value = &r.samples},
        {.name = "--hash", .flag = &r.hash},         {.name = "--dry-run", .flag = &r.dry_run},
        {.name = "--json", .flag = &r.json},
    };
    cli_line line = {.verb = "data",
                     .own = own,
                     .own_count = sizeof own / sizeof own[0],
                     .positional = positional,
                     .positional_max = 2};
    blurry_status status = blurry_settings_create(&line.settings);
    if (status != BLURRY_OK) return cli_report(status, "data");
    int code = options_parse(&line, argc, argv);
    if (code == CLI_OK) code = settle_task(line.settings, positional, line.positional_count);
    if (code == CLI_OK) code = check_options(&r);
    if (code == CLI_OK) {
        blurry_task *task;
        code = cli_report_input(blurry_task_create(&task, line.settings), "data");
        if (code == CLI_OK) code = carry_out(task, &r);
        blurry_task_destroy(&task);
    }
    blurry_settings_destroy(&line.settings);
    return code;
}
