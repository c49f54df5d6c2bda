/* Runs into groups that differ in the seed alone; their labels, colours and statistics. */
#include "cli/report.h"
#include "cli/cli.h"
#include "blurry/model.h"
#include "blurry/task.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const struct mixer_look {
    const char *mixer, *name, *colour;
} looks[] = {
    {"blurry", "blurry window", "blue"},      {"swa", "sliding window", "vermilion"},
    {"softmax", "full attention", "ink"},     {"gla", "gated linear", "green"},
    {"gdn", "gated delta rule", "purple"},    {"gsa", "gated slots", "amber"},
    {"abc", "bounded-memory control", "sky"}, {"s4d", "diagonal state space", "brown"},
};
enum { LOOKS = sizeof looks / sizeof looks[0] };

static const struct mixer_look *look_of(const char *mixer)
{
    for (size_t i = 0; i < LOOKS; i++)
        if (!strcmp(mixer, looks[i].mixer)) return &looks[i];
    return NULL;
}

const char *report_colour(const char *mixer)
{
    const struct mixer_look *look = look_of(mixer);
    return look ? look->colour : "violet";
}

/* "blurry,blurry" and "blurry" are both blurry; layers that differ are "mixed". */
static void mixer_of(const run *r, char mixer[64])
{
    char text[1024];
    run_option(r, "mixer", text);
    size_t n = strcspn(text, ",");
    int same = n < 64;
    for (const char *at = text; same && *at;) {
        size_t length = strcspn(at, ",");
        if (length != n || strncmp(at, text, n)) same = 0;
        at += length + (at[length] == ',');
    }
    snprintf(mixer, 64, "%.*s", same ? (int)n : 5, same ? text : "mixed");
}

/* The option that sets a mixer's state size, as it is written in labels. */
static void add_size(const run *r, report_group *g)
{
    char a[1024], b[1024];
    size_t n = strlen(g->label), room = sizeof g->label - n;
    char *at = g->label + n;
    if (!strcmp(g->mixer, "blurry")) {
        run_option(r, "period", b);
        if (*b)
            snprintf(at, room, ", M = %.12s, T = %.40s", run_option(r, "modes", a), b);
        else
            snprintf(at, room, ", M = %.12s, T = %.40sS", run_option(r, "modes", a),
                     run_option(r, "resolution", b));
        if (!strcmp(run_option(r, "decay", a), "true"))
            strncat(g->label, ", decay", sizeof g->label - strlen(g->label) - 1);
    } else if (!strcmp(g->mixer, "swa")) {
        snprintf(at, room, ", w = %.12s", run_option(r, "window", a));
    } else if (!strcmp(g->mixer, "abc") || !strcmp(g->mixer, "gsa")) {
        snprintf(at, room, ", S = %.12s", run_option(r, "slots", a));
    } else if (!strcmp(g->mixer, "mixed")) {
        snprintf(g->label, sizeof g->label, "%.120s", run_option(r, "mixer", a));
    }
}

/* Where two groups would carry the same label, the options in which they differ are added to both. */
static void distinguish(report *r, size_t a, size_t b)
{
    report_group *groups[2] = {&r->groups[a], &r->groups[b]};
    const run *first = &r->runs[groups[0]->runs[0]], *second = &r->runs[groups[1]->runs[0]];
    for (size_t i = 0; i < blurry_settings_count(); i++) {
        blurry_setting_info info;
        char x[1024], y[1024];
        if (blurry_settings_describe(i, &info) != BLURRY_OK || !strcmp(info.name, "seed")) continue;
        if (info.group_bit == BLURRY_SETTINGS_RUN) continue;
        if (!strcmp(run_option(first, info.name, x), run_option(second, info.name, y))) continue;
        for (int k = 0; k < 2; k++) {
            size_t n = strlen(groups[k]->label);
            char part[160];
            snprintf(part, sizeof part, ", %s %.60s", info.name, k ? y : x);
            if (!strstr(groups[k]->label, part))
                snprintf(groups[k]->label + n, sizeof groups[k]->label - n, "%s", part);
        }
        return;
    }
}

static void label_groups(report *r)
{
    for (size_t i = 0; i < r->group_count; i++) {
        report_group *g = &r->groups[i];
        const run *first = &r->runs[g->runs[0]];
        mixer_of(first, g->mixer);
        const struct mixer_look *look = look_of(g->mixer);
        snprintf(g->label, sizeof g->label, "%s", look ? look->name : g->mixer);
        g->colour = report_colour(g->mixer);
        g->full = !strcmp(g->mixer, "softmax");
        add_size(first, g);
    }
    for (size_t i = 0; i < r->group_count; i++)
        for (size_t j = i + 1; j < r->group_count; j++)
            if (!strcmp(r->groups[i].label, r->groups[j].label)) distinguish(r, i, j);
}

static void measure(report *r, report_group *g)
{
    double sum = 0, final_sum = 0, squares = 0;
    g->low = INFINITY;
    g->high = -INFINITY;
    for (size_t i = 0; i < g->count; i++) {
        const run *one = &r->runs[g->runs[i]];
        double best = one->evals[one->best].metric;
        sum += best;
        final_sum += one->evals[one->count - 1].metric;
        g->low = fmin(g->low, best);
        g->high = fmax(g->high, best);
    }
    g->mean = sum / (double)g->count;
    g->final_mean = final_sum / (double)g->count;
    for (size_t i = 0; i < g->count; i++) {
        const run *one = &r->runs[g->runs[i]];
        double off = one->evals[one->best].metric - g->mean;
        squares += off * off;
    }
    g->deviation = g->count > 1 ? sqrt(squares / (double)(g->count - 1)) : NAN;
}

/* The hash of everything but the seed and how the run was carried out. */
static int group_key(const run *r, char hex[65])
{
    blurry_settings *copy = NULL;
    blurry_status status = blurry_settings_copy(&copy, r->settings);
    if (status == BLURRY_OK) status = blurry_settings_set(copy, "seed", "0");
    if (status == BLURRY_OK)
        blurry_settings_hash(copy, BLURRY_SETTINGS_ALL & ~(unsigned)BLURRY_SETTINGS_RUN, hex);
    blurry_settings_destroy(&copy);
    return cli_report(status, r->path);
}

static int by_seed(const void *a, const void *b)
{
    int64_t x = run_integer(a, "seed"), y = run_integer(b, "seed");
    return (x > y) - (x < y);
}

static int by_state(const void *a, const void *b)
{
    const report_group *x = a, *y = b;
    if (x->full != y->full) return x->full - y->full;
    if (x->state != y->state) return x->state < y->state ? -1 : 1;
    return strcmp(x->mixer, y->mixer);
}

static int collect(report *r)
{
    char(*keys)[65] = calloc(r->run_count, sizeof *keys);
    r->groups = calloc(r->run_count, sizeof *r->groups);
    int rc = keys && r->groups ? CLI_OK : CLI_FAILED;
    for (size_t i = 0; rc == CLI_OK && i < r->run_count; i++) {
        char key[65];
        rc = group_key(&r->runs[i], key);
        size_t g = 0;
        while (g < r->group_count && strcmp(keys[g], key)) g++;
        if (rc == CLI_OK && g == r->group_count) {
            memcpy(keys[r->group_count++], key, sizeof key);
            r->groups[g].runs = calloc(r->run_count, sizeof(size_t));
            if (!r->groups[g].runs) rc = CLI_FAILED;
        }
        if (rc == CLI_OK) r->groups[g].runs[r->groups[g].count++] = i;
    }
    free(keys);
    return rc;
}

/* Tokens of a sequence, which bounds the state of windows and decides that of full attention. */
static int64_t task_length(const run *r)
{
    blurry_task *task = NULL;
    int64_t length = run_integer(r, "length");
    if (blurry_task_create(&task, r->settings) == BLURRY_OK) {
        blurry_task_info info;
        blurry_task_describe(task, &info);
        length = info.length;
    }
    blurry_task_destroy(&task);
    return length;
}

static int measure_groups(report *r)
{
    for (size_t i = 0; i < r->group_count; i++) {
        report_group *g = &r->groups[i];
        const run *first = &r->runs[g->runs[0]];
        int64_t length = task_length(first);
        if (length > r->length) r->length = length;
        measure(r, g);
        int rc = cli_report(blurry_state_size_model(first->settings, length, &g->state), first->path);
        if (rc != CLI_OK) return rc;
    }
    return CLI_OK;
}

/* A dash pattern per group of one colour; the one with the most runs is drawn solid. */
static void choose_dashes(report *r)
{
    for (size_t i = 0; i < r->group_count; i++) {
        report_group *g = &r->groups[i];
        g->dash = 1;
        for (size_t j = 0; j < r->group_count; j++) {
            const report_group *other = &r->groups[j];
            if (strcmp(g->colour, other->colour)) continue;
            if (other->count > g->count || (other->count == g->count && j < i)) g->dash++;
        }
    }
}

int report_build(report *r, run *runs, size_t count)
{
    memset(r, 0, sizeof *r);
    r->runs = runs;
    r->run_count = count;
    qsort(runs, count, sizeof *runs, by_seed);
    for (size_t i = 1; i < count; i++)
        if (strcmp(runs[i].task, runs[0].task)) {
            fprintf(stderr, "blurry report: %s is of task %s, %s of task %s: report them apart\n",
                    runs[0].path, runs[0].task, runs[i].path, runs[i].task);
            return CLI_USAGE;
        }
    r->descends = runs[0].descends;
    r->metric = r->descends ? "bits per byte" : "accuracy";
    int rc = collect(r);
    if (rc == CLI_FAILED) fprintf(stderr, "blurry: out of memory\n");
    if (rc != CLI_OK) return rc;
    label_groups(r);
    rc = measure_groups(r);
    if (rc != CLI_OK) return rc;
    qsort(r->groups, r->group_count, sizeof *r->groups, by_state);
    choose_dashes(r);
    return CLI_OK;
}

void report_free(report *r)
{
    for (size_t i = 0; i < r->run_count; i++) run_free(&r->runs[i]);
    for (size_t i = 0; i < r->group_count; i++) free(r->groups[i].runs);
    free(r->runs);
    free(r->groups);
    memset(r, 0, sizeof *r);
}

void report_value(const report *r, double value, char text[32])
{
    if (!isfinite(value))
        snprintf(text, 32, "–");
    else if (r->descends)
        snprintf(text, 32, "%.3f", value);
    else
        snprintf(text, 32, "%.1f\u00a0%%", 100 * value);
}
