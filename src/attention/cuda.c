/* Plans for CUDA: states laid out for the decode kernel, and passes queued on the caller's stream. Nothing
 * here waits or reads device memory; the CUDA runtime itself is behind the kernels' tables. */
#include "attention/plan.h"
#include "base/sizes.h"
#include "base/status.h"

/* Elements between rows: rows begin at multiples of 16 bytes of both types that a state holds. */
static int padded_row(const blurry_attn_plan *p, int64_t width)
{
    int unit = p->desc.state_dtype == BLURRY_BF16 || p->desc.dtype == BLURRY_BF16 ? 8 : 4;
    return ((int)width + unit - 1) / unit * unit;
}

static void set_layout(blurry_attn_plan *p)
{
    bla_step_cuda_shape *c = &p->cuda_step;
    attn_layout *l = &p->layout;
    size_t slot = c->state_bf16 ? 2 : 4, token = c->token_bf16 ? 2 : 4;
    size_t slots = (size_t)c->Hkv * (size_t)c->S, rings = (size_t)c->Hkv * (size_t)c->fold;
    l->k = size_align(sizeof(bla_state_header));
    l->v = size_add(l->k, size_align(size_mul(slots, (size_t)c->row_k * slot)));
    l->ring_k = size_add(l->v, size_align(size_mul(slots, (size_t)c->row_v * slot)));
    l->ring_v = size_add(l->ring_k, size_align(size_mul(rings, (size_t)c->row_k * token)));
    l->ring_phi = l->bytes = size_add(l->ring_v, size_align(size_mul(rings, (size_t)c->row_v * token)));
    c->state_bytes = (int64_t)l->bytes;
    c->k = (int64_t)l->k, c->v = (int64_t)l->v, c->ring_k = (int64_t)l->ring_k,
    c->ring_v = (int64_t)l->ring_v;
}

/* The kernels count in int within a state, and a grid has one block for each head of a batch. */
static blurry_status check_counts(const blurry_attn_plan *p)
{
    const bla_step_shape *s = &p->step;
    size_t blocks = size_mul((size_t)s->batch, (size_t)s->Hkv);
    if (s->S >= 1 << 16)
        return status_fail(BLURRY_E_UNSUPPORTED, "modes is %lld: too many for the cuda device",
                           (long long)p->desc.modes);
    if (blocks >= (size_t)1 << 31)
        return status_fail(BLURRY_E_UNSUPPORTED,
                           "batch is %lld with heads_kv %lld: the cuda device takes fewer "
                           "than 2^31 heads in all",
                           (long long)s->batch, (long long)s->Hkv);
    return BLURRY_OK;
}

blurry_status attn_cuda_build(blurry_attn_plan *p)
{
    const bla_step_shape *s = &p->step;
    bla_step_cuda_shape *c = &p->cuda_step;
    p->kernel = bla_kernel_cuda(p->desc.dtype);
    const bla_step_cuda *kernels = bla_step_cuda_kernels();
    if (!p->kernel || !kernels)
        return status_fail(BLURRY_E_UNSUPPORTED,
                           "device is cuda: this build has the cpu only; build with nvcc in "
                           "PATH and -DBLURRY_CUDA=ON, or use device=cpu");
    STATUS_TRY(check_counts(p));
    *c = (bla_step_cuda_shape){.H = (int)s->H,
                               .Hkv = (int)s->Hkv,
                               .Dk = (int)s->Dk,
                               .Dv = (int)s->Dv,
                               .S = (int)s->S,
                               .fold = (int)s->fold,
                               .block = (int)s->block,
                               .n_blocks = (int)s->n_blocks,
                               .row_k = padded_row(p, s->Dk),
                               .row_v = padded_row(p, s->Dv),
                               .decay = s->decay,
                               .relative = s->relative,
                               .state_bf16 = p->desc.state_dtype == BLURRY_BF16,
                               .token_bf16 = p->desc.dtype == BLURRY_BF16,
                               .scale = (float)s->scale};
    set_layout(p);
    c->fingerprint = p->fingerprint = attn_fingerprint(p);
    STATUS_TRY(kernels->open(c, p->period));
    p->cuda = kernels;
    return BLURRY_OK;
}

void attn_cuda_close(blurry_attn_plan *p)
{
    if (p->cuda) p->cuda->close(&p->cuda_step);
}

/* ---- slots of a pass ---- */

/* Whether a state's own slots are what the kernel of whole sequences reads and writes: float, not padded. */
static int slots_are_plain(const blurry_attn_plan *p)
{
    const bla_step_cuda_shape *c = &p->cuda_step;
    return !c->state_bf16 && c->row_k == c->Dk && c->row_v == c->Dv;
}

static size_t slot_floats(const blurry_attn_plan *p, int64_t width)
{
    return (size_t)(p->shape.Hkv * p->shape.S * width);
}

/* At the start of a workspace: positions [B], then slots [B] of K, then of V, in float. */
static size_t positions_bytes(const blurry_attn_plan *p)
{
    return size_align(size_of(p->shape.batch, sizeof(int64_t)));
}

size_t attn_cuda_prefix_bytes(const blurry_attn_plan *p)
{
    size_t B = (size_t)p->shape.batch, k = size_mul(slot_floats(p, p->shape.Dk), sizeof(float));
    size_t v = size_mul(slot_floats(p, p->shape.Dv), sizeof(float));
    return size_add(positions_bytes(p), size_add(size_align(size_mul(B, k)), size_align(size_mul(B, v))));
}

static bla_step_cuda_slots workspace_slots(const blurry_attn_plan *p, void *workspace)
{
    size_t k = slot_floats(p, p->shape.Dk), v = slot_floats(p, p->shape.Dv);
    float *at = (float *)(void *)((char *)workspace + positions_bytes(p));
    float *then = at + size_align((size_t)p->shape.batch * k * sizeof(float)) / sizeof(float);
    return (bla_step_cuda_slots){at, then, (int64_t)k, (int64_t)v};
}

/* The slots within states; for plain ones only. */
static bla_step_cuda_slots state_slots(const blurry_attn_plan *p, void *states)
{
    int64_t stride = (int64_t)(p->layout.bytes / sizeof(float));
    return (bla_step_cuda_slots){(float *)(void *)((char *)states + p->layout.k),
                                 (float *)(void *)((char *)states + p->layout.v), stride, stride};
}

static bla_slots for_kernel(bla_step_cuda_slots s)
{
    return (bla_slots){s.k, s.v, s.stride_k, s.stride_v};
}

/* ---- passes ---- */

blurry_status attn_cuda_forward(const blurry_attn_plan *p, const blurry_attn_forward_args *a)
{
    int64_t *positions = a->workspace, B = p->shape.batch;
    int in_state = a->state_out && slots_are_plain(p);
    bla_step_cuda_slots slots = in_state ? state_slots(p, a->state_out) : workspace_slots(p, a->workspace);
    bla_forward call = {.n_sequences = B,
                        .q = a->q,
                        .k = a->k,
                        .v = a->v,
                        .o = a->o,
                        .saved = a->saved,
                        .workspace = (char *)a->workspace + attn_cuda_prefix_bytes(p),
                        .stream = a->stream,
                        .offsets = a->offsets,
                        .positions = a->state_in ? positions : NULL,
                        .position_stride = sizeof *positions};
    if (a->state_in) {
        STATUS_TRY(p->cuda->settle(&p->cuda_step, a->state_in, B, &slots, positions, a->stream));
        call.in = for_kernel(slots);
    }
    if (a->state_out) call.out = for_kernel(slots);
    p->kernel->forward(&p->shape, p->tables, &call);
    STATUS_TRY(p->cuda->launched("blurry attention forward"));
    if (!a->state_out) return BLURRY_OK;
    return p->cuda->store(&p->cuda_step, a->state_out, B, 0, in_state ? NULL : &slots,
                          a->state_in ? positions : NULL, p->desc.length, a->offsets, a->stream);
}

blurry_status attn_cuda_backward(const blurry_attn_plan *p, const blurry_attn_backward_args *a)
{
    int64_t *positions = a->workspace;
    bla_step_cuda_slots slots = workspace_slots(p, a->workspace);
    bla_backward call = {.n_sequences = p->shape.batch,
                         .q = a->q,
                         .k = a->k,
                         .v = a->v,
                         .d_o = a->d_o,
                         .saved = a->saved,
                         .d_out = attn_dense_slots(&p->shape, a->d_k_state_out, a->d_v_state_out),
                         .d_in = attn_dense_slots(&p->shape, a->d_k_state_in, a->d_v_state_in),
                         .d_q = a->d_q,
                         .d_k = a->d_k,
                         .d_v = a->d_v,
                         .d_period = a->d_period,
                         .d_period_abs = a->d_period_abs,
                         .workspace = (char *)a->workspace + attn_cuda_prefix_bytes(p),
                         .stream = a->stream,
                         .offsets = a->offsets,
                         .positions = a->state_in ? positions : NULL,
                         .position_stride = sizeof *positions};
    if (a->state_in) {
        STATUS_TRY(p->cuda->settle(&p->cuda_step, a->state_in, p->shape.batch, &slots, positions, a->stream));
        call.in = for_kernel(slots);
    }
    p->kernel->backward(&p->shape, p->tables, &call);
    return p->cuda->launched("blurry attention backward");
}

blurry_status attn_cuda_step(const blurry_attn_plan *p, const blurry_attn_step_args *a)
{
    bla_step_cuda_states states = {a->states, a->state_batch, a->count};
    return p->cuda->run(&p->cuda_step, &states, a->q, a->k, a->v, a->o, a->stream);
}

/* ---- states ---- */

blurry_status attn_cuda_states_init(const blurry_attn_plan *p, void *states, int64_t count,
                                    blurry_stream stream)
{
    return p->cuda->store(&p->cuda_step, states, count, 1, NULL, NULL, 0, NULL, stream);
}

/* Device memory for one state's slots in float, K then V, and its position before them. */
static blurry_status room_for_slots(const blurry_attn_plan *p, char **memory, bla_step_cuda_slots *slots)
{
    size_t k = slot_floats(p, p->shape.Dk), v = slot_floats(p, p->shape.Dv);
    void *room;
    STATUS_TRY(p->cuda->alloc(&room, 64 + (k + v) * sizeof(float)));
    *memory = room;
    float *first = (float *)(void *)(*memory + 64);
    *slots = (bla_step_cuda_slots){first, first + k, (int64_t)k, (int64_t)v};
    return BLURRY_OK;
}

static blurry_status set_slots(const blurry_attn_plan *p, void *state, int64_t position, const void *k_slots,
                               const void *v_slots, const bla_step_cuda_slots *room)
{
    size_t k = slot_floats(p, p->shape.Dk), v = slot_floats(p, p->shape.Dv);
    STATUS_TRY(p->cuda->copy(room->k, k_slots, k * sizeof(float)));
    STATUS_TRY(p->cuda->copy(room->v, v_slots, v * sizeof(float)));
    STATUS_TRY(p->cuda->store(&p->cuda_step, state, 1, 0, room, NULL, position, NULL, NULL));
    return p->cuda->sync(&p->cuda_step, NULL);
}

blurry_status attn_cuda_state_set(const blurry_attn_plan *p, void *state, int64_t position,
                                  const void *k_slots, const void *v_slots)
{
    char *memory;
    bla_step_cuda_slots room;
    STATUS_TRY(room_for_slots(p, &memory, &room));
    blurry_status status = set_slots(p, state, position, k_slots, v_slots, &room);
    p->cuda->release(memory);
    return status;
}

static blurry_status get_slots(const blurry_attn_plan *p, const void *state, void *k_slots, void *v_slots,
                               const bla_step_cuda_slots *room)
{
    STATUS_TRY(p->cuda->settle(&p->cuda_step, state, 1, room, NULL, NULL));
    STATUS_TRY(p->cuda->sync(&p->cuda_step, NULL));
    if (k_slots) STATUS_TRY(p->cuda->copy(k_slots, room->k, slot_floats(p, p->shape.Dk) * sizeof(float)));
    if (v_slots) STATUS_TRY(p->cuda->copy(v_slots, room->v, slot_floats(p, p->shape.Dv) * sizeof(float)));
    return BLURRY_OK;
}

blurry_status attn_cuda_state_get(const blurry_attn_plan *p, const void *state, int64_t *position,
                                  void *k_slots, void *v_slots)
{
    bla_state_header header;
    STATUS_TRY(p->cuda->copy(&header, state, sizeof header));
    STATUS_TRY(attn_header_check(p, &header, "state"));
    if (position) *position = header.position;
    if (!k_slots && !v_slots) return BLURRY_OK;
    char *memory;
    bla_step_cuda_slots room;
    STATUS_TRY(room_for_slots(p, &memory, &room));
    blurry_status status = get_slots(p, state, k_slots, v_slots, &room);
    p->cuda->release(memory);
    return status;
}
