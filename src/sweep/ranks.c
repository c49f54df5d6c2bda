/* Ranks of a sweep. MPI brings the address of rank 0 to everybody and is left at once (MPI_Finalize): a
 * library without fault tolerance would take all ranks down with one that dies. What follows are plain
 * connections (remote.h). */
#include "sweep/ranks.h"
#include "base/file.h"
#include "base/threads.h"
#include "sweep/remote.h"
#include "sweep/workers.h"
#include "blurry/sweep.h"
#include "train/ranks.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

enum { RESTARTS_MAX = 100, CUDA_JOBS = 32 };

typedef struct invitation {
    char address[512]; /* "": there is nothing to do */
    char token[WORKER_TOKEN];
} invitation;

int sweep_jobs_default(bool cuda)
{
    int cores = threads_default() / ranks_local_count();
    return cuda ? CUDA_JOBS : cores < 1 ? 1 : cores;
}

blurry_status sweep_ranks_invite(int *listener, char token[65])
{
    invitation letter = {{0}, {0}};
    *listener = -1;
    if (blurry_ranks_size() < 2) return BLURRY_OK;
    blurry_status status = remote_secret(letter.token);
    if (status == BLURRY_OK) status = remote_listen(listener, letter.address, sizeof letter.address);
    memcpy(token, letter.token, sizeof letter.token);
    ranks_broadcast(&letter, sizeof letter);
    blurry_ranks_close();
    return status;
}

void blurry_sweep_dismiss(void)
{
    invitation letter = {{0}, {0}};
    if (blurry_ranks_size() < 2 || blurry_ranks_rank() != 0) return;
    ranks_broadcast(&letter, sizeof letter);
    blurry_ranks_close();
}

/* Starts workers again that were killed, until all have been sent home. */
static blurry_status supervise(const worker_plan *plan, int processes, int slots)
{
    int living = 0, restarts = 0, status;
    pid_t pid;
    for (; living < processes; living++) STATUS_TRY(worker_start(plan, slots, &pid, NULL));
    while (living > 0) {
        pid_t ended = waitpid(-1, &status, 0);
        if (ended < 0 && errno == EINTR) continue;
        if (ended < 0) break;
        living--;
        if (WIFSIGNALED(status) && ++restarts <= RESTARTS_MAX) {
            STATUS_TRY(worker_start(plan, slots, &pid, NULL));
            living++;
        }
    }
    return BLURRY_OK;
}

blurry_status blurry_sweep_serve(const blurry_sweep_options *options)
{
    if (!options || (!options->database && !options->folder))
        return status_fail(BLURRY_E_INVALID, "options, or database and folder, are NULL");
    invitation letter;
    char *folder = NULL;
    worker_plan plan = {0};
    bool cuda = options->device && !strcmp(options->device, "cuda");
    int jobs = options->jobs ? options->jobs : sweep_jobs_default(cuda);
    ranks_broadcast(&letter, sizeof letter);
    blurry_ranks_close();
    if (!letter.address[0]) return BLURRY_OK;
    if (asprintf(&folder, "%s%s", options->folder ? options->folder : options->database,
                 options->folder ? "" : ".runs") < 0)
        return status_fail(BLURRY_E_MEMORY, "a path: out of memory");
    plan.folder = folder;
    plan.cuda = cuda;
    memcpy(plan.address, letter.address, sizeof plan.address);
    memcpy(plan.token, letter.token, sizeof plan.token);
    blurry_status status = file_make_folders(folder);
    if (status == BLURRY_OK) status = cuda ? supervise(&plan, 1, jobs) : supervise(&plan, jobs, 1);
    free(folder);
    return status;
}
