/* Building blocks of gnuplot scripts: panels, titles, matrices as cells. */
#include "cli/plot.h"

#include <math.h>

void plot_panel(plot *p, double left, double top, double width, double height)
{
    fprintf(p->script.stream,
            "set lmargin at screen %.6f\nset rmargin at screen %.6f\n"
            "set tmargin at screen %.6f\nset bmargin at screen %.6f\n",
            left / p->width, (left + width) / p->width, 1 - top / p->height, 1 - (top + height) / p->height);
}

void plot_title(plot *p, const char *letter, const char *title)
{
    FILE *to = p->script.stream;
    fprintf(to, "set label 1 \"");
    if (*letter) fprintf(to, "{/:Bold %s}  ", letter);
    fprintf(to, "%s\" at graph 0, graph 1 offset character 0, character 0.9 left textcolor rgb ink front\n",
            title);
}

/* Opacity of a weight. Below 1, the exponent lifts small weights to where the eye can tell them from none. */
static double opacity(double weight)
{
    double magnitude = fmin(fabs(weight), 1.0);
    return pow(magnitude, 0.6);
}

void plot_cells(plot *p, const double *weights, const unsigned char *open, long rows, long columns)
{
    plot_cells_with(p, weights, open, rows, columns, NULL);
}

void plot_cells_with(plot *p, const double *weights, const unsigned char *open, long rows, long columns,
                     const char *extra)
{
    FILE *to = p->script.stream;
    fprintf(to, "$cells << EOD\n-1 -1 0\n"); /* never empty: gnuplot refuses a block without points */
    for (long i = 0; i < rows; i++)
        for (long j = 0; j < columns; j++) {
            double alpha = opacity(weights[i * columns + j]);
            if (alpha >= 0.02)
                fprintf(to, "%ld %ld %.4f\n", j, i, weights[i * columns + j] < 0 ? -alpha : alpha);
        }
    fprintf(to, "EOD\n$ground << EOD\n-1 -1 0\n");
    for (long i = 0; open && i < rows; i++)
        for (long j = 0; j < columns; j++) { /* runs of open cells as one rectangle each */
            long end = j;
            while (end < columns && open[i * columns + end]) end++;
            if (end > j) fprintf(to, "%ld %ld %ld\n", j, i, end);
            if (end > j) j = end;
        }
    fprintf(to, "EOD\nset xrange [0:%ld]\nset yrange [%ld:0]\n", columns, rows);
    fprintf(
        to,
        "argb(a) = (int(255.5 - 255*abs(a))<<24) + (a < 0 ? rgb_amber : rgb_blue)\n"
        "plot $ground using 1:2:1:3:2:($2+1) with boxxyerror fc rgb cell notitle, \\\n"
        "     $cells using 1:2:1:($1+1):2:($2+1):(argb($3)) with boxxyerror fc rgb variable notitle%s%s\n",
        extra ? ", " : "", extra ? extra : "");
}

void plot_cells_key(plot *p, double left, double top, double width, double height, double lowest,
                    const char *name)
{
    FILE *to = p->script.stream;
    enum { STEPS = 40 };
    plot_panel(p, left, top, width, height);
    fprintf(to, "$cells << EOD\n");
    for (int i = 0; i < STEPS; i++) {
        double from = lowest + (1 - lowest) * i / STEPS, next = lowest + (1 - lowest) * (i + 1) / STEPS;
        double middle = (from + next) / 2;
        fprintf(to, "%.5f %.5f %.4f\n", from, next, middle < 0 ? -opacity(middle) : opacity(middle));
    }
    fprintf(
        to,
        "EOD\nset xrange [%.4f:1]\nset yrange [0:1]\nunset ytics\nunset xlabel\nunset ylabel\nset border 1\n"
        "set xtics nomirror 0.5 offset 0,0.4\nunset label\nunset object\n"
        "set label 1 \"%s\" at graph 1, graph 0.5 offset 1,0 left textcolor rgb ink\n",
        lowest, name);
    fprintf(to, "argb(a) = (int(255.5 - 255*abs(a))<<24) + (a < 0 ? rgb_amber : rgb_blue)\n"
                "plot $cells using 1:(0):1:2:(0):(1):(argb($3)) with boxxyerror fc rgb variable notitle\n");
}
