#include "cli/run_read.h"
#include "cli/cli.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MAX_EVALS = 1000000, MAX_LINE = 1 << 20 };

const char *run_option(const run *r, const char *key, char text[1024])
{
    if (blurry_settings_get(r->settings, key, text, 1024) != BLURRY_OK) text[0] = 0;
    return text;
}

int64_t run_integer(const run *r, const char *key)
{
    char text[1024];
    return strtoll(run_option(r, key, text), NULL, 10);
}

void run_free(run *r)
{
    free(r->path);
    free(r->evals);
    blurry_settings_destroy(&r->settings);
    memset(r, 0, sizeof *r);
}

static char *file_in(const char *folder, const char *name)
{
    char *path = NULL;
    size_t n = strlen(folder);
    while (n > 1 && folder[n - 1] == '/') n--;
    return asprintf(&path, "%.*s/%s", (int)n, folder, name) < 0 ? NULL : path;
}

static int read_config(run *r)
{
    struct stat info;
    if (stat(r->path, &info)) {
        fprintf(stderr, "blurry: %s: %s\n", r->path, strerror(errno));
        return CLI_USAGE;
    }
    char *path = file_in(r->path, "config.yaml");
    if (!path) return CLI_FAILED;
    if (!S_ISDIR(info.st_mode) || stat(path, &info) || !S_ISREG(info.st_mode)) {
        fprintf(stderr,
                "blurry: %s is not a run: `blurry train` leaves config.yaml and log.jsonl in a directory\n",
                r->path);
        free(path);
        return CLI_USAGE;
    }
    blurry_status status = blurry_settings_create(&r->settings);
    if (status == BLURRY_OK) status = blurry_settings_load_yaml(r->settings, path);
    free(path);
    if (status != BLURRY_OK) return cli_report_input(status, r->path);
    char text[1024];
    snprintf(r->task, sizeof r->task, "%s", run_option(r, "task", text));
    r->descends = !strcmp(r->task, "text");
    return CLI_OK;
}

static int bad_line(const run *r, long line, const char *what)
{
    fprintf(stderr, "blurry: %s/log.jsonl, line %ld: %s\n", r->path, line, what);
    return CLI_USAGE;
}

/* A number of the object; NaN where it is absent or null. Returns 0 when it is something else. */
static int number_of(const json_t *object, const char *name, double *value)
{
    const json_t *field = json_object_get(object, name);
    *value = NAN;
    if (!field || json_is_null(field)) return 1;
    if (!json_is_number(field)) return 0;
    *value = json_number_value(field);
    return 1;
}

static int add_eval(run *r, const json_t *object, long line, size_t *capacity)
{
    run_eval e = {.step = r->steps};
    const char *metric = r->descends ? "bits_per_byte" : "accuracy";
    if (!number_of(object, "loss", &e.loss) || !number_of(object, metric, &e.metric))
        return bad_line(r, line, "an evaluation whose loss or metric is not a number");
    if (!isfinite(e.metric)) return bad_line(r, line, "an evaluation without the task's metric");
    if (!r->descends && (e.metric < 0 || e.metric > 1))
        return bad_line(r, line, "an accuracy outside 0 .. 1");
    if (r->count && r->evals[r->count - 1].step > e.step) return bad_line(r, line, "steps go backwards");
    if (r->count && r->evals[r->count - 1].step == e.step)
        r->count--; /* evaluated again: the later one counts */
    if (r->count == MAX_EVALS) return bad_line(r, line, "more than a million evaluations");
    if (r->count == *capacity) {
        *capacity = *capacity ? 2 * *capacity : 64;
        run_eval *more = realloc(r->evals, *capacity * sizeof *more);
        if (!more) return bad_line(r, line, "out of memory");
        r->evals = more;
    }
    r->evals[r->count++] = e;
    return CLI_OK;
}

static int read_line(run *r, const char *text, size_t size, long line, size_t *capacity)
{
    json_error_t error;
    json_t *object = json_loadb(text, size, JSON_REJECT_DUPLICATES, &error);
    if (!json_is_object(object)) {
        json_decref(object);
        return bad_line(r, line, "not a JSON object");
    }
    int rc = CLI_OK;
    const char *event = json_string_value(json_object_get(object, "event"));
    double step, seconds, parameters;
    if (!event)
        rc = bad_line(r, line, "no \"event\"");
    else if (!number_of(object, "step", &step) || !number_of(object, "seconds", &seconds) ||
             !number_of(object, "parameters", &parameters))
        rc = bad_line(r, line, "step, seconds or parameters is not a number");
    else if (step < 0 || step > 1e15)
        rc = bad_line(r, line, "step is out of range");
    if (rc == CLI_OK) {
        if (isfinite(step)) r->steps = (int64_t)step;
        if (seconds >= 0) r->seconds = seconds;
        if (parameters > 0 && parameters < 1e15) r->parameters = (int64_t)parameters;
        if (!strcmp(event, "eval")) rc = add_eval(r, object, line, capacity);
        const char *reason = json_string_value(json_object_get(object, "reason"));
        if (!strcmp(event, "end") && reason) snprintf(r->reason, sizeof r->reason, "%s", reason);
    }
    json_decref(object);
    return rc;
}

static int read_log(run *r)
{
    char *path = file_in(r->path, "log.jsonl");
    FILE *in = path ? fopen(path, "r") : NULL;
    if (!in) {
        fprintf(stderr, "blurry: %s: %s\n", path ? path : r->path, strerror(errno));
        free(path);
        return CLI_USAGE;
    }
    free(path);
    char *text = NULL;
    size_t room = 0, capacity = 0;
    ssize_t n;
    int rc = CLI_OK;
    for (long line = 1; rc == CLI_OK && (n = getline(&text, &room, in)) >= 0; line++) {
        if (n > MAX_LINE)
            rc = bad_line(r, line, "longer than a megabyte");
        else
            rc = read_line(r, text, (size_t)n, line, &capacity);
    }
    if (rc == CLI_OK && ferror(in)) rc = bad_line(r, 0, "cannot be read");
    free(text);
    fclose(in);
    if (rc == CLI_OK && r->count == 0) {
        fprintf(stderr, "blurry: %s has no evaluation yet: there is nothing to report\n", r->path);
        rc = CLI_USAGE;
    }
    return rc;
}

int run_read(const char *path, run *r)
{
    memset(r, 0, sizeof *r);
    r->seconds = NAN;
    r->path = strdup(path);
    int rc = r->path ? read_config(r) : CLI_FAILED;
    if (rc == CLI_OK) rc = read_log(r);
    for (size_t i = 1; rc == CLI_OK && i < r->count; i++) {
        double gain = r->evals[i].metric - r->evals[r->best].metric;
        if (r->descends ? gain < 0 : gain > 0) r->best = i;
    }
    if (rc != CLI_OK) run_free(r);
    return rc;
}
