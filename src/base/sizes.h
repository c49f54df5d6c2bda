/* Sizes in bytes that cannot overflow unnoticed: every operation saturates at SIZE_MAX, so one comparison at
 * the end of a calculation tells whether the result can be used. */
#ifndef BLURRY_BASE_SIZES_H
#define BLURRY_BASE_SIZES_H
#include <stddef.h>
#include <stdint.h>

static inline size_t size_add(size_t a, size_t b)
{
    return a > SIZE_MAX - b ? SIZE_MAX : a + b;
}

static inline size_t size_mul(size_t a, size_t b)
{
    size_t product;
    return __builtin_mul_overflow(a, b, &product) ? SIZE_MAX : product;
}

/* n elements of `bytes` each; a negative n saturates. */
static inline size_t size_of(int64_t n, size_t bytes)
{
    return n < 0 ? SIZE_MAX : size_mul((size_t)n, bytes);
}

/* Rounded up to a multiple of 64, the alignment of workspaces and states. */
static inline size_t size_align(size_t a)
{
    return a > SIZE_MAX - 63 ? SIZE_MAX : (a + 63) & ~(size_t)63;
}

#endif
