/* log.jsonl of a run directory: one JSON object per line, appended with one write each. Resuming from a
 * checkpoint cuts the log back to the checkpoint's step, so that every step appears once. */
#ifndef BLURRY_TRAIN_RUN_LOG_H
#define BLURRY_TRAIN_RUN_LOG_H
#include "base/status.h"

#include <stdint.h>

typedef struct run_log {
    int fd;        /* -1 when closed */
    int64_t bytes; /* length so far */
} run_log;

/* One name and value of a line. Numbers that are not finite are written as null (JSON has no NaN). */
typedef struct log_field {
    const char *name;
    enum { LOG_INTEGER, LOG_NUMBER, LOG_TEXT } kind;
    int64_t integer;
    double number;
    const char *text;
} log_field;
#define LOG_INT(name_, value_)  ((log_field){.name = (name_), .kind = LOG_INTEGER, .integer = (value_)})
#define LOG_REAL(name_, value_) ((log_field){.name = (name_), .kind = LOG_NUMBER, .number = (value_)})
#define LOG_STR(name_, value_)  ((log_field){.name = (name_), .kind = LOG_TEXT, .text = (value_)})

/* Opens or creates the log. */
blurry_status run_log_open(run_log *log, const char *path);
/* Cuts the log before its first line that is not a whole JSON object, is of a later step than `step`, or,
 * unless `ended`, says that the run ended. Step -1 empties it. */
blurry_status run_log_rewind(run_log *log, int64_t step, int ended);
/* Formats the line into a new string without newline, to be freed. */
blurry_status run_log_format(const log_field *fields, int n, char **line);
blurry_status run_log_append(run_log *log, const char *line);
/* Waits until what was written is on the disk. */
blurry_status run_log_sync(run_log *log);
void run_log_close(run_log *log);

#endif
