/* Simple predictors of RegBench documents, the yardsticks a model is measured against.
 *
 * Each counts letters within the document so far and predicts the one it counted most, the lowest token on
 * ties: unigram  all letters; 2-gram   those that followed the latest token; none yet: unigram; 3-gram those
 * that followed the latest two tokens; none yet: 2-gram; state    those that left the automaton's current
 * state, which is told; none yet: unigram. Context tokens may be separators, and the document counts as
 * preceded by them; separators are never predicted. */
#ifndef BLURRY_TASKS_PREDICTORS_H
#define BLURRY_TASKS_PREDICTORS_H
#include "tasks/regbench.h"

typedef enum predictor {
    PREDICT_UNIGRAM,
    PREDICT_BIGRAM,
    PREDICT_TRIGRAM,
    PREDICT_STATE,
    PREDICTORS
} predictor;

typedef struct predictor_counts {
    int32_t letter[REGBENCH_VOCABULARY];
    int32_t after1[REGBENCH_VOCABULARY][REGBENCH_VOCABULARY];
    int32_t after2[REGBENCH_VOCABULARY][REGBENCH_VOCABULARY][REGBENCH_VOCABULARY];
    int32_t in_state[AUTOMATON_STATES][REGBENCH_VOCABULARY];
} predictor_counts;

/* Predicts every labelled position of sample b from the tokens up to there: predicted [PREDICTORS][its rows],
 * `stride` apart. `counts` is scratch. */
void predictors_run(const blurry_samples *samples, int64_t b, predictor_counts *counts, int32_t *predicted,
                    int64_t stride);

#endif
