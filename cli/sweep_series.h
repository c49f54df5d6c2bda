/* The runs of a sweep as curves: one series per group of its file, one point per place on the figure's axis,
 * one configuration per point chosen from those that were tried, its seeds as spread. */
#ifndef BLURRY_CLI_SWEEP_SERIES_H
#define BLURRY_CLI_SWEEP_SERIES_H
#include "blurry/sweep.h"
#include "cli/plot.h"

typedef enum sweep_figure {
    SWEEP_PARETO,     /* best of everything against state size, the front drawn */
    SWEEP_STATE,      /* the same with every state size joined */
    SWEEP_RESOLUTION, /* against T/S */
    SWEEP_WIDTH,      /* against the model's width */
    SWEEP_CHOICES,    /* configurations side by side */
    SWEEP_FIGURES
} sweep_figure;

/* CLI_USAGE after a message where the name is not known. */
int sweep_figure_parse(const char *name, sweep_figure *figure);

/* One place on the axis. Values are of each run's best evaluation. */
typedef struct sweep_point {
    double x;
    int64_t state;
    double best;            /* of all runs here */
    double mean, low, high; /* over the seeds of the best configuration, the one with the highest mean */
    int seeds, runs;
    char config[128];             /* what that configuration chose: "lr 0.003" */
    int front;                    /* SWEEP_PARETO: no point with less state is as good */
    const blurry_result **result; /* [runs] */
} sweep_point;

typedef struct sweep_series {
    char name[64];
    const char *colour; /* role of the palette */
    int dash;           /* 1, 2, ...: tells series of one colour apart */
    int full;           /* full attention: its state grows */
    sweep_point *point; /* [count] by x */
    int count;
} sweep_series;

typedef struct sweep_curves {
    const char *name, *title; /* of the sweep */
    sweep_figure figure;
    int descends; /* less is better */
    const char *metric;
    sweep_series *series;
    int count;
    char **choice; /* SWEEP_CHOICES: names of x = 0, 1, ... */
    int choice_count;
    int64_t total, done, diverged, failed, open; /* runs of the sweep */
    blurry_result *all;                          /* of the database */
    const blurry_result **run;                   /* [total] of this sweep, into `all` */
} sweep_curves;

/* figure < 0: as the sweep's file says. */
int sweep_curves_build(sweep_curves *c, const blurry_results *results, const blurry_results_sweep *sweep,
                       int figure);
void sweep_curves_free(sweep_curves *c);

/* The smallest state with which a series reaches a value; 0: it does not. */
int64_t sweep_state_for(const sweep_curves *c, const sweep_series *s, double value);
/* The series that others are compared with: the first one of blurry attention, else the first. */
const sweep_series *sweep_reference(const sweep_curves *c);

int sweep_plot(const sweep_curves *c, plot *p);
/* The page: one section for each of curves [count], with its drawing. */
void sweep_page_write(const sweep_curves *curves, char *const *drawings, int count, const char *database,
                      FILE *to);
void sweep_csv_write(const sweep_curves *c, FILE *to);

#endif
