/* AdamW with decay groups: see optimiser.h. */
#include "train/optimiser.h"
#include "base/memory.h"
#include "model/model.h"

#include <math.h>

blurry_status optimiser_create(optimiser *o, device *dev, const blurry_model *model,
                               const struct settings *settings)
{
    *o = (optimiser){.dev = dev,
                     .model = model,
                     .tensors = blurry_model_parameter_count(model),
                     .beta1 = settings->beta1,
                     .beta2 = settings->beta2,
                     .eps = settings->eps,
                     .weight_decay = settings->weight_decay,
                     .clip = settings->clip};
    size_t n = (size_t)o->tensors;
    STATUS_TRY(memory_alloc((void **)&o->parameters, n, sizeof *o->parameters, "list of parameters"));
    STATUS_TRY(memory_alloc((void **)&o->offset, n, sizeof *o->offset, "list of parameters"));
    for (int64_t i = 0; i < o->tensors; i++) {
        STATUS_TRY(blurry_model_parameter(model, i, &o->parameters[i]));
        o->offset[i] = (int64_t)(model->parameter[i].offset / dev->param_element);
    }
    o->elements = (int64_t)(model->parameter_bytes / dev->param_element);
    size_t bytes = (size_t)o->elements * dev->param_element;
    STATUS_TRY(device_alloc(dev, bytes, &o->m));
    STATUS_TRY(device_alloc(dev, bytes, &o->v));
    return device_alloc(dev, sizeof *o->scalars, (void **)&o->scalars);
}

void optimiser_destroy(optimiser *o)
{
    if (!o->dev) return;
    device_free(o->dev, o->m);
    device_free(o->dev, o->v);
    device_free(o->dev, o->scalars);
    memory_free(o->parameters);
    memory_free(o->offset);
    *o = (optimiser){0};
}

void optimiser_queue_measure(optimiser *o, const double *loss)
{
    o->dev->ops->clip(&o->dev->run, &(clip_args){.count = o->elements,
                                                 .x = o->model->gradient,
                                                 .loss = loss,
                                                 .average = 1,
                                                 .limit = o->clip,
                                                 .norm = &o->scalars->norm,
                                                 .scalars = &o->scalars->adamw});
}

void optimiser_queue_update(optimiser *o, int clear)
{
    o->dev->ops->adamw(&o->dev->run,
                       &(adamw_args){.count = o->elements,
                                     .decayed = (int64_t)(o->model->decayed_bytes / o->dev->param_element),
                                     .param = o->model->data,
                                     .m = o->m,
                                     .v = o->v,
                                     .copy = o->model->copy,
                                     .grad = o->model->gradient,
                                     .clear = clear,
                                     .scalars = &o->scalars->adamw});
}

adamw_scalars optimiser_scalars_of(const optimiser *o, int64_t step, double lr)
{
    return (adamw_scalars){.lr = lr,
                           .beta1 = o->beta1,
                           .beta2 = o->beta2,
                           .eps = o->eps,
                           .shrink = 1 - lr * o->weight_decay,
                           .step = (double)step,
                           .rate = lr / (1 - pow(o->beta1, (double)step)),
                           .root = sqrt(1 - pow(o->beta2, (double)step))};
}

blurry_status optimiser_measure(optimiser *o, double *norm)
{
    optimiser_queue_measure(o, NULL);
    STATUS_TRY(device_download(o->dev, norm, &o->scalars->norm, sizeof *norm));
    return device_sync(o->dev);
}

blurry_status optimiser_apply(optimiser *o, int64_t step, double lr)
{
    optimiser_scalars now;
    STATUS_TRY(device_download(o->dev, &now, o->scalars, sizeof now));
    double grad_scale = now.adamw.grad_scale;
    now.adamw = optimiser_scalars_of(o, step, lr);
    now.adamw.grad_scale = grad_scale;
    STATUS_TRY(device_upload(o->dev, o->scalars, &now, sizeof now));
    optimiser_queue_update(o, 0);
    return device_sync(o->dev);
}

size_t optimiser_bytes(const optimiser *o)
{
    return 2 * (size_t)o->elements * o->dev->param_element + sizeof *o->scalars;
}
