/* Files: whole reads with a limit, and saves that either replace a file completely or leave the old one
 * untouched.
 *
 * Every failure is BLURRY_E_IO with the path and the system's reason, unless said otherwise. */
#ifndef BLURRY_BASE_FILE_H
#define BLURRY_BASE_FILE_H
#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Reads a whole regular file into fresh memory, with a 0 byte after its end. More than `limit` bytes:
 * BLURRY_E_FORMAT. The caller frees *data. */
blurry_status file_read(const char *path, size_t limit, void **data, size_t *length);

/* A save under way. Begin, write in order, then commit or discard; a write that fails makes commit fail.
 *     file_save save;
 *     STATUS_TRY(file_save_begin(&save, path));
 *     file_save_write(&save, data, length);
 *     return file_save_commit(&save);
 * Until commit has renamed it, the content lives in a temporary file of the same folder, which is removed on
 * failure. After commit the content is on the disk: file and folder were synchronised. */
typedef struct file_save {
    int descriptor;
    char *path;      /* where it will be */
    char *temporary; /* where it is now */
    uint8_t *buffer; /* small writes gather here */
    size_t buffered;
    uint64_t length; /* bytes written so far, buffered ones included */
    int error;       /* errno of the first failed write, 0 so far */
} file_save;

blurry_status file_save_begin(file_save *save, const char *path);
/* After a failure further writes do nothing and return the same failure. */
blurry_status file_save_write(file_save *save, const void *data, size_t length);
blurry_status file_save_commit(file_save *save);
/* Gives up and removes the temporary file; does nothing after commit. */
void file_save_discard(file_save *save);

/* All of the above for content that is in memory. */
blurry_status file_save_bytes(const char *path, const void *data, size_t length);

/* Makes the folder and its missing parents; fine if it exists. */
blurry_status file_make_folders(const char *path);

bool file_exists(const char *path);
bool file_is_folder(const char *path);

/* folder/name in fresh memory; NULL when out of memory. The caller frees it. */
char *file_join(const char *folder, const char *name);

#endif
