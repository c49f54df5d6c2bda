/* Checks of a call's memory, offsets and states: all of them before anything is written. */
#include "attention/plan.h"
#include "base/status.h"

#include <stdio.h>
#include <string.h>

static int overlap(const attn_range *a, const attn_range *b)
{
    uintptr_t x = (uintptr_t)a->at, y = (uintptr_t)b->at;
    return a->bytes > 0 && b->bytes > 0 && x < y + b->bytes && y < x + a->bytes;
}

/* A state may be updated in place. */
static int same_state(const attn_range *a, const attn_range *b)
{
    return a->at == b->at && strcmp(a->name, "state_in") == 0 && strcmp(b->name, "state_out") == 0;
}

blurry_status attn_check_ranges(const attn_range *ranges, int count)
{
    for (int i = 0; i < count; i++) {
        const attn_range *r = &ranges[i];
        if (!r->at && r->required && r->bytes > 0)
            return status_fail(BLURRY_E_INVALID, "%s is NULL: give %zu bytes", r->name, r->bytes);
        if (r->at && r->bytes > 0 && (uintptr_t)r->at % r->alignment != 0)
            return status_fail(BLURRY_E_INVALID, "%s is at %p: align it to %zu bytes", r->name, r->at,
                               r->alignment);
        for (int j = 0; j < i; j++) {
            const attn_range *other = &ranges[j];
            if (!r->at || !other->at || !(r->written || other->written) || same_state(other, r)) continue;
            if (overlap(r, other))
                return status_fail(BLURRY_E_INVALID, "%s at %p overlaps %s at %p: give separate memory",
                                   r->name, r->at, other->name, other->at);
        }
    }
    return BLURRY_OK;
}

blurry_status attn_check_workspace(const void *workspace, size_t bytes, size_t needed)
{
    if (!workspace) return status_fail(BLURRY_E_INVALID, "workspace is NULL: give %zu bytes", needed);
    if (bytes < needed)
        return status_fail(BLURRY_E_INVALID, "workspace_bytes is %zu: this plan needs %zu", bytes, needed);
    if ((uintptr_t)workspace % 64 != 0)
        return status_fail(BLURRY_E_INVALID, "workspace is at %p: align it to 64 bytes", workspace);
    return BLURRY_OK;
}

blurry_status attn_check_offsets(const blurry_attn_plan *plan, const int64_t *offsets, int64_t *tokens)
{
    int64_t B = plan->shape.batch;
    *tokens = plan->shape.tokens;
    if (!offsets) return BLURRY_OK;
    if (offsets[0] != 0)
        return status_fail(BLURRY_E_INVALID, "offsets[0] is %lld: offsets begin at 0", (long long)offsets[0]);
    for (int64_t b = 0; b < B; b++)
        if (offsets[b + 1] < offsets[b])
            return status_fail(
                BLURRY_E_INVALID, "offsets[%lld] is %lld, below offsets[%lld], %lld: they must not fall",
                (long long)(b + 1), (long long)offsets[b + 1], (long long)b, (long long)offsets[b]);
    if (offsets[B] > plan->shape.tokens)
        return status_fail(BLURRY_E_INVALID,
                           "offsets[%lld] is %lld: the plan holds batch * length = %lld tokens", (long long)B,
                           (long long)offsets[B], (long long)plan->shape.tokens);
    *tokens = offsets[B];
    return BLURRY_OK;
}

blurry_status attn_check_rows(const blurry_attn_plan *plan, const int64_t *list, int64_t count, int64_t n,
                              int64_t *rows)
{
    *rows = n;
    if (!list) return BLURRY_OK;
    if (plan->cuda)
        return status_fail(BLURRY_E_UNSUPPORTED, "rows is not NULL: on CUDA all outputs are computed");
    if (count < 0 || count > n)
        return status_fail(BLURRY_E_INVALID, "row_count is %lld: give 0 to %lld, the tokens of the call",
                           (long long)count, (long long)n);
    for (int64_t i = 0; i < count; i++)
        if (list[i] < 0 || list[i] >= n || (i && list[i] <= list[i - 1]))
            return status_fail(BLURRY_E_INVALID, "rows[%lld] is %lld: give ascending tokens below %lld",
                               (long long)i, (long long)list[i], (long long)n);
    *rows = count;
    return BLURRY_OK;
}

blurry_status attn_check_states(const blurry_attn_plan *plan, const void *states, const int64_t *offsets)
{
    if (!states || plan->cuda) return BLURRY_OK; /* in device memory: checked there */
    for (int64_t b = 0; b < plan->shape.batch; b++) {
        char name[48];
        bla_state_header header;
        snprintf(name, sizeof name, "state_in[%lld]", (long long)b);
        STATUS_TRY(
            attn_state_check(plan, (const char *)states + (size_t)b * plan->layout.bytes, name, &header));
        int64_t count = offsets ? offsets[b + 1] - offsets[b] : plan->desc.length;
        if (count > BLA_POSITION_MAX - header.position)
            return status_fail(BLURRY_E_INVALID,
                               "%s has position %lld: %lld more tokens pass the last position, %lld", name,
                               (long long)header.position, (long long)count, (long long)BLA_POSITION_MAX);
    }
    return BLURRY_OK;
}
