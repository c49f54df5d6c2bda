/* AdamW over all parameters of a model, with gradient clipping. The moments lie in two blocks of device
 * memory, laid out as the model's parameters. Decay groups: a tensor decays when the model says so
 * (linear and embedding weights), norms, biases and the mixers' special scalars do not. */
#ifndef BLURRY_TRAIN_OPTIMISER_H
#define BLURRY_TRAIN_OPTIMISER_H
#include "base/settings.h"
#include "blurry/model.h"
#include "device/device.h"

typedef struct optimiser_scalars {
    double norm;
    adamw_scalars adamw; /* last: its last member is the only one that outlives a step */
} optimiser_scalars;

typedef struct optimiser {
    device *dev;
    const blurry_model *model;
    int64_t tensors;
    blurry_parameter *parameters; /* [tensors] */
    int64_t *offset;              /* [tensors] elements before each in the blocks below */
    int64_t elements;             /* of a block, gaps between tensors included */
    void *m, *v;                  /* [elements] first and second moments, in device memory */
    optimiser_scalars *scalars;   /* in device memory */
    double beta1, beta2, eps, weight_decay, clip;
} optimiser;

blurry_status optimiser_create(optimiser *o, device *dev, const blurry_model *model,
                               const struct settings *settings);
void optimiser_destroy(optimiser *o);

/* *norm = the norm of all gradients together. Leaves the clipping factor for optimiser_apply. */
blurry_status optimiser_measure(optimiser *o, double *norm);
/* Update number `step`, counted from 1, at rate `lr`, with the gradients just measured. */
blurry_status optimiser_apply(optimiser *o, int64_t step, double lr);

/* The same without waiting, adamw set beforehand. A norm or *loss (NULL: none) that is not finite stops all
 * updates from here on (adamw_scalars.bad_step). With `clear` the gradients are 0 after the update. */
void optimiser_queue_measure(optimiser *o, const double *loss);
void optimiser_queue_update(optimiser *o, int clear);
adamw_scalars optimiser_scalars_of(const optimiser *o, int64_t step, double lr);

size_t optimiser_bytes(const optimiser *o);

#endif
