#include "base/memory.h"

#include "base/sizes.h"

#include <stdlib.h>
#include <string.h>

bool memory_count(const int64_t *dims, int rank, int64_t *count)
{
    int64_t product = 1; /* over the dimensions that are not 0, so that overflow shows in any order */
    bool empty = false;
    for (int i = 0; i < rank; i++) {
        if (dims[i] < 0) return false;
        if (dims[i] == 0)
            empty = true;
        else if (__builtin_mul_overflow(product, dims[i], &product))
            return false;
    }
    *count = empty ? 0 : product;
    return true;
}

blurry_status memory_alloc(void **memory, size_t count, size_t size, const char *what)
{
    size_t bytes = size_align(size_mul(count ? count : 1, size));
    *memory = NULL;
    if (bytes == SIZE_MAX)
        return status_fail(BLURRY_E_MEMORY,
                           "%s: %zu elements of %zu bytes are more than an address space holds", what, count,
                           size);
    void *block = aligned_alloc(MEMORY_ALIGNMENT, bytes);
    if (!block) return status_fail(BLURRY_E_MEMORY, "%s: out of memory for %zu bytes", what, bytes);
    memset(block, 0, bytes);
    *memory = block;
    return BLURRY_OK;
}

void memory_free(void *memory)
{
    free(memory);
}
