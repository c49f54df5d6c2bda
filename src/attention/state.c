/* States: a header that says what the bytes are, the slots, and the ring of tokens not yet folded into them.
 */
#include "attention/plan.h"
#include "base/sizes.h"
#include "base/status.h"

#include <string.h>

static uint64_t hash_bytes(uint64_t hash, const void *data, size_t bytes)
{
    const unsigned char *at = data;
    for (size_t i = 0; i < bytes; i++) hash = (hash ^ at[i]) * 0x100000001b3u; /* FNV-1a */
    return hash;
}

static const uint64_t hash_start = 0xcbf29ce484222325u;

uint64_t attn_fingerprint(const blurry_attn_plan *plan)
{
    const bla_shape *s = &plan->shape;
    int64_t numbers[] = {s->Hkv,
                         s->Dk,
                         s->Dv,
                         s->M,
                         s->decay,
                         s->relative,
                         plan->step.fold,
                         plan->desc.dtype,
                         plan->desc.device,
                         plan->desc.state_dtype};
    uint64_t hash = hash_bytes(hash_start, numbers, sizeof numbers);
    return hash_bytes(hash, plan->period, (size_t)s->Hkv * sizeof *plan->period);
}

void attn_state_write_header(const blurry_attn_plan *plan, void *state, int64_t position, int64_t empty_at)
{
    bla_state_header header = bla_state_head(plan->fingerprint, position, empty_at);
    memcpy(state, &header, sizeof header);
}

blurry_status attn_state_check(const blurry_attn_plan *plan, const void *state, const char *name,
                               bla_state_header *header)
{
    if (!state)
        return status_fail(BLURRY_E_INVALID, "%s is NULL: give memory set up by blurry_attn_state_init",
                           name);
    if ((uintptr_t)state % 64 != 0)
        return status_fail(BLURRY_E_INVALID, "%s is at %p: align states to 64 bytes", name, state);
    memcpy(header, state, sizeof *header);
    return attn_header_check(plan, header, name);
}

blurry_status attn_header_check(const blurry_attn_plan *plan, const bla_state_header *header,
                                const char *name)
{
    if (header->magic != BLA_STATE_MAGIC)
        return status_fail(BLURRY_E_FORMAT,
                           "%s does not begin with BLURSTAT: it is no state, or not initialised", name);
    if (header->version != BLA_STATE_VERSION || header->header_bytes != sizeof *header)
        return status_fail(BLURRY_E_FORMAT, "%s has version %u: this library reads version %d", name,
                           (unsigned)header->version, BLA_STATE_VERSION);
    if (!bla_state_intact(header))
        return status_fail(BLURRY_E_FORMAT,
                           "%s is damaged: its header says position %lld and fails its checksum", name,
                           (long long)header->position);
    if (header->fingerprint != plan->fingerprint)
        return status_fail(BLURRY_E_INVALID,
                           "%s is of a plan with another shape, period, decay, grid, type, fold or device: "
                           "fingerprint %016llx, "
                           "not %016llx",
                           name, (unsigned long long)header->fingerprint,
                           (unsigned long long)plan->fingerprint);
    return BLURRY_OK;
}

bla_step_sequence attn_state_view(const blurry_attn_plan *plan, const void *state,
                                  const bla_state_header *header)
{
    char *at = (char *)(uintptr_t)state;
    const attn_layout *l = &plan->layout;
    return (bla_step_sequence){at + l->k,        at + l->v,        at + l->ring_k,  at + l->ring_v,
                               at + l->ring_phi, header->position, header->empty_at};
}

static blurry_status check_plain(const blurry_attn_plan *plan, const void *state)
{
    if (!plan) return status_fail(BLURRY_E_INVALID, "plan is NULL");
    if (!state) return status_fail(BLURRY_E_INVALID, "state is NULL: give blurry_attn_state_bytes of memory");
    if ((uintptr_t)state % 64 != 0)
        return status_fail(BLURRY_E_INVALID, "state is at %p: align states to 64 bytes", state);
    return BLURRY_OK;
}

blurry_status blurry_attn_states_init(const blurry_attn_plan *plan, void *states, int64_t count,
                                      blurry_stream stream)
{
    STATUS_TRY(check_plain(plan, states));
    if (count < 0) return status_fail(BLURRY_E_INVALID, "count is %lld: give 0 or more", (long long)count);
    if (plan->cuda) return attn_cuda_states_init(plan, states, count, stream);
    for (int64_t i = 0; i < count; i++) {
        char *state = (char *)states + (size_t)i * plan->layout.bytes;
        memset(state, 0, plan->layout.bytes);
        attn_state_write_header(plan, state, 0, 0);
    }
    return BLURRY_OK;
}

blurry_status blurry_attn_state_init(const blurry_attn_plan *plan, void *state)
{
    STATUS_TRY(blurry_attn_states_init(plan, state, 1, NULL));
    return blurry_attn_sync(plan, NULL);
}

blurry_status blurry_attn_sync(const blurry_attn_plan *plan, blurry_stream stream)
{
    if (!plan) return status_fail(BLURRY_E_INVALID, "plan is NULL");
    return plan->cuda ? plan->cuda->sync(&plan->cuda_step, stream) : BLURRY_OK;
}

/* The slots' sizes in bytes. */
static size_t k_bytes(const blurry_attn_plan *plan)
{
    return (size_t)(plan->shape.Hkv * plan->shape.S * plan->shape.Dk) * plan->state_element;
}

static size_t v_bytes(const blurry_attn_plan *plan)
{
    return (size_t)(plan->shape.Hkv * plan->shape.S * plan->shape.Dv) * plan->state_element;
}

blurry_status blurry_attn_state_set(const blurry_attn_plan *plan, void *state, int64_t position,
                                    const void *k_slots, const void *v_slots)
{
    STATUS_TRY(check_plain(plan, state));
    if (position < 0 || position > BLA_POSITION_MAX)
        return status_fail(BLURRY_E_INVALID, "position is %lld: give 0 to %lld", (long long)position,
                           (long long)BLA_POSITION_MAX);
    attn_range ranges[] = {{"state", state, plan->layout.bytes, 64, 1, 1},
                           {"k_slots", k_slots, k_bytes(plan), plan->state_element, 1, 0},
                           {"v_slots", v_slots, v_bytes(plan), plan->state_element, 1, 0}};
    STATUS_TRY(attn_check_ranges(ranges, 3));
    if (plan->cuda) return attn_cuda_state_set(plan, state, position, k_slots, v_slots);
    memset(state, 0, plan->layout.bytes);
    memcpy((char *)state + plan->layout.k, k_slots, k_bytes(plan));
    memcpy((char *)state + plan->layout.v, v_slots, v_bytes(plan));
    attn_state_write_header(plan, state, position, position);
    return BLURRY_OK;
}

blurry_status blurry_attn_state_get(const blurry_attn_plan *plan, const void *state, int64_t *position,
                                    void *k_slots, void *v_slots)
{
    bla_state_header header;
    STATUS_TRY(check_plain(plan, state));
    attn_range ranges[] = {{"state", state, plan->layout.bytes, 64, 1, 0},
                           {"k_slots", k_slots, k_bytes(plan), plan->state_element, 0, 1},
                           {"v_slots", v_slots, v_bytes(plan), plan->state_element, 0, 1}};
    STATUS_TRY(attn_check_ranges(ranges, 3));
    if (plan->cuda) return attn_cuda_state_get(plan, state, position, k_slots, v_slots);
    STATUS_TRY(attn_state_check(plan, state, "state", &header));
    if (position) *position = header.position;
    bla_step_sequence view = attn_state_view(plan, state, &header);
    bla_step_settle(plan->desc.dtype, &plan->step, &view, k_slots, v_slots);
    return BLURRY_OK;
}
