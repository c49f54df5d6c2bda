/* Blurry attention on a device, over the public plan. */
#include "device/device.h"

#include "base/status.h"

blurry_status device_blurry_plan(device *dev, const blurry_attn_desc *desc, blurry_attn_plan **plan)
{
    blurry_attn_desc d = *desc;
    d.dtype = dev->dtype;
    if (d.threads == 0) d.threads = dev->threads;
    d.reference = dev->reference;
    d.device = dev->kind == DEVICE_CUDA ? BLURRY_DEVICE_CUDA : BLURRY_DEVICE_CPU;
    return blurry_attn_plan_create(plan, &d);
}

int device_blurry_rows(const device *dev)
{
    return dev->kind == DEVICE_CPU;
}

void device_blurry_sizes(device *dev, const blurry_attn_plan *plan, kernel_sizes *sizes)
{
    (void)dev;
    blurry_attn_desc desc;
    blurry_attn_plan_desc(plan, &desc);
    size_t forward = blurry_attn_forward_workspace(plan), backward = blurry_attn_backward_workspace(plan);
    size_t step = blurry_attn_step_workspace(plan), most = forward > backward ? forward : backward;
    sizes->scratch = most > step ? most : step;
    sizes->saved = blurry_attn_saved_bytes(plan);
    sizes->state = (size_t)desc.batch * blurry_attn_state_bytes(plan);
}

static void note(device *dev, blurry_status status)
{
    if (status != BLURRY_OK) device_fail(dev, status, blurry_last_error());
}

void device_blurry_forward(device *dev, const blurry_args *a)
{
    blurry_attn_forward_args args = {.q = a->q,
                                     .k = a->k,
                                     .v = a->v,
                                     .o = a->o,
                                     .offsets = a->offsets,
                                     .rows = a->rows,
                                     .row_count = a->row_count,
                                     .state_in = a->state_in,
                                     .state_out = a->state_out,
                                     .saved = a->saved,
                                     .workspace = dev->run.scratch,
                                     .workspace_bytes = dev->run.scratch_bytes,
                                     .stream = dev->run.stream};
    note(dev, blurry_attn_forward(a->plan, &args));
}

void device_blurry_backward(device *dev, const blurry_args *a)
{
    blurry_attn_backward_args args = {.q = a->q,
                                      .k = a->k,
                                      .v = a->v,
                                      .d_o = a->d_o,
                                      .offsets = a->offsets,
                                      .rows = a->rows,
                                      .row_count = a->row_count,
                                      .state_in = a->state_in,
                                      .saved = a->saved,
                                      .d_q = a->d_q,
                                      .d_k = a->d_k,
                                      .d_v = a->d_v,
                                      .d_period = a->d_period,
                                      .workspace = dev->run.scratch,
                                      .workspace_bytes = dev->run.scratch_bytes,
                                      .stream = dev->run.stream};
    note(dev, blurry_attn_backward(a->plan, &args));
}

void device_blurry_step(device *dev, const blurry_step_args *a)
{
    blurry_attn_step_args args = {.count = a->count,
                                  .q = a->q,
                                  .k = a->k,
                                  .v = a->v,
                                  .o = a->o,
                                  .state_batch = a->states,
                                  .workspace = dev->run.scratch,
                                  .workspace_bytes = dev->run.scratch_bytes,
                                  .stream = dev->run.stream};
    note(dev, blurry_attn_step(a->plan, &args));
}

void device_blurry_states_init(device *dev, const blurry_attn_plan *plan, void *states, int64_t count)
{
    note(dev, blurry_attn_states_init(plan, states, count, dev->run.stream));
}
