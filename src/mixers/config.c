/* The options of one layer: from settings to checked widths, the list of parameters, and the state size. */
#include "mixers/mixer.h"

#include "base/memory.h"

#include <math.h>
#include <string.h>

static blurry_status unknown_mixer(const char *name)
{
    char known[256] = "";
    for (int i = 0; i < mixer_count(); i++) {
        if (i) strncat(known, ", ", sizeof known - strlen(known) - 1);
        strncat(known, mixer_at(i)->name, sizeof known - strlen(known) - 1);
    }
    return status_fail(BLURRY_E_INVALID, "mixer is '%s': give one of %s", name, known);
}

/* *per_head = round(base * expand) / heads; the total must divide evenly. */
static blurry_status resolve_width(const char *option, int64_t base, double expand, int64_t heads,
                                   int64_t *per_head)
{
    double total = rint((double)base * expand);
    if (!(total >= 1 && total <= 1e9))
        return status_fail(BLURRY_E_INVALID, "%s is %g: times %lld it must be between 1 and 1e9", option,
                           expand, (long long)base);
    if ((int64_t)total % heads)
        return status_fail(
            BLURRY_E_INVALID,
            "heads is %lld: give a divisor of %lld (%lld times %s %g), so that heads are equally wide",
            (long long)heads, (long long)total, (long long)base, option, expand);
    *per_head = (int64_t)total / heads;
    return BLURRY_OK;
}

static blurry_status resolve_heads(mixer_config *c, const struct settings *s)
{
    if (c->type->headless) {
        c->heads = c->heads_kv = 1;
        c->dim_k = c->dim_v = c->width;
        return BLURRY_OK;
    }
    c->heads = s->heads;
    c->heads_kv = c->type->grouped && s->kv_heads ? s->kv_heads : s->heads;
    if (c->heads % c->heads_kv)
        return status_fail(BLURRY_E_INVALID, "kv_heads is %lld: give a divisor of heads, which is %lld",
                           (long long)c->heads_kv, (long long)c->heads);
    double expand_k = s->expand_k > 0 ? s->expand_k : c->type->expand_k;
    double expand_v = s->expand_v > 0 ? s->expand_v : c->type->expand_v;
    STATUS_TRY(resolve_width("expand_k", c->width, expand_k, c->heads, &c->dim_k));
    int64_t base = c->type->value_from_key ? c->dim_k * c->heads : c->width;
    return resolve_width("expand_v", base, expand_v, c->heads, &c->dim_v);
}

blurry_status mixer_config_init(mixer_config *c, const struct settings *s, const char *name)
{
    memset(c, 0, sizeof *c);
    const mixer *type = mixer_find(name);
    if (!type) return unknown_mixer(name);
    *c = (mixer_config){.type = type,
                        .width = s->width,
                        .modes = s->modes,
                        .window = s->window,
                        .slots = s->slots,
                        .state = s->state,
                        .learned_period = s->learned_period,
                        .decay = s->decay,
                        .relative = s->grid == SETTINGS_grid_relative,
                        .rope = type->rotary && s->rope,
                        .conv = s->conv,
                        .rope_base = s->rope_base};
    blurry_status status = resolve_heads(c, s);
    if (status == BLURRY_OK && type->check) status = type->check(c, s);
    if (status != BLURRY_OK) {
        mixer_config_release(c);
        return status_context(status, "mixer %s", name);
    }
    return BLURRY_OK;
}

void mixer_config_release(mixer_config *c)
{
    memory_free(c->period);
    c->period = NULL;
}

void mixer_parameters(const mixer_config *c, mixer_parameter_list *list)
{
    list->count = 0;
    c->type->parameters(c, list);
}

int64_t mixer_state_elements(const mixer_config *c, int64_t length)
{
    int64_t elements = c->type->state_elements(c, length);
    if (!c->conv) return elements;
    return elements + c->type->conv_channels(c) * (MIXER_CONV_TAPS - 1);
}
