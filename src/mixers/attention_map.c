/* Queries and keys are made as in a forward and brought to the host; the weights follow from them: by the
 * softmax itself, or, for blurry attention, from the operator, whose output is linear in v and shows its
 * weights where v is one-hot. */
#include "mixers/attention_map.h"

#include "base/memory.h"
#include "mixers/parts.h"
#include "mixers/values.h"

#include <math.h>

/* One head's queries and keys, [L, Dk] each. */
typedef struct head_streams {
    int64_t L, dim;
    double *q, *k;
} head_streams;

/* rows [L] of `dim` activations each, `stride` apart and starting at `first`, as double. */
static blurry_status read_head(device *dev, const void *from, int64_t L, int64_t stride, int64_t first,
                               int64_t dim, double *to)
{
    for (int64_t t = 0; t < L; t++) {
        const char *row = (const char *)from + (size_t)(t * stride + first) * dev->element;
        STATUS_TRY(values_read_activations(dev, row, dim, to + t * dim));
    }
    return BLURRY_OK;
}

/* Runs W x, convolution and RoPE, then reads the streams of `head` and of the key/value head it belongs to.
 */
static blurry_status read_streams(const mixer_pass *p, int64_t head, head_streams *s)
{
    const mixer_config *c = &p->layer->config;
    mixer_layout m = mixer_layout_begin(p);
    mixer_streams streams;
    mixer_streams_layout(p, &m, 0, 0, &streams);
    mixer_streams_forward(p, &streams);
    int64_t kv = head / (c->heads / c->heads_kv);
    STATUS_TRY(read_head(p->layer->dev, streams.out[STREAM_Q], p->L, c->heads * c->dim_k, head * c->dim_k,
                         c->dim_k, s->q));
    return read_head(p->layer->dev, streams.out[STREAM_K], p->L, c->heads_kv * c->dim_k, kv * c->dim_k,
                     c->dim_k, s->k);
}

static void softmax_map(const head_streams *s, int64_t window, double *weights)
{
    double scale = 1 / sqrt((double)s->dim);
    for (int64_t t = 0; t < s->L; t++) {
        double *row = weights + t * s->L, largest = -INFINITY, sum = 0;
        int64_t first = window && t + 1 > window ? t + 1 - window : 0;
        for (int64_t u = 0; u < s->L; u++) row[u] = 0;
        for (int64_t u = first; u <= t; u++) {
            for (int64_t i = 0; i < s->dim; i++)
                row[u] += scale * s->q[t * s->dim + i] * s->k[u * s->dim + i];
            largest = fmax(largest, row[u]);
        }
        for (int64_t u = first; u <= t; u++) sum += row[u] = exp(row[u] - largest);
        for (int64_t u = first; u <= t; u++) row[u] /= sum;
    }
}

static blurry_status run_one_hot(const blurry_attn_plan *plan, const head_streams *s, double *weights)
{
    void *v = NULL, *work = NULL;
    size_t bytes = blurry_attn_forward_workspace(plan);
    blurry_status status = memory_alloc(&v, (size_t)s->L, (size_t)s->L * sizeof(double), "attention map");
    if (status == BLURRY_OK) status = memory_alloc(&work, bytes, 1, "attention map");
    for (int64_t t = 0; status == BLURRY_OK && t < s->L; t++) ((double *)v)[t * s->L + t] = 1;
    if (status == BLURRY_OK)
        status = blurry_attn_forward(
            plan,
            &(blurry_attn_forward_args){
                .q = s->q, .k = s->k, .v = v, .o = weights, .workspace = work, .workspace_bytes = bytes});
    memory_free(v);
    memory_free(work);
    return status;
}

/* The layer's own plan knows the periods as they are now, learned ones included. */
static blurry_status blurry_map(const mixer_layer *layer, int64_t head, const head_streams *s,
                                double *weights)
{
    const mixer_config *c = &layer->config;
    blurry_attn_desc own, one;
    blurry_attn_plan *plan = NULL;
    blurry_attn_plan_desc(layer->plan, &own);
    blurry_attn_desc_init(&one);
    one.length = one.dim_v = s->L;
    one.dim_k = s->dim;
    one.modes = own.modes;
    one.period = &own.period[head / (c->heads / c->heads_kv)];
    one.scale = own.scale;
    one.decay = own.decay;
    one.grid = own.grid;
    one.dtype = BLURRY_F64;
    STATUS_TRY(blurry_attn_plan_create(&plan, &one));
    blurry_status status = run_one_hot(plan, s, weights);
    blurry_attn_plan_destroy(&plan);
    return status;
}

blurry_status mixer_attention_map(const mixer_pass *p, int64_t head, double *weights)
{
    const mixer_config *c = &p->layer->config;
    int blurry = c->type == &mixer_blurry;
    if (!blurry && c->type != &mixer_softmax && c->type != &mixer_swa)
        return status_fail(BLURRY_E_UNSUPPORTED,
                           "mixer is %s: only softmax, swa and blurry have attention weights", c->type->name);
    if (head < 0 || head >= c->heads)
        return status_fail(BLURRY_E_INVALID, "head is %lld: give 0 to %lld", (long long)head,
                           (long long)c->heads - 1);
    void *memory = NULL;
    STATUS_TRY(memory_alloc(&memory, (size_t)p->L, 2 * (size_t)c->dim_k * sizeof(double), "attention map"));
    head_streams s = {p->L, c->dim_k, memory, (double *)memory + p->L * c->dim_k};
    blurry_status status = read_streams(p, head, &s);
    if (status == BLURRY_OK && blurry) status = blurry_map(p->layer, head, &s, weights);
    if (status == BLURRY_OK && !blurry) softmax_map(&s, c->type == &mixer_swa ? c->window : 0, weights);
    memory_free(memory);
    return status;
}
