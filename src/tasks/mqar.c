/* Multi-query associative recall.
 *
 * A sample starts with K pairs k0 v0 k1 v1 ..., K distinct keys of 1 .. V/2-1 and K distinct values of V/2 ..
 * V-1. The rest, L - 2K tokens, has n = (L-2K)/2 places of two tokens each. K distinct places are drawn one
 * after the other with weight i^(a-1) for place i = 1 .. n: the j-th drawn place asks for pair j, its first
 * token being k_j with label v_j. */
#include "tasks/task.h"

#include "base/memory.h"
#include "base/rng.h"
#include "tasks/statistics.h"

#include <stdlib.h>
#include <string.h>

typedef struct mqar {
    int64_t length, pairs, vocab, places; /* L, K, V, n */
    uint64_t seed;
    bool random_filler;
    double *log_weight; /* [n] */
} mqar;

typedef struct scored_place {
    double score;
    int32_t place;
} scored_place;

typedef struct mqar_scratch {
    scored_place *scored;   /* [n] */
    int32_t *pool;          /* [V - V/2] 0, 1, 2, ... (rng_distinct) */
    int32_t *keys, *values; /* [K] */
    int32_t *pair_at;       /* [n] the pair a place asks for, or -1 */
} mqar_scratch;

static blurry_status check(const struct settings *s)
{
    if (s->length % 2)
        return status_fail(BLURRY_E_INVALID, "length is %lld: mqar needs an even length",
                           (long long)s->length);
    if (s->pairs > s->length / 4)
        return status_fail(BLURRY_E_INVALID,
                           "length is %lld: %lld pairs need at least %lld (4 tokens per pair)",
                           (long long)s->length, (long long)s->pairs, (long long)(4 * s->pairs));
    if (s->vocab / 2 - 1 < s->pairs)
        return status_fail(BLURRY_E_INVALID, "vocab is %lld: %lld distinct keys need at least %lld",
                           (long long)s->vocab, (long long)s->pairs, (long long)(2 * s->pairs + 2));
    return BLURRY_OK;
}

static void destroy(void *self)
{
    mqar *m = self;
    memory_free(m->log_weight);
    memory_free(m);
}

/* One allocation, carved up: the places first, being the widest type. */
static blurry_status make_scratch(const void *self, void **out)
{
    const mqar *m = self;
    size_t values = (size_t)(m->vocab - m->vocab / 2), n = (size_t)m->places, K = (size_t)m->pairs;
    size_t bytes = sizeof(mqar_scratch) + n * sizeof(scored_place) + (values + 2 * K + n) * sizeof(int32_t);
    STATUS_TRY(memory_alloc(out, bytes, 1, "scratch of mqar"));
    mqar_scratch *s = *out;
    s->scored = (scored_place *)(s + 1);
    s->pool = (int32_t *)(s->scored + n);
    s->keys = s->pool + values;
    s->values = s->keys + K;
    s->pair_at = s->values + K;
    for (size_t i = 0; i < values; i++) s->pool[i] = (int32_t)i;
    return BLURRY_OK;
}

static int64_t length_of(const void *self, blurry_split split, int64_t index)
{
    (void)split, (void)index;
    return ((const mqar *)self)->length;
}

/* Highest score first; equal scores, which need equal random numbers, in the order of places. */
static int by_score(const void *a, const void *b)
{
    const scored_place *x = a, *y = b;
    if (x->score != y->score) return x->score > y->score ? -1 : 1;
    return x->place < y->place ? -1 : x->place > y->place;
}

/* Successive sampling without replacement: the order of log weight + Gumbel noise is that of the draws. */
static void draw_places(const mqar *m, mqar_scratch *s, rng *r)
{
    for (int64_t i = 0; i < m->places; i++) {
        s->scored[i].score = m->log_weight[i] + rng_gumbel(r);
        s->scored[i].place = (int32_t)i;
        s->pair_at[i] = -1;
    }
    qsort(s->scored, (size_t)m->places, sizeof *s->scored, by_score);
    for (int64_t j = 0; j < m->pairs; j++) s->pair_at[s->scored[j].place] = (int32_t)j;
}

static void sample(const void *self, void *scratch, blurry_split split, int64_t index, task_sample *out)
{
    const mqar *m = self;
    mqar_scratch *s = scratch;
    int64_t K = m->pairs, half = m->vocab / 2;
    rng r = rng_stream(m->seed, RNG_MQAR + (uint32_t)split, (uint64_t)index);
    rng_distinct(&r, half - 1, K, s->pool, s->keys);
    rng_distinct(&r, m->vocab - half, K, s->pool, s->values);
    draw_places(m, s, &r);
    for (int64_t j = 0; j < K; j++) {
        s->keys[j] += 1;
        s->values[j] += (int32_t)half;
        out->tokens[2 * j] = s->keys[j];
        out->tokens[2 * j + 1] = s->values[j];
    }
    if (m->random_filler)
        for (int64_t t = 2 * K; t < m->length; t++)
            out->tokens[t] = (int32_t)rng_below(&r, (uint64_t)m->vocab);
    out->row_count = 0;
    for (int64_t i = 0; i < m->places; i++) {
        if (s->pair_at[i] < 0) continue;
        int64_t position = 2 * K + 2 * i;
        out->tokens[position] = s->keys[s->pair_at[i]];
        out->rows[out->row_count] = position;
        out->labels[out->row_count++] = s->values[s->pair_at[i]];
    }
}

static const task_source source = {destroy, make_scratch, length_of, sample};

static blurry_status create(const struct settings *s, blurry_task *task)
{
    STATUS_TRY(check(s));
    mqar *m;
    STATUS_TRY(memory_alloc((void **)&m, 1, sizeof *m, "mqar"));
    m->length = s->length;
    m->pairs = s->pairs;
    m->vocab = s->vocab;
    m->places = (s->length - 2 * s->pairs) / 2;
    m->seed = (uint64_t)s->data_seed;
    m->random_filler = s->filler == SETTINGS_filler_random;
    blurry_status status =
        memory_alloc((void **)&m->log_weight, (size_t)m->places, sizeof(double), "place weights");
    if (status != BLURRY_OK) {
        memory_free(m);
        return status;
    }
    for (int64_t i = 0; i < m->places; i++) m->log_weight[i] = (s->power - 1) * rng_log((double)(i + 1));
    task->self = m;
    task->source = &source;
    task->info.vocabulary = s->vocab;
    task->info.length = s->length;
    task->info.max_labels = s->pairs;
    task->info.samples[BLURRY_TRAIN] = task_samples_or(s->train_samples, 100000);
    task->info.samples[BLURRY_VAL] = task_samples_or(s->val_samples, 3000);
    task->info.samples[BLURRY_TEST] = task_samples_or(s->test_samples, 3000);
    return BLURRY_OK;
}

const double *task_mqar_weights(const blurry_task *task, int64_t *places)
{
    if (task->source != &source) return NULL;
    const mqar *m = task->self;
    *places = m->places;
    return m->log_weight;
}

const task_kind task_mqar = {
    .name = "mqar",
    .summary =
        "multi-query associative recall: after K key-value pairs, name the value of each key asked for",
    .metric = "accuracy",
    .accuracy = TASK_ACCURACY_SEQUENCES,
    .create = create,
    .statistics = statistics_mqar,
};
