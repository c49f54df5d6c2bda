/* Sizes and scratch of the chunked kernels. Internal to simd.c.
 *
 * A chain is one sequence of one key/value head. Its tokens are cut into chunks of C; G chunks make a wave.
 * Within a wave all chunks of several chains are worked on at once: gather  what each chunk writes into the
 * slots, as if they had been empty          (parallel over chunks) scan    slots before each chunk, left to
 * right                                   (parallel over parts of a state) emit    each chunk's outputs from
 * the slots before it and its own tokens          (parallel over chunks) so one long sequence keeps all
 * threads busy, and no result depends on how chunks were spread over threads. */
#ifndef BLURRY_KERNELS_BLURRY_SIMD_LAYOUT_H
#define BLURRY_KERNELS_BLURRY_SIMD_LAYOUT_H
#include "base/sizes.h"
#include "kernels/blurry/blurry.h"
#include "kernels/tile_gemm.h"
#include "kernels/transpose.h"

enum {
    CHUNK_MOST = 64,      /* tokens per chunk; fewer where there are few slots, so that tables stay small */
    WAVE_CHUNKS = 16,     /* chunks of one chain in flight */
    TASKS_PER_THREAD = 16 /* chunks in flight per thread, over all chains */
};

static inline int64_t round_up(int64_t n, int64_t to)
{
    return (n + to - 1) / to * to;
}

/* Columns rounded up to whole vectors; strides that are multiples of 512 bytes get a vector more, else the
 * rows of a tile would compete for the same few cache sets. */
static inline int64_t stride_for(int64_t columns)
{
    int64_t padded = round_up(columns, VL);
    return padded * (int64_t)sizeof(real) % 512 == 0 ? padded + VL : padded;
}

typedef struct layout {
    int64_t C;        /* tokens per chunk */
    int64_t Cp, ldc;  /* C in whole vectors; stride of [.., C] matrices */
    int64_t Sp, lds;  /* the same for S */
    int64_t Dkp, ldk; /* for Dk */
    int64_t Dvp, ldv; /* for Dv */
    int64_t group;    /* query heads per key/value head */
    int64_t state;    /* elements of one state: KT [Dk, lds] then V [S, ldv] */
    int64_t d_state;  /* elements of one state gradient: d_K [S, ldk] then d_V [S, ldv] */
    int64_t chains;   /* at most */
    int64_t wave;     /* chunks per wave */
    int64_t together; /* chains worked on together */
    int every;        /* the forward pass leaves the state before every chunk, not only before every wave */
} layout;

static inline layout layout_of(const bla_shape *shape)
{
    layout z;
    int64_t S = shape->S;
    z.C = round_up(S, 16) < CHUNK_MOST ? round_up(S, 16) : CHUNK_MOST; /* whole vectors of every width */
    z.Cp = round_up(z.C, VL), z.ldc = stride_for(z.C);
    z.Sp = round_up(S, VL), z.lds = stride_for(S);
    z.Dkp = round_up(shape->Dk, VL), z.ldk = stride_for(shape->Dk);
    z.Dvp = round_up(shape->Dv, VL), z.ldv = stride_for(shape->Dv);
    z.group = shape->H / shape->Hkv;
    /* Transposes write whole blocks: both parts have their rows rounded up as well. */
    z.state = round_up(z.Dkp * z.lds + z.Sp * z.ldv, 64);
    z.d_state = round_up(z.Sp * z.ldk + z.Sp * z.ldv, 64);
    z.chains = shape->batch * shape->Hkv;
    int64_t per_chain = shape->batch > 0 ? shape->tokens / shape->batch / z.C + 1 : 1;
    int64_t wanted = (int64_t)TASKS_PER_THREAD * shape->threads;
    z.together = (wanted + (per_chain < WAVE_CHUNKS ? per_chain : WAVE_CHUNKS) - 1) /
                 (per_chain < WAVE_CHUNKS ? per_chain : WAVE_CHUNKS);
    if (z.together > z.chains) z.together = z.chains;
    if (z.together < 1) z.together = 1;
    z.wave = (wanted / 4 + z.together - 1) / z.together;
    if (z.wave < WAVE_CHUNKS) z.wave = WAVE_CHUNKS;
    /* where the states take no more than about what the tokens' k and v take */
    z.every = 4 * z.state <= 5 * z.C * (z.Dkp + z.Dvp);
    return z;
}

/* Memory is handed out in one pass that either measures (base NULL) or assigns: the two can never disagree.
 */
typedef struct carver {
    char *base;
    size_t used;
} carver;

static inline real *carve(carver *c, int64_t count, int64_t elements)
{
    real *at = c->base ? (real *)(c->base + c->used) : NULL;
    c->used = size_add(c->used, size_align(size_mul(size_of(count, (size_t)elements), sizeof(real))));
    return at;
}

/* What one worker needs while it works on one chunk. Names follow docs/operator.md. */
typedef struct scratch {
    real *phi, *b, *c, *P; /* [C, lds] tables of the chunk: kept share of the old slots, scale, phi / c */
    real *PT;              /* [Sp, ldc] P transposed */
    real *W;               /* [C, ldc] the direct weights of one awkward slot */
    real *q, *k, *k_t;     /* [C, ldk] scaled q, k; [Dkp, ldc] k transposed */
    real *v, *o;           /* [C, ldv] */
    real *scores;          /* [C, ldc] <q, k>, lower triangle */
    real *mix;             /* [C, ldc] weights on the chunk's own values, lower triangle */
    real *x, *y, *p, *pb;  /* [C, lds] logits, their intra-chunk part, probabilities (times c), times b */
    /* backward only */
    real *d_o, *v_t;    /* [C, ldv], [Dvp, ldc] */
    real *dp, *db;      /* [C, lds] gradient of the probabilities, then of the logits (times c), times b */
    real *d_mix;        /* [C, ldc] */
    real *K, *VT;       /* [Sp, ldk], [Dvp, lds] the other orientation of the state before the chunk */
    real *dq, *dk, *dv; /* [C, ldk], [C, ldk], [C, ldv] */
    real *keep;         /* [2, lds] one row doubled, for the relative grid */
    real *d_phi, *z, *w, *dw; /* [C, lds] for d_period */
    real *track;              /* [C, ldk or ldv] for d_period: one slot over the chunk */
    real *adjoint;            /* [ldk or ldv] */
    double *row, *row_dT;     /* [S] */
    int64_t *awkward;         /* [S] */
    int64_t *token;           /* [C] the token each row of the chunk reads at */
} scratch;

static inline scratch scratch_carve(carver *m, const layout *z, int backward)
{
    scratch s = {0};
    int64_t rows = z->Cp; /* transposes read whole blocks */
    s.b = carve(m, rows, z->lds), s.c = carve(m, rows, z->lds);
    s.P = carve(m, rows, z->lds), s.PT = carve(m, z->Sp, z->ldc), s.W = carve(m, rows, z->ldc);
    s.q = carve(m, rows, z->ldk), s.k = carve(m, rows, z->ldk), s.k_t = carve(m, z->Dkp, z->ldc);
    s.v = carve(m, rows, z->ldv), s.o = carve(m, rows, z->ldv);
    s.scores = carve(m, rows, z->ldc), s.mix = carve(m, rows, z->ldc);
    s.x = carve(m, rows, z->lds), s.y = carve(m, rows, z->lds);
    s.p = carve(m, rows, z->lds), s.pb = carve(m, rows, z->lds);
    s.keep = carve(m, 1, 2 * z->lds + VL);
    s.awkward = (int64_t *)(void *)carve(m, 2, z->lds);
    s.token = (int64_t *)(void *)carve(m, 2, rows);
    if (!backward) return s;
    s.d_o = carve(m, rows, z->ldv), s.v_t = carve(m, z->Dvp, z->ldc);
    s.dp = carve(m, rows, z->lds), s.db = carve(m, rows, z->lds), s.d_mix = carve(m, rows, z->ldc);
    s.K = carve(m, z->Sp, z->ldk), s.VT = carve(m, z->Dvp, z->lds);
    s.dq = carve(m, rows, z->ldk), s.dk = carve(m, rows, z->ldk), s.dv = carve(m, rows, z->ldv);
    s.d_phi = carve(m, rows, z->lds), s.z = carve(m, rows, z->lds);
    s.w = carve(m, rows, z->lds), s.dw = carve(m, rows, z->lds);
    int64_t widest = z->ldk > z->ldv ? z->ldk : z->ldv;
    s.track = carve(m, rows, widest), s.adjoint = carve(m, 1, widest);
    s.row = (double *)(void *)carve(m, 2, z->lds), s.row_dT = (double *)(void *)carve(m, 2, z->lds);
    return s;
}

#endif
