/* `blurry bench WHAT`: measures this machine. */
#include "cli/bench.h"
#include "cli/cli.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *name, *help;
    int (*run)(int argc, char **argv);
} benchmarks[] = {
    {"op", "the operator, forward and forward+backward, beside OpenBLAS sgemm", bench_op},
    {"decode", "one token for a batch of sequences, beside streaming the state", bench_decode},
    {"train", "one training step of the MQAR model with every mixer, beside PyTorch", bench_train},
    {"sweep", "runs per hour, many small trainings at once against one after another", bench_sweep},
};
enum { BENCHMARKS = sizeof benchmarks / sizeof benchmarks[0] };

static void help(FILE *to)
{
    fprintf(to, "usage: blurry bench WHAT [options]\n\n");
    for (int i = 0; i < BENCHMARKS; i++) fprintf(to, "  %-8s %s\n", benchmarks[i].name, benchmarks[i].help);
    fprintf(to,
            "\n`blurry bench WHAT --help` lists the options. Results are checked before they are timed.\n");
}

int cmd_bench(int argc, char **argv)
{
    if (argc < 2) {
        help(stderr);
        return CLI_USAGE;
    }
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h")) {
        help(stdout);
        return CLI_OK;
    }
    for (int i = 0; i < BENCHMARKS; i++)
        if (!strcmp(argv[1], benchmarks[i].name)) return benchmarks[i].run(argc - 1, argv + 1);
    fprintf(stderr, "blurry: bench: no benchmark '%s'; `blurry bench --help` lists them\n", argv[1]);
    return CLI_USAGE;
}
