/* `blurry figure fig1|fig2`: the operator's kernels and masks as SVG and PNG. */
#include "cli/cli.h"
#include "cli/figure.h"
#include "cli/options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "usage: blurry figure fig1|fig2 [options]\n"
    "  fig1   the Fourier modes, the Dirichlet kernels they make, and what the slots hold at T = S and T > "
    "S\n"
    "  fig2   attention masks: full attention, T = L = S, L > T = S, T > S, over slots and over tokens\n\n"
    "  --out FILE        FILE.svg or FILE.png; without either ending both are written (default: fig1, fig2)\n"
    "  --modes M         modes, S = 2M-1 slots (default 8)\n"
    "  --resolution R    T/S of the blurred panels, from 1 to 8 (default 2)\n"
    "  --seed N          of the keys and queries that are shown (default 1)\n"
    "  --theme NAME      light or dark (default light)\n"
    "  --csv FILE        every number of the figure\n\n"
    "gnuplot draws them (Debian: gnuplot-nox).\n";

typedef struct request {
    figure_options figure;
    plot_theme theme;
    const char *out, *csv;
} request;

double figure_uniform(uint64_t seed, uint64_t index)
{
    /* splitmix64, counter-based */
    uint64_t x = seed * 0xd1342543de82ef95u + (index + 1) * 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return (double)((x ^ (x >> 31)) >> 11) * 0x1p-53;
}

static int parse(request *r, const char *modes, const char *resolution, const char *seed, const char *theme)
{
    long long whole;
    if (modes) {
        if (!options_integer(modes, &whole) || whole < 2 || whole > 64)
            return options_usage("figure", "--modes is '%s': give a whole number from 2 to 64", modes);
        r->figure.modes = whole;
    }
    if (resolution && (!options_number(resolution, &r->figure.resolution) ||
                       !(r->figure.resolution >= 1 && r->figure.resolution <= 8)))
        return options_usage("figure", "--resolution is '%s': give a number from 1 to 8", resolution);
    if (seed) {
        if (!options_integer(seed, &whole) || whole < 0)
            return options_usage("figure", "--seed is '%s': give a whole number from 0", seed);
        r->figure.seed = (uint64_t)whole;
    }
    if (theme && strcmp(theme, "light") && strcmp(theme, "dark"))
        return options_usage("figure", "--theme is '%s': give light or dark", theme);
    r->theme = theme && !strcmp(theme, "dark") ? PLOT_DARK : PLOT_LIGHT;
    return CLI_OK;
}

static int ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);
    return n > m && !strcmp(text + n - m, end);
}

static int save_as(plot *p, const request *r, plot_format format, const char *path)
{
    int rc = plot_save(p, format, r->theme, "figure", path);
    if (rc == CLI_OK) printf("%s\n", path);
    return rc;
}

static int save(plot *p, const request *r)
{
    if (ends_with(r->out, ".svg")) return save_as(p, r, PLOT_SVG, r->out);
    if (ends_with(r->out, ".png")) return save_as(p, r, PLOT_PNG, r->out);
    char path[4096];
    if (strlen(r->out) + 5 > sizeof path) return options_usage("figure", "--out is too long a name");
    snprintf(path, sizeof path, "%s.svg", r->out);
    int rc = save_as(p, r, PLOT_SVG, path);
    snprintf(path, sizeof path, "%s.png", r->out);
    return rc == CLI_OK ? save_as(p, r, PLOT_PNG, path) : rc;
}

static int draw_and_save(const char *name, const request *r)
{
    output_text csv;
    if (output_open(&csv) != CLI_OK) return CLI_FAILED;
    plot p = {0};
    int rc = !strcmp(name, "fig1") ? figure_kernels(&p, csv.stream, &r->figure)
                                   : figure_masks(&p, csv.stream, &r->figure);
    if (rc == CLI_OK) rc = save(&p, r);
    if (rc == CLI_OK && r->csv) {
        rc = output_close_and_save(&csv, r->csv);
        if (rc == CLI_OK) printf("%s\n", r->csv);
    }
    output_free(&csv);
    plot_free(&p);
    return rc;
}

int cmd_figure(int argc, char **argv)
{
    if (options_help_wanted(argc, argv)) {
        fputs(usage, stdout);
        return CLI_OK;
    }
    request r = {.figure = {.modes = 8, .resolution = 2, .seed = 1}};
    const char *name = NULL, *modes = NULL, *resolution = NULL, *seed = NULL, *theme = NULL;
    const cli_option own[] = {
        {.name = "--out", .value = &r.out},   {.name = "--csv", .value = &r.csv},
        {.name = "--modes", .value = &modes}, {.name = "--resolution", .value = &resolution},
        {.name = "--seed", .value = &seed},   {.name = "--theme", .value = &theme}};
    cli_line line = {.verb = "figure",
                     .own = own,
                     .own_count = sizeof own / sizeof own[0],
                     .positional = &name,
                     .positional_max = 1};
    int rc = options_parse(&line, argc, argv);
    if (rc == CLI_OK && (!name || (strcmp(name, "fig1") && strcmp(name, "fig2"))))
        rc = options_usage("figure", "name one figure, fig1 or fig2");
    if (rc == CLI_OK) rc = parse(&r, modes, resolution, seed, theme);
    if (rc != CLI_OK) return rc;
    if (!r.out) r.out = name;
    return draw_and_save(name, &r);
}
