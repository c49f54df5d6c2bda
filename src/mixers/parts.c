/* Memory layout, parameter lists, linear maps and the gated output that mixers share. */
#include "mixers/parts.h"

#include "base/sizes.h"

mixer_layout mixer_layout_begin(const mixer_pass *p)
{
    return (mixer_layout){.saved = {p->saved, 0}, .work = {p->work, 0}, .state = {p->state, 0}};
}

void mixer_layout_sizes(const mixer_layout *m, mixer_sizes *sizes)
{
    *sizes = (mixer_sizes){m->saved.used, m->work.used, m->state.used, m->scratch};
}

void *mixer_take_bytes(mixer_cursor *cursor, size_t bytes)
{
    size_t start = cursor->used;
    cursor->used = size_add(start, size_align(bytes));
    return cursor->base ? cursor->base + start : NULL;
}

void *mixer_take(const mixer_pass *p, mixer_cursor *cursor, int64_t rows, int64_t width)
{
    return mixer_take_bytes(cursor, size_mul(size_of(rows, (size_t)width), p->layer->dev->element));
}

void *mixer_take_statistics(const mixer_pass *p, mixer_cursor *cursor, int64_t rows, int64_t width)
{
    return mixer_take_bytes(cursor, size_mul(size_of(rows, (size_t)width), p->layer->dev->stat_element));
}

void *mixer_take_kernel(const mixer_pass *p, mixer_layout *m, const kernel_sizes *need)
{
    if (need->scratch > m->scratch) m->scratch = need->scratch;
    return p->keep ? mixer_take_bytes(&m->saved, need->saved) : NULL;
}

int mixer_kept(const mixer_pass *p)
{
    return p->keep && p->layer->dev->kind == DEVICE_CUDA;
}

mixer_cursor *mixer_again(const mixer_pass *p, mixer_layout *m)
{
    return mixer_kept(p) ? &m->saved : &m->work;
}

void mixer_add_parameter(mixer_parameter_list *list, mixer_parameter slot, const char *name, mixer_init init,
                         int64_t rows, int64_t columns)
{
    list->spec[list->count++] = (mixer_parameter_spec){.slot = slot,
                                                       .name = name,
                                                       .rank = columns ? 2 : 1,
                                                       .shape = {rows, columns ? columns : 1},
                                                       .init = init};
}

/* ---- rows ---- */
mixer_picked mixer_take_picked(const mixer_pass *p, mixer_cursor *all, int64_t width)
{
    mixer_picked t = {mixer_take(p, all, mixer_rows(p), width), NULL};
    t.wanted = p->row_count ? mixer_take(p, all, p->row_count, width) : t.all;
    return t;
}

static rows_args wanted_rows(const mixer_pass *p, int64_t width)
{
    return (rows_args){
        .count = p->row_count, .total = mixer_rows(p), .width = width, .row = p->rows, .place = p->row_place};
}

void mixer_pick(const mixer_pass *p, const mixer_picked *t, int64_t width)
{
    int picked = t->wanted == t->all;
    rows_args a = wanted_rows(p, picked ? p->layer->config.width : width);
    if (!p->row_count || (picked && !p->residual)) return;
    a.x = picked ? p->residual : t->all;
    a.y = picked ? p->y : t->wanted;
    if (!picked && p->residual)
        a.other_width = p->layer->config.width, a.other_x = p->residual, a.other_y = p->y;
    mixer_ops(p)->rows_gather(mixer_run(p), &a);
}

void mixer_put(const mixer_pass *p, const mixer_picked *t, int64_t width)
{
    rows_args a = wanted_rows(p, width);
    a.x = t->wanted, a.y = t->all, a.clear = 1;
    if (t->wanted != t->all) mixer_ops(p)->rows_scatter(mixer_run(p), &a);
}

const void *mixer_take_x(const mixer_pass *p, mixer_layout *m)
{
    return p->row_count ? mixer_take(p, &m->saved, p->row_count, p->layer->config.width) : p->x;
}

void mixer_pick_x(const mixer_pass *p, const void *x)
{
    rows_args a = wanted_rows(p, p->layer->config.width);
    a.x = p->x, a.y = (void *)x;
    if (p->row_count) mixer_ops(p)->rows_gather(mixer_run(p), &a);
}

void mixer_add_wanted_x(const mixer_pass *p, const void *d_x, int clear)
{
    rows_args a = wanted_rows(p, p->layer->config.width);
    a.x = d_x, a.y = p->d_x, a.clear = clear;
    if (!clear) a.place = NULL;
    if (p->row_count) mixer_ops(p)->rows_scatter(mixer_run(p), &a);
}

/* ---- linear maps ---- */
static linear_args map_of(const mixer_pass *p, int64_t rows, mixer_parameter weight, const void *x,
                          int64_t in, int64_t out)
{
    return (linear_args){.rows = rows,
                         .in = in,
                         .out = out,
                         .x = x,
                         .weight = p->layer->weight[weight],
                         .d_weight = p->layer->gradient[weight]};
}

void mixer_linear_rows(const mixer_pass *p, int64_t rows, mixer_parameter weight, const void *x, int64_t in,
                       int64_t out, void *y)
{
    linear_args a = map_of(p, rows, weight, x, in, out);
    a.y = y;
    mixer_ops(p)->linear_forward(mixer_run(p), &a);
}

void mixer_linear_rows_backward(const mixer_pass *p, int64_t rows, mixer_parameter weight, const void *x,
                                const void *d_y, int64_t in, int64_t out, void *d_x, int add)
{
    linear_args a = map_of(p, rows, weight, x, in, out);
    a.d_y = d_y, a.d_x = d_x, a.add_d_x = add;
    mixer_ops(p)->linear_backward(mixer_run(p), &a);
}

void mixer_linear(const mixer_pass *p, mixer_parameter weight, const void *x, int64_t in, int64_t out,
                  void *y)
{
    mixer_linear_rows(p, mixer_rows(p), weight, x, in, out, y);
}

void mixer_linear_backward(const mixer_pass *p, mixer_parameter weight, const void *x, const void *d_y,
                           int64_t in, int64_t out, void *d_x, int add)
{
    mixer_linear_rows_backward(p, mixer_rows(p), weight, x, d_y, in, out, d_x, add);
}

/* ---- several maps at once ---- */
int mixer_follows(const mixer_pass *p, const void *first, const void *next, int64_t elements)
{
    return (const char *)next == (const char *)first + (size_t)elements * p->layer->dev->element;
}

static int follows(const void *first, const void *next, int64_t index, int64_t elements, size_t element)
{
    return (const char *)next == (const char *)first + (size_t)(index * elements) * element;
}

/* How many maps from number `from` on go in one call. */
static int maps_alike(const mixer_pass *p, const mixer_maps *m, int backward, int from)
{
    const mixer_layer *layer = p->layer;
    const device *dev = layer->dev;
    int64_t weights = m->out[from] * m->in, values = m->rows * m->out[from];
    const void *const *y = backward ? m->d_y : (const void *const *)m->y;
    int count = 1;
    for (int i = from + 1; i < m->count; i++, count++) {
        mixer_parameter first = m->weight[from], next = m->weight[i];
        if (m->out[i] != m->out[from] || !follows(y[from], y[i], count, values, dev->element) ||
            !follows(layer->weight[first], layer->weight[next], count, weights, dev->element))
            break;
        if (backward &&
            !follows(layer->gradient[first], layer->gradient[next], count, weights, dev->param_element))
            break;
    }
    return count;
}

int mixer_maps_together(const mixer_pass *p, const mixer_maps *m, int backward)
{
    return maps_alike(p, m, backward, 0) == m->count;
}

void mixer_maps_forward(const mixer_pass *p, const mixer_maps *m, const void *x)
{
    for (int i = 0, count; i < m->count; i += count) {
        count = maps_alike(p, m, 0, i);
        mixer_ops(p)->linear_forward(mixer_run(p), &(linear_args){.rows = m->rows,
                                                                  .in = m->in,
                                                                  .out = m->out[i],
                                                                  .maps = count,
                                                                  .x = x,
                                                                  .weight = p->layer->weight[m->weight[i]],
                                                                  .y = m->y[i]});
    }
}

void mixer_maps_backward(const mixer_pass *p, const mixer_maps *m, const void *x, void *d_x, int add)
{
    for (int i = 0, count; i < m->count; i += count) {
        count = maps_alike(p, m, 1, i);
        mixer_ops(p)->linear_backward(mixer_run(p),
                                      &(linear_args){.rows = m->rows,
                                                     .in = m->in,
                                                     .out = m->out[i],
                                                     .maps = count,
                                                     .x = x,
                                                     .weight = p->layer->weight[m->weight[i]],
                                                     .d_y = m->d_y[i],
                                                     .d_x = d_x,
                                                     .add_d_x = add || i > 0,
                                                     .d_weight = p->layer->gradient[m->weight[i]]});
    }
}

void mixer_output(const mixer_pass *p, const void *o, int64_t in)
{
    int64_t width = p->layer->config.width;
    linear_args a = map_of(p, mixer_wanted(p), MIXER_O, o, in, width);
    a.residual = p->residual && p->row_count ? p->y : p->residual, a.y = p->y;
    mixer_ops(p)->linear_forward(mixer_run(p), &a);
}

void mixer_output_backward(const mixer_pass *p, const void *o, int64_t in, void *d_o)
{
    mixer_linear_rows_backward(p, mixer_wanted(p), MIXER_O, o, p->d_y, in, p->layer->config.width, d_o, 0);
}

/* ---- Wo(RMSNorm per head(o) * SiLU(Wg x)) ---- */
void mixer_gated_parameters(const mixer_config *c, mixer_parameter_list *list)
{
    int64_t value = c->heads * c->dim_v;
    mixer_add_parameter(list, MIXER_GATE, "g.weight", INIT_NORMAL, value, c->width);
    mixer_add_parameter(list, MIXER_NORM, "norm.weight", INIT_ONE, c->dim_v, 0);
    mixer_add_parameter(list, MIXER_O, "o.weight", INIT_NORMAL, c->width, value);
}

void mixer_gated_layout(const mixer_pass *p, mixer_layout *m, mixer_gated *g)
{
    const mixer_config *c = &p->layer->config;
    int64_t rows = mixer_wanted(p), value = c->heads * c->dim_v;
    *g = (mixer_gated){0};
    g->o = mixer_take_picked(p, &m->saved, value);
    g->gate = mixer_take(p, &m->saved, rows, value);
    g->rstd = mixer_take_statistics(p, &m->saved, rows, c->heads);
    g->normed = mixer_take(p, mixer_again(p, m), rows, value);
    g->x = mixer_take_x(p, m);
    if (!p->keep) return;
    g->d_normed = mixer_take(p, &m->work, rows, value);
    g->d_gate = mixer_take(p, &m->work, rows, value);
    g->d_o = mixer_take_picked(p, &m->work, value);
    g->d_x = p->row_count ? mixer_take(p, &m->work, p->row_count, c->width) : p->d_x;
}

static headnorm_args gated_norm(const mixer_pass *p, const mixer_gated *g)
{
    const mixer_config *c = &p->layer->config;
    return (headnorm_args){.rows = mixer_wanted(p),
                           .heads = c->heads,
                           .width = c->dim_v,
                           .eps = MIXER_NORM_EPS,
                           .x = g->o.wanted,
                           .gate = g->gate,
                           .weight = p->layer->parameter[MIXER_NORM],
                           .y = g->normed,
                           .rstd = g->rstd,
                           .d_y = g->d_normed,
                           .d_x = g->d_o.wanted,
                           .d_gate = g->d_gate,
                           .d_weight = p->layer->gradient[MIXER_NORM]};
}

void mixer_gated_forward(const mixer_pass *p, const mixer_gated *g)
{
    const mixer_config *c = &p->layer->config;
    int64_t value = c->heads * c->dim_v;
    headnorm_args norm = gated_norm(p, g);
    mixer_pick(p, &g->o, value);
    mixer_pick_x(p, g->x);
    mixer_linear_rows(p, mixer_wanted(p), MIXER_GATE, g->x, c->width, value, g->gate);
    mixer_ops(p)->headnorm_forward(mixer_run(p), &norm);
    mixer_output(p, g->normed, value);
}

void mixer_gated_backward(const mixer_pass *p, const mixer_gated *g)
{
    const mixer_config *c = &p->layer->config;
    int64_t value = c->heads * c->dim_v;
    headnorm_args norm = gated_norm(p, g);
    if (!mixer_kept(p)) mixer_ops(p)->headnorm_forward(mixer_run(p), &norm);
    mixer_output_backward(p, g->normed, value, g->d_normed);
    mixer_ops(p)->headnorm_backward(mixer_run(p), &norm);
    mixer_put(p, &g->d_o, value);
    mixer_linear_rows_backward(p, mixer_wanted(p), MIXER_GATE, g->x, g->d_gate, c->width, value, g->d_x, 0);
    mixer_add_wanted_x(p, g->d_x, 1);
}
