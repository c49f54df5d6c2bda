/* Decode: one token for each of several sequences, each with its own state. */
#include "attention/plan.h"
#include "base/sizes.h"
#include "base/status.h"

#include <stdio.h>
#include <string.h>

/* Heap sort, because the C library's sort may allocate. */
static void sink(uintptr_t *heap, int64_t root, int64_t n)
{
    for (int64_t child; (child = 2 * root + 1) < n; root = child) {
        if (child + 1 < n && heap[child + 1] > heap[child]) child++;
        if (heap[root] >= heap[child]) return;
        uintptr_t swap = heap[root];
        heap[root] = heap[child];
        heap[child] = swap;
    }
}

static void sort_addresses(uintptr_t *x, int64_t n)
{
    for (int64_t i = n / 2 - 1; i >= 0; i--) sink(x, i, n);
    for (int64_t end = n - 1; end > 0; end--) {
        uintptr_t swap = x[0];
        x[0] = x[end];
        x[end] = swap;
        sink(x, 0, end);
    }
}

static void *state_of(const blurry_attn_plan *plan, const blurry_attn_step_args *a, int64_t i)
{
    return a->states ? a->states[i] : (char *)a->state_batch + (size_t)i * plan->layout.bytes;
}

/* States must not overlap: each is updated on its own. Sorting is needed only where they do not lie in order.
 */
static blurry_status check_distinct(const blurry_attn_plan *plan, const blurry_attn_step_args *a,
                                    uintptr_t *scratch)
{
    int in_order = 1;
    for (int64_t i = 0; a->states && i < a->count; i++) {
        scratch[i] = (uintptr_t)a->states[i];
        in_order &= i == 0 || scratch[i] >= scratch[i - 1] + plan->layout.bytes;
    }
    if (in_order) return BLURRY_OK;
    sort_addresses(scratch, a->count);
    for (int64_t i = 1; i < a->count; i++)
        if (scratch[i] < scratch[i - 1] + plan->layout.bytes)
            return status_fail(BLURRY_E_INVALID, "states: %p is given twice or overlaps another state",
                               (void *)scratch[i]);
    return BLURRY_OK;
}

static blurry_status check_step(const blurry_attn_plan *plan, const blurry_attn_step_args *a)
{
    if (!plan) return status_fail(BLURRY_E_INVALID, "plan is NULL");
    if (!a) return status_fail(BLURRY_E_INVALID, "args is NULL");
    if (a->count < 0 || a->count > plan->shape.batch)
        return status_fail(BLURRY_E_INVALID, "count is %lld: give 0 to batch, %lld", (long long)a->count,
                           (long long)plan->shape.batch);
    if (!a->states && !a->state_batch && a->count > 0)
        return status_fail(BLURRY_E_INVALID, "states is NULL, and so is state_batch: give one of them");
    if (a->states && a->state_batch)
        return status_fail(BLURRY_E_INVALID, "states and state_batch are both given: give one of them");
    STATUS_TRY(attn_check_workspace(a->workspace, a->workspace_bytes, plan->step_bytes));
    const bla_shape *s = &plan->shape;
    size_t e = plan->element, n = (size_t)a->count;
    const attn_range ranges[] = {{"q", a->q, n * (size_t)(s->H * s->Dk) * e, e, 1, 0},
                                 {"k", a->k, n * (size_t)(s->Hkv * s->Dk) * e, e, 1, 0},
                                 {"v", a->v, n * (size_t)(s->Hkv * s->Dv) * e, e, 1, 0},
                                 {"o", a->o, n * (size_t)(s->H * s->Dv) * e, e, 1, 1},
                                 {"states", a->states, n * sizeof(void *), sizeof(void *), 0, 0},
                                 {"state_batch", a->state_batch, n * plan->layout.bytes, 64, 0, 1},
                                 {"workspace", a->workspace, plan->step_bytes, 64, 1, 1}};
    return attn_check_ranges(ranges, sizeof ranges / sizeof ranges[0]);
}

/* Headers of all states into `sequences`; nothing is written to a state. */
static blurry_status open_states(const blurry_attn_plan *plan, const blurry_attn_step_args *a,
                                 bla_step_sequence *sequences)
{
    for (int64_t i = 0; i < a->count; i++) {
        char name[48];
        bla_state_header header;
        snprintf(name, sizeof name, "%s[%lld]", a->states ? "states" : "state_batch", (long long)i);
        STATUS_TRY(attn_state_check(plan, state_of(plan, a, i), name, &header));
        if (header.position >= BLA_POSITION_MAX)
            return status_fail(BLURRY_E_INVALID, "%s has position %lld: no token can follow it", name,
                               (long long)header.position);
        sequences[i] = attn_state_view(plan, state_of(plan, a, i), &header);
    }
    return BLURRY_OK;
}

blurry_status blurry_attn_step(const blurry_attn_plan *plan, const blurry_attn_step_args *args)
{
    STATUS_TRY(check_step(plan, args));
    if (plan->cuda) return attn_cuda_step(plan, args);
    bla_step_sequence *sequences = args->workspace;
    uintptr_t *addresses = (uintptr_t *)(sequences + plan->shape.batch);
    STATUS_TRY(open_states(plan, args, sequences));
    STATUS_TRY(check_distinct(plan, args, addresses));
    size_t prefix = size_align(size_of(plan->shape.batch, sizeof *sequences + sizeof *addresses));
    bla_step call = {.count = args->count,
                     .sequences = sequences,
                     .q = args->q,
                     .k = args->k,
                     .v = args->v,
                     .o = args->o,
                     .workspace = (char *)args->workspace + prefix};
    plan->step_kernel->run(&plan->step, &call);
    for (int64_t i = 0; i < args->count; i++)
        attn_state_write_header(plan, state_of(plan, args, i), sequences[i].position + 1,
                                sequences[i].empty_at);
    return BLURRY_OK;
}
