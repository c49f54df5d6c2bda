/* `blurry selftest`: every kernel of this machine against the double reference, the worst error of each. */
#include "blurry/device.h"
#include "blurry/selftest.h"
#include "cli/cli.h"

#include <stdio.h>
#include <string.h>

static int print_row(void *context, const blurry_selftest_row *row)
{
    (void)context;
    printf("%-10s %-7s %-4s %6lld   %9.2e  %-10s %9.0e   %s\n", row->group, row->kernel, row->type,
           (long long)row->cases, row->error, row->worst, row->tolerance, row->passed ? "ok" : "MISSED");
    fflush(stdout);
    return 0;
}

int cmd_selftest(int argc, char **argv)
{
    if (argc > 1) {
        int help = !strcmp(argv[1], "--help") || !strcmp(argv[1], "-h");
        if (!help) fprintf(stderr, "blurry: selftest takes no arguments, got '%s'\n", argv[1]);
        fprintf(help ? stdout : stderr,
                "usage: blurry selftest\n\nRuns every kernel of this machine against the double "
                "reference and prints the worst relative error\nof each. Exit status 1 when one "
                "misses its tolerance.\n");
        return help ? CLI_OK : CLI_USAGE;
    }
    printf("%-10s %-7s %-4s %6s   %9s  %-10s %9s\n", "group", "kernel", "type", "cases", "error", "worst in",
           "allowed");
    blurry_status status = blurry_selftest(print_row, NULL);
    if (status == BLURRY_OK && blurry_device_check(BLURRY_DEVICE_CUDA) != BLURRY_OK)
        printf("cuda: no device\n");
    if (status == BLURRY_OK) printf("all kernels agree with the double reference\n");
    return cli_report(status, "selftest");
}
