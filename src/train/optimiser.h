/* AdamW over all parameters of a model, with gradient clipping. The moments lie in two blocks of device
 * memory, laid out as the model's parameters. Decay groups: a tensor decays when the model says so
 * (linear and embedding weights), norms, biases and the mixers' special scalars do not. */
#ifndef BLURRY_TRAIN_OPTIMISER_H
#define BLURRY_TRAIN_OPTIMISER_H
#include "base/settings.h"
#include "blurry/model.h"
#include "device/device.h"

typedef struct optimiser_scalars {
    adamw_scalars adamw;
    double sum_squares, norm;
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

size_t optimiser_bytes(const optimiser *o);

#endif
