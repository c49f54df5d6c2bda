/* Blurry Window Attention.
 *
 * Descriptor -> plan -> forward / backward / step. A plan fixes shape, type and kernels and never changes
 * afterwards, so one plan may be used by many threads at once; each call brings its own tensors, states and
 * workspace, and allocates nothing. Layouts: q [B, L, H, Dk], k [B, L, Hkv, Dk], v [B, L, Hkv, Dv], o [B, L,
 * H, Dv], the last index contiguous, elements of the plan's type. Packed sequences: pass `offsets`, then
 * tokens are [offsets[B], H, D].
 *
 * With S = 2*modes-1 slots and period T (raised to S where smaller), the token at position t is written to
 * slot j with weight phi_t[j] = D(t*S/T - j), D the Dirichlet kernel; with decay the slot keeps 1 - phi_t[j]
 * of what it held. The query at t attends by softmax to the slots j with t >= rint(j*T/S). docs/operator.md
 * has the derivation.
 *
 * On a GPU (device = BLURRY_DEVICE_CUDA) the same calls take device memory: tensors, states, saved, workspace
 * and d_period; `offsets` stays in host memory. forward, backward, step and states_init are asynchronous on
 * the stream given, allocate nothing, never wait for the device and may be captured in a CUDA graph; a state
 * keeps its position in device memory, so a captured step may be replayed token after token. What only the
 * device can see (a state of another plan, a position past the last) is checked there: such a state's output
 * is NaN, the state is left as it was, and blurry_attn_sync reports it. */
#ifndef BLURRY_ATTENTION_H
#define BLURRY_ATTENTION_H
#include "blurry/status.h"
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum blurry_dtype {
    BLURRY_F32 = 0,
    BLURRY_F64 = 1, /* on the CPU only */
    BLURRY_BF16 = 2 /* on CUDA only */
} blurry_dtype;
typedef enum blurry_device { BLURRY_DEVICE_CPU = 0, BLURRY_DEVICE_CUDA = 1 } blurry_device;
typedef struct CUstream_st *blurry_stream; /* a cudaStream_t; NULL: the default stream. Ignored on the CPU. */
typedef enum blurry_grid {
    BLURRY_GRID_ABSOLUTE = 0, /* slot centres fixed in time */
    BLURRY_GRID_RELATIVE = 1  /* slot j looks back j*T/S tokens from now; without decay only */
} blurry_grid;

typedef struct blurry_attn_desc {
    int64_t batch;  /* sequences B; default 1 */
    int64_t length; /* tokens per sequence L, may be 0; packed calls share batch * length tokens in any way */
    int64_t heads;  /* query heads H; default 1 */
    int64_t heads_kv; /* key/value heads, a divisor of H; 0 (default): as many as H */
    int64_t dim_k;    /* width of q and k per head; default 64 */
    int64_t dim_v;    /* width of v and o per head; 0 (default): dim_k */
    int64_t modes;    /* M >= 1; default 16 */
    const double
        *period; /* [heads_kv] T per key/value head, raised to S, or NULL: T = resolution * S. Copied. */
    double resolution;  /* T/S used where period is NULL; default 2 */
    double scale;       /* of the logits; 0 (default): 1/sqrt(dim_k) */
    int decay;          /* default 1 */
    blurry_grid grid;   /* default absolute */
    blurry_dtype dtype; /* default BLURRY_F32 */
    int threads;        /* 0 (default): BLURRY_THREADS or the cores available */
    int reference;      /* 1: the plain reference kernels instead of the fast ones; default 0 */
    int64_t fold; /* decode: fold the last `fold` tokens into the slots at once; 0 (default): the library's
                     choice; 1: at every step; at most 1024, on CUDA 32 */
    blurry_device device;     /* default BLURRY_DEVICE_CPU; CUDA: the device that is current in this thread */
    blurry_dtype state_dtype; /* type of the slots a state carries: on CUDA BLURRY_F32 (default) or
                                 BLURRY_BF16; on the CPU always dtype */
} blurry_attn_desc;

typedef struct blurry_attn_plan blurry_attn_plan;

/* Fills in the defaults above. */
BLURRY_API void blurry_attn_desc_init(blurry_attn_desc *desc);

/* Checks the descriptor, chooses kernels (BLURRY_ISA lowers the instruction set) and builds their tables. */
BLURRY_API blurry_status blurry_attn_plan_create(blurry_attn_plan **plan, const blurry_attn_desc *desc);

/* Releases a plan and sets the pointer to NULL; NULL is fine. */
BLURRY_API void blurry_attn_plan_destroy(blurry_attn_plan **plan);

/* The descriptor with every default resolved; `period` points into the plan. */
BLURRY_API void blurry_attn_plan_desc(const blurry_attn_plan *plan, blurry_attn_desc *desc);

/* The kernels in use, for example "avx2". */
BLURRY_API const char *blurry_attn_plan_kernel(const blurry_attn_plan *plan);

/* Bytes a caller provides. Workspace and states are aligned to 64 bytes; sizes are multiples of 64. */
BLURRY_API size_t blurry_attn_forward_workspace(const blurry_attn_plan *plan);
BLURRY_API size_t blurry_attn_backward_workspace(const blurry_attn_plan *plan);
BLURRY_API size_t blurry_attn_step_workspace(const blurry_attn_plan *plan);
BLURRY_API size_t blurry_attn_saved_bytes(const blurry_attn_plan *plan); /* forward's notes for backward */
BLURRY_API size_t blurry_attn_state_bytes(const blurry_attn_plan *plan); /* of one sequence, all heads */
BLURRY_API int64_t
blurry_attn_state_elements(const blurry_attn_plan *plan); /* Hkv * S * (Dk + Dv): the paper's count */

/* A state is plain bytes: memcpy forks it, a file keeps it. It carries its own position and refuses a plan of
 * another shape, period, decay, grid, type, fold or device. Positions reach 2^53. The slots are those of the
 * absolute grid for both grids. On CUDA state_init, state_set and state_get wait for the device; the slots
 * they take and give are float, in host or device memory. */
BLURRY_API blurry_status blurry_attn_state_init(const blurry_attn_plan *plan, void *state);
/* Writes position and slots, k_slots [Hkv, S, Dk], v_slots [Hkv, S, Dv]. */
BLURRY_API blurry_status blurry_attn_state_set(const blurry_attn_plan *plan, void *state, int64_t position,
                                               const void *k_slots, const void *v_slots);
/* Reads them, with every pending token folded in; any of the three may be NULL. Position counts the tokens
 * seen. */
BLURRY_API blurry_status blurry_attn_state_get(const blurry_attn_plan *plan, const void *state,
                                               int64_t *position, void *k_slots, void *v_slots);

/* Empties `count` states that lie one after another; on CUDA in order with the stream, without waiting. */
BLURRY_API blurry_status blurry_attn_states_init(const blurry_attn_plan *plan, void *states, int64_t count,
                                                 blurry_stream stream);
/* Waits for the stream and reports what its calls could not: a failed launch, a state the kernels of this
 * plan refused. On the CPU BLURRY_OK. */
BLURRY_API blurry_status blurry_attn_sync(const blurry_attn_plan *plan, blurry_stream stream);

typedef struct blurry_attn_forward_args {
    const void *q, *k, *v;
    void *o;
    const int64_t
        *offsets;         /* NULL: B sequences of L tokens; else [B+1], ascending from 0: packed sequences */
    const void *state_in; /* NULL: empty states at position 0; else B states of state_bytes each */
    void *state_out;      /* NULL: not wanted; may be the same memory as state_in */
    void *saved;          /* NULL, or saved_bytes that make a following backward cheaper */
    void *workspace;
    size_t workspace_bytes;
    blurry_stream stream;
    const int64_t *rows; /* NULL: outputs of all tokens; else [row_count] ascending tokens, counted over all
                            sequences, whose outputs are wanted: q [row_count, H, Dk], o [row_count, H, Dv].
                            On the CPU only */
    int64_t row_count;
} blurry_attn_forward_args;

BLURRY_API blurry_status blurry_attn_forward(const blurry_attn_plan *plan,
                                             const blurry_attn_forward_args *args);

/* Gradients of a scalar given d_o and, where wanted, the gradients of the final slots. Outputs are
 * overwritten. The gradients of K and V slots come in pairs: both or neither. */
typedef struct blurry_attn_backward_args {
    const void *q, *k, *v, *d_o;
    const int64_t *offsets;
    const void *state_in;                      /* as in forward */
    const void *saved;                         /* from that forward, or NULL: recomputed */
    const void *d_k_state_out, *d_v_state_out; /* [B, Hkv, S, Dk], [B, Hkv, S, Dv]; NULL: zero.
                                                  Float on CUDA */
    void *d_q, *d_k, *d_v;                     /* required */
    void *d_k_state_in, *d_v_state_in;         /* likewise; NULL: not wanted */
    double *d_period;     /* [Hkv], NULL: not wanted; 0 where the period was raised to S */
    double *d_period_abs; /* [Hkv], NULL, or the sum of absolute contributions to d_period */
    void *workspace;
    size_t workspace_bytes;
    blurry_stream stream;
    const int64_t *rows; /* as in forward: q and d_q [row_count, H, Dk], d_o [row_count, H, Dv] */
    int64_t row_count;
} blurry_attn_backward_args;

BLURRY_API blurry_status blurry_attn_backward(const blurry_attn_plan *plan,
                                              const blurry_attn_backward_args *args);

/* One token for each of `count` sequences, each against its own state and at its own position. q [count, H,
 * Dk], k [count, Hkv, Dk], v [count, Hkv, Dv], o [count, H, Dv]. The states, which are updated, are given
 * either way: `states`, an array of `count` pointers to one state each (on CUDA the array itself lies in
 * device memory and is read when the step runs; no state may be given twice), or `state_batch`, the first of
 * `count` states that lie one after another. */
typedef struct blurry_attn_step_args {
    int64_t count; /* at most the plan's batch */
    const void *q, *k, *v;
    void *o;
    void *const *states;
    void *workspace;
    size_t workspace_bytes;
    void *state_batch;
    blurry_stream stream;
} blurry_attn_step_args;

BLURRY_API blurry_status blurry_attn_step(const blurry_attn_plan *plan, const blurry_attn_step_args *args);

/* phi for positions start .. start+count-1: weights [count, S], S = 2*modes-1. */
BLURRY_API blurry_status blurry_weights(int64_t modes, double period, int64_t start, int64_t count,
                                        double *weights);

#ifdef __cplusplus
}
#endif
#endif
