/* blurry eval --logits FILE. Sequences are padded to the task's length, so that all of them are one array. */
#include "cli/eval_logits.h"
#include "blurry/checkpoint.h"
#include "blurry/task.h"
#include "blurry/train.h"
#include "cli/cli.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BYTES_MOST = 1 << 30, PASS = 8 }; /* PASS: sequences through the model at once */

/* What is written: N sequences of L tokens, R labelled rows, V logits each. */
typedef struct logits_file {
    int64_t N, L, R, V, row_capacity;
    int32_t *tokens;
    int64_t *rows;
    int32_t *labels;
    float *logits;
} logits_file;

static void release(logits_file *f)
{
    free(f->tokens);
    free(f->rows);
    free(f->labels);
    free(f->logits);
}

static int allocate(logits_file *f, int64_t max_labels)
{
    if (max_labels > 0 && f->N > BYTES_MOST / 4 / max_labels / (f->V + 1)) {
        fprintf(
            stderr,
            "blurry: eval: the logits of %lld sequences would take more than 1 GiB: give --eval_samples\n",
            (long long)f->N);
        return CLI_USAGE;
    }
    f->row_capacity = f->N * max_labels;
    f->tokens = calloc((size_t)(f->N * f->L), sizeof *f->tokens);
    f->rows = calloc((size_t)f->row_capacity + 1, sizeof *f->rows);
    f->labels = calloc((size_t)f->row_capacity + 1, sizeof *f->labels);
    f->logits = calloc((size_t)(f->row_capacity * f->V) + 1, sizeof *f->logits);
    if (f->tokens && f->rows && f->labels && f->logits) return CLI_OK;
    fprintf(stderr, "blurry: eval: no memory for the logits of %lld sequences\n", (long long)f->N);
    return CLI_FAILED;
}

/* Sequences first .. first+count-1 through the model. */
static blurry_status add_batch(logits_file *f, const blurry_task *task, blurry_split split,
                               blurry_model *model, blurry_samples *samples, int64_t first, int64_t count)
{
    int64_t indices[PASS];
    for (int64_t i = 0; i < count; i++) indices[i] = first + i;
    blurry_status status = blurry_task_fill(task, split, indices, count, f->L, samples);
    if (status != BLURRY_OK) return status;
    blurry_batch batch = {.sequences = count,
                          .length = f->L,
                          .tokens = samples->tokens,
                          .row_count = samples->row_count,
                          .rows = samples->rows,
                          .labels = samples->labels};
    blurry_outputs outputs = {.logits = f->logits + f->R * f->V};
    memcpy(f->tokens + first * f->L, samples->tokens, (size_t)(count * f->L) * sizeof *f->tokens);
    memcpy(f->labels + f->R, samples->labels, (size_t)samples->row_count * sizeof *f->labels);
    for (int64_t i = 0; i < samples->row_count; i++) f->rows[f->R + i] = first * f->L + samples->rows[i];
    f->R += samples->row_count;
    return blurry_model_evaluate(model, &batch, &outputs);
}

static blurry_status save(const logits_file *f, const char *split, const char *file)
{
    const blurry_tensor tensors[] = {
        {.name = "tokens", .dtype = "I32", .rank = 2, .shape = {f->N, f->L}, .data = f->tokens},
        {.name = "rows", .dtype = "I64", .rank = 1, .shape = {f->R}, .data = f->rows},
        {.name = "labels", .dtype = "I32", .rank = 1, .shape = {f->R}, .data = f->labels},
        {.name = "logits", .dtype = "F32", .rank = 2, .shape = {f->R, f->V}, .data = f->logits}};
    const char *const keys[] = {"format", "split"};
    const char *const values[] = {"blurry-logits 1", split};
    return blurry_tensors_save(file, tensors, sizeof tensors / sizeof tensors[0], keys, values, 2);
}

static int run(logits_file *f, const blurry_task *task, blurry_split split, const blurry_settings *settings,
               const char *path, const char *file)
{
    blurry_model *model = NULL;
    blurry_samples *samples = NULL;
    blurry_status status = blurry_checkpoint_load(path, settings, PASS, &model);
    if (status == BLURRY_OK) status = blurry_samples_create(&samples, task, PASS);
    for (int64_t first = 0; first < f->N && status == BLURRY_OK; first += PASS)
        status = add_batch(f, task, split, model, samples, first, f->N - first < PASS ? f->N - first : PASS);
    if (status == BLURRY_OK) status = save(f, blurry_split_name(split), file);
    blurry_samples_destroy(&samples);
    blurry_model_destroy(&model);
    return cli_report(status, "eval");
}

int eval_save_logits(const char *path, const char *split, const blurry_settings *settings, const char *file)
{
    blurry_task *task = NULL;
    blurry_task_info info;
    blurry_split which;
    char text[64] = "0";
    blurry_status status = blurry_split_parse(split, &which);
    if (status == BLURRY_OK) status = blurry_settings_get(settings, "eval_samples", text, sizeof text);
    if (status == BLURRY_OK) status = blurry_task_create(&task, settings);
    if (status != BLURRY_OK) return cli_report(status, "eval");
    blurry_task_describe(task, &info);
    int64_t limit = strtoll(text, NULL, 10), all = info.samples[which];
    logits_file f = {.N = limit > 0 && limit < all ? limit : all, .L = info.length, .V = info.vocabulary};
    int code = allocate(&f, info.max_labels);
    if (code == CLI_OK) code = run(&f, task, which, settings, path, file);
    release(&f);
    blurry_task_destroy(&task);
    return code;
}
