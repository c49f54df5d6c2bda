/* Softmax attention in blocks of QUERIES x KEYS, never a whole row of weights. Weights of a block are kept
 * transposed, [key, query], so that the softmax runs down the rows with queries side by side in vectors. */
#include "kernels/attention/ring.h"
#include "kernels/chunk.h"

#include "base/threads.h"

enum { QUERIES = 64, KEYS = 64 };
#define LOWEST ((real)(REAL_IS_FLOAT ? -1e30 : -1e300)) /* finite: its difference to -infinity is no NaN */

typedef struct forward_scratch {
    real *qt, *k, *v, *st, *o; /* [Dk, QUERIES], [KEYS, Dk], [KEYS, Vp], [KEYS, QUERIES], [QUERIES, Vp] */
    real *most, *total, *factor;
} forward_scratch;

static size_t forward_layout(const attention_args *a, char *base, forward_scratch *s)
{
    chunk_arena next = {base, 0};
    s->qt = chunk_take(&next, a->dim_k * QUERIES);
    s->k = chunk_take(&next, KEYS * chunk_pad(a->dim_k));
    s->v = chunk_take(&next, KEYS * chunk_pad(a->dim_v));
    s->st = chunk_take(&next, KEYS * QUERIES);
    s->o = chunk_take(&next, QUERIES * chunk_pad(a->dim_v));
    s->most = chunk_take(&next, QUERIES);
    s->total = chunk_take(&next, QUERIES);
    s->factor = chunk_take(&next, QUERIES);
    return next.used;
}

/* Keys (or values) of positions p .. p+count-1, from the ring or the call. */
static void pack_tokens(const attention_args *a, const void *own, const void *ring, int64_t b, int64_t g,
                        int64_t p, int64_t count, int64_t dim, real *to)
{
    int64_t seen = attention_seen(a, b), ld = chunk_pad(dim), stride = a->heads_kv * dim;
    for (; count > 0 && p < seen; p++, count--, to += ld)
        chunk_rows((const real *)ring + ((b * a->capacity + p % a->capacity) * a->heads_kv + g) * dim, 0, 1,
                   dim, to, ld);
    if (count > 0)
        chunk_rows((const real *)own + ((b * a->length + p - seen) * a->heads_kv + g) * dim, stride, count,
                   dim, to, ld);
}

/* Sets to -infinity what query `query + t` may not see of key `key + u`: later keys, and those that left the
 * window. */
static void mask_block(const attention_args *a, int64_t query, int64_t key, int64_t keys, int64_t first,
                       real *st)
{
    const real never = -(real)INFINITY;
    for (int64_t u = 0; u < keys; u++) {
        int64_t early = kernel_min(QUERIES, kernel_max(0, key + u - query)); /* queries before the key */
        int64_t late =
            a->window > 0 ? kernel_min(QUERIES, kernel_max(0, key + u + a->window - query)) : QUERIES;
        if (key + u < first) early = QUERIES;
        for (int64_t t = 0; t < early; t++) st[u * QUERIES + t] = never;
        for (int64_t t = late; t < QUERIES; t++) st[u * QUERIES + t] = never;
    }
}

/* One block of keys into the running softmax; `wide` queries, a multiple of VL. */
static void online_softmax(forward_scratch *s, int64_t keys, int64_t wide, real scale)
{
    for (int64_t t = 0; t < wide; t += VL) {
        vreal before = v_load(s->most + t), most = before, sum = v_zero();
        for (int64_t u = 0; u < keys; u++) most = v_max(most, v_load(s->st + u * QUERIES + t) * scale);
        for (int64_t u = 0; u < keys; u++) {
            vreal e = v_exp(v_load(s->st + u * QUERIES + t) * scale - most);
            v_store(s->st + u * QUERIES + t, e);
            sum += e;
        }
        vreal factor = v_exp(before - most);
        v_store(s->factor + t, factor);
        v_store(s->most + t, most);
        v_store(s->total + t, v_load(s->total + t) * factor + sum);
    }
}

static void rescale_rows(real *o, int64_t ld, int64_t rows, const real *factor)
{
    for (int64_t t = 0; t < rows; t++)
        for (int64_t i = 0; factor[t] != 1 && i < ld; i += VL)
            v_store(o + t * ld + i, v_load(o + t * ld + i) * factor[t]);
}

typedef struct forward_job {
    const attention_args *a;
    char *scratch;
    size_t per_worker;
    int64_t blocks; /* of queries per sequence */
} forward_job;

static void write_block(const attention_args *a, const forward_scratch *s, int64_t b, int64_t h, int64_t t0,
                        int64_t count)
{
    int64_t ld = chunk_pad(a->dim_v);
    for (int64_t t = 0; t < count; t++) {
        real *o = (real *)a->o + ((b * a->length + t0 + t) * a->heads + h) * a->dim_v,
             inverse = 1 / s->total[t];
        for (int64_t i = 0, left; left = a->dim_v - i, left > 0; i += VL)
            v_store_up_to(o + i, v_load(s->o + t * ld + i) * inverse, left);
        if (a->lse)
            ((real *)a->lse)[(b * a->heads + h) * a->length + t0 + t] = s->most[t] + (real)log(s->total[t]);
    }
}

/* One block of queries of one head. */
static void forward_task(void *context, int64_t task, int worker)
{
    const forward_job *job = context;
    const attention_args *a = job->a;
    forward_scratch s;
    forward_layout(a, job->scratch + (size_t)worker * job->per_worker, &s);
    int64_t block = task % job->blocks, h = task / job->blocks % a->heads, b = task / job->blocks / a->heads;
    int64_t g = h / (a->heads / a->heads_kv), t0 = block * QUERIES,
            count = kernel_min(QUERIES, a->length - t0);
    int64_t wide = chunk_pad(count), ld = chunk_pad(a->dim_v), query = attention_seen(a, b) + t0;
    chunk_columns((const real *)a->q + ((b * a->length + t0) * a->heads + h) * a->dim_k, a->heads * a->dim_k,
                  count, a->dim_k, s.qt, QUERIES);
    chunk_zero(s.o, QUERIES * ld);
    for (int64_t t = 0; t < QUERIES; t++) s.most[t] = LOWEST, s.total[t] = 0;
    int64_t first = attention_first(a, b, t0), end = query + count;
    for (int64_t key = first; key < end; key += KEYS) {
        int64_t keys = kernel_min(KEYS, end - key);
        pack_tokens(a, a->k, a->cache_k, b, g, key, keys, a->dim_k, s.k);
        pack_tokens(a, a->v, a->cache_v, b, g, key, keys, a->dim_v, s.v);
        tile_gemm(keys, wide, a->dim_k, chunk_a(s.k, chunk_pad(a->dim_k)), s.qt, QUERIES, s.st, QUERIES, 0);
        int edge = key + keys - 1 > query || (a->window > 0 && key < query + count - a->window);
        if (edge) mask_block(a, query, key, keys, first, s.st);
        online_softmax(&s, keys, wide, (real)a->scale);
        rescale_rows(s.o, ld, count, s.factor);
        tile_gemm(count, ld, keys, chunk_at(s.st, QUERIES), s.v, ld, s.o, ld, 1);
    }
    write_block(a, &s, b, h, t0, count);
}

typedef struct store_job {
    const attention_args *a;
} store_job;

static void store_task(void *context, int64_t b, int worker)
{
    (void)worker;
    const attention_args *a = ((const store_job *)context)->a;
    int64_t seen = attention_seen(a, b), rows_k = a->heads_kv * a->dim_k, rows_v = a->heads_kv * a->dim_v;
    for (int64_t t = kernel_max(0, a->length - a->capacity); t < a->length; t++) {
        int64_t from = b * a->length + t, to = b * a->capacity + (seen + t) % a->capacity;
        memcpy((real *)a->cache_k + to * rows_k, (const real *)a->k + from * rows_k,
               (size_t)rows_k * sizeof(real));
        memcpy((real *)a->cache_v + to * rows_v, (const real *)a->v + from * rows_v,
               (size_t)rows_v * sizeof(real));
    }
}

KERNEL(attention_forward, attention_args)
{
    forward_scratch s;
    forward_job job = {a, run->scratch, forward_layout(a, NULL, &s), kernel_blocks(a->length, QUERIES)};
    threads_run(run->threads, a->batch * a->heads * job.blocks, forward_task, &job);
    if (a->cache_k) threads_run(run->threads, a->batch, store_task, &(store_job){a});
}

/* ---- backward: one key/value head of one sequence per task; its query heads one after another ---- */
typedef struct backward_scratch {
    real *qt, *q, *d_ot, *d_o,
        *d_q; /* whole head: [blocks, Dk, QUERIES], [L, Kp], [blocks, Dv, QUERIES], [L, Vp], [L, Kp] */
    real *lse, *along;       /* [blocks * QUERIES] */
    real *k, *v, *d_k, *d_v; /* [KEYS, Kp or Vp] */
    real *pt, *d_st;         /* [KEYS, QUERIES] */
} backward_scratch;

static size_t backward_layout(const attention_args *a, char *base, backward_scratch *s)
{
    int64_t blocks = kernel_blocks(a->length, QUERIES), rows = blocks * QUERIES;
    int64_t Kp = chunk_pad(a->dim_k), Vp = chunk_pad(a->dim_v);
    chunk_arena next = {base, 0};
    s->qt = chunk_take(&next, rows * a->dim_k);
    s->q = chunk_take(&next, rows * Kp);
    s->d_ot = chunk_take(&next, rows * a->dim_v);
    s->d_o = chunk_take(&next, rows * Vp);
    s->d_q = chunk_take(&next, rows * Kp);
    s->lse = chunk_take(&next, rows);
    s->along = chunk_take(&next, rows);
    s->k = chunk_take(&next, KEYS * Kp);
    s->v = chunk_take(&next, KEYS * Vp);
    s->d_k = chunk_take(&next, KEYS * Kp);
    s->d_v = chunk_take(&next, KEYS * Vp);
    s->pt = chunk_take(&next, KEYS * QUERIES);
    s->d_st = chunk_take(&next, KEYS * QUERIES);
    return next.used;
}

static void pack_head(const attention_args *a, backward_scratch *s, int64_t b, int64_t h)
{
    int64_t K = a->dim_k, V = a->dim_v, Kp = chunk_pad(K), Vp = chunk_pad(V), H = a->heads;
    const real *q = (const real *)a->q + (b * a->length * H + h) * K;
    const real *o = (const real *)a->o + (b * a->length * H + h) * V;
    const real *d_o = (const real *)a->d_o + (b * a->length * H + h) * V;
    const real *lse = (const real *)a->lse + (b * H + h) * a->length;
    chunk_rows(q, H * K, a->length, K, s->q, Kp);
    chunk_rows(d_o, H * V, a->length, V, s->d_o, Vp);
    chunk_zero(s->d_q, a->length * Kp);
    for (int64_t t0 = 0; t0 < a->length; t0 += QUERIES) {
        int64_t count = kernel_min(QUERIES, a->length - t0);
        chunk_columns(q + t0 * H * K, H * K, count, K, s->qt + t0 * K, QUERIES);
        chunk_columns(d_o + t0 * H * V, H * V, count, V, s->d_ot + t0 * V, QUERIES);
        for (int64_t t = t0; t < t0 + QUERIES; t++) {
            s->lse[t] = t < t0 + count ? lse[t] : 0;
            s->along[t] = 0;
            for (int64_t i = 0; t < t0 + count && i < V; i++)
                s->along[t] += o[t * H * V + i] * d_o[t * H * V + i];
        }
    }
}

/* pt = softmax weights, d_st = gradients of the scaled products, both [key, query]. */
static void block_weights(const attention_args *a, backward_scratch *s, int64_t keys, int64_t t0,
                          int64_t wide)
{
    real scale = (real)a->scale;
    for (int64_t u = 0; u < keys; u++)
        for (int64_t t = 0; t < wide; t += VL) {
            real *p_at = s->pt + u * QUERIES + t, *d_at = s->d_st + u * QUERIES + t;
            vreal p = v_exp(v_load(p_at) * scale - v_load(s->lse + t0 + t));
            v_store(p_at, p);
            v_store(d_at, p * (v_load(d_at) - v_load(s->along + t0 + t)) * scale);
        }
}

/* Block of keys from `key` against block of queries from t0. */
static void backward_block(const attention_args *a, backward_scratch *s, int64_t key, int64_t keys,
                           int64_t t0)
{
    int64_t K = a->dim_k, V = a->dim_v, Kp = chunk_pad(K), Vp = chunk_pad(V);
    int64_t count = kernel_min(QUERIES, a->length - t0), wide = chunk_pad(count);
    tile_gemm(keys, wide, K, chunk_a(s->k, Kp), s->qt + t0 * K, QUERIES, s->pt, QUERIES, 0);
    tile_gemm(keys, wide, V, chunk_a(s->v, Vp), s->d_ot + t0 * V, QUERIES, s->d_st, QUERIES, 0);
    if (key + keys - 1 > t0 || (a->window > 0 && key < t0 + count - a->window))
        mask_block(a, t0, key, keys, 0, s->pt);
    block_weights(a, s, keys, t0, wide);
    tile_gemm(keys, Vp, count, chunk_a(s->pt, QUERIES), s->d_o + t0 * Vp, Vp, s->d_v, Vp, 1);
    tile_gemm(keys, Kp, count, chunk_a(s->d_st, QUERIES), s->q + t0 * Kp, Kp, s->d_k, Kp, 1);
    tile_gemm(count, Kp, keys, chunk_at(s->d_st, QUERIES), s->k, Kp, s->d_q + t0 * Kp, Kp, 1);
}

static void backward_task(void *context, int64_t task, int worker)
{
    const forward_job *job = context;
    const attention_args *a = job->a;
    backward_scratch s;
    backward_layout(a, job->scratch + (size_t)worker * job->per_worker, &s);
    int64_t G = a->heads_kv, b = task / G, g = task % G, group = a->heads / G, L = a->length;
    int64_t K = a->dim_k, V = a->dim_v, Kp = chunk_pad(K), Vp = chunk_pad(V);
    for (int64_t h = g * group; h < (g + 1) * group; h++) {
        pack_head(a, &s, b, h);
        for (int64_t key = 0; key < L; key += KEYS) {
            int64_t keys = kernel_min(KEYS, L - key), at = (b * L + key) * G + g;
            int64_t last = a->window > 0 ? kernel_min(L, key + keys - 1 + a->window) : L;
            chunk_rows((const real *)a->k + at * K, G * K, keys, K, s.k, Kp);
            chunk_rows((const real *)a->v + at * V, G * V, keys, V, s.v, Vp);
            chunk_zero(s.d_k, keys * Kp);
            chunk_zero(s.d_v, keys * Vp);
            for (int64_t t0 = key / QUERIES * QUERIES; t0 < last; t0 += QUERIES)
                backward_block(a, &s, key, keys, t0);
            chunk_rows_out(s.d_k, Kp, keys, K, (real *)a->d_k + at * K, G * K, h > g * group);
            chunk_rows_out(s.d_v, Vp, keys, V, (real *)a->d_v + at * V, G * V, h > g * group);
        }
        chunk_rows_out(s.d_q, Kp, L, K, (real *)a->d_q + (b * L * a->heads + h) * K, a->heads * K, 0);
    }
}

KERNEL(attention_backward, attention_args)
{
    backward_scratch s;
    forward_job job = {a, run->scratch, backward_layout(a, NULL, &s), 0};
    threads_run(run->threads, a->batch * a->heads_kv, backward_task, &job);
}

KERNEL_SIZES(attention_sizes, attention_args)
{
    forward_scratch f;
    backward_scratch b;
    size_t token = (size_t)(a->heads_kv * (a->dim_k + a->dim_v)) * sizeof(real);
    size_t forward = forward_layout(a, NULL, &f);
    size_t backward = backward_layout(a, NULL, &b);
    *sizes = (kernel_sizes){.state = kernel_round64((size_t)(a->batch * a->capacity) * token),
                            .scratch = (size_t)run->threads * (forward > backward ? forward : backward)};
}
