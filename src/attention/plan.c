/* Plan: kernels, tables and sizes, all decided once. After create nothing changes and nothing is allocated.
 */
#include "attention/plan.h"
#include "base/dirichlet.h"
#include "base/sizes.h"
#include "base/status.h"

#include <stdlib.h>
#include <string.h>

/* Tokens folded into the slots at once in decode: a slot is written every eighth step only, and eight pending
 * tokens are little to read beside the slots; a GPU writes every sixteenth (0.157 ms instead of 0.160 for 512
 * sequences). `blurry bench decode` measures what a step costs. */
enum { FOLD_CPU = 8, FOLD_CUDA = 16 };

static blurry_status allocate(void **memory, size_t count, size_t size, const char *what)
{
    *memory = size_mul(count, size) < (size_t)PTRDIFF_MAX ? calloc(count ? count : 1, size) : NULL;
    if (*memory) return BLURRY_OK;
    return status_fail(BLURRY_E_MEMORY, "no memory for %zu %s of %zu bytes", count, what, size);
}
#define ALLOCATE(pointer, count, what) allocate((void **)&(pointer), (size_t)(count), sizeof *(pointer), what)

/* Periods: the caller's wish, raised to S, and the distinct ones among them. */
static blurry_status set_periods(blurry_attn_plan *p)
{
    int64_t Hkv = p->desc.heads_kv, S = 2 * p->desc.modes - 1;
    STATUS_TRY(ALLOCATE(p->wish, Hkv, "periods"));
    STATUS_TRY(ALLOCATE(p->period, Hkv, "periods"));
    STATUS_TRY(ALLOCATE(p->distinct, Hkv, "periods"));
    STATUS_TRY(ALLOCATE(p->raised, Hkv, "flags"));
    STATUS_TRY(ALLOCATE(p->period_of, Hkv, "indices"));
    for (int64_t h = 0; h < Hkv; h++) {
        double T = p->desc.period ? p->desc.period[h] : p->desc.resolution * (double)S;
        p->wish[h] = T;
        p->raised[h] = T < (double)S;
        p->period[h] = T < (double)S ? (double)S : T;
        int64_t i = 0;
        while (i < p->step.n_periods && p->distinct[i] != p->period[h]) i++;
        if (i == p->step.n_periods) p->distinct[p->step.n_periods++] = p->period[h];
        p->period_of[h] = i;
    }
    p->desc.period = p->wish;
    return BLURRY_OK;
}

static blurry_status set_step(blurry_attn_plan *p)
{
    bla_step_shape *s = &p->step;
    const blurry_attn_desc *d = &p->desc;
    s->batch = d->batch;
    s->H = d->heads, s->Hkv = d->heads_kv, s->Dk = d->dim_k, s->Dv = d->dim_v, s->S = 2 * d->modes - 1;
    s->fold = d->fold;
    s->scale = d->scale, s->decay = d->decay, s->relative = d->grid == BLURRY_GRID_RELATIVE,
    s->threads = d->threads;
    bla_step_blocks(s);
    STATUS_TRY(ALLOCATE(p->visible, size_of(s->n_periods, (size_t)s->S), "positions"));
    STATUS_TRY(ALLOCATE(p->sines, 4 * s->padded, "sines"));
    for (int64_t i = 0; i < s->n_periods; i++)
        for (int64_t j = 0; j < s->S; j++)
            p->visible[i * s->S + j] = dirichlet_visible_from(s->S, p->distinct[i], j);
    bla_step_sines(s, p->sines);
    s->period = p->distinct, s->period_of = p->period_of, s->visible_from = p->visible, s->sines = p->sines;
    return BLURRY_OK;
}

static void set_shape(blurry_attn_plan *p)
{
    const blurry_attn_desc *d = &p->desc;
    p->shape = (bla_shape){.batch = d->batch,
                           .tokens = d->batch * d->length,
                           .H = d->heads,
                           .Hkv = d->heads_kv,
                           .Dk = d->dim_k,
                           .Dv = d->dim_v,
                           .M = d->modes,
                           .S = 2 * d->modes - 1,
                           .period = p->period,
                           .raised = p->raised,
                           .scale = d->scale,
                           .decay = d->decay,
                           .relative = d->grid == BLURRY_GRID_RELATIVE,
                           .threads = d->threads};
}

static void set_layout(blurry_attn_plan *p)
{
    const bla_step_shape *s = &p->step;
    size_t e = p->element, slots = size_mul((size_t)s->Hkv, (size_t)s->S), rings = (size_t)(s->Hkv * s->fold);
    attn_layout *l = &p->layout;
    l->k = size_align(sizeof(bla_state_header));
    l->v = size_add(l->k, size_align(size_mul(slots, (size_t)s->Dk * e)));
    l->ring_k = size_add(l->v, size_align(size_mul(slots, (size_t)s->Dv * e)));
    l->ring_v = size_add(l->ring_k, size_align(size_mul(rings, (size_t)s->Dk * e)));
    l->ring_phi = size_add(l->ring_v, size_align(size_mul(rings, (size_t)s->Dv * e)));
    l->bytes = size_add(l->ring_phi,
                        size_align(size_mul(size_of(s->n_periods, (size_t)s->fold), (size_t)s->padded * e)));
}

static blurry_status too_large(const blurry_attn_plan *p, const char *what)
{
    const blurry_attn_desc *d = &p->desc;
    return status_fail(
        BLURRY_E_MEMORY, "batch %lld, length %lld, heads %lld, modes %lld: %s would not fit in memory",
        (long long)d->batch, (long long)d->length, (long long)d->heads, (long long)d->modes, what);
}

/* Before any kernel computes with the shape: tokens, tensors and a state for every token stay below 2^62
 * bytes, so products of sizes in the kernels fit 64 bits. */
static blurry_status check_extent(const blurry_attn_plan *p)
{
    const blurry_attn_desc *d = &p->desc;
    size_t tokens = size_of(d->batch, (size_t)d->length), limit = (size_t)1 << 62;
    size_t widest = (size_t)(d->dim_k > d->dim_v ? d->dim_k : d->dim_v) * sizeof(double);
    size_t state = size_mul(size_mul((size_t)d->heads, 2 * (size_t)d->modes), size_mul(2, widest));
    if (size_mul(size_mul(tokens, (size_t)d->heads), widest) >= limit)
        return too_large(p, "one of q, k, v, o");
    if (size_mul(size_add(tokens, (size_t)d->batch), state) >= limit) return too_large(p, "states");
    return BLURRY_OK;
}

/* Every size a caller may be told must be addressable. */
static blurry_status set_sizes(blurry_attn_plan *p)
{
    const bla_shape *s = &p->shape;
    size_t prefix = attn_prefix_bytes(p);
    p->forward_bytes = size_align(size_add(prefix, p->kernel->forward_workspace(s)));
    p->backward_bytes = size_align(size_add(prefix, p->kernel->backward_workspace(s)));
    p->saved_bytes = size_align(p->kernel->saved_bytes(s));
    /* sequences and, to find a state given twice, their addresses */
    size_t step_prefix = size_align(size_of(s->batch, sizeof(bla_step_sequence) + sizeof(void *)));
    p->step_bytes = 64; /* on CUDA: nothing but an address */
    if (!p->cuda) p->step_bytes = size_align(size_add(step_prefix, p->step_kernel->workspace(&p->step)));
    const struct {
        const char *what;
        size_t bytes;
    } all[] = {{"the states of the batch", size_mul(p->layout.bytes, (size_t)s->batch)},
               {"the forward workspace", p->forward_bytes},
               {"the backward workspace", p->backward_bytes},
               {"the saved notes", p->saved_bytes},
               {"the step workspace", p->step_bytes}};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (all[i].bytes > (size_t)PTRDIFF_MAX) return too_large(p, all[i].what);
    return BLURRY_OK;
}

static size_t element_bytes(blurry_dtype dtype)
{
    return dtype == BLURRY_F64 ? sizeof(double) : dtype == BLURRY_F32 ? sizeof(float) : 2;
}

static blurry_status build(blurry_attn_plan *p, const blurry_attn_desc *desc)
{
    STATUS_TRY(attn_desc_resolve(desc, &p->desc));
    if (p->desc.fold == 0) p->desc.fold = desc->device == BLURRY_DEVICE_CUDA ? FOLD_CUDA : FOLD_CPU;
    p->element = element_bytes(p->desc.dtype);
    p->state_element = p->desc.device == BLURRY_DEVICE_CUDA ? sizeof(float) : p->element;
    STATUS_TRY(check_extent(p));
    STATUS_TRY(set_periods(p));
    STATUS_TRY(set_step(p));
    set_shape(p);
    if (p->desc.device == BLURRY_DEVICE_CUDA) {
        STATUS_TRY(attn_cuda_build(p));
        STATUS_TRY(set_sizes(p));
        return p->kernel->prepare(&p->shape, &p->tables);
    }
    set_layout(p);
    cpu_isa isa = cpu_isa_select();
    p->kernel = p->desc.reference ? bla_kernel_reference(p->desc.dtype) : bla_kernel_fast(p->desc.dtype, isa);
    p->step_kernel = p->desc.reference ? bla_step_kernel_reference(p->desc.dtype)
                                       : bla_step_kernel_fast(p->desc.dtype, isa);
    p->fingerprint = attn_fingerprint(p);
    STATUS_TRY(set_sizes(p));
    return p->kernel->prepare(&p->shape, &p->tables);
}

blurry_status blurry_attn_plan_create(blurry_attn_plan **plan, const blurry_attn_desc *desc)
{
    if (!plan) return status_fail(BLURRY_E_INVALID, "plan is NULL: give the address of a plan pointer");
    *plan = NULL;
    blurry_attn_plan *p;
    STATUS_TRY(ALLOCATE(p, 1, "plan"));
    blurry_status status = build(p, desc);
    if (status != BLURRY_OK) {
        blurry_attn_plan_destroy(&p);
        return status;
    }
    *plan = p;
    return BLURRY_OK;
}

void blurry_attn_plan_destroy(blurry_attn_plan **plan)
{
    if (!plan || !*plan) return;
    blurry_attn_plan *p = *plan;
    if (p->kernel && p->tables) p->kernel->release(p->tables);
    attn_cuda_close(p);
    free(p->period);
    free(p->wish);
    free(p->raised);
    free(p->distinct);
    free(p->period_of);
    free(p->visible);
    free(p->sines);
    free(p);
    *plan = NULL;
}

void blurry_attn_plan_desc(const blurry_attn_plan *plan, blurry_attn_desc *desc)
{
    if (!desc) return;
    blurry_attn_desc_init(desc);
    if (plan) *desc = plan->desc;
}

const char *blurry_attn_plan_kernel(const blurry_attn_plan *plan)
{
    return plan ? plan->kernel->name : "";
}

size_t blurry_attn_forward_workspace(const blurry_attn_plan *plan)
{
    return plan ? plan->forward_bytes : 0;
}

size_t blurry_attn_backward_workspace(const blurry_attn_plan *plan)
{
    return plan ? plan->backward_bytes : 0;
}

size_t blurry_attn_step_workspace(const blurry_attn_plan *plan)
{
    return plan ? plan->step_bytes : 0;
}

size_t blurry_attn_saved_bytes(const blurry_attn_plan *plan)
{
    return plan ? plan->saved_bytes : 0;
}

size_t blurry_attn_state_bytes(const blurry_attn_plan *plan)
{
    return plan ? plan->layout.bytes : 0;
}

int64_t blurry_attn_state_elements(const blurry_attn_plan *plan)
{
    return plan ? plan->shape.Hkv * plan->shape.S * (plan->shape.Dk + plan->shape.Dv) : 0;
}
