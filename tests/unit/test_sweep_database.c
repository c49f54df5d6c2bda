/* The results database: claims by many processes at once, dead owners, results exactly once, files that are
 * none, disks that are full. */
#include "support/test.h"
#include "sweep/database.h"
#include "sweep/grid.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static const char grid_text[] = "base: {task: mqar, length: 32, pairs: 4, vocab: 64, width: 16, steps: 10}\n"
                                "axes: {seed: [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]}\n";
enum { RUNS = 12 };

typedef struct fixture {
    char folder[64], path[96];
    blurry_sweep *sweep;
} fixture;

static int set_up(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    snprintf(f->folder, sizeof f->folder, "/tmp/blurry-database-XXXXXX");
    if (!f || !mkdtemp(f->folder)) return -1;
    snprintf(f->path, sizeof f->path, "%s/results.db", f->folder);
    *state = f;
    return blurry_sweep_parse(&f->sweep, grid_text, strlen(grid_text), "grid.yaml", NULL) == BLURRY_OK ? 0
                                                                                                       : -1;
}

static int tear_down(void **state)
{
    fixture *f = *state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", f->folder);
    blurry_sweep_destroy(&f->sweep);
    int bad = system(command);
    free(f);
    return bad;
}

static void open_for(const fixture *f, database *d)
{
    assert_ok(database_open(d, f->path, 1));
    assert_ok(database_register(d, f->sweep));
}

static run_result some_result(double best)
{
    static blurry_result_eval evals[2];
    evals[0] = (blurry_result_eval){5, 1.25, best / 2, best / 2, NAN, NAN};
    evals[1] = (blurry_result_eval){10, 0.1 + 0.2, best, best, NAN, NAN};
    run_result r = {.outcome = RUN_DONE,
                    .reason = "steps",
                    .metric = "accuracy",
                    .best = best,
                    .best_step = 10,
                    .seconds = 1,
                    .evals = evals,
                    .eval_count = 2,
                    .parameters = 77};
    return r;
}

static int64_t claim(database *d, const fixture *f)
{
    int64_t index = -2;
    assert_ok(database_claim(d, f->sweep, INFINITY, &index));
    return index;
}

static void a_run_from_pending_to_done(void **state)
{
    fixture *f = *state;
    database d, other;
    database_counts counts;
    open_for(f, &d);
    open_for(f, &other);
    assert_int_equal(claim(&d, f), 0);
    assert_int_equal(claim(&other, f), 1);
    assert_ok(database_count(&d, &counts));
    assert_int_equal(counts.total, RUNS);
    assert_int_equal(counts.running, 2);
    assert_int_equal(counts.mine, 1);
    run_result r = some_result(0.7);
    const char *key = f->sweep->run[0].key;
    assert_ok(database_finish(&other, key, &r)); /* not its own: nothing happens */
    assert_ok(database_count(&d, &counts));
    assert_int_equal(counts.done, 0);
    assert_ok(database_finish(&d, key, &r));
    assert_ok(database_finish(&d, key, &r)); /* once is enough */
    assert_ok(database_release(&other, f->sweep->run[1].key, "lost", 3));
    assert_ok(database_count(&d, &counts));
    assert_int_equal(counts.done, 1);
    assert_int_equal(counts.running, 0);
    assert_int_equal(counts.pending, RUNS - 1);
    assert_int_equal(claim(&d, f), 1);
    database_close(&d);
    database_close(&other);
    blurry_results *results;
    assert_ok(blurry_results_open(&results, f->path));
    assert_int_equal(blurry_results_count(results), RUNS);
    blurry_result shown;
    assert_ok(blurry_results_at(results, 0, &shown));
    assert_string_equal(shown.state, "done");
    assert_string_equal(shown.group, "all");
    assert_int_equal(shown.eval_count, 2);
    assert_true(shown.evals[1].loss == 0.1 + 0.2 && isnan(shown.evals[1].l1) && shown.best == 0.7);
    assert_null(blurry_settings_difference(shown.settings, f->sweep->run[0].settings, BLURRY_SETTINGS_ALL));
    blurry_results_close(&results);
}

static void failures_are_kept_and_tried_again_on_request(void **state)
{
    fixture *f = *state;
    database d;
    database_counts counts;
    open_for(f, &d);
    for (int i = 0; i < 3; i++) {
        run_result r = some_result(0.5);
        r.outcome = i == 0 ? RUN_DONE : i == 1 ? RUN_DIVERGED : RUN_FAILED;
        r.eval_count = 0;
        assert_int_equal(claim(&d, f), i);
        assert_ok(database_finish(&d, f->sweep->run[i].key, &r));
    }
    assert_ok(database_retry(&d, 0));
    assert_int_equal(claim(&d, f), 3);
    assert_ok(database_retry(&d, BLURRY_RETRY_DIVERGED));
    assert_int_equal(claim(&d, f), 1);
    assert_ok(database_retry(&d, BLURRY_RETRY_FAILED));
    assert_int_equal(claim(&d, f), 2);
    assert_ok(database_count(&d, &counts));
    assert_int_equal(counts.done, 1);
    database_close(&d);
}

/* Each child claims and finishes runs until there are none; together they must have each run once. */
static void many_processes_share_a_database(void **state)
{
    fixture *f = *state;
    enum { CHILDREN = 6 };
    pid_t child[CHILDREN];
    int64_t total = 0;
    for (int i = 0; i < CHILDREN; i++) {
        child[i] = fork();
        if (child[i]) continue;
        database d;
        int taken = 0;
        int64_t index = 0;
        if (database_open(&d, f->path, 1) != BLURRY_OK || database_register(&d, f->sweep) != BLURRY_OK)
            _exit(100);
        for (;;) {
            if (database_claim(&d, f->sweep, INFINITY, &index) != BLURRY_OK) _exit(101);
            if (index < 0) break;
            run_result r = some_result(0.01 * (double)index);
            if (database_finish(&d, f->sweep->run[index].key, &r) != BLURRY_OK) _exit(102);
            taken++;
        }
        database_close(&d);
        _exit(taken);
    }
    for (int i = 0; i < CHILDREN; i++) {
        int status;
        assert_int_equal(waitpid(child[i], &status, 0), child[i]);
        assert_true(WIFEXITED(status));
        assert_in_range(WEXITSTATUS(status), 0, RUNS);
        total += WEXITSTATUS(status);
    }
    assert_int_equal(total, RUNS);
    database d;
    database_counts counts;
    open_for(f, &d);
    assert_ok(database_count(&d, &counts));
    assert_int_equal(counts.done, RUNS);
    database_close(&d);
}

static void what_dead_owners_leave_is_taken_over(void **state)
{
    fixture *f = *state;
    database d;
    int64_t count;
    open_for(f, &d);
    assert_int_equal(claim(&d, f), 0);
    pid_t child = fork();
    if (child == 0) {
        database mine;
        int64_t index;
        if (database_open(&mine, f->path, 1) == BLURRY_OK &&
            database_register(&mine, f->sweep) == BLURRY_OK &&
            database_claim(&mine, f->sweep, INFINITY, &index) == BLURRY_OK && index == 1)
            raise(SIGKILL);
        _exit(1);
    }
    int status;
    siginfo_t info;
    assert_int_equal(waitid(P_PID, (id_t)child, &info, WEXITED | WNOWAIT), 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status));
    assert_ok(database_requeue_dead(&d, &count));
    assert_int_equal(count, 1); /* the living owner keeps its own */
    assert_int_equal(claim(&d, f), 1);
    /* An owner on another machine lives as long as it is heard of. */
    assert_ok(database_exec(
        &d,
        "UPDATE owners SET machine='elsewhere', owner='E', seen=strftime('%s','now'); UPDATE runs SET "
        "owner='E' WHERE state='running'",
        "test"));
    assert_ok(database_requeue_dead(&d, &count));
    assert_int_equal(count, 0);
    assert_ok(database_exec(&d, "UPDATE owners SET seen=seen-1000", "test"));
    assert_ok(database_requeue_dead(&d, &count));
    assert_int_equal(count, 2);
    database_close(&d);
}

static void killed_writers_leave_a_sound_file(void **state)
{
    fixture *f = *state;
    database d;
    for (int round = 0; round < 40; round++) {
        pid_t child = fork();
        if (child == 0) {
            int64_t index;
            if (database_open(&d, f->path, 1) != BLURRY_OK) _exit(1);
            for (;;) {
                run_result r = some_result(0.5);
                database_register(&d, f->sweep);
                if (database_claim(&d, f->sweep, INFINITY, &index) == BLURRY_OK && index >= 0)
                    database_finish(&d, f->sweep->run[index].key, &r);
                database_exec(&d, "UPDATE runs SET state='pending', owner=NULL", "test");
            }
        }
        usleep((useconds_t)(2000 + 977 * round % 20000));
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
    }
    open_for(f, &d);
    sqlite3_stmt *s;
    assert_ok(database_prepare(&d, "PRAGMA integrity_check", &s));
    assert_int_equal(sqlite3_step(s), SQLITE_ROW);
    assert_string_equal((const char *)sqlite3_column_text(s, 0), "ok");
    sqlite3_finalize(s);
    /* A result is there with all its evaluations or not at all. */
    assert_ok(database_prepare(
        &d,
        "SELECT COUNT(*) FROM runs r WHERE state='done' AND (SELECT COUNT(*) FROM evaluations e WHERE "
        "e.key=r.key)<>2",
        &s));
    assert_int_equal(sqlite3_step(s), SQLITE_ROW);
    assert_int_equal(sqlite3_column_int(s, 0), 0);
    sqlite3_finalize(s);
    database_close(&d);
}

static void files_that_are_no_database(void **state)
{
    fixture *f = *state;
    database d;
    blurry_results *results;
    assert_fails(blurry_results_open(&results, f->path), BLURRY_E_IO, "no such database");
    FILE *file = fopen(f->path, "w");
    for (int i = 0; i < 200; i++) fprintf(file, "this is text, not a database\n");
    fclose(file);
    assert_fails(database_open(&d, f->path, 1), BLURRY_E_FORMAT, "not a results database");
    assert_fails(blurry_results_open(&results, f->path), BLURRY_E_FORMAT, "results.db");
    unlink(f->path);
    sqlite3 *foreign;
    assert_int_equal(sqlite3_open(f->path, &foreign), SQLITE_OK);
    sqlite3_exec(foreign, "CREATE TABLE precious(x)", NULL, NULL, NULL);
    sqlite3_close(foreign);
    assert_fails(database_open(&d, f->path, 1), BLURRY_E_FORMAT, "not one of results");
    unlink(f->path);
    assert_fails(database_open(&d, f->folder, 1), BLURRY_E_INVALID, "regular");
    assert_fails(database_open(&d, "/nonexistent/results.db", 1), BLURRY_E_IO, "/nonexistent/results.db");
}

static void a_read_only_file_is_refused_and_can_be_read(void **state)
{
    fixture *f = *state;
    database d;
    open_for(f, &d);
    database_close(&d);
    assert_int_equal(chmod(f->path, 0444), 0);
    assert_fails(database_open(&d, f->path, 1), BLURRY_E_IO, "read-only");
    blurry_results *results;
    assert_ok(blurry_results_open(&results, f->path));
    assert_int_equal(blurry_results_count(results), RUNS);
    blurry_results_close(&results);
}

/* A limit on the size of files stops SQLite in the middle of a transaction, as a full disk does. */
static void a_full_disk_loses_nothing(void **state)
{
    fixture *f = *state;
    database d;
    open_for(f, &d);
    assert_int_equal(claim(&d, f), 0);
    struct stat info;
    assert_int_equal(stat(f->path, &info), 0);
    struct rlimit old, tight;
    getrlimit(RLIMIT_FSIZE, &old);
    tight = old;
    tight.rlim_cur = (rlim_t)info.st_size;
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &tight);
    run_result r = some_result(0.5);
    blurry_result_eval *many = calloc(20000, sizeof *many);
    for (int i = 0; i < 20000; i++) many[i].step = i;
    r.evals = many;
    r.eval_count = 20000;
    blurry_status status = database_finish(&d, f->sweep->run[0].key, &r);
    setrlimit(RLIMIT_FSIZE, &old);
    assert_int_equal(status, BLURRY_E_IO);
    assert_non_null(strstr(blurry_last_error(), "disk"));
    database_counts counts;
    assert_ok(database_count(&d, &counts));
    assert_int_equal(counts.mine, 1);
    assert_int_equal(counts.done, 0);
    assert_ok(database_finish(&d, f->sweep->run[0].key, &r)); /* with room it works */
    free(many);
    assert_ok(database_count(&d, &counts));
    assert_int_equal(counts.done, 1);
    database_close(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_run_from_pending_to_done, set_up, tear_down),
        cmocka_unit_test_setup_teardown(failures_are_kept_and_tried_again_on_request, set_up, tear_down),
        cmocka_unit_test_setup_teardown(many_processes_share_a_database, set_up, tear_down),
        cmocka_unit_test_setup_teardown(what_dead_owners_leave_is_taken_over, set_up, tear_down),
        cmocka_unit_test_setup_teardown(killed_writers_leave_a_sound_file, set_up, tear_down),
        cmocka_unit_test_setup_teardown(files_that_are_no_database, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_read_only_file_is_refused_and_can_be_read, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_full_disk_loses_nothing, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
