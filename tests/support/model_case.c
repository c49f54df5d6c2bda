#include "support/model_case.h"
#include "support/test.h"

#include "base/rng.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

blurry_model *model_open(case_device kind, const char *options, int training)
{
    blurry_model *model;
    blurry_settings *settings = settings_from(options);
    device_options on = {.kind = kind >= CASE_CUDA_F32 ? DEVICE_CUDA : DEVICE_CPU,
                         .dtype = kind == CASE_REF_F64 || kind == CASE_FAST_F64 ? BLURRY_F64
                                  : kind == CASE_CUDA_BF16                      ? BLURRY_BF16
                                                                                : BLURRY_F32,
                         .threads =
                             settings_values(settings)->threads ? (int)settings_values(settings)->threads : 1,
                         .reference = kind == CASE_REF_F64 || kind == CASE_REF_F32};
    assert_ok(model_create_on(&model, settings_values(settings), training, &on));
    blurry_settings_destroy(&settings);
    return model;
}

void model_batch_draw(model_batch *b, const blurry_model *model, int64_t sequences, int64_t length,
                      uint64_t seed)
{
    rng r = rng_stream(seed, RNG_TEST, 7);
    int64_t count = 0;
    assert_true(sequences * length <= 512);
    for (int64_t i = 0; i < sequences * length; i++) {
        b->tokens[i] = (int32_t)rng_below(&r, (uint64_t)model->vocab);
        if (rng_below(&r, 3) && i + 1 < sequences * length) continue; /* the last one always */
        b->rows[count] = i;
        b->labels[count++] = (int32_t)rng_below(&r, (uint64_t)model->vocab);
    }
    b->batch = (blurry_batch){sequences, length, b->tokens, count, b->rows, b->labels};
}

void model_stir(blurry_model *model, uint64_t seed)
{
    for (int64_t k = 0; k < model->parameter_count; k++) {
        const model_parameter *p = &model->parameter[k];
        double *values = malloc((size_t)p->elements * sizeof *values),
               *noise = draw_normal(p->elements, seed + (uint64_t)k);
        assert_ok(blurry_model_read_parameter(model, k, values, (size_t)p->elements * sizeof *values));
        for (int64_t i = 0; i < p->elements; i++) {
            if (p->init == INIT_NORMAL)
                values[i] = noise[i] * (k ? 1 / sqrt((double)p->shape[1]) : 0.5);
            else if (p->init == INIT_GIVEN)
                values[i] *= 1 + 0.1 * fabs(noise[i]);
            else
                values[i] += 0.2 * noise[i];
        }
        assert_ok(blurry_model_write_parameter(model, k, values, (size_t)p->elements * sizeof *values));
        free(values), free(noise);
    }
}
