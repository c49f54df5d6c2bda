/* Tasks from a list of settings, for the tests of tasks and training. */
#ifndef BLURRY_TEST_TASKS_H
#define BLURRY_TEST_TASKS_H
#include "blurry/task.h"

/* `settings` is "key=value key=value ..."; the result of blurry_task_create, or of the first setting refused.
 */
blurry_status task_from(blurry_task **task, const char *settings);

/* The same where nothing may fail. */
blurry_task *task_of(const char *settings);

/* The value of a statistic of the first `samples` of a split (0: all); fails where there is none of this
 * name. */
double statistic_of(const blurry_task *task, blurry_split split, int64_t samples, const char *name);

/* A fresh file in the temporary folder holding these bytes; the caller frees the path and removes the file.
 */
char *temporary_file(const void *bytes, size_t size);

#endif
