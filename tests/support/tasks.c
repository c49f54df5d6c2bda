#include "support/tasks.h"

#include "support/test.h"

#include <stdio.h>

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

blurry_status task_from(blurry_task **task, const char *assignments)
{
    *task = NULL;
    blurry_settings *settings;
    assert_ok(blurry_settings_create(&settings));
    char *copy = strdup(assignments), *rest = copy;
    blurry_status status = BLURRY_OK;
    for (char *one; status == BLURRY_OK && (one = strsep(&rest, " "));)
        if (*one) status = blurry_settings_assign(settings, one);
    if (status == BLURRY_OK) status = blurry_task_create(task, settings);
    free(copy);
    blurry_settings_destroy(&settings);
    return status;
}

blurry_task *task_of(const char *settings)
{
    blurry_task *task;
    assert_ok(task_from(&task, settings));
    return task;
}

double statistic_of(const blurry_task *task, blurry_split split, int64_t samples, const char *name)
{
    blurry_statistic list[BLURRY_STATISTICS_MAX];
    int count;
    assert_ok(blurry_task_statistics(task, split, samples, list, &count));
    for (int i = 0; i < count; i++)
        if (!strcmp(list[i].name, name)) return list[i].value;
    fail_msg("no statistic %s", name);
    return 0;
}

char *temporary_file(const void *bytes, size_t size)
{
    const char *folder = getenv("TMPDIR");
    char path[512];
    snprintf(path, sizeof path, "%s/blurry-test-XXXXXX", folder ? folder : "/tmp");
    int descriptor = mkstemp(path);
    assert_true(descriptor >= 0);
    assert_true(write(descriptor, bytes, size) == (ssize_t)size);
    close(descriptor);
    return strdup(path);
}
