/* `blurry report RUNS... --out report.html`: one page about trained models, with PNG and CSV copies on
 * request. */
#include "cli/cli.h"
#include "cli/figure.h"
#include "cli/options.h"
#include "cli/report.h"
#include "cli/report_db.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "usage: blurry report RUN... --out FILE.html [--png DIR] [--csv DIR]\n"
    "       blurry report --db FILE.db [--sweep NAME] [--figure KIND] --out FILE.html [--png DIR] [--csv "
    "DIR]\n"
    "  RUN        a directory that `blurry train` made; runs that differ in the seed alone are taken "
    "together\n"
    "  --out      the page: one file, no script, nothing loaded from anywhere (default report.html)\n"
    "  --png DIR  copies of all figures as PNG\n"
    "  --csv DIR  every number of the page as CSV (the page itself holds the same tables)\n"
    "  --db       the results of sweeps (`blurry sweep`): one figure for each, or for the one that --sweep "
    "names;\n"
    "             --figure pareto, state, resolution, width or choices draws another than its file asks "
    "for\n\n"
    "gnuplot draws the figures (Debian: gnuplot-nox).\n";

typedef struct request {
    const char *out, *png, *csv;
} request;

static int save_copy(const char *folder, const char *name, const char *ending, const void *bytes, size_t size)
{
    char *path = NULL;
    if (asprintf(&path, "%s/%s.%s", folder, name, ending) < 0) return CLI_FAILED;
    int rc = output_save(path, bytes, size);
    free(path);
    return rc;
}

/* Renders for the page and, where wanted, as PNG; frees the plot. */
static int finish_drawing(const request *q, report_drawing *d, const char *name, plot *p)
{
    size_t size;
    snprintf(d->name, sizeof d->name, "%s", name);
    int rc = plot_render(p, PLOT_INLINE, PLOT_LIGHT, name, &d->svg, &size);
    if (rc == CLI_OK && q->png) {
        char *bytes;
        rc = plot_render(p, PLOT_PNG, PLOT_LIGHT, name, &bytes, &size);
        if (rc == CLI_OK) rc = save_copy(q->png, name, "png", bytes, size);
        free(bytes);
    }
    plot_free(p);
    return rc;
}

static int draw_numbers(const request *q, report_page *page)
{
    plot p = {0};
    int rc = report_plot_training(page->report, &p);
    if (rc == CLI_OK)
        rc = finish_drawing(q, &page->training, "training", &p);
    else
        plot_free(&p);
    if (rc != CLI_OK) return rc;
    rc = report_plot_state(page->report, &p);
    if (rc == CLI_OK)
        rc = finish_drawing(q, &page->state, "state", &p);
    else
        plot_free(&p);
    return rc;
}

static int draw_masks(const request *q, report_page *page)
{
    page->mask_drawings = calloc(page->mask_count + 1, sizeof *page->mask_drawings);
    if (!page->mask_drawings) return CLI_FAILED;
    for (size_t i = 0; i < page->mask_count; i++) {
        plot p = {0};
        char name[48];
        snprintf(name, sizeof name, "mask%zu", i + 1);
        int rc = report_plot_mask(&page->masks[i], &p);
        if (rc == CLI_OK)
            rc = finish_drawing(q, &page->mask_drawings[i], name, &p);
        else
            plot_free(&p);
        if (rc != CLI_OK) return rc;
    }
    return CLI_OK;
}

/* The kernels of the first blurry group, of at most 16 modes so that they can be told apart. */
static int draw_kernels(const request *q, report_page *page, FILE *csv)
{
    const report *r = page->report;
    const run *shown = NULL;
    for (size_t i = 0; !shown && i < r->group_count; i++)
        if (strstr(r->groups[i].mixer, "blurry")) shown = &r->runs[r->groups[i].runs[0]];
    if (!shown) return CLI_OK;
    char text[1024];
    int64_t modes = run_integer(shown, "modes"), S = 2 * modes - 1;
    double period = strtod(run_option(shown, "period", text), NULL);
    double resolution = *text ? period / (double)S : strtod(run_option(shown, "resolution", text), NULL);
    page->modes = modes < 2 ? 2 : modes > 16 ? 16 : modes;
    page->period = fmin(fmax(resolution, 1), 8) * (double)(2 * page->modes - 1);
    plot p = {0};
    fprintf(csv, "series,t,slot,value\n");
    int rc = plot_open(&p, 460, 260);
    if (rc == CLI_OK) rc = figure_kernels_panel(&p, csv, "", page->modes, page->period, 54, 40, 390);
    if (rc == CLI_OK)
        rc = finish_drawing(q, &page->kernels, "kernels", &p);
    else
        plot_free(&p);
    if (rc != CLI_OK) return rc;
    rc = plot_open(&p, 460, 260);
    if (rc == CLI_OK) rc = figure_slots_panel(&p, csv, "", page->modes, page->period, 1, 54, 40, 390);
    if (rc == CLI_OK)
        rc = finish_drawing(q, &page->slots, "slots", &p);
    else
        plot_free(&p);
    return rc;
}

static int fill_tables(report_page *page)
{
    for (int i = 0; i < REPORT_TABLES; i++)
        if (output_open(&page->tables[i]) != CLI_OK) return CLI_FAILED;
    report_csv_groups(page->report, page->tables[REPORT_GROUPS].stream);
    report_csv_runs(page->report, page->tables[REPORT_RUNS].stream);
    report_csv_curves(page->report, page->tables[REPORT_CURVES].stream);
    if (page->mask_count) report_csv_masks(page->masks, page->mask_count, page->tables[REPORT_MASKS].stream);
    return CLI_OK;
}

static int save_tables(const request *q, report_page *page)
{
    int rc = CLI_OK;
    for (int i = 0; rc == CLI_OK && i < REPORT_TABLES; i++) {
        output_text *table = &page->tables[i];
        rc = output_close(table);
        if (rc == CLI_OK && q->csv && table->size)
            rc = save_copy(q->csv, report_table_names[i], "csv", table->text, table->size);
    }
    return rc;
}

static void free_page(report_page *page)
{
    free(page->training.svg);
    free(page->state.svg);
    free(page->kernels.svg);
    free(page->slots.svg);
    for (size_t i = 0; page->mask_drawings && i < page->mask_count; i++) free(page->mask_drawings[i].svg);
    free(page->mask_drawings);
    for (int i = 0; i < REPORT_TABLES; i++) output_free(&page->tables[i]);
}

/* All work comes first; the page replaces an older one only when it is complete. */
static int make_page(const request *q, const report *r)
{
    report_mask *masks = NULL;
    report_page page = {.report = r};
    output_text html = {0};
    int rc = report_masks(r, &masks, &page.mask_count);
    page.masks = masks;
    if (rc == CLI_OK && q->png) rc = output_folder(q->png);
    if (rc == CLI_OK && q->csv) rc = output_folder(q->csv);
    if (rc == CLI_OK) rc = fill_tables(&page);
    if (rc == CLI_OK) rc = draw_numbers(q, &page);
    if (rc == CLI_OK) rc = draw_masks(q, &page);
    if (rc == CLI_OK) rc = draw_kernels(q, &page, page.tables[REPORT_KERNELS].stream);
    if (rc == CLI_OK) rc = save_tables(q, &page);
    if (rc == CLI_OK) rc = output_open(&html);
    if (rc == CLI_OK) {
        report_write_html(&page, html.stream);
        rc = output_close_and_save(&html, q->out);
    }
    free_page(&page);
    report_masks_free(masks, page.mask_count);
    return rc;
}

/* Reads the runs and makes the page; the runs are freed. */
static int report_runs(const request *q, const char *const *paths, size_t count)
{
    run *runs = calloc(count, sizeof *runs);
    if (!runs) return CLI_FAILED;
    report r = {.runs = runs};
    int rc = CLI_OK;
    while (rc == CLI_OK && r.run_count < count) {
        rc = run_read(paths[r.run_count], &runs[r.run_count]);
        if (rc == CLI_OK) r.run_count++;
    }
    if (rc == CLI_OK) rc = report_build(&r, runs, count);
    if (rc == CLI_OK) rc = make_page(q, &r);
    if (rc == CLI_OK) printf("%s\n", q->out);
    report_free(&r);
    return rc;
}

int cmd_report(int argc, char **argv)
{
    if (options_help_wanted(argc, argv)) {
        fputs(usage, stdout);
        return CLI_OK;
    }
    request q = {.out = "report.html"};
    report_db_request db = {0};
    const char **paths = calloc((size_t)argc, sizeof *paths);
    if (!paths) return CLI_FAILED;
    const cli_option own[] = {
        {.name = "--out", .value = &q.out},      {.name = "--png", .value = &q.png},
        {.name = "--csv", .value = &q.csv},      {.name = "--db", .value = &db.database},
        {.name = "--sweep", .value = &db.sweep}, {.name = "--figure", .value = &db.figure}};
    cli_line line = {.verb = "report",
                     .own = own,
                     .own_count = sizeof own / sizeof own[0],
                     .positional = paths,
                     .positional_max = argc};
    int rc = options_parse(&line, argc, argv);
    db.out = q.out;
    db.png = q.png;
    db.csv = q.csv;
    if (rc == CLI_OK && db.database && line.positional_count)
        rc = options_usage("report", "'%s': give runs or --db, not both", paths[0]);
    else if (rc == CLI_OK && db.database)
        rc = report_db(&db);
    else if (rc == CLI_OK && line.positional_count == 0)
        rc = options_usage("report", "name at least one run");
    else if (rc == CLI_OK)
        rc = report_runs(&q, paths, (size_t)line.positional_count);
    free(paths);
    return rc;
}
