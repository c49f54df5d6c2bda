/* Opening the database, its tables, and how failures are worded: see database.h. */
#include "sweep/database.h"
#include "base/file.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

enum { BUSY_MILLISECONDS = 60000 };

static const char schema[] =
    "CREATE TABLE IF NOT EXISTS sweeps(name TEXT PRIMARY KEY, title TEXT, figure TEXT, file TEXT, content "
    "TEXT,"
    " created REAL);"
    "CREATE TABLE IF NOT EXISTS runs(key TEXT PRIMARY KEY, state TEXT NOT NULL CHECK(state IN"
    " ('pending','running','done','diverged','failed')), task TEXT, mixer TEXT, config TEXT NOT NULL,"
    " state_elements INTEGER, parameters INTEGER, steps INTEGER, bytes REAL, owner TEXT, attempts INTEGER "
    "NOT NULL"
    " DEFAULT 0, reason TEXT, host TEXT, device TEXT, threads INTEGER, version TEXT, data TEXT, metric TEXT, "
    "best REAL,"
    " best_step INTEGER, seconds REAL, created REAL, started REAL, finished REAL);"
    "CREATE TABLE IF NOT EXISTS members(sweep TEXT, part TEXT, position INTEGER, key TEXT REFERENCES "
    "runs(key),"
    " PRIMARY KEY(sweep, part, key));"
    "CREATE TABLE IF NOT EXISTS evaluations(key TEXT REFERENCES runs(key), step INTEGER, loss REAL, accuracy "
    "REAL,"
    " exact_match REAL, l1 REAL, bits_per_byte REAL, PRIMARY KEY(key, step)) WITHOUT ROWID;"
    "CREATE TABLE IF NOT EXISTS failures(id INTEGER PRIMARY KEY, key TEXT REFERENCES runs(key), attempt "
    "INTEGER,"
    " time REAL, state TEXT, reason TEXT, host TEXT);"
    "CREATE TABLE IF NOT EXISTS owners(owner TEXT PRIMARY KEY, machine TEXT, pid INTEGER, birth INTEGER, "
    "seen REAL);"
    "CREATE INDEX IF NOT EXISTS runs_state ON runs(state);";

blurry_status database_fail(const database *d, int code, const char *doing)
{
    const char *said = d->db ? sqlite3_errmsg(d->db) : sqlite3_errstr(code);
    switch (code & 0xff) {
    case SQLITE_FULL:
        return status_fail(BLURRY_E_IO,
                           "%s: the disk is full (%s): free some space and run the same command again; "
                           "nothing that was recorded is lost",
                           d->path, doing);
    case SQLITE_READONLY:
    case SQLITE_PERM:
    case SQLITE_CANTOPEN:
        return status_fail(BLURRY_E_IO,
                           "%s: cannot be written (%s: %s): is the file or its folder read-only?", d->path,
                           doing, said);
    case SQLITE_NOTADB:
    case SQLITE_CORRUPT:
        return status_fail(BLURRY_E_FORMAT,
                           "%s: not a results database, or a broken one (%s): give another --db", d->path,
                           said);
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
        return status_fail(BLURRY_E_IO, "%s: another process has held the database for a minute (%s)",
                           d->path, doing);
    case SQLITE_NOMEM:
        return status_fail(BLURRY_E_MEMORY, "%s: out of memory (%s)", d->path, doing);
    default:
        return status_fail(BLURRY_E_IO, "%s: %s: %s; is the disk full or gone?", d->path, doing, said);
    }
}

blurry_status database_exec(const database *d, const char *sql, const char *doing)
{
    int code = sqlite3_exec(d->db, sql, NULL, NULL, NULL);
    return code == SQLITE_OK ? BLURRY_OK : database_fail(d, code, doing);
}

blurry_status database_prepare(const database *d, const char *sql, sqlite3_stmt **statement)
{
    int code = sqlite3_prepare_v2(d->db, sql, -1, statement, NULL);
    return code == SQLITE_OK ? BLURRY_OK : database_fail(d, code, "reading");
}

blurry_status database_step(const database *d, sqlite3_stmt *statement, const char *doing)
{
    int code = sqlite3_step(statement);
    blurry_status status =
        code == SQLITE_DONE || code == SQLITE_ROW ? BLURRY_OK : database_fail(d, code, doing);
    sqlite3_finalize(statement);
    return status;
}

blurry_status database_begin(const database *d)
{
    return database_exec(d, "BEGIN IMMEDIATE", "starting to write");
}

blurry_status database_end(const database *d, blurry_status status)
{
    if (status == BLURRY_OK) {
        int code = sqlite3_exec(d->db, "COMMIT", NULL, NULL, NULL);
        if (code == SQLITE_OK) return BLURRY_OK;
        status = database_fail(d, code, "writing");
    }
    sqlite3_exec(d->db, "ROLLBACK", NULL, NULL, NULL);
    return status;
}

double database_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void database_bind_number(sqlite3_stmt *statement, int place, double value)
{
    if (isnan(value))
        sqlite3_bind_null(statement, place);
    else
        sqlite3_bind_double(statement, place, value);
}

/* ---- opening ---- */
static blurry_status pragma(const database *d, const char *name, int64_t *value)
{
    char sql[64];
    sqlite3_stmt *statement;
    sqlite3_snprintf(sizeof sql, sql, "PRAGMA %s", name);
    STATUS_TRY(database_prepare(d, sql, &statement));
    int code = sqlite3_step(statement);
    *value = code == SQLITE_ROW ? sqlite3_column_int64(statement, 0) : 0;
    sqlite3_finalize(statement);
    return code == SQLITE_ROW ? BLURRY_OK : database_fail(d, code, "opening");
}

/* A file that is there must be ours, of a version we know; an empty one may become ours. One transaction:
 * another process may be making it ours just now. */
static blurry_status check_kind(const database *d, bool *empty)
{
    int64_t application = 0, version = 0, tables = 0;
    STATUS_TRY(database_exec(d, "BEGIN", "opening"));
    blurry_status status = pragma(d, "application_id", &application);
    if (status == BLURRY_OK) status = pragma(d, "user_version", &version);
    if (status == BLURRY_OK) status = pragma(d, "schema_version", &tables);
    STATUS_TRY(database_end(d, status));
    *empty = tables == 0;
    if (*empty) return BLURRY_OK;
    if (application != DATABASE_APPLICATION)
        return status_fail(BLURRY_E_FORMAT,
                           "%s: an SQLite database, but not one of results: give another --db", d->path);
    if (version != DATABASE_VERSION)
        return status_fail(BLURRY_E_UNSUPPORTED,
                           "%s: results of format %lld, this program knows %d: give another --db", d->path,
                           (long long)version, DATABASE_VERSION);
    return BLURRY_OK;
}

static blurry_status make_tables(const database *d)
{
    char sql[96];
    STATUS_TRY(database_begin(d));
    sqlite3_snprintf(sizeof sql, sql, "PRAGMA application_id=%d; PRAGMA user_version=%d",
                     DATABASE_APPLICATION, DATABASE_VERSION);
    blurry_status status = database_exec(d, sql, "making tables");
    if (status == BLURRY_OK) status = database_exec(d, schema, "making tables");
    return database_end(d, status);
}

/* The superuser may write what is marked read-only; the mark is obeyed all the same. */
static blurry_status check_file(const database *d, int create)
{
    struct stat info;
    if (stat(d->path, &info)) {
        if (create) return BLURRY_OK;
        return status_fail(BLURRY_E_IO, "%s: there is no such database", d->path);
    }
    if (!S_ISREG(info.st_mode))
        return status_fail(BLURRY_E_INVALID, "%s: not a regular file: give another --db", d->path);
    if (create && !(info.st_mode & 0222))
        return status_fail(BLURRY_E_IO, "%s: the database is read-only: chmod u+w it, or give another --db",
                           d->path);
    return BLURRY_OK;
}

static blurry_status connect(database *d, int create)
{
    int flags = create ? SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE : SQLITE_OPEN_READWRITE;
    int code = sqlite3_open_v2(d->path, &d->db, flags, NULL);
    if (code != SQLITE_OK && !create) { /* reading needs no more than that */
        sqlite3_close(d->db);
        code = sqlite3_open_v2(d->path, &d->db, SQLITE_OPEN_READONLY, NULL);
    }
    if (code != SQLITE_OK) return database_fail(d, code, "opening");
    if (create && sqlite3_db_readonly(d->db, "main") == 1)
        return status_fail(BLURRY_E_IO, "%s: the database is read-only: give another --db", d->path);
    sqlite3_busy_timeout(d->db, BUSY_MILLISECONDS);
    STATUS_TRY(database_exec(d, "PRAGMA temp_store=MEMORY; PRAGMA synchronous=FULL", "opening"));
    bool empty;
    STATUS_TRY(check_kind(d, &empty));
    if (create) return make_tables(d); /* harmless where they are; shows that it can be written */
    return empty ? status_fail(BLURRY_E_FORMAT, "%s: an empty database: run a sweep first", d->path)
                 : BLURRY_OK;
}

blurry_status database_open(database *d, const char *path, int create)
{
    memset(d, 0, sizeof *d);
    d->path = strdup(path);
    if (!d->path) return status_fail(BLURRY_E_MEMORY, "database: out of memory");
    blurry_status status = check_file(d, create);
    if (status == BLURRY_OK) status = connect(d, create);
    if (status == BLURRY_OK && create) owner_identify(d);
    if (status != BLURRY_OK) database_close(d);
    return status;
}

void database_close(database *d)
{
    sqlite3_close_v2(d->db);
    free(d->path);
    memset(d, 0, sizeof *d);
}
