/* What every test program includes: cmocka with its prerequisites, and small helpers. */
#ifndef BLURRY_TEST_H
#define BLURRY_TEST_H
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <assert.h>
#include <cmocka.h>
#include "blurry/status.h"

/* Fails with the library's message when `expr` is not BLURRY_OK. */
#define assert_ok(expr)                                                                                      \
    do {                                                                                                     \
        blurry_status assert_status_ = (expr);                                                               \
        if (assert_status_ != BLURRY_OK)                                                                     \
            fail_msg("%s: %s: %s", #expr, blurry_status_name(assert_status_), blurry_last_error());          \
    } while (0)

/* Fails unless `expr` returns `code` and the message contains `text`. */
#define assert_fails(expr, code, text) assert_fails_(expr, code, text, #expr, __FILE__, __LINE__)
void assert_fails_(blurry_status got, blurry_status want, const char *text, const char *expr,
                   const char *file, int line);

/* The folder tests/ with its data: where the program was built, or as the variable BLURRY_TEST_DATA says. */
const char *test_data(void);
/* Calls `check` with every safetensors file of tests/golden/GROUP; their number. */
int test_golden_files(const char *group, void (*check)(const char *path, const char *name, void *context),
                      void *context);

#endif
