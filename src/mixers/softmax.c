/* softmax and swa: causal softmax attention over all keys, or over the last `window` of them.
 *     q, k, v = W x;  RoPE on q, k;  o_t = sum_u softmax_u(<q_t, k_u> / sqrt(Dk)) v_u;  y = Wo o
 * State: the carried keys and values, a ring of `capacity` tokens. */
#include "mixers/parts.h"

#include <math.h>

typedef struct softmax_tensors {
    mixer_streams s;
    mixer_picked o, d_o; /* [rows, H Dv] */
    void *lse;
    void *cache_k, *cache_v;
} softmax_tensors;

static int64_t softmax_window(const mixer_config *c)
{
    return c->type == &mixer_swa ? c->window : 0;
}

static int64_t softmax_capacity(const mixer_layer *layer)
{
    int64_t window = softmax_window(&layer->config);
    return window && window < layer->capacity ? window : layer->capacity;
}

static attention_args softmax_core(const mixer_pass *p, const softmax_tensors *t)
{
    const mixer_config *c = &p->layer->config;
    return (attention_args){.batch = p->B,
                            .length = p->L,
                            .heads = c->heads,
                            .heads_kv = c->heads_kv,
                            .dim_k = c->dim_k,
                            .dim_v = c->dim_v,
                            .window = softmax_window(c),
                            .scale = 1 / sqrt((double)c->dim_k),
                            .q = t->s.out[STREAM_Q],
                            .k = t->s.out[STREAM_K],
                            .v = t->s.out[STREAM_V],
                            .o = t->o.all,
                            .lse = t->lse,
                            .cache_k = t->cache_k,
                            .cache_v = t->cache_v,
                            .capacity = softmax_capacity(p->layer),
                            .position = p->position,
                            .d_o = t->d_o.all,
                            .d_q = t->s.d_out[STREAM_Q],
                            .d_k = t->s.d_out[STREAM_K],
                            .d_v = t->s.d_out[STREAM_V]};
}

static mixer_layout softmax_layout(const mixer_pass *p, softmax_tensors *t)
{
    const mixer_config *c = &p->layer->config;
    mixer_layout m = mixer_layout_begin(p);
    int64_t rows = mixer_rows(p), carried = p->B * softmax_capacity(p->layer);
    *t = (softmax_tensors){0};
    mixer_streams_layout(p, &m, 0, 0, &t->s);
    t->o = mixer_take_picked(p, &m.saved, c->heads * c->dim_v);
    if (p->keep) {
        t->lse = mixer_take_statistics(p, &m.saved, rows, c->heads);
        t->d_o = mixer_take_picked(p, &m.work, c->heads * c->dim_v);
    }
    t->cache_k = mixer_take_statistics(p, &m.state, carried, c->heads_kv * c->dim_k);
    t->cache_v = mixer_take_statistics(p, &m.state, carried, c->heads_kv * c->dim_v);
    return m;
}

static void softmax_sizes(const mixer_pass *p, mixer_sizes *sizes)
{
    softmax_tensors t;
    kernel_sizes need = {0};
    mixer_layout m = softmax_layout(p, &t);
    attention_args core = softmax_core(p, &t);
    mixer_ops(p)->attention_sizes(mixer_run(p), &core, &need);
    m.scratch = need.scratch;
    mixer_layout_sizes(&m, sizes);
}

static void softmax_forward(const mixer_pass *p)
{
    int64_t value = p->layer->config.heads * p->layer->config.dim_v;
    softmax_tensors t;
    softmax_layout(p, &t);
    attention_args core = softmax_core(p, &t);
    mixer_streams_forward(p, &t.s);
    mixer_ops(p)->attention_forward(mixer_run(p), &core);
    mixer_pick(p, &t.o, value);
    mixer_output(p, t.o.wanted, value);
}

static void softmax_backward(const mixer_pass *p)
{
    int64_t value = p->layer->config.heads * p->layer->config.dim_v;
    softmax_tensors t;
    softmax_layout(p, &t);
    attention_args core = softmax_core(p, &t);
    mixer_output_backward(p, t.o.wanted, value, t.d_o.wanted);
    mixer_put(p, &t.d_o, value);
    mixer_ops(p)->attention_backward(mixer_run(p), &core);
    mixer_streams_backward(p, &t.s, 0);
}

static void softmax_parameters(const mixer_config *c, mixer_parameter_list *list)
{
    mixer_stream_parameters(c, list);
    mixer_add_parameter(list, MIXER_O, "o.weight", INIT_NORMAL, c->width, c->heads * c->dim_v);
}

static int64_t softmax_state_elements(const mixer_config *c, int64_t length)
{
    int64_t window = softmax_window(c);
    return c->heads_kv * (c->dim_k + c->dim_v) * (window && window < length ? window : length);
}

const mixer mixer_softmax = {
    .name = "softmax",
    .summary = "causal softmax attention over all keys; its state grows with the length",
    .expand_k = 1,
    .expand_v = 1,
    .grouped = 1,
    .rotary = 1,
    .folds = 1,
    .parameters = softmax_parameters,
    .state_elements = softmax_state_elements,
    .conv_channels = mixer_stream_channels,
    .sizes = softmax_sizes,
    .forward = softmax_forward,
    .backward = softmax_backward,
};

const mixer mixer_swa = {
    .name = "swa",
    .summary = "sliding-window attention over the last `window` keys",
    .expand_k = 1,
    .expand_v = 1,
    .grouped = 1,
    .rotary = 1,
    .folds = 1,
    .parameters = softmax_parameters,
    .state_elements = softmax_state_elements,
    .conv_channels = mixer_stream_channels,
    .sizes = softmax_sizes,
    .forward = softmax_forward,
    .backward = softmax_backward,
};
