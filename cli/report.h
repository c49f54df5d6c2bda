/* `blurry report`: runs -> groups (equal but for the seed) -> figures, tables and one HTML page. */
#ifndef BLURRY_CLI_REPORT_H
#define BLURRY_CLI_REPORT_H
#include "cli/plot.h"
#include "cli/run_read.h"

/* Runs that differ in nothing but the seed. Metrics are of each run's best evaluation. */
typedef struct report_group {
    char label[160];    /* plain text, for example "blurry window, M = 8" */
    char mixer[64];     /* the setting, "mixed" where layers differ */
    const char *colour; /* role of the palette */
    int dash;           /* 1, 2, ...: tells groups of one colour apart */
    int full;           /* full attention: its state grows with the sequence */
    size_t *runs;       /* indices, by seed */
    size_t count;
    int64_t state;                     /* elements, all layers together, after the task's length */
    double mean, deviation, low, high; /* deviation: sample standard deviation, NaN for one run */
    double final_mean;                 /* of the last evaluations */
} report_group;

typedef struct report {
    run *runs;
    size_t run_count;
    report_group *groups; /* full attention last, else by state size */
    size_t group_count;
    int64_t length;     /* of the task's sequences */
    const char *metric; /* "accuracy" or "bits per byte" */
    int descends;
} report;

/* The role of the palette that a mixer has in every figure. */
const char *report_colour(const char *mixer);

/* Sorts the runs into groups; takes them over. Prints its own message. */
int report_build(report *r, run *runs, size_t count);
void report_free(report *r);

/* Metric over training, one line per group (mean) with a band from the lowest to the highest seed. */
int report_plot_training(const report *r, plot *p);
/* Metric against state size: each seed, mean and spread. */
int report_plot_state(const report *r, plot *p);

/* A logarithmic x axis with ticks at 1, 2 and 5 times powers of ten, fewer where it is long. */
void report_log_axis(FILE *to, double from, double end);

/* Attention of a trained model on a validation sample. */
typedef struct report_mask {
    size_t group;
    int layer, head;
    int64_t length;
    double *weights;        /* [L, L] */
    unsigned char *open;    /* [L, L] */
    int64_t *query, *value; /* labelled positions, and where their answer stands (-1: not in the sequence) */
    int64_t queries;
} report_mask;

#define REPORT_MASK_LEAST 0.02 /* smaller weights are neither drawn nor listed */

/* The masks of every group's first run, all layers, first head; groups whose model has none are left out. */
int report_masks(const report *r, report_mask **masks, size_t *count);
void report_masks_free(report_mask *masks, size_t count);
int report_plot_mask(const report_mask *mask, plot *p);

/* One figure of the page: drawn once, for both themes. */
typedef struct report_drawing {
    char name[64]; /* id in the page and file name of its PNG */
    char *svg;     /* NULL: this report has no such figure */
} report_drawing;

enum report_table { REPORT_GROUPS, REPORT_RUNS, REPORT_CURVES, REPORT_MASKS, REPORT_KERNELS, REPORT_TABLES };

/* Everything the page shows. */
typedef struct report_page {
    const report *report;
    const report_mask *masks;
    size_t mask_count;
    report_drawing training, state, kernels, slots;
    report_drawing *mask_drawings; /* [mask_count] */
    int64_t modes;                 /* of the kernels shown */
    double period;
    output_text tables[REPORT_TABLES]; /* the numbers as CSV, closed */
} report_page;

extern const char *const report_table_names[REPORT_TABLES]; /* "groups", ... */

/* Each appends the table's rows to an open stream. */
void report_csv_groups(const report *r, FILE *to);
void report_csv_runs(const report *r, FILE *to);
void report_csv_curves(const report *r, FILE *to);
void report_csv_masks(const report_mask *masks, size_t count, FILE *to);

/* The whole page. */
void report_write_html(const report_page *page, FILE *to);
void report_write_style(FILE *to);
void report_write_configuration(const report_page *page, FILE *to);
void report_write_commands(const report_page *page, FILE *to);
void report_write_downloads(const report_page *page, FILE *to);

/* a number as the page prints metrics: 97.3 % or 1.85 */
void report_value(const report *r, double value, char text[32]);

#endif
