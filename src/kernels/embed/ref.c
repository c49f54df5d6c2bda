/* Reference embedding. */
#include "kernels/embed/dropout.h"
#include "kernels/embed/embed.h"
#include "kernels/variant.h"

static real mask(const embed_args *a, int64_t element)
{
    if (a->dropout <= 0) return 1;
    int keep[4];
    dropout_keep(a, element / 4, keep);
    return keep[element % 4] ? (real)(1 / (1 - a->dropout)) : 0;
}

static int64_t position_row(const embed_args *a, int64_t r)
{
    int64_t p = (a->position ? a->position[r / a->length] : 0) + r % a->length;
    return p < a->max_length ? p : a->max_length - 1;
}

KERNEL_SIZES(embed_sizes, embed_args)
{
    (void)a;
    *sizes = (kernel_sizes){0};
}

KERNEL(embed_forward, embed_args)
{
    const real *weight = a->weight, *places = a->position_weight;
    for (int64_t r = 0; r < a->batch * a->length; r++)
        for (int64_t i = 0; i < a->width; i++) {
            real sum = weight[a->id[r] * a->width + i];
            if (places) sum += places[position_row(a, r) * a->width + i];
            ((real *)a->y)[r * a->width + i] = sum * mask(a, r * a->width + i);
        }
}

KERNEL(embed_backward, embed_args)
{
    real *d_weight = a->d_weight, *d_places = a->d_position_weight;
    for (int64_t r = 0; r < a->batch * a->length; r++)
        for (int64_t i = 0; i < a->width; i++) {
            real d = ((const real *)a->d_y)[r * a->width + i] * mask(a, r * a->width + i);
            d_weight[a->id[r] * a->width + i] += d;
            if (d_places) d_places[position_row(a, r) * a->width + i] += d;
        }
}
