/* A sweep over ranks: how the other ranks get to know the coordinator. */
#ifndef BLURRY_SWEEP_RANKS_H
#define BLURRY_SWEEP_RANKS_H
#include "base/status.h"

#include <stdbool.h>

/* Runs at once where the user does not say: the cores shared out among the ranks of this machine. */
int sweep_jobs_default(bool cuda);

/* Rank 0: starts to listen, sends address and secret to all ranks, and leaves MPI. One rank alone: *listener
 * is -1. */
blurry_status sweep_ranks_invite(int *listener, char token[65]);

#endif
