/* A sweep file as it was read, and the list of runs it stands for.
 *
 *     name: fig3b            how the sweep is called in the database (default: the file's name)
 *     title: ...             one line for reports
 *     figure: resolution     what the report draws
 *     preset: mqar-paper     settings to start from
 *     base: {...}            settings of every run
 *     axes: {...}            each a list of values; runs are all combinations, the last axis changing fastest
 *     groups:                each with its own base and axes
 *       NAME: {base: {...}, axes: {...}}
 *     exclude: [{...}]       combinations to leave out
 *
 * A value of an axis is a text, or a map of several settings that change together; then the axis' name is
 * free. The axis state_elements chooses each mixer's size so that one layer's state comes nearest below a
 * number. */
#ifndef BLURRY_SWEEP_GRID_H
#define BLURRY_SWEEP_GRID_H
#include "base/settings.h"
#include "base/status.h"
#include "blurry/sweep.h"

#include <stdbool.h>

enum { GRID_NAME = 64, GRID_RUNS_MAX = 1000000, GRID_AXES_MAX = 32 };
#define GRID_MATCH_STATE "state_elements" /* the axis that is no setting */

typedef struct grid_pair {
    char key[GRID_NAME];
    char text[SETTINGS_TEXT];
    int line;
} grid_pair;

typedef struct grid_pairs {
    grid_pair *pair;
    int count, capacity;
} grid_pairs;

typedef struct grid_axis {
    char name[GRID_NAME];
    int line;
    grid_pairs *value; /* [count] the settings that each value makes */
    int count;
} grid_axis;

typedef struct grid_axes {
    grid_axis *axis;
    int count;
} grid_axes;

typedef struct grid_group {
    char name[GRID_NAME];
    int line;
    grid_pairs base;
    grid_axes axes;
    bool wanted;
} grid_group;

typedef struct grid_exclusion {
    grid_pairs pairs;
    int line;
    int64_t hits;
} grid_exclusion;

typedef struct grid {
    const char *file; /* in messages */
    char name[GRID_NAME], title[256], figure[GRID_NAME], preset[GRID_NAME];
    int preset_line;
    grid_pairs base;
    grid_axes axes;
    grid_group *group;
    int group_count;
    grid_exclusion *exclusion;
    int exclusion_count;
} grid;

typedef struct grid_run {
    char key[65];
    char *label;
    int group; /* index */
    blurry_settings *settings;
    int64_t steps, state_elements, parameters;
    double work, bytes;
    bool descends; /* less of the metric is better */
} grid_run;

struct blurry_sweep {
    grid grid;
    char *file, *text; /* the file's name and content */
    grid_run *run;
    int64_t count, capacity;
};

/* Reads the text; what it built so far is there to be freed also after a failure. */
blurry_status grid_parse(grid *g, const char *text, size_t length, const char *file);
void grid_free(grid *g);

/* Fills sweep->run from sweep->grid. */
blurry_status grid_expand(blurry_sweep *sweep, const blurry_sweep_choice *choice);

/* Whether a run can be carried out, and what it costs; the settings' own message says what is wrong. `cache`
 * remembers tasks that were looked at. */
typedef struct check_cache check_cache;
blurry_status grid_check(grid_run *run, check_cache **cache);
void grid_check_free(check_cache **cache);

/* Sets the size option of the settings' mixer so that one layer's state has at most `elements`, as many as it
 * can. */
blurry_status grid_match_state(blurry_settings *settings, int64_t elements);

/* SHA-256 over the settings that differ from their defaults: a new option with a default leaves old keys as
 * they are. */
void grid_key(const blurry_settings *settings, char hex[65]);

/* "file:line: message" */
blurry_status grid_fail(const grid *g, int line, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
blurry_status grid_context(const grid *g, int line, blurry_status status);

#endif
