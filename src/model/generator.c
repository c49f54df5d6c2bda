/* Generation: a network that carries state, fed token by token or many at once, and its state as plain bytes.
 *
 * A saved state is a header (struct state_header), then the bytes of all layers' states. The fingerprint
 * covers the model's shape (its settings of model and mixer) and every parameter, the checksum everything
 * else. */
#include "model/model.h"

#include "base/memory.h"
#include "base/sha256.h"
#include "base/status.h"

#include <stdio.h>
#include <string.h>

enum { PREFILL_CHUNK = 256, STATE_VERSION = 1 };

struct blurry_generator {
    blurry_model *model;
    network net;
    int64_t position, max_length;
    int64_t marked; /* tokens per sequence for which net.rows names the last ones; 0: none yet */
    double work;    /* multiply-adds of one token of every sequence through all linear maps */
    int bounded;    /* whether max_length is a limit: a layer or the positions cannot go beyond it */
};

typedef struct state_header {
    char magic[8];
    uint32_t version, element;
    int64_t batch, max_length, position;
    uint64_t state_bytes;
    unsigned char fingerprint[32];
    unsigned char checksum[32]; /* SHA-256 of the header up to here, then of the states */
} state_header;

static const char state_magic[8] = {'B', 'L', 'U', 'R', 'G', 'E', 'N', 'S'};

/* Tokens taken at once: long enough for good products, no longer than the sequences that the model knows. */
static int64_t chunk_length(int64_t max_length)
{
    return max_length < PREFILL_CHUNK ? max_length : PREFILL_CHUNK;
}

static int has_limit(const network *net)
{
    for (int64_t i = 0; i < net->model->layers; i++)
        if (net->layers[i].mixer.config.type == &mixer_softmax) return 1;
    return net->model->places.position != MODEL_NONE;
}

static blurry_status build(blurry_generator *g, int64_t batch)
{
    mixer_config *configs;
    STATUS_TRY(network_configs(&g->model->settings, &configs));
    blurry_status status =
        network_create(&g->net, g->model, configs, batch, chunk_length(g->max_length), 0, g->max_length);
    network_configs_free(configs, g->model->layers);
    if (status != BLURRY_OK) return status;
    g->bounded = has_limit(&g->net);
    g->work = (double)batch *
              (double)(blurry_model_parameter_elements(g->model) - g->model->vocab * g->model->width);
    return blurry_generator_reset(g);
}

static blurry_status check_limits(const blurry_model *model, int64_t batch, int64_t max_length)
{
    if (batch < 1 || batch > (int64_t)1 << 24)
        return status_fail(BLURRY_E_INVALID, "batch is %lld: give 1 to %lld", (long long)batch, 1LL << 24);
    if (max_length < 0 || max_length > (int64_t)1 << 40)
        return status_fail(BLURRY_E_INVALID, "max_length is %lld: give 0 to %lld", (long long)max_length,
                           1LL << 40);
    if (model->places.position != MODEL_NONE && max_length > model->settings.length)
        return status_fail(BLURRY_E_INVALID, "max_length is %lld: the model has %lld learned positions",
                           (long long)max_length, (long long)model->settings.length);
    return BLURRY_OK;
}

blurry_status blurry_generator_create(blurry_generator **generator, const blurry_model *model, int64_t batch,
                                      int64_t max_length)
{
    void *memory;
    if (!generator) return status_fail(BLURRY_E_INVALID, "generator is NULL");
    *generator = NULL;
    if (!model) return status_fail(BLURRY_E_INVALID, "model is NULL");
    STATUS_TRY(check_limits(model, batch, max_length));
    STATUS_TRY(memory_alloc(&memory, 1, sizeof **generator, "generator"));
    blurry_generator *g = memory;
    g->model = (blurry_model *)model; /* its parameters are read only; device and settings are shared */
    g->max_length = max_length ? max_length : model->settings.length;
    blurry_status status = build(g, batch);
    if (status == BLURRY_OK)
        *generator = g;
    else
        blurry_generator_destroy(&g);
    return status;
}

void blurry_generator_destroy(blurry_generator **generator)
{
    if (!generator || !*generator) return;
    network_release(&(*generator)->net);
    memory_free(*generator);
    *generator = NULL;
}

/* ---- feeding ---- */
static blurry_status set_position(blurry_generator *g, int64_t position)
{
    g->position = position;
    for (int64_t b = 0; b < g->net.batch; b++)
        STATUS_TRY(device_upload(g->net.dev, g->net.position + b, &position, sizeof position));
    return BLURRY_OK;
}

blurry_status blurry_generator_reset(blurry_generator *generator)
{
    if (!generator) return status_fail(BLURRY_E_INVALID, "generator is NULL");
    network *net = &generator->net;
    for (int64_t i = 0; i < net->model->layers; i++)
        STATUS_TRY(mixer_state_init(&net->layers[i].mixer, net->layers[i].state));
    return set_position(generator, 0);
}

static blurry_status check_feed(const blurry_generator *g, const int32_t *tokens, int64_t count)
{
    if (!g) return status_fail(BLURRY_E_INVALID, "generator is NULL");
    if (count < 1 || count > ((int64_t)1 << 50) / g->net.batch)
        return status_fail(BLURRY_E_INVALID, "count is %lld: give at least 1", (long long)count);
    if (!tokens) return status_fail(BLURRY_E_INVALID, "tokens is NULL");
    if (g->bounded && count > g->max_length - g->position)
        return status_fail(
            BLURRY_E_INVALID,
            "max_length is %lld: %lld tokens are fed already and %lld more do not fit; create the "
            "generator with a larger one, or use bounded mixers",
            (long long)g->max_length, (long long)g->position, (long long)count);
    for (int64_t i = 0; i < g->net.batch * count; i++)
        if (tokens[i] < 0 || tokens[i] >= g->model->vocab)
            return status_fail(BLURRY_E_INVALID, "tokens[%lld] is %ld: the vocabulary is 0 .. %lld",
                               (long long)i, (long)tokens[i], (long long)g->model->vocab - 1);
    return BLURRY_OK;
}

/* Less work than this is done sooner by one thread than it takes to wake another. Results are the same bits.
 */
static const double work_worth_threads = 1 << 19;

/* Tokens from .. from+n-1 of every sequence. */
static blurry_status feed_chunk(blurry_generator *g, const int32_t *tokens, int64_t count, int64_t from,
                                int64_t n)
{
    network *net = &g->net;
    for (int64_t b = 0; b < net->batch; b++)
        STATUS_TRY(
            device_upload(net->dev, net->ids + b * n, tokens + b * count + from, (size_t)n * sizeof *tokens));
    int threads = net->dev->run.threads;
    if (g->work * (double)n < work_worth_threads) net->dev->run.threads = 1;
    blurry_status status = network_forward(net, &(network_pass){.B = net->batch, .L = n});
    net->dev->run.threads = threads;
    if (status != BLURRY_OK) return status;
    net->dev->ops->advance(&net->dev->run,
                           &(advance_args){.batch = net->batch, .by = n, .position = net->position});
    g->position += n;
    return device_sync(net->dev);
}

/* The rows of the last of n tokens of every sequence, without labels. */
static blurry_status mark_last_rows(blurry_generator *g, int64_t n)
{
    network *net = &g->net;
    const int32_t none = -1;
    if (g->marked == n) return BLURRY_OK;
    for (int64_t b = 0; b < net->batch; b++) {
        int64_t row = b * n + n - 1;
        STATUS_TRY(device_upload(net->dev, net->rows + b, &row, sizeof row));
        STATUS_TRY(device_upload(net->dev, net->targets + b, &none, sizeof none));
    }
    g->marked = n;
    return BLURRY_OK;
}

/* Logits of the last of n tokens of every sequence, in blocks of rows. */
static blurry_status last_logits(blurry_generator *g, int64_t n, float *logits)
{
    network *net = &g->net;
    const blurry_model *model = g->model;
    int64_t V = model->vocab;
    STATUS_TRY(mark_last_rows(g, n));
    for (int64_t from = 0; from < net->batch; from += net->block) {
        int64_t count = net->batch - from < net->block ? net->batch - from : net->block;
        net->dev->ops->xent_forward(&net->dev->run,
                                    &(xent_args){.labels = count,
                                                 .n_hidden = net->batch * n,
                                                 .width = model->width,
                                                 .vocab = V,
                                                 .hidden = net->hidden,
                                                 .weight = parameter_weight(model, model_head(model)),
                                                 .row = net->rows + from,
                                                 .target = net->targets + from,
                                                 .log_prob = net->log_prob,
                                                 .argmax = net->argmax,
                                                 .logits = net->logits});
        STATUS_TRY(
            device_download(net->dev, net->host, net->logits, (size_t)(count * V) * net->dev->stat_element));
        for (int64_t i = 0; i < count * V; i++)
            logits[from * V + i] = net->dev->stat_element == sizeof(double) ? (float)((double *)net->host)[i]
                                                                            : ((float *)net->host)[i];
    }
    return device_sync(net->dev);
}

blurry_status blurry_generator_feed(blurry_generator *generator, const int32_t *tokens, int64_t count,
                                    float *logits)
{
    STATUS_TRY(check_feed(generator, tokens, count));
    int64_t n = 0;
    for (int64_t from = 0; from < count; from += n) {
        n = count - from < generator->net.length ? count - from : generator->net.length;
        STATUS_TRY(feed_chunk(generator, tokens, count, from, n));
    }
    return logits ? last_logits(generator, n, logits) : BLURRY_OK;
}

int64_t blurry_generator_position(const blurry_generator *generator)
{
    return generator ? generator->position : 0;
}

/* ---- the state as bytes ---- */
size_t blurry_generator_state_bytes(const blurry_generator *generator)
{
    return generator ? sizeof(state_header) + generator->net.state_bytes : 0;
}

static void hash_parameters(sha256 *hash, const blurry_model *model, blurry_status *status)
{
    char piece[4096];
    for (size_t at = 0; at < model->parameter_bytes && *status == BLURRY_OK; at += sizeof piece) {
        size_t n = model->parameter_bytes - at < sizeof piece ? model->parameter_bytes - at : sizeof piece;
        *status = device_download(model->dev, piece, model->data + at, n);
        sha256_update(hash, piece, n);
    }
}

/* Names, shapes and values of all parameters, and the options that change what they mean. */
static blurry_status fingerprint(const blurry_generator *g, unsigned char digest[32])
{
    sha256 hash;
    blurry_status status = BLURRY_OK;
    char shape[65];
    blurry_settings settings = {.values = g->model->settings};
    blurry_settings_hash(&settings, BLURRY_SETTINGS_MODEL | BLURRY_SETTINGS_MIXER, shape);
    sha256_init(&hash);
    sha256_update(&hash, shape, 64);
    for (int64_t i = 0; i < g->model->parameter_count; i++)
        sha256_update(&hash, g->model->parameter[i].name, strlen(g->model->parameter[i].name) + 1);
    hash_parameters(&hash, g->model, &status);
    sha256_final(&hash, digest);
    return status;
}

static void checksum(const state_header *header, const void *states, unsigned char digest[32])
{
    sha256 hash;
    sha256_init(&hash);
    sha256_update(&hash, header, offsetof(state_header, checksum));
    sha256_update(&hash, states, header->state_bytes);
    sha256_final(&hash, digest);
}

blurry_status blurry_generator_save(const blurry_generator *generator, void *bytes, size_t size)
{
    if (!generator || !bytes)
        return status_fail(BLURRY_E_INVALID, "%s is NULL", !generator ? "generator" : "bytes");
    const network *net = &generator->net;
    char *states = (char *)bytes + sizeof(state_header);
    if (size != blurry_generator_state_bytes(generator))
        return status_fail(BLURRY_E_INVALID, "size is %zu: the state takes %zu bytes", size,
                           blurry_generator_state_bytes(generator));
    state_header header = {.version = STATE_VERSION,
                           .element = (uint32_t)net->dev->element,
                           .batch = net->batch,
                           .max_length = generator->max_length,
                           .position = generator->position,
                           .state_bytes = net->state_bytes};
    memcpy(header.magic, state_magic, sizeof header.magic);
    STATUS_TRY(fingerprint(generator, header.fingerprint));
    STATUS_TRY(device_download(net->dev, states, net->states, net->state_bytes));
    checksum(&header, states, header.checksum);
    memcpy(bytes, &header, sizeof header);
    return BLURRY_OK;
}

static blurry_status check_header(const blurry_generator *g, const state_header *header, const char *states,
                                  size_t size)
{
    unsigned char digest[32];
    const network *net = &g->net;
    if (memcmp(header->magic, state_magic, sizeof header->magic))
        return status_fail(BLURRY_E_FORMAT, "the state does not begin with BLURGENS: it is no saved state");
    if (header->version != STATE_VERSION)
        return status_fail(BLURRY_E_FORMAT, "the state has version %lu: this library reads version %d",
                           (unsigned long)header->version, STATE_VERSION);
    if (header->state_bytes != size - sizeof *header)
        return status_fail(BLURRY_E_FORMAT,
                           "the state is cut or padded: it holds %zu bytes of states, its header says %llu",
                           size - sizeof *header, (unsigned long long)header->state_bytes);
    checksum(header, states, digest);
    if (memcmp(digest, header->checksum, sizeof digest))
        return status_fail(BLURRY_E_FORMAT, "the state is damaged: its checksum does not match");
    STATUS_TRY(fingerprint(g, digest));
    if (memcmp(digest, header->fingerprint, sizeof digest))
        return status_fail(BLURRY_E_INVALID,
                           "the state belongs to another model: shape or parameters differ");
    if (header->batch != net->batch || header->max_length != g->max_length ||
        header->element != net->dev->element || header->state_bytes != net->state_bytes)
        return status_fail(
            BLURRY_E_INVALID,
            "the state is of batch %lld, max_length %lld, %lu-byte elements: this generator has %lld, "
            "%lld, %zu",
            (long long)header->batch, (long long)header->max_length, (unsigned long)header->element,
            (long long)net->batch, (long long)g->max_length, net->dev->element);
    if (header->position < 0 || (g->bounded && header->position > g->max_length))
        return status_fail(BLURRY_E_FORMAT, "the state has position %lld", (long long)header->position);
    return BLURRY_OK;
}

blurry_status blurry_generator_restore(blurry_generator *generator, const void *bytes, size_t size)
{
    state_header header;
    if (!generator || !bytes)
        return status_fail(BLURRY_E_INVALID, "%s is NULL", !generator ? "generator" : "bytes");
    if (size < sizeof header)
        return status_fail(BLURRY_E_FORMAT, "the state is cut: %zu bytes, the header alone takes %zu", size,
                           sizeof header);
    const char *states = (const char *)bytes + sizeof header;
    memcpy(&header, bytes, sizeof header);
    STATUS_TRY(check_header(generator, &header, states, size));
    STATUS_TRY(device_upload(generator->net.dev, generator->net.states, states, generator->net.state_bytes));
    return set_position(generator, header.position);
}
