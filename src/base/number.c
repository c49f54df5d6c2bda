#include "base/number.h"

#include <errno.h>
#include <locale.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;
static locale_t plain; /* the "C" locale; 0 if the system could not make one, then the current one serves */

static void make_plain(void)
{
    plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
}

/* Makes the "C" locale this thread's own and returns the one to go back to. */
static locale_t enter_plain(void)
{
    pthread_once(&once, make_plain);
    return plain ? uselocale(plain) : (locale_t)0;
}

static void leave_plain(locale_t before)
{
    if (before) uselocale(before);
}

bool number_parse_int(const char *text, int64_t *value)
{
    const char *digits = text + (*text == '-' || *text == '+');
    if (!*digits || strspn(digits, "0123456789") != strlen(digits)) return false;
    errno = 0;
    long long parsed = strtoll(text, NULL, 10);
    if (errno) return false;
    *value = parsed;
    return true;
}

bool number_parse_real(const char *text, double *value)
{
    if (!*text || strspn(text, "0123456789+-.eE") != strlen(text)) return false;
    char *end = NULL;
    locale_t before = enter_plain();
    double parsed = strtod(text, &end);
    leave_plain(before);
    if (*end || !isfinite(parsed)) return false;
    *value = parsed + 0.0; /* -0 becomes 0 */
    return true;
}

void number_format_real(double value, char text[NUMBER_TEXT])
{
    locale_t before = enter_plain();
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, NUMBER_TEXT, "%.*g", digits, value);
        if (strtod(text, NULL) == value) break;
    }
    leave_plain(before);
}
