/* Forward and backward over whole sequences: checks, then the kernel on views into tensors and states. */
#include "attention/plan.h"
#include "base/sizes.h"
#include "base/status.h"

#include <string.h>

/* Sizes in bytes of the tensors of a call with n tokens and `rows` rows of q and o. */
typedef struct tensor_bytes {
    size_t q, k, v, o, states, k_slots, v_slots;
} tensor_bytes;

static tensor_bytes tensor_sizes(const blurry_attn_plan *plan, int64_t n, int64_t rows)
{
    const bla_shape *s = &plan->shape;
    size_t e = plan->element, B = (size_t)s->batch, slots = (size_t)(s->Hkv * s->S) * plan->state_element;
    return (tensor_bytes){.q = (size_t)(rows * s->H * s->Dk) * e,
                          .k = (size_t)(n * s->Hkv * s->Dk) * e,
                          .v = (size_t)(n * s->Hkv * s->Dv) * e,
                          .o = (size_t)(rows * s->H * s->Dv) * e,
                          .states = B * plan->layout.bytes,
                          .k_slots = B * slots * (size_t)s->Dk,
                          .v_slots = B * slots * (size_t)s->Dv};
}

static size_t sequences_bytes(const blurry_attn_plan *plan)
{
    return size_align(size_of(plan->shape.batch, sizeof(bla_sequence)));
}

/* Slots of one sequence in the workspace, K then V. */
static size_t settled_bytes(const blurry_attn_plan *plan)
{
    return plan->layout.ring_k - plan->layout.k;
}

size_t attn_prefix_bytes(const blurry_attn_plan *plan)
{
    if (plan->cuda) return attn_cuda_prefix_bytes(plan);
    size_t settled = plan->step.fold > 1 ? size_mul((size_t)plan->shape.batch, settled_bytes(plan)) : 0;
    return size_add(sequences_bytes(plan), settled);
}

static bla_slots slots_of(char *first_k, char *first_v, size_t bytes_between, size_t element)
{
    int64_t stride = (int64_t)(bytes_between / element);
    return (bla_slots){first_k, first_v, stride, stride};
}

const bla_sequence *attn_prepare(const blurry_attn_plan *plan, const int64_t *offsets, const void *state_in,
                                 void *settle_into, void *workspace, bla_slots *in)
{
    const attn_layout *l = &plan->layout;
    bla_sequence *sequences = workspace;
    int64_t L = plan->desc.length;
    int pending = 0;
    for (int64_t b = 0; b < plan->shape.batch; b++) {
        bla_state_header header = {0};
        if (state_in) memcpy(&header, (const char *)state_in + (size_t)b * l->bytes, sizeof header);
        pending |= header.position > header.empty_at;
        sequences[b].first = offsets ? offsets[b] : b * L;
        sequences[b].count = offsets ? offsets[b + 1] - offsets[b] : L;
        sequences[b].position = header.position;
    }
    *in = (bla_slots){0};
    if (!state_in) return sequences;
    char *states = (char *)(uintptr_t)state_in;
    *in = slots_of(states + l->k, states + l->v, l->bytes, plan->element);
    if (!pending || plan->step.fold == 1) return sequences;
    char *room = settle_into ? (char *)settle_into + l->k : (char *)workspace + sequences_bytes(plan);
    size_t apart = settle_into ? l->bytes : settled_bytes(plan);
    for (int64_t b = 0; b < plan->shape.batch; b++) {
        bla_state_header header;
        memcpy(&header, states + (size_t)b * l->bytes, sizeof header);
        bla_step_sequence view = attn_state_view(plan, states + (size_t)b * l->bytes, &header);
        char *to = room + (size_t)b * apart;
        bla_step_settle(plan->desc.dtype, &plan->step, &view, to, to + (l->v - l->k));
    }
    *in = slots_of(room, room + (l->v - l->k), apart, plan->element);
    return sequences;
}

/* After the kernel has written the slots: nothing is pending, the rings are empty. */
static void finish_states(const blurry_attn_plan *plan, const bla_sequence *sequences, void *states)
{
    const attn_layout *l = &plan->layout;
    for (int64_t b = 0; b < plan->shape.batch; b++) {
        char *state = (char *)states + (size_t)b * l->bytes;
        int64_t position = sequences[b].position + sequences[b].count;
        memset(state + l->ring_k, 0, l->bytes - l->ring_k);
        attn_state_write_header(plan, state, position, position);
    }
}

static blurry_status check_forward(const blurry_attn_plan *plan, const blurry_attn_forward_args *a)
{
    if (!plan) return status_fail(BLURRY_E_INVALID, "plan is NULL");
    if (!a) return status_fail(BLURRY_E_INVALID, "args is NULL");
    int64_t n, rows;
    STATUS_TRY(attn_check_workspace(a->workspace, a->workspace_bytes, plan->forward_bytes));
    STATUS_TRY(attn_check_offsets(plan, a->offsets, &n));
    STATUS_TRY(attn_check_rows(plan, a->rows, a->row_count, n, &rows));
    STATUS_TRY(attn_check_states(plan, a->state_in, a->offsets));
    tensor_bytes size = tensor_sizes(plan, n, rows);
    size_t e = plan->element;
    const attn_range ranges[] = {{"q", a->q, size.q, e, 1, 0},
                                 {"k", a->k, size.k, e, 1, 0},
                                 {"v", a->v, size.v, e, 1, 0},
                                 {"o", a->o, size.o, e, 1, 1},
                                 {"state_in", a->state_in, size.states, 64, 0, 0},
                                 {"state_out", a->state_out, size.states, 64, 0, 1},
                                 {"saved", a->saved, plan->saved_bytes, 64, 0, 1},
                                 {"workspace", a->workspace, plan->forward_bytes, 64, 1, 1}};
    return attn_check_ranges(ranges, sizeof ranges / sizeof ranges[0]);
}

blurry_status blurry_attn_forward(const blurry_attn_plan *plan, const blurry_attn_forward_args *args)
{
    STATUS_TRY(check_forward(plan, args));
    if (plan->cuda) return attn_cuda_forward(plan, args);
    const attn_layout *l = &plan->layout;
    bla_forward call = {.n_sequences = plan->shape.batch,
                        .q = args->q,
                        .k = args->k,
                        .v = args->v,
                        .o = args->o,
                        .rows = {args->rows, args->row_count},
                        .saved = args->saved,
                        .workspace = (char *)args->workspace + attn_prefix_bytes(plan)};
    call.sequences =
        attn_prepare(plan, args->offsets, args->state_in, args->state_out, args->workspace, &call.in);
    if (args->state_out)
        call.out =
            slots_of((char *)args->state_out + l->k, (char *)args->state_out + l->v, l->bytes, plan->element);
    plan->kernel->forward(&plan->shape, plan->tables, &call);
    if (args->state_out) finish_states(plan, call.sequences, args->state_out);
    return BLURRY_OK;
}

/* ---- backward
 * ----------------------------------------------------------------------------------------------- */

static blurry_status check_pair(const char *a_name, const void *a, const char *b_name, const void *b)
{
    if (!a == !b) return BLURRY_OK;
    return status_fail(BLURRY_E_INVALID, "%s is NULL but %s is not: give both or neither",
                       a ? b_name : a_name, a ? a_name : b_name);
}

static blurry_status check_backward(const blurry_attn_plan *plan, const blurry_attn_backward_args *a)
{
    if (!plan) return status_fail(BLURRY_E_INVALID, "plan is NULL");
    if (!a) return status_fail(BLURRY_E_INVALID, "args is NULL");
    int64_t n, rows;
    STATUS_TRY(attn_check_workspace(a->workspace, a->workspace_bytes, plan->backward_bytes));
    STATUS_TRY(attn_check_offsets(plan, a->offsets, &n));
    STATUS_TRY(attn_check_rows(plan, a->rows, a->row_count, n, &rows));
    STATUS_TRY(attn_check_states(plan, a->state_in, a->offsets));
    STATUS_TRY(check_pair("d_k_state_out", a->d_k_state_out, "d_v_state_out", a->d_v_state_out));
    STATUS_TRY(check_pair("d_k_state_in", a->d_k_state_in, "d_v_state_in", a->d_v_state_in));
    tensor_bytes size = tensor_sizes(plan, n, rows);
    size_t e = plan->element, f = plan->state_element, periods = (size_t)plan->shape.Hkv * sizeof(double);
    const attn_range ranges[] = {{"q", a->q, size.q, e, 1, 0},
                                 {"k", a->k, size.k, e, 1, 0},
                                 {"v", a->v, size.v, e, 1, 0},
                                 {"d_o", a->d_o, size.o, e, 1, 0},
                                 {"state_in", a->state_in, size.states, 64, 0, 0},
                                 {"saved", a->saved, plan->saved_bytes, 64, 0, 0},
                                 {"d_k_state_out", a->d_k_state_out, size.k_slots, f, 0, 0},
                                 {"d_v_state_out", a->d_v_state_out, size.v_slots, f, 0, 0},
                                 {"d_q", a->d_q, size.q, e, 1, 1},
                                 {"d_k", a->d_k, size.k, e, 1, 1},
                                 {"d_v", a->d_v, size.v, e, 1, 1},
                                 {"d_k_state_in", a->d_k_state_in, size.k_slots, f, 0, 1},
                                 {"d_v_state_in", a->d_v_state_in, size.v_slots, f, 0, 1},
                                 {"d_period", a->d_period, periods, sizeof(double), 0, 1},
                                 {"d_period_abs", a->d_period_abs, periods, sizeof(double), 0, 1},
                                 {"workspace", a->workspace, plan->backward_bytes, 64, 1, 1}};
    return attn_check_ranges(ranges, sizeof ranges / sizeof ranges[0]);
}

blurry_status blurry_attn_backward(const blurry_attn_plan *plan, const blurry_attn_backward_args *args)
{
    STATUS_TRY(check_backward(plan, args));
    if (plan->cuda) return attn_cuda_backward(plan, args);
    bla_backward call = {.n_sequences = plan->shape.batch,
                         .q = args->q,
                         .k = args->k,
                         .v = args->v,
                         .d_o = args->d_o,
                         .rows = {args->rows, args->row_count},
                         .saved = args->saved,
                         .d_q = args->d_q,
                         .d_k = args->d_k,
                         .d_v = args->d_v,
                         .d_period = args->d_period,
                         .d_period_abs = args->d_period_abs,
                         .d_out = attn_dense_slots(&plan->shape, args->d_k_state_out, args->d_v_state_out),
                         .d_in = attn_dense_slots(&plan->shape, args->d_k_state_in, args->d_v_state_in),
                         .workspace = (char *)args->workspace + attn_prefix_bytes(plan)};
    call.sequences = attn_prepare(plan, args->offsets, args->state_in, NULL, args->workspace, &call.in);
    plan->kernel->backward(&plan->shape, plan->tables, &call);
    return BLURRY_OK;
}
