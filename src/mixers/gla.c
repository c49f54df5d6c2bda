/* gla, gated linear attention:
 *     gate = logsigmoid(W2 W1 x + b) / 16 per key channel;  h_t = diag(e^gate) h_{t-1} + k_t v_t^T
 *     o_t = h_t^T q_t / sqrt(Dk);  y = Wo(RMSNorm per head(o) * SiLU(Wg x))
 * State: h [H, Dk, Dv]. */
#include "mixers/parts.h"

#include <math.h>

enum { GLA_RANK = 16 };
static const double gla_gate_scale = 1.0 / 16;

typedef struct gla_tensors {
    mixer_streams s;
    mixer_gated out;
    void *rank;         /* [rows, 16] W1 x */
    void *logit, *gate; /* [rows, H Dk] W2 W1 x + b, and the log gate */
    void *d_gate, *d_rank;
    void *notes, *carried;
} gla_tensors;

static gla_args gla_core(const mixer_pass *p, const gla_tensors *t)
{
    const mixer_config *c = &p->layer->config;
    return (gla_args){.batch = p->B,
                      .length = p->L,
                      .heads = c->heads,
                      .dim_k = c->dim_k,
                      .dim_v = c->dim_v,
                      .scale = 1 / sqrt((double)c->dim_k),
                      .q = t->s.out[STREAM_Q],
                      .k = t->s.out[STREAM_K],
                      .v = t->s.out[STREAM_V],
                      .g = t->gate,
                      .o = t->out.o.all,
                      .state_in = t->carried,
                      .state_out = t->carried,
                      .saved = t->notes,
                      .d_o = t->out.d_o.all,
                      .d_q = t->s.d_out[STREAM_Q],
                      .d_k = t->s.d_out[STREAM_K],
                      .d_v = t->s.d_out[STREAM_V],
                      .d_g = t->d_gate};
}

static mixer_layout gla_layout(const mixer_pass *p, gla_tensors *t)
{
    const mixer_config *c = &p->layer->config;
    mixer_layout m = mixer_layout_begin(p);
    int64_t rows = mixer_rows(p), key = c->heads * c->dim_k;
    *t = (gla_tensors){0};
    mixer_streams_layout(p, &m, 0, 0, &t->s);
    mixer_gated_layout(p, &m, &t->out);
    t->rank = mixer_take(p, &m.saved, rows, GLA_RANK);
    t->logit = mixer_take(p, &m.saved, rows, key);
    t->gate = mixer_take(p, &m.saved, rows, key);
    if (p->keep) {
        t->d_gate = mixer_take(p, &m.work, rows, key);
        t->d_rank = mixer_take(p, &m.work, rows, GLA_RANK);
    }
    t->carried = mixer_take_statistics(p, &m.state, p->B * key, c->dim_v);
    kernel_sizes need = {0};
    gla_args core = gla_core(p, t);
    mixer_ops(p)->gla_sizes(mixer_run(p), &core, &need);
    t->notes = mixer_take_kernel(p, &m, &need);
    return m;
}

static void gla_mixer_sizes(const mixer_pass *p, mixer_sizes *sizes)
{
    gla_tensors t;
    mixer_layout m = gla_layout(p, &t);
    mixer_layout_sizes(&m, sizes);
}

/* rank -> logit, with bias; the gate's maps both ways. */
static linear_args gla_second_map(const mixer_pass *p, const gla_tensors *t)
{
    const mixer_config *c = &p->layer->config;
    return (linear_args){.rows = mixer_rows(p),
                         .in = GLA_RANK,
                         .out = c->heads * c->dim_k,
                         .x = t->rank,
                         .weight = p->layer->weight[MIXER_GK2],
                         .bias = p->layer->weight[MIXER_GK2_BIAS],
                         .y = t->logit,
                         .d_y = t->d_gate,
                         .d_x = t->d_rank,
                         .d_weight = p->layer->gradient[MIXER_GK2],
                         .d_bias = p->layer->gradient[MIXER_GK2_BIAS]};
}

static unary_args gla_log_gate(const mixer_pass *p, const gla_tensors *t)
{
    const mixer_config *c = &p->layer->config;
    return (unary_args){.kind = UNARY_LOGSIGMOID,
                        .count = mixer_rows(p) * c->heads * c->dim_k,
                        .scale = gla_gate_scale,
                        .x = t->logit,
                        .y = t->gate,
                        .d_y = t->d_gate,
                        .d_x = t->d_gate};
}

static void gla_mixer_forward(const mixer_pass *p)
{
    gla_tensors t;
    gla_layout(p, &t);
    gla_args core = gla_core(p, &t);
    linear_args second = gla_second_map(p, &t);
    unary_args log_gate = gla_log_gate(p, &t);
    mixer_streams_forward(p, &t.s);
    mixer_linear(p, MIXER_GK1, p->x, p->layer->config.width, GLA_RANK, t.rank);
    mixer_ops(p)->linear_forward(mixer_run(p), &second);
    mixer_ops(p)->unary_forward(mixer_run(p), &log_gate);
    mixer_ops(p)->gla_forward(mixer_run(p), &core);
    mixer_gated_forward(p, &t.out);
}

static void gla_mixer_backward(const mixer_pass *p)
{
    gla_tensors t;
    gla_layout(p, &t);
    gla_args core = gla_core(p, &t);
    linear_args second = gla_second_map(p, &t);
    unary_args log_gate = gla_log_gate(p, &t);
    mixer_gated_backward(p, &t.out);
    mixer_ops(p)->gla_backward(mixer_run(p), &core);
    mixer_ops(p)->unary_backward(mixer_run(p), &log_gate);
    mixer_ops(p)->linear_backward(mixer_run(p), &second);
    mixer_linear_backward(p, MIXER_GK1, p->x, t.d_rank, p->layer->config.width, GLA_RANK, p->d_x, 1);
    mixer_streams_backward(p, &t.s, 1);
}

static void gla_parameters(const mixer_config *c, mixer_parameter_list *list)
{
    int64_t key = c->heads * c->dim_k;
    mixer_stream_parameters(c, list);
    mixer_add_parameter(list, MIXER_GK1, "gk1.weight", INIT_NORMAL, GLA_RANK, c->width);
    mixer_add_parameter(list, MIXER_GK2, "gk2.weight", INIT_NORMAL, key, GLA_RANK);
    mixer_add_parameter(list, MIXER_GK2_BIAS, "gk2.bias", INIT_ZERO, key, 0);
    mixer_gated_parameters(c, list);
}

static int64_t gla_state_elements(const mixer_config *c, int64_t length)
{
    (void)length;
    return c->heads * c->dim_k * c->dim_v;
}

const mixer mixer_gla = {
    .name = "gla",
    .summary = "gated linear attention, a gate per key channel",
    .expand_k = 0.5,
    .expand_v = 1,
    .parameters = gla_parameters,
    .state_elements = gla_state_elements,
    .conv_channels = mixer_stream_channels,
    .sizes = gla_mixer_sizes,
    .forward = gla_mixer_forward,
    .backward = gla_mixer_backward,
};
