/* Small language models and batches for tests. */
#ifndef BLURRY_TEST_MODEL_CASE_H
#define BLURRY_TEST_MODEL_CASE_H
#include "model/model.h"
#include "support/mixer_case.h"

typedef struct model_batch {
    blurry_batch batch; /* pointers into the arrays below */
    int32_t tokens[512], labels[512];
    int64_t rows[512];
} model_batch;

/* Fails the test on any error. `options` as in settings_from. */
blurry_model *model_open(case_device kind, const char *options, int training);
/* Random tokens below the model's vocabulary; about one position in three carries a label. */
void model_batch_draw(model_batch *b, const blurry_model *model, int64_t sequences, int64_t length,
                      uint64_t seed);
/* Makes the parameters larger than training starts with, so that every term of a gradient matters. */
void model_stir(blurry_model *model, uint64_t seed);

#endif
