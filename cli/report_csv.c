/* Every number of the report as CSV (RFC 4180). */
#include "cli/report.h"

#include <math.h>
#include <string.h>

const char *const report_table_names[REPORT_TABLES] = {"groups", "runs", "curves", "masks", "kernels"};

static void quoted(FILE *to, const char *text)
{
    fputc('"', to);
    for (const char *c = text; *c; c++) {
        if (*c == '"') fputc('"', to);
        fputc(*c, to);
    }
    fputc('"', to);
}

/* Empty where there is no number. */
static void number(FILE *to, double value)
{
    fputc(',', to);
    if (isfinite(value)) fprintf(to, "%.9g", value);
}

void report_csv_groups(const report *r, FILE *to)
{
    fprintf(to, "group,mixer,state_elements,seeds,best_mean,best_deviation,best_low,best_high,final_mean\n");
    for (size_t i = 0; i < r->group_count; i++) {
        const report_group *g = &r->groups[i];
        quoted(to, g->label);
        fprintf(to, ",%s,%lld,%zu", g->mixer, (long long)g->state, g->count);
        number(to, g->mean);
        number(to, g->deviation);
        number(to, g->low);
        number(to, g->high);
        number(to, g->final_mean);
        fputc('\n', to);
    }
}

void report_csv_runs(const report *r, FILE *to)
{
    fprintf(to, "group,path,seed,parameters,steps,seconds,ended,best_step,best,final\n");
    for (size_t i = 0; i < r->group_count; i++)
        for (size_t k = 0; k < r->groups[i].count; k++) {
            const run *one = &r->runs[r->groups[i].runs[k]];
            quoted(to, r->groups[i].label);
            fputc(',', to);
            quoted(to, one->path);
            fprintf(to, ",%lld,%lld,%lld", (long long)run_integer(one, "seed"), (long long)one->parameters,
                    (long long)one->steps);
            number(to, one->seconds);
            fputc(',', to);
            quoted(to, one->reason);
            fprintf(to, ",%lld", (long long)one->evals[one->best].step);
            number(to, one->evals[one->best].metric);
            number(to, one->evals[one->count - 1].metric);
            fputc('\n', to);
        }
}

void report_csv_curves(const report *r, FILE *to)
{
    fprintf(to, "group,path,seed,step,%s,loss\n", r->descends ? "bits_per_byte" : "accuracy");
    for (size_t i = 0; i < r->group_count; i++)
        for (size_t k = 0; k < r->groups[i].count; k++) {
            const run *one = &r->runs[r->groups[i].runs[k]];
            for (size_t e = 0; e < one->count; e++) {
                quoted(to, r->groups[i].label);
                fputc(',', to);
                quoted(to, one->path);
                fprintf(to, ",%lld,%lld", (long long)run_integer(one, "seed"), (long long)one->evals[e].step);
                number(to, one->evals[e].metric);
                number(to, one->evals[e].loss);
                fputc('\n', to);
            }
        }
}

/* Groups by their place in the table of groups: this is by far the longest table. */
void report_csv_masks(const report_mask *masks, size_t count, FILE *to)
{
    fprintf(to, "group,layer,head,query,token,weight\n");
    for (size_t i = 0; i < count; i++) {
        const report_mask *m = &masks[i];
        for (int64_t t = 0; t < m->length; t++)
            for (int64_t u = 0; u <= t; u++) {
                double weight = m->weights[t * m->length + u];
                if (fabs(weight) < REPORT_MASK_LEAST) continue;
                fprintf(to, "%zu,%d,%d,%lld,%lld,%.3g\n", m->group + 1, m->layer, m->head, (long long)t,
                        (long long)u, weight);
            }
    }
}
