/* abc, attention with bounded memory: a running softmax over time decides what each slot keeps.
 *     s = clamp(Ws x, -32, 32) per head and slot;  z_t = log sum_{u<=t} e^{s_u};  g_t = z_{t-1} - z_t
 *     K_t = e^g K_{t-1} + (1 - e^g) k_t, V likewise;  o_t = softmax_slots(<q_t, K_t> / sqrt(Dk)) V_t;  RoPE
 * on q, k y = Wo(RMSNorm per head(o) * SiLU(Wg x)) State: the running z [H, S] and the slots [H, S, Dk + Dv].
 */
#include "mixers/parts.h"

#include "base/memory.h"

#include <math.h>

static const double abc_limit = 32;

typedef struct abc_tensors {
    mixer_streams s;
    mixer_gated out;
    void *score, *clamped, *gate; /* [rows, H S] */
    void *d_gate;
    void *notes, *carried_z, *carried;
} abc_tensors;

static slots_args abc_core(const mixer_pass *p, const abc_tensors *t)
{
    const mixer_config *c = &p->layer->config;
    return (slots_args){.batch = p->B,
                        .length = p->L,
                        .heads = c->heads,
                        .dim_k = c->dim_k,
                        .dim_v = c->dim_v,
                        .slots = c->slots,
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

static mixer_layout abc_layout(const mixer_pass *p, abc_tensors *t)
{
    const mixer_config *c = &p->layer->config;
    mixer_layout m = mixer_layout_begin(p);
    int64_t rows = mixer_rows(p), slots = c->heads * c->slots;
    *t = (abc_tensors){0};
    mixer_streams_layout(p, &m, 0, 0, &t->s);
    mixer_gated_layout(p, &m, &t->out);
    t->score = mixer_take(p, &m.saved, rows, slots);
    t->clamped = mixer_take(p, &m.saved, rows, slots);
    t->gate = mixer_take(p, &m.saved, rows, slots);
    if (p->keep) t->d_gate = mixer_take(p, &m.work, rows, slots);
    t->carried_z = mixer_take_statistics(p, &m.state, p->B, slots);
    t->carried = mixer_take_statistics(p, &m.state, p->B * slots, c->dim_k + c->dim_v);
    kernel_sizes need = {0};
    slots_args core = abc_core(p, t);
    mixer_ops(p)->slots_sizes(mixer_run(p), &core, &need);
    t->notes = mixer_take_kernel(p, &m, &need);
    return m;
}

static void abc_sizes(const mixer_pass *p, mixer_sizes *sizes)
{
    abc_tensors t;
    mixer_layout m = abc_layout(p, &t);
    mixer_layout_sizes(&m, sizes);
}

static unary_args abc_clamp(const mixer_pass *p, const abc_tensors *t)
{
    const mixer_config *c = &p->layer->config;
    return (unary_args){.kind = UNARY_CLAMP,
                        .count = mixer_rows(p) * c->heads * c->slots,
                        .limit = abc_limit,
                        .x = t->score,
                        .y = t->clamped,
                        .d_y = t->d_gate,
                        .d_x = t->d_gate};
}

/* The gate's gradient is turned into the scores' in the same memory. */
static slots_gate_args abc_gate(const mixer_pass *p, const abc_tensors *t)
{
    const mixer_config *c = &p->layer->config;
    return (slots_gate_args){.batch = p->B,
                             .length = p->L,
                             .channels = c->heads * c->slots,
                             .s = t->clamped,
                             .g = t->gate,
                             .state_in = t->carried_z,
                             .state_out = t->carried_z,
                             .d_g = t->d_gate,
                             .d_s = t->d_gate};
}

static void abc_forward(const mixer_pass *p)
{
    const mixer_config *c = &p->layer->config;
    abc_tensors t;
    abc_layout(p, &t);
    slots_args core = abc_core(p, &t);
    unary_args clamp = abc_clamp(p, &t);
    slots_gate_args gate = abc_gate(p, &t);
    mixer_streams_forward(p, &t.s);
    mixer_linear(p, MIXER_SLOT, p->x, c->width, c->heads * c->slots, t.score);
    mixer_ops(p)->unary_forward(mixer_run(p), &clamp);
    mixer_ops(p)->slots_gate_forward(mixer_run(p), &gate);
    mixer_ops(p)->slots_forward(mixer_run(p), &core);
    mixer_gated_forward(p, &t.out);
}

static void abc_backward(const mixer_pass *p)
{
    const mixer_config *c = &p->layer->config;
    abc_tensors t;
    abc_layout(p, &t);
    slots_args core = abc_core(p, &t);
    unary_args clamp = abc_clamp(p, &t);
    slots_gate_args gate = abc_gate(p, &t);
    mixer_gated_backward(p, &t.out);
    mixer_ops(p)->slots_backward(mixer_run(p), &core);
    mixer_ops(p)->slots_gate_backward(mixer_run(p), &gate);
    mixer_ops(p)->unary_backward(mixer_run(p), &clamp);
    mixer_linear_backward(p, MIXER_SLOT, p->x, t.d_gate, c->width, c->heads * c->slots, p->d_x, 1);
    mixer_streams_backward(p, &t.s, 1);
}

/* Nothing seen yet: z = -infinity. */
static blurry_status abc_state_init(const mixer_pass *p)
{
    abc_tensors t;
    abc_layout(p, &t);
    int64_t count = p->B * p->layer->config.heads * p->layer->config.slots;
    size_t element = p->layer->dev->stat_element;
    void *host;
    STATUS_TRY(memory_alloc(&host, (size_t)count, element, "state of abc"));
    for (int64_t i = 0; i < count; i++) {
        if (element == sizeof(double))
            ((double *)host)[i] = -INFINITY;
        else
            ((float *)host)[i] = -INFINITY;
    }
    blurry_status status = device_upload(p->layer->dev, t.carried_z, host, (size_t)count * element);
    memory_free(host);
    return status;
}

static void abc_parameters(const mixer_config *c, mixer_parameter_list *list)
{
    mixer_stream_parameters(c, list);
    mixer_add_parameter(list, MIXER_SLOT, "s.weight", INIT_NORMAL, c->heads * c->slots, c->width);
    mixer_gated_parameters(c, list);
}

static int64_t abc_state_elements(const mixer_config *c, int64_t length)
{
    (void)length;
    return c->heads * c->slots * (c->dim_k + c->dim_v + 1); /* the running z is the 1 */
}

const mixer mixer_abc = {
    .name = "abc",
    .summary = "attention with bounded memory: slots written by a running softmax over time",
    .expand_k = 0.5,
    .expand_v = 1,
    .rotary = 1,
    .parameters = abc_parameters,
    .state_elements = abc_state_elements,
    .conv_channels = mixer_stream_channels,
    .sizes = abc_sizes,
    .state_init = abc_state_init,
    .forward = abc_forward,
    .backward = abc_backward,
};
