/* RegBench: one document per random regular language, to be learned in context.
 *
 * A document is 10..19 strings of 1..49 letters, uniform random walks of the language's minimal automaton
 * from its start, joined by a separator. The model reads all tokens but the last; wherever the next token is
 * a letter there is a label, with the letters that are legal there. No two automata of any splits have the
 * same language: test automata are drawn first, then validation, then training ones, each skipping the
 * languages already taken, so that the test set does not depend on the number of training automata. */
#include "tasks/regbench.h"

#include "base/memory.h"
#include "tasks/statistics.h"

#include <string.h>

enum { STRINGS_MIN = 10, STRINGS_MAX = 19, LENGTH_MIN = 1, LENGTH_MAX = 49 };

struct regbench {
    uint64_t seed;
    int64_t count[BLURRY_SPLITS];
    regbench_language *languages[BLURRY_SPLITS];
};

const regbench_language *regbench_language_at(const regbench *r, blurry_split split, int64_t index)
{
    return &r->languages[split][index];
}

/* ---- documents ---- */

/* The document's plan: lengths [return value] of its strings. */
static int draw_lengths(rng *r, int lengths[STRINGS_MAX])
{
    int strings = (int)rng_between(r, STRINGS_MIN, STRINGS_MAX);
    for (int i = 0; i < strings; i++) lengths[i] = (int)rng_between(r, LENGTH_MIN, LENGTH_MAX);
    return strings;
}

static rng document_stream(const regbench *r, blurry_split split, const regbench_language *language)
{
    return rng_stream(r->seed, RNG_DOCUMENT + (uint32_t)split, (uint64_t)language->candidate);
}

/* A uniformly drawn letter of the set. */
static int draw_letter(rng *r, uint32_t legal)
{
    int skip = (int)rng_below(r, (uint64_t)__builtin_popcount(legal));
    for (; skip; skip--) legal &= legal - 1;
    return __builtin_ctz(legal);
}

static int64_t length_of(const void *self, blurry_split split, int64_t index)
{
    return ((const regbench *)self)->languages[split][index].length;
}

static void sample(const void *self, void *scratch, blurry_split split, int64_t index, task_sample *out)
{
    (void)scratch;
    const regbench *b = self;
    const regbench_language *language = &b->languages[split][index];
    const automaton *a = &language->minimal;
    rng r = document_stream(b, split, language);
    int lengths[STRINGS_MAX], strings = draw_lengths(&r, lengths);
    int64_t position = 0; /* of the token being made; it is the target at position - 1 */
    out->row_count = 0;
    for (int i = 0; i < strings; i++) {
        if (i) out->tokens[position++] = REGBENCH_SEPARATOR;
        for (int k = 0, state = 0; k < lengths[i]; k++) {
            uint32_t legal = automaton_legal(a, state);
            int letter = draw_letter(&r, legal), token = REGBENCH_FIRST_LETTER + letter;
            if (position) {
                out->rows[out->row_count] = position - 1;
                out->labels[out->row_count] = token;
                out->legal[out->row_count] = legal << REGBENCH_FIRST_LETTER;
                out->states[out->row_count++] = state;
            }
            if (position < language->length) out->tokens[position] = token;
            position++;
            state = a->next[state][letter];
        }
    }
}

/* ---- languages ---- */

/* The languages taken so far, open addressing; entries are 1 + split * 2^40 + index, 0: free. */
typedef struct taken {
    uint64_t *slot;
    uint64_t mask;
} taken;

static uint64_t automaton_hash(const automaton *a)
{
    uint64_t hash = (uint64_t)a->states;
    for (int s = 0; s < a->states; s++)
        for (int letter = 0; letter < AUTOMATON_LETTERS; letter++)
            hash = (hash ^ (uint8_t)a->next[s][letter]) * 0x100000001b3u;
    return hash ^ hash >> 29;
}

/* Whether the language was new; then it is entered. */
static bool take(taken *set, const regbench *b, const automaton *a, blurry_split split, int64_t index)
{
    uint64_t at = automaton_hash(a) & set->mask;
    for (; set->slot[at]; at = (at + 1) & set->mask) {
        uint64_t entry = set->slot[at] - 1;
        const automaton *other = &b->languages[entry >> 40][entry & 0xffffffffffu].minimal;
        if (!memcmp(other, a, sizeof *a)) return false;
    }
    set->slot[at] = 1 + ((uint64_t)split << 40 | (uint64_t)index);
    return true;
}

static blurry_status draw_split(regbench *b, const automaton_family *family, taken *set, blurry_split split)
{
    int64_t wanted = b->count[split], candidate = 0, limit = 10000 + 100 * wanted;
    for (int64_t index = 0; index < wanted; candidate++) {
        if (candidate == limit)
            return status_fail(BLURRY_E_UNSUPPORTED,
                               "%s automata are %lld: only %lld different languages were found",
                               blurry_split_name(split), (long long)wanted, (long long)index);
        regbench_language *language = &b->languages[split][index];
        rng r = rng_stream(b->seed, RNG_AUTOMATON + (uint32_t)split, (uint64_t)candidate);
        automaton_sample(&r, family, &language->minimal);
        language->sampled_states = language->minimal.states;
        automaton_minimise(&language->minimal, &language->minimal);
        if (!take(set, b, &language->minimal, split, index)) continue;
        language->candidate = candidate;
        int lengths[STRINGS_MAX];
        r = document_stream(b, split, language);
        int strings = draw_lengths(&r, lengths);
        int32_t letters = 0;
        for (int i = 0; i < strings; i++) letters += lengths[i];
        language->length =
            letters + strings - 2; /* separators between strings; the last token is only a target */
        language->labels = letters - 1;
        index++;
    }
    return BLURRY_OK;
}

void regbench_destroy(void *self)
{
    regbench *b = self;
    if (!b) return;
    for (int i = 0; i < BLURRY_SPLITS; i++) memory_free(b->languages[i]);
    memory_free(b);
}

static blurry_status draw_all(regbench *b, const automaton_family *family)
{
    size_t total = 0, slots = 64;
    for (int i = 0; i < BLURRY_SPLITS; i++) {
        if (b->count[i] > REGBENCH_AUTOMATA_MAX)
            return status_fail(BLURRY_E_INVALID, "%s automata are %lld: give at most %lld",
                               blurry_split_name((blurry_split)i), (long long)b->count[i],
                               (long long)REGBENCH_AUTOMATA_MAX);
        STATUS_TRY(memory_alloc((void **)&b->languages[i], (size_t)b->count[i], sizeof(regbench_language),
                                "automata"));
        total += (size_t)b->count[i];
    }
    while (slots < 2 * total) slots *= 2;
    taken set = {.mask = slots - 1};
    STATUS_TRY(memory_alloc((void **)&set.slot, slots, sizeof *set.slot, "set of languages"));
    static const blurry_split order[] = {BLURRY_TEST, BLURRY_VAL, BLURRY_TRAIN};
    blurry_status status = BLURRY_OK;
    for (int i = 0; i < BLURRY_SPLITS && status == BLURRY_OK; i++)
        status = draw_split(b, family, &set, order[i]);
    memory_free(set.slot);
    return status;
}

blurry_status regbench_create(regbench **out, const automaton_family *family, uint64_t seed,
                              const int64_t count[BLURRY_SPLITS])
{
    regbench *b;
    STATUS_TRY(memory_alloc((void **)&b, 1, sizeof *b, "regbench"));
    b->seed = seed;
    memcpy(b->count, count, sizeof b->count);
    blurry_status status = draw_all(b, family);
    if (status != BLURRY_OK) {
        regbench_destroy(b);
        return status;
    }
    *out = b;
    return BLURRY_OK;
}

const task_source regbench_source = {regbench_destroy, NULL, length_of, sample};

static blurry_status create(const struct settings *s, blurry_task *task)
{
    blurry_task_info *info = &task->info;
    info->samples[BLURRY_TRAIN] = s->automata;
    info->samples[BLURRY_VAL] = task_samples_or(s->val_samples, 500);
    info->samples[BLURRY_TEST] = task_samples_or(s->test_samples, 500);
    regbench *b;
    STATUS_TRY(regbench_create(&b, &automaton_regbench, (uint64_t)s->data_seed, info->samples));
    for (int i = 0; i < BLURRY_SPLITS; i++)
        for (int64_t k = 0; k < b->count[i]; k++) {
            const regbench_language *language = &b->languages[i][k];
            if (language->length > info->length) info->length = language->length;
            if (language->labels > info->max_labels) info->max_labels = language->labels;
        }
    info->vocabulary = task_regbench.vocabulary;
    task->self = b;
    task->source = &regbench_source;
    return BLURRY_OK;
}

const task_kind task_regbench = {
    .name = "regbench",
    .summary = "in-context language learning: go on in a regular language seen only in the document so far",
    .metric = "accuracy",
    .accuracy = TASK_ACCURACY_LEGAL,
    .has_legal = true,
    .vocabulary = REGBENCH_VOCABULARY,
    .states = AUTOMATON_STATES,
    .create = create,
    .statistics = statistics_regbench,
};
