/* Statistics of the tasks, taken from the samples as a model would see them. */
#include "tasks/statistics.h"

#include "base/memory.h"
#include "tasks/predictors.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

void task_statistic(task_statistics *to, const char *name, double value, const char *meaning)
{
    if (to->count == BLURRY_STATISTICS_MAX) return;
    blurry_statistic *s = &to->list[to->count++];
    snprintf(s->name, sizeof s->name, "%s", name);
    s->value = value;
    s->meaning = meaning;
}

blurry_status blurry_task_statistics(const blurry_task *task, blurry_split split, int64_t samples,
                                     blurry_statistic *list, int *count)
{
    if (!task || !list || !count)
        return status_fail(BLURRY_E_INVALID, "%s is NULL", !task ? "task" : !list ? "list" : "count");
    *count = 0;
    if ((unsigned)split >= BLURRY_SPLITS)
        return status_fail(BLURRY_E_INVALID, "split is %d: use train, val or test", (int)split);
    if (samples < 0)
        return status_fail(BLURRY_E_INVALID, "samples is %lld: give 0 (all) or more", (long long)samples);
    int64_t available = task->info.samples[split];
    if (samples == 0 || samples > available) samples = available;
    if (samples == 0)
        return status_fail(BLURRY_E_INVALID, "split is %s: %s has no samples there", blurry_split_name(split),
                           task->info.name);
    task_statistics to = {.list = list};
    task_statistic(&to, "sequences", (double)samples, "samples looked at");
    STATUS_TRY(task->kind->statistics(task, split, samples, &to));
    *count = to.count;
    return BLURRY_OK;
}

/* ---- what the statistics below share ---- */

/* Calls visit for every sample of [0, samples), one at a time. */
typedef void (*visitor)(void *context, const blurry_samples *one);
static blurry_status visit_samples(const blurry_task *task, blurry_split split, int64_t samples,
                                   visitor visit, void *context)
{
    blurry_samples *one;
    STATUS_TRY(blurry_samples_create(&one, task, 1));
    blurry_status status = BLURRY_OK;
    for (int64_t i = 0; i < samples && status == BLURRY_OK; i++) {
        status = blurry_task_fill(task, split, &i, 1, 0, one);
        if (status == BLURRY_OK) visit(context, one);
    }
    blurry_samples_destroy(&one);
    return status;
}

/* The smallest value v such that at least `share` of all counted values are <= v; count [size]. */
static double quantile(const int64_t *count, int64_t size, int64_t total, double share)
{
    int64_t seen = 0;
    for (int64_t v = 0; v < size; v++) {
        seen += count[v];
        if (seen > 0 && (double)seen >= share * (double)total) return (double)v;
    }
    return NAN;
}

static double mean(const int64_t *count, int64_t size, int64_t total)
{
    double sum = 0;
    for (int64_t v = 0; v < size; v++) sum += (double)v * (double)count[v];
    return sum / (double)total;
}

/* ---- mqar ---- */

typedef struct mqar_counts {
    int64_t *distance; /* [L] queries by the distance from the value to the query */
    int32_t *value_at; /* [V] where the value of a key stands */
    int64_t queries,
        filled; /* labelled positions; positions after the pairs that are neither query nor token 0 */
} mqar_counts;

/* The samples may come from a file, which promises tokens of the vocabulary but no pairs. */
static void count_queries(void *context, const blurry_samples *s)
{
    mqar_counts *c = context;
    int64_t pairs = s->row_count; /* every pair is asked for once */
    for (int64_t j = 0; j < pairs && 2 * j < s->length; j++)
        c->value_at[s->tokens[2 * j]] = (int32_t)(2 * j + 1);
    for (int64_t r = 0; r < s->row_count; r++) {
        int64_t distance = s->rows[r] - c->value_at[s->tokens[s->rows[r]]];
        if (distance >= 0) c->distance[distance]++;
    }
    for (int64_t t = 2 * pairs, r = 0; t < s->length; t++) {
        if (r < s->row_count && s->rows[r] == t)
            r++;
        else
            c->filled += s->tokens[t] != 0;
    }
    c->queries += s->row_count;
}

blurry_status statistics_mqar(const blurry_task *task, blurry_split split, int64_t samples,
                              task_statistics *to)
{
    int64_t L = task->info.length;
    mqar_counts c = {0};
    STATUS_TRY(memory_alloc((void **)&c.distance, (size_t)L, sizeof *c.distance, "distances"));
    blurry_status status = memory_alloc((void **)&c.value_at, (size_t)task->info.vocabulary,
                                        sizeof *c.value_at, "places of values");
    if (status == BLURRY_OK) status = visit_samples(task, split, samples, count_queries, &c);
    if (status == BLURRY_OK) {
        task_statistic(to, "queries", (double)c.queries, "labelled positions");
        task_statistic(to, "distance_mean", mean(c.distance, L, c.queries),
                       "tokens from the value to its query");
        task_statistic(to, "distance_median", quantile(c.distance, L, c.queries, 0.5),
                       "half are at most this far");
        task_statistic(to, "distance_max", quantile(c.distance, L, c.queries, 1), "the farthest");
        int64_t near = 0, w = 1;
        for (int64_t d = 0; d < L; d++) {
            near += c.distance[d];
            if (d + 1 != 2 * w) continue;
            w = d + 1;
            char name[64];
            snprintf(name, sizeof name, "within_%lld", (long long)w);
            if (w >= 16)
                task_statistic(to, name, (double)near / (double)c.queries,
                               "share of queries whose value lies within a window of this many tokens");
        }
        int64_t others = samples * L - 3 * c.queries; /* neither pair nor query */
        task_statistic(to, "random_filler", others ? (double)c.filled / (double)others : 0,
                       "share of the other positions after the pairs that are not token 0");
    }
    memory_free(c.distance);
    memory_free(c.value_at);
    return status;
}

/* ---- regbench ---- */

typedef struct regbench_counts {
    int64_t *length; /* [longest + 1] documents by input length */
    int64_t longest; /* also the most labels of a document */
    int64_t labels, hits[PREDICTORS];
    double perfect, legal;
    int32_t *predicted; /* [PREDICTORS, longest] */
    predictor_counts counts;
} regbench_counts;

static void count_document(void *context, const blurry_samples *s)
{
    regbench_counts *c = context;
    c->length[s->lengths[0]]++;
    c->labels += s->row_count;
    predictors_run(s, 0, &c->counts, c->predicted, c->longest);
    for (int64_t r = 0; r < s->row_count; r++) {
        int legal = __builtin_popcount(s->legal[r]);
        c->legal += legal;
        c->perfect += 1.0 / legal;
        for (int p = 0; p < PREDICTORS; p++)
            c->hits[p] += s->legal[r] >> c->predicted[p * c->longest + r] & 1;
    }
}

/* Numbers of the automata themselves: known where they were drawn, not where a file was read. */
static void automaton_statistics(const blurry_task *task, blurry_split split, int64_t samples,
                                 task_statistics *to)
{
    if (task->source != &regbench_source) return;
    double sampled = 0, minimal = 0, letters = 0;
    int32_t fewest = AUTOMATON_STATES, most = 0;
    for (int64_t i = 0; i < samples; i++) {
        const regbench_language *language = regbench_language_at(task->self, split, i);
        uint32_t used = 0;
        for (int s = 0; s < language->minimal.states; s++) used |= automaton_legal(&language->minimal, s);
        sampled += language->sampled_states;
        minimal += language->minimal.states;
        letters += __builtin_popcount(used);
        if (language->minimal.states < fewest) fewest = language->minimal.states;
        if (language->minimal.states > most) most = language->minimal.states;
    }
    task_statistic(to, "states_sampled_mean", sampled / (double)samples, "states before minimisation");
    task_statistic(to, "states_mean", minimal / (double)samples, "states of the minimal automaton");
    task_statistic(to, "states_min", fewest, "the fewest");
    task_statistic(to, "states_max", most, "the most");
    task_statistic(to, "letters_mean", letters / (double)samples, "letters the language uses");
}

static void document_statistics(const regbench_counts *c, int64_t samples, task_statistics *to)
{
    int64_t size = c->longest + 1;
    task_statistic(to, "length_mean", mean(c->length, size, samples), "input tokens of a document");
    task_statistic(to, "length_p95", quantile(c->length, size, samples, 0.95),
                   "95 of 100 are at most this long");
    task_statistic(to, "length_max", quantile(c->length, size, samples, 1), "the longest");
    task_statistic(to, "labels_mean", (double)c->labels / (double)samples,
                   "labelled positions of a document");
    task_statistic(to, "legal_mean", c->legal / (double)c->labels, "legal letters at a labelled position");
    static const char *const names[PREDICTORS][2] = {
        {"unigram", "legal accuracy of the most frequent letter so far"},
        {"bigram", "of the letter that most often followed the latest token; else unigram"},
        {"trigram", "of the letter that most often followed the latest two tokens; else bigram"},
        {"true_state", "of the letter that most often left the current state, which is told; else unigram"}};
    for (int p = 0; p < PREDICTORS; p++)
        task_statistic(to, names[p][0], (double)c->hits[p] / (double)c->labels, names[p][1]);
    task_statistic(to, "perfect_exact", c->perfect / (double)c->labels,
                   "share of labels that a model knowing the language names exactly");
}

blurry_status statistics_regbench(const blurry_task *task, blurry_split split, int64_t samples,
                                  task_statistics *to)
{
    regbench_counts *c;
    STATUS_TRY(memory_alloc((void **)&c, 1, sizeof *c, "regbench statistics"));
    c->longest = task->info.length;
    blurry_status status =
        memory_alloc((void **)&c->length, (size_t)c->longest + 1, sizeof *c->length, "lengths");
    if (status == BLURRY_OK)
        status = memory_alloc((void **)&c->predicted, (size_t)c->longest, PREDICTORS * sizeof *c->predicted,
                              "predictions");
    if (status == BLURRY_OK) status = visit_samples(task, split, samples, count_document, c);
    if (status == BLURRY_OK) {
        automaton_statistics(task, split, samples, to);
        document_statistics(c, samples, to);
    }
    memory_free(c->length);
    memory_free(c->predicted);
    memory_free(c);
    return status;
}

/* ---- text ---- */

typedef struct text_counts {
    int64_t byte[256], labels, tokens;
} text_counts;

static void count_bytes(void *context, const blurry_samples *s)
{
    text_counts *c = context;
    for (int64_t r = 0; r < s->row_count; r++) c->byte[s->labels[r]]++;
    c->labels += s->row_count;
    c->tokens += s->lengths[0];
}

blurry_status statistics_text(const blurry_task *task, blurry_split split, int64_t samples,
                              task_statistics *to)
{
    text_counts c = {0};
    STATUS_TRY(visit_samples(task, split, samples, count_bytes, &c));
    double bits = 0, distinct = 0;
    for (int i = 0; i < 256; i++) {
        double share = (double)c.byte[i] / (double)c.labels;
        if (c.byte[i]) bits -= share * log2(share);
        distinct += c.byte[i] > 0;
    }
    task_statistic(to, "labels", (double)c.labels, "bytes to predict");
    task_statistic(to, "length_mean", (double)c.tokens / (double)samples, "input bytes of a window");
    task_statistic(to, "distinct_bytes", distinct, "different bytes among them");
    task_statistic(to, "unigram_bits_per_byte", bits,
                   "what a model that knows only the bytes' frequencies pays");
    return BLURRY_OK;
}
