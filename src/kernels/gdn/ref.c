/* Reference gated delta rule: token by token. Backward walks chunks from the end, computes the chunk's states
 * again from the one saved at its start and keeps only those. */
#include "kernels/gdn/gdn.h"
#include "kernels/variant.h"

#include <math.h>
#include <string.h>

enum { CHUNK = 16 };

typedef struct head {
    int64_t K, V, stride_k, stride_v, stride_1, chunks; /* strides between tokens */
    const real *q, *k, *v, *beta, *g, *d_o, *state_in;
    real *o, *state_out, *saved, *d_q, *d_k, *d_v, *d_beta, *d_g;
} head;

static head head_of(const gdn_args *a, int64_t b, int64_t h)
{
    int64_t K = a->dim_k, V = a->dim_v, H = a->heads, at = b * a->length * H + h, s = (b * H + h) * K * V;
    int64_t chunks = kernel_blocks(a->length, CHUNK);
#define AT(type, x, offset) ((x) ? (type *)(x) + (offset) : NULL)
    return (head){K,
                  V,
                  H * K,
                  H * V,
                  H,
                  chunks,
                  .q = AT(const real, a->q, at *K),
                  .k = AT(const real, a->k, at *K),
                  .v = AT(const real, a->v, at *V),
                  .beta = AT(const real, a->beta, at),
                  .g = AT(const real, a->g, at),
                  .d_o = AT(const real, a->d_o, at *V),
                  .state_in = AT(const real, a->state_in, s),
                  .o = AT(real, a->o, at * V),
                  .state_out = AT(real, a->state_out, s),
                  .saved = AT(real, a->saved, (b * H + h) * chunks * K * V),
                  .d_q = AT(real, a->d_q, at * K),
                  .d_k = AT(real, a->d_k, at * K),
                  .d_v = AT(real, a->d_v, at * V),
                  .d_beta = AT(real, a->d_beta, at),
                  .d_g = AT(real, a->d_g, at)};
#undef AT
}

/* u_j = beta (v_j - alpha sum_i before[i,j] k_i). */
static real correction(const head *x, int64_t t, const real *before, int64_t j)
{
    real sum = 0;
    for (int64_t i = 0; i < x->K; i++) sum += before[i * x->V + j] * x->k[t * x->stride_k + i];
    return x->beta[t * x->stride_1] * (x->v[t * x->stride_v + j] - (real)exp(x->g[t * x->stride_1]) * sum);
}

/* after = alpha before + k u^T; may be in place. */
static void update(const head *x, int64_t t, const real *before, real *after)
{
    real keep = (real)exp(x->g[t * x->stride_1]);
    for (int64_t j = 0; j < x->V; j++) {
        real u = correction(x, t, before, j);
        for (int64_t i = 0; i < x->K; i++)
            after[i * x->V + j] = keep * before[i * x->V + j] + x->k[t * x->stride_k + i] * u;
    }
}

KERNEL_SIZES(gdn_sizes, gdn_args)
{
    size_t state = (size_t)(a->dim_k * a->dim_v) * sizeof(real), heads = (size_t)(a->batch * a->heads);
    sizes->state = kernel_round64(heads * state);
    sizes->saved = kernel_round64(heads * (size_t)kernel_blocks(a->length, CHUNK) * state);
    sizes->scratch = kernel_round64((CHUNK + 2) * state);
}

KERNEL(gdn_forward, gdn_args)
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
    real *d_q = x->d_q + t * x->stride_k, *d_k = x->d_k + t * x->stride_k;
    real keep = (real)exp(x->g[t * x->stride_1]), beta = x->beta[t * x->stride_1], d_beta = 0, d_keep = 0;
    for (int64_t i = 0; i < x->K; i++) d_q[i] = d_k[i] = 0;
    for (int64_t j = 0; j < x->V; j++) {
        real u = correction(x, t, before, j), d_u = 0, read = 0;
        for (int64_t i = 0; i < x->K; i++) {
            int64_t e = i * x->V + j;
            D[e] += scale * q[i] * d_o[j];
            d_q[i] += scale * after[e] * d_o[j];
            d_k[i] += D[e] * u;
            d_u += D[e] * k[i];
            read += keep * before[e] * k[i]; /* what the memory holds for k */
        }
        d_beta += d_u * (v[j] - read);
        x->d_v[t * x->stride_v + j] = beta * d_u;
        for (int64_t i = 0; i < x->K; i++) {
            int64_t e = i * x->V + j;
            d_k[i] -= beta * d_u * keep * before[e];
            D[e] -= beta * d_u * k[i];
            d_keep += before[e] * D[e];
            D[e] *= keep;
        }
    }
    x->d_beta[t * x->stride_1] = d_beta;
    x->d_g[t * x->stride_1] = keep * d_keep;
}

KERNEL(gdn_backward, gdn_args)
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
