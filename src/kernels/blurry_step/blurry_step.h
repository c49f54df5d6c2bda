/* Contract of the decode kernels: one token for each sequence of a batch, each at its own position.
 *
 * A write touches every slot, so writing at every step would move the state through memory twice. Instead the
 * last `fold` tokens stay beside the slots in a ring (k, v and their weights phi), reads go through the
 * recurrence applied to the logits, and the slots are brought up to date block by block: block r of `block`
 * slots takes in everything it missed at the steps t with t mod fold = phase(r). So each step reads all slots
 * and writes 1/fold of them.
 *
 * A block is behind by `pending` tokens, the last ones of the ring; token u lies at ring index u mod fold. */
#ifndef BLURRY_KERNELS_BLURRY_STEP_H
#define BLURRY_KERNELS_BLURRY_STEP_H
#include "base/cpu.h"
#include "blurry/attention.h"
#include <stddef.h>
#include <stdint.h>

enum {
    BLA_STEP_ALIGN = 16
}; /* block sizes and weight rows are multiples of the widest vector, on every machine */

typedef struct bla_step_shape {
    int64_t batch; /* most sequences of one call */
    int64_t H, Hkv, Dk, Dv, S;
    int64_t fold;                /* ring entries, >= 1 */
    int64_t block, n_blocks;     /* slots per block, a multiple of BLA_STEP_ALIGN; n_blocks <= fold */
    int64_t padded;              /* S rounded up to BLA_STEP_ALIGN: length of a weight row, zero beyond S */
    int64_t n_periods;           /* distinct periods */
    const double *period;        /* [n_periods] */
    const int64_t *period_of;    /* [Hkv] index into period */
    const int64_t *visible_from; /* [n_periods, S] */
    const double *sines;         /* [4 * padded] from bla_step_sines */
    double scale;
    int decay, relative, threads;
} bla_step_shape;

/* One sequence's memory. Slots k [Hkv, S, Dk], v [Hkv, S, Dv]; rings ring_k [Hkv, fold, Dk], ring_v [Hkv,
 * fold, Dv], ring_phi [n_periods, fold, padded]. */
typedef struct bla_step_sequence {
    void *k, *v, *ring_k, *ring_v, *ring_phi;
    int64_t position; /* of the token to be added; tokens 0 .. position-1 were seen */
    int64_t empty_at; /* the position at which no slot was behind */
} bla_step_sequence;

typedef struct bla_step {
    int64_t count;
    const bla_step_sequence *sequences;
    const void *q, *k, *v; /* [count, H, Dk], [count, Hkv, Dk], [count, Hkv, Dv] */
    void *o;               /* [count, H, Dv] */
    void *workspace;       /* workspace(shape) bytes, aligned to 64 */
} bla_step;

typedef struct bla_step_kernel {
    const char *name;
    blurry_dtype dtype;
    size_t (*workspace)(const bla_step_shape *shape);
    void (*run)(const bla_step_shape *shape, const bla_step *args);
} bla_step_kernel;

const bla_step_kernel *bla_step_kernel_reference(blurry_dtype dtype);
const bla_step_kernel *bla_step_kernel_fast(blurry_dtype dtype, cpu_isa isa);

/* Writes the slots with nothing pending, [Hkv, S, Dk] and [Hkv, S, Dv]; either may be NULL or the sequence's
 * own. */
void bla_step_settle(blurry_dtype dtype, const bla_step_shape *shape, const bla_step_sequence *sequence,
                     void *k, void *v);

/* Sets block, n_blocks and padded from S and fold. */
void bla_step_blocks(bla_step_shape *shape);

/* Fills sines [4 * padded] from S; the fast kernels make weight rows with it. */
void bla_step_sines(const bla_step_shape *shape, double *sines);

/* t mod fold at which block r is brought up to date: spread evenly over the steps. */
static inline int64_t bla_step_phase(const bla_step_shape *s, int64_t r)
{
    return (int64_t)((uint32_t)r * (uint32_t)s->fold /
                     (uint32_t)s->n_blocks); /* small numbers: a quick division */
}

/* Tokens that block r misses when tokens 0 .. seen-1 have been taken in. */
static inline int64_t bla_step_pending(const bla_step_shape *s, const bla_step_sequence *x, int64_t r,
                                       int64_t seen)
{
    int64_t since_fold = ((seen - 1 - bla_step_phase(s, r)) % s->fold + s->fold) % s->fold;
    int64_t since_start = seen - x->empty_at;
    return since_fold < since_start ? since_fold : since_start;
}

/* Slots visible at position t for period p. */
static inline int64_t bla_step_visible(const bla_step_shape *s, int64_t p, int64_t t)
{
    const int64_t *from = s->visible_from + p * s->S;
    int64_t low = 1, high = s->S; /* slot 0 always is; entries do not fall */
    while (low < high) {
        int64_t middle = (low + high + 1) / 2;
        if (from[middle - 1] <= t)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

#endif
