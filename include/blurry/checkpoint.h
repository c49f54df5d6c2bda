/* safetensors files: looking at tensors and metadata without loading a model, and writing them.
 *
 * The file is checked completely when it is opened: one that breaks a rule of the format is refused with
 * BLURRY_E_FORMAT, one that cannot be read with BLURRY_E_IO. */
#ifndef BLURRY_CHECKPOINT_H
#define BLURRY_CHECKPOINT_H
#include "blurry/status.h"
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct blurry_checkpoint blurry_checkpoint;

BLURRY_API blurry_status blurry_checkpoint_open(blurry_checkpoint **checkpoint, const char *path);
/* Releases it and sets the pointer to NULL; NULL is fine. */
BLURRY_API void blurry_checkpoint_close(blurry_checkpoint **checkpoint);

enum { BLURRY_TENSOR_RANK_MAX = 32 };
typedef struct blurry_tensor {
    const char *name;  /* UTF-8, valid until close */
    const char *dtype; /* "F32", "BF16", ... */
    int rank;
    int64_t shape[BLURRY_TENSOR_RANK_MAX];
    int64_t elements;
    size_t bytes;
    const void *data; /* little-endian, not aligned, valid until close */
} blurry_tensor;

BLURRY_API size_t blurry_checkpoint_tensor_count(const blurry_checkpoint *checkpoint);
/* In the order of their data. BLURRY_E_INVALID when index is not below the count. */
BLURRY_API blurry_status blurry_checkpoint_tensor(const blurry_checkpoint *checkpoint, size_t index,
                                                  blurry_tensor *tensor);

BLURRY_API size_t blurry_checkpoint_metadata_count(const blurry_checkpoint *checkpoint);
/* Pair `index`; the texts are valid until close. BLURRY_E_INVALID when index is not below the count. */
BLURRY_API blurry_status blurry_checkpoint_metadata_at(const blurry_checkpoint *checkpoint, size_t index,
                                                       const char **key, const char **value);
/* The value of a key, NULL when there is none. */
BLURRY_API const char *blurry_checkpoint_metadata(const blurry_checkpoint *checkpoint, const char *key);

/* Writes a safetensors file atomically: tensors [count], of which name, dtype, rank, shape and data are read,
 * and keys and values [metadata_count]. Equal input gives equal bytes. */
BLURRY_API blurry_status blurry_tensors_save(const char *path, const blurry_tensor *tensors, size_t count,
                                             const char *const *keys, const char *const *values,
                                             size_t metadata_count);

#ifdef __cplusplus
}
#endif
#endif
