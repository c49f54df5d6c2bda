#include "support/automata.h"

#include <stdlib.h>
#include <string.h>

int same_language(const automaton *a, const automaton *b)
{
    char seen[AUTOMATON_STATES][AUTOMATON_STATES] = {{0}};
    int pairs[AUTOMATON_STATES * AUTOMATON_STATES][2] = {{0, 0}}, count = 1;
    seen[0][0] = 1;
    for (int i = 0; i < count; i++)
        for (int letter = 0; letter < AUTOMATON_LETTERS; letter++) {
            int x = a->next[pairs[i][0]][letter], y = b->next[pairs[i][1]][letter];
            if ((x < 0) != (y < 0)) return 0;
            if (x < 0 || seen[x][y]) continue;
            seen[x][y] = 1;
            pairs[count][0] = x;
            pairs[count++][1] = y;
        }
    return 1;
}

/* Appends to `words` one byte per word over `letters` of up to `length` letters: whether it can be read from
 * `state`. -1 stands for having left the automaton. */
static size_t list_words(const automaton *a, int state, uint32_t letters, int length, char *words)
{
    size_t count = 0;
    words[count++] = state >= 0;
    if (length == 0) return count;
    for (int letter = 0; letter < AUTOMATON_LETTERS; letter++) {
        if (!(letters >> letter & 1)) continue;
        count += list_words(a, state < 0 ? -1 : a->next[state][letter], letters, length - 1, words + count);
    }
    return count;
}

int count_residual_languages(const automaton *a, int length)
{
    uint32_t letters = 0;
    char reached[AUTOMATON_STATES] = {1};
    for (int round = 0; round < a->states; round++)
        for (int s = 0; s < a->states; s++)
            for (int letter = 0; letter < AUTOMATON_LETTERS; letter++)
                if (reached[s] && a->next[s][letter] >= 0) {
                    reached[a->next[s][letter]] = 1;
                    letters |= 1u << letter;
                }
    size_t words = 1, power = 1;
    for (int i = 0; i < length; i++) words += power *= (size_t)__builtin_popcount(letters);
    char *lists = malloc(words * AUTOMATON_STATES);
    int different = 0;
    for (int s = 0; s < a->states; s++) {
        if (!reached[s]) continue;
        char *mine = lists + words * (size_t)different;
        list_words(a, s, letters, length, mine);
        int known = 0;
        for (int i = 0; i < different && !known; i++) known = !memcmp(lists + words * (size_t)i, mine, words);
        different += !known;
    }
    free(lists);
    return different;
}
