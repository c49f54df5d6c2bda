/* blurry bench train: one training step of the MQAR model with every mixer: time, tokens per second, peak
 * memory. Each mixer runs in a process of its own, so that its peak memory is its own. */
#include "blurry/train.h"
#include "cli/bench.h"
#include "cli/cli.h"
#include "cli/options.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { REPEATS_MAX = 1000, WARM_UP = 2, GPU_STEPS = 50 }; /* GPU_STEPS: within one measurement */

typedef struct measurement {
    char mixer[64];
    int failed;
    int64_t tokens;                  /* per step */
    double seconds;                  /* median of a step; the mean of two such beside a peer */
    double planned_bytes;            /* by blurry_trainer_bytes */
    double peak_bytes;               /* resident, whole process */
    double peer_seconds, peer_bytes; /* 0: not measured */
} measurement;

/* What the twin must know to build the same model. */
static const char *const shared_keys[] = {"length", "pairs", "vocab", "layers", "width", "heads",
                                          "batch",  "mlp",   "norm",  "tied",   "modes", "decay",
                                          "window", "slots", "state", "conv",   "rope",  "resolution"};

static const char bench_settings[] =
    "task: mqar\nlength: 512\npairs: 64\nvocab: 8192\nlayers: 2\nwidth: 128\nheads: 1\n"
    "batch: 32\nsteps: 100000\nlr: 0.001\nmlp: none\nmodes: 32\nresolution: 2\nslots: 64\n"
    "window: 64\nstate: 64\n";

static void print_help(void)
{
    printf(
        "usage: blurry bench train [--mixer A,B,...] [--repeats N] [--peer] [--json] [--key value ...]\n\n"
        "Times one training step (forward, backward, clipping, AdamW) of the MQAR model: 2 layers, width "
        "128, 8192\n"
        "symbols, batch 32 x 512, 64 pairs, no MLP, logits at labelled rows only. Settings given here "
        "replace\nthose: --mlp swiglu adds the MLP.\n"
        "  --repeats N   steps that are timed; their median is shown (7); with --device cuda each is the "
        "mean of 50\n"
        "  --device cuda --precision bf16   on a GPU\n"
        "  --peer        also run the PyTorch twin, bench/peers/train.py (python3 with torch), between two "
        "measurements of ours, and show the ratio\n"
        "  --script F    where that is\n");
}

/* Seconds per step of `steps` steps, of which only the last is waited for: a GPU works on while the host
 * queues. */
static blurry_status time_steps(blurry_trainer *trainer, int steps, blurry_step *last, double *seconds)
{
    double begin = bench_now();
    blurry_status status = BLURRY_OK;
    for (int i = 0; i < steps && status == BLURRY_OK; i++)
        status = blurry_trainer_step(trainer, i == steps - 1 ? last : NULL);
    *seconds = (bench_now() - begin) / steps;
    return status;
}

/* In the child: runs the steps and fills the measurement. */
static blurry_status measure(const blurry_settings *settings, int repeats, measurement *m)
{
    blurry_trainer *trainer = NULL;
    blurry_step step;
    char device[16] = "";
    double seconds[REPEATS_MAX], ignored;
    blurry_settings_get(settings, "device", device, sizeof device);
    int steps = strcmp(device, "cuda") ? 1 : GPU_STEPS;
    blurry_status status = blurry_trainer_create(settings, &trainer);
    for (int i = 0; i < WARM_UP + repeats && status == BLURRY_OK; i++)
        status = time_steps(trainer, steps, &step, i < WARM_UP ? &ignored : &seconds[i - WARM_UP]);
    if (status == BLURRY_OK) {
        m->seconds = bench_median(seconds, repeats);
        m->tokens = step.tokens;
        m->planned_bytes = (double)blurry_trainer_bytes(trainer);
    }
    blurry_trainer_destroy(&trainer);
    return status;
}

static int measure_in_child(blurry_settings *settings, int repeats, measurement *m)
{
    int pipe_ends[2];
    blurry_status status = blurry_settings_set(settings, "mixer", m->mixer);
    if (status != BLURRY_OK) return cli_report(status, "bench train");
    if (pipe(pipe_ends) != 0) return perror("blurry: bench train: pipe"), CLI_FAILED;
    fflush(stdout);
    pid_t child = fork();
    if (child < 0) return perror("blurry: bench train: fork"), CLI_FAILED;
    if (child == 0) {
        close(pipe_ends[0]);
        int code = cli_report(measure(settings, repeats, m), m->mixer);
        if (write(pipe_ends[1], m, sizeof *m) != (ssize_t)sizeof *m) code = CLI_FAILED;
        _exit(code);
    }
    close(pipe_ends[1]);
    measurement answer;
    int complete = read(pipe_ends[0], &answer, sizeof answer) == (ssize_t)sizeof answer, exit_status = 0;
    close(pipe_ends[0]);
    struct rusage usage;
    if (wait4(child, &exit_status, 0, &usage) != child) return CLI_FAILED;
    m->failed = !complete || !WIFEXITED(exit_status) || WEXITSTATUS(exit_status) != CLI_OK;
    if (m->failed)
        return WIFEXITED(exit_status) && WEXITSTATUS(exit_status) ? WEXITSTATUS(exit_status) : CLI_FAILED;
    *m = answer;
    m->peak_bytes = 1024.0 * (double)usage.ru_maxrss;
    return CLI_OK;
}

/* ---- the PyTorch twin ---- */
static const char *const pythons[] = {"python3", "/usr/bin/python3"};

/* The first Python that has torch; NULL where none has. */
static const char *find_python(void)
{
    char command[128];
    for (size_t i = 0; i < sizeof pythons / sizeof pythons[0]; i++) {
        snprintf(command, sizeof command, "%s -c 'import torch' >/dev/null 2>&1", pythons[i]);
        if (system(command) == 0) return pythons[i];
    }
    return NULL;
}

static void peer_command(char *command, size_t size, const char *python, const char *script,
                         const blurry_settings *settings, const char *mixer, int repeats)
{
    char value[1024];
    blurry_settings_get(settings, "threads", value, sizeof value);
    char device[16] = "";
    blurry_settings_get(settings, "device", device, sizeof device);
    size_t n = (size_t)snprintf(command, size,
                                "%s '%s' --json --mixer %s --steps %d --warm %d --threads %s --device %s",
                                python, script, mixer, repeats, WARM_UP, value, device);
    for (size_t i = 0; i < sizeof shared_keys / sizeof shared_keys[0] && n < size; i++) {
        blurry_settings_get(settings, shared_keys[i], value, sizeof value);
        n += (size_t)snprintf(command + n, size - n, " --set '%s=%s'", shared_keys[i], value);
    }
}

static int run_peer(const char *python, const char *script, const blurry_settings *settings, int repeats,
                    measurement *m)
{
    char command[4096];
    peer_command(command, sizeof command, python, script, settings, m->mixer, repeats);
    FILE *answer = popen(command, "r");
    if (!answer) return CLI_FAILED;
    json_error_t error;
    json_t *root = json_loadf(answer, 0, &error);
    int status = pclose(answer);
    json_t *row = json_array_get(json_object_get(root, "rows"), 0);
    m->peer_seconds = 1e-3 * json_number_value(json_object_get(row, "ms_per_step"));
    m->peer_bytes = 1048576.0 * json_number_value(json_object_get(row, "peak_mb"));
    json_decref(root);
    if (status == 0 && m->peer_seconds > 0) return CLI_OK;
    fprintf(stderr, "blurry: bench train: %s failed for %s\n", script, m->mixer);
    return CLI_FAILED;
}

/* ---- results ---- */
static void print_row(const measurement *m, int with_peer)
{
    printf("%-8s %9.3f %10.0f %10.0f %10.0f", m->mixer, 1e3 * m->seconds, (double)m->tokens / m->seconds,
           m->planned_bytes / 1048576, m->peak_bytes / 1048576);
    if (with_peer)
        printf(" %11.3f %8.2fx %10.0f", 1e3 * m->peer_seconds, m->peer_seconds / m->seconds,
               m->peer_bytes / 1048576);
    putchar('\n');
    fflush(stdout);
}

static json_t *row_json(const measurement *m)
{
    json_t *row = json_pack("{s:s, s:f, s:f, s:f, s:f}", "mixer", m->mixer, "ms_per_step", 1e3 * m->seconds,
                            "tokens_per_second", (double)m->tokens / m->seconds, "planned_bytes",
                            m->planned_bytes, "peak_bytes", m->peak_bytes);
    if (m->peer_seconds > 0) {
        json_object_set_new(row, "peer_ms_per_step", json_real(1e3 * m->peer_seconds));
        json_object_set_new(row, "peer_ratio", json_real(m->peer_seconds / m->seconds));
        json_object_set_new(row, "peer_peak_bytes", json_real(m->peer_bytes));
    }
    return row;
}

typedef struct train_bench {
    blurry_settings *settings;
    const char *mixers; /* "a,b", NULL: all */
    const char *script;
    int repeats, peer, as_json, threads;
} train_bench;

/* The twin, and ours once more behind it: a machine that slows down or speeds up meanwhile does so for both.
 */
static int measure_peer(const train_bench *b, const char *python, measurement *m)
{
    measurement again = *m;
    int code = run_peer(python, b->script, b->settings, b->repeats, m);
    if (code == CLI_OK) code = measure_in_child(b->settings, b->repeats, &again);
    m->seconds = 0.5 * (m->seconds + again.seconds);
    return code;
}

static int run_mixers(const train_bench *b, const char *python, json_t *rows)
{
    char list[1024] = "", *place = NULL;
    int all = !b->mixers || !strcmp(b->mixers, "all");
    for (int i = 0; i < blurry_mixer_count() && all; i++)
        snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s", i ? "," : "", blurry_mixer_name(i));
    if (!all) snprintf(list, sizeof list, "%s", b->mixers);
    for (char *name = strtok_r(list, ",", &place); name; name = strtok_r(NULL, ",", &place)) {
        measurement m = {0};
        snprintf(m.mixer, sizeof m.mixer, "%s", name);
        int code = measure_in_child(b->settings, b->repeats, &m);
        if (code == CLI_OK && python) code = measure_peer(b, python, &m);
        if (code != CLI_OK) return code;
        if (!b->as_json) print_row(&m, python != NULL);
        json_array_append_new(rows, row_json(&m));
    }
    return CLI_OK;
}

static int run_bench(const train_bench *b)
{
    const char *python = NULL;
    if (b->peer) {
        python = access(b->script, R_OK) == 0 ? find_python() : NULL;
        if (!python)
            fprintf(stderr,
                    "blurry: bench train: no peer: it needs %s (run from the source tree, or give --script) "
                    "and a "
                    "python3 with torch\n",
                    b->script);
    }
    if (!b->as_json) {
        char device[16] = "", precision[16] = "";
        blurry_settings_get(b->settings, "device", device, sizeof device);
        blurry_settings_get(b->settings, "precision", precision, sizeof precision);
        printf("MQAR training step on %s, %s, %d threads, median of %d\n", device, precision, b->threads,
               b->repeats);
        printf("%-8s %9s %10s %10s %10s", "mixer", "ms/step", "tokens/s", "plan MiB", "peak MiB");
        if (python) printf(" %11s %9s %10s", "PyTorch ms", "ratio", "peak MiB");
        putchar('\n');
    }
    json_t *rows = json_array();
    int code = run_mixers(b, python, rows);
    if (code == CLI_OK && b->as_json) {
        json_t *root = json_pack("{s:o, s:O}", "machine", bench_machine(b->threads, "train"), "rows", rows);
        json_dumpf(root, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(6));
        putchar('\n');
        json_decref(root);
    }
    json_decref(rows);
    return code;
}

/* The threads asked for, as a number, so that both sides use the same. */
static int settle_threads(blurry_settings *settings)
{
    char text[32];
    long long threads = 0;
    blurry_settings_get(settings, "threads", text, sizeof text);
    options_integer(text, &threads);
    const char *wish = getenv("BLURRY_THREADS");
    if (threads < 1 && (!wish || !options_integer(wish, &threads) || threads < 1))
        threads = sysconf(_SC_NPROCESSORS_ONLN);
    snprintf(text, sizeof text, "%lld", threads);
    blurry_settings_set(settings, "threads", text);
    return (int)threads;
}

int bench_train(int argc, char **argv)
{
    if (options_help_wanted(argc, argv)) {
        print_help();
        return CLI_OK;
    }
    train_bench b = {.script = "bench/peers/train.py"};
    const char *repeats = "7";
    const cli_option own[] = {{.name = "--mixer", .value = &b.mixers},
                              {.name = "--repeats", .value = &repeats},
                              {.name = "--script", .value = &b.script},
                              {.name = "--peer", .flag = &b.peer},
                              {.name = "--json", .flag = &b.as_json}};
    cli_line line = {.verb = "bench train", .own = own, .own_count = sizeof own / sizeof own[0]};
    blurry_status status = blurry_settings_create(&line.settings);
    if (status == BLURRY_OK)
        status =
            blurry_settings_parse_yaml(line.settings, bench_settings, strlen(bench_settings), "bench train");
    int code = status == BLURRY_OK ? options_parse(&line, argc, argv) : cli_report(status, "bench train");
    long long count = 0;
    if (code == CLI_OK && (!options_integer(repeats, &count) || count < 1 || count > REPEATS_MAX))
        code = options_usage("bench train", "repeats is '%s': give 1 .. %d", repeats, REPEATS_MAX);
    b.repeats = (int)count;
    b.settings = line.settings;
    if (code == CLI_OK) b.threads = settle_threads(line.settings);
    if (code == CLI_OK) code = run_bench(&b);
    blurry_settings_destroy(&line.settings);
    return code;
}
