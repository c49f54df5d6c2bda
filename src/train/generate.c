/* Sessions: see blurry/generate.h.
 *
 * The last token of the text is always kept back and fed when the next one is wanted, so that the state
 * together with that token says everything: what follows is computed by the same calls whether or not the
 * session was saved in between. */
#include "blurry/generate.h"
#include "base/file.h"
#include "base/memory.h"
#include "base/rng.h"
#include "base/sha256.h"
#include "base/status.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct candidate {
    double weight;
    int32_t token;
} candidate;

struct blurry_session {
    blurry_generator *generator;
    blurry_sampling sampling;
    int64_t vocabulary;
    int32_t pending;       /* the last token, not yet fed; -1 before any */
    float *logits;         /* [vocabulary] */
    candidate *candidates; /* [vocabulary] */
};

static blurry_status check_sampling(const blurry_sampling *s)
{
    if (!(s->temperature >= 0) || !isfinite(s->temperature))
        return status_fail(BLURRY_E_INVALID, "temperature is %g: give a finite number >= 0", s->temperature);
    if (!(s->top_p > 0 && s->top_p <= 1))
        return status_fail(BLURRY_E_INVALID, "top_p is %g: give a number above 0, at most 1", s->top_p);
    return BLURRY_OK;
}

static blurry_status session_init(blurry_session *s, const blurry_model *model, int64_t max_length)
{
    s->vocabulary = blurry_model_vocabulary(model);
    s->pending = -1;
    STATUS_TRY(memory_alloc((void **)&s->logits, (size_t)s->vocabulary, sizeof *s->logits, "logits"));
    STATUS_TRY(
        memory_alloc((void **)&s->candidates, (size_t)s->vocabulary, sizeof *s->candidates, "candidates"));
    return blurry_generator_create(&s->generator, model, 1, max_length);
}

blurry_status blurry_session_create(blurry_session **session, const blurry_model *model,
                                    const blurry_sampling *sampling, int64_t max_length)
{
    if (!session) return status_fail(BLURRY_E_INVALID, "session is NULL");
    *session = NULL;
    if (!model || !sampling) return status_fail(BLURRY_E_INVALID, "model or sampling is NULL");
    STATUS_TRY(check_sampling(sampling));
    blurry_session *s = NULL;
    STATUS_TRY(memory_alloc((void **)&s, 1, sizeof *s, "session"));
    s->sampling = *sampling;
    blurry_status status = session_init(s, model, max_length);
    if (status != BLURRY_OK) blurry_session_destroy(&s);
    *session = s;
    return status;
}

void blurry_session_destroy(blurry_session **session)
{
    blurry_session *s = session ? *session : NULL;
    if (!s) return;
    blurry_generator_destroy(&s->generator);
    memory_free(s->logits);
    memory_free(s->candidates);
    memory_free(s);
    *session = NULL;
}

void blurry_session_get_sampling(const blurry_session *session, blurry_sampling *sampling)
{
    *sampling = session->sampling;
}

blurry_status blurry_session_set_sampling(blurry_session *session, const blurry_sampling *sampling)
{
    if (!session || !sampling) return status_fail(BLURRY_E_INVALID, "session or sampling is NULL");
    STATUS_TRY(check_sampling(sampling));
    session->sampling = *sampling;
    return BLURRY_OK;
}

blurry_status blurry_session_feed(blurry_session *s, const int32_t *tokens, int64_t count)
{
    if (!s || count < 0 || (count > 0 && !tokens))
        return status_fail(BLURRY_E_INVALID, "session or tokens is missing");
    for (int64_t i = 0; i < count; i++)
        if (tokens[i] < 0 || tokens[i] >= s->vocabulary)
            return status_fail(BLURRY_E_INVALID, "tokens[%lld] is %d: the model knows 0 .. %lld",
                               (long long)i, tokens[i], (long long)s->vocabulary - 1);
    if (count == 0) return BLURRY_OK;
    if (s->pending >= 0) STATUS_TRY(blurry_generator_feed(s->generator, &s->pending, 1, NULL));
    s->pending = -1;
    if (count > 1) STATUS_TRY(blurry_generator_feed(s->generator, tokens, count - 1, NULL));
    s->pending = tokens[count - 1];
    return BLURRY_OK;
}

/* Most probable first; equal ones by token, so that the order is the same everywhere. */
static int by_weight(const void *left, const void *right)
{
    const candidate *a = left, *b = right;
    if (a->weight != b->weight) return a->weight < b->weight ? 1 : -1;
    return (a->token > b->token) - (a->token < b->token);
}

static blurry_status draw(blurry_session *s, int64_t position, int32_t *token)
{
    int64_t best = 0, n = s->vocabulary;
    for (int64_t i = 0; i < n; i++) {
        if (!isfinite(s->logits[i]))
            return status_fail(BLURRY_E_NUMERIC, "logit of token %lld at position %lld is not finite",
                               (long long)i, (long long)position);
        if (s->logits[i] > s->logits[best]) best = i;
    }
    *token = (int32_t)best;
    if (s->sampling.temperature == 0) return BLURRY_OK;
    double total = 0, kept = 0, part = 0;
    for (int64_t i = 0; i < n; i++) {
        double weight = exp(((double)s->logits[i] - (double)s->logits[best]) / s->sampling.temperature);
        s->candidates[i] = (candidate){.weight = weight, .token = (int32_t)i};
        total += weight;
    }
    if (s->sampling.top_p < 1) {
        qsort(s->candidates, (size_t)n, sizeof *s->candidates, by_weight);
        for (n = 0; n < s->vocabulary && (n == 0 || kept < s->sampling.top_p * total); n++)
            kept += s->candidates[n].weight;
        total = kept;
    }
    rng stream = rng_stream(s->sampling.seed, RNG_GENERATE, (uint64_t)position);
    double target = rng_double(&stream) * total;
    int64_t chosen = 0;
    for (; chosen < n - 1; chosen++) {
        part += s->candidates[chosen].weight;
        if (target < part) break;
    }
    *token = s->candidates[chosen].token;
    return BLURRY_OK;
}

blurry_status blurry_session_next(blurry_session *s, int32_t *token)
{
    if (!s || !token) return status_fail(BLURRY_E_INVALID, "session or token is NULL");
    if (s->pending < 0) return status_fail(BLURRY_E_INVALID, "no token was fed: give a prompt first");
    STATUS_TRY(blurry_generator_feed(s->generator, &s->pending, 1, s->logits));
    s->pending = -1;
    STATUS_TRY(draw(s, blurry_generator_position(s->generator), token));
    s->pending = *token;
    return BLURRY_OK;
}

/* ---- files ---- */
/* header | generator state | SHA-256 of all before it. Numbers are those of the machine (little-endian x86
 * and ARM). */
typedef struct session_header {
    char magic[16];   /* "blurry-state 1" */
    char version[32]; /* of the library */
    uint64_t seed;
    double temperature, top_p;
    int64_t pending;
    uint64_t state_bytes;
} session_header;

enum { DIGEST = 32 };
static const char session_magic[16] = "blurry-state 1";

static void digest_of(const uint8_t *data, size_t length, uint8_t digest[DIGEST])
{
    sha256 hash;
    sha256_init(&hash);
    sha256_update(&hash, data, length);
    sha256_final(&hash, digest);
}

blurry_status blurry_session_save(const blurry_session *s, const char *path)
{
    if (!s || !path) return status_fail(BLURRY_E_INVALID, "session or path is NULL");
    session_header header = {.seed = s->sampling.seed,
                             .temperature = s->sampling.temperature,
                             .top_p = s->sampling.top_p,
                             .pending = s->pending,
                             .state_bytes = blurry_generator_state_bytes(s->generator)};
    memcpy(header.magic, session_magic, sizeof header.magic);
    strncpy(header.version, blurry_version(), sizeof header.version - 1);
    size_t total = sizeof header + header.state_bytes + DIGEST;
    uint8_t *data = NULL;
    STATUS_TRY(memory_alloc((void **)&data, total, 1, "saved state"));
    memcpy(data, &header, sizeof header);
    blurry_status status = blurry_generator_save(s->generator, data + sizeof header, header.state_bytes);
    if (status == BLURRY_OK) {
        digest_of(data, total - DIGEST, data + total - DIGEST);
        status = file_save_bytes(path, data, total);
    }
    memory_free(data);
    return status;
}

static blurry_status check_file(const blurry_session *s, const uint8_t *data, size_t length,
                                session_header *header)
{
    uint8_t digest[DIGEST];
    if (length < sizeof *header + DIGEST)
        return status_fail(BLURRY_E_FORMAT, "it has %zu bytes: too short for a state", length);
    memcpy(header, data, sizeof *header);
    if (memcmp(header->magic, session_magic, sizeof session_magic))
        return status_fail(BLURRY_E_FORMAT, "it does not begin like a saved state");
    digest_of(data, length - DIGEST, digest);
    if (memcmp(digest, data + length - DIGEST, DIGEST))
        return status_fail(BLURRY_E_FORMAT, "it is cut or altered: its checksum is wrong");
    header->version[sizeof header->version - 1] = 0;
    if (strcmp(header->version, blurry_version()))
        return status_fail(BLURRY_E_INVALID, "it was saved by version %s, this is %s", header->version,
                           blurry_version());
    if (header->state_bytes != length - sizeof *header - DIGEST || header->pending < -1 ||
        header->pending >= s->vocabulary)
        return status_fail(BLURRY_E_FORMAT, "its header contradicts its content");
    blurry_sampling sampling = {header->temperature, header->top_p, header->seed};
    return check_sampling(&sampling);
}

blurry_status blurry_session_restore(blurry_session *s, const char *path)
{
    if (!s || !path) return status_fail(BLURRY_E_INVALID, "session or path is NULL");
    void *data = NULL;
    size_t length = 0;
    session_header header;
    STATUS_TRY(file_read(path, SIZE_MAX / 2, &data, &length));
    blurry_status status = check_file(s, data, length, &header);
    if (status == BLURRY_OK)
        status = blurry_generator_restore(s->generator, (uint8_t *)data + sizeof header, header.state_bytes);
    if (status == BLURRY_OK) {
        s->sampling = (blurry_sampling){header.temperature, header.top_p, header.seed};
        s->pending = (int32_t)header.pending;
    } else
        status_context(status, "%s", path);
    free(data);
    return status;
}
