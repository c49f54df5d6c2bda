/* Reading parts of a sweep file: nodes of the YAML document into texts, settings and axes. */
#ifndef BLURRY_SWEEP_GRID_SOURCE_H
#define BLURRY_SWEEP_GRID_SOURCE_H
#include "sweep/grid.h"

#include <yaml.h>

typedef struct source {
    grid *g;
    yaml_document_t document;
} source;

yaml_node_t *source_node(source *s, int id);
int source_line(const yaml_node_t *node);
/* A single value; `what` names it in messages. */
blurry_status source_scalar(source *s, const yaml_node_t *node, const char *what, char *text,
                            size_t capacity);
/* A map of settings, each known, in range and given once. */
blurry_status source_settings(source *s, const yaml_node_t *node, const char *what, grid_pairs *pairs);
/* A map of axes, each a list of values. */
blurry_status source_axes(source *s, const yaml_node_t *node, grid_axes *axes);

blurry_status grid_out_of_memory(const grid *g);

#endif
