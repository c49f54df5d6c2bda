/* Run directories: see run_folder.h. */
#include "train/run_folder.h"
#include "base/file.h"
#include "train/checkpoint.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

static blurry_status out_of_memory(void)
{
    return status_fail(BLURRY_E_MEMORY, "run directory: out of memory");
}

/* The name of some file in the folder that is not a temporary of ours; "" when there is none. */
static blurry_status some_entry(const char *path, char *name, size_t capacity)
{
    DIR *list = opendir(path);
    if (!list) return status_fail(BLURRY_E_IO, "%s: cannot list: %s", path, strerror(errno));
    name[0] = 0;
    for (struct dirent *entry = readdir(list); entry && !name[0]; entry = readdir(list)) {
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..")) continue;
        if (!strcmp(entry->d_name, "config.yaml.blurry-tmp")) continue;
        snprintf(name, capacity, "%s", entry->d_name);
    }
    closedir(list);
    return BLURRY_OK;
}

static blurry_status check_same_run(const char *path, const char *config, const blurry_settings *settings)
{
    blurry_settings *saved = NULL;
    STATUS_TRY(blurry_settings_create(&saved));
    blurry_status status = blurry_settings_load_yaml(saved, config);
    if (status == BLURRY_OK) {
        char then[1024] = "", now[1024] = "";
        const char *key =
            blurry_settings_difference(saved, settings, BLURRY_SETTINGS_ALL & ~BLURRY_SETTINGS_RUN);
        if (key) {
            blurry_settings_get(saved, key, then, sizeof then);
            blurry_settings_get(settings, key, now, sizeof now);
            status = status_fail(
                BLURRY_E_INVALID,
                "%s holds another run: its %s is '%.200s', here it is '%.200s'; give another --out", path,
                key, then, now);
        }
    }
    blurry_settings_destroy(&saved);
    return status;
}

static blurry_status write_config(const char *config, const blurry_settings *settings)
{
    size_t size = blurry_settings_text(settings, BLURRY_SETTINGS_ALL, NULL, 0);
    char *text = malloc(size + 1);
    if (!text) return out_of_memory();
    blurry_settings_text(settings, BLURRY_SETTINGS_ALL, text, size + 1);
    blurry_status status = file_save_bytes(config, text, size);
    free(text);
    return status;
}

static blurry_status lock_folder(run_folder *folder)
{
    folder->lock = open(folder->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder->lock < 0)
        return status_fail(BLURRY_E_IO, "%s: cannot open: %s", folder->path, strerror(errno));
    if (flock(folder->lock, LOCK_EX | LOCK_NB) == 0) return BLURRY_OK;
    return status_fail(BLURRY_E_INVALID,
                       "%s is in use by another training process: wait for it, or give another --out",
                       folder->path);
}

static blurry_status claim(run_folder *folder, const char *config, const blurry_settings *settings)
{
    STATUS_TRY(lock_folder(folder));
    if (file_exists(config)) return check_same_run(folder->path, config, settings);
    char entry[256];
    STATUS_TRY(some_entry(folder->path, entry, sizeof entry));
    if (entry[0])
        return status_fail(BLURRY_E_INVALID,
                           "%s is not a run directory and not empty (it holds %s): give another --out",
                           folder->path, entry);
    return write_config(config, settings);
}

blurry_status run_folder_open(run_folder *folder, const char *path, const blurry_settings *settings)
{
    *folder = (run_folder){.path = path, .lock = -1, .log = {.fd = -1}};
    if (file_exists(path) && !file_is_folder(path))
        return status_fail(BLURRY_E_INVALID, "%s is a file: --out names a directory", path);
    STATUS_TRY(file_make_folders(path));
    char *config = file_join(path, "config.yaml"), *log = file_join(path, "log.jsonl"),
         *model = file_join(path, CHECKPOINT_MODEL);
    blurry_status status = config && log && model ? claim(folder, config, settings) : out_of_memory();
    if (status == BLURRY_OK) {
        folder->has_checkpoint = file_exists(model);
        status = run_log_open(&folder->log, log);
    }
    free(config);
    free(log);
    free(model);
    if (status != BLURRY_OK) run_folder_close(folder);
    return status;
}

void run_folder_close(run_folder *folder)
{
    run_log_close(&folder->log);
    if (folder->lock >= 0) close(folder->lock);
    folder->lock = -1;
}
