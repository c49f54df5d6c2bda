/* `blurry report --db results.db`: the figures of the sweeps in a database. */
#include "cli/report_db.h"
#include "cli/cli.h"
#include "cli/sweep_series.h"

#include <stdlib.h>
#include <string.h>

static int save(const char *folder, const char *name, const char *ending, const void *bytes, size_t size)
{
    char *path = NULL;
    if (asprintf(&path, "%s/%s.%s", folder, name, ending) < 0) return CLI_FAILED;
    int rc = output_save(path, bytes, size);
    free(path);
    return rc;
}

/* Names of files and of ids in the page: letters, digits, - and _ only. */
static void file_name(const char *name, char text[64])
{
    snprintf(text, 64, "%s", name);
    for (char *c = text; *c; c++)
        if (!strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_", *c)) *c = '-';
}

static int draw(const report_db_request *q, const sweep_curves *c, int index, char **svg)
{
    plot p = {0};
    size_t size;
    char name[64], id[32];
    if (!c->count) return CLI_OK;
    file_name(c->name, name);
    snprintf(id, sizeof id, "sweep%d", index + 1);
    int rc = sweep_plot(c, &p);
    if (rc == CLI_OK) rc = plot_render(&p, PLOT_INLINE, PLOT_LIGHT, id, svg, &size);
    if (rc == CLI_OK && q->png) {
        char *bytes = NULL;
        rc = plot_render(&p, PLOT_PNG, PLOT_LIGHT, id, &bytes, &size);
        if (rc == CLI_OK) rc = save(q->png, name, "png", bytes, size);
        free(bytes);
    }
    plot_free(&p);
    return rc;
}

static int save_csv(const report_db_request *q, const sweep_curves *c)
{
    output_text out;
    char name[64];
    file_name(c->name, name);
    if (output_open(&out) != CLI_OK) return CLI_FAILED;
    sweep_csv_write(c, out.stream);
    int rc = output_close(&out);
    if (rc == CLI_OK) rc = save(q->csv, name, "csv", out.text, out.size);
    output_free(&out);
    return rc;
}

static int make_page(const report_db_request *q, const sweep_curves *curves, char **drawings, int count)
{
    output_text html;
    int rc = q->png ? output_folder(q->png) : CLI_OK;
    if (rc == CLI_OK && q->csv) rc = output_folder(q->csv);
    for (int i = 0; rc == CLI_OK && i < count; i++) {
        rc = draw(q, &curves[i], i, &drawings[i]);
        if (rc == CLI_OK && q->csv) rc = save_csv(q, &curves[i]);
    }
    if (rc == CLI_OK) rc = output_open(&html);
    if (rc != CLI_OK) return rc;
    sweep_page_write(curves, drawings, count, q->database, html.stream);
    return output_close_and_save(&html, q->out);
}

/* The sweeps that are wanted. */
static int build(const report_db_request *q, const blurry_results *results, int figure, sweep_curves *curves,
                 int *count)
{
    for (int64_t i = 0; i < blurry_results_sweep_count(results); i++) {
        blurry_results_sweep sweep;
        if (blurry_results_sweep_at(results, i, &sweep) != BLURRY_OK) continue;
        if (q->sweep && strcmp(q->sweep, sweep.name)) continue;
        int rc = sweep_curves_build(&curves[(*count)++], results, &sweep, figure);
        if (rc != CLI_OK) return rc;
    }
    if (*count) return CLI_OK;
    fprintf(stderr, "blurry: report: %s holds no sweep%s%s\n", q->database, q->sweep ? " called " : "",
            q->sweep ? q->sweep : "");
    return CLI_USAGE;
}

int report_db(const report_db_request *q)
{
    blurry_results *results = NULL;
    sweep_figure chosen;
    int figure = -1, count = 0;
    if (q->figure) {
        if (sweep_figure_parse(q->figure, &chosen) != CLI_OK) return CLI_USAGE;
        figure = (int)chosen;
    }
    blurry_status status = blurry_results_open(&results, q->database);
    if (status != BLURRY_OK) return cli_report_input(status, "report");
    size_t n = (size_t)blurry_results_sweep_count(results) + 1;
    sweep_curves *curves = calloc(n, sizeof *curves);
    char **drawings = calloc(n, sizeof *drawings);
    int rc = curves && drawings ? build(q, results, figure, curves, &count) : CLI_FAILED;
    if (rc == CLI_OK) rc = make_page(q, curves, drawings, count);
    if (rc == CLI_OK) printf("%s\n", q->out);
    for (int i = 0; curves && i < count; i++) sweep_curves_free(&curves[i]);
    for (size_t i = 0; drawings && i < n; i++) free(drawings[i]);
    free(curves);
    free(drawings);
    blurry_results_close(&results);
    return rc;
}
