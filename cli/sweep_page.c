/* The page of a results database: per sweep what it says, the figure, the ratios, what was swept, every
 * point. */
#include "cli/cli.h"
#include "cli/html.h"
#include "cli/report.h"
#include "cli/sweep_series.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static void value(const sweep_curves *c, double v, FILE *to)
{
    if (c->descends)
        fprintf(to, "%.3f", v);
    else
        fprintf(to, "%.1f\u00a0%%", 100 * v);
}

/* Below this accuracy a series has not learnt the task, and the states it takes say nothing. */
static const double LEARNT = 0.3;

/* ---- equal accuracy ---- */
static int by_state(const sweep_curves *c)
{
    return c->figure == SWEEP_PARETO || c->figure == SWEEP_STATE;
}

static double reached(const sweep_curves *c, const sweep_series *s)
{
    double best = s->point[0].best;
    for (int i = 1; i < s->count; i++)
        best = c->descends ? fmin(best, s->point[i].best) : fmax(best, s->point[i].best);
    return best;
}

/* "To reach 97.1 %, swa needs 4.6 times the state of blurry." for each other series, at the best both reach.
 */
static void ratio_sentences(const sweep_curves *c, FILE *to)
{
    const sweep_series *reference = sweep_reference(c);
    for (int i = 0; reference && by_state(c) && i < c->count; i++) {
        const sweep_series *s = &c->series[i];
        if (s == reference || s->full) continue;
        double a = reached(c, s), b = reached(c, reference), level = c->descends ? fmax(a, b) : fmin(a, b);
        int64_t mine = sweep_state_for(c, reference, level), theirs = sweep_state_for(c, s, level);
        if (!mine || !theirs) continue;
        if (!c->descends && level < LEARNT) {
            fputs("<p>No comparison with <strong>", to);
            html_text(to, s->name);
            fputs("</strong>: ", to);
            html_text(to, a < b ? s->name : reference->name);
            fputs(" did not get beyond ", to);
            value(c, level, to);
            fputs(" with what was tried.</p>\n", to);
            continue;
        }
        fputs("<p class=\"lead\">To reach ", to);
        value(c, level, to);
        fputs(", the most that both reach, <strong>", to);
        html_text(to, s->name);
        fprintf(to, "</strong> needs <strong>%.2g times</strong> the state of <strong>",
                (double)theirs / (double)mine);
        html_text(to, reference->name);
        fprintf(to, "</strong> (%" PRId64 " against %" PRId64 " numbers).</p>\n", theirs, mine);
    }
}

static void ratio_table(const sweep_curves *c, FILE *to)
{
    static const double levels[] = {0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99};
    const sweep_series *reference = sweep_reference(c);
    if (!reference || !by_state(c) || c->descends || c->count < 2) return;
    fputs("<h3>State needed for an accuracy</h3>\n<p class=\"note\">The smallest state that was tried and "
          "reached it, and "
          "how many times that of ",
          to);
    html_text(to, reference->name);
    fputs(" it is.</p>\n<div class=\"wide\"><table>\n<thead><tr><th>accuracy</th>", to);
    for (int i = 0; i < c->count; i++) {
        fputs("<th class=\"n\">", to);
        html_text(to, c->series[i].name);
        fputs("</th>", to);
    }
    fputs("</tr></thead>\n<tbody>\n", to);
    for (size_t l = 0; l < sizeof levels / sizeof levels[0]; l++) {
        int64_t mine = sweep_state_for(c, reference, levels[l]);
        fprintf(to, "<tr><td>%.0f\u00a0%%</td>", 100 * levels[l]);
        for (int i = 0; i < c->count; i++) {
            int64_t state = sweep_state_for(c, &c->series[i], levels[l]);
            if (!state)
                fputs("<td class=\"n\">–</td>", to);
            else if (mine && &c->series[i] != reference)
                fprintf(to, "<td class=\"n\">%" PRId64 " (×%.2g)</td>", state, (double)state / (double)mine);
            else
                fprintf(to, "<td class=\"n\">%" PRId64 "</td>", state);
        }
        fputs("</tr>\n", to);
    }
    fputs("</tbody></table></div>\n", to);
}

/* ---- what was swept ---- */
static int seen_before(const sweep_curves *c, int64_t index, const char *key, const char *text)
{
    char other[1024];
    for (int64_t i = 0; i < index; i++)
        if (blurry_settings_get(c->run[i]->settings, key, other, sizeof other) == BLURRY_OK &&
            !strcmp(other, text))
            return 1;
    return 0;
}

static int varies(const sweep_curves *c, const char *key)
{
    char first[1024], other[1024];
    if (!c->total || blurry_settings_get(c->run[0]->settings, key, first, sizeof first) != BLURRY_OK)
        return 0;
    for (int64_t i = 1; i < c->total; i++)
        if (blurry_settings_get(c->run[i]->settings, key, other, sizeof other) == BLURRY_OK &&
            strcmp(first, other))
            return 1;
    return 0;
}

static void swept_rows(const sweep_curves *c, FILE *to)
{
    for (size_t k = 0; k < blurry_settings_count(); k++) {
        blurry_setting_info info;
        char text[1024];
        if (blurry_settings_describe(k, &info) != BLURRY_OK || info.group_bit == BLURRY_SETTINGS_RUN)
            continue;
        if (!varies(c, info.name)) continue;
        fprintf(to, "<tr><td><code>%s</code></td><td style=\"white-space:normal\">", info.name);
        const char *separator = "";
        for (int64_t i = 0; i < c->total; i++) {
            if (blurry_settings_get(c->run[i]->settings, info.name, text, sizeof text) != BLURRY_OK) continue;
            if (seen_before(c, i, info.name, text)) continue;
            fputs(separator, to);
            html_text(to, *text ? text : "(empty)");
            separator = "; ";
        }
        fputs("</td></tr>\n", to);
    }
}

/* Settings that all runs share and that are not at their default. */
static void fixed_list(const sweep_curves *c, FILE *to)
{
    const char *separator = "";
    for (size_t k = 0; c->total && k < blurry_settings_count(); k++) {
        blurry_setting_info info;
        char text[1024];
        if (blurry_settings_describe(k, &info) != BLURRY_OK || info.group_bit == BLURRY_SETTINGS_RUN)
            continue;
        if (varies(c, info.name) ||
            blurry_settings_get(c->run[0]->settings, info.name, text, sizeof text) != BLURRY_OK)
            continue;
        if (!strcmp(text, info.fallback)) continue;
        fprintf(to, "%s%s ", separator, info.name);
        html_text(to, text);
        separator = ", ";
    }
}

static void swept_section(const sweep_curves *c, FILE *to)
{
    double seconds = 0;
    for (int64_t i = 0; i < c->total; i++)
        if (isfinite(c->run[i]->seconds)) seconds += c->run[i]->seconds;
    fputs("<h3>What was swept</h3>\n<div class=\"wide\"><table>\n<tbody>\n", to);
    swept_rows(c, to);
    fprintf(to,
            "</tbody></table></div>\n<p class=\"note\">%" PRId64 " runs: %" PRId64 " done, %" PRId64
            " diverged, %" PRId64 " failed, %" PRId64
            " not finished. %.0f seconds of training. The same in all: ",
            c->total, c->done, c->diverged, c->failed, c->open, seconds);
    fixed_list(c, to);
    fputs(".</p>\n", to);
}

/* ---- points ---- */
static void points_table(const sweep_curves *c, FILE *to)
{
    static const char *const names[SWEEP_FIGURES] = {"state", "state", "T/S", "width", "choice"};
    fprintf(
        to,
        "<details><summary>All points</summary>\n<div class=\"wide\"><table>\n<thead><tr><th>series</th><th "
        "class=\"n\">%s</th><th class=\"n\">state</th><th class=\"n\">best</th><th class=\"n\">mean</th><th "
        "class=\"n\">from</th><th class=\"n\">to</th><th class=\"n\">seeds</th><th "
        "class=\"n\">runs</th><th>best "
        "configuration</th></tr></thead>\n<tbody>\n",
        names[c->figure]);
    for (int i = 0; i < c->count; i++)
        for (int k = 0; k < c->series[i].count; k++) {
            const sweep_point *p = &c->series[i].point[k];
            fprintf(to, "<tr><td><span class=\"dot\" style=\"color:var(--%s)\">●</span>",
                    c->series[i].colour);
            html_text(to, c->series[i].name);
            fputs("</td><td class=\"n\">", to);
            if (c->figure == SWEEP_CHOICES)
                html_text(to, c->choice[(int)p->x]);
            else
                fprintf(to, "%.6g", p->x);
            fprintf(to, "</td><td class=\"n\">%" PRId64 "</td>", p->state);
            const double values[] = {p->best, p->mean, p->low, p->high};
            for (int v = 0; v < 4; v++) {
                fputs("<td class=\"n\">", to);
                value(c, values[v], to);
                fputs("</td>", to);
            }
            fprintf(to, "<td class=\"n\">%d</td><td class=\"n\">%d</td><td>", p->seeds, p->runs);
            html_text(to, p->config);
            fputs("</td></tr>\n", to);
        }
    fputs("</tbody></table></div></details>\n", to);
}

static const char *caption(const sweep_curves *c)
{
    switch (c->figure) {
    case SWEEP_PARETO:
        return "Best validation result against state size. Small circles: every run; steps: the front of "
               "each series, the best "
               "of all that was tried with at most that state. Dashed: full attention.";
    case SWEEP_STATE:
        return "Best validation result at each state size (the best of all seeds and settings tried). Small "
               "circles: every run. "
               "Dashed: full attention.";
    case SWEEP_CHOICES:
        return "Small circles: every run; marks: mean over seeds of the best learning rate; bars: lowest to "
               "highest seed.";
    default:
        return "Small circles: every run; lines: mean over the seeds of the best of the other settings; "
               "bars: lowest to highest "
               "seed.";
    }
}

static void section(const sweep_curves *c, const char *drawing, FILE *to)
{
    fputs("<h2>", to);
    html_text(to, c->title);
    fputs("</h2>\n", to);
    if (!c->count) {
        fputs("<p>No run of this sweep has a result yet.</p>\n", to);
        return;
    }
    ratio_sentences(c, to);
    if (drawing) fprintf(to, "<figure>\n%s<figcaption>%s</figcaption>\n</figure>\n", drawing, caption(c));
    ratio_table(c, to);
    swept_section(c, to);
    points_table(c, to);
}

void sweep_page_write(const sweep_curves *curves, char *const *drawings, int count, const char *database,
                      FILE *to)
{
    fputs("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
          "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>Sweeps</title>\n",
          to);
    report_write_style(to);
    fprintf(to, "</head>\n<body>\n<main>\n<p class=\"kicker\">blurry %s · ", blurry_version());
    html_text(to, database);
    fputs("</p>\n<h1>Accuracy against memory</h1>\n", to);
    for (int i = 0; i < count; i++) section(&curves[i], drawings[i], to);
    fputs("</main>\n</body>\n</html>\n", to);
}

void sweep_csv_write(const sweep_curves *c, FILE *to)
{
    fputs("series,x,state,best,mean,low,high,seeds,runs,front\n", to);
    for (int i = 0; i < c->count; i++)
        for (int k = 0; k < c->series[i].count; k++) {
            const sweep_point *p = &c->series[i].point[k];
            fprintf(to, "%s,%.9g,%" PRId64 ",%.9g,%.9g,%.9g,%.9g,%d,%d,%d\n", c->series[i].name, p->x,
                    p->state, p->best, p->mean, p->low, p->high, p->seeds, p->runs, p->front);
        }
}
