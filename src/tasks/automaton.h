/* Deterministic finite automata whose states all accept, as RegBench samples them, and their canonical
 * minimal form.
 *
 * Such an automaton accepts a prefix-closed language: the words along whose letters it can walk from state 0.
 */
#ifndef BLURRY_TASKS_AUTOMATON_H
#define BLURRY_TASKS_AUTOMATON_H
#include "base/rng.h"

#include <stdint.h>

enum { AUTOMATON_LETTERS = 18, AUTOMATON_STATES = 12 };

typedef struct automaton {
    int32_t states;
    int8_t next[AUTOMATON_STATES]
               [AUTOMATON_LETTERS]; /* target, or -1; -1 throughout in rows beyond `states` */
} automaton;

/* What to sample from: every range is uniform, both ends included. */
typedef struct automaton_family {
    int states_min, states_max;     /* at most AUTOMATON_STATES */
    int alphabet_min, alphabet_max; /* letters in use, at most AUTOMATON_LETTERS */
    int degree_min, degree_max;     /* edges leaving a state: 1 .. alphabet_min, below states_min */
} automaton_family;

/* RegBench: 4..12 states, 4..18 letters, 1..3 edges per state. */
extern const automaton_family automaton_regbench;

/* Each state gets its number of edges, with distinct letters of the alphabet and distinct targets, never
 * itself. */
void automaton_sample(rng *r, const automaton_family *family, automaton *a);

/* The smallest automaton of the same language, its states numbered in the order a breadth-first walk from the
 * start with ascending letters meets them: equal languages give equal bytes. `minimal` may be `a`. */
void automaton_minimise(const automaton *a, automaton *minimal);

/* Bit i: letter i can be read in this state. */
uint32_t automaton_legal(const automaton *a, int state);

#endif
