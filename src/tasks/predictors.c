/* The four counting predictors of predictors.h. */
#include "tasks/predictors.h"

#include <string.h>

/* The letter counted most, the lowest on ties; `fallback` where nothing was counted. */
static int32_t most_frequent(const int32_t *count, int32_t fallback)
{
    int32_t best = fallback, highest = 0;
    for (int32_t token = REGBENCH_FIRST_LETTER; token < REGBENCH_SEPARATOR; token++)
        if (count[token] > highest) {
            highest = count[token];
            best = token;
        }
    return best;
}

/* The tokens before the one in question, latest first, and the state it leaves. */
typedef struct context {
    int32_t last, before, state;
} context;

static void observe(predictor_counts *counts, const context *c, int32_t token)
{
    if (token < REGBENCH_FIRST_LETTER || token >= REGBENCH_SEPARATOR) return;
    counts->letter[token]++;
    counts->after1[c->last][token]++;
    counts->after2[c->before][c->last][token]++;
    counts->in_state[c->state][token]++;
}

void predictors_run(const blurry_samples *s, int64_t b, predictor_counts *counts, int32_t *predicted,
                    int64_t stride)
{
    memset(counts, 0, sizeof *counts);
    const int32_t *tokens = s->tokens + b * s->length;
    int64_t row = s->row_offsets[b], first = row, end = s->row_offsets[b + 1];
    context c = {REGBENCH_SEPARATOR, REGBENCH_SEPARATOR, 0};
    for (int64_t t = 0; t < s->lengths[b] && row < end; t++) {
        /* Token t left the state given at the label before it; the first one left the start. */
        observe(counts, &c, tokens[t]);
        c.before = c.last;
        c.last = tokens[t];
        if (s->rows[row] != b * s->length + t) continue;
        c.state = s->states[row];
        int32_t *out = predicted + (row - first);
        int32_t unigram = most_frequent(counts->letter, REGBENCH_FIRST_LETTER);
        int32_t bigram = most_frequent(counts->after1[c.last], unigram);
        out[PREDICT_UNIGRAM * stride] = unigram;
        out[PREDICT_BIGRAM * stride] = bigram;
        out[PREDICT_TRIGRAM * stride] = most_frequent(counts->after2[c.before][c.last], bigram);
        out[PREDICT_STATE * stride] = most_frequent(counts->in_state[c.state], unigram);
        row++;
    }
}
