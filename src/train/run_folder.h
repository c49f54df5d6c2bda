/* The rules of a run directory: set up when new or empty, continued when it holds the same run, refused
 * otherwise. While it is open it is locked, so two processes never train in the same place. */
#ifndef BLURRY_TRAIN_RUN_FOLDER_H
#define BLURRY_TRAIN_RUN_FOLDER_H
#include "blurry/settings.h"
#include "train/run_log.h"

typedef struct run_folder {
    const char *path;
    int lock; /* descriptor that holds the lock, -1 when closed */
    run_log log;
    int has_checkpoint;
} run_folder;

/* Opens the directory for a run with these settings, making it where it is missing. BLURRY_E_INVALID, with
 * nothing changed, where it holds another run (naming the first differing key), foreign files, or is in use.
 */
blurry_status run_folder_open(run_folder *folder, const char *path, const blurry_settings *settings);
void run_folder_close(run_folder *folder);

#endif
