/* Forward and backward through embedding, blocks and final norm.
 *     x = embed(ids);  per layer x += mixer(norm1 x), x += mlp(norm2 x);  hidden = norm(x)
 * Normed inputs and the MLP's activations are made again in backward rather than kept. */
#include "model/model.h"

#include "base/status.h"

typedef struct block_pass {
    network *net;
    int64_t B, L, rows;
} block_pass;

/* ---- norms ---- */
/* d_residual: the gradient of the stream that passes beside, added to d_x (both may be the same memory). */
static norm_args norm_of(const block_pass *p, int64_t weight, int64_t bias, const void *x, void *y,
                         void *mean, void *rstd)
{
    const blurry_model *model = p->net->model;
    return (norm_args){.rows = p->rows,
                       .width = model->width,
                       .eps = MODEL_NORM_EPS,
                       .x = x,
                       .weight = parameter_data(model, weight),
                       .bias = parameter_data(model, bias),
                       .y = y,
                       .mean = mean,
                       .rstd = rstd,
                       .d_y = p->net->d_normed,
                       .d_x = p->net->d_stream,
                       .d_weight = parameter_gradient(model, weight),
                       .d_bias = parameter_gradient(model, bias)};
}

static void norm_forward(const block_pass *p, const norm_args *a)
{
    const device *dev = p->net->dev;
    if (p->net->model->settings.norm == SETTINGS_norm_layernorm)
        dev->ops->layernorm_forward(&dev->run, a);
    else
        dev->ops->rmsnorm_forward(&dev->run, a);
}

/* d_stream = gradient through the norm, plus d_stream itself where the norm stands in a residual branch. */
static void norm_backward(const block_pass *p, norm_args *a, int residual)
{
    const device *dev = p->net->dev;
    a->d_residual = residual ? p->net->d_stream : NULL;
    if (p->net->model->settings.norm == SETTINGS_norm_layernorm)
        dev->ops->layernorm_backward(&dev->run, a);
    else
        dev->ops->rmsnorm_backward(&dev->run, a);
}

static norm_args norm1_of(const block_pass *p, int64_t index, const void *x)
{
    const model_layer_places *at = &p->net->model->places.layer[index];
    const network_layer *layer = &p->net->layers[index];
    return norm_of(p, at->norm1, at->norm1_bias, x, p->net->normed, layer->mean1, layer->rstd1);
}

static norm_args norm2_of(const block_pass *p, int64_t index)
{
    const model_layer_places *at = &p->net->model->places.layer[index];
    const network_layer *layer = &p->net->layers[index];
    return norm_of(p, at->norm2, at->norm2_bias, layer->middle, p->net->normed, layer->mean2, layer->rstd2);
}

static norm_args final_norm(const block_pass *p)
{
    const network *net = p->net;
    const model_places *at = &net->model->places;
    const void *x = net->layers[net->model->layers - 1].output;
    return norm_of(p, at->norm, at->norm_bias, x, net->hidden, net->mean, net->rstd);
}

/* ---- MLP ---- */
static linear_args mlp_map(const block_pass *p, int64_t weight, const void *x, void *y, int64_t in,
                           int64_t out)
{
    const blurry_model *model = p->net->model;
    return (linear_args){.rows = p->rows,
                         .in = in,
                         .out = out,
                         .x = x,
                         .weight = parameter_data(model, weight),
                         .y = y,
                         .d_weight = parameter_gradient(model, weight)};
}

/* activated = SiLU(gate) * up, or GELU(up). */
static void mlp_activate(const block_pass *p, const network_layer *layer)
{
    const network *net = p->net;
    const device *dev = net->dev;
    int64_t count = p->rows * net->model->hidden;
    if (layer->gate)
        dev->ops->swiglu_forward(
            &dev->run, &(swiglu_args){count, layer->gate, layer->up, net->activated, NULL, NULL, NULL});
    else
        dev->ops->unary_forward(
            &dev->run,
            &(unary_args){.kind = UNARY_GELU, .count = count, .x = layer->up, .y = net->activated});
}

/* output (= middle already) += down(activated). */
static void mlp_forward(const block_pass *p, int64_t index)
{
    network *net = p->net;
    const device *dev = net->dev;
    const network_layer *layer = &net->layers[index];
    const model_layer_places *at = &net->model->places.layer[index];
    int64_t d = net->model->width, F = net->model->hidden;
    norm_args norm = norm2_of(p, index);
    linear_args up = mlp_map(p, at->mlp_up, net->normed, layer->up, d, F);
    linear_args gate = mlp_map(p, at->mlp_gate, net->normed, layer->gate, d, F);
    linear_args down = mlp_map(p, at->mlp_down, net->activated, layer->output, F, d);
    down.add = 1;
    norm_forward(p, &norm);
    dev->ops->linear_forward(&dev->run, &up);
    if (layer->gate) dev->ops->linear_forward(&dev->run, &gate);
    mlp_activate(p, layer);
    if (layer->output != layer->middle)
        device_copy(net->dev, layer->output, layer->middle, (size_t)(p->rows * d) * dev->element);
    dev->ops->linear_forward(&dev->run, &down);
}

/* d_activated -> d_gate and d_activated (now of `up`). */
static void mlp_activate_backward(const block_pass *p, const network_layer *layer)
{
    const network *net = p->net;
    const device *dev = net->dev;
    int64_t count = p->rows * net->model->hidden;
    if (layer->gate)
        dev->ops->swiglu_backward(&dev->run, &(swiglu_args){count, layer->gate, layer->up, NULL,
                                                            net->d_activated, net->d_gate, net->d_activated});
    else
        dev->ops->unary_backward(&dev->run, &(unary_args){.kind = UNARY_GELU,
                                                          .count = count,
                                                          .x = layer->up,
                                                          .d_y = net->d_activated,
                                                          .d_x = net->d_activated});
}

static void mlp_backward(const block_pass *p, int64_t index)
{
    network *net = p->net;
    const device *dev = net->dev;
    const network_layer *layer = &net->layers[index];
    const model_layer_places *at = &net->model->places.layer[index];
    int64_t d = net->model->width, F = net->model->hidden;
    norm_args norm = norm2_of(p, index);
    linear_args up = mlp_map(p, at->mlp_up, net->normed, NULL, d, F);
    linear_args gate = mlp_map(p, at->mlp_gate, net->normed, NULL, d, F);
    linear_args down = mlp_map(p, at->mlp_down, net->activated, NULL, F, d);
    down.d_y = net->d_stream, down.d_x = net->d_activated;
    up.d_y = net->d_activated, up.d_x = net->d_normed;
    gate.d_y = net->d_gate, gate.d_x = net->d_normed, gate.add_d_x = 1;
    norm_forward(p, &norm);
    mlp_activate(p, layer);
    dev->ops->linear_backward(&dev->run, &down);
    mlp_activate_backward(p, layer);
    dev->ops->linear_backward(&dev->run, &up);
    if (layer->gate) dev->ops->linear_backward(&dev->run, &gate);
    norm_backward(p, &norm, 1);
}

/* ---- mixer ---- */
static mixer_pass mixer_of(const block_pass *p, int64_t index)
{
    network *net = p->net;
    network_layer *layer = &net->layers[index];
    return (mixer_pass){.layer = &layer->mixer,
                        .B = p->B,
                        .L = p->L,
                        .keep = net->keep,
                        .position = net->carries ? net->position : NULL,
                        .state = layer->state,
                        .saved = layer->saved,
                        .work = net->mixer_work,
                        .x = net->normed,
                        .y = layer->middle,
                        .add = 1,
                        .d_y = net->d_stream,
                        .d_x = net->d_normed};
}

static const void *block_input(const network *net, int64_t index)
{
    return index ? net->layers[index - 1].output : net->input;
}

static void mixer_branch_forward(const block_pass *p, int64_t index)
{
    network *net = p->net;
    network_layer *layer = &net->layers[index];
    const void *x = block_input(net, index);
    norm_args norm = norm1_of(p, index, x);
    mixer_pass pass = mixer_of(p, index);
    norm_forward(p, &norm);
    if (layer->middle != x)
        device_copy(net->dev, layer->middle, x, (size_t)(p->rows * net->model->width) * net->dev->element);
    layer->mixer.config.type->forward(&pass);
}

static void mixer_branch_backward(const block_pass *p, int64_t index)
{
    network *net = p->net;
    norm_args norm = norm1_of(p, index, block_input(net, index));
    mixer_pass pass = mixer_of(p, index);
    norm_forward(p, &norm);
    net->layers[index].mixer.config.type->backward(&pass);
    norm_backward(p, &norm, 1);
}

/* ---- whole network ---- */
static embed_args embedding(const block_pass *p, double dropout)
{
    const network *net = p->net;
    const model_places *at = &net->model->places;
    return (embed_args){.batch = p->B,
                        .length = p->L,
                        .width = net->model->width,
                        .vocab = net->model->vocab,
                        .id = net->ids,
                        .weight = parameter_data(net->model, at->embed),
                        .position_weight = parameter_data(net->model, at->position),
                        .max_length = net->model->settings.length,
                        .position = net->carries ? net->position : NULL,
                        .dropout = dropout,
                        .key = net->key,
                        .y = net->input,
                        .d_y = net->d_stream,
                        .d_weight = parameter_gradient(net->model, at->embed),
                        .d_position_weight = parameter_gradient(net->model, at->position)};
}

/* Embeds the tokens and runs the first `layers` blocks. */
static blurry_status run_blocks(const block_pass *p, int64_t layers, double dropout)
{
    network *net = p->net;
    embed_args embed = embedding(p, dropout);
    for (int64_t i = 0; i < net->model->layers; i++) STATUS_TRY(mixer_layer_refresh(&net->layers[i].mixer));
    net->dev->ops->embed_forward(&net->dev->run, &embed);
    for (int64_t i = 0; i < layers; i++) {
        mixer_branch_forward(p, i);
        if (net->model->hidden) mlp_forward(p, i);
    }
    return BLURRY_OK;
}

blurry_status network_forward(network *net, int64_t B, int64_t L, double dropout)
{
    block_pass p = {net, B, L, B * L};
    norm_args last = final_norm(&p);
    STATUS_TRY(run_blocks(&p, net->model->layers, dropout));
    norm_forward(&p, &last);
    return BLURRY_OK;
}

blurry_status network_forward_to(network *net, int64_t B, int64_t L, int64_t layer, mixer_pass *pass)
{
    block_pass p = {net, B, L, B * L};
    STATUS_TRY(run_blocks(&p, layer, 0));
    norm_args norm = norm1_of(&p, layer, block_input(net, layer));
    norm_forward(&p, &norm);
    *pass = mixer_of(&p, layer);
    return BLURRY_OK;
}

void network_backward(network *net, int64_t B, int64_t L, double dropout)
{
    block_pass p = {net, B, L, B * L};
    embed_args embed = embedding(&p, dropout);
    norm_args last = final_norm(&p);
    norm_backward(&p, &last, 0);
    for (int64_t i = net->model->layers - 1; i >= 0; i--) {
        if (net->model->hidden) mlp_backward(&p, i);
        mixer_branch_backward(&p, i);
    }
    net->dev->ops->embed_backward(&net->dev->run, &embed);
}
