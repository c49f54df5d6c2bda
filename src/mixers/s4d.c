/* s4d, a diagonal state space per channel with N/2 conjugate pairs of modes:
 *     A = -1/2 + i pi n, zero-order hold with step e^log_step;  y = Wo GELU(2 Re(C h) + D x)
 * With the short convolution on, it stands in front of the input x. State: h [N/2, 2, d]. */
#include "mixers/parts.h"

#include "base/status.h"

typedef struct s4d_tensors {
    void *input;                     /* [rows, d] x, or its convolution */
    mixer_picked scanned, d_scanned; /* [rows, d] */
    void *activated;                 /* [rows, d] where y is wanted */
    void *d_input;
    void *notes, *carried_conv, *carried;
} s4d_tensors;

static ssm_args s4d_core(const mixer_pass *p, const s4d_tensors *t)
{
    const mixer_layer *layer = p->layer;
    return (ssm_args){.batch = p->B,
                      .length = p->L,
                      .channels = layer->config.width,
                      .modes = layer->config.state / 2,
                      .u = layer->config.conv ? t->input : p->x,
                      .log_step = layer->parameter[MIXER_LOG_STEP],
                      .c_re = layer->parameter[MIXER_C_RE],
                      .c_im = layer->parameter[MIXER_C_IM],
                      .d = layer->parameter[MIXER_D],
                      .y = t->scanned.all,
                      .state_in = t->carried,
                      .state_out = t->carried,
                      .saved = t->notes,
                      .d_y = t->d_scanned.all,
                      .d_u = layer->config.conv ? t->d_input : p->d_x,
                      .d_log_step = layer->gradient[MIXER_LOG_STEP],
                      .d_c_re = layer->gradient[MIXER_C_RE],
                      .d_c_im = layer->gradient[MIXER_C_IM],
                      .d_d = layer->gradient[MIXER_D]};
}

static mixer_layout s4d_layout(const mixer_pass *p, s4d_tensors *t)
{
    const mixer_config *c = &p->layer->config;
    mixer_layout m = mixer_layout_begin(p);
    int64_t rows = mixer_rows(p);
    *t = (s4d_tensors){0};
    if (c->conv) t->input = mixer_take(p, &m.saved, rows, c->width);
    t->scanned = mixer_take_picked(p, &m.saved, c->width);
    t->activated = mixer_take(p, &m.work, mixer_wanted(p), c->width);
    if (p->keep) {
        t->d_scanned = mixer_take_picked(p, &m.work, c->width);
        if (c->conv) t->d_input = mixer_take(p, &m.work, rows, c->width);
    }
    if (c->conv) t->carried_conv = mixer_take_statistics(p, &m.state, p->B * (MIXER_CONV_TAPS - 1), c->width);
    t->carried = mixer_take_statistics(p, &m.state, p->B * c->state, c->width);
    kernel_sizes need = {0};
    ssm_args core = s4d_core(p, t);
    mixer_ops(p)->ssm_sizes(mixer_run(p), &core, &need);
    t->notes = mixer_take_kernel(p, &m, &need);
    return m;
}

static void s4d_sizes(const mixer_pass *p, mixer_sizes *sizes)
{
    s4d_tensors t;
    mixer_layout m = s4d_layout(p, &t);
    mixer_layout_sizes(&m, sizes);
}

static conv_args s4d_conv(const mixer_pass *p, const s4d_tensors *t)
{
    return (conv_args){.batch = p->B,
                       .length = p->L,
                       .channels = p->layer->config.width,
                       .kernel = MIXER_CONV_TAPS,
                       .silu = 1,
                       .x = p->x,
                       .weight = p->layer->parameter[MIXER_CONV_V],
                       .y = t->input,
                       .state_in = t->carried_conv,
                       .state_out = t->carried_conv,
                       .d_y = t->d_input,
                       .d_x = p->d_x,
                       .d_weight = p->layer->gradient[MIXER_CONV_V]};
}

static unary_args s4d_activation(const mixer_pass *p, const s4d_tensors *t)
{
    return (unary_args){.kind = UNARY_GELU,
                        .count = mixer_wanted(p) * p->layer->config.width,
                        .x = t->scanned.wanted,
                        .y = t->activated,
                        .d_y = t->d_scanned.wanted,
                        .d_x = t->d_scanned.wanted};
}

static void s4d_forward(const mixer_pass *p)
{
    s4d_tensors t;
    s4d_layout(p, &t);
    ssm_args core = s4d_core(p, &t);
    conv_args conv = s4d_conv(p, &t);
    unary_args activation = s4d_activation(p, &t);
    if (p->layer->config.conv) mixer_ops(p)->conv_forward(mixer_run(p), &conv);
    mixer_ops(p)->ssm_forward(mixer_run(p), &core);
    mixer_pick(p, &t.scanned, p->layer->config.width);
    mixer_ops(p)->unary_forward(mixer_run(p), &activation);
    mixer_output(p, t.activated, p->layer->config.width);
}

static void s4d_backward(const mixer_pass *p)
{
    s4d_tensors t;
    s4d_layout(p, &t);
    ssm_args core = s4d_core(p, &t);
    conv_args conv = s4d_conv(p, &t);
    unary_args activation = s4d_activation(p, &t);
    mixer_ops(p)->unary_forward(mixer_run(p), &activation);
    mixer_output_backward(p, t.activated, p->layer->config.width, t.d_scanned.wanted);
    mixer_ops(p)->unary_backward(mixer_run(p), &activation);
    mixer_put(p, &t.d_scanned, p->layer->config.width);
    mixer_ops(p)->ssm_backward(mixer_run(p), &core);
    if (p->layer->config.conv) mixer_ops(p)->conv_backward(mixer_run(p), &conv);
}

static blurry_status s4d_check(mixer_config *c, const struct settings *s)
{
    (void)s;
    if (c->state % 2)
        return status_fail(BLURRY_E_INVALID, "state is %lld: give an even number (conjugate pairs)",
                           (long long)c->state);
    return BLURRY_OK;
}

static void s4d_parameters(const mixer_config *c, mixer_parameter_list *list)
{
    int64_t d = c->width, modes = c->state / 2;
    mixer_add_parameter(list, MIXER_LOG_STEP, "log_step", INIT_LOG_STEP, d, 0);
    mixer_add_parameter(list, MIXER_C_RE, "C_re", INIT_HALF, d, modes);
    mixer_add_parameter(list, MIXER_C_IM, "C_im", INIT_HALF, d, modes);
    mixer_add_parameter(list, MIXER_D, "D", INIT_UNIT, d, 0);
    if (c->conv) mixer_add_parameter(list, MIXER_CONV_V, "conv_x.weight", INIT_CONV, d, MIXER_CONV_TAPS);
    mixer_add_parameter(list, MIXER_O, "o.weight", INIT_NORMAL, d, d);
}

static int64_t s4d_state_elements(const mixer_config *c, int64_t length)
{
    (void)length;
    return c->width * c->state;
}

static int64_t s4d_conv_channels(const mixer_config *c)
{
    return c->width;
}

const mixer mixer_s4d = {
    .name = "s4d",
    .summary = "diagonal complex state space with fixed modes",
    .headless = 1,
    .check = s4d_check,
    .parameters = s4d_parameters,
    .state_elements = s4d_state_elements,
    .conv_channels = s4d_conv_channels,
    .sizes = s4d_sizes,
    .forward = s4d_forward,
    .backward = s4d_backward,
};
