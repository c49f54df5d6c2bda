/* Shows a sweep under way: a refreshed block on a terminal, a line per run that ended anywhere else. */
#ifndef BLURRY_CLI_SWEEP_VIEW_H
#define BLURRY_CLI_SWEEP_VIEW_H
#include "blurry/sweep.h"

#include <stdio.h>

typedef struct sweep_view {
    const blurry_sweep *sweep;
    FILE *to;
    int quiet, terminal;
    int lines; /* of the block on the terminal now */
} sweep_view;

/* Also makes SIGINT and SIGTERM ask the sweep to stop; a second one ends the process at once. */
void sweep_view_open(sweep_view *view, const blurry_sweep *sweep, int quiet);
/* A blurry_sweep_progress_fn; `context` is the view. */
int sweep_view_show(void *context, const blurry_sweep_progress *progress);

#endif
