/* One run of a grid before it is carried out: can it be, how large is it, what does it cost. Nothing of the
 * model's size is allocated. */
#include "base/memory.h"
#include "blurry/task.h"
#include "model/model.h"
#include "sweep/grid.h"
#include "train/trainer.h"

#include <stdlib.h>
#include <string.h>

/* Tasks are checked once each: making a RegBench means drawing all its automata. */
struct check_cache {
    char key[65];
    blurry_task_info info;
    check_cache *next;
};

void grid_check_free(check_cache **cache)
{
    while (*cache) {
        check_cache *next = (*cache)->next;
        free(*cache);
        *cache = next;
    }
}

static blurry_status task_info(const blurry_settings *settings, check_cache **cache, blurry_task_info *info)
{
    char key[65];
    blurry_settings_hash(settings, BLURRY_SETTINGS_TASK, key);
    for (const check_cache *c = *cache; c; c = c->next)
        if (!strcmp(c->key, key)) {
            *info = c->info;
            return BLURRY_OK;
        }
    blurry_task *task = NULL;
    STATUS_TRY(blurry_task_create(&task, settings));
    blurry_task_describe(task, info);
    blurry_task_destroy(&task);
    check_cache *entry = malloc(sizeof *entry);
    if (!entry) return status_fail(BLURRY_E_MEMORY, "list of tasks: out of memory");
    memcpy(entry->key, key, sizeof key);
    entry->info = *info;
    entry->next = *cache;
    *cache = entry;
    return BLURRY_OK;
}

/* Elements of a layer's matrices and vectors. */
static int64_t layer_elements(const mixer_config *config, const struct settings *s)
{
    mixer_parameter_list list;
    int64_t elements = 0;
    mixer_parameters(config, &list);
    for (int i = 0; i < list.count; i++)
        elements += list.spec[i].shape[0] * (list.spec[i].rank > 1 ? list.spec[i].shape[1] : 1);
    int64_t hidden = s->mlp == SETTINGS_mlp_gelu     ? 8
                     : s->mlp == SETTINGS_mlp_swiglu ? 8
                                                     : 0; /* 2 x 4d, 3 x 8/3 d */
    return elements + hidden * s->width * s->width + 2 * s->width;
}

/* Multiply-adds of forward and backward of one step, and the memory of the run. A measure to compare runs by:
 * times come from runs that were timed. */
static void measure(grid_run *run, const mixer_config *configs, const struct settings *s,
                    const blurry_task_info *info)
{
    double tokens = (double)s->batch * (double)info->length,
           rows = (double)s->batch * (double)info->max_labels;
    double work = 3 * rows * (double)info->vocabulary * (double)s->width, kept = 0;
    run->parameters = info->vocabulary * s->width * (s->tied ? 1 : 2) + s->width;
    for (int64_t layer = 0; layer < s->layers; layer++) {
        int64_t elements = layer_elements(&configs[layer], s);
        int softmax = !strcmp(configs[layer].type->name, "softmax");
        double state = (double)mixer_state_elements(&configs[layer], info->length) * (softmax ? 0.5 : 2);
        run->parameters += elements;
        work += 3 * tokens * ((double)elements + state);
        kept += tokens * (12 * (double)s->width + (s->mlp == SETTINGS_mlp_none ? 0 : 8 * (double)s->width));
    }
    run->work = work * (double)run->steps;
    run->bytes = 4 * (4 * (double)run->parameters + kept / (double)s->accumulate +
                      (double)info->vocabulary * 4096 + tokens * (double)s->width * 8);
}

blurry_status grid_check(grid_run *run, check_cache **cache)
{
    const struct settings *s = settings_values(run->settings);
    blurry_task_info info;
    mixer_config *configs;
    STATUS_TRY(task_info(run->settings, cache, &info));
    run->descends = info.metric_descends != 0;
    STATUS_TRY(trainer_steps(s, &info, &run->steps));
    STATUS_TRY(network_configs(s, &configs));
    measure(run, configs, s, &info);
    network_configs_free(configs, s->layers);
    return blurry_state_size_model(run->settings, info.length, &run->state_elements);
}
