#include "support/test.h"

#include <string.h>

void assert_fails_(blurry_status got, blurry_status want, const char *text, const char *expr,
                   const char *file, int line)
{
    if (got != want) {
        print_error("%s: returned '%s', expected '%s' (message: %s)\n", expr, blurry_status_name(got),
                    blurry_status_name(want), blurry_last_error());
        _fail(file, line);
    }
    if (!strstr(blurry_last_error(), text)) {
        print_error("%s: message lacks '%s': %s\n", expr, text, blurry_last_error());
        _fail(file, line);
    }
}
