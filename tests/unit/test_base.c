/* Status messages, instruction-set choice and the worker pool. */
#include "support/test.h"

#include "base/cpu.h"
#include "base/status.h"
#include "base/threads.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void status_keeps_message(void **state)
{
    (void)state;
    assert_int_equal(status_fail(BLURRY_E_INVALID, "modes is %d: give at least 1", 0), BLURRY_E_INVALID);
    assert_string_equal(blurry_last_error(), "modes is 0: give at least 1");
    assert_int_equal(status_context(BLURRY_E_IO, "file %s", "x.yaml"), BLURRY_E_IO);
    assert_string_equal(blurry_last_error(), "file x.yaml: modes is 0: give at least 1");
    char longer[4000];
    memset(longer, 'x', sizeof longer);
    longer[sizeof longer - 1] = 0;
    status_fail(BLURRY_E_INVALID, "%s", longer);
    assert_true(strlen(blurry_last_error()) < 1024);
    assert_string_equal(blurry_status_name((blurry_status)999), "unknown");
}

static void isa_wish_is_honoured(void **state)
{
    (void)state;
    setenv("BLURRY_ISA", "base", 1);
    assert_int_equal(cpu_isa_select(), CPU_ISA_BASE);
    setenv("BLURRY_ISA", "nonsense", 1);
    assert_true(cpu_isa_supported(cpu_isa_select()));
    unsetenv("BLURRY_ISA");
    assert_true(cpu_isa_supported(cpu_isa_select()));
}

enum { TASKS = 1000 };
typedef struct counts {
    int ran[TASKS];
    int nested;
} counts;

static void count_task(void *context, int64_t task, int worker)
{
    counts *c = context;
    assert(worker >= 0 && worker < 4);
    c->ran[task]++;
    if (c->nested) {
        counts *inner = calloc(1, sizeof *inner);
        threads_run(4, 10, count_task, inner);
        for (int i = 0; i < 10; i++) c->ran[task] += inner->ran[i] - 1;
        free(inner);
    }
}

static void check_pool(int nested)
{
    counts c = {.nested = nested};
    threads_run(4, TASKS, count_task, &c);
    for (int i = 0; i < TASKS; i++) assert_int_equal(c.ran[i], 1);
}

static void pool_runs_each_task_once(void **state)
{
    (void)state;
    for (int i = 0; i < 200; i++) check_pool(0);
    check_pool(1);
}

static void *pool_user(void *argument)
{
    (void)argument;
    for (int i = 0; i < 100; i++) check_pool(0);
    return NULL;
}

static void pool_serves_many_callers(void **state)
{
    (void)state;
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) pthread_create(&threads[i], NULL, pool_user, NULL);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
}

static void pool_survives_fork(void **state)
{
    (void)state;
    check_pool(0);
    pid_t child = fork();
    if (child == 0) {
        counts c = {0};
        threads_run(4, TASKS, count_task, &c);
        for (int i = 0; i < TASKS; i++)
            if (c.ran[i] != 1) _exit(1);
        _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    check_pool(0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(status_keeps_message),     cmocka_unit_test(isa_wish_is_honoured),
        cmocka_unit_test(pool_runs_each_task_once), cmocka_unit_test(pool_serves_many_callers),
        cmocka_unit_test(pool_survives_fork),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
