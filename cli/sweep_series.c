/* From runs to series: see sweep_series.h. */
#include "cli/sweep_series.h"
#include "cli/cli.h"
#include "cli/report.h"
#include "blurry/model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const figure_names[SWEEP_FIGURES] = {"pareto", "state", "resolution", "width", "choices"};

int sweep_figure_parse(const char *name, sweep_figure *figure)
{
    for (int i = 0; i < SWEEP_FIGURES; i++)
        if (!strcmp(name, figure_names[i])) {
            *figure = (sweep_figure)i;
            return CLI_OK;
        }
    fprintf(stderr, "blurry: report: figure is '%s': give pareto, state, resolution, width or choices\n",
            name);
    return CLI_USAGE;
}

static const char *option(const blurry_result *r, const char *key, char text[1024])
{
    if (blurry_settings_get(r->settings, key, text, 1024) != BLURRY_OK) text[0] = 0;
    return text;
}

/* ---- places on the axis ---- */
/* T/S: as set, or from the period. */
static double resolution_of(const blurry_result *r)
{
    char text[1024];
    double period = strtod(option(r, "period", text), NULL);
    if (!*text) return strtod(option(r, "resolution", text), NULL);
    return period / (2 * strtod(option(r, "modes", text), NULL) - 1);
}

/* What tells this run from others of its sweep but for seed and learning rate: the group and its list-valued
 * options. */
static void choice_of(const blurry_result *r, char text[160])
{
    char heads[1024], period[1024], resolution[1024];
    option(r, "heads", heads);
    option(r, "period", period);
    option(r, "resolution", resolution);
    snprintf(text, 160, "%.3s head%s, T = %.60s%s", heads, strcmp(heads, "1") ? "s" : "",
             *period ? period : resolution, *period ? "" : "S");
}

static int choice_place(sweep_curves *c, const blurry_result *r, double *x)
{
    char text[160];
    choice_of(r, text);
    int at = 0;
    while (at < c->choice_count && strcmp(c->choice[at], text)) at++;
    *x = at;
    if (at < c->choice_count) return 1;
    char **more = realloc(c->choice, (size_t)(at + 1) * sizeof *more);
    if (!more) return 0;
    c->choice = more;
    c->choice[c->choice_count++] = strdup(text);
    return c->choice[at] != NULL;
}

static int place_of(sweep_curves *c, const blurry_result *r, double *x)
{
    char text[1024];
    switch (c->figure) {
    case SWEEP_RESOLUTION:
        *x = resolution_of(r);
        return 1;
    case SWEEP_WIDTH:
        *x = strtod(option(r, "width", text), NULL);
        return 1;
    case SWEEP_CHOICES:
        return choice_place(c, r, x);
    default:
        *x = (double)r->state_elements;
        return 1;
    }
}

/* ---- collecting ---- */
static sweep_series *series_of(sweep_curves *c, const blurry_result *r)
{
    for (int i = 0; i < c->count; i++)
        if (!strcmp(c->series[i].name, r->group)) return &c->series[i];
    sweep_series *more = realloc(c->series, (size_t)(c->count + 1) * sizeof *more);
    if (!more) return NULL;
    c->series = more;
    sweep_series *s = &c->series[c->count++];
    char mixer[1024];
    option(r, "mixer", mixer);
    *s = (sweep_series){.colour = report_colour(mixer), .dash = 1, .full = !strcmp(mixer, "softmax")};
    snprintf(s->name, sizeof s->name, "%s", r->group);
    for (int i = 0; i + 1 < c->count; i++) s->dash += !strcmp(c->series[i].colour, s->colour);
    return s;
}

static sweep_point *point_of(sweep_series *s, double x, int64_t state)
{
    for (int i = 0; i < s->count; i++)
        if (s->point[i].x == x) return &s->point[i];
    sweep_point *more = realloc(s->point, (size_t)(s->count + 1) * sizeof *more);
    if (!more) return NULL;
    s->point = more;
    sweep_point *p = &s->point[s->count++];
    *p = (sweep_point){.x = x, .state = state};
    return p;
}

static int add_run(sweep_curves *c, const blurry_result *r)
{
    double x;
    if (strcmp(r->state, "done") || !isfinite(r->best)) return 1;
    sweep_series *s = series_of(c, r);
    sweep_point *p = s && place_of(c, r, &x) ? point_of(s, x, r->state_elements) : NULL;
    const blurry_result **more = p ? realloc(p->result, (size_t)(p->runs + 1) * sizeof *more) : NULL;
    if (!more) return 0;
    p->result = more;
    p->result[p->runs++] = r;
    if (r->state_elements < p->state) p->state = r->state_elements;
    return 1;
}

static void count_run(sweep_curves *c, const blurry_result *r)
{
    c->total++;
    ++*(!strcmp(r->state, "done")       ? &c->done
        : !strcmp(r->state, "diverged") ? &c->diverged
        : !strcmp(r->state, "failed")   ? &c->failed
                                        : &c->open);
    if (!strcmp(r->metric, "bits_per_byte")) c->descends = 1;
}

/* ---- measuring ---- */
static int better(const sweep_curves *c, double a, double b)
{
    return c->descends ? a < b : a > b;
}

/* Whether two runs differ in nothing but the seed. */
static int same_config(const blurry_result *a, const blurry_result *b)
{
    char x[1024], y[1024];
    for (size_t i = 0; i < blurry_settings_count(); i++) {
        blurry_setting_info info;
        if (blurry_settings_describe(i, &info) != BLURRY_OK || info.group_bit == BLURRY_SETTINGS_RUN)
            continue;
        if (strcmp(info.name, "seed") && strcmp(option(a, info.name, x), option(b, info.name, y))) return 0;
    }
    return 1;
}

static void describe_config(const blurry_result *r, char text[128])
{
    char lr[1024], width[1024], heads[1024], decay[1024];
    snprintf(text, 128, "lr %.12s, width %.8s, heads %.4s, weight decay %.8s", option(r, "lr", lr),
             option(r, "width", width), option(r, "heads", heads), option(r, "weight_decay", decay));
}

static void measure_config(const sweep_curves *c, sweep_point *p, int first, int *used)
{
    double sum = 0, low = INFINITY, high = -INFINITY;
    int n = 0;
    for (int i = first; i < p->runs; i++) {
        if (used[i] || !same_config(p->result[first], p->result[i])) continue;
        used[i] = 1;
        sum += p->result[i]->best;
        low = fmin(low, p->result[i]->best);
        high = fmax(high, p->result[i]->best);
        n++;
    }
    if (p->seeds && !better(c, sum / n, p->mean)) return;
    p->mean = sum / n;
    p->low = low;
    p->high = high;
    p->seeds = n;
    describe_config(p->result[first], p->config);
}

static int measure_point(const sweep_curves *c, sweep_point *p)
{
    int *used = calloc((size_t)p->runs, sizeof *used);
    if (!used) return 0;
    p->best = p->result[0]->best;
    for (int i = 0; i < p->runs; i++) {
        if (better(c, p->result[i]->best, p->best)) p->best = p->result[i]->best;
        if (!used[i]) measure_config(c, p, i, used);
    }
    free(used);
    return 1;
}

static int by_x(const void *a, const void *b)
{
    const sweep_point *p = a, *q = b;
    return (p->x > q->x) - (p->x < q->x);
}

static int measure(sweep_curves *c)
{
    for (int i = 0; i < c->count; i++) {
        sweep_series *s = &c->series[i];
        qsort(s->point, (size_t)s->count, sizeof *s->point, by_x);
        double so_far = c->descends ? INFINITY : -INFINITY;
        for (int k = 0; k < s->count; k++) {
            if (!measure_point(c, &s->point[k])) return 0;
            s->point[k].front = better(c, s->point[k].best, so_far);
            if (s->point[k].front) so_far = s->point[k].best;
        }
    }
    return 1;
}

int sweep_curves_build(sweep_curves *c, const blurry_results *results, const blurry_results_sweep *sweep,
                       int figure)
{
    *c = (sweep_curves){
        .name = sweep->name, .title = *sweep->title ? sweep->title : sweep->name, .metric = "accuracy"};
    c->figure = figure >= 0 ? (sweep_figure)figure : SWEEP_PARETO;
    if (figure < 0 && *sweep->figure && strcmp(sweep->figure, "none") &&
        sweep_figure_parse(sweep->figure, &c->figure) != CLI_OK)
        return CLI_USAGE;
    int64_t n = blurry_results_count(results);
    c->all = calloc((size_t)n + 1, sizeof *c->all);
    c->run = calloc((size_t)n + 1, sizeof *c->run);
    int good = c->all && c->run;
    for (int64_t i = 0; good && i < n; i++) {
        blurry_result *r = &c->all[i];
        if (blurry_results_at(results, i, r) != BLURRY_OK || strcmp(r->sweep, sweep->name)) continue;
        c->run[c->total] = r;
        count_run(c, r);
        good = add_run(c, r);
    }
    if (c->descends) c->metric = "bits per byte";
    if (good) good = measure(c);
    if (!good) fprintf(stderr, "blurry: out of memory\n");
    return good ? CLI_OK : CLI_FAILED;
}

void sweep_curves_free(sweep_curves *c)
{
    for (int i = 0; i < c->count; i++) {
        for (int k = 0; k < c->series[i].count; k++) free(c->series[i].point[k].result);
        free(c->series[i].point);
    }
    for (int i = 0; i < c->choice_count; i++) free(c->choice[i]);
    free(c->choice);
    free(c->series);
    free(c->all);
    free(c->run);
    *c = (sweep_curves){0};
}

/* ---- comparing ---- */
int64_t sweep_state_for(const sweep_curves *c, const sweep_series *s, double value)
{
    int64_t least = 0;
    for (int i = 0; i < s->count; i++)
        if (!better(c, value, s->point[i].best) && (!least || s->point[i].state < least))
            least = s->point[i].state;
    return least;
}

const sweep_series *sweep_reference(const sweep_curves *c)
{
    const sweep_series *found = c->count ? &c->series[0] : NULL;
    for (int i = c->count - 1; i >= 0; i--)
        if (!strcmp(c->series[i].colour, report_colour("blurry"))) found = &c->series[i];
    return found;
}
