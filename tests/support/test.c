#include "support/test.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void assert_fails_(blurry_status got, blurry_status want, const char *text, const char *expr,
                   const char *file, int line)
{
    if (got != want) {
        print_error("%s: returned '%s', expected '%s' (message: %s)\n", expr, blurry_status_name(got),
                    blurry_status_name(want), blurry_last_error());
        _fail(file, line);
    }
    if (!strstr(blurry_last_error(), text)) {
        print_error("%s: message lacks '%s': %s\n", expr, text, blurry_last_error());
        _fail(file, line);
    }
}

const char *test_data(void)
{
    const char *elsewhere = getenv("BLURRY_TEST_DATA");
    return elsewhere ? elsewhere : BLURRY_TEST_DATA;
}

int test_golden_files(const char *group, void (*check)(const char *path, const char *name, void *context),
                      void *context)
{
    char folder[512], path[1024];
    snprintf(folder, sizeof folder, "%s/golden/%s", test_data(), group);
    DIR *directory = opendir(folder);
    if (!directory) fail_msg("%s cannot be read: set BLURRY_TEST_DATA to the folder tests/", folder);
    int files = 0;
    for (struct dirent *entry; (entry = readdir(directory));) {
        const char *dot = strrchr(entry->d_name, '.');
        if (!dot || strcmp(dot, ".safetensors")) continue;
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        check(path, entry->d_name, context);
        files++;
    }
    closedir(directory);
    return files;
}
