/* `blurry bench op`: the operator on whole sequences. Each row times sgemm, forward and forward+backward in
 * turn, so that a busy machine slows all of them alike. */
#include "cli/bench.h"
#include "cli/bench_cuda.h"
#include "cli/cli.h"
#include "cli/options.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "usage: blurry bench op [options]\n\n"
    "  --threads N     threads (default: all cores)\n"
    "  --repeats N     timed runs per row; the median counts (default 9)\n"
    "  --quick         only the first rows\n"
    "  --peer          also run the PyTorch form of the operator (python3 with torch) on the same inputs\n"
    "  --peer-script F its script (default bench/peers/operator.py)\n"
    "  --device D      cpu (default) or cuda: the operator on a GPU, at other shapes, without sgemm and "
    "peer\n"
    "  --precision P   with cuda: bf16 (default) or f32\n"
    "  --json          one JSON object instead of tables\n\n"
    "GFLOP/s counts the multiply-adds of docs/operator.md: per token and head 4 S D + (C+1)(D+S), C = 64, "
    "and\n"
    "three times that for forward+backward. 'of sgemm' is the share of OpenBLAS sgemm 1024^3 on the same "
    "threads.\n";

typedef struct options {
    int threads, repeats, quick, peer, json;
    const char *script;
} options;

typedef struct row {
    const char *name;
    int64_t length, heads, modes;
    double resolution;
    int decay;
    blurry_grid grid;
    int threads; /* 0: as the options say */
} row;

typedef struct result {
    double forward, both;             /* seconds */
    double forward_share, both_share; /* of the sgemm timed just before */
    double sgemm, error;              /* GFLOP/s; relative error of all outputs */
} result;

static blurry_attn_desc describe(const row *r, const options *o)
{
    blurry_attn_desc d;
    blurry_attn_desc_init(&d);
    d.length = r->length, d.heads = r->heads, d.modes = r->modes, d.resolution = r->resolution;
    d.decay = r->decay, d.grid = r->grid, d.threads = r->threads ? r->threads : o->threads;
    return d;
}

/* The same problem, shortened, against the double-precision reference: the largest relative error of o and
 * the gradients. NaN when something failed. */
static double check(const row *r, const options *o)
{
    bench_problem fast = {0};
    blurry_attn_desc d = describe(r, o);
    d.length = d.length < 640 ? d.length : 640;
    if (bench_problem_open(&fast, &d, 7) != BLURRY_OK) return NAN;
    d = fast.desc;
    double worst = NAN;
    int64_t tokens = d.batch * d.length;
    int64_t count[8] = {tokens * d.heads * d.dim_k,    tokens * d.heads_kv * d.dim_k,
                        tokens * d.heads_kv * d.dim_v, tokens * d.heads * d.dim_v,
                        tokens * d.heads * d.dim_v,    tokens * d.heads * d.dim_k,
                        tokens * d.heads_kv * d.dim_k, tokens * d.heads_kv * d.dim_v};
    const float *single[8] = {fast.q, fast.k, fast.v, fast.d_o, fast.o, fast.d_q, fast.d_k, fast.d_v};
    double *exact[8];
    for (int i = 0; i < 8; i++) {
        exact[i] = bench_alloc((size_t)count[i] * sizeof(double));
        for (int64_t j = 0; i < 4 && j < count[i]; j++) exact[i][j] = single[i][j];
    }
    if (bench_reference(&d, exact) == BLURRY_OK && bench_problem_forward(&fast) == BLURRY_OK &&
        bench_problem_backward(&fast) == BLURRY_OK) {
        worst = 0;
        for (int i = 4; i < 8; i++) worst = fmax(worst, bench_error(single[i], exact[i], count[i]));
    }
    for (int i = 0; i < 8; i++) free(exact[i]);
    bench_problem_close(&fast);
    return worst;
}

static double rate(const row *r, const options *o, double seconds, double passes)
{
    blurry_attn_desc d = describe(r, o);
    d.dim_v = d.dim_k;
    return 2e-9 * passes * bench_forward_macs(&d) / seconds;
}

static blurry_status measure(const row *r, const options *o, result *out)
{
    enum { MOST = 101 };
    double forward[MOST], both[MOST], sgemm[MOST], forward_share[MOST], both_share[MOST];
    bench_problem p;
    blurry_attn_desc d = describe(r, o);
    out->error = check(r, o);
    blurry_status status = bench_problem_open(&p, &d, 1);
    if (status != BLURRY_OK) return status;
    int repeats = o->repeats < MOST ? o->repeats : MOST;
    for (int i = -1; i < repeats && status == BLURRY_OK; i++) { /* the first round warms up */
        double peak = bench_sgemm(d.threads), start = bench_now();
        status = bench_problem_forward(&p);
        double middle = bench_now();
        if (status == BLURRY_OK) status = bench_problem_backward(&p);
        if (i < 0) continue;
        sgemm[i] = peak, forward[i] = middle - start, both[i] = bench_now() - start;
        forward_share[i] = rate(r, o, forward[i], 1) / peak, both_share[i] = rate(r, o, both[i], 3) / peak;
    }
    if (status == BLURRY_OK) {
        out->forward = bench_median(forward, repeats), out->both = bench_median(both, repeats);
        out->sgemm = bench_median(sgemm, repeats);
        out->forward_share = bench_median(forward_share, repeats);
        out->both_share = bench_median(both_share, repeats);
    }
    bench_problem_close(&p);
    return status;
}

/* The median of B's forward time over A's, timed in turn: what the machine does meanwhile hits both. */
static double compare(const row *a, const row *b, const options *o)
{
    enum { MOST = 101 };
    double ratios[MOST];
    bench_problem x, y;
    blurry_attn_desc dx = describe(a, o), dy = describe(b, o);
    if (bench_problem_open(&x, &dx, 1) != BLURRY_OK) return NAN;
    if (bench_problem_open(&y, &dy, 1) != BLURRY_OK) {
        bench_problem_close(&x);
        return NAN;
    }
    int repeats = 3 * o->repeats < MOST ? 3 * o->repeats : MOST;
    for (int i = -1; i < repeats; i++) {
        double start = bench_now();
        bench_problem_forward(&x);
        double middle = bench_now();
        bench_problem_forward(&y);
        double end = bench_now();
        if (i >= 0) ratios[i] = (end - middle) / (middle - start);
    }
    bench_problem_close(&x);
    bench_problem_close(&y);
    return bench_median(ratios, repeats);
}

static void report(const row *r, const options *o, const result *x, json_t *rows)
{
    double f = rate(r, o, x->forward, 1), b = rate(r, o, x->both, 3);
    int threads = r->threads ? r->threads : o->threads;
    if (!o->json)
        printf("%-16s %6lld %2lld %4lld %5.4g %-5s %3d  %8.2f %7.1f %4.0f%%  %8.2f %7.1f %4.0f%%  %.1e\n",
               r->name, (long long)r->length, (long long)r->heads, (long long)(2 * r->modes - 1),
               r->resolution, r->decay ? "decay" : "none", threads, 1e3 * x->forward, f,
               100 * x->forward_share, 1e3 * x->both, b, 100 * x->both_share, x->error);
    fflush(stdout);
    json_array_append_new(
        rows, json_pack("{s:s, s:I, s:I, s:I, s:f, s:b, s:i, s:f, s:f, s:f, s:f, s:f, s:f}", "name", r->name,
                        "length", (json_int_t)r->length, "heads", (json_int_t)r->heads, "slots",
                        (json_int_t)(2 * r->modes - 1), "resolution", r->resolution, "decay", r->decay,
                        "threads", threads, "forward_ms", 1e3 * x->forward, "both_ms", 1e3 * x->both,
                        "sgemm_gflops", x->sgemm, "forward_of_sgemm", x->forward_share, "both_of_sgemm",
                        x->both_share, "error", isfinite(x->error) ? x->error : -1.0));
}

static void ratio(const options *o, json_t *ratios, const char *name, double value, const char *meaning)
{
    if (!o->json) printf("  %-22s %6.3f  %s\n", name, value, meaning);
    json_object_set_new(ratios, name, json_real(value));
}

/* One shape against PyTorch in both styles; `ours` is timed before and after it, and the mean counts. */
static int peer_shape(const row *shape, const options *o, json_t *list)
{
    static const char *const styles[] = {"autograd", "written"};
    blurry_attn_desc d = describe(shape, o);
    bench_problem p;
    if (bench_problem_open(&p, &d, 1) != BLURRY_OK) return 0;
    bench_problem_forward(&p);
    bench_problem_backward(&p);
    int good = 1;
    for (int i = 0; good && i < 2; i++) {
        result before, after;
        bench_peer_result theirs;
        if (measure(shape, o, &before) != BLURRY_OK) return 0;
        good =
            bench_peer_operator(&p, o->script, styles[i], &theirs) && measure(shape, o, &after) == BLURRY_OK;
        if (!good) break;
        double forward = 0.5 * (before.forward + after.forward), both = 0.5 * (before.both + after.both);
        good = theirs.difference < 1e-4;
        if (!o->json)
            printf("  %-8s %-9s forward %6.1f : %5.1f = %5.2fx   forward+backward %6.1f : %5.1f = %5.2fx   "
                   "results "
                   "differ by %.1e%s\n",
                   shape->decay ? "decay" : "no decay", styles[i], 1e3 * theirs.forward, 1e3 * forward,
                   theirs.forward / forward, 1e3 * theirs.both, 1e3 * both, theirs.both / both,
                   theirs.difference, good ? "" : "  MISMATCH");
        json_array_append_new(list,
                              json_pack("{s:b, s:s, s:f, s:f, s:f}", "decay", shape->decay, "style",
                                        styles[i], "forward_ratio", theirs.forward / forward, "both_ratio",
                                        theirs.both / both, "difference", theirs.difference));
    }
    bench_problem_close(&p);
    return good;
}

static int peer(const options *o, json_t *root)
{
    row shape = {"peer", 4096, 4, 64, 2, 0, BLURRY_GRID_ABSOLUTE, 0};
    json_t *list = json_array();
    if (!o->json)
        printf("\nPyTorch, the operator in matrix products, L=4096 H=4 D=64 S=127, same inputs and threads "
               "(ms)\n");
    int good = peer_shape(&shape, o, list);
    shape.decay = 1;
    good = good && peer_shape(&shape, o, list);
    json_object_set_new(root, "peer", list);
    return good;
}

/* Rows 0..3 are the shapes of the targets; the others show length, threads, real periods and the other grid.
 */
static const row rows[] = {
    {"slots 63", 8192, 1, 32, 2, 0, BLURRY_GRID_ABSOLUTE, 0},
    {"slots 63", 8192, 1, 32, 2, 1, BLURRY_GRID_ABSOLUTE, 0},
    {"slots 127", 8192, 1, 64, 2, 0, BLURRY_GRID_ABSOLUTE, 0},
    {"slots 127", 8192, 1, 64, 2, 1, BLURRY_GRID_ABSOLUTE, 0},
    {"one thread", 8192, 1, 64, 2, 0, BLURRY_GRID_ABSOLUTE, 1},
    {"short", 4096, 1, 64, 2, 1, BLURRY_GRID_ABSOLUTE, 0},
    {"long", 65536, 1, 64, 2, 1, BLURRY_GRID_ABSOLUTE, 0},
    {"four heads", 8192, 4, 64, 2, 1, BLURRY_GRID_ABSOLUTE, 0},
    {"real period", 8192, 1, 64, 2.3, 1, BLURRY_GRID_ABSOLUTE, 0},
    {"relative grid", 8192, 1, 64, 2, 0, BLURRY_GRID_RELATIVE, 0},
};
enum { ROWS = sizeof rows / sizeof rows[0], QUICK_ROWS = 4 };

static int run(const options *o)
{
    result results[ROWS];
    blurry_attn_desc d = describe(&rows[0], o);
    blurry_attn_plan *plan = NULL;
    if (blurry_attn_plan_create(&plan, &d) != BLURRY_OK) return cli_report(BLURRY_E_INVALID, "bench op");
    json_t *root = json_pack("{s:o}", "machine", bench_machine(o->threads, blurry_attn_plan_kernel(plan)));
    json_t *list = json_array(), *ratios = json_object();
    if (!o->json) {
        printf("blurry %s, operator, %s kernels, %d threads, float32, B=1 D=64, medians of %d\n",
               blurry_version(), blurry_attn_plan_kernel(plan), o->threads, o->repeats);
        printf("%-16s %6s %2s %4s %5s %-5s %3s  %8s %7s %5s  %8s %7s %5s  %s\n", "", "L", "H", "S", "T/S",
               "decay", "thr", "fwd ms", "GFLOP/s", "sgemm", "f+b ms", "GFLOP/s", "sgemm", "error");
    }
    blurry_attn_plan_destroy(&plan);
    int count = o->quick ? QUICK_ROWS : ROWS, rc = CLI_OK;
    for (int i = 0; i < count; i++) {
        blurry_status status = measure(&rows[i], o, &results[i]);
        if (status != BLURRY_OK) return cli_report(status, rows[i].name);
        if (!(results[i].error < 2e-5)) rc = CLI_FAILED;
        report(&rows[i], o, &results[i], list);
    }
    if (!o->json) printf("\n");
    ratio(o, ratios, "decay_63", compare(&rows[0], &rows[1], o), "forward with decay over without, S=63");
    ratio(o, ratios, "decay_127", compare(&rows[2], &rows[3], o), "forward with decay over without, S=127");
    if (!o->quick) {
        ratio(o, ratios, "length", compare(&rows[5], &rows[6], o) / 16, "L=65536 over 16 times L=4096");
        ratio(o, ratios, "threads", compare(&rows[2], &rows[4], o), "speed-up over one thread, B=H=1");
    }
    json_object_set_new(root, "rows", list);
    json_object_set_new(root, "ratios", ratios);
    if (o->peer && !peer(o, root)) rc = CLI_FAILED;
    if (o->json) {
        json_dumpf(root, stdout, JSON_INDENT(1));
        printf("\n");
    }
    json_decref(root);
    if (rc != CLI_OK)
        fprintf(stderr, "blurry: bench op: a check failed or a part could not run; see above\n");
    return rc;
}

int bench_op(int argc, char **argv)
{
    options o = {.script = "bench/peers/operator.py"};
    const char *threads = NULL, *repeats = NULL;
    int64_t n_threads = 0, n_repeats = 9;
    bench_target target = {0};
    const cli_option own[] = {{"--threads", &threads, NULL},      {"--repeats", &repeats, NULL},
                              {"--peer-script", &o.script, NULL}, {"--quick", NULL, &o.quick},
                              {"--peer", NULL, &o.peer},          {"--json", NULL, &o.json},
                              {"--device", &target.device, NULL}, {"--precision", &target.precision, NULL}};
    cli_line line = {.verb = "bench op", .own = own, .own_count = sizeof own / sizeof own[0]};
    if (options_help_wanted(argc, argv)) {
        fputs(usage, stdout);
        return CLI_OK;
    }
    if (options_parse(&line, argc, argv) != CLI_OK ||
        bench_whole("bench op", "--threads", threads, 1, &n_threads) ||
        bench_whole("bench op", "--repeats", repeats, 1, &n_repeats) ||
        bench_target_read("bench op", &target))
        return CLI_USAGE;
    if (target.cuda) return bench_op_cuda(&target, (int)n_repeats, o.quick, o.json);
    o.repeats = (int)n_repeats, o.threads = n_threads ? (int)n_threads : bench_threads();
    return run(&o);
}
