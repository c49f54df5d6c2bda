/* `blurry VERB ...`: finds the verb in verbs.def and hands the rest of the line to it. */
#include "cli/cli.h"

#include <stdio.h>
#include <string.h>

typedef struct verb {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *help;
} verb;

static const verb verbs[] = {
#define VERB(name, help)              {#name, cmd_##name, help},
#define VERB_DASHED(text, name, help) {text, cmd_##name, help},
#include "cli/verbs.def"
};
enum { VERB_COUNT = sizeof verbs / sizeof verbs[0] };

static void print_help(FILE *to)
{
    fprintf(to, "blurry %s: Blurry Window Attention, constant-memory sequence models\n\n", blurry_version());
    fprintf(to, "usage: blurry VERB [arguments]\n\n");
    for (int i = 0; i < VERB_COUNT; i++) fprintf(to, "  %-12s %s\n", verbs[i].name, verbs[i].help);
    fprintf(to, "\n`blurry VERB --help` describes a verb; `blurry --version` prints the version.\n");
}

static int run_verb(int argc, char **argv)
{
    for (int i = 0; i < VERB_COUNT; i++)
        if (!strcmp(argv[0], verbs[i].name)) return verbs[i].run(argc, argv);
    fprintf(stderr, "blurry: unknown verb '%s'; `blurry --help` lists them\n", argv[0]);
    return CLI_USAGE;
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        print_help(stderr);
        return CLI_USAGE;
    }
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") || !strcmp(argv[1], "help")) {
        if (argc > 2) return run_verb(2, (char *[]){argv[2], "--help", NULL}); /* blurry help VERB */
        print_help(stdout);
        return CLI_OK;
    }
    if (!strcmp(argv[1], "--version")) {
        printf("blurry %s\n", blurry_version());
        return CLI_OK;
    }
    return run_verb(argc - 1, argv + 1);
}
