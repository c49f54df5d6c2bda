#include "cli/plot_svg.h"
#include "cli/cli.h"
#include "cli/output.h"
#include "cli/plot.h"

#include <stdlib.h>
#include <string.h>

static const char family[] = "Helvetica Neue,Helvetica,Arial,DejaVu Sans,sans-serif";

static int starts(const char *text, const char *word)
{
    return !strncmp(text, word, strlen(word));
}

/* "rgb( 31,  35,  40)" -> "var(--ink)" for a colour of the palette. Returns the characters read, 0: not one.
 */
static size_t colour(const char *at, FILE *to)
{
    unsigned r, g, b;
    int used = 0;
    if (!starts(at, "rgb(") || sscanf(at, "rgb( %u , %u , %u )%n", &r, &g, &b, &used) != 3 || used == 0)
        return 0;
    const char *role = r < 256 && g < 256 && b < 256 ? plot_role(r << 16 | g << 8 | b) : NULL;
    if (!role) return 0;
    fprintf(to, "var(--%s)", role);
    return (size_t)used;
}

/* ---- cells of one colour as one path: a tenth of the size of gnuplot's polygon per cell ---- */
enum { MAX_COLOURS = 256 };
typedef struct cell_paths {
    struct {
        char style[96]; /* fill and opacity, as attributes */
        output_text d;
    } of[MAX_COLOURS];
    int count;
} cell_paths;

/* "<polygon fill = 'rgb(..)' fill-opacity='0.50'  points = 'x,y x,y x,y x,y '/>", an upright rectangle: into
 * the path of its colour. Returns the characters read, 0: something else. */
static size_t collect_cell(const char *at, cell_paths *paths)
{
    unsigned r, g, b;
    int used = 0, end = 0;
    double opacity = 1, x[4], y[4];
    if (sscanf(at, "<polygon fill = 'rgb( %u , %u , %u )'%n", &r, &g, &b, &used) != 3 || !used) return 0;
    const char *role = r < 256 && g < 256 && b < 256 ? plot_role(r << 16 | g << 8 | b) : NULL;
    int more = 0;
    if (sscanf(at + used, " fill-opacity='%lf'%n", &opacity, &more) == 1) used += more;
    if (!role ||
        sscanf(at + used, " points = '%lf,%lf %lf,%lf %lf,%lf %lf,%lf '/>%n", &x[0], &y[0], &x[1], &y[1],
               &x[2], &y[2], &x[3], &y[3], &end) != 8 ||
        !end)
        return 0;
    if (y[0] != y[1] || x[1] != x[2] || y[2] != y[3] || x[3] != x[0]) return 0;
    char style[96];
    snprintf(style, sizeof style, "fill=\"var(--%s)\" fill-opacity=\"%.2f\"", role, opacity);
    int i = 0;
    while (i < paths->count && strcmp(paths->of[i].style, style)) i++;
    if (i == MAX_COLOURS) return 0;
    if (i == paths->count) {
        if (output_open(&paths->of[i].d) != CLI_OK) return 0;
        strcpy(paths->of[i].style, style);
        paths->count++;
    }
    fprintf(paths->of[i].d.stream, "M%.2f %.2fh%.2fv%.2fh%.2fz", x[0], y[0], x[1] - x[0], y[2] - y[1],
            x[3] - x[2]);
    return (size_t)(used + end);
}

static void write_cells(cell_paths *paths, FILE *to)
{
    for (int i = 0; i < paths->count; i++) {
        if (output_close(&paths->of[i].d) == CLI_OK)
            fprintf(to, "<path %s d=\"%s\"/>\n", paths->of[i].style, paths->of[i].d.text);
        output_free(&paths->of[i].d);
    }
    paths->count = 0;
}

/* One replacement at `at`; returns the characters of the input it stands for, 0: copy one character. */
static size_t replace(const char *at, const char *id, int embedded, FILE *to)
{
    static const char *const named[] = {" id=\"", " id='", "href='#", "href=\"#", "url(#"};
    for (size_t i = 0; i < sizeof named / sizeof named[0]; i++)
        if (starts(at, named[i])) {
            fprintf(to, "%s%s-", named[i], id);
            return strlen(named[i]);
        }
    if (starts(at, PLOT_SVG_FONT)) {
        fputs(family, to);
        return strlen(PLOT_SVG_FONT);
    }
    if (starts(at, "<title>")) {
        const char *end = strstr(at, "</title>");
        return end ? (size_t)(end - at) + strlen("</title>") : 0;
    }
    if (starts(at, "<desc>")) {
        const char *end = strstr(at, "</desc>");
        return end ? (size_t)(end - at) + strlen("</desc>") : 0;
    }
    return embedded ? colour(at, to) : 0;
}

int plot_svg_rewrite(char **bytes, size_t *size, const char *id, int embedded)
{
    output_text out;
    if (output_open(&out) != CLI_OK) return CLI_FAILED;
    const char *at = *bytes;
    const char *start = strstr(at, "<svg");
    if (embedded && start) at = start;
    cell_paths *paths = embedded ? calloc(1, sizeof *paths) : NULL;
    while (*at) {
        size_t used = paths ? collect_cell(at, paths) : 0;
        if (used) {
            at += used + strspn(at + used, " \t\n");
            continue;
        }
        if (paths) write_cells(paths, out.stream);
        used = replace(at, id, embedded, out.stream);
        if (used)
            at += used;
        else
            fputc(*at++, out.stream);
    }
    free(paths);
    if (output_close(&out) != CLI_OK) {
        output_free(&out);
        return CLI_FAILED;
    }
    free(*bytes);
    *bytes = out.text;
    *size = out.size;
    return CLI_OK;
}
