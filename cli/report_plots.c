/* The two figures about numbers: metric over training, metric against state size. */
#include "cli/report.h"
#include "cli/cli.h"

#include <math.h>
#include <stdlib.h>

/* The metric of a run at a step: that of its latest evaluation so far; NaN before the first. A run that
 * stopped early keeps its last value. */
static double metric_at(const run *r, int64_t step)
{
    double value = NAN;
    for (size_t i = 0; i < r->count && r->evals[i].step <= step; i++) value = r->evals[i].metric;
    return value;
}

static int ascending(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* "step mean low high" of a group at every step where one of its runs was evaluated and all have begun. */
static int write_curve(const report *r, const report_group *g, FILE *to)
{
    size_t total = 0, n = 0;
    for (size_t i = 0; i < g->count; i++) total += r->runs[g->runs[i]].count;
    int64_t *steps = malloc(total * sizeof *steps);
    if (!steps) return CLI_FAILED;
    for (size_t i = 0; i < g->count; i++) {
        const run *one = &r->runs[g->runs[i]];
        for (size_t k = 0; k < one->count; k++) steps[n++] = one->evals[k].step;
    }
    qsort(steps, n, sizeof *steps, ascending);
    double unit = r->descends ? 1 : 100;
    size_t stride = n > 4000 ? n / 2000 : 1; /* a picture needs no more */
    for (size_t i = 0; i < n; i++) {
        if ((i && steps[i] == steps[i - 1]) || (i % stride && i + 1 < n)) continue;
        double sum = 0, low = INFINITY, high = -INFINITY;
        for (size_t k = 0; k < g->count; k++) {
            double value = metric_at(&r->runs[g->runs[k]], steps[i]);
            sum += value;
            low = fmin(low, value);
            high = fmax(high, value);
        }
        if (isfinite(sum))
            fprintf(to, "%lld %.6g %.6g %.6g\n", (long long)steps[i], unit * sum / (double)g->count,
                    unit * low, unit * high);
    }
    free(steps);
    return CLI_OK;
}

/* Standalone pictures carry a key below the axes; in the page the legend is text beside them. */
static void axes(const report *r, plot *p, const char *xlabel)
{
    FILE *to = p->script.stream;
    plot_panel(p, 58, 14, p->width - 58 - 18, p->height - 14 - 56);
    fprintf(to, "set grid ytics\nset xlabel \"%s\" offset 0,0.3 textcolor rgb ink\n", xlabel);
    if (r->descends)
        fprintf(to, "set ylabel \"bits per byte\" offset 1.4,0 textcolor rgb ink\nset yrange [0:*]\n");
    else
        fprintf(to, "set ylabel \"accuracy (%%)\" offset 1.6,0 textcolor rgb ink\nset yrange [0:100]\n"
                    "set ytics nomirror 0,20,100\n");
    fprintf(to, "if (embedded) { unset key } else { set key center right samplen 1.6 spacing 1.1 "
                "textcolor rgb ink opaque }\n");
}

int report_plot_training(const report *r, plot *p)
{
    int rc = plot_open(p, 440, 300);
    FILE *to = p->script.stream;
    for (size_t i = 0; rc == CLI_OK && i < r->group_count; i++) {
        fprintf(to, "$curve%zu << EOD\n", i);
        rc = write_curve(r, &r->groups[i], to);
        fprintf(to, "EOD\n");
    }
    if (rc != CLI_OK) {
        fprintf(stderr, "blurry: out of memory\n");
        return rc;
    }
    axes(r, p, "training step");
    fprintf(to, "set xrange [0:*]\nset xtics nomirror\nset format x \"%%.0f\"\n");
    fprintf(to, "plot ");
    for (size_t i = 0; i < r->group_count; i++) {
        const report_group *g = &r->groups[i];
        if (g->count > 1)
            fprintf(to,
                    "$curve%zu using 1:3:4 with filledcurves fc rgb %s fs transparent solid 0.18 notitle, ",
                    i, g->colour);
    }
    for (size_t i = 0; i < r->group_count; i++) {
        const report_group *g = &r->groups[i];
        fprintf(to, "%s$curve%zu using 1:2 with lines lc rgb %s lw 2 dt %d title \"", i ? ", " : "", i,
                g->colour, (g->dash - 1) % 5 + 1);
        plot_quote(to, g->label);
        fprintf(to, "\"");
    }
    fprintf(to, "\n");
    return CLI_OK;
}

/* Groups of one colour form a line over the state size. */
static void write_states(const report *r, FILE *to)
{
    double unit = r->descends ? 1 : 100;
    for (size_t i = 0; i < r->group_count; i++) {
        const report_group *g = &r->groups[i];
        fprintf(to, "$mean%zu << EOD\n%lld %.6g %.6g %.6g\nEOD\n", i, (long long)g->state, unit * g->mean,
                unit * g->low, unit * g->high);
        fprintf(to, "$seeds%zu << EOD\n", i);
        for (size_t k = 0; k < g->count; k++) {
            const run *one = &r->runs[g->runs[k]];
            fprintf(to, "%lld %.6g\n", (long long)g->state, unit * one->evals[one->best].metric);
        }
        fprintf(to, "EOD\n$line%zu << EOD\n", i);
        for (size_t j = i; j < r->group_count;
             j++) /* from this group on, those of its mixer: drawn once, at the first */
            if (r->groups[j].colour == g->colour)
                fprintf(to, "%lld %.6g\n", (long long)r->groups[j].state, unit * r->groups[j].mean);
        fprintf(to, "EOD\n");
    }
}

void report_log_axis(FILE *to, double from, double end)
{
    static const double steps[] = {1, 2, 5};
    int all = end / from < 200;
    fprintf(to, "set logscale x\nset xrange [%.6g:%.6g]\nset xtics nomirror (", from, end);
    const char *separator = "";
    for (double ten = 1; ten <= end; ten *= 10)
        for (int i = 0; i < (all ? 3 : 1); i++) {
            double tick = ten * steps[i];
            if (tick < from || tick > end) continue;
            fprintf(to, "%s\"%.0f%s\" %.0f", separator, tick >= 10000 ? tick / 1000 : tick,
                    tick >= 10000 ? " 000" : "", tick);
            separator = ", ";
        }
    fprintf(to, ")\n");
}

int report_plot_state(const report *r, plot *p)
{
    int rc = plot_open(p, 440, 300);
    if (rc != CLI_OK) return rc;
    FILE *to = p->script.stream;
    double least = INFINITY, most = 0;
    for (size_t i = 0; i < r->group_count; i++) {
        least = fmin(least, (double)r->groups[i].state);
        most = fmax(most, (double)r->groups[i].state);
    }
    write_states(r, to);
    axes(r, p, "state size (elements, all layers)");
    report_log_axis(to, fmax(least, 1) / 1.7, fmax(most, 1) * 1.7);
    const char *separator = "plot ";
    for (size_t i = 0; i < r->group_count; i++) {
        const report_group *g = &r->groups[i];
        fprintf(to, "%s$line%zu using 1:2 with lines lc rgb %s lw 1.2 notitle", separator, i, g->colour);
        separator = ", ";
        if (g->full)
            fprintf(to, ", %.6g with lines lc rgb soft lw 1 dt 2 notitle", (r->descends ? 1 : 100) * g->mean);
        if (g->count > 1)
            fprintf(to, ", $mean%zu using 1:2:3:4 with yerrorbars lc rgb %s lw 1.4 pt 0 notitle", i,
                    g->colour);
        fprintf(to, ", $seeds%zu using 1:2 with points pt 6 ps 0.5 lc rgb %s notitle", i, g->colour);
        fprintf(to, ", $mean%zu using 1:2 with points pt 7 ps 0.9 lc rgb %s title \"", i, g->colour);
        plot_quote(to, g->label);
        fprintf(to, "\"");
    }
    fprintf(to, "\n");
    return CLI_OK;
}
