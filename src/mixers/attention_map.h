/* What a head of an attention mixer looks at, in double precision. */
#ifndef BLURRY_MIXERS_ATTENTION_MAP_H
#define BLURRY_MIXERS_ATTENTION_MAP_H
#include "mixers/mixer.h"

/* weights [L, L]: how much of token u's value is in the output of query head `head` at token t, for the one
 * sequence p->x. softmax, swa and blurry; BLURRY_E_UNSUPPORTED for other mixers. Uses p's memory as a forward
 * without `keep` would, allocates the rest. */
blurry_status mixer_attention_map(const mixer_pass *p, int64_t head, double *weights);

#endif
