/* Causal softmax attention, over all earlier tokens or over a window, in memory linear in the length.
 *     o_t = sum_u softmax_u(scale <q_t, k_u>) v_u   over  max(0, t - window + 1) <= u <= t   (window 0: from
 * 0) Query head h reads key/value head h / (heads / heads_kv). Time is O(length * window) with a window. */
#ifndef BLURRY_KERNELS_ATTENTION_H
#define BLURRY_KERNELS_ATTENTION_H
#include "kernels/kernel.h"

typedef struct attention_args {
    int64_t batch, length, heads, heads_kv, dim_k, dim_v, window;
    double scale;
    const void *q, *k, *v; /* [batch, length, heads, dim_k], [.., heads_kv, dim_k], [.., heads_kv, dim_v] */
    void *o;               /* [batch, length, heads, dim_v] */
    void *lse; /* [batch, heads, length] log of the softmax's denominator, for backward; NULL: not wanted */

    /* Carried keys and values: a ring of `capacity` tokens per sequence, the token at position p in place p %
     * capacity. Forward attends to the last min(position[b], capacity) carried tokens as well, then stores
     * its own. A window needs capacity >= window, full attention capacity >= the whole length (beyond it the
     * oldest are forgotten). */
    void *cache_k, *cache_v; /* [batch, capacity, heads_kv, dim_k], [.., dim_v]; NULL: nothing carried */
    int64_t capacity;
    const int64_t
        *position; /* [batch] tokens seen before this call; not changed (see advance); NULL: all 0 */

    /* Backward, without carried tokens: reads q, k, v, o, lse, d_o. */
    const void *d_o;
    void *d_q, *d_k, *d_v;
} attention_args;

#endif
