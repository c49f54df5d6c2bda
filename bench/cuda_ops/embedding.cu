/* Embeddings and their gradient. */
#include "cases.h"

#include "base/rng.h"
#include "kernels/embed/embed.h"

DECLARE(embed_forward, embed_args)
DECLARE(embed_backward, embed_args)

/* Three in five tokens are the filler 0, as in MQAR. */
static double token_at(int64_t i)
{
    uint32_t word[4];
    rng_block(3, RNG_TEST, 99, (uint64_t)i, word);
    return word[0] % 5 < 3 ? 0 : word[1] % V;
}
static double key_at(int64_t i)
{
    return i ? 3 : 11;
}

static embed_args embed_of(void **x, double dropout)
{
    embed_args a = {};
    a.batch = B, a.length = L, a.width = D, a.vocab = V, a.id = (const int32_t *)x[0], a.weight = x[1];
    a.dropout = dropout, a.key = (const uint64_t *)x[2], a.y = x[3], a.d_y = x[4], a.d_weight = x[5];
    return a;
}

void embedding_cases(case_list &to)
{
    const double N = (double)(ROWS * D);
    add_case(
        to, "embed_forward",
        [](type t, const kernel_run *r, void **x, int64_t) { call_embed_forward(t, r, embed_of(x, 0.1)); },
        {ints(INT32, ROWS, token_at), par(V * D), ints(INT64, 2, key_at), act_out(ROWS * D)},
        moves(N, N + ROWS));
    add_case(
        to, "embed_backward",
        [](type t, const kernel_run *r, void **x, int64_t) { call_embed_backward(t, r, embed_of(x, 0)); },
        {ints(INT32, ROWS, token_at), par(V * D), ints(INT64, 2, key_at), act(ROWS * D), act(ROWS * D),
         par_sum(V * D)},
        moves(N, 2 * V * D + ROWS));
}
