/* Attention weights as the operator itself applies them, read through the public interface in double
 * precision. One sequence, one head; q and k [L, D]. Each returns CLI_OK or prints the library's message. */
#ifndef BLURRY_CLI_FIGURE_ATTENTION_H
#define BLURRY_CLI_FIGURE_ATTENTION_H
#include <stdint.h>

typedef struct attention_case {
    int64_t length, dim, modes;
    double period;
    int decay;
    const double *q, *k;
} attention_case;

/* weights [L, L]: how much of v_u is in o_t. The output is linear in v, so one-hot v read it off. */
int attention_of_tokens(const attention_case *c, double *weights);

/* weights [L, S]: the softmax over the slots at each t. The slots after token t are taken from the state; the
 * same query is then put to them once more with an empty token and one-hot v slots. */
int attention_of_slots(const attention_case *c, double *weights);

/* slots [S, D]: the key slots after the last token. */
int attention_key_slots(const attention_case *c, double *slots);

#endif
