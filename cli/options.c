/* Command lines of verbs: see options.h. */
#include "cli/options.h"
#include "blurry/train.h"
#include "cli/cli.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* In the order they are applied. OWN needs no order. */
typedef enum option_kind { KIND_PRESET, KIND_CONFIG, KIND_SETTING, KIND_OWN } option_kind;

int options_usage(const char *verb, const char *format, ...)
{
    va_list args;
    fprintf(stderr, "blurry: %s: ", verb);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fprintf(stderr, "; `blurry %s --help` describes the options\n", verb);
    return CLI_USAGE;
}

int options_integer(const char *text, long long *value)
{
    char *end;
    errno = 0;
    *value = strtoll(text, &end, 10);
    return end != text && !*end && !errno;
}

int options_number(const char *text, double *value)
{
    char *end;
    *value = strtod(text, &end);
    return end != text && !*end;
}

int options_help_wanted(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h")) return 1;
    return 0;
}

/* The option's name without value and dashes, '-' inside it turned to '_': "--weight-decay=0" is
 * "weight_decay". */
static void option_key(const char *option, char *key, size_t capacity)
{
    size_t n = strcspn(option + 2, "=");
    if (n >= capacity) n = capacity - 1;
    for (size_t k = 0; k < n; k++) key[k] = option[2 + k] == '-' ? '_' : option[2 + k];
    key[n] = 0;
}

static const cli_option *find_own(const cli_line *line, const char *key)
{
    char own[64];
    for (int i = 0; i < line->own_count; i++) {
        option_key(line->own[i].name, own, sizeof own);
        if (!strcmp(own, key)) return &line->own[i];
    }
    return NULL;
}

static option_kind classify(const cli_option *own, const char *key)
{
    return own                      ? KIND_OWN
           : !strcmp(key, "preset") ? KIND_PRESET
           : !strcmp(key, "config") ? KIND_CONFIG
                                    : KIND_SETTING;
}

static blurry_status apply(blurry_settings *settings, option_kind kind, const char *key, const char *value)
{
    if (kind == KIND_PRESET) return blurry_preset_apply(settings, value);
    if (kind == KIND_CONFIG) return blurry_settings_load_yaml(settings, value);
    if (!strcmp(key, "set")) return blurry_settings_assign(settings, value);
    return blurry_settings_set(settings, key, value);
}

/* The option at argv[*i], applied when it is of this kind; *i moves past it and its value. */
static int take_option(cli_line *line, int argc, char **argv, int *i, option_kind kind)
{
    const char *option = argv[(*i)++];
    char key[64];
    option_key(option, key, sizeof key);
    const cli_option *own = find_own(line, key);
    const char *equals = strchr(option, '=');
    if (own && own->flag) {
        if (equals) return options_usage(line->verb, "option %s takes no value", option);
        *own->flag = 1;
        return CLI_OK;
    }
    if (!own && !line->settings) return options_usage(line->verb, "option %s is not known", option);
    if (!equals && (*i >= argc || !strncmp(argv[*i], "--", 2)))
        return options_usage(line->verb, "option %s is not known, or its value is missing", option);
    const char *value = equals ? equals + 1 : argv[(*i)++];
    if (classify(own, key) != kind) return CLI_OK;
    if (own) {
        *own->value = value;
        return CLI_OK;
    }
    /* A setting that cannot be read or is wrong: nothing was done yet, so it is a mistake of the command
     * line. */
    return apply(line->settings, kind, key, value) == BLURRY_OK
               ? CLI_OK
               : (cli_report(BLURRY_E_INVALID, line->verb), CLI_USAGE);
}

int options_parse(cli_line *line, int argc, char **argv)
{
    for (option_kind kind = KIND_PRESET; kind <= KIND_OWN; kind++) {
        line->positional_count = 0;
        for (int i = 1; i < argc;) {
            if (!strncmp(argv[i], "--", 2) && argv[i][2]) {
                int code = take_option(line, argc, argv, &i, kind);
                if (code != CLI_OK) return code;
            } else if (line->positional_count < line->positional_max)
                line->positional[line->positional_count++] = argv[i++];
            else
                return options_usage(line->verb, "argument '%s' is not understood", argv[i]);
        }
    }
    return CLI_OK;
}

void options_help(unsigned groups)
{
    const char *group = "";
    for (size_t i = 0; i < blurry_settings_count(); i++) {
        blurry_setting_info info;
        if (blurry_settings_describe(i, &info) != BLURRY_OK || !(info.group_bit & groups)) continue;
        if (strcmp(group, info.group)) printf("\n%s settings:\n", info.group);
        group = info.group;
        printf("  %-15s %s", info.name, info.help);
        if (*info.applies) printf(" [%s]", info.applies);
        printf(" (%s%s%s)\n", *info.fallback ? info.fallback : "empty", *info.range ? "; " : "", info.range);
    }
}
