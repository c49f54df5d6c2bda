/* `blurry bench decode`: one token for each of a batch of sequences, beside the time to read all the state
 * once. */
#include "cli/bench.h"
#include "cli/bench_cuda.h"
#include "cli/cli.h"
#include "cli/options.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "usage: blurry bench decode [options]\n\n"
    "  --batch N      sequences (default 64)      --heads N   (default 8)\n"
    "  --dim N        head width (default 64)     --modes N   S = 2N-1 slots (default 64)\n"
    "  --threads N    (default: all cores)        --no-decay\n"
    "  --steps N      timed steps (default 400)   --json\n"
    "  --soak N       then N steps of one sequence: does resident memory stay flat?\n"
    "  --device D     cpu (default) or cuda: on a GPU, batches 1, 32, 128, 512 and 16 heads unless given\n"
    "  --precision P  with cuda: type of the tokens, bf16 (default) or f32\n"
    "  --state P      with cuda: type of the slots, f32 (default) or bf16\n\n"
    "'read' is the time to read the slots of all sequences once, from memory, on the same threads.\n";

typedef struct options {
    int64_t batch, heads, dim, modes, steps, soak;
    int threads, decay, json;
} options;

typedef struct decoder {
    blurry_attn_plan *plan;
    float *q, *k, *v, *o;
    void **states;
    char *state_memory;
    void *workspace;
    size_t workspace_bytes, state_bytes;
    int64_t count;
} decoder;

static blurry_status decoder_open(decoder *x, const options *o, int reference, blurry_dtype dtype)
{
    memset(x, 0, sizeof *x);
    blurry_attn_desc d;
    blurry_attn_desc_init(&d);
    d.batch = o->batch, d.length = 1, d.heads = o->heads, d.dim_k = o->dim, d.modes = o->modes;
    d.threads = o->threads, d.decay = o->decay, d.reference = reference, d.dtype = dtype;
    blurry_status status = blurry_attn_plan_create(&x->plan, &d);
    if (status != BLURRY_OK) return status;
    x->count = o->batch;
    x->state_bytes = blurry_attn_state_bytes(x->plan);
    x->state_memory = bench_alloc(x->state_bytes * (size_t)o->batch);
    x->states = bench_alloc(sizeof *x->states * (size_t)o->batch);
    x->workspace_bytes = blurry_attn_step_workspace(x->plan);
    x->workspace = bench_alloc(x->workspace_bytes);
    size_t bytes = (size_t)(o->batch * o->heads * o->dim) * (dtype == BLURRY_F64 ? 8 : 4);
    x->q = bench_alloc(bytes), x->k = bench_alloc(bytes), x->v = bench_alloc(bytes),
    x->o = bench_alloc(bytes);
    for (int64_t i = 0; i < o->batch && status == BLURRY_OK; i++) {
        x->states[i] = x->state_memory + (size_t)i * x->state_bytes;
        status = blurry_attn_state_init(x->plan, x->states[i]);
    }
    return status;
}

static void decoder_close(decoder *x)
{
    blurry_attn_plan_destroy(&x->plan);
    void *memory[] = {x->q, x->k, x->v, x->o, x->states, x->state_memory, x->workspace};
    for (size_t i = 0; i < sizeof memory / sizeof memory[0]; i++) free(memory[i]);
}

static blurry_status decoder_step(decoder *x)
{
    blurry_attn_step_args a = {.count = x->count,
                               .q = x->q,
                               .k = x->k,
                               .v = x->v,
                               .o = x->o,
                               .states = x->states,
                               .workspace = x->workspace,
                               .workspace_bytes = x->workspace_bytes};
    return blurry_attn_step(x->plan, &a);
}

/* Moves every sequence to `position`, with slots of random numbers. */
static blurry_status decoder_place(decoder *x, const options *o, int64_t position)
{
    int64_t slots = o->heads * (2 * o->modes - 1) * o->dim;
    float *k = bench_alloc((size_t)slots * 4), *v = bench_alloc((size_t)slots * 4);
    blurry_status status = BLURRY_OK;
    for (int64_t i = 0; i < o->batch && status == BLURRY_OK; i++) {
        bench_random(k, slots, 100 + 2 * (uint64_t)i);
        bench_random(v, slots, 101 + 2 * (uint64_t)i);
        status = blurry_attn_state_set(x->plan, x->states[i], position, k, v);
    }
    free(k);
    free(v);
    return status;
}

/* Steps of the fast kernels against the double-precision reference: the largest relative error over 40
 * tokens. */
static double check(const options *all)
{
    options o = *all;
    o.batch = o.batch < 3 ? o.batch : 3;
    decoder fast, exact;
    double worst = 0;
    if (decoder_open(&fast, &o, 0, BLURRY_F32) != BLURRY_OK ||
        decoder_open(&exact, &o, 1, BLURRY_F64) != BLURRY_OK)
        return NAN;
    int64_t n = o.batch * o.heads * o.dim;
    for (int step = 0; step < 40; step++) {
        float *single[3] = {fast.q, fast.k, fast.v}, *wide[3] = {exact.q, exact.k, exact.v};
        for (int i = 0; i < 3; i++) {
            bench_random(single[i], n, (uint64_t)(3 * step + i));
            for (int64_t j = 0; j < n; j++) ((double *)(void *)wide[i])[j] = single[i][j];
        }
        if (decoder_step(&fast) != BLURRY_OK || decoder_step(&exact) != BLURRY_OK) return NAN;
        worst = fmax(worst, bench_error(fast.o, (double *)(void *)exact.o, n));
    }
    decoder_close(&fast);
    decoder_close(&exact);
    return worst;
}

typedef struct reader {
    const char *from;
    size_t bytes;
    double sum;
} reader;

/* Reads as memcpy does, but writes nothing: wide loads, several in flight. */
static void *read_all(void *argument)
{
    reader *r = argument;
    typedef uint64_t wide __attribute__((vector_size(64), aligned(64)));
    wide sum[4] = {{0}, {0}, {0}, {0}};
    const wide *at = (const wide *)(const void *)r->from;
    for (size_t i = 0; i + 4 <= r->bytes / sizeof(wide); i += 4)
        for (int j = 0; j < 4; j++) sum[j] ^= at[i + (size_t)j];
    for (int j = 0; j < 4; j++)
        for (int i = 0; i < 8; i++) r->sum += (double)sum[j][i];
    return NULL;
}

static double read_seconds(const decoder *x, const options *o)
{
    enum { MOST = 256 };
    pthread_t thread[MOST];
    reader part[MOST];
    int threads = o->threads < MOST ? o->threads : MOST;
    size_t bytes = (size_t)(blurry_attn_state_elements(x->plan) * o->batch) * sizeof(float);
    size_t share = bytes / (size_t)threads / 256 * 256;
    /* threads are started before and joined after the clock in turn: their start costs little beside 33 MB */
    double start = bench_now();
    for (int i = 0; i < threads; i++) {
        part[i] = (reader){x->state_memory + (size_t)i * share, share, 0};
        if (i + 1 < threads)
            pthread_create(&thread[i], NULL, read_all, &part[i]);
        else
            read_all(&part[i]);
    }
    for (int i = 0; i + 1 < threads; i++) pthread_join(thread[i], NULL);
    return bench_now() - start;
}

static long resident_kilobytes(void)
{
    long pages = 0, total = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (f && fscanf(f, "%ld %ld", &total, &pages) != 2) pages = 0;
    if (f) fclose(f);
    return pages * 4;
}

typedef struct timings {
    double near, far, reading; /* seconds: a step at position 10^3, at 10^6, reading the state once */
    double over_reading;       /* medians of ratios taken within one round */
    double far_over_near;
} timings;

enum { ROUNDS = 9, NEAR = 1000, FAR = 1000000 };

/* The mean of `steps` steps from `position`: folding is not done at every step, so the mean is what a user
 * pays. */
static blurry_status time_steps(decoder *x, const options *o, int64_t position, int64_t steps,
                                double *seconds)
{
    blurry_status status = decoder_place(x, o, position);
    for (int i = 0; i < 32 && status == BLURRY_OK; i++)
        status = decoder_step(x); /* warm-up: pending tokens fill up */
    double start = bench_now();
    for (int64_t i = 0; i < steps && status == BLURRY_OK; i++) status = decoder_step(x);
    *seconds = (bench_now() - start) / (double)steps;
    return status;
}

/* Rounds of near, reading, far: what disturbs the machine for a while disturbs all three. */
static blurry_status measure(decoder *x, const options *o, timings *out)
{
    double near[ROUNDS], far[ROUNDS], reading[ROUNDS], over[ROUNDS], ratio[ROUNDS];
    int64_t steps = o->steps / ROUNDS + 1;
    blurry_status status = BLURRY_OK;
    for (int i = 0; i < ROUNDS && status == BLURRY_OK; i++) {
        status = time_steps(x, o, NEAR, steps, &near[i]);
        double reads[5];
        for (int j = 0; j < 5; j++) reads[j] = read_seconds(x, o);
        reading[i] = bench_median(reads, 5);
        if (status == BLURRY_OK) status = time_steps(x, o, FAR, steps, &far[i]);
        over[i] = near[i] / reading[i], ratio[i] = far[i] / near[i];
    }
    if (status == BLURRY_OK)
        *out = (timings){bench_median(near, ROUNDS), bench_median(far, ROUNDS), bench_median(reading, ROUNDS),
                         bench_median(over, ROUNDS), bench_median(ratio, ROUNDS)};
    return status;
}

/* Resident memory gained over o->soak steps of one sequence, in kB. */
static blurry_status soak(const options *all, long *growth)
{
    options o = *all;
    o.batch = 1;
    decoder x;
    blurry_status status = decoder_open(&x, &o, 0, BLURRY_F32);
    if (status != BLURRY_OK) return status;
    int64_t n = o.heads * o.dim;
    bench_random(x.q, n, 1);
    bench_random(x.k, n, 2);
    bench_random(x.v, n, 3);
    for (int i = 0; i < 1000 && status == BLURRY_OK; i++) status = decoder_step(&x);
    long before = resident_kilobytes();
    for (int64_t i = 0; i < o.soak && status == BLURRY_OK; i++) status = decoder_step(&x);
    *growth = resident_kilobytes() - before;
    decoder_close(&x);
    return status;
}

static void print_json(const options *o, const decoder *x, const timings *t, double megabytes, double error,
                       long growth)
{
    json_t *root = json_pack(
        "{s:o, s:I, s:I, s:I, s:I, s:b, s:f, s:f, s:f, s:f, s:f, s:f}", "machine",
        bench_machine(o->threads, blurry_attn_plan_kernel(x->plan)), "batch", (json_int_t)o->batch, "heads",
        (json_int_t)o->heads, "dim", (json_int_t)o->dim, "slots", (json_int_t)(2 * o->modes - 1), "decay",
        o->decay, "state_mb", megabytes, "step_ms", 1e3 * t->near, "read_ms", 1e3 * t->reading,
        "step_over_read", t->over_reading, "far_over_near", t->far_over_near, "error", error);
    if (o->soak) {
        json_object_set_new(root, "soak_steps", json_integer(o->soak));
        json_object_set_new(root, "resident_growth_kb", json_integer(growth));
    }
    json_dumpf(root, stdout, JSON_INDENT(1));
    printf("\n");
    json_decref(root);
}

static void print_table(const options *o, const decoder *x, const timings *t, double megabytes, double error,
                        long growth)
{
    printf("blurry %s, decode, %s kernels, %d threads: batch %lld, H=%lld, D=%lld, S=%lld, %s, %.1f MB of "
           "state\n",
           blurry_version(), blurry_attn_plan_kernel(x->plan), o->threads, (long long)o->batch,
           (long long)o->heads, (long long)o->dim, (long long)(2 * o->modes - 1),
           o->decay ? "decay" : "no decay", megabytes);
    printf("  step at position 10^3   %8.3f ms   %.0f tokens/s\n", 1e3 * t->near, (double)o->batch / t->near);
    printf("  step at position 10^6   %8.3f ms   %.3f of that at 10^3\n", 1e3 * t->far, t->far_over_near);
    printf("  reading the state once  %8.3f ms   %.1f GB/s\n", 1e3 * t->reading,
           1e-3 * megabytes / t->reading);
    printf("  step over reading       %8.3f\n", t->over_reading);
    printf("  error against double    %8.1e\n", error);
    if (o->soak)
        printf("  resident memory         %8ld kB more after %lld steps\n", growth, (long long)o->soak);
}

static int run(options *o)
{
    double error = check(o);
    decoder x;
    timings t;
    long growth = 0;
    blurry_status status = decoder_open(&x, o, 0, BLURRY_F32);
    if (status != BLURRY_OK) return cli_report(status, "bench decode");
    int64_t n = o->batch * o->heads * o->dim;
    bench_random(x.q, n, 1);
    bench_random(x.k, n, 2);
    bench_random(x.v, n, 3);
    status = measure(&x, o, &t);
    if (status == BLURRY_OK && o->soak) status = soak(o, &growth);
    if (status != BLURRY_OK) return cli_report(status, "bench decode");
    double megabytes = 4e-6 * (double)(blurry_attn_state_elements(x.plan) * o->batch);
    (o->json ? print_json : print_table)(o, &x, &t, megabytes, error, growth);
    decoder_close(&x);
    if (error < 2e-5) return CLI_OK;
    fprintf(stderr, "blurry: bench decode: the error %.1e is above 2e-5\n", error);
    return CLI_FAILED;
}

int bench_decode(int argc, char **argv)
{
    static const int64_t gpu_batches[] = {1, 32, 128, 512};
    options o = {.batch = 64, .heads = 8, .dim = 64, .modes = 64, .steps = 400};
    bench_target target = {0};
    int no_decay = 0;
    int64_t threads = 0;
    const struct {
        const char *name;
        int64_t *to;
    } numbers[] = {{"--batch", &o.batch}, {"--heads", &o.heads},   {"--dim", &o.dim},  {"--modes", &o.modes},
                   {"--steps", &o.steps}, {"--threads", &threads}, {"--soak", &o.soak}};
    enum { NUMBERS = sizeof numbers / sizeof numbers[0] };
    const char *text[NUMBERS] = {0};
    cli_option own[NUMBERS + 5] = {[NUMBERS] = {"--no-decay", NULL, &no_decay},
                                   {"--json", NULL, &o.json},
                                   {"--device", &target.device, NULL},
                                   {"--precision", &target.precision, NULL},
                                   {"--state", &target.state, NULL}};
    for (int i = 0; i < NUMBERS; i++) own[i] = (cli_option){numbers[i].name, &text[i], NULL};
    cli_line line = {.verb = "bench decode", .own = own, .own_count = NUMBERS + 5};
    if (options_help_wanted(argc, argv)) {
        fputs(usage, stdout);
        return CLI_OK;
    }
    if (options_parse(&line, argc, argv) != CLI_OK) return CLI_USAGE;
    for (int i = 0; i < NUMBERS; i++)
        if (bench_whole("bench decode", numbers[i].name, text[i], 1, numbers[i].to) != CLI_OK)
            return CLI_USAGE;
    if (bench_target_read("bench decode", &target) != CLI_OK) return CLI_USAGE;
    o.decay = !no_decay;
    if (target.cuda)
        return bench_decode_cuda(&target, text[0] ? &o.batch : gpu_batches, text[0] ? 1 : 4,
                                 text[1] ? o.heads : 16, o.dim, o.modes, o.decay, o.json);
    o.threads = threads ? (int)threads : bench_threads();
    return run(&o);
}
