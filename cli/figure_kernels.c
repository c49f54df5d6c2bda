/* fig1: from Fourier modes to slots. a: the modes and their sum, one Dirichlet kernel. b, c: the kernels of
 * all slots over one period, with the weights that tokens get, at T = S and T > S. d, e: one channel of the
 * keys, and what the slots hold of it. */
#include "cli/figure.h"
#include "cli/figure_attention.h"
#include "cli/cli.h"
#include "blurry/attention.h"

#include <math.h>
#include <stdlib.h>

static const double pi = 3.14159265358979323846;
enum { GREY = 24 }; /* the most kernels drawn in grey */

/* Points of a curve per token: about 320 over a period, and at least 4 per token. */
static int points_per_token(double period)
{
    double wanted = ceil(320 / period);
    return wanted < 4 ? 4 : (int)wanted;
}

/* The kernels between the tokens: positions in units of 1/n token are whole positions of a period n times as
 * long. */
static double *weights_at(int64_t modes, double period, int64_t count, int per_token)
{
    double *phi = malloc((size_t)count * (size_t)(2 * modes - 1) * sizeof(double));
    if (!phi) {
        fprintf(stderr, "blurry: out of memory\n");
        return NULL;
    }
    if (cli_report(blurry_weights(modes, period * per_token, 0, count, phi), "weights") == CLI_OK) return phi;
    free(phi);
    return NULL;
}

static int modes_panel(plot *p, FILE *csv, int64_t M)
{
    FILE *to = p->script.stream;
    int64_t S = 2 * M - 1;
    int fine = points_per_token((double)S);
    int64_t count = S * fine + 1;
    double *phi = weights_at(M, (double)S, count, fine);
    if (!phi) return CLI_FAILED;
    int64_t middle = S / 2; /* the slot whose kernel is shown */
    fprintf(to, "$modes << EOD\n");
    for (int64_t i = 0; i < count; i++) {
        double t = (double)i / fine;
        fprintf(to, "%.5f %.6f", t, phi[i * S + middle]);
        fprintf(csv, "kernel,%.5f,%lld,%.9g\n", t, (long long)middle, phi[i * S + middle]);
        for (int64_t m = 0; m < M; m++)
            fprintf(to, " %.5f", cos(2 * pi * (double)m * (t - (double)middle) / (double)S));
        fprintf(to, "\n");
    }
    free(phi);
    fprintf(to, "EOD\n");
    plot_panel(p, 58, 40, 236, p->height - 40 - 56);
    plot_title(p, "a", "cosine modes and their sum");
    fprintf(to,
            "unset grid\nset border 1\nset xrange [0:%lld]\nset yrange [-2.4:%.2f]\nset xtics nomirror "
            "%g\nunset ytics\n",
            (long long)S, (double)M * 1.15, ceil((double)S / 5));
    fprintf(to, "set xlabel \"token {/:Italic t}\" offset 0,0.4 textcolor rgb ink\nunset ylabel\n");
    double step = M > 16 ? (double)((M + 15) / 16) : 1; /* label at most 16 modes */
    for (int64_t m = 0; m < M; m += (int64_t)step)
        fprintf(to,
                "set label %d \"{/:Italic m} = %lld\" at graph 0, first %.3f right offset -0.6,0 textcolor "
                "rgb soft\n",
                (int)(100 + m), (long long)m, 1.15 * (double)(M - 1 - m) + 0.55);
    fprintf(to, "set label 99 \"sum\" at graph 0, first -1.6 right offset -0.6,0 textcolor rgb blue\n");
    fprintf(to,
            "plot 0*x-1.9 lc rgb rule lw 0.8 notitle, for [i=3:%lld] $modes using "
            "1:(1.15*(%lld-1-(i-3))+0.55+0.42*column(i)) "
            "with lines lc rgb soft lw 1.1 notitle, $modes using 1:(-1.9+1.35*$2) with lines lc rgb blue lw "
            "2.2 notitle\n",
            (long long)(M + 2), (long long)M);
    fprintf(to, "unset label\n");
    return CLI_OK;
}

/* All kernels in grey, three in colour, with a dot for each token's weight on those. */
int figure_kernels_panel(plot *p, FILE *csv, const char *letter, int64_t M, double T, double left, double top,
                         double width)
{
    FILE *to = p->script.stream;
    int fine = points_per_token(T);
    int64_t S = 2 * M - 1, tokens = (int64_t)floor(T), count = (int64_t)floor(T * fine) + 1;
    double *curve = weights_at(M, T, count, fine), *weight = weights_at(M, T, tokens + 1, 1);
    if (!curve || !weight) {
        free(curve);
        free(weight);
        return CLI_FAILED;
    }
    fprintf(to, "$curve << EOD\n");
    for (int64_t i = 0; i < count; i++) {
        fprintf(to, "%.5f", (double)i / fine);
        for (int64_t j = 0; j < S; j++) fprintf(to, " %.5f", curve[i * S + j]);
        fprintf(to, "\n");
    }
    fprintf(to, "EOD\n$weight << EOD\n");
    for (int64_t t = 0; t <= tokens; t++) {
        fprintf(to, "%lld", (long long)t);
        for (int64_t j = 0; j < S; j++) {
            fprintf(to, " %.5f", weight[t * S + j]);
            fprintf(csv, "weight_T=%g,%lld,%lld,%.9g\n", T, (long long)t, (long long)j, weight[t * S + j]);
        }
        fprintf(to, "\n");
    }
    fprintf(to, "EOD\n");
    free(curve);
    free(weight);
    char title[96];
    double r = T / (double)S;
    if (r == 1)
        snprintf(title, sizeof title, "{/:Italic T} = {/:Italic S} = %lld: one slot per token", (long long)S);
    else
        snprintf(title, sizeof title, "{/:Italic T} = %.3g {/:Italic S}: a slot every %.3g tokens", r, r);
    plot_panel(p, left, top, width, 160);
    plot_title(p, letter, title);
    int64_t shown[3] = {S / 5, S / 2, S - 1 - S / 5};
    fprintf(to,
            "set border 3\nset grid ytics\nset xrange [0:%g]\nset yrange [-0.3:1.22]\nset xtics nomirror "
            "%g\nset ytics nomirror 0,0.5,1\n"
            "set ylabel \"weight {/:Italic φ}\" offset 1.2,0 textcolor rgb ink\nset xlabel \"token {/:Italic "
            "t}\" offset 0,0.4 textcolor rgb ink\n",
            T, ceil(T / 6));
    static const char *const roles[3] = {"blue", "vermilion", "green"};
    for (int i = 0; i < 3; i++)
        fprintf(to, "set label %d \"slot %lld\" at %.5f,1.13 center textcolor rgb %s\n", 20 + i,
                (long long)shown[i], (double)shown[i] * r, roles[i]);
    fprintf(to, "plot for [i=2:%lld:%lld] $curve using 1:(column(i)) with lines lc rgb rule lw 1 notitle",
            (long long)(S + 1), (long long)((S + GREY - 1) / GREY));
    for (int i = 0; i < 3; i++)
        fprintf(to,
                ", \\\n $curve using 1:%lld with lines lc rgb %s lw 2 notitle, "
                "$weight using 1:%lld with points pt 7 ps 0.5 lc rgb %s notitle",
                (long long)shown[i] + 2, roles[i], (long long)shown[i] + 2, roles[i]);
    fprintf(to, "\nunset label\n");
    return CLI_OK;
}

/* One channel of the keys over a period: a slow part that survives the blur and a fast one that does not. */
static double key_at(uint64_t seed, int64_t t, double T)
{
    double x = 2 * pi * (double)t / T;
    return 0.55 * sin(x + 0.5) + 0.3 * cos(2 * x) + 0.7 * (figure_uniform(seed, (uint64_t)t) - 0.5);
}

int figure_slots_panel(plot *p, FILE *csv, const char *letter, int64_t M, double T, uint64_t seed,
                       double left, double top, double width)
{
    FILE *to = p->script.stream;
    int fine = points_per_token(T);
    int64_t S = 2 * M - 1, tokens = (int64_t)ceil(T), count = (int64_t)floor(T * fine) + 1;
    double r = T / (double)S;
    double *k = malloc((size_t)tokens * sizeof(double)), *slots = malloc((size_t)S * sizeof(double));
    double *curve = weights_at(M, T, count, fine);
    int rc = k && slots && curve ? CLI_OK : CLI_FAILED;
    for (int64_t t = 0; k && t < tokens; t++) k[t] = key_at(seed, t, T);
    if (rc == CLI_OK) rc = attention_key_slots(&(attention_case){tokens, 1, M, T, 0, k, k}, slots);
    if (rc == CLI_OK) {
        fprintf(to, "$keys << EOD\n");
        for (int64_t t = 0; t < tokens; t++) {
            fprintf(to, "%lld %.6f\n", (long long)t, k[t]);
            fprintf(csv, "key_T=%g,%lld,,%.9g\n", T, (long long)t, k[t]);
        }
        fprintf(to, "EOD\n$slots << EOD\n");
        for (int64_t j = 0; j < S; j++) {
            fprintf(to, "%.6f %.6f\n", (double)j * r, slots[j] / r);
            fprintf(csv, "slot_T=%g,%.9g,%lld,%.9g\n", T, (double)j * r, (long long)j, slots[j]);
        }
        fprintf(to, "EOD\n$between << EOD\n");
        for (int64_t i = 0; i < count; i++) {
            double value = 0;
            for (int64_t j = 0; j < S; j++) value += slots[j] / r * curve[i * S + j];
            fprintf(to, "%.5f %.6f\n", (double)i / fine, value);
        }
        fprintf(to, "EOD\n");
        plot_panel(p, left, top, width, 160);
        plot_title(p, letter,
                   r == 1 ? "the slots hold the keys exactly" : "fewer slots than keys: a blurred copy");
        fprintf(to,
                "set border 3\nset grid ytics\nset xrange [-0.4:%g]\nset yrange [-1.3:1.75]\nset xtics "
                "nomirror 0,%g\nset ytics nomirror -1,1,1\n"
                "set ylabel \"one key channel\" offset 1.2,0 textcolor rgb ink\nset xlabel \"token {/:Italic "
                "t}\" offset 0,0.4 textcolor rgb ink\n"
                "unset key\n",
                T - 0.4, ceil(T / 6));
        fprintf(to,
                "set label 2 \"keys\" at graph 0.04, graph 0.93 point pt 6 ps 0.75 lw 1.3 lc rgb ink offset "
                "0.8,0 "
                "textcolor rgb ink\n"
                "set label 3 \"slots%s\" at graph 0.24, graph 0.93 point pt 7 ps 0.75 lc rgb vermilion "
                "offset 0.8,0 "
                "textcolor rgb vermilion\n"
                "set label 4 \"— interpolated\" at graph 0.97, graph 0.955 right textcolor rgb vermilion\n",
                r == 1 ? "" : " × {/:Italic S}/{/:Italic T}");
        fprintf(to, "plot $between using 1:2 with lines lc rgb vermilion lw 1.6 notitle, "
                    "$slots using 1:2 with points pt 7 ps 0.75 lc rgb vermilion notitle, "
                    "$keys using 1:2 with points pt 6 ps 0.75 lw 1.3 lc rgb ink notitle\nunset label\n");
    }
    free(k);
    free(slots);
    free(curve);
    return rc;
}

int figure_kernels(plot *p, FILE *csv, const figure_options *options)
{
    int64_t M = options->modes, S = 2 * M - 1;
    double T = options->resolution * (double)S;
    int rc = plot_open(p, 1140, 500);
    if (rc != CLI_OK) return rc;
    fprintf(p->script.stream, "set multiplot\n");
    fprintf(csv, "series,t,slot,value\n");
    rc = modes_panel(p, csv, M);
    if (rc == CLI_OK) rc = figure_kernels_panel(p, csv, "b", M, (double)S, 365, 40, 330);
    if (rc == CLI_OK) rc = figure_kernels_panel(p, csv, "c", M, T, 365, 284, 330);
    if (rc == CLI_OK) rc = figure_slots_panel(p, csv, "d", M, (double)S, options->seed, 775, 40, 330);
    if (rc == CLI_OK) rc = figure_slots_panel(p, csv, "e", M, T, options->seed, 775, 284, 330);
    fprintf(p->script.stream, "unset multiplot\n");
    return rc;
}
