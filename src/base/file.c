/* Saving is write to a temporary name, fsync, rename, fsync of the folder: a reader sees the old file or the
 * new one, whatever happens in between. */
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BUFFER_BYTES = 1 << 16 };

static blurry_status fail_io(const char *path, const char *action, int error)
{
    return status_fail(BLURRY_E_IO, "%s: cannot %s: %s", path, action, strerror(error));
}

/* ---- reading ---- */

static blurry_status read_descriptor(int fd, const char *path, size_t limit, void **data, size_t *length)
{
    struct stat info;
    if (fstat(fd, &info) != 0) return fail_io(path, "read", errno);
    if (!S_ISREG(info.st_mode)) return status_fail(BLURRY_E_IO, "%s: cannot read: not a regular file", path);
    if ((uint64_t)info.st_size > limit)
        return status_fail(BLURRY_E_FORMAT, "%s: %lld bytes are more than the %zu allowed", path,
                           (long long)info.st_size, limit);
    size_t size = (size_t)info.st_size, used = 0;
    char *bytes = malloc(size + 1);
    if (!bytes) return status_fail(BLURRY_E_MEMORY, "%s: out of memory for %zu bytes", path, size);
    while (used < size) {
        ssize_t n = read(fd, bytes + used, size - used);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) {
            int error = errno;
            free(bytes);
            return fail_io(path, "read", error);
        }
        if (n == 0) break; /* it shrank meanwhile */
        used += (size_t)n;
    }
    bytes[used] = 0;
    *data = bytes;
    *length = used;
    return BLURRY_OK;
}

blurry_status file_read(const char *path, size_t limit, void **data, size_t *length)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC |
                            O_NONBLOCK); /* O_NONBLOCK: do not hang on a pipe before we can refuse it */
    if (fd < 0) return fail_io(path, "read", errno);
    blurry_status status = read_descriptor(fd, path, limit, data, length);
    close(fd);
    return status;
}

/* ---- saving ---- */

static void release(file_save *save)
{
    if (save->descriptor >= 0) close(save->descriptor);
    free(save->path);
    free(save->temporary);
    free(save->buffer);
    *save = (file_save){.descriptor = -1};
}

void file_save_discard(file_save *save)
{
    if (save->temporary && save->descriptor >= 0) unlink(save->temporary);
    release(save);
}

/* Where the content shall really go: a symbolic link is followed, so that the link stays and its target is
 * replaced. */
static char *final_path(const char *path)
{
    struct stat info;
    char *real = lstat(path, &info) == 0 && S_ISLNK(info.st_mode) ? realpath(path, NULL) : NULL;
    return real ? real : strdup(path);
}

/* Opens the temporary file and locks it, so that two saves of one path take turns and what a killed process
 * left behind is used again. Returns 0, or the errno of what failed. */
static int open_temporary(file_save *save)
{
    for (;;) {
        int fd = open(save->temporary, O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0666);
        if (fd < 0) return errno;
        while (flock(fd, LOCK_EX) != 0 && errno == EINTR)
            continue; /* no locks on this file system: go on without */
        struct stat mine, there;
        int current = fstat(fd, &mine) == 0 && lstat(save->temporary, &there) == 0 &&
                      mine.st_ino == there.st_ino && mine.st_dev == there.st_dev;
        if (current && S_ISREG(mine.st_mode) && ftruncate(fd, 0) == 0) {
            save->descriptor = fd;
            return 0;
        }
        int error = current ? (S_ISREG(mine.st_mode) ? errno : EEXIST) : 0;
        close(fd);
        if (error) return error; /* else another save renamed it while we waited: take a fresh one */
    }
}

blurry_status file_save_begin(file_save *save, const char *path)
{
    static const char suffix[] = ".blurry-tmp";
    *save = (file_save){.descriptor = -1};
    struct stat info;
    if (stat(path, &info) == 0 && !S_ISREG(info.st_mode))
        return status_fail(BLURRY_E_IO, "%s: cannot save: it exists and is not a regular file", path);
    save->path = final_path(path);
    save->buffer = malloc(BUFFER_BYTES);
    save->temporary = save->path ? malloc(strlen(save->path) + sizeof suffix) : NULL;
    if (!save->path || !save->buffer || !save->temporary) {
        release(save);
        return status_fail(BLURRY_E_MEMORY, "%s: out of memory while saving", path);
    }
    sprintf(save->temporary, "%s%s", save->path, suffix);
    int error = open_temporary(save);
    if (!error) return BLURRY_OK;
    release(save);
    return fail_io(path, "create a file beside it", error);
}

static void write_through(file_save *save, const uint8_t *bytes, size_t length)
{
    while (length && !save->error) {
        ssize_t n = write(save->descriptor, bytes, length < (1u << 30) ? length : 1u << 30);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0)
            save->error = n < 0 ? errno : EIO;
        else
            bytes += n, length -= (size_t)n;
    }
}

static void flush(file_save *save)
{
    write_through(save, save->buffer, save->buffered);
    save->buffered = 0;
}

blurry_status file_save_write(file_save *save, const void *data, size_t length)
{
    if (save->buffered + length > BUFFER_BYTES) flush(save);
    if (length >= BUFFER_BYTES) {
        write_through(save, data, length);
    } else if (length) {
        memcpy(save->buffer + save->buffered, data, length);
        save->buffered += length;
    }
    save->length += length;
    return save->error ? fail_io(save->path, "write", save->error) : BLURRY_OK;
}

/* The rename itself must reach the disk too. Folders that cannot be synchronised (some network systems) are
 * left. */
static void sync_folder(const char *path)
{
    char *copy = strdup(path);
    if (!copy) return;
    char *slash = strrchr(copy, '/');
    if (slash) slash[slash == copy] = 0;
    int fd = open(slash ? copy : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0) {
        (void)fsync(fd);
        close(fd);
    }
    free(copy);
}

blurry_status file_save_commit(file_save *save)
{
    flush(save);
    if (!save->error && fsync(save->descriptor) != 0) save->error = errno;
    struct stat info; /* a replaced file keeps its permissions */
    if (!save->error && stat(save->path, &info) == 0 && fchmod(save->descriptor, info.st_mode & 07777) != 0)
        save->error = errno;
    if (!save->error && rename(save->temporary, save->path) != 0) save->error = errno;
    if (save->error) {
        blurry_status status = fail_io(save->path, "save", save->error);
        file_save_discard(save);
        return status;
    }
    sync_folder(save->path);
    release(save);
    return BLURRY_OK;
}

blurry_status file_save_bytes(const char *path, const void *data, size_t length)
{
    file_save save;
    STATUS_TRY(file_save_begin(&save, path));
    (void)file_save_write(&save, data, length); /* commit reports it */
    return file_save_commit(&save);
}

/* ---- folders and names ---- */

blurry_status file_make_folders(const char *path)
{
    char *part = strdup(path);
    if (!part) return status_fail(BLURRY_E_MEMORY, "%s: out of memory", path);
    blurry_status status = BLURRY_OK;
    for (char *end = part;; end++) {
        if (*end != '/' && *end) continue;
        char kept = *end;
        *end = 0;
        int error = *part && mkdir(part, 0777) != 0 ? errno : 0;
        if (error && !file_is_folder(part)) status = fail_io(part, "make the folder", error);
        *end = kept;
        if (!kept || status != BLURRY_OK) break;
    }
    free(part);
    return status;
}

bool file_exists(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0;
}

bool file_is_folder(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

char *file_join(const char *folder, const char *name)
{
    size_t length = strlen(folder);
    bool bare = length == 0 || folder[length - 1] == '/';
    char *joined = malloc(length + strlen(name) + 2);
    if (joined) sprintf(joined, "%s%s%s", folder, bare ? "" : "/", name);
    return joined;
}
