/* How the library itself reports failures: set this thread's message and return the code in one expression.
 */
#ifndef BLURRY_BASE_STATUS_H
#define BLURRY_BASE_STATUS_H
#include "blurry/status.h"

/* Formats the thread's message and returns `code`. A message names the field, its value and the remedy. */
blurry_status status_fail(blurry_status code, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Puts "context: " before the message already set (for example a file's path) and returns `code`. */
blurry_status status_context(blurry_status code, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Returns from the enclosing function when `expr` is not BLURRY_OK. */
#define STATUS_TRY(expr)                                                                                     \
    do {                                                                                                     \
        blurry_status status_try_ = (expr);                                                                  \
        if (status_try_ != BLURRY_OK) return status_try_;                                                    \
    } while (0)

#endif
