/* What the CUDA kernels of blurry attention share: one call as a plain value, periods and chains. Internal to
 * kernels/blurry/cuda*. */
#ifndef BLURRY_KERNELS_BLURRY_CUDA_CALL_H
#define BLURRY_KERNELS_BLURRY_CUDA_CALL_H
#include "kernels/blurry/blurry.h"
#include "kernels/cuda.h"

/* One period's tables in device memory. */
struct bla_period {
    double T;
    int64_t all_visible;    /* from this position on every slot may be attended to */
    const int64_t *visible; /* [S] first position at which a slot may be attended to */
    int64_t rows;           /* T where `entries` is tabulated, else 0 */
    const char *entries;    /* [rows] chunk tables, entry_stride bytes apart (cuda_entry.cuh) */
    int64_t entry_stride;
    int loose; /* where it is not tabulated: its index among such periods */
    int index; /* among the distinct periods */
    int raised;
};

struct bla_state {
    float *k, *v;
    int64_t stride_k, stride_v;
};

struct bla_call {
    const void *q, *k, *v, *d_o;
    void *o, *d_q, *d_k, *d_v;
    bla_state in, out, d_out, d_in;
    const int64_t *offsets; /* device memory, or NULL */
    int64_t length;         /* of every sequence where offsets is NULL */
    const char *positions;  /* device memory, or NULL */
    int64_t position_stride;
    int64_t chains; /* n_sequences * Hkv */
    int64_t H, Hkv;
    int group, Dk, Dv, S;
    float scale;
    int decay, relative;
    const bla_period *periods; /* [Hkv] device memory */
};

/* One sequence of one key/value head. */
struct bla_chain {
    int64_t b, h, first, count, position;
};

static __device__ inline bla_chain bla_chain_of(const bla_call &c, int64_t index)
{
    bla_chain x;
    x.b = index / c.Hkv, x.h = index % c.Hkv;
    x.first = c.offsets ? c.offsets[x.b] : x.b * c.length;
    x.count = c.offsets ? c.offsets[x.b + 1] - x.first : c.length;
    x.position = c.positions ? *(const int64_t *)(c.positions + x.b * c.position_stride) : 0;
    return x;
}

#endif
