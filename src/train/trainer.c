/* One training step at a time: see trainer.h. */
#include "train/trainer.h"
#include "base/memory.h"
#include "base/order.h"
#include "model/model.h"
#include "train/parallel.h"
#include "train/recorded.h"

#include <math.h>
#include <stdio.h>

static blurry_status set_integer(blurry_settings *settings, const char *key, int64_t value)
{
    char text[32];
    snprintf(text, sizeof text, "%lld", (long long)value);
    return blurry_settings_set(settings, key, text);
}

blurry_status trainer_resolve(const blurry_settings *settings, const blurry_task *task,
                              blurry_settings **resolved)
{
    blurry_task_info info;
    blurry_task_describe(task, &info);
    STATUS_TRY(blurry_settings_copy(resolved, settings));
    blurry_status status = set_integer(*resolved, "vocab", info.vocabulary);
    if (status == BLURRY_OK) status = set_integer(*resolved, "length", info.length);
    if (status != BLURRY_OK) blurry_settings_destroy(resolved);
    return status;
}

blurry_status trainer_make_model(const blurry_settings *resolved, int64_t batch, int training,
                                 blurry_model **model)
{
    blurry_settings *sized = NULL;
    STATUS_TRY(blurry_settings_copy(&sized, resolved));
    blurry_status status = set_integer(sized, "batch", batch);
    if (status == BLURRY_OK) status = set_integer(sized, "accumulate", 1); /* `batch` is one part already */
    if (status == BLURRY_OK) status = blurry_model_create(model, sized, training);
    blurry_settings_destroy(&sized);
    return status;
}

/* Optimiser steps of the run: as set, or as many as `epochs` passes take, the last batch reaching into the
 * next. */
static int64_t count_steps(const struct settings *s, int64_t samples)
{
    if (s->steps > 0) return s->steps;
    double places = (double)s->epochs * (double)samples;
    if (places / (double)s->batch >= 1e15) return 0;
    return (s->epochs * samples + s->batch - 1) / s->batch;
}

static blurry_status make_parts(blurry_trainer *t, const struct settings *s)
{
    t->part_size = s->batch / s->accumulate / blurry_ranks_size();
    STATUS_TRY(
        memory_alloc((void **)&t->parts, (size_t)s->accumulate, sizeof *t->parts, "list of micro-batches"));
    STATUS_TRY(
        memory_alloc((void **)&t->indices, (size_t)t->part_size, sizeof *t->indices, "list of samples"));
    for (; t->part_count < s->accumulate; t->part_count++)
        STATUS_TRY(blurry_samples_create(&t->parts[t->part_count], t->task, t->part_size));
    return BLURRY_OK;
}

blurry_status trainer_steps(const struct settings *s, const blurry_task_info *info, int64_t *steps)
{
    if (s->batch % s->accumulate)
        return status_fail(BLURRY_E_INVALID, "accumulate is %lld: it must divide batch (%lld)",
                           (long long)s->accumulate, (long long)s->batch);
    if (info->samples[BLURRY_TRAIN] < 1 || info->samples[BLURRY_VAL] < 1)
        return status_fail(BLURRY_E_INVALID,
                           "task %s has %lld training and %lld validation samples: it needs both", info->name,
                           (long long)info->samples[BLURRY_TRAIN], (long long)info->samples[BLURRY_VAL]);
    *steps = count_steps(s, info->samples[BLURRY_TRAIN]);
    if (*steps < 1)
        return status_fail(BLURRY_E_INVALID, "epochs is %lld: too many steps", (long long)s->epochs);
    schedule ignored;
    return schedule_init(&ignored, s, *steps);
}

static blurry_status trainer_init(blurry_trainer *t, const blurry_settings *settings)
{
    const struct settings *s = settings_values(settings);
    int64_t steps;
    STATUS_TRY(blurry_task_create(&t->task, settings));
    blurry_task_describe(t->task, &t->info);
    STATUS_TRY(trainer_steps(s, &t->info, &steps));
    if (s->batch % (s->accumulate * blurry_ranks_size()))
        return status_fail(BLURRY_E_INVALID, "batch is %lld: over %d ranks give a multiple of %lld",
                           (long long)s->batch, blurry_ranks_size(),
                           (long long)s->accumulate * blurry_ranks_size());
    STATUS_TRY(trainer_resolve(settings, t->task, &t->settings));
    STATUS_TRY(schedule_init(&t->schedule, s, steps));
    STATUS_TRY(make_parts(t, s));
    STATUS_TRY(parallel_choose_gpu(s));
    STATUS_TRY(trainer_make_model(t->settings, t->part_size, 1, &t->model));
    STATUS_TRY(optimiser_create(&t->optimiser, t->model->dev, t->model, s));
    STATUS_TRY(recorded_open(t));
    return evaluator_create(&t->evaluator, t->task, t->part_size);
}

blurry_status blurry_trainer_create(const blurry_settings *settings, blurry_trainer **trainer)
{
    if (!trainer) return status_fail(BLURRY_E_INVALID, "trainer is NULL");
    *trainer = NULL;
    if (!settings) return status_fail(BLURRY_E_INVALID, "settings is NULL");
    blurry_trainer *t = NULL;
    STATUS_TRY(memory_alloc((void **)&t, 1, sizeof *t, "trainer"));
    blurry_status status = parallel_agree(trainer_init(t, settings));
    if (status == BLURRY_OK) status = parallel_open(t);
    if (status != BLURRY_OK) blurry_trainer_destroy(&t);
    *trainer = t;
    return status;
}

void blurry_trainer_destroy(blurry_trainer **trainer)
{
    blurry_trainer *t = trainer ? *trainer : NULL;
    if (!t) return;
    parallel_close(t);
    recorded_close(t);
    evaluator_destroy(&t->evaluator);
    optimiser_destroy(&t->optimiser);
    blurry_model_destroy(&t->model);
    for (int64_t i = 0; i < t->part_count; i++) blurry_samples_destroy(&t->parts[i]);
    memory_free(t->parts);
    memory_free(t->indices);
    blurry_settings_destroy(&t->settings);
    blurry_task_destroy(&t->task);
    memory_free(t);
    *trainer = NULL;
}

/* The place in the stream of samples of this rank's micro-batch number `part`. */
static int64_t place_of_part(const blurry_trainer *t, int64_t first_place, int64_t part)
{
    return first_place + (part * blurry_ranks_size() + blurry_ranks_rank()) * t->part_size;
}

int64_t trainer_count_tokens(const blurry_samples *samples)
{
    int64_t tokens = 0;
    for (int64_t i = 0; i < samples->count; i++) tokens += samples->lengths[i];
    return tokens;
}

/* The samples of the coming step, and how many labels and tokens those of all ranks have together. */
static blurry_status draw_samples(blurry_trainer *t, int64_t first_place, int64_t *labels, int64_t *tokens)
{
    uint64_t seed = (uint64_t)settings_values(t->settings)->seed;
    *labels = *tokens = 0;
    for (int64_t part = 0; part < t->part_count; part++) {
        for (int64_t i = 0; i < t->part_size; i++)
            t->indices[i] =
                order_sample(seed, t->info.samples[BLURRY_TRAIN], place_of_part(t, first_place, part) + i);
        STATUS_TRY(blurry_task_fill(t->task, BLURRY_TRAIN, t->indices, t->part_size, 0, t->parts[part]));
        *labels += t->parts[part]->row_count;
        *tokens += trainer_count_tokens(t->parts[part]);
    }
    int64_t totals[] = {*labels, *tokens};
    ranks_sum_i64(totals, 2);
    *labels = totals[0];
    *tokens = totals[1];
    if (*labels == 0)
        return status_fail(BLURRY_E_INVALID, "step %lld: no sample has a label", (long long)t->step + 1);
    return BLURRY_OK;
}

static blurry_status not_finite(const blurry_trainer *t, const char *what, double value)
{
    const char *tensor = blurry_model_first_nonfinite(t->model);
    return status_fail(BLURRY_E_NUMERIC,
                       "step %lld: %s is %g; first bad tensor: %s. Try a smaller lr, or a longer warmup",
                       (long long)t->step + 1, what, value, tensor ? tensor : "none (the sum overflows)");
}

/* One step, waiting for its results. */
static blurry_status plain_step(blurry_trainer *t, blurry_step *report)
{
    int64_t first_place = t->step * settings_values(t->settings)->batch, labels, tokens;
    double loss = 0, norm;
    STATUS_TRY(draw_samples(t, first_place, &labels, &tokens));
    STATUS_TRY(blurry_model_zero_gradient(t->model));
    for (int64_t part = 0; part < t->part_count; part++) {
        blurry_samples *p = t->parts[part];
        blurry_batch batch = {.sequences = p->count,
                              .length = p->length,
                              .tokens = p->tokens,
                              .row_count = p->row_count,
                              .rows = p->rows,
                              .labels = p->labels};
        blurry_outputs outputs = {0};
        uint64_t draw = (uint64_t)place_of_part(t, first_place, part);
        STATUS_TRY(blurry_model_gradient(t->model, &batch, 1.0 / (double)labels, draw, &outputs));
        loss += outputs.loss;
    }
    ranks_sum_f64(&loss, 1);
    if (!isfinite(loss)) return not_finite(t, "the loss", loss);
    STATUS_TRY(parallel_sum_gradients(t));
    STATUS_TRY(optimiser_measure(&t->optimiser, &norm));
    if (!isfinite(norm)) return not_finite(t, "the gradient's norm", norm);
    double lr = schedule_rate(&t->schedule, t->step);
    STATUS_TRY(optimiser_apply(&t->optimiser, t->step + 1, lr));
    t->step++;
    t->tokens += tokens;
    if (report)
        *report = (blurry_step){
            .step = t->step, .tokens = tokens, .loss = loss / (double)labels, .lr = lr, .grad_norm = norm};
    return BLURRY_OK;
}

blurry_status blurry_trainer_step(blurry_trainer *t, blurry_step *report)
{
    int bad = 0;
    if (!t) return status_fail(BLURRY_E_INVALID, "trainer is NULL");
    if (!t->recorded) return plain_step(t, report);
    STATUS_TRY(recorded_step(t));
    if (report) STATUS_TRY(recorded_read(t, report, &bad));
    return bad ? plain_step(t, report) : BLURRY_OK; /* the bad step again: it finds out what is not finite */
}

int trainer_waits(const blurry_trainer *t)
{
    return !t->recorded;
}

/* What steps that nobody waited for have found. */
static blurry_status settle(blurry_trainer *t)
{
    blurry_step ignored;
    int bad = 0;
    if (!t->recorded) return BLURRY_OK;
    STATUS_TRY(recorded_read(t, &ignored, &bad));
    return bad ? plain_step(t, &ignored) : BLURRY_OK;
}

blurry_status blurry_trainer_evaluate(blurry_trainer *t, const char *split, blurry_metrics *metrics)
{
    if (!t || !split || !metrics) return status_fail(BLURRY_E_INVALID, "trainer, split or metrics is NULL");
    blurry_split which;
    STATUS_TRY(blurry_split_parse(split, &which));
    STATUS_TRY(settle(t));
    return evaluator_run(&t->evaluator, t->model, t->task, which, settings_values(t->settings)->eval_samples,
                         metrics);
}

size_t blurry_trainer_bytes(const blurry_trainer *t)
{
    if (!t) return 0;
    blurry_model_memory memory;
    blurry_model_memory_use(t->model, &memory);
    return memory.parameters + memory.gradients + memory.activations + memory.workspace +
           optimiser_bytes(&t->optimiser);
}
