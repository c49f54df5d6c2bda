/* Operator test bench: one case struct, run through the public API in any type and kernel variant, with NaN
 * in every output and workspace beforehand and guard bands around every buffer. Data and results are doubles.
 */
#ifndef BLURRY_TEST_OPERATOR_H
#define BLURRY_TEST_OPERATOR_H
#include "support/test.h"

#include "base/cpu.h"
#include "blurry/attention.h"

enum { OP_HEADS_MAX = 8, OP_BATCH_MAX = 8 };

typedef struct op_case {
    int64_t B, L, H, Hkv, Dk, Dv, M;
    double period[OP_HEADS_MAX];
    double scale; /* 0: default */
    int decay, relative;
    int64_t position; /* of the first token of every sequence */
    int with_state;   /* random slots on entry */
    int packed;       /* use offsets */
    int64_t offsets[OP_BATCH_MAX + 1];
    const int64_t *rows; /* NULL, or [row_count] the tokens whose outputs are wanted: q, o, d_o, d_q have
                            these rows */
    int64_t row_count;
    int threads; /* 0: 2 */
    uint64_t seed;
} op_case;

/* A kernel variant under test. */
typedef struct op_variant {
    blurry_dtype dtype;
    int reference;
    cpu_isa isa;
    blurry_device device;
    blurry_dtype state; /* of the slots a CUDA state carries */
} op_variant;

/* Tensors of a case. Inputs and results alike, so one array of pointers serves both. */
typedef struct op_tensors {
    double *q, *k, *v, *d_o, *k_in, *v_in, *d_k_out, *d_v_out;
    double *o, *k_out, *v_out, *d_q, *d_k, *d_v, *d_k_in, *d_v_in, *d_period, *d_period_abs;
} op_tensors;

int64_t op_tokens(const op_case *c);
int64_t op_rows(const op_case *c);  /* of q and o */
int64_t op_slots(const op_case *c); /* S */

/* Every variant this machine runs, all types: fills at most `max`, returns the count. In the programs that
 * test CUDA these are CUDA's. */
int op_variants(op_variant *list, int max, int with_reference);
const char *op_variant_name(const op_variant *v);

/* Allocates all tensors and fills the inputs with random numbers, rounded to float (for CUDA to bf16) so that
 * all types see the same. */
void op_tensors_init(const op_case *c, op_tensors *t);
void op_tensors_free(op_tensors *t);

/* The plan of a case for a variant. */
blurry_attn_plan *op_plan(const op_case *c, const op_variant *v, int64_t fold);

/* Forward and backward; fills the results of t. */
void op_run(const op_case *c, const op_variant *v, op_tensors *t);
void op_forward(const op_case *c, const op_variant *v, op_tensors *t);

/* max |a - b| / max(max |b|, OP_SIZE_FLOOR), infinity where something is not finite. Data is of size 1; a
 * result far below that, such as the gradient of slots that were overwritten (exactly 0, or what rounding
 * left of it), is compared to the floor. */
#define OP_SIZE_FLOOR 1e-3
double op_error(const double *a, const double *b, int64_t n);

/* Fails the test, naming case, variant and tensor, where a result of `a` is further than op_tolerance from
 * that of `b`, the double reference's on the same inputs. With OP_CONDITIONED a case that amplifies errors
 * (with decay and T/S of 100 a slot grows by 1.2 for a hundred tokens) may miss by OP_CONDITION times what
 * one rounding of each input does. */
enum { OP_FORWARD = 1, OP_GRADIENTS = 2, OP_CONDITIONED = 4, OP_CONDITION = 50 };
void op_compare(const op_case *c, const op_variant *v, const op_tensors *a, const op_tensors *b, int parts);
double op_tolerance(const op_variant *v); /* 1e-12, 2e-5, bf16 2e-2, its states 5e-2 */

/* The type of slots handed over and of their gradients. */
blurry_dtype op_slot_type(const op_variant *v);

/* Buffers with guard bands, aligned to 64, filled with NaN bits, that the device and the test can both use;
 * op_wait first where a plan may still be at work. */
void *op_guarded(size_t bytes);
void op_wait(const blurry_attn_plan *plan);
void op_guarded_free(void *memory); /* fails the test where a guard was touched */

/* Elements of `dtype` from and to doubles. */
void op_to(blurry_dtype dtype, const double *from, void *to, int64_t n);
void op_from(blurry_dtype dtype, const void *from, double *to, int64_t n);
size_t op_element(blurry_dtype dtype);

double op_random(uint64_t *state);   /* uniform in (-1, 1) */
char *op_describe(const op_case *c); /* static text */

#endif
