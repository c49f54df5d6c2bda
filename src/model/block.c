/* Forward and backward through embedding, blocks and final norm.
 *     x = embed(ids);  per layer x += mixer(norm1 x), x += mlp(norm2 x);  hidden = norm(x)
 * Normed inputs and the MLP's activations are made again in backward rather than kept.
 *
 * Where only some rows of `hidden` are wanted, the last layer's stream after the mixer, its MLP and the final
 * norm have these rows alone: [wanted, d], one after another. Where many tokens are equal, the first layer's
 * norm and its mixer's maps are computed once for each different one. */
#include "model/model.h"

#include "base/status.h"

/* Backward takes the branches (MLP, mixer) from the last to the first. Branch number n works in work[n % 2],
 * and its norm leaves the gradient of the stream in the other one: the side queue may be reading the own one,
 * for the weights, until the next branch's norm waits for it. */
typedef struct block_pass {
    network *net;
    int64_t B, L, rows;
    int64_t wanted;    /* rows of hidden; 0: all */
    int64_t different; /* tokens; 0: not looked for */
    int turn;          /* backward: n % 2 */
} block_pass;

static block_pass pass_of(network *net, const network_pass *pass)
{
    return (block_pass){net, pass->B, pass->L, pass->B * pass->L, pass->wanted, pass->different, 0};
}

/* Rows of the input of a layer's first norm and mixer where it has each different one once, else 0. */
static int64_t different_at(const block_pass *p, int64_t layer)
{
    return layer ? 0 : p->different;
}

static const network_work *own_work(const block_pass *p)
{
    return &p->net->work[p->turn];
}

static int64_t wanted_from(const block_pass *p, int64_t layer)
{
    return layer == p->net->model->layers - 1 ? p->wanted : 0;
}

/* The same pass from the mixer of a layer on. */
static block_pass behind_mixer(const block_pass *p, int64_t layer)
{
    block_pass behind = *p;
    if (wanted_from(p, layer)) behind.rows = p->wanted;
    return behind;
}

/* ---- norms ---- */
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
                       .d_x = p->net->work[!p->turn].d_stream,
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

static void norm_backward(const block_pass *p, const norm_args *a)
{
    const device *dev = p->net->dev;
    if (p->net->model->settings.norm == SETTINGS_norm_layernorm)
        dev->ops->layernorm_backward(&dev->run, a);
    else
        dev->ops->rmsnorm_backward(&dev->run, a);
}

/* The last operation of a branch: the stream's gradient is the branch's through its norm plus that of the
 * stream that passes beside, which has all rows or, with wanted > 0, these alone. */
static void end_branch(block_pass *p, norm_args *norm, int64_t wanted)
{
    network *net = p->net;
    const void *beside = own_work(p)->d_stream;
    int64_t d = net->model->width;
    device_side_wait(net->dev, !p->turn);
    if (wanted && beside == norm->d_x) {
        device_copy(net->dev, net->normed, beside, (size_t)(wanted * d) * net->dev->element);
        beside = net->normed;
    }
    norm->d_residual = beside;
    norm->residual_place = wanted ? net->row_place : NULL;
    norm_backward(p, norm);
    device_side_mark(net->dev, p->turn);
    p->turn = !p->turn;
}

/* Where the normed input of a mixer, of an MLP and the MLP's activations lie: kept per layer or made twice.
 */
static void *normed1(const block_pass *p, int64_t index)
{
    void *kept = p->net->layers[index].normed1;
    return kept ? kept : p->net->normed;
}

static void *normed2(const block_pass *p, int64_t index)
{
    void *kept = p->net->layers[index].normed2;
    return kept ? kept : p->net->normed;
}

static void *activated(const block_pass *p, const network_layer *layer)
{
    return layer->activated ? layer->activated : own_work(p)->activated;
}

static const void *block_input(const network *net, int64_t index)
{
    return index ? net->layers[index - 1].output : net->input;
}

/* Folded rows have their gradient in `normed`, which is free by then. */
static norm_args norm1_of(const block_pass *p, int64_t index)
{
    const network *net = p->net;
    const model_layer_places *at = &net->model->places.layer[index];
    const network_layer *layer = &net->layers[index];
    int64_t different = different_at(p, index);
    norm_args a = norm_of(p, at->norm1, at->norm1_bias, different ? net->folded : block_input(net, index),
                          normed1(p, index), layer->mean1, layer->rstd1);
    if (different) a.rows = different, a.d_x = net->normed;
    return a;
}

static norm_args norm2_of(const block_pass *p, int64_t index)
{
    const model_layer_places *at = &p->net->model->places.layer[index];
    const network_layer *layer = &p->net->layers[index];
    return norm_of(p, at->norm2, at->norm2_bias, layer->middle, normed2(p, index), layer->mean2,
                   layer->rstd2);
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
                         .weight = parameter_weight(model, weight),
                         .y = y,
                         .d_weight = parameter_gradient(model, weight)};
}

/* Results of gate and up lie one after another whatever the number of rows, so that one call makes both;
 * their gradients do so too. */
static void *behind_gate(const block_pass *p, void *gate)
{
    return (char *)gate + (size_t)(p->rows * p->net->model->hidden) * p->net->dev->element;
}

static void *mlp_up(const block_pass *p, const network_layer *layer)
{
    return layer->gate ? behind_gate(p, layer->gate) : layer->up;
}

static void *mlp_d_activated(const block_pass *p)
{
    void *d_gate = own_work(p)->d_gate;
    return d_gate ? behind_gate(p, d_gate) : NULL;
}

/* Gate and up, in one call where their weights lie one after another. */
static void mlp_inputs(const block_pass *p, int64_t index, linear_args maps[2], int *count)
{
    network *net = p->net;
    const device *dev = net->dev;
    const network_layer *layer = &net->layers[index];
    const model_layer_places *at = &net->model->places.layer[index];
    int64_t d = net->model->width, F = net->model->hidden;
    size_t weights = (size_t)(F * d);
    linear_args gate = mlp_map(p, at->mlp_gate, normed2(p, index), layer->gate, d, F);
    linear_args up = mlp_map(p, at->mlp_up, normed2(p, index), mlp_up(p, layer), d, F);
    gate.d_y = own_work(p)->d_gate, gate.d_x = net->d_normed;
    up.d_y = mlp_d_activated(p), up.d_x = net->d_normed, up.add_d_x = 1;
    *count = layer->gate ? 2 : 1;
    maps[0] = layer->gate ? gate : up;
    maps[0].add_d_x = 0;
    maps[1] = up;
    if (!layer->gate || (const char *)up.weight != (const char *)gate.weight + weights * dev->element ||
        (char *)up.d_weight != (char *)gate.d_weight + (gate.d_weight ? weights * dev->param_element : 0))
        return;
    *count = 1;
    maps[0].maps = 2;
}

/* activated = SiLU(gate) * up, or GELU(up). */
static void mlp_activate(const block_pass *p, const network_layer *layer)
{
    const device *dev = p->net->dev;
    int64_t count = p->rows * p->net->model->hidden;
    void *y = activated(p, layer);
    if (layer->gate)
        dev->ops->swiglu_forward(&dev->run,
                                 &(swiglu_args){count, layer->gate, mlp_up(p, layer), y, NULL, NULL, NULL});
    else
        dev->ops->unary_forward(&dev->run,
                                &(unary_args){.kind = UNARY_GELU, .count = count, .x = layer->up, .y = y});
}

/* output = middle + down(activated). */
static void mlp_forward(const block_pass *p, int64_t index)
{
    network *net = p->net;
    const device *dev = net->dev;
    const network_layer *layer = &net->layers[index];
    const model_layer_places *at = &net->model->places.layer[index];
    norm_args norm = norm2_of(p, index);
    linear_args inputs[2], down = mlp_map(p, at->mlp_down, activated(p, layer), layer->output,
                                          net->model->hidden, net->model->width);
    int count;
    mlp_inputs(p, index, inputs, &count);
    down.residual = layer->middle;
    norm_forward(p, &norm);
    for (int i = 0; i < count; i++) dev->ops->linear_forward(&dev->run, &inputs[i]);
    mlp_activate(p, layer);
    dev->ops->linear_forward(&dev->run, &down);
}

/* d_activated -> d_gate and d_activated (now of `up`). */
static void mlp_activate_backward(const block_pass *p, const network_layer *layer)
{
    const device *dev = p->net->dev;
    void *d_activated = mlp_d_activated(p);
    int64_t count = p->rows * p->net->model->hidden;
    if (layer->gate)
        dev->ops->swiglu_backward(&dev->run, &(swiglu_args){count, layer->gate, mlp_up(p, layer), NULL,
                                                            d_activated, own_work(p)->d_gate, d_activated});
    else
        dev->ops->unary_backward(
            &dev->run,
            &(unary_args){
                .kind = UNARY_GELU, .count = count, .x = layer->up, .d_y = d_activated, .d_x = d_activated});
}

static void mlp_backward(block_pass *p, int64_t index)
{
    network *net = p->net;
    const device *dev = net->dev;
    const network_layer *layer = &net->layers[index];
    const model_layer_places *at = &net->model->places.layer[index];
    norm_args norm = norm2_of(p, index);
    linear_args inputs[2],
        down = mlp_map(p, at->mlp_down, activated(p, layer), NULL, net->model->hidden, net->model->width);
    int count;
    mlp_inputs(p, index, inputs, &count);
    down.d_y = own_work(p)->d_stream, down.d_x = mlp_d_activated(p);
    if (!net->keeps_more) {
        norm_forward(p, &norm);
        mlp_activate(p, layer);
    }
    dev->ops->linear_backward(&dev->run, &down);
    mlp_activate_backward(p, layer);
    for (int i = 0; i < count; i++) dev->ops->linear_backward(&dev->run, &inputs[i]);
    end_branch(p, &norm, 0);
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
                        .work = own_work(p)->mixer,
                        .x = normed1(p, index),
                        .y = layer->middle,
                        .residual = block_input(net, index),
                        .d_y = own_work(p)->d_stream,
                        .d_x = net->d_normed,
                        .row_count = wanted_from(p, index),
                        .rows = net->rows,
                        .row_position = net->row_position,
                        .row_place = net->row_place,
                        .x_rows = different_at(p, index),
                        .x_index = net->token_index,
                        .x_order = net->token_order,
                        .x_group = net->token_group};
}

static void mixer_branch_forward(const block_pass *p, int64_t index)
{
    network *net = p->net;
    norm_args norm = norm1_of(p, index);
    mixer_pass pass = mixer_of(p, index);
    if (pass.x_rows)
        net->dev->ops->rows_gather(&net->dev->run, &(rows_args){.count = pass.x_rows,
                                                                .total = p->rows,
                                                                .width = net->model->width,
                                                                .row = net->token_first,
                                                                .x = net->input,
                                                                .y = net->folded});
    norm_forward(p, &norm);
    pass.layer->config.type->forward(&pass);
}

/* The last operation of the first layer where its input is folded: the gradient of the stream beside stays
 * where it is, and that of a token which stands at several rows goes to the first of them; the embedding adds
 * them up. */
static void end_folded(const block_pass *p, const norm_args *norm)
{
    network *net = p->net;
    norm_backward(p, norm);
    net->dev->ops->rows_scatter(&net->dev->run, &(rows_args){.count = norm->rows,
                                                             .total = p->rows,
                                                             .width = net->model->width,
                                                             .row = net->token_first,
                                                             .x = norm->d_x,
                                                             .y = own_work(p)->d_stream});
}

static void mixer_branch_backward(block_pass *p, int64_t index)
{
    norm_args norm = norm1_of(p, index);
    mixer_pass pass = mixer_of(p, index);
    if (!p->net->keeps_more) norm_forward(p, &norm);
    pass.layer->config.type->backward(&pass);
    if (pass.x_rows)
        end_folded(p, &norm);
    else
        end_branch(p, &norm, pass.row_count);
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
                        .key = net->scalars->key,
                        .y = net->input,
                        .saved = net->notes_tokens ? net->token_notes : NULL,
                        .d_y = own_work(p)->d_stream,
                        .d_weight = parameter_gradient(net->model, at->embed),
                        .d_position_weight = parameter_gradient(net->model, at->position)};
}

/* Embeds the tokens and runs the first `layers` blocks. */
static blurry_status run_blocks(const block_pass *p, int64_t layers, double dropout)
{
    network *net = p->net;
    embed_args embed = embedding(p, dropout);
    parameters_refresh(net->model);
    for (int64_t i = 0; i < net->model->layers; i++) STATUS_TRY(mixer_layer_refresh(&net->layers[i].mixer));
    net->dev->ops->embed_forward(&net->dev->run, &embed);
    for (int64_t i = 0; i < layers; i++) {
        block_pass behind = behind_mixer(p, i);
        mixer_branch_forward(p, i);
        if (net->model->hidden) mlp_forward(&behind, i);
    }
    return BLURRY_OK;
}

blurry_status network_forward(network *net, const network_pass *pass)
{
    block_pass p = pass_of(net, pass), end = behind_mixer(&p, net->model->layers - 1);
    norm_args last = final_norm(&end);
    STATUS_TRY(run_blocks(&p, net->model->layers, pass->dropout));
    norm_forward(&end, &last);
    return BLURRY_OK;
}

blurry_status network_forward_to(network *net, int64_t B, int64_t L, int64_t layer, mixer_pass *pass)
{
    block_pass p = pass_of(net, &(network_pass){.B = B, .L = L});
    STATUS_TRY(run_blocks(&p, layer, 0));
    norm_args norm = norm1_of(&p, layer);
    norm_forward(&p, &norm);
    *pass = mixer_of(&p, layer);
    return BLURRY_OK;
}

void network_backward(network *net, const network_pass *pass)
{
    block_pass p = pass_of(net, pass), end = behind_mixer(&p, net->model->layers - 1);
    end.turn = 1; /* the final norm leaves its gradient where branch 0 looks for it */
    norm_args last = final_norm(&end);
    norm_backward(&end, &last);
    device_side_mark(net->dev, end.turn);
    for (int64_t i = net->model->layers - 1; i >= 0; i--) {
        block_pass behind = behind_mixer(&p, i);
        if (net->model->hidden) mlp_backward(&behind, i);
        p.turn = behind.turn;
        mixer_branch_backward(&p, i);
    }
    /* The head's gradient, which may be the embedding's too, is done: the first branch waited for its mark.
     */
    embed_args embed = embedding(&p, pass->dropout);
    net->dev->ops->embed_backward(&net->dev->run, &embed);
}
