/* The figures of `blurry figure`, drawn from what the library computes. */
#ifndef BLURRY_CLI_FIGURE_H
#define BLURRY_CLI_FIGURE_H
#include "cli/plot.h"
#include <stdint.h>

typedef struct figure_options {
    int64_t modes;
    double resolution; /* T/S of the blurred case */
    uint64_t seed;     /* of the keys and queries that are shown */
} figure_options;

/* Each writes a whole figure to `p` (opened here) and every number in it to `csv`, and prints its own
 * message. */
int figure_kernels(plot *p, FILE *csv, const figure_options *options);
int figure_masks(plot *p, FILE *csv, const figure_options *options);

/* Panels of fig1, 160 points high: the slots' kernels over one period T, and what the slots hold of one key
 * channel. */
int figure_kernels_panel(plot *p, FILE *csv, const char *letter, int64_t M, double T, double left, double top,
                         double width);
int figure_slots_panel(plot *p, FILE *csv, const char *letter, int64_t M, double T, uint64_t seed,
                       double left, double top, double width);

/* A uniform number in [0, 1) that depends on seed and index alone. */
double figure_uniform(uint64_t seed, uint64_t index);

#endif
