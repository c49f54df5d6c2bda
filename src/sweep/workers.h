/* Worker processes and the slots in them. */
#ifndef BLURRY_SWEEP_WORKERS_H
#define BLURRY_SWEEP_WORKERS_H
#include "base/status.h"

#include <stdbool.h>
#include <sys/types.h>

enum { WORKER_SLOTS_MAX = 256, WORKER_TOKEN = 65 };

/* Where the slots' channels come from: pairs of sockets with this process, or connections to a coordinator.
 */
typedef struct worker_plan {
    const char *folder; /* of the runs' folders */
    bool cuda;          /* runs need a GPU */
    char token[WORKER_TOKEN];
    char address[512]; /* of the coordinator, see remote.h; "": this process */
} worker_plan;

/* Starts a process with `slots` slots, each a thread of it where there are several. Without an address fds
 * [slots] receives this side of the channels. The process dies with the thread that called. */
blurry_status worker_start(const worker_plan *plan, int slots, pid_t *pid, int *fds);

/* Describes how a process ended, as waitpid tells: "signal 9 (Killed)". *crashed: by a fault of its own. */
void worker_describe_end(int wait_status, char *text, size_t capacity, bool *crashed);

#endif
