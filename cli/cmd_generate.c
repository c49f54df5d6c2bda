/* blurry generate MODEL --prompt TEXT: continues a text, byte by byte, with constant memory. */
#include "blurry/generate.h"
#include "blurry/train.h"
#include "cli/cli.h"
#include "cli/options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct generate_request {
    const char *path, *prompt, *bytes, *temperature, *top_p, *seed, *save, *load, *threads, *max_length;
    const char *device, *precision;
    long long count, limit, seed_value;
    blurry_sampling sampling;
} generate_request;

static void print_help(void)
{
    printf(
        "usage: blurry generate DIR|MODEL --prompt TEXT [--bytes N] [--temperature X] [--top-p P] [--seed "
        "N]\n"
        "                       [--save-state FILE] [--load-state FILE] [--max-length N] [--threads N]\n"
        "                       [--device cpu|cuda] [--precision f32|f64|bf16]\n\n"
        "Continues the prompt with a model that `blurry train text` made and writes the new bytes to "
        "standard output.\n"
        "  --bytes N            how many (200)\n"
        "  --temperature X      0: always the most probable byte; below 1 safer, above 1 wilder (1)\n"
        "  --top-p P            draw from the fewest bytes that hold this much probability (1)\n"
        "  --seed N             of the drawing (0)\n"
        "  --save-state FILE    afterwards save the state: position, memory, last byte and sampling\n"
        "  --load-state FILE    go on from a saved state, exactly as if there had been no break; the prompt, "
        "if any,\n"
        "                       is appended to it, and sampling options given here replace the saved ones\n"
        "  --max-length N       room for this many bytes in layers whose memory grows (softmax; default: the "
        "length\n"
        "                       it was trained with); a state is restored with the one it was saved with\n");
}

static int read_numbers(generate_request *r)
{
    long long threads;
    r->count = 200;
    r->limit = 0;
    r->seed_value = 0;
    r->sampling = (blurry_sampling){.temperature = 1, .top_p = 1};
    if (r->bytes && (!options_integer(r->bytes, &r->count) || r->count < 0))
        return options_usage("generate", "bytes is '%s': give a whole number >= 0", r->bytes);
    if (r->max_length && (!options_integer(r->max_length, &r->limit) || r->limit < 1))
        return options_usage("generate", "max-length is '%s': give a whole number >= 1", r->max_length);
    if (r->seed && (!options_integer(r->seed, &r->seed_value) || r->seed_value < 0))
        return options_usage("generate", "seed is '%s': give a whole number >= 0", r->seed);
    if (r->threads && (!options_integer(r->threads, &threads) || threads < 0))
        return options_usage("generate", "threads is '%s': give a whole number >= 0", r->threads);
    if (r->temperature && !options_number(r->temperature, &r->sampling.temperature))
        return options_usage("generate", "temperature is '%s': give a number >= 0", r->temperature);
    if (r->top_p && !options_number(r->top_p, &r->sampling.top_p))
        return options_usage("generate", "top-p is '%s': give a number above 0, at most 1", r->top_p);
    r->sampling.seed = (uint64_t)r->seed_value;
    return CLI_OK;
}

/* Sampling options on the line win over those in the state. */
static blurry_status restore(const generate_request *r, blurry_session *session)
{
    blurry_sampling saved;
    blurry_status status = blurry_session_restore(session, r->load);
    if (status != BLURRY_OK) return status;
    blurry_session_get_sampling(session, &saved);
    if (r->temperature) saved.temperature = r->sampling.temperature;
    if (r->top_p) saved.top_p = r->sampling.top_p;
    if (r->seed) saved.seed = r->sampling.seed;
    return blurry_session_set_sampling(session, &saved);
}

static blurry_status feed_prompt(const generate_request *r, blurry_session *session)
{
    const char *prompt = r->prompt ? r->prompt : "";
    if (!*prompt && !r->load) prompt = "\n"; /* something must come before the first byte */
    size_t n = strlen(prompt);
    int32_t *tokens = malloc((n + 1) * sizeof *tokens);
    if (!tokens) return BLURRY_E_MEMORY;
    for (size_t i = 0; i < n; i++) tokens[i] = (unsigned char)prompt[i];
    blurry_status status = blurry_session_feed(session, tokens, (int64_t)n);
    free(tokens);
    return status;
}

static int generate(const generate_request *r, const blurry_model *model)
{
    blurry_session *session = NULL;
    blurry_status status = blurry_session_create(&session, model, &r->sampling, r->limit);
    if (status == BLURRY_OK && r->load) status = restore(r, session);
    if (status == BLURRY_OK) status = feed_prompt(r, session);
    int code = cli_report_input(status, "generate");
    for (long long i = 0; i < r->count && status == BLURRY_OK; i++) {
        int32_t token;
        status = blurry_session_next(session, &token);
        if (status == BLURRY_OK) putchar((unsigned char)token);
    }
    if (code == CLI_OK && status == BLURRY_OK && r->save) status = blurry_session_save(session, r->save);
    if (code == CLI_OK) code = cli_report(status, "generate");
    if (fflush(stdout) != 0 && code == CLI_OK) {
        fprintf(stderr, "blurry: generate: cannot write to standard output\n");
        code = CLI_FAILED;
    }
    blurry_session_destroy(&session);
    return code;
}

static int load_and_generate(const generate_request *r)
{
    blurry_settings *settings = NULL;
    blurry_model *model = NULL;
    char task[1024] = "";
    blurry_status status = blurry_checkpoint_settings(r->path, &settings);
    if (status != BLURRY_OK) return cli_report_input(status, "generate");
    int code = CLI_OK;
    blurry_settings_get(settings, "task", task, sizeof task);
    if (strcmp(task, "text"))
        code = options_usage("generate", "%s is a checkpoint of task %s: a model of task text is needed",
                             r->path, task);
    const char *const run[][2] = {
        {"threads", r->threads}, {"device", r->device}, {"precision", r->precision}};
    for (size_t i = 0; i < sizeof run / sizeof run[0] && code == CLI_OK; i++)
        if (run[i][1])
            code = cli_report_input(blurry_settings_set(settings, run[i][0], run[i][1]), "generate");
    if (code == CLI_OK)
        code = cli_report_input(blurry_checkpoint_load(r->path, settings, 1, &model), "generate");
    if (code == CLI_OK) code = generate(r, model);
    blurry_model_destroy(&model);
    blurry_settings_destroy(&settings);
    return code;
}

int cmd_generate(int argc, char **argv)
{
    if (options_help_wanted(argc, argv)) {
        print_help();
        return CLI_OK;
    }
    generate_request r = {0};
    const cli_option own[] = {
        {.name = "--prompt", .value = &r.prompt},       {.name = "--bytes", .value = &r.bytes},
        {.name = "--seed", .value = &r.seed},           {.name = "--temperature", .value = &r.temperature},
        {.name = "--top-p", .value = &r.top_p},         {.name = "--max-length", .value = &r.max_length},
        {.name = "--save-state", .value = &r.save},     {.name = "--load-state", .value = &r.load},
        {.name = "--threads", .value = &r.threads},     {.name = "--device", .value = &r.device},
        {.name = "--precision", .value = &r.precision},
    };
    cli_line line = {.verb = "generate",
                     .own = own,
                     .own_count = sizeof own / sizeof own[0],
                     .positional = &r.path,
                     .positional_max = 1};
    int code = options_parse(&line, argc, argv);
    if (code == CLI_OK && !r.path)
        code = options_usage("generate", "the run directory or model file is missing");
    if (code == CLI_OK && !r.prompt && !r.load)
        code = options_usage("generate", "--prompt TEXT (or --load-state FILE) is missing");
    if (code == CLI_OK) code = read_numbers(&r);
    return code == CLI_OK ? load_and_generate(&r) : code;
}
