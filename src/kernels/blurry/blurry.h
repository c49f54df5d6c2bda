/* Contract of the blurry attention kernels (whole sequences; kernels/blurry_step decodes one token at a
 * time).
 *
 * Every variant computes the operator of docs/operator.md for sequences that lie one after another in memory:
 *     q [N, H, Dk], k [N, Hkv, Dk], v [N, Hkv, Dv] -> o [N, H, Dv],   N tokens in all.
 * Slots on entry and exit are those of the absolute grid, also for the relative grid: a relative slot is a
 * fixed mix of them, K_rel_t[j] = sum_i phi_t[(i + j) mod S] K_abs_t[i]. Results must not depend on
 * `threads`, nor a token's result on later tokens. Kernels trust their input; the checks are in
 * src/attention. */
#ifndef BLURRY_KERNELS_BLURRY_H
#define BLURRY_KERNELS_BLURRY_H
#include "base/cpu.h"
#include "blurry/attention.h"
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What a plan fixes. */
typedef struct bla_shape {
    int64_t batch;  /* most sequences of one call */
    int64_t tokens; /* most tokens of one call, all sequences together */
    int64_t H, Hkv, Dk, Dv, M, S;
    const double *period;  /* [Hkv], each >= S */
    const uint8_t *raised; /* [Hkv] 1 where the caller's period was below S: d_period is 0 there */
    double scale;
    int decay, relative, threads;
} bla_shape;

/* On the CPU the caller lists the sequences; slots have the element type.
 *
 * On CUDA `sequences` is NULL and every other pointer but `offsets` is device memory. The n sequences of a
 * call lie at offsets [n + 1] (host memory, read before the call returns), or have tokens / batch tokens each
 * where that is NULL. Sequence b's first token stands at the int64_t at positions + b * position_stride
 * bytes; NULL: all at 0. Slots and their gradients are float for every element type, d_period and
 * d_period_abs double. Work is queued on `stream` (a cudaStream_t) without waiting and may be captured;
 * errors of the launches are found by cudaGetLastError. */
typedef struct bla_sequence {
    int64_t first;    /* index of its first token */
    int64_t count;    /* may be 0 */
    int64_t position; /* absolute position of its first token */
} bla_sequence;

/* Queries are [N, H, Dk] and results [N, H, Dv], one row per token; or, where `rows` is given, one row per
 * listed token: q, o, d_o and d_q are [n_rows, H, D], row i belongs to token rows[i] (ascending, of all
 * sequences together), and the other tokens are written but not read. CPU only. */
typedef struct bla_rows {
    const int64_t *rows; /* NULL: all tokens */
    int64_t n_rows;
} bla_rows;

/* The first row whose token is not before `token`. */
static inline int64_t bla_rows_from(const bla_rows *list, int64_t token)
{
    int64_t from = 0, to = list->n_rows;
    while (list->rows && from < to) {
        int64_t middle = from + (to - from) / 2;
        if (list->rows[middle] < token)
            from = middle + 1;
        else
            to = middle;
    }
    return list->rows ? from : token;
}

/* The row of a token: -1 where it has none. */
static inline int64_t bla_row_of(const bla_rows *list, int64_t token)
{
    int64_t row = bla_rows_from(list, token);
    return !list->rows || (row < list->n_rows && list->rows[row] == token) ? row : -1;
}

/* Slots of all sequences: K of sequence b is at k + b*stride elements, shaped [Hkv, S, Dk]; V likewise. NULL
 * k: absent (zero on entry, not wanted on exit). Entry and exit may be the same memory. */
typedef struct bla_slots {
    void *k, *v;
    int64_t stride_k, stride_v; /* elements between sequences */
} bla_slots;

typedef struct bla_forward {
    const bla_sequence *sequences;
    int64_t n_sequences;
    const void *q, *k, *v;
    void *o;
    bla_rows rows;
    bla_slots in, out;
    void *saved;            /* NULL or saved_bytes */
    void *workspace;        /* forward_workspace bytes, aligned to 64 */
    void *stream;           /* this and what follows: CUDA only */
    const int64_t *offsets; /* host memory */
    const void *positions;
    int64_t position_stride; /* bytes */
} bla_forward;

typedef struct bla_backward {
    const bla_sequence *sequences;
    int64_t n_sequences;
    const void *q, *k, *v, *d_o;
    bla_rows rows;         /* as in forward */
    bla_slots in;          /* as in forward */
    const void *saved;     /* from forward, or NULL */
    bla_slots d_out, d_in; /* gradients of the slots on exit (given) and on entry (wanted) */
    void *d_q, *d_k, *d_v;
    double *d_period,
        *d_period_abs; /* [Hkv] or NULL; the sum, and the sum of absolute contributions per (t, j) */
    void *workspace;
    void *stream; /* this and what follows: CUDA only, as in forward */
    const int64_t *offsets;
    const void *positions;
    int64_t position_stride;
} bla_backward;

/* One variant. `prepare` builds tables that depend on the shape alone and must not change afterwards. */
typedef struct bla_kernel {
    const char *name; /* "ref", "base", "avx2", "avx512", "cuda" */
    blurry_dtype dtype;
    blurry_status (*prepare)(const bla_shape *shape, void **tables);
    void (*release)(void *tables);
    size_t (*forward_workspace)(const bla_shape *shape);
    size_t (*backward_workspace)(const bla_shape *shape);
    size_t (*saved_bytes)(const bla_shape *shape);
    void (*forward)(const bla_shape *shape, const void *tables, const bla_forward *args);
    void (*backward)(const bla_shape *shape, const void *tables, const bla_backward *args);
} bla_kernel;

/* The variant for a type: the reference, or the fast one for an instruction set the machine supports. */
const bla_kernel *bla_kernel_reference(blurry_dtype dtype);
const bla_kernel *bla_kernel_fast(blurry_dtype dtype, cpu_isa isa);

/* The variant for CUDA devices, f32 or bf16; NULL for another type. Only where the library is built with
 * CUDA. Memory of a forward call does not grow with the tokens; `prepare` allocates device memory for its
 * tables and refuses, with a message, a shape the kernels do not cover. */
const bla_kernel *bla_kernel_cuda(blurry_dtype dtype);

#ifdef __cplusplus
}
#endif

#endif
