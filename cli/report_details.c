/* The last part of the page: configuration, commands to go on, the numbers as files. */
#include "cli/report.h"
#include "cli/html.h"
#include "cli/cli.h"
#include "blurry/settings.h"

#include <string.h>

/* Whether every group has the same value of an option. */
static int common(const report *r, const char *key)
{
    char first[1024], other[1024];
    run_option(&r->runs[r->groups[0].runs[0]], key, first);
    for (size_t i = 1; i < r->group_count; i++)
        if (strcmp(first, run_option(&r->runs[r->groups[i].runs[0]], key, other))) return 0;
    return 1;
}

static int listed(const char *words, const char *word)
{
    char list[256], name[80];
    snprintf(list, sizeof list, " %s ", words);
    snprintf(name, sizeof name, " %s ", word);
    return strstr(list, name) != NULL;
}

/* Whether an option means anything for a group. */
static int concerns_group(const report *r, const report_group *g, const blurry_setting_info *info)
{
    return !*info->applies || !strcmp(g->mixer, "mixed") || listed(info->applies, g->mixer) ||
           listed(info->applies, r->runs[0].task);
}

/* Whether an option speaks about any of the report's mixers or its task. */
static int concerns(const report *r, const blurry_setting_info *info)
{
    for (size_t i = 0; i < r->group_count; i++)
        if (concerns_group(r, &r->groups[i], info)) return 1;
    return 0;
}

static void differing_table(FILE *to, const report *r)
{
    fputs("<div class=\"wide\"><table>\n<thead><tr><th>model</th>", to);
    blurry_setting_info info;
    for (size_t i = 0; i < blurry_settings_count(); i++)
        if (blurry_settings_describe(i, &info) == BLURRY_OK && strcmp(info.name, "seed") &&
            !common(r, info.name)) {
            fputs("<th>", to);
            html_text(to, info.name);
            fputs("</th>", to);
        }
    fputs("</tr></thead>\n<tbody>\n", to);
    for (size_t g = 0; g < r->group_count; g++) {
        char text[1024];
        fputs("<tr><td>", to);
        html_text(to, r->groups[g].label);
        fputs("</td>", to);
        for (size_t i = 0; i < blurry_settings_count(); i++) {
            if (blurry_settings_describe(i, &info) != BLURRY_OK || !strcmp(info.name, "seed") ||
                common(r, info.name))
                continue;
            fputs("<td>", to);
            int meant = concerns_group(r, &r->groups[g], &info);
            html_text(to, meant ? run_option(&r->runs[r->groups[g].runs[0]], info.name, text) : "–");
            fputs("</td>", to);
        }
        fputs("</tr>\n", to);
    }
    fputs("</tbody></table></div>\n", to);
}

void report_write_configuration(const report_page *page, FILE *to)
{
    const report *r = page->report;
    blurry_setting_info info;
    fputs("<h2>Configuration</h2>\n", to);
    if (r->group_count > 1) {
        fputs("<p>What the models differ in:</p>\n", to);
        differing_table(to, r);
    }
    fputs("<details><summary>What they share</summary>\n<div class=\"wide\"><table>\n<tbody>\n", to);
    for (size_t i = 0; i < blurry_settings_count(); i++) {
        char text[1024];
        if (blurry_settings_describe(i, &info) != BLURRY_OK || !strcmp(info.name, "seed")) continue;
        if (!common(r, info.name) || !concerns(r, &info)) continue;
        run_option(&r->runs[0], info.name, text);
        if (!*text) continue;
        fputs("<tr><td><code>", to);
        html_text(to, info.name);
        fputs("</code></td><td>", to);
        html_text(to, text);
        fputs("</td><td class=\"note\">", to);
        html_text(to, info.help);
        fputs("</td></tr>\n", to);
    }
    fputs("</tbody></table></div></details>\n", to);
}

/* `blurry train` with every option of the run that is not at its default. */
static void train_command(FILE *to, const run *r, const blurry_settings *defaults)
{
    fputs("blurry train ", to);
    html_shell_word(to, r->task);
    for (size_t i = 0; i < blurry_settings_count(); i++) {
        blurry_setting_info info;
        char text[1024], fallback[1024];
        if (blurry_settings_describe(i, &info) != BLURRY_OK || !strcmp(info.name, "task")) continue;
        if (info.group_bit == BLURRY_SETTINGS_RUN) continue;
        run_option(r, info.name, text);
        if (blurry_settings_get(defaults, info.name, fallback, sizeof fallback) != BLURRY_OK) continue;
        if (!strcmp(text, fallback)) continue;
        char assignment[1200];
        snprintf(assignment, sizeof assignment, "%s=%s", info.name, text);
        fputs(" --set ", to);
        html_shell_word(to, assignment);
    }
    fputs(" --out runs/new\n", to);
}

void report_write_commands(const report_page *page, FILE *to)
{
    const report *r = page->report;
    blurry_settings *defaults = NULL;
    fputs("<h2>Commands to go on</h2>\n<p>Train a model of this report again, or change it (another seed, "
          "more modes, a longer "
          "sequence):</p>\n<pre>",
          to);
    if (blurry_settings_create(&defaults) == BLURRY_OK)
        for (size_t i = 0; i < r->group_count && i < 12; i++) {
            fputs("# ", to);
            html_text(to, r->groups[i].label);
            fputs("\n", to);
            train_command(to, &r->runs[r->groups[i].runs[0]], defaults);
        }
    blurry_settings_destroy(&defaults);
    fputs("</pre>\n<p>Evaluate a run, and make this page again with more runs:</p>\n<pre>blurry eval ", to);
    html_shell_word(to, r->runs[r->groups[0].runs[0]].path);
    fputs("\nblurry report", to);
    for (size_t i = 0; i < r->run_count; i++) {
        fputs(" ", to);
        html_shell_word(to, r->runs[i].path);
    }
    fputs(" runs/new --out report.html</pre>\n<p>Draw the kernels and masks for other modes, or tabulate "
          "state sizes:</p>\n"
          "<pre>blurry figure fig1 --modes 16\nblurry figure fig2 --modes 8 --resolution 3\n"
          "blurry state-size --width 64,128,256 --modes 32 --window 63</pre>\n",
          to);
}

void report_write_downloads(const report_page *page, FILE *to)
{
    fputs("<footer class=\"note\">\n<p>Every number of this page as CSV, held in this file: ", to);
    const char *separator = "";
    for (int i = 0; i < REPORT_TABLES; i++) {
        if (!page->tables[i].text || !page->tables[i].size) continue;
        fprintf(to, "%s<a download=\"%s.csv\" href=\"", separator, report_table_names[i]);
        html_data_address(to, "text/csv", page->tables[i].text, page->tables[i].size);
        fprintf(to, "\">%s</a>", report_table_names[i]);
        separator = ", ";
    }
    fprintf(to, ".</p>\n<p>Made by blurry %s.</p>\n</footer>\n", blurry_version());
}
