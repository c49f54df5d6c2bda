/* Figures through gnuplot. A plot is a script written to `script.stream`; it is rendered for a theme as a
 * stand-alone SVG, a PNG, or an SVG to be put inside an HTML page whose colours are CSS variables (so one
 * drawing serves light and dark). The script sees each role of palette.def as a string variable ("blue" holds
 * "#0072b2") and, for colours with opacity, as an integer (rgb_blue). */
#ifndef BLURRY_CLI_PLOT_H
#define BLURRY_CLI_PLOT_H
#include "cli/output.h"

typedef enum plot_theme { PLOT_LIGHT, PLOT_DARK } plot_theme;
typedef enum plot_format { PLOT_SVG, PLOT_PNG, PLOT_INLINE } plot_format;

typedef struct plot {
    output_text script;
    int width, height; /* in points of the SVG; a PNG has twice as many pixels each way */
} plot;

int plot_open(plot *p, int width, int height);
void plot_free(plot *p);

/* Runs gnuplot; `id` must be unique within an HTML page, letters and digits. On success *bytes is malloc'ed.
 * Prints its own message. May be called several times; the first call closes the script. */
int plot_render(plot *p, plot_format format, plot_theme theme, const char *id, char **bytes, size_t *size);

/* Renders and saves `path`. */
int plot_save(plot *p, plot_format format, plot_theme theme, const char *id, const char *path);

/* "--ink:#1f2933;..." for the style sheet of a page that holds PLOT_INLINE drawings. */
void plot_palette_css(FILE *to, plot_theme theme);

/* The role of a colour of the light palette, NULL: none. */
const char *plot_role(unsigned rgb);

/* `text` with what gnuplot's enhanced text would interpret taken out of action, for a double-quoted string.
 */
void plot_quote(FILE *to, const char *text);

/* ---- building blocks of scripts ---- */

/* Places the next panel of a multiplot: left, top, width, height in points from the figure's upper left
 * corner. */
void plot_panel(plot *p, double left, double top, double width, double height);

/* Bold letter and title above a panel's upper left corner. */
void plot_title(plot *p, const char *letter, const char *title);

/* A matrix [rows, columns] as cells, row 0 on top: `weights` blue above zero and amber below, opacity
 * |w|^0.6. Where `open` (same shape, may be NULL) is 0 nothing may be attended to: left blank; other cells
 * get a faint ground. */
void plot_cells(plot *p, const double *weights, const unsigned char *open, long rows, long columns);
/* The same with another plot on top: `extra` is an element of gnuplot's plot command. */
void plot_cells_with(plot *p, const double *weights, const unsigned char *open, long rows, long columns,
                     const char *extra);

/* The colour scale of plot_cells as a panel of its own, from `lowest` (<= 0) to 1, with `name` to its right.
 */
void plot_cells_key(plot *p, double left, double top, double width, double height, double lowest,
                    const char *name);

#endif
