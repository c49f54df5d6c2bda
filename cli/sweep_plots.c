/* The figure of a sweep. */
#include "cli/cli.h"
#include "cli/report.h"
#include "cli/sweep_series.h"

#include <math.h>
#include <string.h>

static double unit(const sweep_curves *c)
{
    return c->descends ? 1 : 100;
}

/* The value a line goes through: the best of all tries where a front is meant, else the mean over seeds. */
static double height(const sweep_curves *c, const sweep_point *p)
{
    return unit(c) * (c->figure == SWEEP_PARETO || c->figure == SWEEP_STATE ? p->best : p->mean);
}

/* $lineI: what is joined; $spreadI: x mean low high; $allI: every run. */
static void write_data(const sweep_curves *c, FILE *to)
{
    for (int i = 0; i < c->count; i++) {
        const sweep_series *s = &c->series[i];
        fprintf(to, "$line%d << EOD\n", i);
        for (int k = 0; k < s->count; k++)
            if (c->figure != SWEEP_PARETO || s->point[k].front)
                fprintf(to, "%.8g %.8g\n", s->point[k].x, height(c, &s->point[k]));
        fprintf(to, "EOD\n$spread%d << EOD\n", i);
        for (int k = 0; k < s->count; k++)
            fprintf(to, "%.8g %.8g %.8g %.8g\n", s->point[k].x, height(c, &s->point[k]),
                    unit(c) * s->point[k].low, unit(c) * s->point[k].high);
        fprintf(to, "EOD\n$all%d << EOD\n", i);
        for (int k = 0; k < s->count; k++)
            for (int r = 0; r < s->point[k].runs; r++)
                fprintf(to, "%.8g %.8g\n", s->point[k].x, unit(c) * s->point[k].result[r]->best);
        fprintf(to, "EOD\n");
    }
}

static void range(const sweep_curves *c, double *least, double *most)
{
    *least = INFINITY;
    *most = -INFINITY;
    for (int i = 0; i < c->count; i++)
        for (int k = 0; k < c->series[i].count; k++) {
            *least = fmin(*least, c->series[i].point[k].x);
            *most = fmax(*most, c->series[i].point[k].x);
        }
}

/* Places that were measured become the ticks, as long as they do not crowd. */
static void own_ticks(const sweep_curves *c, FILE *to)
{
    double last = -INFINITY;
    const char *separator = "";
    fprintf(to, "set xtics nomirror (");
    for (;;) {
        double next = INFINITY;
        for (int i = 0; i < c->count; i++)
            for (int k = 0; k < c->series[i].count; k++)
                if (c->series[i].point[k].x > last) next = fmin(next, c->series[i].point[k].x);
        if (!isfinite(next)) break;
        fprintf(to, "%s\"%g\" %.8g", separator, next, next);
        separator = ", ";
        last = next;
    }
    fprintf(to, ")\n");
}

static void choice_ticks(const sweep_curves *c, FILE *to)
{
    fprintf(to, "set xrange [-0.6:%g]\nset xtics nomirror rotate by 25 right (", c->choice_count - 0.4);
    for (int i = 0; i < c->choice_count; i++) {
        fprintf(to, "%s\"", i ? ", " : "");
        plot_quote(to, c->choice[i]);
        fprintf(to, "\" %d", i);
    }
    fprintf(to, ")\n");
}

static void x_axis(const sweep_curves *c, FILE *to)
{
    double least, most;
    range(c, &least, &most);
    switch (c->figure) {
    case SWEEP_RESOLUTION:
        fprintf(to, "set xlabel \"resolution T/S (tokens per slot)\" offset 0,0.3\nset xrange [%g:%g]\n",
                least - 0.2, most + 0.2);
        own_ticks(c, to);
        break;
    case SWEEP_WIDTH:
        fprintf(to, "set xlabel \"model width\" offset 0,0.3\nset logscale x 2\nset xrange [%g:%g]\n",
                least / 1.3, most * 1.3);
        own_ticks(c, to);
        break;
    case SWEEP_CHOICES:
        choice_ticks(c, to);
        break;
    default:
        fprintf(to, "set xlabel \"state size (elements, all layers)\" offset 0,0.3\n");
        report_log_axis(to, fmax(least, 1) / 1.5, fmax(most, 1) * 1.5);
    }
}

static void y_axis(const sweep_curves *c, FILE *to)
{
    if (c->descends)
        fprintf(to, "set ylabel \"bits per byte\" offset 1.4,0\nset yrange [0:*]\n");
    else if (c->figure == SWEEP_STATE) /* RegBench: guessing already gives half */
        fprintf(to, "set ylabel \"accuracy (%%)\" offset 1.6,0\nset yrange [*:100]\n");
    else
        fprintf(
            to,
            "set ylabel \"accuracy (%%)\" offset 1.6,0\nset yrange [-2:102]\nset ytics nomirror 0,20,100\n");
}

static void plot_series(const sweep_curves *c, FILE *to, int i, const char *separator)
{
    const sweep_series *s = &c->series[i];
    static const int points[] = {7, 5, 9, 11, 13};
    int mark = points[(s->dash - 1) % 5];
    int joined = c->figure != SWEEP_CHOICES;
    int spread = c->figure == SWEEP_RESOLUTION || c->figure == SWEEP_WIDTH || c->figure == SWEEP_CHOICES;
    fprintf(to, "%s$all%d using 1:2 with points pt 6 ps 0.45 lw 0.7 lc rgb %s notitle", separator, i,
            s->colour);
    if (s->full)
        fprintf(to, ", %.8g with lines lc rgb soft lw 1 dt 2 notitle", height(c, &s->point[s->count - 1]));
    if (spread)
        fprintf(to, ", $spread%d using 1:2:3:4 with yerrorbars lc rgb %s lw 1.4 pt 0 notitle", i, s->colour);
    fprintf(to, ", $line%d using 1:2 with %s lc rgb %s lw 2 dt %d pt %d ps 0.8 title \"", i,
            joined ? (c->figure == SWEEP_PARETO ? "steps" : "linespoints") : "points", s->colour,
            (s->dash - 1) % 5 + 1, mark);
    plot_quote(to, s->name);
    fprintf(to, "\"");
    if (c->figure == SWEEP_PARETO)
        fprintf(to, ", $line%d using 1:2 with points pt %d ps 0.9 lc rgb %s notitle", i, mark, s->colour);
}

int sweep_plot(const sweep_curves *c, plot *p)
{
    int rc = plot_open(p, 560, 360);
    if (rc != CLI_OK) return rc;
    FILE *to = p->script.stream;
    write_data(c, to);
    int legend = c->count > 1 ? 130 : 18; /* points for it on the right */
    plot_panel(p, 58, 14, p->width - 58 - legend, p->height - 14 - (c->figure == SWEEP_CHOICES ? 92 : 56));
    fprintf(to, "set grid ytics\n%s\n",
            c->count > 1 ? "set key outside right top Left reverse samplen 1.6 spacing 1.2" : "unset key");
    y_axis(c, to);
    x_axis(c, to);
    const char *separator = "plot ";
    for (int i = 0; i < c->count; i++) {
        plot_series(c, to, i, separator);
        separator = ", ";
    }
    fprintf(to, "\n");
    return CLI_OK;
}
