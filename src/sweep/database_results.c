/* What runs came to, in the database: results, failures, runs given back. */
#include "sweep/database.h"

static blurry_status mine(const database *d, const char *key, bool *yes)
{
    sqlite3_stmt *s;
    STATUS_TRY(database_prepare(d, "SELECT 1 FROM runs WHERE key=?1 AND state='running' AND owner=?2", &s));
    DATABASE_TEXT(s, 1, key);
    DATABASE_TEXT(s, 2, d->owner);
    int code = sqlite3_step(s);
    *yes = code == SQLITE_ROW;
    sqlite3_finalize(s);
    return code == SQLITE_ROW || code == SQLITE_DONE ? BLURRY_OK : database_fail(d, code, "reading");
}

static blurry_status write_run(const database *d, const char *key, const run_result *r)
{
    sqlite3_stmt *s;
    STATUS_TRY(database_prepare(
        d,
        "UPDATE runs SET state=?1, reason=?2, host=?3, device=?4, threads=?5, version=?6, data=?7, "
        "metric=?8, best=?9, best_step=?10, seconds=ifnull(seconds,0)+?11, finished=?12, owner=NULL, "
        "parameters=CASE "
        "WHEN ?13>0 THEN ?13 ELSE parameters END WHERE key=?14",
        &s));
    DATABASE_TEXT(s, 1, run_outcome_name(r->outcome));
    DATABASE_TEXT(s, 2, r->reason);
    DATABASE_TEXT(s, 3, r->host);
    DATABASE_TEXT(s, 4, r->device);
    sqlite3_bind_int64(s, 5, r->threads);
    DATABASE_TEXT(s, 6, r->version);
    DATABASE_TEXT(s, 7, r->data);
    DATABASE_TEXT(s, 8, r->metric);
    database_bind_number(s, 9, r->best);
    sqlite3_bind_int64(s, 10, r->best_step);
    sqlite3_bind_double(s, 11, r->seconds);
    sqlite3_bind_double(s, 12, database_now());
    sqlite3_bind_int64(s, 13, r->parameters);
    DATABASE_TEXT(s, 14, key);
    return database_step(d, s, "writing a result");
}

static blurry_status write_evals(const database *d, const char *key, const run_result *r)
{
    sqlite3_stmt *s;
    STATUS_TRY(database_prepare(d, "DELETE FROM evaluations WHERE key=?1", &s));
    DATABASE_TEXT(s, 1, key);
    STATUS_TRY(database_step(d, s, "writing a result"));
    for (int64_t i = 0; i < r->eval_count; i++) {
        const blurry_result_eval *e = &r->evals[i];
        STATUS_TRY(database_prepare(
            d,
            "INSERT OR REPLACE INTO evaluations(key,step,loss,accuracy,exact_match,l1,bits_per_byte) "
            "VALUES(?1,?2,?3,?4,?5,?6,?7)",
            &s));
        DATABASE_TEXT(s, 1, key);
        sqlite3_bind_int64(s, 2, e->step);
        const double values[] = {e->loss, e->accuracy, e->exact_match, e->l1, e->bits_per_byte};
        for (int k = 0; k < 5; k++) database_bind_number(s, 3 + k, values[k]);
        STATUS_TRY(database_step(d, s, "writing a result"));
    }
    return BLURRY_OK;
}

static blurry_status write_failure(const database *d, const char *key, const char *state, const char *reason,
                                   const char *host)
{
    sqlite3_stmt *s;
    STATUS_TRY(database_prepare(
        d,
        "INSERT INTO failures(key,attempt,time,state,reason,host) SELECT ?1,attempts,?2,?3,?4,?5 FROM "
        "runs WHERE key=?1",
        &s));
    DATABASE_TEXT(s, 1, key);
    sqlite3_bind_double(s, 2, database_now());
    DATABASE_TEXT(s, 3, state);
    DATABASE_TEXT(s, 4, reason);
    DATABASE_TEXT(s, 5, host);
    return database_step(d, s, "writing a failure");
}

blurry_status database_finish(database *d, const char *key, const run_result *r)
{
    bool yes = false;
    STATUS_TRY(database_begin(d));
    blurry_status status = mine(d, key, &yes);
    if (status == BLURRY_OK && yes) {
        status = write_run(d, key, r);
        if (status == BLURRY_OK) status = write_evals(d, key, r);
        if (status == BLURRY_OK && r->outcome != RUN_DONE)
            status = write_failure(d, key, run_outcome_name(r->outcome), r->reason, r->host);
    }
    return database_end(d, status);
}

blurry_status database_release(database *d, const char *key, const char *reason, double seconds)
{
    bool yes = false;
    STATUS_TRY(database_begin(d));
    blurry_status status = mine(d, key, &yes);
    sqlite3_stmt *s;
    if (status == BLURRY_OK && yes)
        status = database_prepare(
            d, "UPDATE runs SET state='pending', owner=NULL, seconds=ifnull(seconds,0)+?2 WHERE key=?1", &s);
    if (status == BLURRY_OK && yes) {
        DATABASE_TEXT(s, 1, key);
        sqlite3_bind_double(s, 2, seconds);
        status = database_step(d, s, "giving a run back");
    }
    if (status == BLURRY_OK && yes && reason) status = write_failure(d, key, "lost", reason, d->machine);
    return database_end(d, status);
}
