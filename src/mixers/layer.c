/* One layer's mixer on a device: its plans, tables, sizes and initial state. */
#include "mixers/mixer.h"

#include "base/memory.h"
#include "base/sizes.h"
#include "base/status.h"

#include <string.h>

void mixer_layer_init(mixer_layer *layer, mixer_config *c, device *dev, int64_t batch, int64_t length,
                      int64_t capacity)
{
    *layer = (mixer_layer){.config = *c, .dev = dev, .batch = batch, .length = length, .capacity = capacity};
    memset(c, 0, sizeof *c);
}

/* Cosines and sines for passes that start at position 0, once. */
static blurry_status prepare_rope(mixer_layer *layer)
{
    const mixer_config *c = &layer->config;
    if (!c->rope) return BLURRY_OK;
    size_t bytes = size_mul(size_of(layer->length, (size_t)c->dim_k), layer->dev->stat_element);
    STATUS_TRY(device_alloc(layer->dev, bytes, &layer->rope_table));
    layer->dev->ops->rope_table(&layer->dev->run, &(rope_args){.length = layer->length,
                                                               .dim = c->dim_k,
                                                               .base = c->rope_base,
                                                               .table = layer->rope_table});
    return BLURRY_OK;
}

blurry_status mixer_layer_prepare(mixer_layer *layer)
{
    STATUS_TRY(prepare_rope(layer));
    return layer->config.type->prepare ? layer->config.type->prepare(layer) : BLURRY_OK;
}

void mixer_layer_release(mixer_layer *layer)
{
    if (layer->rope_table) device_free(layer->dev, layer->rope_table);
    blurry_attn_plan_destroy(&layer->plan);
    memory_free(layer->offsets);
    memory_free(layer->host_values);
    mixer_config_release(&layer->config);
    memset(layer, 0, sizeof *layer);
}

blurry_status mixer_layer_refresh(mixer_layer *layer)
{
    return layer->config.type->refresh ? layer->config.type->refresh(layer) : BLURRY_OK;
}

static void widen(const mixer *type, const mixer_pass *p, mixer_sizes *sizes)
{
    mixer_sizes need;
    type->sizes(p, &need);
    if (need.saved > sizes->saved) sizes->saved = need.saved;
    if (need.work > sizes->work) sizes->work = need.work;
    if (need.scratch > sizes->scratch) sizes->scratch = need.scratch;
}

void mixer_layer_sizes(mixer_layer *layer, int keep, mixer_sizes *sizes)
{
    const mixer *type = layer->config.type;
    mixer_pass p = {.layer = layer, .B = layer->batch, .L = layer->length, .keep = keep};
    int64_t most = mixer_rows_most(p.B * p.L);
    type->sizes(&p, sizes);
    if (!most || (!keep && layer->capacity)) return; /* what carries a state picks no rows */
    p.row_count = most;
    widen(type, &p, sizes);
    if (!keep) return;
    p.row_count = 0, p.x_rows = most;
    if (type->folds) widen(type, &p, sizes);
}

blurry_status mixer_state_init(mixer_layer *layer, void *state)
{
    mixer_sizes sizes;
    mixer_layer_sizes(layer, 0, &sizes);
    mixer_pass p = {.layer = layer, .B = layer->batch, .L = layer->length, .state = state};
    device_zero(layer->dev, state, sizes.state);
    return layer->config.type->state_init ? layer->config.type->state_init(&p) : BLURRY_OK;
}
