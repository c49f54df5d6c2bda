/* safetensors files: a length, a JSON header, the tensors' bytes.
 *
 *     u64 little-endian n | n bytes of JSON | data
 *     {"__metadata__": {"key": "text", ...}, "name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0,
 * 24]}, ...}
 *
 * The reader trusts nothing: it accepts a file only if the header is one flat, duplicate-free JSON object of
 * valid UTF-8, every type is known, every shape fits its bytes, and the tensors cover the data exactly,
 * without overlap, hole or rest. Rule breaks are BLURRY_E_FORMAT with the path and the tensor; unreadable
 * files are BLURRY_E_IO. */
#ifndef BLURRY_BASE_SAFETENSORS_H
#define BLURRY_BASE_SAFETENSORS_H
#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

enum { SAFETENSORS_RANK_MAX = 8 };

typedef enum safetensors_dtype {
    SAFETENSORS_BOOL,
    SAFETENSORS_U8,
    SAFETENSORS_I8,
    SAFETENSORS_F8_E5M2,
    SAFETENSORS_F8_E4M3,
    SAFETENSORS_I16,
    SAFETENSORS_U16,
    SAFETENSORS_F16,
    SAFETENSORS_BF16,
    SAFETENSORS_I32,
    SAFETENSORS_U32,
    SAFETENSORS_F32,
    SAFETENSORS_F64,
    SAFETENSORS_I64,
    SAFETENSORS_U64,
    SAFETENSORS_DTYPE_COUNT
} safetensors_dtype;

/* "F32"; bytes per element, 4. */
const char *safetensors_dtype_name(safetensors_dtype dtype);
size_t safetensors_dtype_size(safetensors_dtype dtype);

typedef struct safetensors_tensor {
    const char *name;
    safetensors_dtype dtype;
    int rank;
    int64_t shape[SAFETENSORS_RANK_MAX];
    int64_t count; /* elements */
    const void
        *data; /* readers: into the mapped file, any alignment: use safetensors_read_f64/f32 or memcpy */
    size_t bytes;
} safetensors_tensor;

/* ---- reading ---- */
typedef struct safetensors safetensors;

/* Maps the file read-only; a file cut short by someone else while it is open is the caller's risk, so
 * checkpoints are replaced, never rewritten. */
blurry_status safetensors_open(safetensors **file, const char *path);
/* The same over memory, which must outlive the handle; `name` stands for the path in messages. */
blurry_status safetensors_parse(safetensors **file, const void *data, size_t length, const char *name);
void safetensors_close(safetensors **file);

size_t safetensors_count(const safetensors *file);
/* In the order of their data. */
const safetensors_tensor *safetensors_at(const safetensors *file, size_t index);
/* NULL when there is none of this name. */
const safetensors_tensor *safetensors_find(const safetensors *file, const char *name);

size_t safetensors_metadata_count(const safetensors *file);
const char *safetensors_metadata_key(const safetensors *file, size_t index);
const char *safetensors_metadata_value(const safetensors *file, size_t index);
/* NULL when there is none. */
const char *safetensors_metadata(const safetensors *file, const char *key);

/* Copies tensor `name` into out [count], converting from F64, F32, F16 or BF16. Missing, of another type or
 * of another shape (rank -1: any shape with `count` elements): BLURRY_E_FORMAT saying so. */
blurry_status safetensors_read_f32(const safetensors *file, const char *name, const int64_t *shape, int rank,
                                   int64_t count, float *out);
blurry_status safetensors_read_f64(const safetensors *file, const char *name, const int64_t *shape, int rank,
                                   int64_t count, double *out);

/* ---- writing ---- */
/* Writes the file atomically (see file_save). The header lists metadata and tensors in the given order, so
 * equal input gives equal bytes; the data starts 64-byte aligned and each tensor 8-byte aligned where element
 * sizes allow without a hole (wider types first does it). Names and values are valid UTF-8, names are
 * distinct and not "__metadata__". */
blurry_status safetensors_save(const char *path, const safetensors_tensor *tensors, size_t tensor_count,
                               const char *const *metadata_keys, const char *const *metadata_values,
                               size_t metadata_count);

#endif
