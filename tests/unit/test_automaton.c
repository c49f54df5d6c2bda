/* Automata: what the family prescribes, and minimisation against two independent methods. */
#include "support/automata.h"
#include "support/test.h"

#include <math.h>
#include <string.h>

static void sampled_automata_obey_the_family(void **state)
{
    (void)state;
    enum { N = 20000 };
    int states[13] = {0}, degrees[4] = {0}, total_states = 0, letter_used[AUTOMATON_LETTERS] = {0};
    for (uint64_t i = 0; i < N; i++) {
        automaton a;
        rng r = rng_stream(1, RNG_TEST, i);
        automaton_sample(&r, &automaton_regbench, &a);
        assert_true(a.states >= 4 && a.states <= 12);
        states[a.states]++;
        uint32_t used = 0;
        for (int s = 0; s < AUTOMATON_STATES; s++) {
            int degree = 0;
            uint32_t targets = 0;
            for (int letter = 0; letter < AUTOMATON_LETTERS; letter++) {
                int target = a.next[s][letter];
                if (target < 0) continue;
                assert_true(s < a.states && target < a.states && target != s);
                assert_true(!(targets >> target & 1));
                targets |= 1u << target;
                used |= 1u << letter;
                letter_used[letter]++;
                degree++;
            }
            assert_true(s >= a.states ? degree == 0 : degree >= 1 && degree <= 3);
            assert_int_equal(degree, __builtin_popcount(automaton_legal(&a, s)));
            if (s < a.states) degrees[degree]++, total_states++;
        }
        assert_true(__builtin_popcount(used) <= 18);
    }
    for (int n = 4; n <= 12; n++) assert_true(abs(states[n] - N / 9) < 5 * sqrt(N / 9.0));
    for (int d = 1; d <= 3; d++)
        assert_true(abs(degrees[d] - total_states / 3) < 5 * sqrt(total_states / 3.0));
    int edges = 0;
    for (int letter = 0; letter < AUTOMATON_LETTERS; letter++) edges += letter_used[letter];
    for (int letter = 0; letter < AUTOMATON_LETTERS; letter++)
        assert_true(abs(letter_used[letter] - edges / 18) < 0.05 * edges / 18);
}

/* Few letters and states, so that merging, unreachable states and self-loops are common. */
static const automaton_family tiny[] = {
    {2, 5, 1, 2, 1, 1}, {3, 5, 2, 3, 1, 2}, {4, 6, 2, 2, 1, 2}, {4, 7, 3, 3, 1, 3}};

static void minimal_form_is_smallest_and_equivalent(void **state)
{
    (void)state;
    int merged = 0, loops = 0, untouched = 0;
    for (int f = 0; f < 4; f++)
        for (uint64_t i = 0; i < 1500; i++) {
            automaton a, m, again;
            rng r = rng_stream(2 + (uint64_t)f, RNG_TEST, i);
            automaton_sample(&r, &tiny[f], &a);
            automaton_minimise(&a, &m);
            assert_true(same_language(&a, &m));
            assert_int_equal(m.states, count_residual_languages(&a, a.states));
            automaton_minimise(&m, &again);
            assert_memory_equal(&m, &again, sizeof m);
            for (int s = 0; s < m.states; s++) {
                assert_true(automaton_legal(&m, s) != 0);
                for (int letter = 0; letter < AUTOMATON_LETTERS; letter++) loops += m.next[s][letter] == s;
            }
            merged += m.states < a.states;
            untouched += m.states == a.states;
        }
    assert_true(merged > 500 && loops > 500 && untouched > 500);
}

/* The full family: pairwise distinguishable states (no equal sub-languages), all reachable, same language. */
static void regbench_automata_minimise_well(void **state)
{
    (void)state;
    for (uint64_t i = 0; i < 3000; i++) {
        automaton a, m;
        rng r = rng_stream(9, RNG_TEST, i);
        automaton_sample(&r, &automaton_regbench, &a);
        automaton_minimise(&a, &m);
        assert_true(same_language(&a, &m));
        uint32_t reached = 1;
        for (int round = 0; round < m.states; round++)
            for (int s = 0; s < m.states; s++)
                for (int letter = 0; letter < AUTOMATON_LETTERS; letter++)
                    if (reached >> s & 1 && m.next[s][letter] >= 0) reached |= 1u << m.next[s][letter];
        assert_int_equal(reached, (1u << m.states) - 1);
        for (int x = 1; x < m.states; x++) /* start in x: exchange it with state 0, then compare languages */
            for (int y = 0; y < x; y++) {
                automaton from[2] = {m, m};
                const int start[2] = {x, y};
                for (int k = 0; k < 2; k++) {
                    memcpy(from[k].next[0], m.next[start[k]], sizeof m.next[0]);
                    memcpy(from[k].next[start[k]], m.next[0], sizeof m.next[0]);
                    for (int s = 0; s < m.states; s++)
                        for (int letter = 0; letter < AUTOMATON_LETTERS; letter++) {
                            int8_t *t = &from[k].next[s][letter];
                            *t = *t == 0 ? (int8_t)start[k] : *t == start[k] ? 0 : *t;
                        }
                }
                assert_false(same_language(&from[0], &from[1]));
            }
    }
}

/* Renaming states never changes the canonical form; changing one edge to a new letter does. */
static void canonical_form_ignores_names(void **state)
{
    (void)state;
    for (uint64_t i = 0; i < 2000; i++) {
        automaton a, b, ma, mb;
        rng r = rng_stream(10, RNG_TEST, i);
        automaton_sample(&r, &automaton_regbench, &a);
        int64_t order[AUTOMATON_STATES];
        rng_permutation(&r, order + 1, a.states - 1); /* the start keeps its name */
        order[0] = 0;
        for (int s = 1; s < a.states; s++) order[s]++;
        b = a;
        for (int s = 0; s < a.states; s++)
            for (int letter = 0; letter < AUTOMATON_LETTERS; letter++) {
                int target = a.next[s][letter];
                b.next[order[s]][letter] = (int8_t)(target < 0 ? -1 : order[target]);
            }
        automaton_minimise(&a, &ma);
        automaton_minimise(&b, &mb);
        assert_memory_equal(&ma, &mb, sizeof ma);
        for (int letter = 0; letter < AUTOMATON_LETTERS; letter++)
            if (a.next[0][letter] < 0) {
                b.next[0][letter] = 0;
                break;
            }
        automaton_minimise(&b, &mb);
        assert_true(memcmp(&ma, &mb, sizeof ma) != 0);
        assert_false(same_language(&ma, &mb));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sampled_automata_obey_the_family),
        cmocka_unit_test(minimal_form_is_smallest_and_equivalent),
        cmocka_unit_test(regbench_automata_minimise_well),
        cmocka_unit_test(canonical_form_ignores_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
