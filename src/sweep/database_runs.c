/* Runs in the database: entered, claimed, counted; and their owners. */
#include "sweep/database.h"
#include "sweep/grid.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* An owner on another machine that has not been heard of for this long is dead. */
static const double SILENCE_SECONDS = 120;

/* ---- entering a sweep ---- */
static blurry_status enter_sweep(const database *d, const blurry_sweep *sweep)
{
    sqlite3_stmt *s;
    STATUS_TRY(database_prepare(
        d,
        "INSERT INTO sweeps(name,title,figure,file,content,created) VALUES(?1,?2,?3,?4,?5,?6) ON "
        "CONFLICT(name) DO UPDATE SET title=?2, figure=?3, file=?4, content=?5",
        &s));
    DATABASE_TEXT(s, 1, sweep->grid.name);
    DATABASE_TEXT(s, 2, sweep->grid.title);
    DATABASE_TEXT(s, 3, sweep->grid.figure);
    DATABASE_TEXT(s, 4, sweep->file);
    DATABASE_TEXT(s, 5, sweep->text);
    sqlite3_bind_double(s, 6, database_now());
    return database_step(d, s, "entering the sweep");
}

static blurry_status settings_text(const blurry_settings *settings, char **text)
{
    size_t size = blurry_settings_text(settings, BLURRY_SETTINGS_ALL, NULL, 0);
    *text = malloc(size + 1);
    if (!*text) return status_fail(BLURRY_E_MEMORY, "settings: out of memory");
    blurry_settings_text(settings, BLURRY_SETTINGS_ALL, *text, size + 1);
    return BLURRY_OK;
}

static blurry_status reset_step(const database *d, sqlite3_stmt *s)
{
    int code = sqlite3_step(s);
    sqlite3_reset(s);
    return code == SQLITE_DONE ? BLURRY_OK : database_fail(d, code, "entering runs");
}

/* statements: run, member, wanted */
static blurry_status enter_run(const database *d, sqlite3_stmt *const s[3], const blurry_sweep *sweep,
                               int64_t index)
{
    const grid_run *run = &sweep->run[index];
    const struct settings *values = settings_values(run->settings);
    char *config;
    STATUS_TRY(settings_text(run->settings, &config));
    DATABASE_TEXT(s[0], 1, run->key);
    DATABASE_TEXT(s[0], 2, values->task);
    DATABASE_TEXT(s[0], 3, values->mixer);
    DATABASE_TEXT(s[0], 4, config);
    free(config);
    sqlite3_bind_int64(s[0], 5, run->state_elements);
    sqlite3_bind_int64(s[0], 6, run->parameters);
    sqlite3_bind_int64(s[0], 7, run->steps);
    sqlite3_bind_double(s[0], 8, run->bytes);
    sqlite3_bind_double(s[0], 9, database_now());
    DATABASE_TEXT(s[1], 1, sweep->grid.name);
    DATABASE_TEXT(s[1], 2, sweep->grid.group[run->group].name);
    sqlite3_bind_int64(s[1], 3, index);
    DATABASE_TEXT(s[1], 4, run->key);
    sqlite3_bind_int64(s[2], 1, index);
    DATABASE_TEXT(s[2], 2, run->key);
    for (int i = 0; i < 3; i++) STATUS_TRY(reset_step(d, s[i]));
    return BLURRY_OK;
}

static blurry_status enter_runs(const database *d, const blurry_sweep *sweep)
{
    static const char *const sql[3] = {
        "INSERT INTO runs(key,state,task,mixer,config,state_elements,parameters,steps,bytes,created) "
        "VALUES(?1,'pending',?2,?3,?4,?5,?6,?7,?8,?9) ON CONFLICT(key) DO NOTHING",
        "INSERT INTO members(sweep,part,position,key) VALUES(?1,?2,?3,?4) ON CONFLICT DO UPDATE SET "
        "position=?3",
        "INSERT INTO temp.wanted(position,key) VALUES(?1,?2) ON CONFLICT DO NOTHING"};
    sqlite3_stmt *s[3] = {0};
    blurry_status status = BLURRY_OK;
    for (int i = 0; i < 3 && status == BLURRY_OK; i++) status = database_prepare(d, sql[i], &s[i]);
    for (int64_t i = 0; i < sweep->count && status == BLURRY_OK; i++) status = enter_run(d, s, sweep, i);
    for (int i = 0; i < 3; i++) sqlite3_finalize(s[i]);
    return status;
}

/* What the file no longer asks for leaves the sweep; the runs themselves stay in the database. Groups that
 * were not chosen this time are left alone. */
static blurry_status leave_out(const database *d, const blurry_sweep *sweep)
{
    for (int i = 0; i < sweep->grid.group_count; i++) {
        sqlite3_stmt *s;
        if (!sweep->grid.group[i].wanted) continue;
        STATUS_TRY(database_prepare(
            d, "DELETE FROM members WHERE sweep=?1 AND part=?2 AND key NOT IN (SELECT key FROM temp.wanted)",
            &s));
        DATABASE_TEXT(s, 1, sweep->grid.name);
        DATABASE_TEXT(s, 2, sweep->grid.group[i].name);
        STATUS_TRY(database_step(d, s, "entering the sweep"));
    }
    return BLURRY_OK;
}

blurry_status database_register(database *d, const blurry_sweep *sweep)
{
    STATUS_TRY(
        database_exec(d,
                      "CREATE TEMP TABLE IF NOT EXISTS wanted(position INTEGER PRIMARY KEY, key TEXT UNIQUE);"
                      "DELETE FROM temp.wanted",
                      "entering the sweep"));
    memcpy(d->sweep, sweep->grid.name, sizeof d->sweep);
    STATUS_TRY(database_begin(d));
    blurry_status status = enter_sweep(d, sweep);
    if (status == BLURRY_OK) status = enter_runs(d, sweep);
    if (status == BLURRY_OK) status = leave_out(d, sweep);
    status = database_end(d, status);
    return status == BLURRY_OK ? database_beat(d) : status;
}

blurry_status database_retry(database *d, unsigned retry)
{
    static const struct {
        unsigned bit;
        const char *sql;
    } kinds[] = {
        {BLURRY_RETRY_FAILED,
         "UPDATE runs SET state='pending', owner=NULL, attempts=0, seconds=0 WHERE state='failed' AND key IN "
         "(SELECT key FROM temp.wanted)"},
        {BLURRY_RETRY_DIVERGED,
         "UPDATE runs SET state='pending', owner=NULL, attempts=0, seconds=0 WHERE state='diverged' AND "
         "key IN (SELECT key FROM temp.wanted)"}};
    for (int i = 0; i < 2; i++)
        if (retry & kinds[i].bit) {
            STATUS_TRY(database_begin(d));
            STATUS_TRY(database_end(d, database_exec(d, kinds[i].sql, "marking runs for another try")));
        }
    return BLURRY_OK;
}

/* ---- owners ---- */
blurry_status database_beat(database *d)
{
    sqlite3_stmt *s;
    STATUS_TRY(database_prepare(
        d,
        "INSERT INTO owners(owner,machine,pid,birth,seen) VALUES(?1,?2,?3,?4,?5) ON CONFLICT(owner) DO "
        "UPDATE SET seen=?5",
        &s));
    DATABASE_TEXT(s, 1, d->owner);
    DATABASE_TEXT(s, 2, d->machine);
    sqlite3_bind_int64(s, 3, d->pid);
    sqlite3_bind_int64(s, 4, d->birth);
    sqlite3_bind_double(s, 5, database_now());
    return database_step(d, s, "writing");
}

void database_leave(database *d)
{
    sqlite3_stmt *s;
    if (!d->db || sqlite3_prepare_v2(d->db, "DELETE FROM owners WHERE owner=?1", -1, &s, NULL) != SQLITE_OK)
        return;
    DATABASE_TEXT(s, 1, d->owner);
    sqlite3_step(s);
    sqlite3_finalize(s);
}

static bool dead(const database *d, sqlite3_stmt *row)
{
    const char *owner = (const char *)sqlite3_column_text(row, 0),
               *machine = (const char *)sqlite3_column_text(row, 1);
    if (!owner || !strcmp(owner, d->owner)) return false;
    if (!machine) return true; /* nobody knows it */
    if (owner_is_here(d, machine))
        return !owner_lives(sqlite3_column_int64(row, 2), sqlite3_column_int64(row, 3));
    return database_now() - sqlite3_column_double(row, 4) > SILENCE_SECONDS;
}

static blurry_status bury(const database *d, const char *owner, int64_t *count)
{
    sqlite3_stmt *s;
    STATUS_TRY(database_prepare(
        d, "UPDATE runs SET state='pending', owner=NULL WHERE state='running' AND owner=?1", &s));
    DATABASE_TEXT(s, 1, owner);
    STATUS_TRY(database_step(d, s, "taking runs over"));
    *count += sqlite3_changes(d->db);
    STATUS_TRY(database_prepare(d, "DELETE FROM owners WHERE owner=?1", &s));
    DATABASE_TEXT(s, 1, owner);
    return database_step(d, s, "taking runs over");
}

static blurry_status bury_all(const database *d, int64_t *count)
{
    sqlite3_stmt *s;
    char names[64][DATABASE_OWNER];
    int n = 0, code;
    STATUS_TRY(database_prepare(
        d,
        "SELECT DISTINCT r.owner, o.machine, o.pid, o.birth, o.seen FROM runs r LEFT JOIN owners o ON "
        "o.owner=r.owner WHERE r.state='running'",
        &s));
    while ((code = sqlite3_step(s)) == SQLITE_ROW && n < 64)
        if (dead(d, s)) {
            strncpy(names[n], (const char *)sqlite3_column_text(s, 0), DATABASE_OWNER - 1);
            names[n++][DATABASE_OWNER - 1] = 0;
        }
    sqlite3_finalize(s);
    if (code != SQLITE_DONE && code != SQLITE_ROW) return database_fail(d, code, "looking for dead owners");
    for (int i = 0; i < n; i++) STATUS_TRY(bury(d, names[i], count));
    return BLURRY_OK;
}

blurry_status database_requeue_dead(database *d, int64_t *count)
{
    *count = 0;
    STATUS_TRY(database_begin(d));
    return database_end(d, bury_all(d, count));
}

/* ---- claims ---- */
blurry_status database_peek(const database *d, double largest, int64_t *index)
{
    sqlite3_stmt *s;
    *index = -1;
    STATUS_TRY(database_prepare(
        d,
        "SELECT w.position FROM temp.wanted w JOIN runs r ON r.key=w.key WHERE r.state='pending' "
        "AND r.bytes<=?1 ORDER BY w.position LIMIT 1",
        &s));
    sqlite3_bind_double(s, 1, largest);
    int code = sqlite3_step(s);
    if (code == SQLITE_ROW) *index = sqlite3_column_int64(s, 0);
    sqlite3_finalize(s);
    return code == SQLITE_ROW || code == SQLITE_DONE ? BLURRY_OK : database_fail(d, code, "choosing a run");
}

static blurry_status claim(const database *d, const char *key)
{
    sqlite3_stmt *s;
    STATUS_TRY(database_prepare(
        d, "UPDATE runs SET state='running', owner=?1, started=?2, attempts=attempts+1 WHERE key=?3", &s));
    DATABASE_TEXT(s, 1, d->owner);
    sqlite3_bind_double(s, 2, database_now());
    DATABASE_TEXT(s, 3, key);
    return database_step(d, s, "claiming a run");
}

blurry_status database_claim(database *d, const blurry_sweep *sweep, double largest, int64_t *index)
{
    STATUS_TRY(database_peek(d, largest, index)); /* no lock where there is nothing to take */
    if (*index < 0) return BLURRY_OK;
    STATUS_TRY(database_begin(d));
    blurry_status status = database_peek(d, largest, index);
    if (status == BLURRY_OK && *index >= 0) status = claim(d, sweep->run[*index].key);
    return database_end(d, status);
}

/* ---- counting ---- */
blurry_status database_count(database *d, database_counts *counts)
{
    sqlite3_stmt *s;
    int code;
    *counts = (database_counts){0};
    STATUS_TRY(database_prepare(
        d, "SELECT r.state, r.owner=?1, COUNT(*) FROM temp.wanted w JOIN runs r ON r.key=w.key GROUP BY 1, 2",
        &s));
    DATABASE_TEXT(s, 1, d->owner);
    while ((code = sqlite3_step(s)) == SQLITE_ROW) {
        const char *state = (const char *)sqlite3_column_text(s, 0);
        int64_t n = sqlite3_column_int64(s, 2);
        counts->total += n;
        *(!strcmp(state, "pending")    ? &counts->pending
          : !strcmp(state, "running")  ? &counts->running
          : !strcmp(state, "done")     ? &counts->done
          : !strcmp(state, "diverged") ? &counts->diverged
                                       : &counts->failed) += n;
        if (!strcmp(state, "running") && sqlite3_column_int(s, 1)) counts->mine += n;
    }
    sqlite3_finalize(s);
    return code == SQLITE_DONE ? BLURRY_OK : database_fail(d, code, "counting");
}

blurry_status database_results(database *d, database_each each, void *context)
{
    sqlite3_stmt *s;
    int code;
    STATUS_TRY(database_prepare(
        d,
        "SELECT w.position, r.state, r.best, r.seconds FROM temp.wanted w JOIN runs r ON r.key=w.key "
        "WHERE r.state IN ('done','diverged','failed') ORDER BY 1",
        &s));
    while ((code = sqlite3_step(s)) == SQLITE_ROW)
        each(context, sqlite3_column_int64(s, 0), (const char *)sqlite3_column_text(s, 1),
             sqlite3_column_type(s, 2) == SQLITE_NULL ? NAN : sqlite3_column_double(s, 2),
             sqlite3_column_double(s, 3));
    sqlite3_finalize(s);
    return code == SQLITE_DONE ? BLURRY_OK : database_fail(d, code, "reading results");
}
