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

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SAFETENSORS_RANK_MAX = 32 };

/* X(name, bytes per element) */
/* clang-format off */
#define SAFETENSORS_DTYPES(X)                                                                                \
    X(F64, 8)                                                                                                \
    X(I64, 8)                                                                                                \
    X(U64, 8)                                                                                                \
    X(F32, 4)                                                                                                \
    X(I32, 4)                                                                                                \
    X(U32, 4) X(F16, 2) X(BF16, 2) X(I16, 2) X(U16, 2) X(I8, 1) X(U8, 1) X(BOOL, 1) X(F8_E5M2, 1)            \
        X(F8_E4M3, 1) X(F8_E8M0, 1) X(F8_E4M3FNUZ, 1) X(F8_E5M2FNUZ, 1)
/* clang-format on */

typedef enum safetensors_dtype {
#define SAFETENSORS_ENUM(name, bytes) SAFETENSORS_##name,
    SAFETENSORS_DTYPES(SAFETENSORS_ENUM) SAFETENSORS_DTYPE_COUNT
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
/* NULL is fine. */
void safetensors_close(safetensors **file);
/* As given to open. */
const char *safetensors_path(const safetensors *file);

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
/* Writes the file atomically (see file_save). The data starts 64-byte aligned and is laid out widest type
 * first, else in the given order, so that every tensor is aligned for its type without a hole and equal input
 * gives equal bytes. Names and values must be valid UTF-8, names distinct and not "__metadata__"; `count` and
 * `bytes` are computed from dtype and shape, the caller's are not looked at. */
blurry_status safetensors_save(const char *path, const safetensors_tensor *tensors, size_t tensor_count,
                               const char *const *metadata_keys, const char *const *metadata_values,
                               size_t metadata_count);

#endif
