/* Cases for the operations of the device table: one description serves comparison against the double
 * reference, finite differences, reruns with other thread counts, splitting with carried state, and
 * causality. Programs built with BLURRY_TEST_CUDA check the CUDA tables with the same cases. */
#ifndef BLURRY_TEST_OPS_CASE_H
#define BLURRY_TEST_OPS_CASE_H
#include "device/device.h"

typedef enum op_role {
    OP_INPUT,   /* differentiable; its gradient is overwritten */
    OP_PARAM,   /* differentiable; its gradient is added to */
    OP_WEIGHT,  /* the same, but read in the type of activations: weights and biases of products */
    OP_FIXED,   /* an input without gradient */
    OP_OUTPUT,  /* compared, and given a random gradient */
    OP_RESULT,  /* compared only */
    OP_CARRIED, /* state carried from call to call, every element starting as `low` */
    OP_BYTES,   /* notes of forward for backward, as large as `sizes` says */
    OP_INT      /* int64 values, an input */
} op_role;

/* The three types of kernel.h; they differ on CUDA alone. */
typedef enum op_type {
    OP_BY_ROLE, /* inputs, outputs, fixed and weights: activations; parameters; results and carried:
                   statistics */
    OP_ACTIVATION,
    OP_PARAMETER,
    OP_STATISTIC
} op_type;

enum { OP_TENSORS = 20 };

typedef struct op_tensor {
    const char *name;
    op_role role;
    int64_t count;
    int64_t per_token; /* elements per token where the tensor is [1, length, ...]; 0: not by token */
    double low, high;  /* range of random values; both 0: -1 .. 1 */
    const int64_t *ints;
    op_type type;
} op_tensor;

typedef struct op_case op_case;
/* Runs on tokens first .. first+count-1 (sequence operations; batch 1 unless all tokens), x[i] and d[i] being
 * the tensors and their gradients. */
typedef struct op_call {
    const op_case *c;
    device *dev;
    void **x, **d;
    int64_t first, count;
    int carry; /* use and update the carried state */
    int keep;  /* notes for backward are wanted */
} op_call;

struct op_case {
    const char *family, *note;
    void (*forward)(const op_call *call);
    void (*backward)(const op_call *call); /* NULL: nothing to differentiate */
    void (*sizes)(const op_case *c, device *dev, kernel_sizes *sizes);
    int64_t B, L, H, G, K, V, S; /* dimensions; meaning up to the family */
    int64_t option;
    double number;
    int splits;       /* 1: batch 1, may be split by tokens */
    double tolerance; /* multiple of the type's unit; 0: the default */
    op_tensor tensor[OP_TENSORS];
};

/* Memory that the device can see, holding `data`, until the case is over; on the CPU `data` itself. */
void *op_lend(const op_call *call, const void *data, size_t bytes);
/* Waits until what the device wrote can be read. */
void op_wait(const op_call *call);
/* Element k of tensor i, whatever its type. */
double op_get(const op_call *call, int i, int64_t k);
void op_set(const op_call *call, int i, int64_t k, double value);
/* Bytes of one element of tensor i, and of its gradient. */
size_t op_bytes(const op_call *call, int i);

/* Pointer to token `first` of tensor i. */
void *op_at(const op_call *call, int i);
void *op_grad_at(const op_call *call, int i);

/* Everything a case promises, on every table. */
void op_case_check(const op_case *c);

/* Fails unless every slot of every table has been called by the checks so far. */
void op_coverage_check(void);

/* Lengths at which sequence operations are checked: none, one, within a chunk of any kernel, over several. */
enum { OP_LENGTHS = 7 };
extern const int64_t op_lengths[OP_LENGTHS];

/* The families: each builds its cases and checks them. */
void ops_elementwise(void **state);
void ops_products(void **state);
void ops_norms(void **state);
void ops_embedding(void **state);
void ops_rows(void **state);
void ops_head(void **state);
void ops_optimiser(void **state);
void ops_rope(void **state);
void ops_rope_join(void **state);
void ops_convolution(void **state);
void ops_attention(void **state);
void ops_gla(void **state);
void ops_slots(void **state);
void ops_gdn(void **state);
void ops_ssm(void **state);

#endif
