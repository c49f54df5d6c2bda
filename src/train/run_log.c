/* The JSON-lines log of a run: see run_log.h. */
#include "train/run_log.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

blurry_status run_log_open(run_log *log, const char *path)
{
    *log = (run_log){.fd = -1};
    int fd = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (fd < 0) return status_fail(BLURRY_E_IO, "%s: cannot open: %s", path, strerror(errno));
    struct stat info;
    if (fstat(fd, &info) != 0) {
        close(fd);
        return status_fail(BLURRY_E_IO, "%s: cannot examine: %s", path, strerror(errno));
    }
    log->fd = fd;
    log->bytes = info.st_size;
    return BLURRY_OK;
}

static blurry_status cut(run_log *log, int64_t bytes)
{
    if (bytes == log->bytes) return BLURRY_OK;
    if (ftruncate(log->fd, bytes) != 0)
        return status_fail(BLURRY_E_IO, "log.jsonl: cannot shorten to %lld bytes: %s", (long long)bytes,
                           strerror(errno));
    log->bytes = bytes;
    return BLURRY_OK;
}

/* Whether a line stays when the run goes on from `step`. */
static int line_stays(const char *line, size_t length, int64_t step, int ended)
{
    json_t *object = json_loadb(line, length, 0, NULL);
    json_t *at = json_object_get(object, "step");
    const char *event = json_string_value(json_object_get(object, "event"));
    int stays =
        json_is_integer(at) && json_integer_value(at) <= step && event && (ended || strcmp(event, "end"));
    json_decref(object);
    return stays;
}

blurry_status run_log_rewind(run_log *log, int64_t step, int ended)
{
    if (step < 0 || log->bytes == 0) return cut(log, 0);
    char *text = mmap(NULL, (size_t)log->bytes, PROT_READ, MAP_PRIVATE, log->fd, 0);
    if (text == MAP_FAILED) return status_fail(BLURRY_E_IO, "log.jsonl: cannot read: %s", strerror(errno));
    size_t size = (size_t)log->bytes, kept = 0;
    while (kept < size) {
        const char *end = memchr(text + kept, '\n', size - kept);
        if (!end || !line_stays(text + kept, (size_t)(end - text) - kept, step, ended)) break;
        kept = (size_t)(end - text) + 1;
    }
    munmap(text, size);
    return cut(log, (int64_t)kept);
}

static json_t *field_value(const log_field *field)
{
    switch (field->kind) {
    case LOG_INTEGER:
        return json_integer(field->integer);
    case LOG_NUMBER:
        return isfinite(field->number) ? json_real(field->number) : json_null();
    case LOG_TEXT:
        return field->text ? json_string(field->text) : json_null();
    }
    return NULL;
}

blurry_status run_log_format(const log_field *fields, int n, char **line)
{
    *line = NULL;
    json_t *object = json_object();
    int bad = object == NULL;
    for (int i = 0; i < n && !bad; i++)
        bad = json_object_set_new(object, fields[i].name, field_value(&fields[i])) != 0;
    if (!bad) *line = json_dumps(object, JSON_COMPACT | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(9));
    json_decref(object);
    return *line ? BLURRY_OK : status_fail(BLURRY_E_MEMORY, "log.jsonl: out of memory for a line");
}

blurry_status run_log_append(run_log *log, const char *line)
{
    size_t size = strlen(line) + 1;
    char *text = malloc(size);
    if (!text) return status_fail(BLURRY_E_MEMORY, "log.jsonl: out of memory for a line of %zu bytes", size);
    memcpy(text, line, size - 1);
    text[size - 1] = '\n';
    size_t done = 0;
    while (done < size) {
        ssize_t wrote = write(log->fd, text + done, size - done);
        if (wrote < 0 && errno == EINTR) continue;
        if (wrote <= 0) break;
        done += (size_t)wrote;
    }
    int reason = errno;
    free(text);
    if (done < size) {
        /* Take the partial line back, so that the log stays a list of whole lines. */
        if (ftruncate(log->fd, log->bytes) != 0) log->bytes += (int64_t)done;
        return status_fail(BLURRY_E_IO, "log.jsonl: cannot write: %s", strerror(reason));
    }
    log->bytes += (int64_t)size;
    return BLURRY_OK;
}

blurry_status run_log_sync(run_log *log)
{
    if (fdatasync(log->fd) == 0) return BLURRY_OK;
    return status_fail(BLURRY_E_IO, "log.jsonl: cannot synchronise: %s", strerror(errno));
}

void run_log_close(run_log *log)
{
    if (log->fd >= 0) close(log->fd);
    log->fd = -1;
}
