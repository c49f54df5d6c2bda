/* `blurry info FILE`: what a safetensors file holds: configuration, other metadata, tensors, totals. */
#include "blurry/checkpoint.h"
#include "blurry/settings.h"
#include "cli/cli.h"
#include "cli/options.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

static const char usage[] = "usage: blurry info FILE [--json]\n"
                            "  FILE     a model or data file in safetensors format\n"
                            "  --json   everything as one JSON object\n";

enum { VALUE_SHOWN = 160 }; /* bytes of a metadata value that are printed */

/* Text from a file may hold anything: control characters are shown as escapes, never sent to the terminal. */
static void print_text(const char *text, size_t limit)
{
    const char *end = text + strlen(text), *at = text;
    for (; *at; at++) {
        unsigned char c = (unsigned char)*at;
        if ((size_t)(at - text) >= limit && (c & 0xc0) != 0x80) break; /* between characters only */
        if (c == 0xc2 && (unsigned char)at[1] < 0xa0)
            printf("\\u%04x", (unsigned char)*++at); /* U+0080 .. U+009F */
        else if (c == '\n')
            printf("\\n");
        else if (c < 0x20 || c == 0x7f)
            printf("\\u%04x", c);
        else
            putchar(c);
    }
    if (at < end) printf("... (%zu bytes)", (size_t)(end - text));
}

/* 1234567 as "1,234,567". */
static const char *with_commas(int64_t value, char text[32])
{
    char digits[32];
    int n = snprintf(digits, sizeof digits, "%" PRId64, value), used = 0;
    for (int i = 0; i < n; i++) {
        if (i && (n - i) % 3 == 0) text[used++] = ',';
        text[used++] = digits[i];
    }
    text[used] = 0;
    return text;
}

static void totals(const blurry_checkpoint *file, int64_t *elements, size_t *bytes)
{
    *elements = 0;
    *bytes = 0;
    blurry_tensor t;
    for (size_t i = 0; i < blurry_checkpoint_tensor_count(file); i++) {
        if (blurry_checkpoint_tensor(file, i, &t) != BLURRY_OK) continue;
        *elements += t.elements;
        *bytes += t.bytes;
    }
}

static void print_pair(const char *key, const char *value)
{
    printf("  ");
    print_text(key, 40);
    for (size_t n = strlen(key); n < 16; n++) putchar(' ');
    printf(" ");
    print_text(value, VALUE_SHOWN);
    printf("\n");
}

/* ---- configuration: the metadata entry "settings" holds the options as YAML ---- */

/* The settings the file was written with, NULL where it names none or this version cannot read them. */
static blurry_settings *read_settings(const blurry_checkpoint *file)
{
    const char *text = blurry_checkpoint_metadata(file, "settings");
    blurry_settings *settings = NULL;
    if (!text || blurry_settings_create(&settings) != BLURRY_OK) return NULL;
    if (blurry_settings_parse_yaml(settings, text, strlen(text), "settings") != BLURRY_OK)
        blurry_settings_destroy(&settings);
    return settings;
}

/* Whether the text has a line that sets `key`: a file may hold a part of the options. */
static int sets(const char *yaml, const char *key)
{
    size_t n = strlen(key);
    for (const char *line = yaml; line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL)
        if (!strncmp(line, key, n) && line[n] == ':') return 1;
    return 0;
}

/* Calls `each` for every option the file sets, in the order of the help. */
static void walk_settings(const blurry_checkpoint *file, const blurry_settings *settings,
                          void (*each)(const blurry_setting_info *info, const char *value, void *context),
                          void *context)
{
    const char *yaml = blurry_checkpoint_metadata(file, "settings");
    for (size_t i = 0; i < blurry_settings_count(); i++) {
        blurry_setting_info info;
        char value[1024];
        if (blurry_settings_describe(i, &info) == BLURRY_OK && sets(yaml, info.name) &&
            blurry_settings_get(settings, info.name, value, sizeof value) == BLURRY_OK)
            each(&info, value, context);
    }
}

static void print_setting(const blurry_setting_info *info, const char *value, void *context)
{
    const char **group = context;
    if (!*group || strcmp(*group, info->group)) printf("\n%s settings\n", info->group);
    *group = info->group;
    print_pair(info->name, value);
}

static void print_metadata(const blurry_checkpoint *file, int settings_shown)
{
    int titled = 0;
    for (size_t i = 0; i < blurry_checkpoint_metadata_count(file); i++) {
        const char *key, *value;
        if (blurry_checkpoint_metadata_at(file, i, &key, &value) != BLURRY_OK) continue;
        if (settings_shown && !strcmp(key, "settings")) continue;
        if (!titled) printf("\nmetadata\n");
        titled = 1;
        print_pair(key, value);
    }
}

static void print_tensors(const blurry_checkpoint *file)
{
    blurry_tensor t;
    char number[32];
    if (blurry_checkpoint_tensor_count(file)) printf("\ntensors\n");
    for (size_t i = 0; i < blurry_checkpoint_tensor_count(file); i++) {
        if (blurry_checkpoint_tensor(file, i, &t) != BLURRY_OK) continue;
        printf("  ");
        print_text(t.name, 100);
        for (size_t n = strlen(t.name); n < 32; n++) putchar(' ');
        printf(" %-5s [", t.dtype);
        for (int d = 0; d < t.rank; d++) printf("%s%" PRId64, d ? ", " : "", t.shape[d]);
        printf("]  %s\n", with_commas(t.elements, number));
    }
}

static void print_readably(const blurry_checkpoint *file, const char *path)
{
    int64_t elements;
    size_t bytes;
    char number[32], size[32];
    totals(file, &elements, &bytes);
    printf("%s\n  %zu tensors, %s parameters, %s bytes of data\n", path, blurry_checkpoint_tensor_count(file),
           with_commas(elements, number), with_commas((int64_t)bytes, size));
    blurry_settings *settings = read_settings(file);
    const char *group = NULL;
    if (settings) walk_settings(file, settings, print_setting, &group);
    print_metadata(file, settings != NULL);
    blurry_settings_destroy(&settings);
    print_tensors(file);
}

static json_t *tensor_json(const blurry_tensor *t)
{
    json_t *shape = json_array();
    for (int d = 0; d < t->rank; d++) json_array_append_new(shape, json_integer(t->shape[d]));
    return json_pack("{s:s, s:s, s:o, s:I, s:I}", "name", t->name, "dtype", t->dtype, "shape", shape,
                     "elements", (json_int_t)t->elements, "bytes", (json_int_t)t->bytes);
}

static void add_setting(const blurry_setting_info *info, const char *value, void *context)
{
    json_object_set_new(context, info->name, json_string(value));
}

static int print_json(const blurry_checkpoint *file, const char *path)
{
    int64_t elements;
    size_t bytes;
    blurry_tensor t;
    const char *key, *value;
    json_t *tensors = json_array(), *metadata = json_object(), *options = NULL;
    blurry_settings *settings = read_settings(file);
    if (settings) walk_settings(file, settings, add_setting, options = json_object());
    blurry_settings_destroy(&settings);
    totals(file, &elements, &bytes);
    for (size_t i = 0; i < blurry_checkpoint_tensor_count(file); i++)
        if (blurry_checkpoint_tensor(file, i, &t) == BLURRY_OK)
            json_array_append_new(tensors, tensor_json(&t));
    for (size_t i = 0; i < blurry_checkpoint_metadata_count(file); i++)
        if (blurry_checkpoint_metadata_at(file, i, &key, &value) == BLURRY_OK)
            json_object_set_new(metadata, key, json_string(value));
    /* A path need not be UTF-8; then it is left out, as are settings where there are none. */
    json_t *all = json_pack("{s:o*, s:I, s:I, s:o*, s:o, s:o}", "file", json_string(path), "parameters",
                            (json_int_t)elements, "bytes", (json_int_t)bytes, "settings", options, "metadata",
                            metadata, "tensors", tensors);
    int written = all && json_dumpf(all, stdout, JSON_INDENT(2)) == 0;
    json_decref(all);
    if (!written) {
        fprintf(stderr, "blurry: info: cannot write the JSON\n");
        return CLI_FAILED;
    }
    putchar('\n');
    return CLI_OK;
}

int cmd_info(int argc, char **argv)
{
    if (options_help_wanted(argc, argv)) {
        fputs(usage, stdout);
        return CLI_OK;
    }
    const char *path = NULL;
    int json = 0;
    const cli_option own[] = {{"--json", NULL, &json}};
    cli_line line = {.verb = "info", .own = own, .own_count = 1, .positional = &path, .positional_max = 1};
    int code = options_parse(&line, argc, argv);
    if (code != CLI_OK) return code;
    if (!path) return options_usage("info", "name a file");
    blurry_checkpoint *file = NULL;
    blurry_status status = blurry_checkpoint_open(&file, path);
    if (status != BLURRY_OK) return cli_report_input(status, "info");
    if (json)
        code = print_json(file, path);
    else
        print_readably(file, path);
    blurry_checkpoint_close(&file);
    if (fflush(stdout) != 0 || ferror(stdout)) {
        fprintf(stderr, "blurry: info: cannot write the output\n");
        return CLI_FAILED;
    }
    return code;
}
