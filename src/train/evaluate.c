/* Evaluation of a model on a split of its task, and of a checkpoint file (blurry_evaluate). */
#include "base/memory.h"
#include "train/checkpoint.h"
#include "train/parallel.h"
#include "train/trainer.h"

#include <math.h>
#include <stdlib.h>

blurry_status evaluator_create(evaluator *e, const blurry_task *task, int64_t batch)
{
    *e = (evaluator){.batch = batch};
    blurry_task_info info;
    blurry_task_describe(task, &info);
    size_t rows, cells;
    if (!memory_mul((size_t)batch, (size_t)info.max_labels, &rows) ||
        !memory_mul(rows, (size_t)info.vocabulary, &cells))
        return status_fail(BLURRY_E_MEMORY, "batch is %lld: too large for task %s", (long long)batch,
                           info.name);
    STATUS_TRY(blurry_samples_create(&e->samples, task, batch));
    STATUS_TRY(memory_alloc((void **)&e->indices, (size_t)batch, sizeof *e->indices, "list of samples"));
    STATUS_TRY(memory_alloc((void **)&e->argmax, rows, sizeof *e->argmax, "predictions"));
    if (info.has_legal)
        STATUS_TRY(
            memory_alloc((void **)&e->probabilities, cells, sizeof *e->probabilities, "probabilities"));
    return BLURRY_OK;
}

void evaluator_destroy(evaluator *e)
{
    blurry_samples_destroy(&e->samples);
    memory_free(e->indices);
    memory_free(e->argmax);
    memory_free(e->probabilities);
    *e = (evaluator){0};
}

/* Adds samples first .. first+count-1 to the score. */
static blurry_status score_batch(evaluator *e, blurry_model *model, const blurry_task *task,
                                 blurry_split split, int64_t first, int64_t count, blurry_score *score)
{
    for (int64_t i = 0; i < count; i++) e->indices[i] = first + i;
    STATUS_TRY(blurry_task_fill(task, split, e->indices, count, 0, e->samples));
    blurry_batch batch = {.sequences = e->samples->count,
                          .length = e->samples->length,
                          .tokens = e->samples->tokens,
                          .row_count = e->samples->row_count,
                          .rows = e->samples->rows,
                          .labels = e->samples->labels};
    blurry_outputs outputs = {.argmax = e->argmax, .probabilities = e->probabilities};
    STATUS_TRY(blurry_model_evaluate(model, &batch, &outputs));
    if (!isfinite(outputs.loss)) {
        const char *tensor = blurry_model_first_nonfinite(model);
        return status_fail(BLURRY_E_NUMERIC, "evaluation: the loss is %g; first bad tensor: %s", outputs.loss,
                           tensor ? tensor : "none");
    }
    return blurry_task_score(task, e->samples, e->argmax, e->probabilities, outputs.loss, score);
}

/* Several ranks: all get the whole score, or all the failure. */
static blurry_status agree_on(blurry_status status, blurry_score *score)
{
    int64_t numeric = status == BLURRY_E_NUMERIC;
    if (status != BLURRY_OK && !numeric) return status; /* the program ends all ranks */
    ranks_sum_i64(&numeric, 1);
    if (numeric && status == BLURRY_OK)
        return status_fail(BLURRY_E_NUMERIC, "evaluation: the loss is not finite on another rank");
    if (status == BLURRY_OK) parallel_sum_score(score);
    return status;
}

blurry_status evaluator_run(evaluator *e, blurry_model *model, const blurry_task *task, blurry_split split,
                            int64_t limit, blurry_metrics *metrics)
{
    blurry_task_info info;
    blurry_task_describe(task, &info);
    int64_t n = info.samples[split];
    if (limit > 0 && limit < n) n = limit;
    if (n < 1)
        return status_fail(BLURRY_E_INVALID, "split is %s: task %s has no samples there",
                           blurry_split_name(split), info.name);
    blurry_score score = {0};
    int64_t stride = e->batch * blurry_ranks_size(); /* batch i is rank i % size's */
    blurry_status status = BLURRY_OK;
    for (int64_t first = e->batch * blurry_ranks_rank(); first < n && status == BLURRY_OK; first += stride) {
        int64_t count = n - first < e->batch ? n - first : e->batch;
        status = score_batch(e, model, task, split, first, count, &score);
    }
    if (blurry_ranks_size() > 1) status = agree_on(status, &score);
    STATUS_TRY(status);
    blurry_task_metrics(task, &score, metrics);
    return BLURRY_OK;
}

static blurry_status evaluate_file(const char *file, blurry_split split, const blurry_settings *settings,
                                   blurry_metrics *metrics)
{
    const struct settings *s = settings_values(settings);
    blurry_task *task = NULL;
    blurry_model *model = NULL;
    evaluator e = {0};
    int64_t batch = s->batch / s->accumulate;
    blurry_status status = blurry_task_create(&task, settings);
    if (status == BLURRY_OK) status = checkpoint_check_data(file, settings, task);
    if (status == BLURRY_OK) status = checkpoint_load_model(file, settings, batch, 0, &model);
    if (status == BLURRY_OK) status = evaluator_create(&e, task, batch);
    if (status == BLURRY_OK) status = evaluator_run(&e, model, task, split, s->eval_samples, metrics);
    evaluator_destroy(&e);
    blurry_model_destroy(&model);
    blurry_task_destroy(&task);
    return status;
}

blurry_status blurry_evaluate(const char *path, const char *split, const blurry_settings *settings,
                              blurry_metrics *metrics)
{
    if (!path || !split || !metrics) return status_fail(BLURRY_E_INVALID, "path, split or metrics is NULL");
    blurry_split which;
    STATUS_TRY(blurry_split_parse(split, &which));
    char *file = NULL;
    blurry_settings *own = NULL;
    blurry_status status = checkpoint_find(path, &file);
    if (status == BLURRY_OK && !settings) status = blurry_checkpoint_settings(file, &own);
    if (status == BLURRY_OK) status = evaluate_file(file, which, settings ? settings : own, metrics);
    blurry_settings_destroy(&own);
    free(file);
    return status;
}
