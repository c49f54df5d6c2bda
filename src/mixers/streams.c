/* The streams q, k and v in front of a mixer's core: W x, then the short convolution where it is on, then the
 * mixer's own SiLU where it has one, then RoPE on q and k where it is on. */
#include "mixers/parts.h"

static const mixer_parameter weight_of[STREAMS] = {MIXER_Q, MIXER_K, MIXER_V};
static const mixer_parameter conv_of[STREAMS] = {MIXER_CONV_Q, MIXER_CONV_K, MIXER_CONV_V};

int64_t mixer_stream_width(const mixer_config *c, int stream)
{
    if (stream == STREAM_Q) return c->heads * c->dim_k;
    return c->heads_kv * (stream == STREAM_K ? c->dim_k : c->dim_v);
}

int64_t mixer_stream_channels(const mixer_config *c)
{
    return mixer_stream_width(c, STREAM_Q) + mixer_stream_width(c, STREAM_K) +
           mixer_stream_width(c, STREAM_V);
}

void mixer_stream_parameters(const mixer_config *c, mixer_parameter_list *list)
{
    static const char *const weight_name[STREAMS] = {"q.weight", "k.weight", "v.weight"};
    static const char *const conv_name[STREAMS] = {"conv_q.weight", "conv_k.weight", "conv_v.weight"};
    for (int i = 0; i < STREAMS; i++)
        mixer_add_parameter(list, weight_of[i], weight_name[i], INIT_NORMAL, mixer_stream_width(c, i),
                            c->width);
    for (int i = 0; i < STREAMS && c->conv; i++)
        mixer_add_parameter(list, conv_of[i], conv_name[i], INIT_CONV, mixer_stream_width(c, i),
                            MIXER_CONV_TAPS);
}

static int64_t stream_rows(const mixer_pass *p, const mixer_streams *s, int i)
{
    return i == STREAM_Q && s->picks ? p->row_count : mixer_rows(p);
}

/* On an accelerator three maps of one input go backward as one where their gradients stand side by side in a
 * row (one product instead of three that add up), and the rotation or the SiLU writes them anew anyway. */
static int may_join(const mixer_pass *p, const mixer_streams *s)
{
    const mixer_config *c = &p->layer->config;
    return p->layer->dev->kind == DEVICE_CUDA && p->keep && (c->rope || s->silu) && !c->conv && !s->picks &&
           !p->x_rows && c->heads == c->heads_kv && c->dim_k == c->dim_v;
}

/* A stage that is off shares the memory of the stage before it. The streams lie one after another, so that
 * one product can make them (mixer_maps). */
void mixer_streams_layout(const mixer_pass *p, mixer_layout *m, int silu, int picks, mixer_streams *s)
{
    const mixer_config *c = &p->layer->config;
    int64_t rows[STREAMS], width[STREAMS];
    *s = (mixer_streams){.silu = silu, .picks = picks && p->row_count && !c->conv};
    for (int i = 0; i < STREAMS; i++) rows[i] = stream_rows(p, s, i), width[i] = mixer_stream_width(c, i);
    for (int i = 0; i < STREAMS; i++) s->raw[i] = mixer_take(p, &m->saved, rows[i], width[i]);
    for (int i = 0; i < STREAMS; i++) {
        s->mid[i] = c->conv ? mixer_take(p, &m->saved, rows[i], width[i]) : s->raw[i];
        s->out[i] = silu ? mixer_take(p, &m->saved, rows[i], width[i]) : s->mid[i];
        if (c->conv)
            s->carried[i] = mixer_take_statistics(p, &m->state, p->B * (MIXER_CONV_TAPS - 1), width[i]);
    }
    for (int i = 0; i < STREAMS && p->keep; i++) s->d_out[i] = mixer_take(p, &m->work, rows[i], width[i]);
    for (int i = 0; i < STREAMS && p->keep; i++)
        s->d_raw[i] = c->conv ? mixer_take(p, &m->work, rows[i], width[i]) : s->d_out[i];
    for (int i = 0; i < STREAMS && p->x_rows; i++)
        s->folded[i] = mixer_take(p, &m->work, p->x_rows, width[i]);
    if (s->picks) s->x = mixer_take_x(p, m);
    if (s->picks && p->keep) s->d_x = mixer_take(p, &m->work, p->row_count, c->width);
    if (may_join(p, s)) s->d_joined = mixer_take(p, &m->work, mixer_rows(p), STREAMS * width[0]);
}

/* The maps of all rows: all three, or those of k and v. */
static mixer_maps stream_maps(const mixer_pass *p, const mixer_streams *s, int64_t width[STREAMS])
{
    int first = s->picks ? STREAM_K : STREAM_Q;
    void *const *y = p->x_rows ? s->folded : s->raw, *const *d_y = p->x_rows ? s->folded : s->d_raw;
    for (int i = 0; i < STREAMS; i++) width[i] = mixer_stream_width(&p->layer->config, i);
    return (mixer_maps){.count = STREAMS - first,
                        .rows = p->x_rows ? p->x_rows : mixer_rows(p),
                        .weight = weight_of + first,
                        .in = p->layer->config.width,
                        .out = width + first,
                        .y = y + first,
                        .d_y = (const void *const *)d_y + first};
}

/* W x from the different rows to all tokens, and its gradient back. */
static void stream_unfold(const mixer_pass *p, const mixer_streams *s, int backward)
{
    for (int i = 0; i < STREAMS && p->x_rows; i++) {
        rows_args a = {.count = mixer_rows(p),
                       .total = p->x_rows,
                       .width = mixer_stream_width(&p->layer->config, i),
                       .row = backward ? p->x_group : p->x_index,
                       .x = backward ? s->d_raw[i] : s->folded[i],
                       .y = backward ? s->folded[i] : s->raw[i],
                       .from = backward ? p->x_order : NULL,
                       .clear = 1};
        if (backward)
            mixer_ops(p)->rows_scatter(mixer_run(p), &a);
        else
            mixer_ops(p)->rows_gather(mixer_run(p), &a);
    }
}

static conv_args stream_conv(const mixer_pass *p, const mixer_streams *s, int i)
{
    return (conv_args){.batch = p->B,
                       .length = p->L,
                       .channels = mixer_stream_width(&p->layer->config, i),
                       .kernel = MIXER_CONV_TAPS,
                       .silu = 1,
                       .x = s->raw[i],
                       .weight = p->layer->parameter[conv_of[i]],
                       .y = s->mid[i],
                       .state_in = s->carried[i],
                       .state_out = s->carried[i],
                       .d_y = s->d_out[i],
                       .d_x = s->d_raw[i],
                       .d_weight = p->layer->gradient[conv_of[i]]};
}

static rope_args stream_rope(const mixer_pass *p, const mixer_streams *s, int i)
{
    const mixer_config *c = &p->layer->config;
    rope_args a = {.batch = p->B,
                   .length = p->L,
                   .heads = i == STREAM_Q ? c->heads : c->heads_kv,
                   .dim = c->dim_k,
                   .base = c->rope_base,
                   .position = p->position,
                   .table = p->position ? NULL : p->layer->rope_table,
                   .x = s->out[i],
                   .y = s->out[i],
                   .d_y = s->d_out[i],
                   .d_x = s->d_out[i]};
    if (i == STREAM_Q && s->picks) { /* as sequences of one token each */
        a.batch = p->row_count, a.length = 1;
        a.position = p->row_position, a.table = p->layer->rope_table, a.table_length = p->layer->length;
    }
    return a;
}

/* Queries and keys in one call where they lie one after another with equally many heads, as twice as many
 * sequences; else one after the other. Calls to make, 1 or 2. */
static int stream_ropes(const mixer_pass *p, const mixer_streams *s, rope_args rope[2])
{
    const mixer_config *c = &p->layer->config;
    size_t bytes = (size_t)(mixer_rows(p) * mixer_stream_width(c, STREAM_Q)) * p->layer->dev->element;
    rope[0] = stream_rope(p, s, STREAM_Q);
    rope[1] = stream_rope(p, s, STREAM_K);
    if (rope[0].position || rope[0].heads != rope[1].heads ||
        (const char *)rope[1].x != (const char *)rope[0].x + bytes ||
        (rope[0].d_y && (const char *)rope[1].d_y != (const char *)rope[0].d_y + bytes))
        return 2;
    rope[0].batch = 2 * p->B;
    return 1;
}

static unary_args stream_silu(const mixer_pass *p, const mixer_streams *s, int i)
{
    return (unary_args){.kind = UNARY_SILU,
                        .count = stream_rows(p, s, i) * mixer_stream_width(&p->layer->config, i),
                        .x = s->mid[i],
                        .y = s->out[i],
                        .d_y = s->d_out[i],
                        .d_x = s->d_out[i]};
}

/* The SiLU of all streams: one call where they lie one after another, else one for each. Calls to make. */
static int stream_silus(const mixer_pass *p, const mixer_streams *s, unary_args silu[STREAMS])
{
    int together = 1;
    for (int i = 0; i < STREAMS; i++) silu[i] = stream_silu(p, s, i);
    for (int i = 0; i + 1 < STREAMS; i++)
        together = together && mixer_follows(p, s->mid[i], s->mid[i + 1], silu[i].count) &&
                   mixer_follows(p, s->out[i], s->out[i + 1], silu[i].count) &&
                   (!p->keep || mixer_follows(p, s->d_out[i], s->d_out[i + 1], silu[i].count));
    if (!s->silu || !together) return s->silu ? STREAMS : 0;
    silu[0].count += silu[1].count + silu[2].count;
    return 1;
}

void mixer_streams_forward(const mixer_pass *p, const mixer_streams *s)
{
    const mixer_config *c = &p->layer->config;
    int64_t width[STREAMS];
    mixer_maps maps = stream_maps(p, s, width);
    mixer_maps_forward(p, &maps, p->x);
    stream_unfold(p, s, 0);
    if (s->picks) {
        mixer_pick_x(p, s->x);
        mixer_linear_rows(p, p->row_count, MIXER_Q, s->x, c->width, width[STREAM_Q], s->raw[STREAM_Q]);
    }
    for (int i = 0; i < STREAMS && c->conv; i++) {
        conv_args conv = stream_conv(p, s, i);
        mixer_ops(p)->conv_forward(mixer_run(p), &conv);
    }
    unary_args silu[STREAMS];
    int silus = stream_silus(p, s, silu);
    for (int i = 0; i < silus; i++) mixer_ops(p)->unary_forward(mixer_run(p), &silu[i]);
    rope_args rope[2];
    int ropes = c->rope ? stream_ropes(p, s, rope) : 0;
    for (int i = 0; i < ropes; i++) mixer_ops(p)->rope_forward(mixer_run(p), &rope[i]);
}

/* The rotation back, the SiLU and the maps as one. */
static void joined_backward(const mixer_pass *p, const mixer_streams *s, int add)
{
    const mixer_config *c = &p->layer->config;
    rope_args rope = stream_rope(p, s, STREAM_Q);
    rope.streams = STREAMS, rope.turned = c->rope ? STREAM_V : 0;
    rope.x = s->silu ? s->mid[STREAM_Q] : NULL, rope.d_x = s->d_joined;
    mixer_ops(p)->rope_join(mixer_run(p), &rope);
    mixer_linear_backward(p, MIXER_Q, p->x, s->d_joined, c->width, STREAMS * mixer_stream_width(c, STREAM_Q),
                          p->d_x, add);
}

void mixer_streams_backward(const mixer_pass *p, const mixer_streams *s, int add)
{
    const mixer_config *c = &p->layer->config;
    int64_t width[STREAMS];
    mixer_maps maps = stream_maps(p, s, width);
    if (s->d_joined && !p->position && mixer_maps_together(p, &maps, 1)) return joined_backward(p, s, add);
    rope_args rope[2];
    int ropes = c->rope ? stream_ropes(p, s, rope) : 0;
    for (int i = 0; i < ropes; i++) mixer_ops(p)->rope_backward(mixer_run(p), &rope[i]);
    unary_args silu[STREAMS];
    int silus = stream_silus(p, s, silu);
    for (int i = 0; i < silus; i++) mixer_ops(p)->unary_backward(mixer_run(p), &silu[i]);
    for (int i = 0; i < STREAMS && c->conv; i++) {
        conv_args conv = stream_conv(p, s, i);
        mixer_ops(p)->conv_backward(mixer_run(p), &conv);
    }
    stream_unfold(p, s, 1);
    mixer_maps_backward(p, &maps, p->x, p->d_x, add);
    if (!s->picks) return;
    mixer_linear_rows_backward(p, p->row_count, MIXER_Q, s->x, s->d_raw[STREAM_Q], c->width, width[STREAM_Q],
                               s->d_x, 0);
    mixer_add_wanted_x(p, s->d_x, 0);
}
