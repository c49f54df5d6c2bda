/* gsa, gated slot attention:
 *     q, k, v = SiLU(W x);  g = logsigmoid(Wf x) / 8 per head and slot
 *     K_t = e^g K_{t-1} + (1 - e^g) k_t, V likewise;  o_t = softmax_slots(<q_t, K_t>) V_t, scale 1
 *     y = Wo RMSNorm(SiLU(o)), the norm over all heads together
 * State: the slots [H, S, Dk + Dv]. */
#include "mixers/parts.h"

static const double gsa_gate_scale = 1.0 / 8;

typedef struct gsa_tensors {
    mixer_streams s;
    void *logit, *gate;                         /* [rows, H S] */
    mixer_picked o, d_o;                        /* [rows, H Dv] */
    void *rstd, *activated, *normed, *d_normed; /* [rows], [rows, H Dv] where y is wanted */
    void *d_gate;
    void *notes, *carried;
} gsa_tensors;

static slots_args gsa_core(const mixer_pass *p, const gsa_tensors *t)
{
    const mixer_config *c = &p->layer->config;
    return (slots_args){.batch = p->B,
                        .length = p->L,
                        .heads = c->heads,
                        .dim_k = c->dim_k,
                        .dim_v = c->dim_v,
                        .slots = c->slots,
                        .scale = 1,
                        .q = t->s.out[STREAM_Q],
                        .k = t->s.out[STREAM_K],
                        .v = t->s.out[STREAM_V],
                        .g = t->gate,
                        .o = t->o.all,
                        .state_in = t->carried,
                        .state_out = t->carried,
                        .saved = t->notes,
                        .d_o = t->d_o.all,
                        .d_q = t->s.d_out[STREAM_Q],
                        .d_k = t->s.d_out[STREAM_K],
                        .d_v = t->s.d_out[STREAM_V],
                        .d_g = t->d_gate};
}

static mixer_layout gsa_layout(const mixer_pass *p, gsa_tensors *t)
{
    const mixer_config *c = &p->layer->config;
    mixer_layout m = mixer_layout_begin(p);
    int64_t rows = mixer_rows(p), wanted = mixer_wanted(p);
    int64_t slots = c->heads * c->slots, value = c->heads * c->dim_v;
    *t = (gsa_tensors){0};
    mixer_streams_layout(p, &m, 1, 0, &t->s);
    t->logit = mixer_take(p, &m.saved, rows, slots);
    t->gate = mixer_take(p, &m.saved, rows, slots);
    t->o = mixer_take_picked(p, &m.saved, value);
    t->rstd = mixer_take_statistics(p, &m.saved, wanted, 1);
    t->activated = mixer_take(p, mixer_again(p, &m), wanted, value);
    t->normed = mixer_take(p, mixer_again(p, &m), wanted, value);
    if (p->keep) {
        t->d_gate = mixer_take(p, &m.work, rows, slots);
        t->d_o = mixer_take_picked(p, &m.work, value);
        t->d_normed = mixer_take(p, &m.work, wanted, value);
    }
    t->carried = mixer_take_statistics(p, &m.state, p->B * slots, c->dim_k + c->dim_v);
    kernel_sizes need = {0};
    slots_args core = gsa_core(p, t);
    mixer_ops(p)->slots_sizes(mixer_run(p), &core, &need);
    t->notes = mixer_take_kernel(p, &m, &need);
    return m;
}

static void gsa_sizes(const mixer_pass *p, mixer_sizes *sizes)
{
    gsa_tensors t;
    mixer_layout m = gsa_layout(p, &t);
    mixer_layout_sizes(&m, sizes);
}

static unary_args gsa_log_gate(const mixer_pass *p, const gsa_tensors *t)
{
    const mixer_config *c = &p->layer->config;
    return (unary_args){.kind = UNARY_LOGSIGMOID,
                        .count = mixer_rows(p) * c->heads * c->slots,
                        .scale = gsa_gate_scale,
                        .x = t->logit,
                        .y = t->gate,
                        .d_y = t->d_gate,
                        .d_x = t->d_gate};
}

static unary_args gsa_activation(const mixer_pass *p, const gsa_tensors *t)
{
    const mixer_config *c = &p->layer->config;
    return (unary_args){.kind = UNARY_SILU,
                        .count = mixer_wanted(p) * c->heads * c->dim_v,
                        .x = t->o.wanted,
                        .y = t->activated,
                        .d_y = t->d_o.wanted,
                        .d_x = t->d_o.wanted};
}

static norm_args gsa_norm(const mixer_pass *p, const gsa_tensors *t)
{
    const mixer_config *c = &p->layer->config;
    return (norm_args){.rows = mixer_wanted(p),
                       .width = c->heads * c->dim_v,
                       .eps = MIXER_NORM_EPS,
                       .x = t->activated,
                       .weight = p->layer->parameter[MIXER_NORM],
                       .y = t->normed,
                       .rstd = t->rstd,
                       .d_y = t->d_normed,
                       .d_x = t->d_o.wanted,
                       .d_weight = p->layer->gradient[MIXER_NORM]};
}

static void gsa_forward(const mixer_pass *p)
{
    const mixer_config *c = &p->layer->config;
    gsa_tensors t;
    gsa_layout(p, &t);
    slots_args core = gsa_core(p, &t);
    unary_args log_gate = gsa_log_gate(p, &t), activation = gsa_activation(p, &t);
    norm_args norm = gsa_norm(p, &t);
    mixer_streams_forward(p, &t.s);
    mixer_linear(p, MIXER_SLOT, p->x, c->width, c->heads * c->slots, t.logit);
    mixer_ops(p)->unary_forward(mixer_run(p), &log_gate);
    mixer_ops(p)->slots_forward(mixer_run(p), &core);
    mixer_pick(p, &t.o, c->heads * c->dim_v);
    mixer_ops(p)->unary_forward(mixer_run(p), &activation);
    mixer_ops(p)->rmsnorm_forward(mixer_run(p), &norm);
    mixer_output(p, t.normed, c->heads * c->dim_v);
}

static void gsa_backward(const mixer_pass *p)
{
    const mixer_config *c = &p->layer->config;
    gsa_tensors t;
    gsa_layout(p, &t);
    slots_args core = gsa_core(p, &t);
    unary_args log_gate = gsa_log_gate(p, &t), activation = gsa_activation(p, &t);
    norm_args norm = gsa_norm(p, &t);
    if (!mixer_kept(p)) {
        mixer_ops(p)->unary_forward(mixer_run(p), &activation);
        mixer_ops(p)->rmsnorm_forward(mixer_run(p), &norm);
    }
    mixer_output_backward(p, t.normed, c->heads * c->dim_v, t.d_normed);
    mixer_ops(p)->rmsnorm_backward(mixer_run(p), &norm);
    mixer_ops(p)->unary_backward(mixer_run(p), &activation);
    mixer_put(p, &t.d_o, c->heads * c->dim_v);
    mixer_ops(p)->slots_backward(mixer_run(p), &core);
    mixer_ops(p)->unary_backward(mixer_run(p), &log_gate);
    mixer_linear_backward(p, MIXER_SLOT, p->x, t.d_gate, c->width, c->heads * c->slots, p->d_x, 0);
    mixer_streams_backward(p, &t.s, 1);
}

static void gsa_parameters(const mixer_config *c, mixer_parameter_list *list)
{
    int64_t value = c->heads * c->dim_v;
    mixer_stream_parameters(c, list);
    mixer_add_parameter(list, MIXER_SLOT, "f.weight", INIT_NORMAL, c->heads * c->slots, c->width);
    mixer_add_parameter(list, MIXER_NORM, "norm.weight", INIT_ONE, value, 0);
    mixer_add_parameter(list, MIXER_O, "o.weight", INIT_NORMAL, c->width, value);
}

static int64_t gsa_state_elements(const mixer_config *c, int64_t length)
{
    (void)length;
    return c->heads * c->slots * (c->dim_k + c->dim_v);
}

const mixer mixer_gsa = {
    .name = "gsa",
    .summary = "gated slot attention: slots that fade by a learned gate",
    .expand_k = 1,
    .expand_v = 1,
    .parameters = gsa_parameters,
    .state_elements = gsa_state_elements,
    .conv_channels = mixer_stream_channels,
    .sizes = gsa_sizes,
    .forward = gsa_forward,
    .backward = gsa_backward,
};
