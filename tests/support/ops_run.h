/* One run of a case on one table: its device, its tensors in memory with guards around them, their elements
 * whatever the type. For ops_case.c, which says what must hold between runs. */
#ifndef BLURRY_TEST_OPS_RUN_H
#define BLURRY_TEST_OPS_RUN_H
#include "support/ops_case.h"

/* Which table a run uses: isa -1 is the CPU's reference, OP_CUDA the table of the GPU. */
enum { OP_CUDA = 100, OP_THREADS = 3 };

typedef struct op_run {
    device *dev;
    const op_case *c;
    int rounded; /* activations hold values that bf16 has too: the truth for a run in bf16 */
    void *x[OP_TENSORS], *d[OP_TENSORS];
    size_t bytes[OP_TENSORS], d_bytes[OP_TENSORS];
} op_run;

int op_is_compared(const op_tensor *t);
int op_has_gradient(const op_tensor *t);
int op_is_trained(const op_tensor *t); /* its gradient is added to */

/* Element k of tensor i, and of its gradient. */
double op_run_get(const op_run *r, int i, int64_t k);
void op_run_set(const op_run *r, int i, int64_t k, double value);
double op_run_get_d(const op_run *r, int i, int64_t k);
/* Bytes of one element of a tensor. */
size_t op_run_element(const op_run *r, const op_tensor *t);

op_run op_run_start(const op_case *c, blurry_dtype dtype, int isa, int threads);
/* The same; `rounded`: activations hold values that bf16 has too. */
op_run op_run_start_rounded(const op_case *c, blurry_dtype dtype, int isa, int threads, int rounded);
/* Sets all tensors as they are before a run: inputs, zeros in carried state, NaN in whatever is to be
 * written. */
void op_run_prepare(op_run *r);
void op_run_forward(op_run *r, int64_t first, int64_t count, int carry, int keep);
/* Forward over all tokens, and backward where there is one. */
void op_run_all(op_run *r);
/* Checks the guards and releases everything. */
void op_run_finish(op_run *r);
/* What was lent to the cases so far may be used again. */
void op_lend_again(void);

/* Notes every call through dev->ops, which goes to `table`, for op_coverage_check. */
void op_count_calls(device *dev, const device_ops *table, int isa);

#endif
