/* What the benchmarks on CUDA share: tensors in device memory, the operator on them, times in microseconds.
 */
#ifndef BLURRY_CLI_BENCH_CUDA_H
#define BLURRY_CLI_BENCH_CUDA_H
#include "blurry/device.h"
#include "cli/bench.h"

/* What --device, --precision and --state say. */
typedef struct bench_target {
    const char *device, *precision, *state; /* as given; NULL: not */
    int cuda;
    blurry_dtype dtype, state_dtype;
} bench_target;

/* Reads the words; CLI_OK, or CLI_USAGE after a message. On the CPU float is the only choice. */
int bench_target_read(const char *bench, bench_target *target);

const char *bench_type_name(blurry_dtype dtype);
size_t bench_element(blurry_dtype dtype);
double bench_tolerance(blurry_dtype dtype); /* 1e-4, bf16 2e-2 */

/* `count` elements of device memory: random ones in (-1, 1), the same for a seed; large tensors repeat
 * themselves. seed 0: zeros. */
blurry_status bench_gpu_tensor(void **to, int64_t count, blurry_dtype dtype, uint64_t seed);
/* The elements of device memory as floats. */
blurry_status bench_gpu_read(float *to, const void *from, int64_t count, blurry_dtype dtype);

/* A forward or forward+backward on the GPU. */
typedef struct bench_gpu_problem {
    blurry_attn_desc desc;
    blurry_attn_plan *plan;
    void *q, *k, *v, *o, *d_o, *d_q, *d_k, *d_v, *saved, *workspace;
    size_t workspace_bytes, saved_bytes;
    int with_backward;
} bench_gpu_problem;

blurry_status bench_gpu_open(bench_gpu_problem *p, const blurry_attn_desc *desc, int with_backward);
void bench_gpu_close(bench_gpu_problem *p);
/* A blurry_work: forward, and backward where the problem has one. */
blurry_status bench_gpu_pass(void *problem, blurry_stream stream);

/* The median of graph replays, in seconds per call. */
blurry_status bench_gpu_time(blurry_work work, void *context, int repeats, int calls, double *seconds);

int bench_op_cuda(const bench_target *target, int repeats, int quick, int json);
int bench_decode_cuda(const bench_target *target, const int64_t *batches, int count, int64_t heads,
                      int64_t dim, int64_t modes, int decay, int json);

#endif
