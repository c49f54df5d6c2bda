/* Independent checks of automata: language comparison by walking both at once, minimal size by comparing
 * words. */
#ifndef BLURRY_TEST_AUTOMATA_H
#define BLURRY_TEST_AUTOMATA_H
#include "tasks/automaton.h"

/* Whether both accept the same words: every pair of states that one word reaches must offer the same letters.
 */
int same_language(const automaton *a, const automaton *b);

/* The number of different languages that start in states reachable from the start, found by listing every
 * word up to `length` letters. Exact for length >= states - 1; meant for few letters. */
int count_residual_languages(const automaton *a, int length);

#endif
