/* One pool of worker threads for the whole process.
 *
 * Work is a list of tasks that write disjoint results; a task's result must not depend on which worker runs
 * it nor on the order, so results are the same bits for every thread count. */
#ifndef BLURRY_BASE_THREADS_H
#define BLURRY_BASE_THREADS_H
#include <stdint.h>

/* Threads to use when the caller says 0: BLURRY_THREADS if set, else the cores this process may run on. */
int threads_default(void);

enum { THREADS_MAX = 256 };

/* `worker` is in [0, n_threads): use it to pick scratch memory. */
typedef void (*threads_task)(void *context, int64_t task, int worker);

/* Runs tasks 0 .. n_tasks-1 on up to n_threads threads, the caller being worker 0, and returns when all are
 * done. A nested call, or one made while another thread holds the pool, runs all its tasks on the caller
 * alone. */
void threads_run(int n_threads, int64_t n_tasks, threads_task task, void *context);

#endif
