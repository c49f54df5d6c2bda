/* `blurry state-size`: the paper's Table 1 with numbers, for one or several model widths. */
#include "cli/cli.h"
#include "cli/options.h"
#include "blurry/model.h"
#include "blurry/settings.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "usage: blurry state-size [--width D[,D...]] [--KEY VALUE ...] [--set KEY=VALUE ...] [--json]\n"
    "Elements of the state that one layer of each mixer carries after `length` tokens, for each width.\n"
    "KEY is length or a setting of the list below, of which heads, kv_heads, modes, window, slots, state, "
    "expand_k,\n"
    "expand_v and conv matter. Example:\n"
    "  blurry state-size --width 64,128,256 --heads 2 --modes 32 --window 63 --slots 63\n";

enum { MAX_WIDTHS = 16 };

typedef struct request {
    blurry_settings *settings;
    char widths[MAX_WIDTHS][32];
    int width_count;
    int json;
} request;

/* What the state consists of, in the symbols of the paper's Table 1. */
static const char *formula(const char *mixer)
{
    static const char *const known[][2] = {{"softmax", "H (Dk + Dv) L"},
                                           {"swa", "H (Dk + Dv) min(w, L)"},
                                           {"abc", "H (Dk + Dv) S + H S"},
                                           {"gsa", "H (Dk + Dv) S"},
                                           {"gla", "H Dk Dv"},
                                           {"gdn", "H Dk Dv"},
                                           {"s4d", "d N"},
                                           {"blurry", "H (Dk + Dv) (2M - 1)"},
                                           {"conv", "d (4 - 1) per stream"}};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (!strcmp(mixer, known[i][0])) return known[i][1];
    return "";
}

static int set_widths(request *r, const char *text)
{
    const char *at = text;
    r->width_count = 0;
    for (;;) {
        size_t n = strcspn(at, ",");
        if (r->width_count == MAX_WIDTHS || n >= sizeof r->widths[0]) {
            fprintf(stderr, "blurry state-size: width is '%s': give at most %d numbers\n", text, MAX_WIDTHS);
            return CLI_USAGE;
        }
        char *width = r->widths[r->width_count++];
        memcpy(width, at, n);
        width[n] = 0;
        if (cli_report(blurry_settings_set(r->settings, "width", width), "state-size")) return CLI_USAGE;
        if (!at[n]) return CLI_OK;
        at += n + 1;
    }
}

/* One row: the elements for every width; -1 where the widths do not fit this mixer (the reason goes to
 * stderr). */
static void sizes_of(request *r, const char *mixer, int64_t length, int64_t *elements)
{
    for (int i = 0; i < r->width_count; i++) {
        blurry_status status = blurry_settings_set(r->settings, "width", r->widths[i]);
        if (status == BLURRY_OK) status = blurry_state_size(r->settings, mixer, length, &elements[i]);
        if (status == BLURRY_OK) continue;
        elements[i] = -1;
        fprintf(stderr, "blurry state-size: %s at width %s: %s\n", mixer, r->widths[i], blurry_last_error());
    }
}

/* The short convolution's own row, for one stream of the model's width: what it adds to s4d, which passes
 * one. */
static void sizes_of_convolution(request *r, int64_t length, int64_t *elements)
{
    char chosen[1024];
    int64_t without[MAX_WIDTHS];
    if (blurry_settings_get(r->settings, "conv", chosen, sizeof chosen) != BLURRY_OK) return;
    blurry_settings_set(r->settings, "conv", "false");
    sizes_of(r, "s4d", length, without);
    blurry_settings_set(r->settings, "conv", "true");
    sizes_of(r, "s4d", length, elements);
    blurry_settings_set(r->settings, "conv", chosen);
    for (int i = 0; i < r->width_count; i++) elements[i] = elements[i] < 0 ? -1 : elements[i] - without[i];
}

/* Rows: every mixer, then the short convolution. */
static int row_count(void)
{
    return blurry_mixer_count() + 1;
}

static const char *row(request *r, int index, int64_t length, int64_t *elements)
{
    const char *mixer = blurry_mixer_name(index);
    if (mixer)
        sizes_of(r, mixer, length, elements);
    else
        sizes_of_convolution(r, length, elements);
    return mixer ? mixer : "conv";
}

static void print_heading(const request *r, int64_t length)
{
    static const char *const shown[] = {"heads", "kv_heads", "modes",    "window", "slots",
                                        "state", "expand_k", "expand_v", "conv"};
    printf("State of one layer, in elements, after L = %" PRId64 " tokens (H: key/value heads).\n", length);
    for (size_t i = 0; i < sizeof shown / sizeof shown[0]; i++) {
        char text[1024] = "";
        blurry_settings_get(r->settings, shown[i], text, sizeof text);
        printf("%s%s %s", i ? ", " : "", shown[i], text);
    }
    printf("\n\n%-8s  %-22s", "mixer", "state");
    for (int i = 0; i < r->width_count; i++) printf("  %9s%4s", i ? "" : "d =", r->widths[i]);
    printf("\n");
}

/* Returns CLI_USAGE when no mixer accepts the settings. */
static int print_table(request *r, int64_t length)
{
    int64_t elements[MAX_WIDTHS];
    int good = 0;
    print_heading(r, length);
    for (int m = 0; m < row_count(); m++) {
        const char *mixer = row(r, m, length, elements);
        printf("%-8s  %-22s", mixer, formula(mixer));
        for (int i = 0; i < r->width_count; i++) {
            if (elements[i] < 0)
                printf("  %13s", "-");
            else
                printf("  %13" PRId64, elements[i]);
            good += elements[i] >= 0;
        }
        printf("\n");
    }
    printf(
        "\nconv: the short convolution in front of a mixer; with --conv true the rows above include it.\n");
    return good ? CLI_OK : CLI_USAGE;
}

static int print_json(request *r, int64_t length)
{
    int64_t elements[MAX_WIDTHS];
    json_t *rows = json_array();
    int good = 0;
    for (int m = 0; m < row_count(); m++) {
        const char *mixer = row(r, m, length, elements);
        for (int i = 0; i < r->width_count; i++) {
            json_t *value = elements[i] < 0 ? json_null() : json_integer(elements[i]);
            json_array_append_new(rows, json_pack("{s:s, s:s, s:I, s:I, s:o}", "mixer", mixer, "formula",
                                                  formula(mixer), "width", (json_int_t)atoll(r->widths[i]),
                                                  "length", (json_int_t)length, "elements", value));
            good += elements[i] >= 0;
        }
    }
    int bad = json_dumpf(rows, stdout, JSON_INDENT(2));
    printf("\n");
    json_decref(rows);
    return bad ? CLI_FAILED : good ? CLI_OK : CLI_USAGE;
}

static int print_sizes(request *r, const char *widths)
{
    char text[1024] = "";
    int rc = CLI_OK;
    if (!widths) {
        rc = cli_report(blurry_settings_get(r->settings, "width", text, sizeof text), "state-size");
        widths = text;
    }
    if (rc == CLI_OK) rc = set_widths(r, widths);
    if (rc == CLI_OK)
        rc = cli_report(blurry_settings_get(r->settings, "length", text, sizeof text), "state-size");
    if (rc != CLI_OK) return rc;
    int64_t length = strtoll(text, NULL, 10);
    return r->json ? print_json(r, length) : print_table(r, length);
}

int cmd_state_size(int argc, char **argv)
{
    if (options_help_wanted(argc, argv)) {
        fputs(usage, stdout);
        options_help(BLURRY_SETTINGS_MODEL | BLURRY_SETTINGS_MIXER);
        return CLI_OK;
    }
    request r = {0};
    const char *widths = NULL;
    const cli_option own[] = {{.name = "--width", .value = &widths}, {.name = "--json", .flag = &r.json}};
    cli_line line = {.verb = "state-size", .own = own, .own_count = sizeof own / sizeof own[0]};
    int rc = cli_report(blurry_settings_create(&r.settings), "state-size");
    line.settings = r.settings;
    if (rc == CLI_OK) rc = options_parse(&line, argc, argv);
    if (rc == CLI_OK) rc = print_sizes(&r, widths);
    blurry_settings_destroy(&r.settings);
    return rc;
}
