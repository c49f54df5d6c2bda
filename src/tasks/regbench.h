/* RegBench's inside, for its statistics and tests. */
#ifndef BLURRY_TASKS_REGBENCH_H
#define BLURRY_TASKS_REGBENCH_H
#include "tasks/automaton.h"
#include "tasks/task.h"

enum {
    REGBENCH_FIRST_LETTER = 1, /* 0 is the padding */
    REGBENCH_SEPARATOR = REGBENCH_FIRST_LETTER + AUTOMATON_LETTERS,
    REGBENCH_VOCABULARY,
    REGBENCH_AUTOMATA_MAX = 1 << 24 /* per split: about 4 GiB */
};

typedef struct regbench_language {
    automaton minimal;
    int32_t sampled_states; /* before minimisation */
    int32_t length, labels; /* of the document: input tokens, labelled positions */
    int64_t candidate;      /* its number among all drawn automata of the split */
} regbench_language;

typedef struct regbench regbench;

/* count[split] automata with pairwise different languages. */
blurry_status regbench_create(regbench **out, const automaton_family *family, uint64_t seed,
                              const int64_t count[BLURRY_SPLITS]);
void regbench_destroy(void *self);
const regbench_language *regbench_language_at(const regbench *r, blurry_split split, int64_t index);

/* Tasks with this source have a `regbench` as self. */
extern const task_source regbench_source;

#endif
