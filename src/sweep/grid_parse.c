/* Sweep files: YAML to a grid. Every mistake is named with file and line. */
#include "base/settings_table.h"
#include "sweep/grid_source.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

blurry_status grid_out_of_memory(const grid *g)
{
    return status_fail(BLURRY_E_MEMORY, "%s: out of memory", g->file);
}

/* ---- the file's sections ---- */
static blurry_status take_group(source *s, const yaml_node_pair_t *entry, grid_group *group)
{
    yaml_node_t *name = source_node(s, entry->key), *body = source_node(s, entry->value);
    STATUS_TRY(source_scalar(s, name, "a group's name", group->name, sizeof group->name));
    group->line = source_line(name);
    if (!group->name[0] || strchr(group->name, ','))
        return grid_fail(s->g, group->line, "a group needs a name without commas");
    if (body->type != YAML_MAPPING_NODE)
        return grid_fail(s->g, group->line, "group %s: give base, axes or both", group->name);
    int seen_base = 0, seen_axes = 0;
    for (yaml_node_pair_t *p = body->data.mapping.pairs.start; p < body->data.mapping.pairs.top; p++) {
        char key[GRID_NAME];
        yaml_node_t *at = source_node(s, p->key);
        STATUS_TRY(source_scalar(s, at, "a name", key, sizeof key));
        int *seen = !strcmp(key, "base") ? &seen_base : !strcmp(key, "axes") ? &seen_axes : NULL;
        if (!seen)
            return grid_fail(s->g, source_line(at), "group %s: '%s' is not known here: give base or axes",
                             group->name, key);
        if (*seen) return grid_fail(s->g, source_line(at), "group %s: %s is given twice", group->name, key);
        *seen = 1;
        STATUS_TRY(seen == &seen_base ? source_settings(s, source_node(s, p->value), "base", &group->base)
                                      : source_axes(s, source_node(s, p->value), &group->axes));
    }
    return BLURRY_OK;
}

static blurry_status take_groups(source *s, const yaml_node_t *node)
{
    grid *g = s->g;
    if (node->type != YAML_MAPPING_NODE)
        return grid_fail(g, source_line(node), "groups: give each as name: {base, axes}");
    size_t count = (size_t)(node->data.mapping.pairs.top - node->data.mapping.pairs.start);
    if (count == 0) return grid_fail(g, source_line(node), "groups is empty: there is nothing to run");
    g->group = calloc(count, sizeof *g->group);
    if (!g->group) return grid_out_of_memory(g);
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
    if (node->type != YAML_SEQUENCE_NODE)
        return grid_fail(g, source_line(node), "exclude: give a list of maps");
    size_t count = (size_t)(node->data.sequence.items.top - node->data.sequence.items.start);
    g->exclusion = calloc(count + 1, sizeof *g->exclusion);
    if (!g->exclusion) return grid_out_of_memory(g);
    for (size_t i = 0; i < count; i++) {
        yaml_node_t *item = source_node(s, node->data.sequence.items.start[i]);
        grid_exclusion *exclusion = &g->exclusion[g->exclusion_count++];
        exclusion->line = source_line(item);
        STATUS_TRY(source_settings(s, item, "exclude", &exclusion->pairs));
        if (exclusion->pairs.count == 0)
            return grid_fail(g, exclusion->line, "exclude: an empty map would exclude everything");
    }
    return BLURRY_OK;
}

static blurry_status take_figure(source *s, const yaml_node_t *node)
{
    static const char *const known[] = {"pareto", "resolution", "width", "state", "choices", "none"};
    STATUS_TRY(source_scalar(s, node, "figure", s->g->figure, sizeof s->g->figure));
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (!strcmp(known[i], s->g->figure)) return BLURRY_OK;
    return grid_fail(s->g, source_line(node),
                     "figure is '%s': give pareto, state, resolution, width, choices or none", s->g->figure);
}

static blurry_status take_section(source *s, const char *key, int line, const yaml_node_t *value)
{
    grid *g = s->g;
    if (!strcmp(key, "name")) return source_scalar(s, value, key, g->name, sizeof g->name);
    if (!strcmp(key, "title")) return source_scalar(s, value, key, g->title, sizeof g->title);
    if (!strcmp(key, "figure")) return take_figure(s, value);
    if (!strcmp(key, "preset")) {
        g->preset_line = source_line(value);
        return source_scalar(s, value, key, g->preset, sizeof g->preset);
    }
    if (!strcmp(key, "base")) return source_settings(s, value, key, &g->base);
    if (!strcmp(key, "axes")) return source_axes(s, value, &g->axes);
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
        return grid_fail(g, source_line(root), "give lines of the form key: value");
    for (yaml_node_pair_t *p = root->data.mapping.pairs.start; p < root->data.mapping.pairs.top; p++) {
        char key[GRID_NAME];
        yaml_node_t *name = source_node(s, p->key);
        STATUS_TRY(source_scalar(s, name, "a name", key, sizeof key));
        for (yaml_node_pair_t *q = root->data.mapping.pairs.start; q < p; q++) {
            yaml_node_t *other = source_node(s, q->key);
            if (other->type == YAML_SCALAR_NODE && !strcmp((const char *)other->data.scalar.value, key))
                return grid_fail(g, source_line(name), "%s is given twice (first in line %d)", key,
                                 source_line(other));
        }
        STATUS_TRY(take_section(s, key, source_line(name), source_node(s, p->value)));
    }
    return BLURRY_OK;
}

static blurry_status not_yaml(grid *g, const yaml_parser_t *p)
{
    if (p->error == YAML_MEMORY_ERROR) return grid_out_of_memory(g);
    int line = p->error == YAML_READER_ERROR ? 1 : (int)p->problem_mark.line + 1;
    return grid_fail(g, line, "not YAML: %s", p->problem ? p->problem : "not readable");
}

blurry_status grid_parse(grid *g, const char *text, size_t length, const char *file)
{
    source s = {.g = g};
    yaml_parser_t parser;
    *g = (grid){.file = file};
    if (!yaml_parser_initialize(&parser)) return grid_out_of_memory(g);
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
