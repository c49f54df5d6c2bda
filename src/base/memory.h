/* Checked allocation. Sizes come from options and files, so every product may overflow (see also
 * base/sizes.h). */
#ifndef BLURRY_BASE_MEMORY_H
#define BLURRY_BASE_MEMORY_H
#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { MEMORY_ALIGNMENT = 64 };

/* *out = a * b; false, with *out untouched, when that does not fit. */
static inline bool memory_mul(size_t a, size_t b, size_t *out)
{
    size_t product;
    if (__builtin_mul_overflow(a, b, &product)) return false;
    *out = product;
    return true;
}

/* The number of elements of a shape: *count = product of dims [rank]; false for a negative dimension, and for
 * an overflow even when a later dimension is 0. */
bool memory_count(const int64_t *dims, int rank, int64_t *count);

/* count * size bytes of zeros, aligned to 64 bytes and padded to a multiple of them. count = 0 gives memory
 * too. BLURRY_E_MEMORY names `what`, for example "layer gradients". Release with memory_free. */
blurry_status memory_alloc(void **memory, size_t count, size_t size, const char *what);

/* NULL is fine. */
void memory_free(void *memory);

#endif
