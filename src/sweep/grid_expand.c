/* From a grid to its runs: all combinations of the axes of each group, checked one by one. */
#include "base/settings_table.h"
#include "blurry/train.h"
#include "sweep/grid.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One group on its way: its axes, shared ones first, and the place on each. */
typedef struct expansion {
    blurry_sweep *sweep;
    const grid *g;
    const grid_group *group;
    int group_index;
    const grid_axis *axis[2 * GRID_AXES_MAX];
    int place[2 * GRID_AXES_MAX];
    int axes;
    const blurry_sweep_choice *choice;
    check_cache **cache;
} expansion;

/* ---- contradictions ---- */
/* The axis value that sets `key`, NULL: none does. All values of an axis are looked at. */
static const grid_pair *pair_of_axis(const grid_axis *axis, const char *key)
{
    for (int i = 0; i < axis->count; i++)
        for (int k = 0; k < axis->value[i].count; k++)
            if (!strcmp(axis->value[i].pair[k].key, key)) return &axis->value[i].pair[k];
    return NULL;
}

static blurry_status check_two_axes(const grid *g, const grid_axis *a, const grid_axis *b)
{
    if (!strcmp(a->name, b->name))
        return grid_fail(g, b->line, "axis %s is given twice (first in line %d)", b->name, a->line);
    for (int i = 0; i < b->count; i++)
        for (int k = 0; k < b->value[i].count; k++) {
            const grid_pair *pair = &b->value[i].pair[k];
            if (pair_of_axis(a, pair->key))
                return grid_fail(g, pair->line, "axis %s sets %s, which is an axis already (%s in line %d)",
                                 b->name, pair->key, a->name, a->line);
        }
    return BLURRY_OK;
}

static blurry_status check_fixed(const expansion *e, const grid_pairs *base, int from_axis)
{
    for (int i = 0; i < base->count; i++)
        for (int k = from_axis; k < e->axes; k++)
            if (pair_of_axis(e->axis[k], base->pair[i].key))
                return grid_fail(e->g, base->pair[i].line, "%s is fixed here and an axis (line %d)",
                                 base->pair[i].key, e->axis[k]->line);
    return BLURRY_OK;
}

static blurry_status check_overrides(const expansion *e)
{
    for (int i = 0; e->choice && i < e->choice->override_count; i++) {
        const char *text = e->choice->overrides[i];
        char key[GRID_NAME];
        snprintf(key, sizeof key, "%.*s", (int)strcspn(text, "="), text);
        for (int k = 0; k < e->axes; k++)
            if (pair_of_axis(e->axis[k], key))
                return grid_fail(e->g, e->axis[k]->line, "%s is an axis: '%.80s' cannot fix it", key, text);
    }
    return BLURRY_OK;
}

static blurry_status check_group(const expansion *e)
{
    for (int a = 0; a < e->axes; a++)
        for (int b = a + 1; b < e->axes; b++) STATUS_TRY(check_two_axes(e->g, e->axis[a], e->axis[b]));
    STATUS_TRY(check_fixed(e, &e->group->base, 0));
    /* What the file fixes for all a group may vary; a shared axis may not vary it too. */
    for (int i = 0; i < e->g->base.count; i++)
        for (int k = 0; k < e->g->axes.count; k++)
            if (pair_of_axis(&e->g->axes.axis[k], e->g->base.pair[i].key))
                return grid_fail(e->g, e->g->base.pair[i].line, "%s is fixed here and an axis (line %d)",
                                 e->g->base.pair[i].key, e->g->axes.axis[k].line);
    return check_overrides(e);
}

/* ---- one run ---- */
static blurry_status apply_pairs(const grid *g, blurry_settings *settings, const grid_pairs *pairs,
                                 int64_t *match)
{
    for (int i = 0; i < pairs->count; i++) {
        const grid_pair *pair = &pairs->pair[i];
        if (!strcmp(pair->key, GRID_MATCH_STATE)) {
            *match = strtoll(pair->text, NULL, 10);
            continue;
        }
        blurry_status status = blurry_settings_set(settings, pair->key, pair->text);
        if (status != BLURRY_OK) return grid_context(g, pair->line, status);
    }
    return BLURRY_OK;
}

/* Models are kept only on request, so the best of each is not written by default. */
static blurry_status apply_start(const expansion *e, blurry_settings *settings)
{
    STATUS_TRY(blurry_settings_set(settings, "keep_best", "false"));
    if (!e->g->preset[0]) return BLURRY_OK;
    blurry_status status = blurry_preset_apply(settings, e->g->preset);
    return status == BLURRY_OK ? status : grid_context(e->g, e->g->preset_line, status);
}

static blurry_status make_settings(const expansion *e, blurry_settings *settings, int64_t *match)
{
    STATUS_TRY(apply_start(e, settings));
    STATUS_TRY(apply_pairs(e->g, settings, &e->g->base, match));
    STATUS_TRY(apply_pairs(e->g, settings, &e->group->base, match));
    for (int i = 0; e->choice && i < e->choice->override_count; i++)
        STATUS_TRY(blurry_settings_assign(settings, e->choice->overrides[i]));
    for (int k = 0; k < e->axes; k++)
        STATUS_TRY(apply_pairs(e->g, settings, &e->axis[k]->value[e->place[k]], match));
    if (!e->choice || !e->choice->no_early_stop) return BLURRY_OK;
    STATUS_TRY(blurry_settings_set(settings, "stop_at", "0"));
    STATUS_TRY(blurry_settings_set(settings, "patience", "0"));
    return blurry_settings_set(settings, "give_up_after", "0");
}

static blurry_status make_label(const expansion *e, char **label)
{
    size_t size = 0;
    FILE *to = open_memstream(label, &size);
    if (!to) return status_fail(BLURRY_E_MEMORY, "%s: out of memory", e->g->file);
    for (int k = 0; k < e->axes; k++) {
        const grid_pairs *value = &e->axis[k]->value[e->place[k]];
        for (int i = 0; i < value->count; i++)
            fprintf(to, "%s%s=%s", k || i ? " " : "", value->pair[i].key, value->pair[i].text);
    }
    return fclose(to) ? status_fail(BLURRY_E_MEMORY, "%s: out of memory", e->g->file) : BLURRY_OK;
}

/* Whether the message speaks of this setting: "heads is 3", "length is". */
static bool speaks_of(const char *message, const char *key)
{
    size_t n = strlen(key);
    for (const char *at = strstr(message, key); at; at = strstr(at + 1, key)) {
        bool starts = at == message || at[-1] == ' ' || at[-1] == '(';
        if (starts && !strncmp(at + n, " is ", 4)) return true;
    }
    return false;
}

/* "file:line: group G cannot have modes=4 (line 7) heads=3 (line 9): what the settings said". The line is
 * that of the setting the message speaks of, where it stands in the file. */
static blurry_status impossible(const expansion *e, blurry_status status)
{
    char said[512], chosen[400] = "";
    snprintf(said, sizeof said, "%s", blurry_last_error());
    int line = e->group->line;
    const grid_pairs *fixed[] = {&e->g->base, &e->group->base};
    for (int i = 0; i < 2; i++)
        for (int k = 0; k < fixed[i]->count; k++)
            if (speaks_of(said, fixed[i]->pair[k].key)) line = fixed[i]->pair[k].line;
    for (int k = 0; k < e->axes; k++) {
        const grid_pairs *value = &e->axis[k]->value[e->place[k]];
        for (int i = 0; i < value->count; i++) {
            size_t used = strlen(chosen);
            snprintf(chosen + used, sizeof chosen - used, " %s=%.40s (line %d)", value->pair[i].key,
                     value->pair[i].text, value->pair[i].line);
            if (speaks_of(said, value->pair[i].key)) line = value->pair[i].line;
        }
    }
    return status_fail(status, "%s:%d: group %s: impossible combination%s%s: %s", e->g->file, line,
                       e->group->name, chosen[0] ? ":" : "", chosen, said);
}

static bool excluded(const expansion *e, const blurry_settings *settings)
{
    bool any = false;
    for (int i = 0; i < e->g->exclusion_count; i++) {
        grid_exclusion *exclusion = &e->g->exclusion[i];
        bool all = true;
        for (int k = 0; all && k < exclusion->pairs.count; k++) {
            blurry_settings *probe = NULL; /* "1e-3" and "0.001" are the same value */
            char mine[SETTINGS_TEXT], wanted[SETTINGS_TEXT];
            const grid_pair *pair = &exclusion->pairs.pair[k];
            all = blurry_settings_create(&probe) == BLURRY_OK &&
                  blurry_settings_set(probe, pair->key, pair->text) == BLURRY_OK &&
                  blurry_settings_get(probe, pair->key, wanted, sizeof wanted) == BLURRY_OK &&
                  blurry_settings_get(settings, pair->key, mine, sizeof mine) == BLURRY_OK &&
                  !strcmp(mine, wanted);
            blurry_settings_destroy(&probe);
        }
        exclusion->hits += all;
        any = any || all;
    }
    return any;
}

static blurry_status append(blurry_sweep *sweep, grid_run *run)
{
    if (sweep->count == sweep->capacity) {
        int64_t more = sweep->capacity ? 2 * sweep->capacity : 64;
        grid_run *grown = realloc(sweep->run, (size_t)more * sizeof *grown);
        if (!grown) return status_fail(BLURRY_E_MEMORY, "%s: out of memory", sweep->file);
        sweep->run = grown;
        sweep->capacity = more;
    }
    sweep->run[sweep->count++] = *run;
    return BLURRY_OK;
}

static blurry_status make_run(const expansion *e)
{
    grid_run run = {.group = e->group_index};
    int64_t match = 0;
    STATUS_TRY(blurry_settings_create(&run.settings));
    blurry_status status = make_settings(e, run.settings, &match);
    bool skip = status == BLURRY_OK && excluded(e, run.settings);
    if (status == BLURRY_OK && !skip) {
        status = match ? grid_match_state(run.settings, match) : BLURRY_OK;
        if (status == BLURRY_OK) status = grid_check(&run, e->cache);
        if (status != BLURRY_OK) status = impossible(e, status);
        if (status == BLURRY_OK) status = make_label(e, &run.label);
        grid_key(run.settings, run.key);
        if (status == BLURRY_OK) status = append(e->sweep, &run);
    }
    if (status != BLURRY_OK || skip) {
        free(run.label);
        blurry_settings_destroy(&run.settings);
    }
    return status;
}

/* ---- one group ---- */
static int by_key(const void *a, const void *b)
{
    const grid_run *const *x = a, *const *y = b;
    return strcmp((*x)->key, (*y)->key);
}

/* Two equal runs of one group mean that an axis changes nothing. */
static blurry_status check_distinct(const expansion *e, int64_t from)
{
    int64_t n = e->sweep->count - from;
    const grid_run **list = malloc((size_t)(n + 1) * sizeof *list);
    if (!list) return status_fail(BLURRY_E_MEMORY, "%s: out of memory", e->g->file);
    for (int64_t i = 0; i < n; i++) list[i] = &e->sweep->run[from + i];
    qsort(list, (size_t)n, sizeof *list, by_key);
    blurry_status status = BLURRY_OK;
    for (int64_t i = 1; status == BLURRY_OK && i < n; i++)
        if (!strcmp(list[i]->key, list[i - 1]->key))
            status = grid_fail(e->g, e->group->line, "group %s: '%s' and '%s' are the same run",
                               e->group->name, list[i - 1]->label, list[i]->label);
    free(list);
    return status;
}

static blurry_status expand_group(expansion *e)
{
    e->axes = 0;
    for (int i = 0; i < e->g->axes.count; i++) e->axis[e->axes++] = &e->g->axes.axis[i];
    for (int i = 0; i < e->group->axes.count; i++) e->axis[e->axes++] = &e->group->axes.axis[i];
    STATUS_TRY(check_group(e));
    double runs = 1;
    for (int k = 0; k < e->axes; k++) runs *= e->axis[k]->count;
    if (runs > GRID_RUNS_MAX)
        return grid_fail(e->g, e->group->line, "group %s has %.3g runs: at most %d", e->group->name, runs,
                         GRID_RUNS_MAX);
    memset(e->place, 0, sizeof e->place);
    int64_t first = e->sweep->count;
    for (;;) {
        STATUS_TRY(make_run(e));
        int k = e->axes - 1;
        while (k >= 0 && ++e->place[k] == e->axis[k]->count) e->place[k--] = 0;
        if (k < 0) break;
    }
    return check_distinct(e, first);
}

static blurry_status choose_groups(grid *g, const char *names)
{
    for (int i = 0; i < g->group_count; i++) g->group[i].wanted = !names;
    while (names && *names) {
        size_t n = strcspn(names, ",");
        int found = 0;
        for (int i = 0; i < g->group_count; i++)
            if (strlen(g->group[i].name) == n && !strncmp(g->group[i].name, names, n))
                found = g->group[i].wanted = 1;
        if (!found)
            return status_fail(BLURRY_E_INVALID, "%s: there is no group '%.*s'", g->file, (int)n, names);
        names += n + (names[n] == ',');
    }
    return BLURRY_OK;
}

static blurry_status expand_all(blurry_sweep *sweep, const blurry_sweep_choice *choice, check_cache **cache)
{
    grid *g = &sweep->grid;
    for (int i = 0; i < g->group_count; i++) {
        expansion e = {.sweep = sweep,
                       .g = g,
                       .group = &g->group[i],
                       .group_index = i,
                       .choice = choice,
                       .cache = cache};
        if (g->group[i].wanted) STATUS_TRY(expand_group(&e));
    }
    for (int i = 0; i < g->exclusion_count; i++)
        if (!g->exclusion[i].hits && (!choice || !choice->groups))
            return grid_fail(g, g->exclusion[i].line, "exclude: no run has this combination");
    if (sweep->count == 0) return grid_fail(g, 1, "the grid is empty: every combination is excluded");
    return BLURRY_OK;
}

blurry_status grid_expand(blurry_sweep *sweep, const blurry_sweep_choice *choice)
{
    grid *g = &sweep->grid;
    check_cache *cache = NULL;
    if (g->group_count == 0) { /* a file without groups is one group */
        if (g->axes.count == 0 && g->base.count == 0 && !g->preset[0])
            return grid_fail(g, 1, "the grid is empty: give base, axes or groups");
        g->group = calloc(1, sizeof *g->group);
        if (!g->group) return status_fail(BLURRY_E_MEMORY, "%s: out of memory", g->file);
        g->group_count = 1;
        snprintf(g->group[0].name, sizeof g->group[0].name, "all");
        g->group[0].line = 1;
    }
    STATUS_TRY(choose_groups(g, choice ? choice->groups : NULL));
    blurry_status status = expand_all(sweep, choice, &cache);
    grid_check_free(&cache);
    return status;
}
