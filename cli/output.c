#include "cli/output.h"
#include "cli/cli.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int failed(const char *what, const char *path)
{
    fprintf(stderr, "blurry: cannot %s '%s': %s\n", what, path, strerror(errno));
    return CLI_FAILED;
}

static int write_all(int fd, const char *bytes, size_t size)
{
    while (size > 0) {
        ssize_t n = write(fd, bytes, size);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return -1;
        bytes += n;
        size -= (size_t)n;
    }
    return fsync(fd);
}

/* A file that exists keeps its permissions; a new one gets those the user's umask leaves. */
static mode_t wanted_mode(const char *path)
{
    struct stat old;
    if (stat(path, &old) == 0) return old.st_mode & 0777;
    mode_t mask = umask(0);
    umask(mask);
    return 0666 & ~mask;
}

int output_save(const char *path, const void *bytes, size_t size)
{
    struct stat old;
    if (stat(path, &old) == 0 && !S_ISREG(old.st_mode)) {
        fprintf(stderr, "blurry: cannot write '%s': it is not a regular file\n", path);
        return CLI_FAILED;
    }
    char *temporary = NULL;
    if (asprintf(&temporary, "%s.XXXXXX", path) < 0) return failed("write", path);
    int fd = mkstemp(temporary);
    if (fd < 0) {
        int rc = failed("write", path);
        free(temporary);
        return rc;
    }
    int bad = write_all(fd, bytes, size) || fchmod(fd, wanted_mode(path));
    int cause = errno;
    if (close(fd) && !bad) {
        bad = 1;
        cause = errno;
    }
    if (!bad && rename(temporary, path)) {
        bad = 1;
        cause = errno;
    }
    if (bad) unlink(temporary);
    free(temporary);
    errno = cause;
    return bad ? failed("write", path) : CLI_OK;
}

int output_folder(const char *path)
{
    char *copy = strdup(path);
    if (!copy) return failed("create", path);
    int bad = 0;
    for (char *p = copy + 1; !bad; p++) {
        if (*p != '/' && *p != 0) continue;
        char kept = *p;
        *p = 0;
        struct stat info;
        if (mkdir(copy, 0777) && (errno != EEXIST || stat(copy, &info) || !S_ISDIR(info.st_mode))) bad = 1;
        *p = kept;
        if (!kept) break;
    }
    free(copy);
    return bad ? failed("create the folder", path) : CLI_OK;
}

int output_open(output_text *out)
{
    out->text = NULL;
    out->size = 0;
    out->stream = open_memstream(&out->text, &out->size);
    return out->stream ? CLI_OK : failed("write to", "memory");
}

int output_close(output_text *out)
{
    if (!out->stream) return CLI_FAILED;
    int bad = ferror(out->stream);
    bad |= fclose(out->stream);
    out->stream = NULL;
    return bad ? failed("write to", "memory") : CLI_OK;
}

void output_free(output_text *out)
{
    if (out->stream) fclose(out->stream);
    out->stream = NULL;
    free(out->text);
    out->text = NULL;
    out->size = 0;
}

int output_close_and_save(output_text *out, const char *path)
{
    int rc = output_close(out);
    if (rc == CLI_OK) rc = output_save(path, out->text, out->size);
    output_free(out);
    return rc;
}
