/* Shows a training run: one refreshed line on a terminal, the log's JSON lines anywhere else. */
#ifndef BLURRY_CLI_PROGRESS_H
#define BLURRY_CLI_PROGRESS_H
#include "blurry/train.h"

#include <stdio.h>

typedef struct progress_view {
    FILE *to;
    long long pause_at; /* ask the run to stop at this step; 0: never */
    int quiet;          /* show nothing */
    int begun;          /* the run directory was set up or found */
    int terminal;       /* draw a line instead of writing JSON */
    const char *title;  /* what is trained, for the line */
    double smooth_loss; /* moving average for the eye; the log has the exact values */
    int have_loss, line_open;
    double drawn_at;      /* progress seconds at the last drawing */
    blurry_progress last; /* what the end looked like (its pointers are not kept) */
    char end_reason[16];
} progress_view;

void progress_open(progress_view *view, FILE *to, const char *title, int quiet);
/* A blurry_progress_fn; `context` is the view. Asks the run to stop after SIGINT or SIGTERM. */
int progress_show(void *context, const blurry_progress *progress);
/* Ends an open line, so that other output starts on a fresh one. */
void progress_close(progress_view *view);

#endif
