/* Reference output head and cross-entropy: one label at a time. */
#include "kernels/variant.h"
#include "kernels/xent/xent.h"

#include <math.h>
#include <string.h>

KERNEL_SIZES(xent_sizes, xent_args)
{
    *sizes = (kernel_sizes){.scratch = kernel_round64((size_t)a->vocab * sizeof(real))};
}

/* logits [vocab] of label i, its outputs, and on return softmax in `logits`. */
static void label_forward(const xent_args *a, int64_t i, real *logits)
{
    const real *x = (const real *)a->hidden + xent_row(a, i) * a->width;
    int64_t best = 0;
    for (int64_t v = 0; v < a->vocab; v++) {
        const real *w = (const real *)a->weight + v * a->width;
        logits[v] = 0;
        for (int64_t j = 0; j < a->width; j++) logits[v] += x[j] * w[j];
        if (logits[v] > logits[best]) best = v;
    }
    if (a->logits) memcpy((real *)a->logits + i * a->vocab, logits, (size_t)a->vocab * sizeof(real));
    real most = logits[best], total = 0, chosen = a->target[i] < 0 ? 0 : logits[a->target[i]];
    for (int64_t v = 0; v < a->vocab; v++) total += logits[v] = (real)exp(logits[v] - most);
    for (int64_t v = 0; v < a->vocab; v++) logits[v] /= total;
    ((real *)a->log_prob)[i] = a->target[i] < 0 ? 0 : chosen - most - (real)log(total);
    if (a->argmax) a->argmax[i] = (int32_t)best;
}

KERNEL(xent_forward, xent_args)
{
    int64_t count = a->count ? *a->count : a->labels;
    for (int64_t i = 0; i < count; i++) label_forward(a, i, run->scratch);
}

KERNEL(xent_backward, xent_args)
{
    int64_t count = a->count ? *a->count : a->labels;
    real *p = run->scratch, scale = (real)*a->grad_scale;
    memset(a->d_hidden, 0, (size_t)(a->n_hidden * a->width) * sizeof(real));
    for (int64_t i = 0; i < count; i++) {
        label_forward(a, i, p);
        if (a->target[i] < 0) continue;
        p[a->target[i]] -= 1;
        const real *x = (const real *)a->hidden + xent_row(a, i) * a->width;
        real *d_x = (real *)a->d_hidden + xent_row(a, i) * a->width;
        for (int64_t v = 0; v < a->vocab; v++)
            for (int64_t j = 0; j < a->width; j++) {
                d_x[j] += scale * p[v] * ((const real *)a->weight)[v * a->width + j];
                if (a->d_weight) ((real *)a->d_weight)[v * a->width + j] += scale * p[v] * x[j];
            }
    }
}
