/* The report as one HTML page: what was found first, then the figures, then what is needed to go on. */
#include "cli/report.h"
#include "cli/html.h"
#include "cli/cli.h"
#include "blurry/settings.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static void option(FILE *to, const run *r, const char *key)
{
    char text[1024];
    html_text(to, run_option(r, key, text));
}

/* "97.1 % (3 seeds: 96.5 % to 97.8 %)" */
static void spread(FILE *to, const report *r, const report_group *g)
{
    char mean[32], low[32], high[32];
    report_value(r, g->mean, mean);
    report_value(r, g->low, low);
    report_value(r, g->high, high);
    fprintf(to, "%s", mean);
    if (g->count > 1)
        fprintf(to, " (%zu seeds: %s to %s)", g->count, low, high);
    else
        fprintf(to, " (one seed)");
}

static void task_sentence(FILE *to, const report *r)
{
    const run *first = &r->runs[0];
    if (!strcmp(first->task, "mqar")) {
        fputs("Multi-query associative recall: each sequence of ", to);
        option(to, first, "length");
        fputs(" tokens lists ", to);
        option(to, first, "pairs");
        fputs(" random key–value pairs once and later asks for the value of every key. Accuracy is the share "
              "of values "
              "recalled on sequences never trained on; guessing any of the ",
              to);
        fprintf(to, "%" PRId64 " values is right in %.2g\u00a0%% of cases.", run_integer(first, "vocab") / 2,
                200.0 / (double)(run_integer(first, "vocab") > 1 ? run_integer(first, "vocab") : 2));
    } else if (!strcmp(first->task, "regbench")) {
        fputs("RegBench: each document holds strings of one random regular language, a different one every "
              "time. "
              "Accuracy is the share of predictions that are legal in the language's current state.",
              to);
    } else if (!strcmp(first->task, "text")) {
        fputs("Next-byte prediction on text. Less is better: bits per byte on text kept for validation.", to);
    }
}

/* The groups that hold the same state as group i, i the first of them: compared in one sentence. */
static void equal_state_sentences(FILE *to, const report *r)
{
    for (size_t i = 0; i < r->group_count; i++) {
        const report_group *a = &r->groups[i];
        size_t peers = 0;
        int first = 1;
        for (size_t j = 0; j < r->group_count; j++) {
            if (r->groups[j].full || a->full || r->groups[j].state != a->state) continue;
            if (j < i) first = 0;
            peers++;
        }
        if (!first || peers < 2) continue;
        fprintf(to, "<p class=\"lead\">With the same state of %" PRId64 " numbers: ", a->state);
        size_t said = 0;
        for (size_t j = i; j < r->group_count; j++) {
            const report_group *g = &r->groups[j];
            if (g->full || g->state != a->state) continue;
            fprintf(to, "%s<strong>", said ? (said + 1 == peers ? " and " : ", ") : "");
            html_text(to, g->label);
            fputs("</strong> reaches ", to);
            spread(to, r, g);
            said++;
        }
        fputs(".</p>\n", to);
    }
    for (size_t i = 0; i < r->group_count; i++) {
        if (!r->groups[i].full) continue;
        fputs("<p>Full attention, the ceiling, reaches ", to);
        spread(to, r, &r->groups[i]);
        fprintf(to, " with a state that grows with the sequence, here to %" PRId64 " numbers.</p>\n",
                r->groups[i].state);
    }
}

/* A label whose "M = 8" never breaks across lines. */
static void label(FILE *to, const report_group *g)
{
    for (const char *c = g->label; *c; c++) {
        char one[2] = {*c, 0};
        int beside_equals = *c == ' ' && (c[1] == '=' || (c > g->label && c[-1] == '='));
        if (beside_equals)
            fputs("&#160;", to);
        else
            html_text(to,
                      (unsigned char)*c < 0x80 ? one : "?"); /* labels are ASCII but for odd option values */
    }
}

static void tiles(FILE *to, const report *r)
{
    if (r->group_count > 8) return;
    fputs("<ul class=\"tiles\">\n", to);
    for (size_t i = 0; i < r->group_count; i++) {
        const report_group *g = &r->groups[i];
        char mean[32], deviation[32];
        report_value(r, g->mean, mean);
        report_value(r, g->deviation, deviation);
        fprintf(to, "<li style=\"--tint:var(--%s)\"><b>%s</b><span>", g->colour, mean);
        label(to, g);
        fprintf(to, "</span><span class=\"note\">%s%" PRId64 " numbers of state", g->full ? "up to " : "",
                g->state);
        if (g->count > 1)
            fprintf(to, "<br>%zu seeds, standard deviation %s", g->count, deviation);
        else
            fputs("<br>one seed", to);
        fputs("</span></li>\n", to);
    }
    fputs("</ul>\n", to);
}

static void legend(FILE *to, const report *r)
{
    static const char *const dashes[] = {"", "8 4", "2 3", "8 3 2 3", "10 3 2 3 2 3"};
    fputs("<ul class=\"legend\">\n", to);
    for (size_t i = 0; i < r->group_count; i++) {
        const report_group *g = &r->groups[i];
        fprintf(
            to,
            "<li><svg viewBox=\"0 0 28 10\" aria-hidden=\"true\"><path d=\"M0 5H28\" stroke=\"var(--%s)\" "
            "stroke-width=\"3\" stroke-dasharray=\"%s\"/></svg>",
            g->colour, (g->dash - 1) % 5 ? dashes[(g->dash - 1) % 5] : "none");
        html_text(to, g->label);
        fputs("</li>\n", to);
    }
    fputs("</ul>\n", to);
}

static void drawing(FILE *to, const report_drawing *d, const char *caption)
{
    if (!d->svg) return;
    fputs("<figure>\n", to);
    fputs(d->svg, to);
    fprintf(to, "<figcaption>%s</figcaption>\n</figure>\n", caption);
}

static void result_figures(FILE *to, const report_page *page)
{
    fputs("<h2>Learning, and what it costs in state</h2>\n", to);
    legend(to, page->report);
    fputs("<div class=\"figures\">\n", to);
    drawing(
        to, &page->training,
        "Validation during training. Lines: mean over seeds; bands: from the lowest seed to the highest.");
    drawing(to, &page->state,
            "Best validation result against the memory a model carries from token to token. Small circles: "
            "single seeds; dots: means; bars: lowest to highest. Dashed: full attention.");
    fputs("</div>\n", to);
}

static void runs_table(FILE *to, const report *r)
{
    fprintf(to,
            "<div class=\"wide\"><table>\n<thead><tr><th>model</th><th class=\"n\">seed</th><th "
            "class=\"n\">best %s</th>"
            "<th class=\"n\">at step</th><th class=\"n\">last %s</th><th class=\"n\">steps</th><th "
            "class=\"n\">time</th>"
            "<th class=\"n\">state</th></tr></thead>\n<tbody>\n",
            r->metric, r->metric);
    for (size_t i = 0; i < r->group_count; i++)
        for (size_t k = 0; k < r->groups[i].count; k++) {
            const report_group *g = &r->groups[i];
            const run *one = &r->runs[g->runs[k]];
            char best[32], last[32];
            report_value(r, one->evals[one->best].metric, best);
            report_value(r, one->evals[one->count - 1].metric, last);
            fprintf(to, "<tr><td><span class=\"dot\" style=\"color:var(--%s)\">●</span>", g->colour);
            html_text(to, g->label);
            fputs("</td><td class=\"n\">", to);
            option(to, one, "seed");
            fprintf(to,
                    "</td><td class=\"n\">%s</td><td class=\"n\">%" PRId64 "</td><td class=\"n\">%s</td>"
                    "<td class=\"n\">%" PRId64 "</td><td class=\"n\">",
                    best, one->evals[one->best].step, last, one->steps);
            if (isfinite(one->seconds)) fprintf(to, "%.0f s", one->seconds);
            fprintf(to, "</td><td class=\"n\">%" PRId64 "</td></tr>\n", g->state);
        }
    fputs("</tbody></table></div>\n", to);
}

/* Named above, not below: on a phone the masks stand in one long column. */
static void mask_drawing(FILE *to, const report_page *page, size_t i)
{
    const report_group *g = &page->report->groups[page->masks[i].group];
    if (!page->mask_drawings[i].svg) return;
    fprintf(to, "<figure>\n<figcaption><span class=\"dot\" style=\"color:var(--%s)\">●</span>", g->colour);
    html_text(to, g->label);
    fputs("</figcaption>\n", to);
    fputs(page->mask_drawings[i].svg, to);
    fputs("</figure>\n", to);
}

static void masks_section(FILE *to, const report_page *page)
{
    if (!page->mask_count) return;
    fputs("<h2>What the trained models look at</h2>\n"
          "<p>One validation sequence through the first run of each model. Rows are queries, columns the "
          "tokens before "
          "them; a cell's colour is the weight with which that token's value enters the head's output. "
          "Shaded cells can be "
          "reached, blank ones cannot. Circles mark where the answer to a labelled query stands: a model "
          "that recalls has "
          "strong colour there (or up to three tokens later, where a short convolution carried it), and a "
          "window that has moved on cannot.</p>\n"
          "<p class=\"note\">below zero<span class=\"scale\">&#160;</span>1. Weights under 2 % are not "
          "drawn.</p>\n",
          to);
    int layers = 0;
    for (size_t i = 0; i < page->mask_count; i++)
        if (page->masks[i].layer >= layers) layers = page->masks[i].layer + 1;
    for (int layer = 0; layer < layers; layer++) {
        fprintf(to, "<h3>Layer %d</h3>\n<div class=\"figures masks\">\n", layer + 1);
        for (size_t i = 0; i < page->mask_count; i++)
            if (page->masks[i].layer == layer) mask_drawing(to, page, i);
        fputs("</div>\n", to);
    }
}

static void kernels_section(FILE *to, const report_page *page)
{
    if (!page->kernels.svg) return;
    fprintf(
        to,
        "<h2>How a token is written</h2>\n<p>Blurry window attention keeps S = 2M − 1 slots (here M = "
        "%" PRId64 ", S = %" PRId64
        ") and adds each token to all of them, weighted by a Dirichlet kernel that peaks at one "
        "slot. With a period of T = %.4g tokens a slot stands for %.3g tokens, so neighbours share slots and "
        "what is older than T is added on top: the window is blurred instead of cut off.</p>\n"
        "<div class=\"figures\">\n",
        page->modes, 2 * page->modes - 1, page->period, page->period / (double)(2 * page->modes - 1));
    drawing(to, &page->kernels,
            "The kernels of all slots over one period; dots: the weights that tokens get on three of them.");
    drawing(to, &page->slots, "One channel of random keys, and what the slots hold of it after one period.");
    fputs("</div>\n", to);
}

void report_write_html(const report_page *page, FILE *to)
{
    const report *r = page->report;
    fputs("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
          "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>",
          to);
    html_text(to, r->runs[0].task);
    fprintf(to, ": %s against state size</title>\n", r->metric);
    report_write_style(to);
    fprintf(to, "</head>\n<body>\n<main>\n<p class=\"kicker\">blurry %s · %zu run%s</p>\n<h1>",
            blurry_version(), r->run_count, r->run_count == 1 ? "" : "s");
    fputs(!strcmp(r->runs[0].task, "mqar") ? "How much can a bounded memory recall?"
                                           : "Accuracy against memory",
          to);
    fputs("</h1>\n", to);
    equal_state_sentences(to, r);
    fputs("<p>", to);
    task_sentence(to, r);
    fputs("</p>\n", to);
    tiles(to, r);
    result_figures(to, page);
    runs_table(to, r);
    masks_section(to, page);
    kernels_section(to, page);
    report_write_configuration(page, to);
    report_write_commands(page, to);
    report_write_downloads(page, to);
    fputs("</main>\n</body>\n</html>\n", to);
}
