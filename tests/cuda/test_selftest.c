/* `blurry selftest` where there is a GPU: rows of its own, which pass. */
#include "support/test.h"

#include "blurry/selftest.h"

#include <stdlib.h>
#include <string.h>

typedef struct seen {
    int cuda, other;
} seen;

static int count(void *context, const blurry_selftest_row *row)
{
    seen *s = context;
    if (strcmp(row->kernel, "cuda"))
        s->other++;
    else {
        s->cuda++;
        assert_true(!strcmp(row->type, "f32") || !strcmp(row->type, "bf16"));
        assert_int_equal(row->cases, 8);
    }
    if (!row->passed)
        fail_msg("%s %s %s: %g in %s", row->group, row->kernel, row->type, row->error, row->worst);
    return 0;
}

static void rows_of_the_gpu(void **state)
{
    (void)state;
    seen with = {0};
    assert_ok(blurry_selftest(count, &with));
    assert_int_equal(with.cuda, 4);
    assert_true(with.other >= 8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(rows_of_the_gpu)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
