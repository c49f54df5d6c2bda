/* The coordinator: hands runs to slots, writes what comes back into the database, replaces workers that died.
 * One thread; it owns the database connection and forks the workers. */
#ifndef BLURRY_SWEEP_COORDINATOR_H
#define BLURRY_SWEEP_COORDINATOR_H
#include "sweep/channel.h"
#include "sweep/database.h"
#include "sweep/grid.h"
#include "sweep/workers.h"

/* After so many lost workers a run counts as failed. */
enum { LOST_MAX = 3, IDLE = -1 };

/* A slot as the coordinator sees it. */
typedef struct slot_view {
    channel channel;
    int process;   /* index; -1: another rank's */
    bool ready;    /* it said hello */
    int64_t entry; /* the run it has, IDLE: none */
    double since;
    int64_t step, steps;
    double accuracy, best;
    char host[64];
} slot_view;

typedef struct process_view {
    pid_t pid;
    int slots;
    int failures;     /* starts that came to nothing */
    char reason[256]; /* why it was ended; "": it ends by itself */
} process_view;

typedef struct group_view {
    blurry_sweep_group shown;
} group_view;

typedef struct coordinator {
    const blurry_sweep *sweep;
    const blurry_sweep_options *options;
    database database;
    char *folder;
    worker_plan plan;
    process_view *processes;
    int process_count;
    slot_view *slots;
    int slot_count, slot_room;
    int jobs;     /* runs at once here; less after memory ran out */
    int listener; /* for other ranks, -1: none */
    int *lost;    /* [runs] workers that each run has lost */
    bool *done;   /* [runs] a result is known */
    bool shared;  /* several slots share a process */
    bool stopping, paused;
    blurry_status failure; /* why it is stopping; message below */
    char message[1024];
    double started, beaten, counted, ticked;
    double work_done; /* of runs finished here */
    database_counts counts;
    blurry_sweep_group *groups;   /* [group_count] */
    blurry_sweep_running *active; /* [slot_room] */
} coordinator;

double coordinator_now(void);
/* Remembers the first failure with its message and begins to stop. */
void coordinator_fail(coordinator *c, blurry_status status);
/* Asks runs under way to save a checkpoint and end. */
void coordinator_stop(coordinator *c);

/* ---- slots ---- */
blurry_status coordinator_start_workers(coordinator *c);
/* Process `index` of the list, with so many slots. */
blurry_status coordinator_start_process(coordinator *c, int index, int slots);
blurry_status coordinator_add_slot(coordinator *c, int fd, int process);
/* Gives pending runs to slots that are free. */
blurry_status coordinator_hand_out(coordinator *c);
/* Reads all that the slots have sent and deals with those that are gone. */
blurry_status coordinator_listen(coordinator *c, int milliseconds);
int coordinator_busy(const coordinator *c);
void coordinator_end_workers(coordinator *c);

/* ---- progress ---- */
blurry_status coordinator_refresh(coordinator *c);
/* Tells the caller; entry -1: a tick. */
void coordinator_tell(coordinator *c, blurry_sweep_event event, int64_t entry, const char *state,
                      const char *reason, double best, double seconds);
void coordinator_score(coordinator *c, int64_t entry, double best);

#endif
