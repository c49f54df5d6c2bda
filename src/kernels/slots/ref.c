/* Reference gated slot attention: token by token. Backward walks chunks from the end, computes the chunk's
 * states again from the one saved at its start and keeps only those. */
#include "kernels/slots/slots.h"
#include "kernels/variant.h"

#include <math.h>
#include <string.h>

enum { CHUNK = 16 };

typedef struct head {
    int64_t K, V, S, stride_k, stride_v, stride_s, chunks; /* strides between tokens */
    const real *q, *k, *v, *g, *d_o, *state_in;
    real *o, *state_out, *saved, *d_q, *d_k, *d_v, *d_g;
} head;

static head head_of(const slots_args *a, int64_t b, int64_t h)
{
    int64_t K = a->dim_k, V = a->dim_v, S = a->slots, H = a->heads, at = b * a->length * H + h;
    int64_t size = S * (K + V), chunks = kernel_blocks(a->length, CHUNK);
#define AT(type, x, offset) ((x) ? (type *)(x) + (offset) : NULL)
    return (head){K,
                  V,
                  S,
                  H * K,
                  H * V,
                  H * S,
                  chunks,
                  .q = AT(const real, a->q, at *K),
                  .k = AT(const real, a->k, at *K),
                  .v = AT(const real, a->v, at *V),
                  .g = AT(const real, a->g, at *S),
                  .d_o = AT(const real, a->d_o, at *V),
                  .state_in = AT(const real, a->state_in, (b * H + h) * size),
                  .o = AT(real, a->o, at * V),
                  .state_out = AT(real, a->state_out, (b * H + h) * size),
                  .saved = AT(real, a->saved, (b * H + h) * chunks * size),
                  .d_q = AT(real, a->d_q, at * K),
                  .d_k = AT(real, a->d_k, at * K),
                  .d_v = AT(real, a->d_v, at * V),
                  .d_g = AT(real, a->d_g, at * S)};
#undef AT
}

/* Each slot fades and takes up its share of k and v; may be in place. */
static void update(const head *x, int64_t t, const real *before, real *after)
{
    int64_t row = x->K + x->V;
    for (int64_t j = 0; j < x->S; j++) {
        real g = x->g[t * x->stride_s + j], keep = (real)exp(g), write = (real)-expm1(g);
        for (int64_t i = 0; i < row; i++) {
            real token = i < x->K ? x->k[t * x->stride_k + i] : x->v[t * x->stride_v + i - x->K];
            after[j * row + i] = keep * before[j * row + i] + write * token;
        }
    }
}

/* p [S] = softmax of the logits against state. */
static void weights(const head *x, int64_t t, real scale, const real *state, real *p)
{
    int64_t row = x->K + x->V;
    real most = -INFINITY, total = 0;
    for (int64_t j = 0; j < x->S; j++) {
        p[j] = 0;
        for (int64_t i = 0; i < x->K; i++) p[j] += scale * x->q[t * x->stride_k + i] * state[j * row + i];
        if (p[j] > most) most = p[j];
    }
    for (int64_t j = 0; j < x->S; j++) total += p[j] = (real)exp(p[j] - most);
    for (int64_t j = 0; j < x->S; j++) p[j] /= total;
}

KERNEL_SIZES(slots_sizes, slots_args)
{
    size_t state = (size_t)(a->slots * (a->dim_k + a->dim_v)) * sizeof(real),
           heads = (size_t)(a->batch * a->heads);
    sizes->state = kernel_round64(heads * state);
    sizes->saved = kernel_round64(heads * (size_t)kernel_blocks(a->length, CHUNK) * state);
    sizes->scratch = kernel_round64((CHUNK + 2) * state + 2 * (size_t)a->slots * sizeof(real));
}

KERNEL(slots_forward, slots_args)
{
    for (int64_t n = 0; n < a->batch * a->heads; n++) {
        head x = head_of(a, n / a->heads, n % a->heads);
        int64_t row = x.K + x.V, size = x.S * row;
        real *state = run->scratch, *p = state + size;
        if (x.state_in)
            memcpy(state, x.state_in, (size_t)size * sizeof(real));
        else
            memset(state, 0, (size_t)size * sizeof(real));
        for (int64_t t = 0; t < a->length; t++) {
            if (x.saved && t % CHUNK == 0)
                memcpy(x.saved + t / CHUNK * size, state, (size_t)size * sizeof(real));
            update(&x, t, state, state);
            weights(&x, t, (real)a->scale, state, p);
            for (int64_t i = 0; i < x.V; i++) {
                real sum = 0;
                for (int64_t j = 0; j < x.S; j++) sum += p[j] * state[j * row + x.K + i];
                x.o[t * x.stride_v + i] = sum;
            }
        }
        if (x.state_out) memcpy(x.state_out, state, (size_t)size * sizeof(real));
    }
}

/* One token back: D is the gradient of the state after it and becomes that of the state before. p, d [S] are
 * scratch. */
static void token_backward(const head *x, int64_t t, real scale, const real *before, const real *after,
                           real *D, real *p, real *d)
{
    int64_t row = x->K + x->V;
    const real *q = x->q + t * x->stride_k, *d_o = x->d_o + t * x->stride_v;
    real *d_q = x->d_q + t * x->stride_k, *d_k = x->d_k + t * x->stride_k, *d_v = x->d_v + t * x->stride_v,
         mean = 0;
    weights(x, t, scale, after, p);
    for (int64_t j = 0; j < x->S; j++) {
        d[j] = 0;
        for (int64_t i = 0; i < x->V; i++) d[j] += d_o[i] * after[j * row + x->K + i];
        mean += p[j] * d[j];
    }
    for (int64_t i = 0; i < x->K; i++) d_q[i] = d_k[i] = 0;
    for (int64_t i = 0; i < x->V; i++) d_v[i] = 0;
    for (int64_t j = 0; j < x->S; j++) {
        real d_logit = scale * p[j] * (d[j] - mean), g = x->g[t * x->stride_s + j];
        real keep = (real)exp(g), write = (real)-expm1(g), d_keep = 0;
        for (int64_t i = 0; i < row; i++) {
            int64_t e = j * row + i;
            int is_key = i < x->K;
            D[e] += is_key ? d_logit * q[i] : p[j] * d_o[i - x->K];
            if (is_key) d_q[i] += d_logit * after[e];
            *(is_key ? &d_k[i] : &d_v[i - x->K]) += write * D[e];
            real token = is_key ? x->k[t * x->stride_k + i] : x->v[t * x->stride_v + i - x->K];
            d_keep += (before[e] - token) * D[e];
            D[e] *= keep;
        }
        x->d_g[t * x->stride_s + j] = keep * d_keep;
    }
}

KERNEL(slots_backward, slots_args)
{
    for (int64_t n = 0; n < a->batch * a->heads; n++) {
        head x = head_of(a, n / a->heads, n % a->heads);
        int64_t size = x.S * (x.K + x.V);
        real *states = run->scratch, *D = states + (CHUNK + 1) * size, *p = D + size, *d = p + x.S;
        memset(D, 0, (size_t)size * sizeof(real));
        for (int64_t c = x.chunks - 1; c >= 0; c--) {
            int64_t count = kernel_min(CHUNK, a->length - c * CHUNK);
            memcpy(states, x.saved + c * size, (size_t)size * sizeof(real));
            for (int64_t i = 0; i < count; i++)
                update(&x, c * CHUNK + i, states + i * size, states + (i + 1) * size);
            for (int64_t i = count - 1; i >= 0; i--)
                token_backward(&x, c * CHUNK + i, (real)a->scale, states + i * size, states + (i + 1) * size,
                               D, p, d);
        }
    }
}
