/* Turns gnuplot's SVG into one that may stand beside others in one HTML page. */
#ifndef BLURRY_CLI_PLOT_SVG_H
#define BLURRY_CLI_PLOT_SVG_H
#include <stddef.h>

/* The font name the scripts use; it becomes a list of common sans-serif faces. */
#define PLOT_SVG_FONT "figurefont"

/* Replaces *bytes (malloc'ed). Always: every id gets the prefix `id`, the font becomes a family list,
 * gnuplot's tooltip titles go. With `embedded` also: no XML prolog, colours of the light palette become
 * var(--role). */
int plot_svg_rewrite(char **bytes, size_t *size, const char *id, int embedded);

#endif
