/* Sweep files: YAML to a grid. Every mistake is named with file and line. */
#include "base/settings_table.h"
#include "sweep/grid.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

blurry_status grid_fail(const grid *g, int line, const char *format, ...)
{
    char text[900];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return status_fail(BLURRY_E_INVALID, "%s:%d: %s", g->file, line, text);
}

blurry_status grid_context(const grid *g, int line, blurry_status status)
{
    return status_context(status, "%s:%d", g->file, line);
}

static blurry_status out_of_memory(const grid *g)
{
    return status_fail(BLURRY_E_MEMORY, "%s: out of memory", g->file);
}

/* ---- nodes ---- */
typedef struct source {
    grid *g;
    yaml_document_t document;
} source;

static yaml_node_t *node_at(source *s, int id)
{
    return yaml_document_get_node(&s->document, id);
}

static int line_of(const yaml_node_t *node)
{
    return (int)node->start_mark.line + 1;
}

static blurry_status scalar(source *s, const yaml_node_t *node, const char *what, char *text, size_t capacity)
{
    if (node->type != YAML_SCALAR_NODE) return grid_fail(s->g, line_of(node), "%s: give one value", what);
    size_t length = node->data.scalar.length;
    const char *value = (const char *)node->data.scalar.value;
    if (strlen(value) != length)
        return grid_fail(s->g, line_of(node), "%s: the text holds a zero byte", what);
    if (length >= capacity) return grid_fail(s->g, line_of(node), "%s: the text is too long", what);
    memcpy(text, value, length + 1);
    return BLURRY_OK;
}

/* A scalar, or a list joined by commas (for options that are lists). */
static blurry_status setting_text(source *s, const yaml_node_t *node, const char *key,
                                  char text[SETTINGS_TEXT])
{
    if (node->type == YAML_MAPPING_NODE)
        return grid_fail(s->g, line_of(node), "%s takes a value, not a map", key);
    if (node->type == YAML_SCALAR_NODE) return scalar(s, node, key, text, SETTINGS_TEXT);
    size_t used = 0;
    text[0] = 0;
    for (yaml_node_item_t *item = node->data.sequence.items.start; item < node->data.sequence.items.top;
         item++) {
        char part[SETTINGS_TEXT];
        STATUS_TRY(scalar(s, node_at(s, *item), key, part, sizeof part));
        size_t length = strlen(part);
        if (used + length + 2 > SETTINGS_TEXT)
            return grid_fail(s->g, line_of(node), "%s: the list is too long", key);
        if (used) text[used++] = ',';
        memcpy(text + used, part, length + 1);
        used += length;
    }
    return BLURRY_OK;
}

static grid_pair *find_pair(const grid_pairs *pairs, const char *key)
{
    for (int i = 0; i < pairs->count; i++)
        if (!strcmp(pairs->pair[i].key, key)) return &pairs->pair[i];
    return NULL;
}

static blurry_status add_pair(source *s, grid_pairs *pairs, const char *key, const char *text, int line)
{
    if (pairs->count == pairs->capacity) {
        int more = pairs->capacity ? 2 * pairs->capacity : 4;
        grid_pair *grown = realloc(pairs->pair, (size_t)more * sizeof *grown);
        if (!grown) return out_of_memory(s->g);
        pairs->pair = grown;
        pairs->capacity = more;
    }
    grid_pair *pair = &pairs->pair[pairs->count++];
    memset(pair, 0, sizeof *pair);
    snprintf(pair->key, sizeof pair->key, "%s", key);
    snprintf(pair->text, sizeof pair->text, "%s", text);
    pair->line = line;
    return BLURRY_OK;
}

/* Checks key and value as the settings do, with the file's line before the message. */
static blurry_status check_setting(source *s, const char *key, const char *text, int line)
{
    blurry_settings *probe = NULL;
    STATUS_TRY(blurry_settings_create(&probe));
    blurry_status status = blurry_settings_set(probe, key, text);
    blurry_settings_destroy(&probe);
    return status == BLURRY_OK ? status : grid_context(s->g, line, status);
}

static blurry_status take_setting(source *s, const yaml_node_pair_t *entry, grid_pairs *pairs)
{
    yaml_node_t *name = node_at(s, entry->key), *value = node_at(s, entry->value);
    char key[GRID_NAME], text[SETTINGS_TEXT];
    STATUS_TRY(scalar(s, name, "a setting's name", key, sizeof key));
    const grid_pair *before = find_pair(pairs, key);
    if (before)
        return grid_fail(s->g, line_of(name), "%s is given twice (first in line %d)", key, before->line);
    STATUS_TRY(setting_text(s, value, key, text));
    STATUS_TRY(check_setting(s, key, text, line_of(name)));
    return add_pair(s, pairs, key, text, line_of(name));
}

static blurry_status take_settings(source *s, const yaml_node_t *node, const char *what, grid_pairs *pairs)
{
    if (node->type != YAML_MAPPING_NODE)
        return grid_fail(s->g, line_of(node), "%s: give settings as key: value", what);
    for (yaml_node_pair_t *p = node->data.mapping.pairs.start; p < node->data.mapping.pairs.top; p++)
        STATUS_TRY(take_setting(s, p, pairs));
    return BLURRY_OK;
}

/* ---- axes ---- */
/* A run setting (threads, device) changes nothing in the result, so as an axis it would give equal runs. */
static blurry_status check_axis_key(source *s, const char *key, int line)
{
    const setting *option = settings_find(key);
    if (!option) return grid_context(s->g, line, settings_unknown_key(key));
    if (option->info.group_bit == BLURRY_SETTINGS_RUN)
        return grid_fail(s->g, line, "%s does not change what a run computes: it cannot be an axis", key);
    return BLURRY_OK;
}

static blurry_status same_value(source *s, const grid_axis *axis, const grid_pairs *value, int line)
{
    for (int i = 0; i < axis->count; i++) {
        const grid_pairs *other = &axis->value[i];
        int same = other->count == value->count;
        for (int k = 0; same && k < value->count; k++) {
            const grid_pair *pair = find_pair(other, value->pair[k].key);
            same = pair && !strcmp(pair->text, value->pair[k].text);
        }
        if (same) return grid_fail(s->g, line, "axis %s holds %s twice", axis->name, value->pair[0].text);
    }
    return BLURRY_OK;
}

static blurry_status take_state_value(source *s, const yaml_node_t *node, grid_pairs *value)
{
    char text[64], *end;
    STATUS_TRY(scalar(s, node, GRID_MATCH_STATE, text, sizeof text));
    long long elements = strtoll(text, &end, 10);
    if (end == text || *end || elements < 1)
        return grid_fail(s->g, line_of(node), GRID_MATCH_STATE " is '%s': give a whole number from 1 on",
                         text);
    return add_pair(s, value, GRID_MATCH_STATE, text, line_of(node));
}

static blurry_status take_value(source *s, grid_axis *axis, const yaml_node_t *node)
{
    grid_pairs *value = &axis->value[axis->count];
    int line = line_of(node);
    blurry_status status = BLURRY_OK;
    if (!strcmp(axis->name, GRID_MATCH_STATE)) {
        status = take_state_value(s, node, value);
    } else if (node->type == YAML_MAPPING_NODE) {
        if (settings_find(axis->name))
            status = grid_fail(
                s->g, line,
                "axis %s: a value that sets several settings needs an axis whose name is no setting",
                axis->name);
        else
            status = take_settings(s, node, axis->name, value);
        for (int k = 0; status == BLURRY_OK && k < value->count; k++)
            status = check_axis_key(s, value->pair[k].key, value->pair[k].line);
        if (status == BLURRY_OK && value->count == 0)
            status = grid_fail(s->g, line, "axis %s: an empty value", axis->name);
    } else {
        char text[SETTINGS_TEXT];
        status = check_axis_key(s, axis->name, axis->line);
        if (status == BLURRY_OK) status = setting_text(s, node, axis->name, text);
        if (status == BLURRY_OK) status = check_setting(s, axis->name, text, line);
        if (status == BLURRY_OK) status = add_pair(s, value, axis->name, text, line);
    }
    if (status == BLURRY_OK) status = same_value(s, axis, value, line);
    if (status == BLURRY_OK)
        axis->count++;
    else
        free(value->pair);
    return status;
}

static blurry_status take_axis(source *s, grid_axis *axis, const yaml_node_t *values)
{
    int line = line_of(values);
    if (values->type != YAML_SEQUENCE_NODE)
        return grid_fail(s->g, line, "axis %s: give a list of values, [a, b, c]", axis->name);
    size_t count = (size_t)(values->data.sequence.items.top - values->data.sequence.items.start);
    if (count == 0) return grid_fail(s->g, line, "axis %s has no values: the grid is empty", axis->name);
    if (count > GRID_RUNS_MAX)
        return grid_fail(s->g, line, "axis %s has %zu values: too many", axis->name, count);
    axis->value = calloc(count, sizeof *axis->value);
    if (!axis->value) return out_of_memory(s->g);
    for (size_t i = 0; i < count; i++)
        STATUS_TRY(take_value(s, axis, node_at(s, values->data.sequence.items.start[i])));
    return BLURRY_OK;
}

static blurry_status take_axes(source *s, const yaml_node_t *node, grid_axes *axes)
{
    if (node->type != YAML_MAPPING_NODE)
        return grid_fail(s->g, line_of(node), "axes: give each as name: [values]");
    size_t count = (size_t)(node->data.mapping.pairs.top - node->data.mapping.pairs.start);
    if (count > GRID_AXES_MAX) return grid_fail(s->g, line_of(node), "%zu axes are too many", count);
    axes->axis = calloc(count + 1, sizeof *axes->axis);
    if (!axes->axis) return out_of_memory(s->g);
    for (yaml_node_pair_t *p = node->data.mapping.pairs.start; p < node->data.mapping.pairs.top; p++) {
        yaml_node_t *name = node_at(s, p->key);
        grid_axis *axis = &axes->axis[axes->count];
        STATUS_TRY(scalar(s, name, "an axis' name", axis->name, sizeof axis->name));
        axis->line = line_of(name);
        for (int i = 0; i < axes->count; i++)
            if (!strcmp(axes->axis[i].name, axis->name))
                return grid_fail(s->g, axis->line, "axis %s is given twice (first in line %d)", axis->name,
                                 axes->axis[i].line);
        axes->count++;
        STATUS_TRY(take_axis(s, axis, node_at(s, p->value)));
    }
    return BLURRY_OK;
}

/* ---- the file's sections ---- */
static blurry_status take_group(source *s, const yaml_node_pair_t *entry, grid_group *group)
{
    yaml_node_t *name = node_at(s, entry->key), *body = node_at(s, entry->value);
    STATUS_TRY(scalar(s, name, "a group's name", group->name, sizeof group->name));
    group->line = line_of(name);
    if (!group->name[0] || strchr(group->name, ','))
        return grid_fail(s->g, group->line, "a group needs a name without commas");
    if (body->type != YAML_MAPPING_NODE)
        return grid_fail(s->g, group->line, "group %s: give base, axes or both", group->name);
    int seen_base = 0, seen_axes = 0;
    for (yaml_node_pair_t *p = body->data.mapping.pairs.start; p < body->data.mapping.pairs.top; p++) {
        char key[GRID_NAME];
        yaml_node_t *at = node_at(s, p->key);
        STATUS_TRY(scalar(s, at, "a name", key, sizeof key));
        int *seen = !strcmp(key, "base") ? &seen_base : !strcmp(key, "axes") ? &seen_axes : NULL;
        if (!seen)
            return grid_fail(s->g, line_of(at), "group %s: '%s' is not known here: give base or axes",
                             group->name, key);
        if (*seen) return grid_fail(s->g, line_of(at), "group %s: %s is given twice", group->name, key);
        *seen = 1;
        STATUS_TRY(seen == &seen_base ? take_settings(s, node_at(s, p->value), "base", &group->base)
                                      : take_axes(s, node_at(s, p->value), &group->axes));
    }
    return BLURRY_OK;
}

static blurry_status take_groups(source *s, const yaml_node_t *node)
{
    grid *g = s->g;
    if (node->type != YAML_MAPPING_NODE)
        return grid_fail(g, line_of(node), "groups: give each as name: {base, axes}");
    size_t count = (size_t)(node->data.mapping.pairs.top - node->data.mapping.pairs.start);
    if (count == 0) return grid_fail(g, line_of(node), "groups is empty: there is nothing to run");
    g->group = calloc(count, sizeof *g->group);
    if (!g->group) return out_of_memory(g);
    for (yaml_node_pair_t *p = node->data.mapping.pairs.start; p < node->data.mapping.pairs.top; p++) {
        grid_group *group = &g->group[g->group_count++];
        STATUS_TRY(take_group(s, p, group));
        for (int i = 0; i + 1 < g->group_count; i++)
            if (!strcmp(g->group[i].name, group->name))
                return grid_fail(g, group->line, "group %s is given twice (first in line %d)", group->name,
                                 g->group[i].line);
    }
    return BLURRY_OK;
}

static blurry_status take_exclusions(source *s, const yaml_node_t *node)
{
    grid *g = s->g;
    if (node->type != YAML_SEQUENCE_NODE) return grid_fail(g, line_of(node), "exclude: give a list of maps");
    size_t count = (size_t)(node->data.sequence.items.top - node->data.sequence.items.start);
    g->exclusion = calloc(count + 1, sizeof *g->exclusion);
    if (!g->exclusion) return out_of_memory(g);
    for (size_t i = 0; i < count; i++) {
        yaml_node_t *item = node_at(s, node->data.sequence.items.start[i]);
        grid_exclusion *exclusion = &g->exclusion[g->exclusion_count++];
        exclusion->line = line_of(item);
        STATUS_TRY(take_settings(s, item, "exclude", &exclusion->pairs));
        if (exclusion->pairs.count == 0)
            return grid_fail(g, exclusion->line, "exclude: an empty map would exclude everything");
    }
    return BLURRY_OK;
}

static blurry_status take_figure(source *s, const yaml_node_t *node)
{
    static const char *const known[] = {"pareto", "resolution", "width", "state", "choices", "none"};
    STATUS_TRY(scalar(s, node, "figure", s->g->figure, sizeof s->g->figure));
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (!strcmp(known[i], s->g->figure)) return BLURRY_OK;
    return grid_fail(s->g, line_of(node),
                     "figure is '%s': give pareto, state, resolution, width, choices or none", s->g->figure);
}

static blurry_status take_section(source *s, const char *key, int line, const yaml_node_t *value)
{
    grid *g = s->g;
    if (!strcmp(key, "name")) return scalar(s, value, key, g->name, sizeof g->name);
    if (!strcmp(key, "title")) return scalar(s, value, key, g->title, sizeof g->title);
    if (!strcmp(key, "figure")) return take_figure(s, value);
    if (!strcmp(key, "preset")) {
        g->preset_line = line_of(value);
        return scalar(s, value, key, g->preset, sizeof g->preset);
    }
    if (!strcmp(key, "base")) return take_settings(s, value, key, &g->base);
    if (!strcmp(key, "axes")) return take_axes(s, value, &g->axes);
    if (!strcmp(key, "groups")) return take_groups(s, value);
    if (!strcmp(key, "exclude")) return take_exclusions(s, value);
    return grid_fail(
        g, line,
        "'%s' is not known: a sweep has name, title, figure, preset, base, axes, groups, exclude%s%s", key,
        settings_find(key) ? "; settings belong under base: " : "", settings_find(key) ? key : "");
}

static blurry_status take_document(source *s)
{
    grid *g = s->g;
    yaml_node_t *root = yaml_document_get_root_node(&s->document);
    if (!root) return grid_fail(g, 1, "the file is empty: give base, axes or groups");
    if (root->type != YAML_MAPPING_NODE)
        return grid_fail(g, line_of(root), "give lines of the form key: value");
    for (yaml_node_pair_t *p = root->data.mapping.pairs.start; p < root->data.mapping.pairs.top; p++) {
        char key[GRID_NAME];
        yaml_node_t *name = node_at(s, p->key);
        STATUS_TRY(scalar(s, name, "a name", key, sizeof key));
        for (yaml_node_pair_t *q = root->data.mapping.pairs.start; q < p; q++) {
            yaml_node_t *other = node_at(s, q->key);
            if (other->type == YAML_SCALAR_NODE && !strcmp((const char *)other->data.scalar.value, key))
                return grid_fail(g, line_of(name), "%s is given twice (first in line %d)", key,
                                 line_of(other));
        }
        STATUS_TRY(take_section(s, key, line_of(name), node_at(s, p->value)));
    }
    return BLURRY_OK;
}

static blurry_status not_yaml(grid *g, const yaml_parser_t *p)
{
    if (p->error == YAML_MEMORY_ERROR) return out_of_memory(g);
    int line = p->error == YAML_READER_ERROR ? 1 : (int)p->problem_mark.line + 1;
    return grid_fail(g, line, "not YAML: %s", p->problem ? p->problem : "not readable");
}

blurry_status grid_parse(grid *g, const char *text, size_t length, const char *file)
{
    source s = {.g = g};
    yaml_parser_t parser;
    *g = (grid){.file = file};
    if (!yaml_parser_initialize(&parser)) return out_of_memory(g);
    yaml_parser_set_encoding(&parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&parser, (const unsigned char *)text, length);
    blurry_status status = BLURRY_OK;
    if (!yaml_parser_load(&parser, &s.document)) {
        status = not_yaml(g, &parser);
    } else {
        status = take_document(&s);
        yaml_document_delete(&s.document);
    }
    yaml_parser_delete(&parser);
    return status;
}

/* ---- release ---- */
static void free_axes(grid_axes *axes)
{
    for (int i = 0; i < axes->count; i++) {
        for (int k = 0; k < axes->axis[i].count; k++) free(axes->axis[i].value[k].pair);
        free(axes->axis[i].value);
    }
    free(axes->axis);
}

void grid_free(grid *g)
{
    free(g->base.pair);
    free_axes(&g->axes);
    for (int i = 0; i < g->group_count; i++) {
        free(g->group[i].base.pair);
        free_axes(&g->group[i].axes);
    }
    free(g->group);
    for (int i = 0; i < g->exclusion_count; i++) free(g->exclusion[i].pairs.pair);
    free(g->exclusion);
    *g = (grid){0};
}
