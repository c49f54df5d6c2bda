/* Results: from a run's log, to and from JSON. See result.h. */
#include "sweep/result.h"
#include "base/file.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *run_outcome_name(run_outcome outcome)
{
    static const char *const names[] = {"done",      "diverged", "failed",   "cancelled",
                                        "no memory", "no disk",  "no device"};
    return names[outcome];
}

void run_result_free(run_result *result)
{
    free(result->evals);
    result->evals = NULL;
    result->eval_count = 0;
}

/* A number; NaN where it is absent or null. */
static double number(const json_t *object, const char *name)
{
    const json_t *value = json_object_get(object, name);
    return json_is_number(value) ? json_number_value(value) : NAN;
}

static int64_t integer(const json_t *object, const char *name)
{
    const json_t *value = json_object_get(object, name);
    return json_is_integer(value) ? json_integer_value(value) : 0;
}

static void text(const json_t *object, const char *name, char *to, size_t capacity)
{
    const char *value = json_string_value(json_object_get(object, name));
    snprintf(to, capacity, "%s", value ? value : "");
}

static blurry_status add_eval(run_result *r, const blurry_result_eval *eval)
{
    if (r->eval_count > 0 && r->evals[r->eval_count - 1].step == eval->step) r->eval_count--;
    if ((r->eval_count & (r->eval_count - 1)) == 0) { /* grows at powers of two */
        size_t room = r->eval_count ? 2 * (size_t)r->eval_count : 1;
        blurry_result_eval *more = realloc(r->evals, room * sizeof *more);
        if (!more) return status_fail(BLURRY_E_MEMORY, "evaluations: out of memory");
        r->evals = more;
    }
    r->evals[r->eval_count++] = *eval;
    return BLURRY_OK;
}

static blurry_status take_line(run_result *r, const json_t *line)
{
    const char *event = json_string_value(json_object_get(line, "event"));
    if (!event) return BLURRY_OK;
    if (!strcmp(event, "start")) {
        text(line, "metric", r->metric, sizeof r->metric);
        text(line, "data", r->data, sizeof r->data);
        r->parameters = integer(line, "parameters");
    } else if (!strcmp(event, "eval")) {
        blurry_result_eval eval = {.step = integer(line, "step"),
                                   .loss = number(line, "loss"),
                                   .accuracy = number(line, "accuracy"),
                                   .exact_match = number(line, "exact_match"),
                                   .l1 = number(line, "l1"),
                                   .bits_per_byte = number(line, "bits_per_byte")};
        return add_eval(r, &eval);
    } else if (!strcmp(event, "end")) {
        text(line, "reason", r->reason, sizeof r->reason);
        r->best = number(line, "best");
        r->best_step = integer(line, "best_step");
        r->steps = integer(line, "step");
    }
    return BLURRY_OK;
}

blurry_status run_result_read(run_result *r, const char *folder)
{
    char *path = file_join(folder, "log.jsonl"), *line = NULL;
    if (!path) return status_fail(BLURRY_E_MEMORY, "a path: out of memory");
    FILE *in = fopen(path, "r");
    blurry_status status = in ? BLURRY_OK : status_fail(BLURRY_E_IO, "%s: cannot be read", path);
    size_t room = 0;
    r->best = NAN;
    while (status == BLURRY_OK && getline(&line, &room, in) >= 0) {
        json_t *object = json_loads(line, 0, NULL);
        if (!json_is_object(object))
            status = status_fail(BLURRY_E_FORMAT, "%s: a line is no JSON object", path);
        else
            status = take_line(r, object);
        json_decref(object);
    }
    if (in) fclose(in);
    free(line);
    free(path);
    return status;
}

/* ---- JSON ---- */
static json_t *real_or_null(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

blurry_status run_result_to_json(const run_result *r, json_t *object)
{
    json_t *evals = json_array();
    for (int64_t i = 0; i < r->eval_count; i++) {
        const blurry_result_eval *e = &r->evals[i];
        json_array_append_new(evals, json_pack("[I,o,o,o,o,o]", (json_int_t)e->step, real_or_null(e->loss),
                                               real_or_null(e->accuracy), real_or_null(e->exact_match),
                                               real_or_null(e->l1), real_or_null(e->bits_per_byte)));
    }
    json_t *part = json_pack("{s:i,s:s,s:s,s:s,s:s,s:s,s:s,s:I,s:I,s:I,s:I,s:o,s:o,s:o}", "outcome",
                             (int)r->outcome, "reason", r->reason, "host", r->host, "device", r->device,
                             "version", r->version, "metric", r->metric, "data", r->data, "threads",
                             (json_int_t)r->threads, "steps", (json_int_t)r->steps, "parameters",
                             (json_int_t)r->parameters, "best_step", (json_int_t)r->best_step, "best",
                             real_or_null(r->best), "seconds", real_or_null(r->seconds), "evals", evals);
    if (!part) return status_fail(BLURRY_E_MEMORY, "a result: out of memory, or its text is not UTF-8");
    json_object_update(object, part);
    json_decref(part);
    return BLURRY_OK;
}

blurry_status run_result_from_json(run_result *r, const json_t *object)
{
    memset(r, 0, sizeof *r);
    int64_t outcome = integer(object, "outcome");
    const json_t *evals = json_object_get(object, "evals");
    if (outcome < RUN_DONE || outcome > RUN_NO_DEVICE || !json_is_array(evals))
        return status_fail(BLURRY_E_FORMAT, "a worker's result is not understood");
    r->outcome = (run_outcome)outcome;
    text(object, "reason", r->reason, sizeof r->reason);
    text(object, "host", r->host, sizeof r->host);
    text(object, "device", r->device, sizeof r->device);
    text(object, "version", r->version, sizeof r->version);
    text(object, "metric", r->metric, sizeof r->metric);
    text(object, "data", r->data, sizeof r->data);
    r->threads = integer(object, "threads");
    r->steps = integer(object, "steps");
    r->parameters = integer(object, "parameters");
    r->best_step = integer(object, "best_step");
    r->best = number(object, "best");
    r->seconds = number(object, "seconds");
    size_t i;
    json_t *row;
    json_array_foreach(evals, i, row)
    {
        double v[5];
        for (size_t k = 0; k < 5; k++) {
            const json_t *cell = json_array_get(row, k + 1);
            v[k] = json_is_number(cell) ? json_number_value(cell) : NAN;
        }
        blurry_result_eval eval = {json_integer_value(json_array_get(row, 0)), v[0], v[1], v[2], v[3], v[4]};
        STATUS_TRY(add_eval(r, &eval));
    }
    return BLURRY_OK;
}
