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
    while (*at) {
        size_t used = replace(at, id, embedded, out.stream);
        if (used)
            at += used;
        else
            fputc(*at++, out.stream);
    }
    if (output_close(&out) != CLI_OK) {
        output_free(&out);
        return CLI_FAILED;
    }
    free(*bytes);
    *bytes = out.text;
    *size = out.size;
    return CLI_OK;
}
