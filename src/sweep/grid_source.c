/* Parts of a sweep file: see grid_source.h. */
#include "base/settings_table.h"
#include "sweep/grid_source.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- nodes ---- */
yaml_node_t *source_node(source *s, int id)
{
    return yaml_document_get_node(&s->document, id);
}

int source_line(const yaml_node_t *node)
{
    return (int)node->start_mark.line + 1;
}

blurry_status source_scalar(source *s, const yaml_node_t *node, const char *what, char *text, size_t capacity)
{
    if (node->type != YAML_SCALAR_NODE) return grid_fail(s->g, source_line(node), "%s: give one value", what);
    size_t length = node->data.scalar.length;
    const char *value = (const char *)node->data.scalar.value;
    if (strlen(value) != length)
        return grid_fail(s->g, source_line(node), "%s: the text holds a zero byte", what);
    if (length >= capacity) return grid_fail(s->g, source_line(node), "%s: the text is too long", what);
    memcpy(text, value, length + 1);
    return BLURRY_OK;
}

/* A scalar, or a list joined by commas (for options that are lists). */
static blurry_status setting_text(source *s, const yaml_node_t *node, const char *key,
                                  char text[SETTINGS_TEXT])
{
    if (node->type == YAML_MAPPING_NODE)
        return grid_fail(s->g, source_line(node), "%s takes a value, not a map", key);
    if (node->type == YAML_SCALAR_NODE) return source_scalar(s, node, key, text, SETTINGS_TEXT);
    size_t used = 0;
    text[0] = 0;
    for (yaml_node_item_t *item = node->data.sequence.items.start; item < node->data.sequence.items.top;
         item++) {
        char part[SETTINGS_TEXT];
        STATUS_TRY(source_scalar(s, source_node(s, *item), key, part, sizeof part));
        size_t length = strlen(part);
        if (used + length + 2 > SETTINGS_TEXT)
            return grid_fail(s->g, source_line(node), "%s: the list is too long", key);
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
        if (!grown) return grid_out_of_memory(s->g);
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
    yaml_node_t *name = source_node(s, entry->key), *value = source_node(s, entry->value);
    char key[GRID_NAME], text[SETTINGS_TEXT];
    STATUS_TRY(source_scalar(s, name, "a setting's name", key, sizeof key));
    const grid_pair *before = find_pair(pairs, key);
    if (before)
        return grid_fail(s->g, source_line(name), "%s is given twice (first in line %d)", key, before->line);
    STATUS_TRY(setting_text(s, value, key, text));
    STATUS_TRY(check_setting(s, key, text, source_line(name)));
    return add_pair(s, pairs, key, text, source_line(name));
}

blurry_status source_settings(source *s, const yaml_node_t *node, const char *what, grid_pairs *pairs)
{
    if (node->type != YAML_MAPPING_NODE)
        return grid_fail(s->g, source_line(node), "%s: give settings as key: value", what);
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
    STATUS_TRY(source_scalar(s, node, GRID_MATCH_STATE, text, sizeof text));
    long long elements = strtoll(text, &end, 10);
    if (end == text || *end || elements < 1)
        return grid_fail(s->g, source_line(node), GRID_MATCH_STATE " is '%s': give a whole number from 1 on",
                         text);
    return add_pair(s, value, GRID_MATCH_STATE, text, source_line(node));
}

static blurry_status take_value(source *s, grid_axis *axis, const yaml_node_t *node)
{
    grid_pairs *value = &axis->value[axis->count];
    int line = source_line(node);
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
            status = source_settings(s, node, axis->name, value);
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
    int line = source_line(values);
    if (values->type != YAML_SEQUENCE_NODE)
        return grid_fail(s->g, line, "axis %s: give a list of values, [a, b, c]", axis->name);
    size_t count = (size_t)(values->data.sequence.items.top - values->data.sequence.items.start);
    if (count == 0) return grid_fail(s->g, line, "axis %s has no values: the grid is empty", axis->name);
    if (count > GRID_RUNS_MAX)
        return grid_fail(s->g, line, "axis %s has %zu values: too many", axis->name, count);
    axis->value = calloc(count, sizeof *axis->value);
    if (!axis->value) return grid_out_of_memory(s->g);
    for (size_t i = 0; i < count; i++)
        STATUS_TRY(take_value(s, axis, source_node(s, values->data.sequence.items.start[i])));
    return BLURRY_OK;
}

blurry_status source_axes(source *s, const yaml_node_t *node, grid_axes *axes)
{
    if (node->type != YAML_MAPPING_NODE)
        return grid_fail(s->g, source_line(node), "axes: give each as name: [values]");
    size_t count = (size_t)(node->data.mapping.pairs.top - node->data.mapping.pairs.start);
    if (count > GRID_AXES_MAX) return grid_fail(s->g, source_line(node), "%zu axes are too many", count);
    axes->axis = calloc(count + 1, sizeof *axes->axis);
    if (!axes->axis) return grid_out_of_memory(s->g);
    for (yaml_node_pair_t *p = node->data.mapping.pairs.start; p < node->data.mapping.pairs.top; p++) {
        yaml_node_t *name = source_node(s, p->key);
        grid_axis *axis = &axes->axis[axes->count];
        STATUS_TRY(source_scalar(s, name, "an axis' name", axis->name, sizeof axis->name));
        axis->line = source_line(name);
        for (int i = 0; i < axes->count; i++)
            if (!strcmp(axes->axis[i].name, axis->name))
                return grid_fail(s->g, axis->line, "axis %s is given twice (first in line %d)", axis->name,
                                 axes->axis[i].line);
        axes->count++;
        STATUS_TRY(take_axis(s, axis, source_node(s, p->value)));
    }
    return BLURRY_OK;
}
