/* The worker pool. Workers are started on first need, sleep on a condition between jobs after a short spin,
 * and end with the process. After fork() the child starts with an empty pool: threads do not survive a fork.
 */
#include "base/threads.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

/* About 0.1 ms of waiting before a thread sleeps: kernels come as several short jobs one after another, and
 * waking a sleeping thread costs as much as one of them. */
enum { SPIN_ROUNDS = 8000 };

static inline void spin_pause(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

typedef struct pool {
    pthread_mutex_t owner; /* held by the thread whose job is running */
    pthread_mutex_t lock;  /* guards the fields below and the condition */
    pthread_cond_t wake;
    int started; /* workers that exist, numbered 1 .. started */
    int wanted;  /* workers of the current job: those numbered <= wanted take part */
    threads_task task;
    void *context;
    int64_t n_tasks;
    atomic_uint_fast64_t generation; /* counts jobs; a worker acts when it changes */
    atomic_int_fast64_t next;        /* the next task to take */
    atomic_int running;              /* workers that have not yet left the current job */
} pool;

static pool the_pool = {
    .owner = PTHREAD_MUTEX_INITIALIZER, .lock = PTHREAD_MUTEX_INITIALIZER, .wake = PTHREAD_COND_INITIALIZER};
static _Thread_local int inside_job;
static pthread_once_t fork_once = PTHREAD_ONCE_INIT;

int threads_default(void)
{
    const char *wish = getenv("BLURRY_THREADS");
    if (wish) {
        long n = strtol(wish, NULL, 10);
        if (n >= 1) return n > THREADS_MAX ? THREADS_MAX : (int)n;
    }
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) {
        int n = CPU_COUNT(&set);
        return n > THREADS_MAX ? THREADS_MAX : n;
    }
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n < 1 ? 1 : n > THREADS_MAX ? THREADS_MAX : (int)n;
}

static void pool_reset_in_child(void)
{
    pool *p = &the_pool;
    pthread_mutex_init(&p->owner, NULL);
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->wake, NULL);
    p->started = 0;
    atomic_store(&p->running, 0);
    inside_job = 0;
}

static void register_fork_handler(void)
{
    pthread_atfork(NULL, NULL, pool_reset_in_child);
}

static void take_tasks(pool *p, int worker)
{
    inside_job = 1;
    for (;;) {
        int64_t i = atomic_fetch_add_explicit(&p->next, 1, memory_order_relaxed);
        if (i >= p->n_tasks) break;
        p->task(p->context, i, worker);
    }
    inside_job = 0;
}

typedef struct worker_start {
    int index;
    uint_fast64_t generation;
} worker_start;

static void *worker_main(void *argument)
{
    worker_start start = *(worker_start *)argument;
    free(argument);
    pool *p = &the_pool;
    uint_fast64_t seen = start.generation;
    for (;;) {
        for (int i = 0; i < SPIN_ROUNDS && atomic_load_explicit(&p->generation, memory_order_acquire) == seen;
             i++)
            spin_pause();
        pthread_mutex_lock(&p->lock);
        while (atomic_load_explicit(&p->generation, memory_order_acquire) == seen)
            pthread_cond_wait(&p->wake, &p->lock);
        seen = atomic_load_explicit(&p->generation, memory_order_acquire);
        int mine = start.index <= p->wanted;
        pthread_mutex_unlock(&p->lock);
        if (!mine) continue;
        take_tasks(p, start.index);
        atomic_fetch_sub_explicit(&p->running, 1, memory_order_release);
    }
    return NULL;
}

/* Called with p->lock held. Starts workers up to `count`; fewer may exist where the system refuses. */
static void start_workers(pool *p, int count)
{
    while (p->started < count) {
        worker_start *start = malloc(sizeof *start);
        if (!start) return;
        start->index = p->started + 1;
        start->generation = atomic_load_explicit(&p->generation, memory_order_relaxed);
        pthread_t thread;
        if (pthread_create(&thread, NULL, worker_main, start) != 0) {
            free(start);
            return;
        }
        pthread_detach(thread);
        p->started++;
    }
}

void threads_run(int n_threads, int64_t n_tasks, threads_task task, void *context)
{
    pool *p = &the_pool;
    if (n_threads > THREADS_MAX) n_threads = THREADS_MAX;
    if (n_threads > n_tasks) n_threads = n_tasks < 1 ? 1 : (int)n_tasks;
    if (n_threads <= 1 || inside_job || pthread_mutex_trylock(&p->owner) != 0) {
        for (int64_t i = 0; i < n_tasks; i++) task(context, i, 0);
        return;
    }
    pthread_once(&fork_once, register_fork_handler);
    pthread_mutex_lock(&p->lock);
    start_workers(p, n_threads - 1);
    p->wanted = n_threads - 1 < p->started ? n_threads - 1 : p->started;
    p->task = task;
    p->context = context;
    p->n_tasks = n_tasks;
    atomic_store_explicit(&p->next, 0, memory_order_relaxed);
    atomic_store_explicit(&p->running, p->wanted, memory_order_relaxed);
    atomic_fetch_add_explicit(&p->generation, 1, memory_order_release);
    pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->lock);

    take_tasks(p, 0);
    for (int i = 0; atomic_load_explicit(&p->running, memory_order_acquire) > 0; i++) {
        spin_pause();
        if (i > SPIN_ROUNDS) sched_yield();
    }
    pthread_mutex_unlock(&p->owner);
}
