#include "cli/plot.h"
#include "cli/plot_svg.h"
#include "cli/cli.h"

#include <errno.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <fcntl.h>
#include <unistd.h>

extern char **environ;

typedef struct colour {
    const char *role;
    unsigned value[2]; /* by theme */
} colour;

static const colour palette[] = {
#define COLOUR(role, light, dark) {#role, {light, dark}},
#include "cli/palette.def"
};
enum { COLOURS = sizeof palette / sizeof palette[0] };

int plot_open(plot *p, int width, int height)
{
    p->width = width;
    p->height = height;
    return output_open(&p->script);
}

void plot_free(plot *p)
{
    output_free(&p->script);
}

void plot_palette_css(FILE *to, plot_theme theme)
{
    for (int i = 0; i < COLOURS; i++) fprintf(to, "--%s:#%06x;", palette[i].role, palette[i].value[theme]);
}

void plot_quote(FILE *to, const char *text)
{
    for (const char *c = text; *c; c++) {
        if ((unsigned char)*c < 0x20) continue;
        if (strchr("{}^_@&~\\", *c)) fputs("\\\\", to);
        if (*c == '"') fputs("\\", to);
        fputc(*c, to);
    }
}

/* ---- running gnuplot ---- */

/* What every figure starts from: the palette as variables, thin axes on two sides, no box, quiet grid. */
static void write_preamble(FILE *to, const plot *p, plot_format format, plot_theme theme, const char *file)
{
    fprintf(to, "set encoding utf8\nembedded = %d\n", format == PLOT_INLINE);
    for (int i = 0; i < COLOURS; i++)
        fprintf(to, "%s = \"#%06x\"\nrgb_%s = 0x%06x\n", palette[i].role, palette[i].value[theme],
                palette[i].role, palette[i].value[theme]);
    if (format == PLOT_PNG)
        fprintf(to,
                "set terminal pngcairo size %d,%d enhanced font \"DejaVu Sans,10\" fontscale 2 linewidth 2 "
                "pointscale 2 background rgb paper\n",
                2 * p->width, 2 * p->height);
    else
        fprintf(to, "set terminal svg size %d,%d dynamic enhanced font \"" PLOT_SVG_FONT ",%d\"%s\n",
                p->width, p->height, format == PLOT_SVG ? 12 : 13,
                format == PLOT_SVG ? " background rgb paper" : "");
    fprintf(to, "set output \"%s\"\n", file);
    fprintf(to,
            "set border 3 lc rgb soft lw 0.8\nset tics nomirror out scale 0.5 textcolor rgb soft\n"
            "set title textcolor rgb ink\nset xlabel textcolor rgb ink\nset ylabel textcolor rgb ink\n"
            "set key textcolor rgb ink\nset grid lc rgb rule lw 0.6 lt 1\nset style fill solid noborder\n");
}

/* Starts `gnuplot -d script` with its messages going to `log`, and waits. Returns its exit status, -1 not
 * started. */
static int run_gnuplot(const char *script, const char *log)
{
    posix_spawn_file_actions_t actions;
    if (posix_spawn_file_actions_init(&actions)) return -1;
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, log, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    posix_spawn_file_actions_adddup2(&actions, STDOUT_FILENO, STDERR_FILENO);
    char *argv[] = {"gnuplot", "-d", (char *)script, NULL};
    pid_t child;
    int error = posix_spawnp(&child, "gnuplot", &actions, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    if (error) {
        errno = error;
        return -1;
    }
    int status;
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR) return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

static char *read_whole(const char *path, size_t *size)
{
    FILE *in = fopen(path, "rb");
    if (!in) return NULL;
    char *bytes = NULL;
    long end = -1;
    if (!fseek(in, 0, SEEK_END) && (end = ftell(in)) >= 0 && !fseek(in, 0, SEEK_SET) &&
        (bytes = malloc((size_t)end + 1))) {
        *size = fread(bytes, 1, (size_t)end, in);
        bytes[*size] = 0;
    }
    fclose(in);
    return bytes;
}

static int gnuplot_failed(int status, const char *log)
{
    if (status < 0) {
        if (errno == ENOENT)
            fprintf(stderr, "blurry: figures need gnuplot, which is not installed: "
                            "apt-get install gnuplot-nox\n");
        else
            fprintf(stderr, "blurry: cannot run gnuplot: %s\n", strerror(errno));
        return CLI_FAILED;
    }
    size_t size;
    char *text = read_whole(log, &size);
    fprintf(stderr, "blurry: gnuplot failed (exit %d): %s\n", status, text ? text : "");
    free(text);
    return CLI_FAILED;
}

/* In a folder of its own: script.gp -> figure, with gnuplot's messages in log. */
static int render_in(plot *p, const char *folder, plot_format format, plot_theme theme, char **bytes,
                     size_t *size)
{
    char script[64], figure[64], log[64];
    snprintf(script, sizeof script, "%s/script.gp", folder);
    snprintf(figure, sizeof figure, "%s/figure", folder);
    snprintf(log, sizeof log, "%s/log", folder);
    FILE *to = fopen(script, "w");
    if (!to) {
        fprintf(stderr, "blurry: cannot write '%s': %s\n", script, strerror(errno));
        return CLI_FAILED;
    }
    write_preamble(to, p, format, theme, figure);
    fwrite(p->script.text, 1, p->script.size, to);
    int bad = ferror(to);
    bad |= fclose(to);
    int status = bad ? 0 : run_gnuplot(script, log);
    int rc = CLI_OK;
    if (status) rc = gnuplot_failed(status, log);
    if (!status && (bad || !(*bytes = read_whole(figure, size)) || *size == 0)) {
        fprintf(stderr, "blurry: gnuplot left no figure in '%s': is the disk full?\n", folder);
        rc = CLI_FAILED;
    }
    unlink(script);
    unlink(figure);
    unlink(log);
    return rc;
}

int plot_render(plot *p, plot_format format, plot_theme theme, const char *id, char **bytes, size_t *size)
{
    *bytes = NULL;
    *size = 0;
    if (p->script.stream && output_close(&p->script) != CLI_OK) return CLI_FAILED;
    char folder[] = "/tmp/blurry-plot-XXXXXX";
    if (!mkdtemp(folder)) {
        fprintf(stderr, "blurry: cannot create a folder in /tmp: %s\n", strerror(errno));
        return CLI_FAILED;
    }
    int rc = render_in(p, folder, format, theme, bytes, size);
    rmdir(folder);
    if (rc == CLI_OK && format != PLOT_PNG) rc = plot_svg_rewrite(bytes, size, id, format == PLOT_INLINE);
    if (rc != CLI_OK) {
        free(*bytes);
        *bytes = NULL;
    }
    return rc;
}

int plot_save(plot *p, plot_format format, plot_theme theme, const char *id, const char *path)
{
    char *bytes;
    size_t size;
    int rc = plot_render(p, format, theme, id, &bytes, &size);
    if (rc == CLI_OK) rc = output_save(path, bytes, size);
    free(bytes);
    return rc;
}

const char *plot_role(unsigned rgb)
{
    for (int i = 0; i < COLOURS; i++)
        if (palette[i].value[PLOT_LIGHT] == rgb) return palette[i].role;
    return NULL;
}
