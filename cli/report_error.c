#include "cli/cli.h"

#include <stdio.h>

int cli_report(blurry_status status, const char *context)
{
    if (status == BLURRY_OK) return CLI_OK;
    fprintf(stderr, "blurry: %s%s%s\n", context ? context : "", context ? ": " : "", blurry_last_error());
    return status == BLURRY_E_INVALID || status == BLURRY_E_FORMAT || status == BLURRY_E_UNSUPPORTED
               ? CLI_USAGE
               : CLI_FAILED;
}

int cli_report_input(blurry_status status, const char *context)
{
    int code = cli_report(status, context);
    return status == BLURRY_E_IO ? CLI_USAGE : code;
}
