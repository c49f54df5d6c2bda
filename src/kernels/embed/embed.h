/* Token embedding with optional learned positions and dropout.
 *     y[r] = mask[r] * (weight[id[r]] + position_weight[position[b] + l]),    r = b*length + l
 * mask is 0 with probability `dropout` and 1/(1-dropout) otherwise, drawn per element from a counter-based
 * generator keyed by key[0], key[1] (seed and step), so backward draws the same one and nothing is stored. */
#ifndef BLURRY_KERNELS_EMBED_H
#define BLURRY_KERNELS_EMBED_H
#include "kernels/kernel.h"

typedef struct embed_args {
    int64_t batch, length, width, vocab;
    const int32_t *id;           /* [batch, length], each in [0, vocab) */
    const void *weight;          /* [vocab, width] */
    const void *position_weight; /* [max_length, width] or NULL */
    int64_t max_length;          /* a position beyond it uses the last row */
    const int64_t *position;     /* [batch] position of each first token, NULL: all 0 */
    double dropout;              /* 0: none */
    const uint64_t *key;         /* [2], read where dropout > 0 */
    void *y;                     /* [batch, length, width] */
    void *saved; /* embed_sizes says how much: what forward notes of the tokens for backward; NULL: nothing */
    const void *d_y;
    void *d_weight, *d_position_weight; /* summed in token order: the same bits on every run */
} embed_args;

#endif
