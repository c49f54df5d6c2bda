/* blurry, blurry window attention (docs/operator.md):
 *     q, k, v = W x;  RoPE on q, k where it is on;  o = the operator with M modes and a period per key/value
 * head;  y = Wo o The periods are fixed, or learned: then they are the parameter `period` [Hkv] in tokens,
 * values below S = 2M-1 are raised to S, and the plan is made anew whenever they have moved. State: the
 * operator's own bytes for each sequence. */
#include "mixers/parts.h"

#include "base/memory.h"
#include "mixers/values.h"

#include <string.h>

typedef struct blurry_tensors {
    mixer_streams s;
    mixer_picked o, d_o; /* [rows, H Dv]; where queries are picked, all of it is what is wanted */
    void *notes;
    double *d_period;
    char *carried;
} blurry_tensors;

/* What the operator writes: at the rows of its queries. */
static mixer_picked blurry_take_rows(const mixer_pass *p, mixer_cursor *cursor, int picks, int64_t width)
{
    if (!picks) return mixer_take_picked(p, cursor, width);
    void *wanted = mixer_take(p, cursor, p->row_count, width);
    return (mixer_picked){wanted, wanted};
}

static mixer_layout blurry_layout(const mixer_pass *p, blurry_tensors *t)
{
    const mixer_config *c = &p->layer->config;
    mixer_layout m = mixer_layout_begin(p);
    int64_t value = c->heads * c->dim_v;
    *t = (blurry_tensors){0};
    mixer_streams_layout(p, &m, 0, device_blurry_rows(p->layer->dev), &t->s);
    t->o = blurry_take_rows(p, &m.saved, t->s.picks, value);
    if (p->keep) {
        t->d_o = blurry_take_rows(p, &m.work, t->s.picks, value);
        t->d_period = mixer_take_bytes(&m.work, (size_t)c->heads_kv * sizeof(double));
    }
    t->carried = mixer_take_bytes(&m.state, (size_t)p->B * blurry_attn_state_bytes(p->layer->plan));
    kernel_sizes need = {0};
    device_blurry_sizes(p->layer->dev, p->layer->plan, &need);
    t->notes = mixer_take_kernel(p, &m, &need);
    return m;
}

static void blurry_sizes(const mixer_pass *p, mixer_sizes *sizes)
{
    blurry_tensors t;
    mixer_layout m = blurry_layout(p, &t);
    mixer_layout_sizes(&m, sizes);
}

/* A pass with fewer or shorter sequences than the plan's: the missing ones are empty. */
static const int64_t *blurry_offsets(const mixer_pass *p)
{
    mixer_layer *layer = p->layer;
    if (p->B == layer->batch && p->L == layer->length) return NULL;
    for (int64_t b = 0; b <= layer->batch; b++) layer->offsets[b] = (b < p->B ? b : p->B) * p->L;
    return layer->offsets;
}

static blurry_args blurry_core(const mixer_pass *p, const blurry_tensors *t)
{
    return (blurry_args){.plan = p->layer->plan,
                         .offsets = blurry_offsets(p),
                         .rows = t->s.picks ? p->rows : NULL,
                         .row_count = p->row_count,
                         .q = t->s.out[STREAM_Q],
                         .k = t->s.out[STREAM_K],
                         .v = t->s.out[STREAM_V],
                         .o = t->o.all,
                         .state_in = t->carried,
                         .state_out = t->carried,
                         .saved = t->notes,
                         .d_o = t->d_o.all,
                         .d_q = t->s.d_out[STREAM_Q],
                         .d_k = t->s.d_out[STREAM_K],
                         .d_v = t->s.d_out[STREAM_V],
                         .d_period = p->layer->config.learned_period ? t->d_period : NULL};
}

/* One token against carried states: the operator's decode form. */
static void blurry_one_token(const mixer_pass *p, const blurry_tensors *t)
{
    device_blurry_step(p->layer->dev, &(blurry_step_args){.plan = p->layer->plan,
                                                          .count = p->B,
                                                          .q = t->s.out[STREAM_Q],
                                                          .k = t->s.out[STREAM_K],
                                                          .v = t->s.out[STREAM_V],
                                                          .o = t->o.all,
                                                          .states = t->carried});
}

static void blurry_forward(const mixer_pass *p)
{
    int64_t value = p->layer->config.heads * p->layer->config.dim_v;
    blurry_tensors t;
    blurry_layout(p, &t);
    mixer_streams_forward(p, &t.s);
    if (p->L == 1 && p->state) {
        blurry_one_token(p, &t);
    } else {
        blurry_args core = blurry_core(p, &t);
        device_blurry_forward(p->layer->dev, &core);
    }
    mixer_pick(p, &t.o, value);
    mixer_output(p, t.o.wanted, value);
}

static void blurry_backward(const mixer_pass *p)
{
    int64_t value = p->layer->config.heads * p->layer->config.dim_v;
    blurry_tensors t;
    blurry_layout(p, &t);
    blurry_args core = blurry_core(p, &t);
    mixer_output_backward(p, t.o.wanted, value, t.d_o.wanted);
    mixer_put(p, &t.d_o, value);
    device_blurry_backward(p->layer->dev, &core);
    if (p->layer->config.learned_period)
        p->layer->dev->ops->collect(&p->layer->dev->run,
                                    &(collect_args){.count = p->layer->config.heads_kv,
                                                    .values = t.d_period,
                                                    .gradient = p->layer->gradient[MIXER_PERIOD]});
    mixer_streams_backward(p, &t.s, 0);
}

/* A plan for the layer's shape and these periods [Hkv]. */
static blurry_status blurry_make_plan(mixer_layer *layer, const double *period)
{
    const mixer_config *c = &layer->config;
    blurry_attn_desc desc;
    blurry_attn_plan *plan = NULL;
    blurry_attn_desc_init(&desc);
    desc.batch = layer->batch;
    desc.length = layer->length;
    desc.heads = c->heads;
    desc.heads_kv = c->heads_kv;
    desc.dim_k = c->dim_k;
    desc.dim_v = c->dim_v;
    desc.modes = c->modes;
    desc.period = period;
    desc.decay = c->decay;
    desc.threads = layer->threads;
    desc.grid = c->relative ? BLURRY_GRID_RELATIVE : BLURRY_GRID_ABSOLUTE;
    STATUS_TRY(device_blurry_plan(layer->dev, &desc, &plan));
    blurry_attn_plan_destroy(&layer->plan);
    layer->plan = plan;
    return BLURRY_OK;
}

/* The learned periods as they are now, in host_values. A step may carry one below 0: the operator raises 0 to
 * S as well. */
static blurry_status blurry_read_periods(mixer_layer *layer)
{
    int64_t Hkv = layer->config.heads_kv;
    STATUS_TRY(values_read(layer->dev, layer->parameter[MIXER_PERIOD], Hkv, layer->host_values));
    for (int64_t h = 0; h < Hkv; h++)
        if (layer->host_values[h] < 0) layer->host_values[h] = 0;
    return BLURRY_OK;
}

static blurry_status blurry_prepare(mixer_layer *layer)
{
    const mixer_config *c = &layer->config;
    void *memory;
    STATUS_TRY(memory_alloc(&memory, (size_t)layer->batch + 1, sizeof(int64_t), "offsets of blurry"));
    layer->offsets = memory;
    STATUS_TRY(memory_alloc(&memory, (size_t)c->heads_kv, sizeof(double), "periods of blurry"));
    layer->host_values = memory;
    if (!c->learned_period) return blurry_make_plan(layer, c->period);
    STATUS_TRY(blurry_read_periods(layer));
    return blurry_make_plan(layer, layer->host_values);
}

/* Learned periods move with every step; a plan is made only when one of them has. */
static blurry_status blurry_refresh(mixer_layer *layer)
{
    const mixer_config *c = &layer->config;
    if (!c->learned_period) return BLURRY_OK;
    blurry_attn_desc desc;
    kernel_sizes before = {0}, after = {0};
    blurry_attn_plan_desc(layer->plan, &desc);
    STATUS_TRY(blurry_read_periods(layer));
    if (!memcmp(desc.period, layer->host_values, (size_t)c->heads_kv * sizeof(double))) return BLURRY_OK;
    device_blurry_sizes(layer->dev, layer->plan, &before);
    STATUS_TRY(blurry_make_plan(layer, layer->host_values));
    device_blurry_sizes(layer->dev, layer->plan, &after);
    if (after.saved > before.saved)
        return status_fail(BLURRY_E_INTERNAL,
                           "learned periods changed the notes of blurry from %zu to %zu bytes", before.saved,
                           after.saved);
    return after.scratch > before.scratch ? device_reserve(layer->dev, after.scratch) : BLURRY_OK;
}

static blurry_status blurry_state_init(const mixer_pass *p)
{
    blurry_tensors t;
    blurry_layout(p, &t);
    device_blurry_states_init(p->layer->dev, p->layer->plan, t.carried, p->B);
    return BLURRY_OK;
}

/* Periods from `period`, or else from `resolution`, each one number or one per key/value head. */
static blurry_status blurry_check(mixer_config *c, const struct settings *s)
{
    void *memory;
    if (c->relative && c->decay)
        return status_fail(BLURRY_E_INVALID,
                           "decay is true with grid relative: the relative grid is defined without "
                           "decay, set decay=false or grid=absolute");
    STATUS_TRY(memory_alloc(&memory, (size_t)c->heads_kv, sizeof(double), "periods"));
    c->period = memory;
    if (settings_list_count(s->period)) return settings_reals("period", s->period, c->heads_kv, c->period);
    STATUS_TRY(settings_reals("resolution", s->resolution, c->heads_kv, c->period));
    for (int64_t h = 0; h < c->heads_kv; h++) c->period[h] *= (double)(2 * c->modes - 1);
    return BLURRY_OK;
}

static void blurry_parameters(const mixer_config *c, mixer_parameter_list *list)
{
    mixer_stream_parameters(c, list);
    if (c->learned_period) {
        mixer_add_parameter(list, MIXER_PERIOD, "period", INIT_GIVEN, c->heads_kv, 0);
        list->spec[list->count - 1].values = c->period;
    }
    mixer_add_parameter(list, MIXER_O, "o.weight", INIT_NORMAL, c->width, c->heads * c->dim_v);
}

static int64_t blurry_state_elements(const mixer_config *c, int64_t length)
{
    (void)length;
    return c->heads_kv * (c->dim_k + c->dim_v) * (2 * c->modes - 1);
}

const mixer mixer_blurry = {
    .name = "blurry",
    .summary = "blurry window attention: 2M-1 slots written with Dirichlet weights",
    .expand_k = 1,
    .expand_v = 1,
    .grouped = 1,
    .rotary = 1,
    .folds = 1,
    .check = blurry_check,
    .parameters = blurry_parameters,
    .state_elements = blurry_state_elements,
    .conv_channels = mixer_stream_channels,
    .prepare = blurry_prepare,
    .refresh = blurry_refresh,
    .sizes = blurry_sizes,
    .state_init = blurry_state_init,
    .forward = blurry_forward,
    .backward = blurry_backward,
};
