/* Memory of a network, all of it decided here: one block holds what lives from forward to backward ("saved")
 * and what one layer needs at a time ("work"); carried states have a block of their own. The layout is walked
 * twice: once to measure, once to hand out pointers. */
#include "model/model.h"

#include "base/memory.h"
#include "base/sizes.h"
#include "base/status.h"
#include "mixers/parts.h"

#include <string.h>

/* A step on states smaller than this is faster on one thread than waking another. */
enum { SMALL_STATE = 1 << 15 };

/* Norms of a layer, and bytes of what each leaves to the side per column: more would stay in the main queue.
 */
enum { SIDE_NORMS = 3, SIDE_PER_COLUMN = 1 << 12 };

enum { LOGITS_AT_ONCE = 1 << 21 }; /* elements of logits handed out at once, at least one row */

blurry_status network_configs(const struct settings *s, mixer_config **configs)
{
    void *memory;
    STATUS_TRY(memory_alloc(&memory, (size_t)s->layers, sizeof **configs, "layers"));
    *configs = memory;
    for (int64_t layer = 0; layer < s->layers; layer++) {
        char name[SETTINGS_TEXT];
        blurry_status status = settings_name_at("mixer", s->mixer, s->layers, layer, name, sizeof name);
        if (status == BLURRY_OK) status = mixer_config_init(&(*configs)[layer], s, name);
        if (status == BLURRY_OK) continue;
        network_configs_free(*configs, s->layers);
        *configs = NULL;
        return status;
    }
    return BLURRY_OK;
}

void network_configs_free(mixer_config *configs, int64_t layers)
{
    for (int64_t layer = 0; configs && layer < layers; layer++) mixer_config_release(&configs[layer]);
    memory_free(configs);
}

/* ---- layers: parameters and plans ---- */
static blurry_status prepare_layer(network *net, int64_t index, mixer_config *config)
{
    const model_layer_places *at = &net->model->places.layer[index];
    mixer_layer *own = &net->layers[index].mixer;
    mixer_layer_init(own, config, net->dev, net->batch, net->length, net->capacity);
    if (net->carries && net->batch * mixer_state_elements(&own->config, 1) < SMALL_STATE) own->threads = 1;
    for (int i = 0; i < MIXER_PARAMETER_COUNT; i++) {
        own->parameter[i] = parameter_data(net->model, at->mixer[i]);
        own->weight[i] = parameter_weight(net->model, at->mixer[i]);
        own->gradient[i] = parameter_gradient(net->model, at->mixer[i]);
    }
    blurry_status status = mixer_layer_prepare(own);
    return status == BLURRY_OK ? BLURRY_OK : status_context(status, "layer %lld", (long long)index);
}

/* ---- layout ---- */
typedef struct network_plan {
    network *net;
    mixer_cursor saved, work;
    size_t scratch;
    size_t handed; /* to the side queue in one pass: the head's scratch and the parts of the norms' sums */
} network_plan;

static void *take(network_plan *m, mixer_cursor *cursor, int64_t rows, int64_t width)
{
    return mixer_take_bytes(cursor, size_mul(size_of(rows, (size_t)width), m->net->dev->element));
}

static void *take_statistics(network_plan *m, mixer_cursor *cursor, int64_t rows, int64_t width)
{
    return mixer_take_bytes(cursor, size_mul(size_of(rows, (size_t)width), m->net->dev->stat_element));
}

/* One layer's saved tensors. Without `keep` every layer starts at the same place and the stream is updated in
 * place, but not by the last mixer where it may be asked for some rows of it. */
static void lay_layer(network_plan *m, int64_t index, int64_t rows, size_t *mixer_work)
{
    network *net = m->net;
    network_layer *layer = &net->layers[index];
    int64_t d = net->model->width, F = net->model->hidden;
    int norms = net->keep, layernorm = net->model->settings.norm == SETTINGS_norm_layernorm;
    int mlp = net->model->settings.mlp, picks = net->picks && index == net->model->layers - 1;
    mixer_sizes need;
    mixer_layer_sizes(&layer->mixer, net->keep, &need);
    if (need.work > *mixer_work) *mixer_work = need.work;
    if (need.scratch > m->scratch) m->scratch = need.scratch;
    void *before = index ? net->layers[index - 1].output : net->input;
    layer->saved = mixer_take_bytes(&m->saved, need.saved);
    layer->rstd1 = norms ? take_statistics(m, &m->saved, rows, 1) : NULL;
    layer->mean1 = norms && layernorm ? take_statistics(m, &m->saved, rows, 1) : NULL;
    layer->normed1 = net->keeps_more ? take(m, &m->saved, rows, d) : NULL;
    layer->middle = net->keep || picks ? take(m, &m->saved, rows, d) : before;
    layer->output = layer->middle;
    if (mlp == SETTINGS_mlp_none) return;
    layer->rstd2 = norms ? take_statistics(m, &m->saved, rows, 1) : NULL;
    layer->mean2 = norms && layernorm ? take_statistics(m, &m->saved, rows, 1) : NULL;
    layer->normed2 = net->keeps_more ? take(m, &m->saved, rows, d) : NULL;
    layer->activated = net->keeps_more ? take(m, &m->saved, rows, F) : NULL;
    if (mlp == SETTINGS_mlp_swiglu)
        layer->gate = take(m, &m->saved, rows, 2 * F); /* and, behind it, up */
    else
        layer->up = take(m, &m->saved, rows, F);
    layer->output = net->keep ? take(m, &m->saved, rows, d) : layer->middle;
}

static void lay_saved(network_plan *m, size_t *mixer_work)
{
    network *net = m->net;
    int64_t rows = net->batch * net->length, d = net->model->width;
    int layernorm = net->model->settings.norm == SETTINGS_norm_layernorm;
    net->input = take(m, &m->saved, rows, d);
    net->rstd = net->keep ? take_statistics(m, &m->saved, rows, 1) : NULL;
    net->mean = net->keep && layernorm ? take_statistics(m, &m->saved, rows, 1) : NULL;
    net->hidden = take(m, &m->saved, rows, d);
    size_t start = m->saved.used, end = start;
    for (int64_t i = 0; i < net->model->layers; i++) {
        if (!net->keep) m->saved.used = start;
        lay_layer(m, i, rows, mixer_work);
        if (m->saved.used > end) end = m->saved.used;
    }
    m->saved.used = end;
}

/* What one branch needs. Its mixer's and its MLP's memory are never needed at the same time. */
static network_work lay_branch(network_plan *m, size_t mixer_work)
{
    network *net = m->net;
    int64_t rows = net->batch * net->length, F = net->model->hidden;
    network_work work = {.d_stream = net->keep ? take(m, &m->work, rows, net->model->width) : NULL};
    size_t start = m->work.used, end;
    work.mixer = mixer_take_bytes(&m->work, mixer_work);
    end = m->work.used;
    m->work.used = start;
    if (F) work.activated = take(m, &m->work, rows, F);
    if (F && net->keep) work.d_gate = take(m, &m->work, rows, 2 * F); /* and, behind it, d_activated */
    if (m->work.used < end) m->work.used = end;
    return work;
}

static void lay_work(network_plan *m, size_t mixer_work)
{
    network *net = m->net;
    const blurry_model *model = net->model;
    int64_t rows = net->batch * net->length, d = model->width;
    kernel_sizes need = {0};
    net->normed = take(m, &m->work, rows, d);
    if (net->keep) net->d_normed = take(m, &m->work, rows, d);
    net->log_prob = take_statistics(m, &m->work, rows, 1);
    net->argmax = mixer_take_bytes(&m->work, (size_t)rows * sizeof(int32_t));
    net->ids = mixer_take_bytes(&m->work, (size_t)rows * sizeof(int32_t));
    net->rows = mixer_take_bytes(&m->work, (size_t)rows * sizeof(int64_t));
    net->row_position = mixer_take_bytes(&m->work, net->picks ? (size_t)rows * sizeof(int64_t) : 0);
    net->row_place = mixer_take_bytes(&m->work, net->picks ? (size_t)rows * sizeof(int64_t) : 0);
    net->token_first = mixer_take_bytes(&m->work, net->folds ? (size_t)rows / 2 * sizeof(int64_t) : 0);
    int64_t **lists[] = {&net->token_index, &net->token_order, &net->token_group};
    for (int i = 0; i < 3; i++)
        *lists[i] = mixer_take_bytes(&m->work, net->folds ? (size_t)rows * sizeof(int64_t) : 0);
    net->folded = take(m, &m->work, net->folds ? rows / 2 : 0, d);
    net->targets = mixer_take_bytes(&m->work, (size_t)rows * sizeof(int32_t));
    net->scalars = mixer_take_bytes(&m->work, sizeof *net->scalars);
    net->nonfinite = mixer_take_bytes(&m->work, sizeof(int64_t));
    net->position = mixer_take_bytes(&m->work, (size_t)net->batch * sizeof(int64_t));
    net->logits = take_statistics(m, &m->work, net->block, model->vocab);
    net->dev->ops->embed_sizes(
        &net->dev->run,
        &(embed_args){.batch = net->batch, .length = net->length, .width = d, .vocab = model->vocab}, &need);
    net->token_notes = net->keep && need.saved ? mixer_take_bytes(&m->work, need.saved) : NULL;
    net->work[0] = net->work[1] = lay_branch(m, mixer_work);
    if (net->keeps_more) net->work[1] = lay_branch(m, mixer_work);
}

static network_plan lay_out(network *net, char *memory, size_t saved_bytes)
{
    network_plan m = {.net = net, .saved = {memory, 0}, .work = {memory ? memory + saved_bytes : NULL, 0}};
    size_t mixer_work = 0;
    lay_saved(&m, &mixer_work);
    lay_work(&m, mixer_work);
    kernel_sizes need = {0};
    net->dev->ops->xent_sizes(&net->dev->run,
                              &(xent_args){.labels = net->batch * net->length,
                                           .n_hidden = net->batch * net->length,
                                           .width = net->model->width,
                                           .vocab = net->model->vocab},
                              &need);
    if (need.scratch > m.scratch) m.scratch = need.scratch;
    m.handed = size_add(need.scratch, size_of(SIDE_NORMS * net->model->layers + 1,
                                              (size_t)net->model->width * SIDE_PER_COLUMN));
    return m;
}

/* ---- carried states ---- */
static blurry_status allocate_states(network *net)
{
    mixer_cursor cursor = {NULL, 0};
    for (int pass = 0; pass < 2; pass++) {
        cursor.used = 0;
        for (int64_t i = 0; i < net->model->layers; i++) {
            mixer_sizes need;
            mixer_layer_sizes(&net->layers[i].mixer, 0, &need);
            net->layers[i].state = mixer_take_bytes(&cursor, need.state);
        }
        if (pass) break;
        net->state_bytes = cursor.used;
        STATUS_TRY(device_alloc(net->dev, cursor.used, &net->states));
        cursor.base = net->states;
    }
    return BLURRY_OK;
}

static blurry_status allocate(network *net)
{
    int64_t vocab = net->model->vocab, rows = net->batch * net->length;
    net->block = LOGITS_AT_ONCE / vocab > 0 ? LOGITS_AT_ONCE / vocab : 1;
    if (net->block > rows) net->block = rows;
    network_plan m = lay_out(net, NULL, 0);
    size_t total = size_add(m.saved.used, m.work.used);
    if (total > SIZE_MAX / 2 || m.scratch > SIZE_MAX / 2)
        return status_fail(BLURRY_E_MEMORY, "batch %lld times length %lld does not fit in memory",
                           (long long)net->batch, (long long)net->length);
    net->saved_bytes = m.saved.used;
    net->work_bytes = m.work.used;
    STATUS_TRY(device_alloc(net->dev, total, &net->memory));
    lay_out(net, net->memory, net->saved_bytes);
    STATUS_TRY(device_reserve(net->dev, m.scratch));
    if (net->keep) STATUS_TRY(device_side_reserve(net->dev, m.handed));
    STATUS_TRY(memory_alloc(&net->host, (size_t)net->block * (size_t)vocab, sizeof(double), "logits"));
    if (net->folds) {
        void *memory;
        STATUS_TRY(
            memory_alloc(&memory, 5 * (size_t)rows + (size_t)vocab, sizeof(int64_t), "lists of tokens"));
        net->fold_host = memory;
    }
    return net->carries ? allocate_states(net) : BLURRY_OK;
}

blurry_status network_create(network *net, blurry_model *model, mixer_config *configs, int64_t batch,
                             int64_t length, int keep, int64_t capacity)
{
    void *memory;
    *net = (network){.model = model,
                     .dev = model->dev,
                     .batch = batch,
                     .length = length,
                     .capacity = capacity,
                     .keep = keep,
                     .keeps_more = keep && model->dev->kind == DEVICE_CUDA,
                     .picks = capacity == 0,
                     .carries = capacity > 0};
    if ((double)batch * (double)length * (double)(model->width + model->hidden + model->vocab) > 1e17)
        return status_fail(BLURRY_E_MEMORY, "batch %lld times length %lld does not fit in memory",
                           (long long)batch, (long long)length);
    STATUS_TRY(memory_alloc(&memory, (size_t)model->layers, sizeof *net->layers, "layers"));
    net->layers = memory;
    net->folds = keep && model->dev->kind == DEVICE_CPU && model->layers > 1 && configs[0].type->folds &&
                 model->places.position == MODEL_NONE && model->settings.dropout == 0;
    blurry_status status = BLURRY_OK;
    for (int64_t i = 0; i < model->layers && status == BLURRY_OK; i++)
        status = prepare_layer(net, i, &configs[i]);
    if (status == BLURRY_OK) status = allocate(net);
    if (status != BLURRY_OK) network_release(net);
    return status;
}

void network_release(network *net)
{
    for (int64_t i = 0; net->layers && i < net->model->layers; i++)
        mixer_layer_release(&net->layers[i].mixer);
    memory_free(net->layers);
    memory_free(net->host);
    memory_free(net->fold_host);
    if (net->memory) device_free(net->dev, net->memory);
    if (net->states) device_free(net->dev, net->states);
    memset(net, 0, sizeof *net);
}
