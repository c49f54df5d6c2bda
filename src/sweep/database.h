/* The results database: one SQLite file that any number of processes on any number of machines with a common
 * file system may write at once.
 *
 * Invariants: every change is one transaction begun with the write lock, so a reader or a killed writer
 * leaves the state before or after it, never between. A run is in one of the states pending, running, done,
 * diverged, failed; who takes it from pending to running owns it until it has a result or its owner is dead.
 * A result and all its evaluations arrive together. The journal is a rollback journal, not a write-ahead log:
 * it works on network file systems, and the one file is all there is to carry elsewhere. */
#ifndef BLURRY_SWEEP_DATABASE_H
#define BLURRY_SWEEP_DATABASE_H
#include "blurry/sweep.h"
#include "sweep/result.h"

#include <sqlite3.h>

enum { DATABASE_VERSION = 1, DATABASE_APPLICATION = 0x426c7572, DATABASE_OWNER = 192 };

typedef struct database {
    sqlite3 *db;
    char *path;
    char sweep[64];
    char owner[DATABASE_OWNER]; /* this process: machine, pid, birth, a random number */
    char machine[128];
    int64_t pid, birth;
} database;

/* Opens or, where `create`, makes the database. BLURRY_E_INVALID or BLURRY_E_FORMAT: not a database of ours;
 * BLURRY_E_IO: cannot be read or, with `create`, written. Without `create` nothing is changed. */
blurry_status database_open(database *d, const char *path, int create);
void database_close(database *d);

/* Enters the sweep with its runs. Runs that are there keep their state and results. From here on `d` speaks
 * of this sweep's runs alone. */
blurry_status database_register(database *d, const blurry_sweep *sweep);
/* States to try again become pending. */
blurry_status database_retry(database *d, unsigned retry);
/* Runs whose owner is dead become pending; their number. */
blurry_status database_requeue_dead(database *d, int64_t *count);
/* Says that this process lives. */
blurry_status database_beat(database *d);
/* Says that it leaves; where that cannot be written, its death will show. */
void database_leave(database *d);

/* The first pending run of the sweep that is smaller than `largest` bytes: its place there, -1 when there is
 * none. */
blurry_status database_peek(const database *d, double largest, int64_t *index);
/* Takes it. */
blurry_status database_claim(database *d, const blurry_sweep *sweep, double largest, int64_t *index);
/* Writes the result of a run that this process owns; one that was taken away meanwhile is left to its new
 * owner. */
blurry_status database_finish(database *d, const char *key, const run_result *result);
/* Gives a run back after so many seconds of work on it; `reason` (NULL: on request) is entered among the
 * failures. */
blurry_status database_release(database *d, const char *key, const char *reason, double seconds);

typedef struct database_counts {
    int64_t total, pending, running, mine, done, diverged, failed;
} database_counts;
blurry_status database_count(database *d, database_counts *counts);

/* Calls `each` for every run of the sweep that has a result. */
typedef void (*database_each)(void *context, int64_t index, const char *state, double best, double seconds);
blurry_status database_results(database *d, database_each each, void *context);

/* ---- inside ---- */
/* The message for an SQLite code: a full disk, a read-only file, a broken file are each named. */
blurry_status database_fail(const database *d, int code, const char *doing);
blurry_status database_exec(const database *d, const char *sql, const char *doing);
blurry_status database_prepare(const database *d, const char *sql, sqlite3_stmt **statement);
/* Runs a statement that returns no row, and finalises it. */
blurry_status database_step(const database *d, sqlite3_stmt *statement, const char *doing);
blurry_status database_begin(const database *d);
/* Commits where `status` is BLURRY_OK, else rolls back and returns `status`. */
blurry_status database_end(const database *d, blurry_status status);
double database_now(void); /* seconds since 1970 */
#define DATABASE_TEXT(statement, place, value)                                                               \
    sqlite3_bind_text(statement, place, value, -1, SQLITE_TRANSIENT)
void database_bind_number(sqlite3_stmt *statement, int place, double value); /* NaN: null */

/* This process, and whether another one lives: machine, pid and birth. */
void owner_identify(database *d);
bool owner_is_here(const database *d, const char *machine);
bool owner_lives(int64_t pid, int64_t birth);

#endif
