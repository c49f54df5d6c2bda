/* Sampling automata, and minimising them by Moore's refinement. */
#include "tasks/automaton.h"

#include <string.h>

const automaton_family automaton_regbench = {4, 12, 4, AUTOMATON_LETTERS, 1, 3};

static void clear(automaton *a, int32_t states)
{
    memset(a, 0, sizeof *a); /* padding included, so that equal automata are equal bytes */
    a->states = states;
    memset(a->next, -1, sizeof a->next);
}

void automaton_sample(rng *r, const automaton_family *f, automaton *a)
{
    int32_t pool[AUTOMATON_LETTERS], alphabet[AUTOMATON_LETTERS], letters[AUTOMATON_LETTERS];
    int32_t targets[AUTOMATON_STATES];
    for (int i = 0; i < AUTOMATON_LETTERS; i++) pool[i] = i;
    clear(a, (int32_t)rng_between(r, f->states_min, f->states_max));
    int64_t size = rng_between(r, f->alphabet_min, f->alphabet_max);
    rng_distinct(r, AUTOMATON_LETTERS, size, pool, alphabet);
    for (int32_t state = 0; state < a->states; state++) {
        int64_t degree = rng_between(r, f->degree_min, f->degree_max);
        rng_distinct(r, size, degree, pool, letters);
        rng_distinct(r, a->states - 1, degree, pool, targets);
        for (int64_t i = 0; i < degree; i++) /* targets skip the state itself */
            a->next[state][alphabet[letters[i]]] = (int8_t)(targets[i] + (targets[i] >= state));
    }
}

/* class_of [states + 1]: classes of states that no word tells apart; the last state is the sink that takes
 * every missing edge. Refines "accepts or not" by the classes of the successors until nothing splits. */
static void equivalence_classes(const automaton *a, int8_t *class_of)
{
    int8_t next[AUTOMATON_STATES + 1][AUTOMATON_LETTERS], refined[AUTOMATON_STATES + 1];
    int sink = a->states, classes = 2, before;
    for (int s = 0; s <= sink; s++)
        for (int letter = 0; letter < AUTOMATON_LETTERS; letter++)
            next[s][letter] = s == sink || a->next[s][letter] < 0 ? (int8_t)sink : a->next[s][letter];
    for (int s = 0; s <= sink; s++) class_of[s] = s == sink;
    do {
        before = classes;
        classes = 0;
        for (int s = 0; s <= sink; s++) {
            int same = -1; /* an earlier state of the same class whose successors' classes agree too */
            for (int other = 0; other < s && same < 0; other++) {
                int agree = class_of[other] == class_of[s];
                for (int letter = 0; letter < AUTOMATON_LETTERS && agree; letter++)
                    agree = class_of[next[other][letter]] == class_of[next[s][letter]];
                if (agree) same = other;
            }
            refined[s] = same < 0 ? (int8_t)classes++ : refined[same];
        }
        memcpy(class_of, refined, (size_t)sink + 1);
    } while (classes != before);
}

void automaton_minimise(const automaton *a, automaton *minimal)
{
    int8_t class_of[AUTOMATON_STATES + 1], number[AUTOMATON_STATES + 1], member[AUTOMATON_STATES];
    equivalence_classes(a, class_of);
    int sink_class = class_of[a->states];
    memset(number, -1, sizeof number); /* of a class in the result */
    automaton result;
    clear(&result, 1);
    number[class_of[0]] = 0;
    member[0] = 0;
    /* Only classes that the walk reaches get a number; edges to the sink, which leads to no accepted word,
     * go. */
    for (int s = 0; s < result.states; s++)
        for (int letter = 0; letter < AUTOMATON_LETTERS; letter++) {
            int target = a->next[member[s]][letter];
            if (target < 0 || class_of[target] == sink_class) continue;
            int8_t *n = &number[class_of[target]];
            if (*n < 0) {
                *n = (int8_t)result.states++;
                member[*n] = (int8_t)target;
            }
            result.next[s][letter] = *n;
        }
    *minimal = result;
}

uint32_t automaton_legal(const automaton *a, int state)
{
    uint32_t legal = 0;
    for (int letter = 0; letter < AUTOMATON_LETTERS; letter++)
        if (a->next[state][letter] >= 0) legal |= 1u << letter;
    return legal;
}
