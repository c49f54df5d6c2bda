/* What the benchmarks share. A benchmark is one file, bench_<name>.c, and one line in cmd_bench.c.
 *
 * Rules: results are checked before they are timed; every time is a median; a figure that depends on the
 * machine is given as a ratio to something measured in the same run, in turn with it. */
#ifndef BLURRY_CLI_BENCH_H
#define BLURRY_CLI_BENCH_H
#include "blurry/attention.h"
#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

int bench_op(int argc, char **argv);
int bench_decode(int argc, char **argv);
int bench_train(int argc, char **argv);
int bench_sweep(int argc, char **argv);

/* A whole number of at least `least` into *to; text NULL leaves it. CLI_OK, or CLI_USAGE after a message. */
int bench_whole(const char *bench, const char *option, const char *text, long long least, int64_t *to);

double bench_now(void); /* seconds, monotonic */
double bench_median(double *values, int count);
int bench_compare(const void *a, const void *b); /* doubles, ascending */
void bench_random(float *to, int64_t count, uint64_t seed);
/* ||a - b|| / ||b||; NaN where either holds one. */
double bench_error(const float *a, const double *b, int64_t count);
void *bench_alloc(size_t bytes); /* aligned to 64; ends the program with a message when there is none */

/* GFLOP/s of one OpenBLAS sgemm 1024^3 on `threads` threads, one product a call. */
double bench_sgemm(int threads);

/* The threads a plan uses when it is not told. */
int bench_threads(void);

/* "AMD EPYC, 2 threads, avx2": for table heads and JSON. */
json_t *bench_machine(int threads, const char *kernel);

/* A forward or forward+backward of the operator on random data. */
typedef struct bench_problem {
    blurry_attn_desc desc;
    blurry_attn_plan *plan;
    float *q, *k, *v, *o, *d_o, *d_q, *d_k, *d_v;
    void *saved, *workspace;
    size_t workspace_bytes;
} bench_problem;

blurry_status bench_problem_open(bench_problem *p, const blurry_attn_desc *desc, uint64_t seed);
blurry_status bench_problem_forward(bench_problem *p);
blurry_status bench_problem_backward(bench_problem *p);
/* The problem of `desc` by the double-precision reference on the CPU: q, k, v, d_o in, o, d_q, d_k, d_v out.
 */
blurry_status bench_reference(const blurry_attn_desc *desc, double *const exact[8]);
void bench_problem_close(bench_problem *p);

/* Multiply-adds of the operator, forward: per token and head 4 S D for the slots and, counting each chunk's
 * causal half only, (C+1)(D+S) within chunks of C = 64 tokens (docs/operator.md). Backward counts twice as
 * much. */
double bench_forward_macs(const blurry_attn_desc *desc);

/* Runs the PyTorch form of the operator on the same inputs: seconds of forward and of forward+backward, and
 * the largest relative difference of o, d_q, d_k, d_v. 1 on success; 0 after a message that says what is
 * missing. */
typedef struct bench_peer_result {
    double forward, both, difference;
} bench_peer_result;
int bench_peer_operator(const bench_problem *p, const char *script, const char *style,
                        bench_peer_result *result);

#endif
