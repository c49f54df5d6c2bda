/* The parameters of a model: their list, memory and initial values. Order and names are those of checkpoints.
 */
#include "model/model.h"

#include "base/memory.h"
#include "base/rng.h"
#include "base/sizes.h"
#include "base/status.h"
#include "mixers/values.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the list ---- */
static blurry_status grow(blurry_model *model)
{
    if (model->parameter_count < model->parameter_capacity) return BLURRY_OK;
    int64_t capacity = model->parameter_capacity ? 2 * model->parameter_capacity : 64;
    model_parameter *list = realloc(model->parameter, (size_t)capacity * sizeof *list);
    if (!list)
        return status_fail(BLURRY_E_MEMORY, "no memory for a list of %lld parameters", (long long)capacity);
    model->parameter = list;
    model->parameter_capacity = capacity;
    return BLURRY_OK;
}

/* Appends one; *place is its place. columns 0: rank 1. Linear maps and embeddings (INIT_NORMAL) are
 * weight-decayed. */
static blurry_status add(blurry_model *model, int64_t *place, int64_t layer, const char *name,
                         mixer_init init, int64_t rows, int64_t columns)
{
    STATUS_TRY(grow(model));
    model_parameter *p = &model->parameter[model->parameter_count];
    *p = (model_parameter){.rank = columns ? 2 : 1, .shape = {rows, columns ? columns : 1}, .init = init};
    if (layer == MODEL_NONE)
        snprintf(p->name, sizeof p->name, "%s", name);
    else
        snprintf(p->name, sizeof p->name, "layers.%lld.%s", (long long)layer, name);
    if (!memory_count(p->shape, 2, &p->elements))
        return status_fail(BLURRY_E_MEMORY, "%s of shape [%lld, %lld] does not fit in memory", p->name,
                           (long long)rows, (long long)columns);
    p->decay = init == INIT_NORMAL;
    *place = model->parameter_count++;
    return BLURRY_OK;
}

static blurry_status add_norm(blurry_model *model, int64_t *weight, int64_t *bias, int64_t layer,
                              const char *name)
{
    char full[MODEL_NAME];
    snprintf(full, sizeof full, "%s.weight", name);
    STATUS_TRY(add(model, weight, layer, full, INIT_ONE, model->width, 0));
    if (model->settings.norm != SETTINGS_norm_layernorm) return BLURRY_OK;
    snprintf(full, sizeof full, "%s.bias", name);
    return add(model, bias, layer, full, INIT_ZERO, model->width, 0);
}

static blurry_status add_mlp(blurry_model *model, model_layer_places *at, int64_t layer)
{
    int64_t d = model->width, F = model->hidden;
    switch (model->settings.mlp) {
    case SETTINGS_mlp_swiglu:
        STATUS_TRY(add(model, &at->mlp_gate, layer, "mlp.gate.weight", INIT_NORMAL, F, d));
        STATUS_TRY(add(model, &at->mlp_up, layer, "mlp.up.weight", INIT_NORMAL, F, d));
        return add(model, &at->mlp_down, layer, "mlp.down.weight", INIT_NORMAL, d, F);
    case SETTINGS_mlp_gelu:
        STATUS_TRY(add(model, &at->mlp_up, layer, "mlp.fc1.weight", INIT_NORMAL, F, d));
        return add(model, &at->mlp_down, layer, "mlp.fc2.weight", INIT_NORMAL, d, F);
    default:
        return BLURRY_OK;
    }
}

static blurry_status add_mixer(blurry_model *model, model_layer_places *at, int64_t layer,
                               const mixer_config *config)
{
    mixer_parameter_list list;
    mixer_parameters(config, &list);
    for (int i = 0; i < list.count; i++) {
        const mixer_parameter_spec *spec = &list.spec[i];
        char name[MODEL_NAME];
        int64_t *place = &at->mixer[spec->slot];
        snprintf(name, sizeof name, "mixer.%s", spec->name);
        STATUS_TRY(
            add(model, place, layer, name, spec->init, spec->shape[0], spec->rank == 2 ? spec->shape[1] : 0));
        if (!spec->values) continue;
        model_parameter *p = &model->parameter[*place];
        void *values;
        STATUS_TRY(memory_alloc(&values, (size_t)p->elements, sizeof(double), p->name));
        memcpy(values, spec->values, (size_t)p->elements * sizeof(double));
        p->values = values;
    }
    return BLURRY_OK;
}

static blurry_status add_layer(blurry_model *model, int64_t layer, const mixer_config *config)
{
    model_layer_places *at = &model->places.layer[layer];
    memset(at, 0xff, sizeof *at); /* every place MODEL_NONE */
    STATUS_TRY(add_norm(model, &at->norm1, &at->norm1_bias, layer, "norm1"));
    STATUS_TRY(add_mixer(model, at, layer, config));
    if (model->settings.mlp == SETTINGS_mlp_none) return BLURRY_OK;
    STATUS_TRY(add_norm(model, &at->norm2, &at->norm2_bias, layer, "norm2"));
    return add_mlp(model, at, layer);
}

blurry_status parameters_list(blurry_model *model, const mixer_config *configs)
{
    const struct settings *s = &model->settings;
    model_places *at = &model->places;
    void *memory;
    memset(at, 0xff, sizeof *at);
    at->layer = NULL;
    STATUS_TRY(memory_alloc(&memory, (size_t)model->layers, sizeof *at->layer, "layers"));
    at->layer = memory;
    STATUS_TRY(add(model, &at->embed, MODEL_NONE, "embed.weight", INIT_NORMAL, model->vocab, model->width));
    if (s->position == SETTINGS_position_learned)
        STATUS_TRY(
            add(model, &at->position, MODEL_NONE, "position.weight", INIT_NORMAL, s->length, model->width));
    for (int64_t layer = 0; layer < model->layers; layer++)
        STATUS_TRY(add_layer(model, layer, &configs[layer]));
    STATUS_TRY(add_norm(model, &at->norm, &at->norm_bias, MODEL_NONE, "norm"));
    if (s->tied) return BLURRY_OK;
    return add(model, &at->head, MODEL_NONE, "head.weight", INIT_NORMAL, model->vocab, model->width);
}

/* ---- memory ---- */
/* Decayed tensors first: then one update serves all parameters. Within a group the list's order, so that a
 * mixer's q, k and v lie next to each other. */
static size_t place_parameters(blurry_model *model)
{
    size_t total = 0;
    for (int decay = 1; decay >= 0; decay--) {
        for (int64_t i = 0; i < model->parameter_count; i++) {
            model_parameter *p = &model->parameter[i];
            if ((p->decay != 0) != decay) continue;
            p->offset = total;
            total = size_add(total, size_align(size_of(p->elements, model->dev->param_element)));
        }
        if (decay) model->decayed_bytes = total;
    }
    return total;
}

blurry_status parameters_allocate(blurry_model *model, int training)
{
    size_t total = place_parameters(model);
    if (total > SIZE_MAX / 2) return status_fail(BLURRY_E_MEMORY, "the parameters do not fit in memory");
    model->parameter_bytes = total;
    void *memory;
    STATUS_TRY(device_alloc(model->dev, total, &memory));
    model->data = memory;
    if (model->dev->element != model->dev->param_element) {
        STATUS_TRY(
            device_alloc(model->dev, total / model->dev->param_element * model->dev->element, &memory));
        model->copy = memory;
    }
    if (!training) return BLURRY_OK;
    STATUS_TRY(device_alloc(model->dev, total, &memory));
    model->gradient = memory;
    return BLURRY_OK;
}

void parameters_release(blurry_model *model)
{
    for (int64_t i = 0; i < model->parameter_count; i++) memory_free(model->parameter[i].values);
    free(model->parameter);
    memory_free(model->places.layer);
    if (model->dev && model->data) device_free(model->dev, model->data);
    if (model->dev && model->copy) device_free(model->dev, model->copy);
    if (model->dev && model->gradient) device_free(model->dev, model->gradient);
}

void *parameter_data(const blurry_model *model, int64_t place)
{
    return place == MODEL_NONE ? NULL : model->data + model->parameter[place].offset;
}

const void *parameter_weight(const blurry_model *model, int64_t place)
{
    if (place == MODEL_NONE || !model->copy) return parameter_data(model, place);
    return model->copy + model->parameter[place].offset / model->dev->param_element * model->dev->element;
}

void *parameter_gradient(const blurry_model *model, int64_t place)
{
    return place == MODEL_NONE || !model->gradient ? NULL : model->gradient + model->parameter[place].offset;
}

void parameters_changed(blurry_model *model)
{
    model->copy_old = model->copy != NULL;
}

void parameters_refresh(blurry_model *model)
{
    if (!model->copy_old) return;
    model->dev->ops->convert(&model->dev->run, &(convert_args){.count = (int64_t)(model->parameter_bytes /
                                                                                  model->dev->param_element),
                                                               .x = model->data,
                                                               .y = model->copy});
    model->copy_old = 0;
}

/* ---- initial values ---- */
static uint64_t name_hash(const char *name) /* FNV-1a */
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (; *name; name++) hash = (hash ^ (unsigned char)*name) * 0x100000001b3u;
    return hash;
}

/* Uniform in (0, 1), element n of a stream. */
static double uniform_at(uint64_t seed, uint64_t stream, uint64_t n)
{
    uint32_t word[4];
    rng_block(seed, RNG_INIT, stream, n, word);
    return rng_open(word[0] | ((uint64_t)word[1] << 32));
}

static double initial_value(const model_parameter *p, uint64_t seed, uint64_t stream, int64_t i)
{
    uint64_t n = (uint64_t)i;
    const double log_low = log(1e-3), log_high = log(0.1);
    double dt;
    switch (p->init) {
    case INIT_ONE:
        return 1;
    case INIT_NORMAL:
        return 0.02 * rng_normal_at(seed, RNG_INIT, stream, n);
    case INIT_CONV:
        return uniform_at(seed, stream, n) - 0.5;
    case INIT_GDN_A:
        return log(16 * uniform_at(seed, stream, n));
    case INIT_GDN_DT:
        dt = exp(log_low + (log_high - log_low) * uniform_at(seed, stream, n));
        return dt + log(-expm1(-dt));
    case INIT_LOG_STEP:
        return log_low + (log_high - log_low) * uniform_at(seed, stream, n);
    case INIT_UNIT:
        return rng_normal_at(seed, RNG_INIT, stream, n);
    case INIT_HALF:
        return sqrt(0.5) * rng_normal_at(seed, RNG_INIT, stream, n);
    case INIT_GIVEN:
        return p->values[i];
    default:
        return 0;
    }
}

blurry_status parameters_initialise(blurry_model *model, uint64_t seed)
{
    enum { PIECE = 4096 };
    double piece[PIECE];
    parameters_changed(model);
    for (int64_t k = 0; k < model->parameter_count; k++) {
        const model_parameter *p = &model->parameter[k];
        uint64_t stream = name_hash(p->name);
        for (int64_t i = 0; i < p->elements; i += PIECE) {
            int64_t n = p->elements - i < PIECE ? p->elements - i : PIECE;
            for (int64_t j = 0; j < n; j++) piece[j] = initial_value(p, seed, stream, i + j);
            char *to = (char *)parameter_data(model, k) + (size_t)i * model->dev->param_element;
            STATUS_TRY(values_write(model->dev, to, n, piece));
        }
    }
    return BLURRY_OK;
}
