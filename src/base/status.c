/* The per-thread error message. Plain thread-local storage: no allocation, so reporting out-of-memory cannot
 * fail. */
#include "base/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { MESSAGE_CAPACITY = 1024 };
static _Thread_local char message[MESSAGE_CAPACITY];

blurry_status status_fail(blurry_status code, const char *format, ...)
{
    /* Formatted aside first: an argument may point into the old message. */
    char text[MESSAGE_CAPACITY];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    memcpy(message, text, sizeof message);
    return code;
}

blurry_status status_context(blurry_status code, const char *format, ...)
{
    char text[MESSAGE_CAPACITY];
    va_list args;
    va_start(args, format);
    int used = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (used < 0) return code;
    if (used < MESSAGE_CAPACITY) snprintf(text + used, sizeof text - (size_t)used, ": %s", message);
    memcpy(message, text, sizeof message);
    return code;
}

const char *blurry_last_error(void)
{
    return message;
}

const char *blurry_status_name(blurry_status status)
{
    switch (status) {
    case BLURRY_OK:
        return "ok";
    case BLURRY_E_INVALID:
        return "invalid";
    case BLURRY_E_MEMORY:
        return "out of memory";
    case BLURRY_E_IO:
        return "i/o";
    case BLURRY_E_FORMAT:
        return "format";
    case BLURRY_E_UNSUPPORTED:
        return "unsupported";
    case BLURRY_E_NUMERIC:
        return "numeric";
    case BLURRY_E_DEVICE:
        return "device";
    case BLURRY_E_CANCELLED:
        return "cancelled";
    case BLURRY_E_INTERNAL:
        return "internal";
    }
    return "unknown";
}

const char *blurry_version(void)
{
    return BLURRY_VERSION;
}
