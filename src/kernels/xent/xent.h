/* Output head and cross-entropy at labelled rows only. With rows r_i = row[i] of hidden [n_hidden, width]:
 *     logits_i = hidden[r_i] * weight^T,   loss_i = -log softmax(logits_i)[target[i]]
 * Logits exist for one block of labels at a time. */
#ifndef BLURRY_KERNELS_XENT_H
#define BLURRY_KERNELS_XENT_H
#include "kernels/kernel.h"

typedef struct xent_args {
    int64_t labels;       /* most labels; fixes the sizes */
    const int64_t *count; /* NULL: all of them; else how many of them to use, in device memory */
    int64_t n_hidden, width, vocab;
    const void *hidden;    /* [n_hidden, width] */
    const void *weight;    /* [vocab, width] */
    const int64_t *row;    /* [labels] ascending or not; a row may carry several labels. NULL: 0, 1, 2 .., and
                              n_hidden is labels */
    const int32_t *target; /* [labels] each in [0, vocab), or -1: no loss and no gradient, predictions only */
    void *log_prob;        /* [labels] log-probability of the target (0 for target -1) */
    int32_t *argmax;       /* [labels] the first largest logit; NULL: not wanted */
    void *logits;          /* NULL, or [labels, vocab] */
    /* Backward only: computes everything above again together with the gradients, so a training step calls it
     * alone. */
    const double *grad_scale; /* one number in device memory: the gradient is of grad_scale * sum_i loss_i */
    void *d_hidden;           /* [n_hidden, width] overwritten, 0 in rows without a label */
    void *d_weight;           /* [vocab, width] added to; NULL: not wanted */
} xent_args;

/* The row of hidden that label i is at. */
KERNEL_INLINE int64_t xent_row(const xent_args *a, int64_t i)
{
    return a->row ? a->row[i] : i;
}

#endif
