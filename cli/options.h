/* Command lines of verbs: positional arguments, the verb's own options, and settings as --key value, --set
 * key=value,
 * --config FILE, --preset NAME. Every option takes "--name value" or "--name=value"; dashes in a key stand
 * for underscores (--weight-decay). Presets, then configuration files, then single settings are applied,
 * wherever they stand. */
#ifndef BLURRY_CLI_OPTIONS_H
#define BLURRY_CLI_OPTIONS_H
#include "blurry/settings.h"

/* An option of a verb: one of `value` and `flag` is set. */
typedef struct cli_option {
    const char *name;   /* "--out" */
    const char **value; /* receives the text after it */
    int *flag;          /* receives 1 */
} cli_option;

typedef struct cli_line {
    const char *verb; /* for messages */
    const cli_option *own;
    int own_count;
    blurry_settings *settings; /* NULL: the verb takes no settings */
    const char **positional;   /* [positional_max] */
    int positional_max, positional_count;
} cli_line;

/* Reads argv[1 .. argc-1]. CLI_OK, or CLI_USAGE after a message. */
int options_parse(cli_line *line, int argc, char **argv);

/* "blurry: VERB: message; `blurry VERB --help` describes the options" and CLI_USAGE. */
int options_usage(const char *verb, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Whole numbers and numbers for a verb's own options; 0 when the text is not one. */
int options_integer(const char *text, long long *value);
int options_number(const char *text, double *value);

/* Whether --help or -h is on the line. */
int options_help_wanted(int argc, char **argv);

/* Prints the table of settings of these groups: name, help, mixers or tasks concerned, default, range. */
void options_help(unsigned groups);

#endif
