/* Reading a results database as a whole: blurry_results. */
#include "sweep/database.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct result_row {
    blurry_result shown; /* its texts are owned by this row */
    blurry_settings *settings;
    blurry_result_eval *evals;
} result_row;

struct blurry_results {
    blurry_results_sweep *sweeps;
    int64_t sweep_count;
    result_row *rows;
    int64_t count, room;
};

static char *column(sqlite3_stmt *s, int place)
{
    const char *text = (const char *)sqlite3_column_text(s, place);
    return strdup(text ? text : "");
}

static double number(sqlite3_stmt *s, int place)
{
    return sqlite3_column_type(s, place) == SQLITE_NULL ? NAN : sqlite3_column_double(s, place);
}

static blurry_status out_of_memory(void)
{
    return status_fail(BLURRY_E_MEMORY, "results: out of memory");
}

/* ---- sweeps ---- */
static blurry_status read_sweeps(const database *d, blurry_results *r)
{
    sqlite3_stmt *s;
    int code;
    STATUS_TRY(database_prepare(d, "SELECT name, title, figure FROM sweeps ORDER BY created, name", &s));
    while ((code = sqlite3_step(s)) == SQLITE_ROW) {
        blurry_results_sweep *more = realloc(r->sweeps, (size_t)(r->sweep_count + 1) * sizeof *more);
        if (!more) break;
        r->sweeps = more;
        r->sweeps[r->sweep_count++] = (blurry_results_sweep){column(s, 0), column(s, 1), column(s, 2)};
    }
    sqlite3_finalize(s);
    return code == SQLITE_DONE  ? BLURRY_OK
           : code == SQLITE_ROW ? out_of_memory()
                                : database_fail(d, code, "reading");
}

/* ---- runs ---- */
static blurry_status read_settings(const database *d, const char *config, result_row *row)
{
    STATUS_TRY(blurry_settings_create(&row->settings));
    blurry_status status = blurry_settings_parse_yaml(row->settings, config, strlen(config), "settings");
    row->shown.settings = row->settings;
    return status == BLURRY_OK ? status
                               : status_context(BLURRY_E_FORMAT, "%s: run %.16s", d->path, row->shown.key);
}

static blurry_status add_eval(result_row *row, const blurry_result_eval *eval)
{
    int64_t n = row->shown.eval_count;
    if ((n & (n - 1)) == 0) {
        blurry_result_eval *more = realloc(row->evals, (size_t)(n ? 2 * n : 1) * sizeof *more);
        if (!more) return out_of_memory();
        row->evals = more;
    }
    row->evals[row->shown.eval_count++] = *eval;
    row->shown.evals = row->evals;
    return BLURRY_OK;
}

static blurry_status read_evals(const database *d, sqlite3_stmt *s, result_row *row)
{
    int code;
    blurry_status status = BLURRY_OK;
    sqlite3_bind_text(s, 1, row->shown.key, -1, SQLITE_STATIC);
    while (status == BLURRY_OK && (code = sqlite3_step(s)) == SQLITE_ROW) {
        blurry_result_eval eval = {
            sqlite3_column_int64(s, 0), number(s, 1), number(s, 2), number(s, 3), number(s, 4), number(s, 5)};
        status = add_eval(row, &eval);
    }
    sqlite3_reset(s);
    return status != BLURRY_OK || code == SQLITE_DONE ? status
                                                      : database_fail(d, code, "reading evaluations");
}

static result_row *new_row(blurry_results *r)
{
    if (r->count == r->room) {
        int64_t room = r->room ? 2 * r->room : 64;
        result_row *more = realloc(r->rows, (size_t)room * sizeof *more);
        if (!more) return NULL;
        r->rows = more;
        r->room = room;
    }
    result_row *row = &r->rows[r->count++];
    memset(row, 0, sizeof *row);
    return row;
}

static blurry_status read_row(const database *d, sqlite3_stmt *s, sqlite3_stmt *evals, blurry_results *r)
{
    result_row *row = new_row(r);
    if (!row) return out_of_memory();
    row->shown = (blurry_result){.key = column(s, 0),
                                 .sweep = column(s, 1),
                                 .group = column(s, 2),
                                 .state = column(s, 4),
                                 .reason = column(s, 5),
                                 .host = column(s, 6),
                                 .device = column(s, 7),
                                 .version = column(s, 8),
                                 .state_elements = sqlite3_column_int64(s, 9),
                                 .parameters = sqlite3_column_int64(s, 10),
                                 .steps = sqlite3_column_int64(s, 11),
                                 .attempts = sqlite3_column_int64(s, 12),
                                 .metric = column(s, 13),
                                 .best = number(s, 14),
                                 .best_step = sqlite3_column_int64(s, 15),
                                 .seconds = number(s, 16)};
    const char *config = (const char *)sqlite3_column_text(s, 3);
    STATUS_TRY(read_settings(d, config ? config : "", row));
    return read_evals(d, evals, row);
}

static blurry_status read_runs(const database *d, blurry_results *r)
{
    sqlite3_stmt *s, *evals;
    int code = SQLITE_DONE;
    STATUS_TRY(database_prepare(
        d,
        "SELECT r.key, m.sweep, m.part, r.config, r.state, r.reason, r.host, r.device, r.version, "
        "r.state_elements, r.parameters, r.steps, r.attempts, r.metric, r.best, r.best_step, r.seconds "
        "FROM members m JOIN runs r ON r.key=m.key ORDER BY m.sweep, m.position, m.part",
        &s));
    blurry_status status = database_prepare(d,
                                            "SELECT step, loss, accuracy, exact_match, l1, bits_per_byte "
                                            "FROM evaluations WHERE key=?1 ORDER BY step",
                                            &evals);
    while (status == BLURRY_OK && (code = sqlite3_step(s)) == SQLITE_ROW) status = read_row(d, s, evals, r);
    sqlite3_finalize(s);
    sqlite3_finalize(evals);
    return status != BLURRY_OK || code == SQLITE_DONE ? status : database_fail(d, code, "reading results");
}

blurry_status blurry_results_open(blurry_results **results, const char *path)
{
    if (!results || !path) return status_fail(BLURRY_E_INVALID, "results or database is NULL");
    database d;
    *results = NULL;
    STATUS_TRY(database_open(&d, path, 0));
    blurry_results *r = calloc(1, sizeof *r);
    blurry_status status = r ? BLURRY_OK : out_of_memory();
    if (status == BLURRY_OK) status = database_exec(&d, "BEGIN", "reading"); /* all of one moment */
    if (status == BLURRY_OK) status = read_sweeps(&d, r);
    if (status == BLURRY_OK) status = read_runs(&d, r);
    database_close(&d);
    if (status != BLURRY_OK) blurry_results_close(&r);
    *results = r;
    return status;
}

void blurry_results_close(blurry_results **results)
{
    blurry_results *r = results ? *results : NULL;
    if (!r) return;
    for (int64_t i = 0; i < r->sweep_count; i++) {
        const blurry_results_sweep *s = &r->sweeps[i];
        const char *texts[] = {s->name, s->title, s->figure};
        for (int k = 0; k < 3; k++) free((char *)texts[k]);
    }
    for (int64_t i = 0; i < r->count; i++) {
        const blurry_result *s = &r->rows[i].shown;
        const char *texts[] = {s->key,  s->sweep,  s->group,   s->state, s->reason,
                               s->host, s->device, s->version, s->metric};
        for (int k = 0; k < 9; k++) free((char *)texts[k]);
        blurry_settings_destroy(&r->rows[i].settings);
        free(r->rows[i].evals);
    }
    free(r->sweeps);
    free(r->rows);
    free(r);
    *results = NULL;
}

int64_t blurry_results_sweep_count(const blurry_results *results)
{
    return results ? results->sweep_count : 0;
}

blurry_status blurry_results_sweep_at(const blurry_results *results, int64_t index,
                                      blurry_results_sweep *sweep)
{
    if (!results || !sweep || index < 0 || index >= results->sweep_count)
        return status_fail(BLURRY_E_INVALID, "index is %lld: not a sweep of these results", (long long)index);
    *sweep = results->sweeps[index];
    return BLURRY_OK;
}

int64_t blurry_results_count(const blurry_results *results)
{
    return results ? results->count : 0;
}

blurry_status blurry_results_at(const blurry_results *results, int64_t index, blurry_result *result)
{
    if (!results || !result || index < 0 || index >= results->count)
        return status_fail(BLURRY_E_INVALID, "index is %lld: not a run of these results", (long long)index);
    *result = results->rows[index].shown;
    return BLURRY_OK;
}
