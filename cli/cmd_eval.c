/* blurry eval PATH: the metrics of a checkpoint on its own task. */
#include "blurry/train.h"
#include "cli/cli.h"
#include "cli/eval_logits.h"
#include "cli/options.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static void print_help(void)
{
    printf("usage: blurry eval DIR|MODEL [--split val|test] [--json] [--logits FILE] [--key value ...]\n\n"
           "Evaluates a checkpoint on the task it was trained for and prints loss, accuracy and what else "
           "the task defines.\n"
           "Of a run directory the best model is taken, or the latest where none was kept. Settings given "
           "here replace\n"
           "the checkpoint's, for example --eval_samples 100, --length 1024, --threads 1.\n"
           "  --logits FILE   also write the sequences with labels and logits of every labelled position, as "
           "safetensors:\n"
           "                  tokens [N, L], rows [R] (sequence * L + position), labels [R], logits [R, "
           "vocabulary]\n");
}

typedef struct named_metric {
    const char *name;
    double value;
} named_metric;

static void print_metrics(const char *path, const char *split, const blurry_metrics *m, int as_json)
{
    const named_metric list[] = {{"loss", m->loss},
                                 {"accuracy", m->accuracy},
                                 {"exact_match", m->exact_match},
                                 {"l1", m->l1},
                                 {"bits_per_byte", m->bits_per_byte}};
    json_t *object = json_pack("{s:s, s:s, s:I, s:I}", "model", path, "split", split, "sequences",
                               (json_int_t)m->sequences, "labels", (json_int_t)m->labels);
    if (!as_json)
        printf("%s, %s: %lld sequences, %lld labels\n", path, split, (long long)m->sequences,
               (long long)m->labels);
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
        if (!isfinite(list[i].value)) continue; /* the task does not define it */
        json_object_set_new(object, list[i].name, json_real(list[i].value));
        if (!as_json) printf("  %-14s %.6f\n", list[i].name, list[i].value);
    }
    if (as_json) {
        json_dumpf(object, stdout, JSON_COMPACT | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(9));
        putchar('\n');
    }
    json_decref(object);
}

int cmd_eval(int argc, char **argv)
{
    if (options_help_wanted(argc, argv)) {
        print_help();
        return CLI_OK;
    }
    const char *path = NULL, *split = "val", *logits = NULL;
    int as_json = 0;
    const cli_option own[] = {{.name = "--split", .value = &split},
                              {.name = "--logits", .value = &logits},
                              {.name = "--json", .flag = &as_json}};
    cli_line line = {.verb = "eval", .own = own, .own_count = 3, .positional = &path, .positional_max = 1};
    /* First against the defaults, to find the path; then on top of the checkpoint's own settings. */
    blurry_status status = blurry_settings_create(&line.settings);
    if (status != BLURRY_OK) return cli_report(status, "eval");
    int code = options_parse(&line, argc, argv);
    blurry_settings_destroy(&line.settings);
    if (code == CLI_OK && !path) code = options_usage("eval", "the run directory or model file is missing");
    if (code != CLI_OK) return code;
    blurry_metrics metrics;
    status = blurry_checkpoint_settings(path, &line.settings);
    if (status == BLURRY_OK && options_parse(&line, argc, argv) != CLI_OK)
        status = BLURRY_E_INVALID;
    else if (status == BLURRY_OK)
        status = blurry_evaluate(path, split, line.settings, &metrics);
    if (status == BLURRY_OK) print_metrics(path, split, &metrics, as_json);
    if (status == BLURRY_OK && logits) code = eval_save_logits(path, split, line.settings, logits);
    blurry_settings_destroy(&line.settings);
    return status == BLURRY_OK ? code : cli_report_input(status, "eval");
}
