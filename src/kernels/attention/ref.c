/* Reference softmax attention: one query at a time, the softmax in two passes. */
#include "kernels/attention/ring.h"
#include "kernels/variant.h"

#include <math.h>
#include <string.h>

/* Key (or value) of kv head g at absolute position p. */
static const real *token_at(const attention_args *a, const void *own, const void *ring, int64_t b, int64_t p,
                            int64_t g, int64_t dim)
{
    int64_t seen = attention_seen(a, b);
    if (p >= seen) return (const real *)own + ((b * a->length + p - seen) * a->heads_kv + g) * dim;
    return (const real *)ring + ((b * a->capacity + p % a->capacity) * a->heads_kv + g) * dim;
}

static real dot(const real *x, const real *y, int64_t n)
{
    real sum = 0;
    for (int64_t i = 0; i < n; i++) sum += x[i] * y[i];
    return sum;
}

static void attend(const attention_args *a, int64_t b, int64_t t, int64_t h)
{
    int64_t g = h / (a->heads / a->heads_kv), last = attention_seen(a, b) + t,
            first = attention_first(a, b, t);
    const real *q = (const real *)a->q + ((b * a->length + t) * a->heads + h) * a->dim_k;
    real *o = (real *)a->o + ((b * a->length + t) * a->heads + h) * a->dim_v;
    real most = -INFINITY, total = 0, scale = (real)a->scale;
    for (int64_t p = first; p <= last; p++) {
        real logit = scale * dot(q, token_at(a, a->k, a->cache_k, b, p, g, a->dim_k), a->dim_k);
        if (logit > most) most = logit;
    }
    for (int64_t i = 0; i < a->dim_v; i++) o[i] = 0;
    for (int64_t p = first; p <= last; p++) {
        const real *v = token_at(a, a->v, a->cache_v, b, p, g, a->dim_v);
        real e = (real)exp(scale * dot(q, token_at(a, a->k, a->cache_k, b, p, g, a->dim_k), a->dim_k) - most);
        total += e;
        for (int64_t i = 0; i < a->dim_v; i++) o[i] += e * v[i];
    }
    for (int64_t i = 0; i < a->dim_v; i++) o[i] /= total;
    if (a->lse) ((real *)a->lse)[(b * a->heads + h) * a->length + t] = most + (real)log(total);
}

/* Puts the call's own tokens, at most `capacity` of the last, into the ring. */
static void store(const attention_args *a, const void *own, void *ring, int64_t b, int64_t dim)
{
    int64_t row = a->heads_kv * dim;
    for (int64_t t = kernel_max(0, a->length - a->capacity); t < a->length; t++)
        memcpy((real *)ring + (b * a->capacity + (attention_seen(a, b) + t) % a->capacity) * row,
               (const real *)own + (b * a->length + t) * row, (size_t)row * sizeof(real));
}

KERNEL_SIZES(attention_sizes, attention_args)
{
    size_t token = (size_t)(a->heads_kv * (a->dim_k + a->dim_v)) * sizeof(real);
    *sizes = (kernel_sizes){.state = kernel_round64((size_t)(a->batch * a->capacity) * token)};
}

KERNEL(attention_forward, attention_args)
{
    for (int64_t b = 0; b < a->batch; b++) {
        for (int64_t t = 0; t < a->length; t++)
            for (int64_t h = 0; h < a->heads; h++) attend(a, b, t, h);
        if (!a->cache_k) continue;
        store(a, a->k, a->cache_k, b, a->dim_k);
        store(a, a->v, a->cache_v, b, a->dim_v);
    }
}

KERNEL(attention_backward, attention_args)
{
    int64_t L = a->length, H = a->heads, G = a->heads_kv, K = a->dim_k, V = a->dim_v;
    real scale = (real)a->scale;
    memset(a->d_q, 0, (size_t)(a->batch * L * H * K) * sizeof(real));
    memset(a->d_k, 0, (size_t)(a->batch * L * G * K) * sizeof(real));
    memset(a->d_v, 0, (size_t)(a->batch * L * G * V) * sizeof(real));
    for (int64_t b = 0; b < a->batch; b++)
        for (int64_t t = 0; t < L; t++)
            for (int64_t h = 0; h < H; h++) {
                int64_t g = h / (H / G), row = (b * L + t) * H + h;
                const real *q = (const real *)a->q + row * K, *d_o = (const real *)a->d_o + row * V;
                real lse = ((const real *)a->lse)[(b * H + h) * L + t];
                real along = dot(d_o, (const real *)a->o + row * V, V);
                for (int64_t u = a->window > 0 ? kernel_max(0, t - a->window + 1) : 0; u <= t; u++) {
                    int64_t at = (b * L + u) * G + g;
                    const real *k = (const real *)a->k + at * K, *v = (const real *)a->v + at * V;
                    real p = (real)exp(scale * dot(q, k, K) - lse),
                         d_logit = p * (dot(d_o, v, V) - along) * scale;
                    for (int64_t i = 0; i < V; i++) ((real *)a->d_v)[at * V + i] += p * d_o[i];
                    for (int64_t i = 0; i < K; i++) {
                        ((real *)a->d_k)[at * K + i] += d_logit * q[i];
                        ((real *)a->d_q)[row * K + i] += d_logit * k[i];
                    }
                }
            }
}
