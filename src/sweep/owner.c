/* Who owns a run: a process, told apart from an earlier one with the same number by the time it was born, on
 * a machine, told apart by its boot and its process namespace (containers reuse host names and process
 * numbers). */
#include "sweep/database.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

/* The process's start in clock ticks since boot, field 22 of /proc/PID/stat; 0: there is no such process. */
static int64_t birth_of(int64_t pid)
{
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%lld/stat", (long long)pid);
    FILE *in = fopen(path, "r");
    if (!in) return 0;
    size_t n = fread(text, 1, sizeof text - 1, in);
    fclose(in);
    text[n] = 0;
    char *at = strrchr(text, ')'); /* the name before it may hold anything */
    for (int field = 2; at && field < 22; field++) at = strchr(at + 1, ' ');
    return at ? strtoll(at, NULL, 10) : 0;
}

static void read_line(const char *path, char *text, size_t capacity)
{
    FILE *in = fopen(path, "r");
    text[0] = 0;
    if (!in) return;
    if (!fgets(text, (int)capacity, in)) text[0] = 0;
    fclose(in);
    text[strcspn(text, "\n")] = 0;
}

void owner_identify(database *d)
{
    char host[64] = "unknown", boot[40], space[64] = "";
    uint32_t random = 0;
    gethostname(host, sizeof host - 1);
    read_line("/proc/sys/kernel/random/boot_id", boot, sizeof boot);
    ssize_t n = readlink("/proc/self/ns/pid", space, sizeof space - 1);
    if (n < 0) space[0] = 0;
    d->pid = getpid();
    d->birth = birth_of(d->pid);
    if (getrandom(&random, sizeof random, 0) != sizeof random) random = (uint32_t)time(NULL);
    snprintf(d->machine, sizeof d->machine, "%.50s/%.13s/%.30s", host, boot, space);
    snprintf(d->owner, sizeof d->owner, "%.110s/%lld/%lld/%08x", d->machine, (long long)d->pid,
             (long long)d->birth, (unsigned)random);
}

bool owner_is_here(const database *d, const char *machine)
{
    return !strcmp(d->machine, machine);
}

bool owner_lives(int64_t pid, int64_t birth)
{
    if (pid < 1 || (kill((pid_t)pid, 0) && errno == ESRCH)) return false;
    return birth_of(pid) == birth;
}
