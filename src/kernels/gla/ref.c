/* Reference gated linear attention: token by token. Backward walks chunks from the end, computes the chunk's
 * states again from the one saved at its start and keeps only those. */
#include "kernels/gla/gla.h"
#include "kernels/variant.h"

#include <math.h>
#include <string.h>

enum { CHUNK = 16 };

typedef struct head {
    int64_t K, V, stride_k, stride_v, chunks; /* strides between tokens */
    const real *q, *k, *v, *g, *d_o, *state_in;
    real *o, *state_out, *saved, *d_q, *d_k, *d_v, *d_g;
} head;

static head head_of(const gla_args *a, int64_t b, int64_t h)
{
    int64_t K = a->dim_k, V = a->dim_v, H = a->heads, at = b * a->length * H + h, s = (b * H + h) * K * V;
    int64_t chunks = kernel_blocks(a->length, CHUNK);
#define AT(type, x, offset) ((x) ? (type *)(x) + (offset) : NULL)
    return (head){K,
                  V,
                  H * K,
                  H * V,
                  chunks,
                  .q = AT(const real, a->q, at *K),
                  .k = AT(const real, a->k, at *K),
                  .v = AT(const real, a->v, at *V),
                  .g = AT(const real, a->g, at *K),
                  .d_o = AT(const real, a->d_o, at *V),
                  .state_in = AT(const real, a->state_in, s),
                  .o = AT(real, a->o, at * V),
                  .state_out = AT(real, a->state_out, s),
                  .saved = AT(real, a->saved, (b * H + h) * chunks * K * V),
                  .d_q = AT(real, a->d_q, at * K),
                  .d_k = AT(real, a->d_k, at * K),
                  .d_v = AT(real, a->d_v, at * V),
                  .d_g = AT(real, a->d_g, at * K)};
#undef AT
}

/* after = diag(e^g) before + k v^T; may be in place. */
static void update(const head *x, int64_t t, const real *before, real *after)
{
    for (int64_t i = 0; i < x->K; i++) {
        real keep = (real)exp(x->g[t * x->stride_k + i]), k = x->k[t * x->stride_k + i];
        for (int64_t j = 0; j < x->V; j++)
            after[i * x->V + j] = keep * before[i * x->V + j] + k * x->v[t * x->stride_v + j];
    }
}

KERNEL_SIZES(gla_sizes, gla_args)
{
    size_t state = (size_t)(a->dim_k * a->dim_v) * sizeof(real), heads = (size_t)(a->batch * a->heads);
    sizes->state = kernel_round64(heads * state);
    sizes->saved = kernel_round64(heads * (size_t)kernel_blocks(a->length, CHUNK) * state);
    sizes->scratch = kernel_round64((CHUNK + 2) * state);
}

KERNEL(gla_forward, gla_args)
{
    for (int64_t n = 0; n < a->batch * a->heads; n++) {
        head x = head_of(a, n / a->heads, n % a->heads);
        int64_t size = x.K * x.V;
        real *S = run->scratch, scale = (real)a->scale;
        if (x.state_in)
            memcpy(S, x.state_in, (size_t)size * sizeof(real));
        else
            memset(S, 0, (size_t)size * sizeof(real));
        for (int64_t t = 0; t < a->length; t++) {
            if (x.saved && t % CHUNK == 0) memcpy(x.saved + t / CHUNK * size, S, (size_t)size * sizeof(real));
            update(&x, t, S, S);
            for (int64_t j = 0; j < x.V; j++) {
                real sum = 0;
                for (int64_t i = 0; i < x.K; i++) sum += S[i * x.V + j] * x.q[t * x.stride_k + i];
                x.o[t * x.stride_v + j] = scale * sum;
            }
        }
        if (x.state_out) memcpy(x.state_out, S, (size_t)size * sizeof(real));
    }
}

/* One token back: D is the gradient of the state after it and becomes that of the state before. */
static void token_backward(const head *x, int64_t t, real scale, const real *before, const real *after,
                           real *D)
{
    const real *q = x->q + t * x->stride_k, *k = x->k + t * x->stride_k, *v = x->v + t * x->stride_v;
    const real *d_o = x->d_o + t * x->stride_v;
    real *d_v = x->d_v + t * x->stride_v;
    for (int64_t j = 0; j < x->V; j++) d_v[j] = 0;
    for (int64_t i = 0; i < x->K; i++) {
        real keep = (real)exp(x->g[t * x->stride_k + i]), d_q = 0, d_k = 0, d_keep = 0;
        for (int64_t j = 0; j < x->V; j++) {
            int64_t e = i * x->V + j;
            D[e] += scale * q[i] * d_o[j];
            d_q += scale * after[e] * d_o[j];
            d_k += D[e] * v[j];
            d_v[j] += D[e] * k[i];
            d_keep += before[e] * D[e];
            D[e] *= keep;
        }
        x->d_q[t * x->stride_k + i] = d_q;
        x->d_k[t * x->stride_k + i] = d_k;
        x->d_g[t * x->stride_k + i] = keep * d_keep;
    }
}

KERNEL(gla_backward, gla_args)
{
    for (int64_t n = 0; n < a->batch * a->heads; n++) {
        head x = head_of(a, n / a->heads, n % a->heads);
        int64_t size = x.K * x.V;
        real *states = run->scratch, *D = states + (CHUNK + 1) * size;
        memset(D, 0, (size_t)size * sizeof(real));
        for (int64_t c = x.chunks - 1; c >= 0; c--) {
            int64_t count = kernel_min(CHUNK, a->length - c * CHUNK);
            memcpy(states, x.saved + c * size, (size_t)size * sizeof(real));
            for (int64_t i = 0; i < count; i++)
                update(&x, c * CHUNK + i, states + i * size, states + (i + 1) * size);
            for (int64_t i = count - 1; i >= 0; i--)
                token_backward(&x, c * CHUNK + i, (real)a->scale, states + i * size, states + (i + 1) * size,
                               D);
        }
    }
}
