/* gdn, gated delta rule:
 *     q, k, v pass the short convolution, or a plain SiLU where it is off; q, k get unit length per head
 *     beta = sigmoid(Wb x);  g = -exp(A) softplus(Wa x + dt_bias), both one number per head
 *     S <- e^g S;  u = beta (v - S^T k);  S <- S + k u^T;  o = S^T q / sqrt(Dk)
 *     y = Wo(RMSNorm per head(o) * SiLU(Wg x))
 * State: S [H, Dk, Dv]. */
#include "mixers/parts.h"

#include <math.h>

static const double gdn_unit_eps = 1e-6;

typedef struct gdn_tensors {
    mixer_streams s;
    mixer_gated out;
    void *unit_q, *unit_k;        /* [rows, H Dk] */
    void *logit[2], *beta, *gate; /* [rows, H]; logits of beta and of the gate */
    void *d_logit[2];             /* first the gradients of beta and gate */
    void *notes, *carried;
} gdn_tensors;

static gdn_args gdn_core(const mixer_pass *p, const gdn_tensors *t)
{
    const mixer_config *c = &p->layer->config;
    return (gdn_args){.batch = p->B,
                      .length = p->L,
                      .heads = c->heads,
                      .dim_k = c->dim_k,
                      .dim_v = c->dim_v,
                      .scale = 1 / sqrt((double)c->dim_k),
                      .q = t->unit_q,
                      .k = t->unit_k,
                      .v = t->s.out[STREAM_V],
                      .beta = t->beta,
                      .g = t->gate,
                      .o = t->out.o.all,
                      .state_in = t->carried,
                      .state_out = t->carried,
                      .saved = t->notes,
                      .d_o = t->out.d_o.all,
                      .d_q = t->s.d_out[STREAM_Q],
                      .d_k = t->s.d_out[STREAM_K],
                      .d_v = t->s.d_out[STREAM_V],
                      .d_beta = t->d_logit[0],
                      .d_g = t->d_logit[1]};
}

static mixer_layout gdn_layout(const mixer_pass *p, gdn_tensors *t)
{
    const mixer_config *c = &p->layer->config;
    mixer_layout m = mixer_layout_begin(p);
    int64_t rows = mixer_rows(p), key = c->heads * c->dim_k;
    *t = (gdn_tensors){0};
    mixer_streams_layout(p, &m, !c->conv, 0, &t->s);
    mixer_gated_layout(p, &m, &t->out);
    t->unit_q = mixer_take(p, &m.saved, rows, key);
    t->unit_k = mixer_take(p, &m.saved, rows, key);
    for (int i = 0; i < 2; i++) t->logit[i] = mixer_take(p, &m.saved, rows, c->heads);
    t->beta = mixer_take(p, &m.saved, rows, c->heads);
    t->gate = mixer_take(p, &m.saved, rows, c->heads);
    for (int i = 0; i < 2 && p->keep; i++) t->d_logit[i] = mixer_take(p, &m.work, rows, c->heads);
    t->carried = mixer_take_statistics(p, &m.state, p->B * key, c->dim_v);
    kernel_sizes need = {0};
    gdn_args core = gdn_core(p, t);
    mixer_ops(p)->gdn_sizes(mixer_run(p), &core, &need);
    t->notes = mixer_take_kernel(p, &m, &need);
    return m;
}

static void gdn_mixer_sizes(const mixer_pass *p, mixer_sizes *sizes)
{
    gdn_tensors t;
    mixer_layout m = gdn_layout(p, &t);
    mixer_layout_sizes(&m, sizes);
}

/* Unit length of streams q and k, in one call where each tensor of k follows that of q, else in two. Backward
 * turns the core's gradient into the stream's in the same memory. Calls to make. */
static int gdn_units(const mixer_pass *p, const gdn_tensors *t, l2norm_args unit[2])
{
    const mixer_config *c = &p->layer->config;
    for (int stream = STREAM_Q; stream <= STREAM_K; stream++)
        unit[stream] = (l2norm_args){.rows = mixer_rows(p) * c->heads,
                                     .width = c->dim_k,
                                     .eps = gdn_unit_eps,
                                     .x = t->s.out[stream],
                                     .y = stream == STREAM_Q ? t->unit_q : t->unit_k,
                                     .d_y = t->s.d_out[stream],
                                     .d_x = t->s.d_out[stream]};
    int64_t count = unit[0].rows * c->dim_k;
    if (!mixer_follows(p, unit[0].x, unit[1].x, count) || !mixer_follows(p, unit[0].y, unit[1].y, count) ||
        (p->keep && !mixer_follows(p, unit[0].d_y, unit[1].d_y, count)))
        return 2;
    unit[0].rows *= 2;
    return 1;
}

/* The maps to the logits of beta and of the gate. */
static mixer_maps gdn_logits(const mixer_pass *p, const gdn_tensors *t, int64_t out[2])
{
    static const mixer_parameter weight[2] = {MIXER_BETA, MIXER_ALPHA};
    out[0] = out[1] = p->layer->config.heads;
    return (mixer_maps){.count = 2,
                        .rows = mixer_rows(p),
                        .weight = weight,
                        .in = p->layer->config.width,
                        .out = out,
                        .y = t->logit,
                        .d_y = (const void *const *)t->d_logit};
}

static gdn_gate_args gdn_gate(const mixer_pass *p, const gdn_tensors *t)
{
    return (gdn_gate_args){.rows = mixer_rows(p),
                           .heads = p->layer->config.heads,
                           .x = t->logit[1],
                           .A = p->layer->parameter[MIXER_A],
                           .dt_bias = p->layer->parameter[MIXER_DT_BIAS],
                           .g = t->gate,
                           .d_g = t->d_logit[1],
                           .d_x = t->d_logit[1],
                           .d_A = p->layer->gradient[MIXER_A],
                           .d_dt_bias = p->layer->gradient[MIXER_DT_BIAS]};
}

static unary_args gdn_beta(const mixer_pass *p, const gdn_tensors *t)
{
    return (unary_args){.kind = UNARY_SIGMOID,
                        .count = mixer_rows(p) * p->layer->config.heads,
                        .x = t->logit[0],
                        .y = t->beta,
                        .d_y = t->d_logit[0],
                        .d_x = t->d_logit[0]};
}

static void gdn_mixer_forward(const mixer_pass *p)
{
    gdn_tensors t;
    gdn_layout(p, &t);
    l2norm_args unit[2];
    int64_t out[2];
    int units = gdn_units(p, &t, unit);
    mixer_maps logits = gdn_logits(p, &t, out);
    gdn_args core = gdn_core(p, &t);
    gdn_gate_args gate = gdn_gate(p, &t);
    unary_args beta = gdn_beta(p, &t);
    mixer_streams_forward(p, &t.s);
    for (int i = 0; i < units; i++) mixer_ops(p)->l2norm_forward(mixer_run(p), &unit[i]);
    mixer_maps_forward(p, &logits, p->x);
    mixer_ops(p)->unary_forward(mixer_run(p), &beta);
    mixer_ops(p)->gdn_gate_forward(mixer_run(p), &gate);
    mixer_ops(p)->gdn_forward(mixer_run(p), &core);
    mixer_gated_forward(p, &t.out);
}

static void gdn_mixer_backward(const mixer_pass *p)
{
    gdn_tensors t;
    gdn_layout(p, &t);
    l2norm_args unit[2];
    int64_t out[2];
    int units = gdn_units(p, &t, unit);
    mixer_maps logits = gdn_logits(p, &t, out);
    gdn_args core = gdn_core(p, &t);
    gdn_gate_args gate = gdn_gate(p, &t);
    unary_args beta = gdn_beta(p, &t);
    mixer_gated_backward(p, &t.out);
    mixer_ops(p)->gdn_backward(mixer_run(p), &core);
    mixer_ops(p)->gdn_gate_backward(mixer_run(p), &gate);
    mixer_ops(p)->unary_backward(mixer_run(p), &beta);
    mixer_maps_backward(p, &logits, p->x, p->d_x, 1);
    for (int i = 0; i < units; i++) mixer_ops(p)->l2norm_backward(mixer_run(p), &unit[i]);
    mixer_streams_backward(p, &t.s, 1);
}

static void gdn_parameters(const mixer_config *c, mixer_parameter_list *list)
{
    mixer_stream_parameters(c, list);
    mixer_add_parameter(list, MIXER_BETA, "b.weight", INIT_NORMAL, c->heads, c->width);
    mixer_add_parameter(list, MIXER_ALPHA, "a.weight", INIT_NORMAL, c->heads, c->width);
    mixer_add_parameter(list, MIXER_A, "A", INIT_GDN_A, c->heads, 0);
    mixer_add_parameter(list, MIXER_DT_BIAS, "dt_bias", INIT_GDN_DT, c->heads, 0);
    mixer_gated_parameters(c, list);
}

static int64_t gdn_state_elements(const mixer_config *c, int64_t length)
{
    (void)length;
    return c->heads * c->dim_k * c->dim_v;
}

const mixer mixer_gdn = {
    .name = "gdn",
    .summary = "gated delta rule (gated DeltaNet)",
    .expand_k = 1,
    .expand_v = 1,
    .value_from_key = 1,
    .parameters = gdn_parameters,
    .state_elements = gdn_state_elements,
    .conv_channels = mixer_stream_channels,
    .sizes = gdn_mixer_sizes,
    .forward = gdn_mixer_forward,
    .backward = gdn_mixer_backward,
};
