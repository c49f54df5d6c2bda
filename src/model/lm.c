/* The language model's passes: tokens and labelled rows in, loss, predictions and gradients out. */
#include "model/model.h"

#include "base/status.h"

#include <math.h>
#include <stdio.h>

int64_t model_head(const blurry_model *model)
{
    return model->places.head == MODEL_NONE ? model->places.embed : model->places.head;
}

/* ---- checks: everything before anything is computed ---- */
static blurry_status check_tokens(const blurry_model *model, const int32_t *tokens, int64_t count,
                                  const char *name)
{
    for (int64_t i = 0; i < count; i++)
        if (tokens[i] < 0 || tokens[i] >= model->vocab)
            return status_fail(BLURRY_E_INVALID, "%s[%lld] is %ld: the vocabulary is 0 .. %lld", name,
                               (long long)i, (long)tokens[i], (long long)model->vocab - 1);
    return BLURRY_OK;
}

static blurry_status check_rows(const blurry_batch *b)
{
    int64_t rows = b->sequences * b->length;
    if (b->row_count < 0 || b->row_count > rows)
        return status_fail(BLURRY_E_INVALID, "row_count is %lld: give 0 to %lld", (long long)b->row_count,
                           (long long)rows);
    if (b->row_count && !b->rows) return status_fail(BLURRY_E_INVALID, "rows is NULL");
    for (int64_t i = 0; i < b->row_count; i++)
        if (b->rows[i] < 0 || b->rows[i] >= rows || (i && b->rows[i] <= b->rows[i - 1]))
            return status_fail(BLURRY_E_INVALID, "rows[%lld] is %lld: give ascending rows below %lld",
                               (long long)i, (long long)b->rows[i], (long long)rows);
    return BLURRY_OK;
}

blurry_status model_check_batch(const blurry_model *model, const blurry_batch *b)
{
    if (!model) return status_fail(BLURRY_E_INVALID, "model is NULL");
    if (!b) return status_fail(BLURRY_E_INVALID, "batch is NULL");
    const network *net = &model->net;
    if (b->sequences < 1 || b->sequences > net->batch)
        return status_fail(BLURRY_E_INVALID, "sequences is %lld: give 1 to %lld", (long long)b->sequences,
                           (long long)net->batch);
    if (b->length < 1 || b->length > net->length)
        return status_fail(BLURRY_E_INVALID, "length is %lld: give 1 to %lld", (long long)b->length,
                           (long long)net->length);
    if (!b->tokens) return status_fail(BLURRY_E_INVALID, "tokens is NULL");
    STATUS_TRY(check_tokens(model, b->tokens, b->sequences * b->length, "tokens"));
    STATUS_TRY(check_rows(b));
    return b->labels ? check_tokens(model, b->labels, b->row_count, "labels") : BLURRY_OK;
}

/* ---- labels and predictions ---- */
/* Rows from .. from+count-1 of the batch's list, and their labels. */
static blurry_status upload_rows(network *net, const blurry_batch *b, int64_t from, int64_t count)
{
    return device_upload(net->dev, net->rows, b->rows + from, (size_t)count * sizeof *net->rows);
}

static blurry_status upload_labels(network *net, const blurry_batch *b, int64_t from, int64_t count)
{
    if (b->labels)
        return device_upload(net->dev, net->targets, b->labels + from, (size_t)count * sizeof *net->targets);
    int32_t *none = net->host; /* no label: predictions only */
    for (int64_t i = 0; i < count; i++) none[i] = -1;
    return device_upload(net->dev, net->targets, none, (size_t)count * sizeof *none);
}

/* Where in their sequences the uploaded rows are, in pieces that fit the host's memory (see collect), where
 * the device picks queries. */
static blurry_status upload_positions(network *net, const blurry_batch *b)
{
    if (!device_blurry_rows(net->dev)) return BLURRY_OK;
    int64_t piece = net->block * net->model->vocab, *values = net->host;
    for (int64_t from = 0; from < b->row_count; from += piece) {
        int64_t n = b->row_count - from < piece ? b->row_count - from : piece;
        for (int64_t i = 0; i < n; i++) values[i] = b->rows[from + i] % b->length;
        STATUS_TRY(device_upload(net->dev, net->row_position + from, values, (size_t)n * sizeof *values));
    }
    return BLURRY_OK;
}

/* Where in the list of uploaded rows each row stands; the list ascends. */
static blurry_status upload_places(network *net, const blurry_batch *b)
{
    int64_t piece = net->block * net->model->vocab, *values = net->host;
    int64_t rows = b->sequences * b->length, next = 0;
    for (int64_t from = 0; from < rows; from += piece) {
        int64_t n = rows - from < piece ? rows - from : piece;
        for (int64_t i = 0; i < n; i++)
            values[i] = next < b->row_count && b->rows[next] == from + i ? next++ : -1;
        STATUS_TRY(device_upload(net->dev, net->row_place + from, values, (size_t)n * sizeof *values));
    }
    return BLURRY_OK;
}

int64_t network_wanted(const network *net, int64_t rows, int64_t labels)
{
    return net->picks && labels <= mixer_rows_most(rows) ? labels : 0;
}

static xent_args head_of(network *net, int64_t count, int64_t hidden_rows)
{
    const blurry_model *model = net->model;
    int64_t head = model_head(model);
    return (xent_args){.labels = count,
                       .n_hidden = hidden_rows,
                       .width = model->width,
                       .vocab = model->vocab,
                       .hidden = net->hidden,
                       .weight = parameter_weight(model, head),
                       .row = net->rows,
                       .target = net->targets,
                       .log_prob = net->log_prob,
                       .argmax = net->argmax,
                       .grad_scale = &net->scalars->scale,
                       .d_hidden = net->d_normed,
                       .d_weight = parameter_gradient(model, head)};
}

/* After a pass at labelled rows alone: hidden has these, here those from number `from` on. */
static void pick_hidden(const network *net, xent_args *head, int64_t from)
{
    head->row = NULL;
    head->n_hidden = head->labels;
    head->hidden = (const char *)net->hidden + (size_t)(from * head->width) * net->dev->element;
}

static double host_value(const network *net, int64_t i)
{
    return net->dev->stat_element == sizeof(double) ? ((const double *)net->host)[i]
                                                    : ((const float *)net->host)[i];
}

/* Adds the rows' losses and copies their predictions out. host holds block * V numbers, so pieces of that
 * size fit. */
static blurry_status collect(network *net, int64_t from, int64_t count, blurry_outputs *out)
{
    int64_t piece = net->block * net->model->vocab;
    for (int64_t i = 0; i < count; i += piece) {
        int64_t n = count - i < piece ? count - i : piece;
        const char *log_prob = (const char *)net->log_prob + (size_t)i * net->dev->stat_element;
        STATUS_TRY(device_download(net->dev, net->host, log_prob, (size_t)n * net->dev->stat_element));
        for (int64_t j = 0; j < n; j++) out->loss -= host_value(net, j);
    }
    if (!out->argmax) return BLURRY_OK;
    return device_download(net->dev, out->argmax + from, net->argmax, (size_t)count * sizeof *net->argmax);
}

static void copy_logits(const network *net, int64_t row, float *to)
{
    int64_t V = net->model->vocab;
    for (int64_t v = 0; v < V; v++) to[v] = (float)host_value(net, row * V + v);
}

/* Softmax of row `row` of the logits in host memory. */
static void copy_probabilities(const network *net, int64_t row, float *to)
{
    int64_t V = net->model->vocab, first = row * V;
    double largest = host_value(net, first), sum = 0;
    for (int64_t v = 1; v < V; v++) largest = fmax(largest, host_value(net, first + v));
    for (int64_t v = 0; v < V; v++) sum += exp(host_value(net, first + v) - largest);
    for (int64_t v = 0; v < V; v++) to[v] = (float)(exp(host_value(net, first + v) - largest) / sum);
}

static blurry_status collect_logits(network *net, int64_t from, int64_t count, blurry_outputs *out)
{
    int64_t V = net->model->vocab;
    STATUS_TRY(
        device_download(net->dev, net->host, net->logits, (size_t)(count * V) * net->dev->stat_element));
    for (int64_t i = 0; i < count; i++) {
        if (out->logits) copy_logits(net, i, out->logits + (from + i) * V);
        if (out->probabilities) copy_probabilities(net, i, out->probabilities + (from + i) * V);
    }
    return BLURRY_OK;
}

/* ---- passes ---- */
blurry_status blurry_model_evaluate(blurry_model *model, const blurry_batch *batch, blurry_outputs *outputs)
{
    blurry_outputs none = {0}, *out = outputs ? outputs : &none;
    STATUS_TRY(model_check_batch(model, batch));
    network *net = &model->net;
    int64_t rows = batch->sequences * batch->length;
    int with_logits = out->logits || out->probabilities;
    int64_t block =
        with_logits || !batch->labels ? net->block : rows; /* what passes through host memory at once */
    out->loss = 0;
    STATUS_TRY(device_upload(net->dev, net->ids, batch->tokens, (size_t)rows * sizeof *net->ids));
    network_pass pass = {.B = batch->sequences, .L = batch->length};
    pass.wanted = network_wanted(net, rows, batch->row_count);
    if (pass.wanted) {
        STATUS_TRY(upload_rows(net, batch, 0, pass.wanted));
        STATUS_TRY(upload_positions(net, batch));
    }
    STATUS_TRY(network_forward(net, &pass));
    for (int64_t from = 0; from < batch->row_count; from += block) {
        int64_t count = batch->row_count - from < block ? batch->row_count - from : block;
        if (!pass.wanted) STATUS_TRY(upload_rows(net, batch, from, count));
        STATUS_TRY(upload_labels(net, batch, from, count));
        xent_args head = head_of(net, count, rows);
        if (pass.wanted) pick_hidden(net, &head, from);
        head.logits = with_logits ? net->logits : NULL;
        net->dev->ops->xent_forward(&net->dev->run, &head);
        STATUS_TRY(collect(net, from, count, out));
        if (with_logits) STATUS_TRY(collect_logits(net, from, count, out));
    }
    return device_sync(net->dev);
}

static blurry_status upload_scalars(network *net, double scale, uint64_t draw)
{
    network_scalars now = {.key = {(uint64_t)net->model->settings.seed, draw}, .scale = scale};
    return device_upload(net->dev, net->scalars, &now, sizeof now);
}

static blurry_status queue_gradient(network *net, const network_batch *b)
{
    device *dev = net->dev;
    network_pass pass = {.B = b->B,
                         .L = b->L,
                         .wanted = b->wanted,
                         .different = b->different,
                         .dropout = net->model->settings.dropout};
    xent_args head = head_of(net, b->labels, b->B * b->L);
    head.argmax = NULL; /* nobody asks for predictions */
    if (pass.wanted) pick_hidden(net, &head, 0);
    STATUS_TRY(network_forward(net, &pass));
    dev->ops->xent_backward(&dev->run, &head);
    dev->ops->sum(device_side_run(dev),
                  &(reduce_args){.count = b->labels, .x = net->log_prob, .out = &net->scalars->log_prob_sum});
    network_backward(net, &pass);
    return BLURRY_OK;
}

blurry_status network_gradient(network *net, const network_batch *batch)
{
    device_side_open(net->dev);
    net->notes_tokens = 1;
    blurry_status status = queue_gradient(net, batch);
    net->notes_tokens = 0;
    device_side_close(net->dev);
    return status;
}

blurry_status blurry_model_gradient(blurry_model *model, const blurry_batch *batch, double scale,
                                    uint64_t draw, blurry_outputs *outputs)
{
    blurry_outputs none = {0}, *out = outputs ? outputs : &none;
    STATUS_TRY(model_check_batch(model, batch));
    if (!model->gradient)
        return status_fail(BLURRY_E_INVALID,
                           "the model was made without training: create it with training = 1");
    if (!batch->labels && batch->row_count) return status_fail(BLURRY_E_INVALID, "labels is NULL");
    if (out->logits || out->probabilities)
        return status_fail(BLURRY_E_INVALID,
                           "%s is not NULL: a gradient pass has none, use blurry_model_evaluate",
                           out->logits ? "logits" : "probabilities");
    network *net = &model->net;
    int64_t rows = batch->sequences * batch->length;
    network_batch b = {.B = batch->sequences, .L = batch->length, .labels = batch->row_count};
    b.wanted = network_wanted(net, rows, b.labels);
    out->loss = 0;
    if (!batch->row_count) return BLURRY_OK;
    STATUS_TRY(device_upload(net->dev, net->ids, batch->tokens, (size_t)rows * sizeof *net->ids));
    STATUS_TRY(upload_rows(net, batch, 0, batch->row_count));
    STATUS_TRY(upload_labels(net, batch, 0, batch->row_count));
    if (b.wanted) {
        STATUS_TRY(upload_places(net, batch));
        STATUS_TRY(upload_positions(net, batch));
    }
    STATUS_TRY(upload_scalars(net, scale, draw));
    STATUS_TRY(network_fold(net, batch->tokens, rows, &b.different));
    model->gradient_used = 1;
    STATUS_TRY(network_gradient(net, &b));
    STATUS_TRY(collect(net, 0, batch->row_count, out));
    return device_sync(net->dev);
}

blurry_status blurry_model_zero_gradient(blurry_model *model)
{
    if (!model) return status_fail(BLURRY_E_INVALID, "model is NULL");
    if (!model->gradient)
        return status_fail(BLURRY_E_INVALID, "the model was made without training: no gradients");
    device_zero(model->dev, model->gradient, model->parameter_bytes);
    model->gradient_used = 0;
    return BLURRY_OK;
}

/* ---- looking for what went wrong ---- */
/* Where the first NaN or infinity is, -1: none. */
static int64_t first_nonfinite(const network *net, const void *x, int64_t count, int activations)
{
    int64_t first = -1;
    net->dev->ops->nonfinite(
        &net->dev->run,
        &(reduce_args){.count = count, .x = x, .activations = activations, .first = net->nonfinite});
    return device_download(net->dev, &first, net->nonfinite, sizeof first) == BLURRY_OK ? first : -1;
}

/* All of them lie in one block: one search, however many there are. */
static const char *nonfinite_parameter(blurry_model *model, int gradients)
{
    const void *block = gradients ? model->gradient : model->data;
    size_t element = model->dev->param_element;
    int64_t first =
        block ? first_nonfinite(&model->net, block, (int64_t)(model->parameter_bytes / element), 0) : -1;
    for (int64_t i = 0; first >= 0 && i < model->parameter_count; i++) {
        int64_t start = (int64_t)(model->parameter[i].offset / element);
        if (first < start || first >= start + model->parameter[i].elements) continue;
        snprintf(model->nonfinite, sizeof model->nonfinite, gradients ? "gradient of %s" : "%s",
                 model->parameter[i].name);
        return model->nonfinite;
    }
    return NULL;
}

const char *blurry_model_first_nonfinite(const blurry_model *handle)
{
    if (!handle) return NULL;
    blurry_model *model =
        (blurry_model *)handle; /* its scratch memory and the name's place, not its values */
    network *net = &model->net;
    int64_t count = net->batch * net->length * model->width;
    const char *name = nonfinite_parameter(model, 0);
    if (name) return name;
    if (first_nonfinite(net, net->input, count, 1) >= 0) return "embedded tokens";
    for (int64_t i = 0; i < model->layers; i++) {
        const network_layer *layer = &net->layers[i];
        const char *part = first_nonfinite(net, layer->middle, count, 1) >= 0   ? "mixer"
                           : layer->output == layer->middle                     ? NULL
                           : first_nonfinite(net, layer->output, count, 1) >= 0 ? "mlp"
                                                                                : NULL;
        if (!part) continue;
        snprintf(model->nonfinite, sizeof model->nonfinite, "output of layers.%lld.%s", (long long)i, part);
        return model->nonfinite;
    }
    return nonfinite_parameter(model, 1);
}
