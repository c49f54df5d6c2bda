/* Forking workers: see workers.h. They are forks of this process that run no other program, so nothing but
 * the settings has to be handed over. Fork happens before any thread of the pool and any CUDA context exists
 * in this process. */
#include "sweep/workers.h"
#include "sweep/remote.h"
#include "sweep/slot.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct slot_start {
    const worker_plan *plan;
    int fd; /* -1: connect */
} slot_start;

static void *slot_main(void *argument)
{
    slot_start *start = argument;
    int fd = start->fd >= 0 ? start->fd : remote_connect(start->plan->address);
    if (fd >= 0) slot_serve(fd, start->plan->folder, start->plan->token, start->plan->cuda);
    start->fd = fd;
    return NULL;
}

/* The child keeps its own channels and the standard streams. */
static void close_others(const int *keep, int count)
{
    struct rlimit limit;
    int most = getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < 65536 ? (int)limit.rlim_cur : 65536;
    for (int fd = 3; fd < most; fd++) {
        bool mine = false;
        for (int i = 0; i < count; i++) mine = mine || keep[i] == fd;
        if (!mine) close(fd);
    }
}

/* The terminal's Ctrl-C is for the coordinator, which asks for a checkpoint. */
static void child_signals(pid_t parent)
{
    signal(SIGINT, SIG_IGN);
    signal(SIGTERM, SIG_IGN);
    signal(SIGPIPE, SIG_IGN);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1); /* it died before the line above */
}

static void child_main(const worker_plan *plan, int slots, const int *fds, pid_t parent)
{
    slot_start starts[WORKER_SLOTS_MAX];
    pthread_t threads[WORKER_SLOTS_MAX];
    child_signals(parent);
    close_others(fds, plan->address[0] ? 0 : slots);
    for (int i = 0; i < slots; i++) starts[i] = (slot_start){plan, plan->address[0] ? -1 : fds[i]};
    int started = 0;
    if (slots == 1)
        slot_main(&starts[0]);
    else
        while (started < slots && pthread_create(&threads[started], NULL, slot_main, &starts[started]) == 0)
            started++;
    for (int i = 0; i < started; i++) pthread_join(threads[i], NULL);
    bool reached = slots == 1 ? starts[0].fd >= 0 : started > 0 && starts[0].fd >= 0;
    _exit(reached ? 0 : 3);
}

blurry_status worker_start(const worker_plan *plan, int slots, pid_t *pid, int *fds)
{
    int theirs[WORKER_SLOTS_MAX], made = 0, pair[2];
    pid_t parent = getpid();
    if (slots < 1 || slots > WORKER_SLOTS_MAX)
        return status_fail(BLURRY_E_INVALID, "jobs is %d: give 1 to %d", slots, WORKER_SLOTS_MAX);
    while (!plan->address[0] && made < slots &&
           socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0) {
        fds[made] = pair[0];
        theirs[made++] = pair[1];
    }
    *pid = plan->address[0] || made == slots ? fork() : -1;
    int cause = errno;
    if (*pid == 0) child_main(plan, slots, theirs, parent);
    for (int i = 0; i < made; i++) close(theirs[i]);
    if (*pid > 0) return BLURRY_OK;
    for (int i = 0; i < made; i++) close(fds[i]);
    return status_fail(BLURRY_E_INTERNAL, "cannot start a worker process: %s", strerror(cause));
}

void worker_describe_end(int wait_status, char *text, size_t capacity, bool *crashed)
{
    *crashed = false;
    if (WIFSIGNALED(wait_status)) {
        int number = WTERMSIG(wait_status);
        *crashed = number != SIGKILL && number != SIGTERM && number != SIGINT && number != SIGHUP;
        snprintf(text, capacity, "its process was ended by signal %d (%s)", number, strsignal(number));
    } else
        snprintf(text, capacity, "its process ended with exit code %d", WEXITSTATUS(wait_status));
}
