/* Inside of a plan, and the checks and state helpers that forward, backward and step share. */
#ifndef BLURRY_ATTENTION_PLAN_H
#define BLURRY_ATTENTION_PLAN_H
#include "blurry/attention.h"
#include "kernels/blurry/blurry.h"
#include "kernels/blurry_step/blurry_step.h"
#include "kernels/blurry_step/cuda.h"
#include "kernels/blurry_step/state.h"

/* Where the parts of a state lie, in bytes from its start; each is aligned to 64. */
typedef struct attn_layout {
    size_t k, v, ring_k, ring_v, ring_phi, bytes;
} attn_layout;

struct blurry_attn_plan {
    blurry_attn_desc desc; /* resolved; desc.period is the caller's wish, shape.period what is used */
    bla_shape shape;
    const bla_kernel *kernel;
    void *tables;
    bla_step_shape step;
    const bla_step_kernel *step_kernel;
    attn_layout layout;
    size_t element;            /* bytes of a tensor's element */
    size_t state_element;      /* of a gradient of slots; on CUDA float for every type */
    const bla_step_cuda *cuda; /* NULL: a plan for the CPU */
    bla_step_cuda_shape cuda_step;
    uint64_t fingerprint;
    size_t forward_bytes, backward_bytes, step_bytes, saved_bytes;
    double *period;     /* [Hkv] raised to S */
    double *wish;       /* [Hkv] as given */
    uint8_t *raised;    /* [Hkv] */
    double *distinct;   /* [n_periods] */
    int64_t *period_of; /* [Hkv] */
    int64_t *visible;   /* [n_periods, S] */
    double *sines;      /* [4 * padded] */
};

/* Checks a descriptor and fills in the defaults. */
blurry_status attn_desc_resolve(const blurry_attn_desc *desc, blurry_attn_desc *resolved);

/* One memory range of a call. */
typedef struct attn_range {
    const char *name;
    const void *at; /* NULL: absent */
    size_t bytes;
    size_t alignment;
    int required, written;
} attn_range;

/* NULL where required, misaligned, or a written range that overlaps another: BLURRY_E_INVALID with the names.
 * Equal addresses of state_in and state_out are allowed. */
blurry_status attn_check_ranges(const attn_range *ranges, int count);
blurry_status attn_check_workspace(const void *workspace, size_t bytes, size_t needed);
/* Offsets [B+1] against the plan; *tokens is the number of tokens of the call. */
blurry_status attn_check_offsets(const blurry_attn_plan *plan, const int64_t *offsets, int64_t *tokens);
/* A list of rows against a call of n tokens; *rows is the number of rows of q and o. */
blurry_status attn_check_rows(const blurry_attn_plan *plan, const int64_t *list, int64_t count, int64_t n,
                              int64_t *rows);
/* Checks B states for the tokens to come. NULL is fine. */
blurry_status attn_check_states(const blurry_attn_plan *plan, const void *states, const int64_t *offsets);

/* Header of a state of this plan, or BLURRY_E_INVALID/BLURRY_E_FORMAT naming what is wrong. */
blurry_status attn_state_check(const blurry_attn_plan *plan, const void *state, const char *name,
                               bla_state_header *header);
blurry_status attn_header_check(const blurry_attn_plan *plan, const bla_state_header *header,
                                const char *name);
void attn_state_write_header(const blurry_attn_plan *plan, void *state, int64_t position, int64_t empty_at);
/* The pointers into a state, for the kernels. */
bla_step_sequence attn_state_view(const blurry_attn_plan *plan, const void *state,
                                  const bla_state_header *header);
uint64_t attn_fingerprint(const blurry_attn_plan *plan);

/* Bytes at the start of a forward or backward workspace: sequences [B], then slots [B] for states with tokens
 * pending. */
size_t attn_prefix_bytes(const blurry_attn_plan *plan);
/* Fills the sequences of a call into the workspace and finds the slots on entry: those of the states, or,
 * where tokens are pending, settled ones in `settle_into` (a batch of states, may be NULL) or else in the
 * workspace. */
const bla_sequence *attn_prepare(const blurry_attn_plan *plan, const int64_t *offsets, const void *state_in,
                                 void *settle_into, void *workspace, bla_slots *in);

/* Dense [B, Hkv, S, D] gradients as slots. */
static inline bla_slots attn_dense_slots(const bla_shape *s, const void *k, const void *v)
{
    return (bla_slots){(void *)(uintptr_t)k, (void *)(uintptr_t)v, s->Hkv * s->S * s->Dk,
                       s->Hkv * s->S * s->Dv};
}

/* ---- plans for CUDA (cuda.c); arguments are checked by the caller as on the CPU ---- */
blurry_status attn_cuda_build(blurry_attn_plan *plan);
void attn_cuda_close(blurry_attn_plan *plan);
size_t attn_cuda_prefix_bytes(const blurry_attn_plan *plan);
blurry_status attn_cuda_forward(const blurry_attn_plan *plan, const blurry_attn_forward_args *args);
blurry_status attn_cuda_backward(const blurry_attn_plan *plan, const blurry_attn_backward_args *args);
blurry_status attn_cuda_step(const blurry_attn_plan *plan, const blurry_attn_step_args *args);
blurry_status attn_cuda_states_init(const blurry_attn_plan *plan, void *states, int64_t count,
                                    blurry_stream stream);
blurry_status attn_cuda_state_set(const blurry_attn_plan *plan, void *state, int64_t position,
                                  const void *k_slots, const void *v_slots);
blurry_status attn_cuda_state_get(const blurry_attn_plan *plan, const void *state, int64_t *position,
                                  void *k_slots, void *v_slots);

#endif
