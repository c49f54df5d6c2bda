/* What the verbs share. A verb is one file, cmd_<verb>.c, and one line in verbs.def; it sees include/blurry
 * only. */
#ifndef BLURRY_CLI_H
#define BLURRY_CLI_H
#include "blurry/status.h"

enum {
    CLI_OK = 0,
    CLI_FAILED = 1, /* the work was tried and failed */
    CLI_USAGE = 2   /* the command line, a configuration or an input file is wrong: nothing was done */
};

#define VERB(name, help)              int cmd_##name(int argc, char **argv);
#define VERB_DASHED(text, name, help) int cmd_##name(int argc, char **argv);
#include "cli/verbs.def"

/* Prints "blurry: <context>: <last error>" and returns CLI_USAGE for bad input, CLI_FAILED otherwise. */
int cli_report(blurry_status status, const char *context);
/* The same where only input was read so far: a file that cannot be read is CLI_USAGE too. */
int cli_report_input(blurry_status status, const char *context);

#endif
