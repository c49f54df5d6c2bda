/* Writing safetensors. */
#include "base/safetensors.h"

#include "base/file.h"
#include "base/memory.h"
#include "base/sizes.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HEADER_BYTES_MAX = 100000000, DATA_ALIGNMENT = 64, LENGTH_BYTES = 8 };
static const char metadata_name[] = "__metadata__";

/* Sets object[key] = value, taking over `value`; NULL value or object means out of memory or invalid UTF-8
 * before. */
static blurry_status put(json_t *object, const char *key, json_t *value, const char *path)
{
    if (value && json_object_set_new(object, key, value) == 0) return BLURRY_OK;
    return status_fail(BLURRY_E_INVALID,
                       "%s: cannot save: a name or text is not valid UTF-8, or memory is short", path);
}

static blurry_status put_metadata(json_t *header, const char *const *keys, const char *const *values,
                                  size_t count, const char *path)
{
    json_t *metadata = json_object();
    STATUS_TRY(put(header, metadata_name, metadata, path));
    for (size_t i = 0; i < count; i++) {
        if (!keys[i] || !values[i])
            return status_fail(BLURRY_E_INVALID, "%s: cannot save: metadata %zu is NULL", path, i);
        if (json_object_get(metadata, keys[i]))
            return status_fail(BLURRY_E_INVALID, "%s: cannot save: metadata '%s' is there twice", path,
                               keys[i]);
        STATUS_TRY(put(metadata, keys[i], json_string(values[i]), path));
    }
    return BLURRY_OK;
}

/* Checks t and computes its bytes. */
static blurry_status measure(const safetensors_tensor *t, const char *path, size_t *bytes)
{
    int64_t count;
    if (!t->name) return status_fail(BLURRY_E_INVALID, "%s: cannot save: a tensor has no name", path);
    bool known =
        t->rank >= 0 && t->rank <= SAFETENSORS_RANK_MAX && (unsigned)t->dtype < SAFETENSORS_DTYPE_COUNT;
    *bytes = known && memory_count(t->shape, t->rank, &count)
                 ? size_of(count, safetensors_dtype_size(t->dtype))
                 : SIZE_MAX;
    if (*bytes == SIZE_MAX)
        return status_fail(BLURRY_E_INVALID, "%s: cannot save: tensor '%s' has an impossible type or shape",
                           path, t->name);
    if (*bytes && !t->data)
        return status_fail(BLURRY_E_INVALID, "%s: cannot save: tensor '%s' has no data", path, t->name);
    return BLURRY_OK;
}

static blurry_status put_tensor(json_t *header, const safetensors_tensor *t, size_t begin, size_t bytes,
                                const char *path)
{
    if (!strcmp(t->name, metadata_name) || json_object_get(header, t->name))
        return status_fail(BLURRY_E_INVALID, "%s: cannot save: the tensor name '%s' is taken", path, t->name);
    json_t *shape = json_array(),
           *offsets = json_pack("[I, I]", (json_int_t)begin, (json_int_t)(begin + bytes));
    bool complete = shape && offsets;
    for (int i = 0; i < t->rank; i++)
        complete = complete && json_array_append_new(shape, json_integer(t->shape[i])) == 0;
    json_t *entry = json_pack("{s:s, s:o, s:o}", "dtype", safetensors_dtype_name(t->dtype), "shape", shape,
                              "data_offsets", offsets); /* takes over shape and offsets */
    if (!complete || !entry) {
        json_decref(entry);
        return status_fail(BLURRY_E_MEMORY, "%s: out of memory while saving", path);
    }
    return put(header, t->name, entry, path);
}

/* order [count]: indices by falling element size, else as given. */
static void order_by_size(const safetensors_tensor *tensors, size_t count, size_t *order)
{
    static const size_t sizes[] = {8, 4, 2, 1, 0}; /* 0: unknown types, refused later */
    size_t used = 0;
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++)
        for (size_t i = 0; i < count; i++)
            if (safetensors_dtype_size(tensors[i].dtype) == sizes[s]) order[used++] = i;
}

/* Fills the header object; sizes [count] receives the bytes of tensors[order[i]]. */
static blurry_status build_header(json_t *header, const safetensors_tensor *tensors, size_t count,
                                  const size_t *order, size_t *sizes, const char *path)
{
    size_t begin = 0;
    for (size_t i = 0; i < count; i++) {
        const safetensors_tensor *t = &tensors[order[i]];
        STATUS_TRY(measure(t, path, &sizes[i]));
        size_t end = size_add(begin, sizes[i]);
        if (end > INT64_MAX)
            return status_fail(BLURRY_E_INVALID, "%s: cannot save: the tensors are too large together", path);
        STATUS_TRY(put_tensor(header, t, begin, sizes[i], path));
        begin = end;
    }
    return BLURRY_OK;
}

static blurry_status write_file(const char *path, const char *text, const safetensors_tensor *tensors,
                                size_t count, const size_t *order, const size_t *sizes)
{
    size_t length = strlen(text), padded = length + LENGTH_BYTES;
    padded = (padded + DATA_ALIGNMENT - 1) / DATA_ALIGNMENT * DATA_ALIGNMENT - LENGTH_BYTES;
    if (padded > HEADER_BYTES_MAX)
        return status_fail(BLURRY_E_INVALID,
                           "%s: cannot save: the header of %zu bytes is longer than the format allows", path,
                           padded);
    uint8_t prefix[LENGTH_BYTES];
    for (int i = 0; i < LENGTH_BYTES; i++) prefix[i] = (uint8_t)((uint64_t)padded >> 8 * i);
    char blanks[DATA_ALIGNMENT];
    memset(blanks, ' ', sizeof blanks);
    file_save save;
    STATUS_TRY(file_save_begin(&save, path));
    /* A failed write is remembered and reported by commit. */
    (void)file_save_write(&save, prefix, sizeof prefix);
    (void)file_save_write(&save, text, length);
    (void)file_save_write(&save, blanks, padded - length);
    for (size_t i = 0; i < count && !save.error; i++)
        (void)file_save_write(&save, tensors[order[i]].data, sizes[i]);
    return file_save_commit(&save);
}

blurry_status safetensors_save(const char *path, const safetensors_tensor *tensors, size_t tensor_count,
                               const char *const *metadata_keys, const char *const *metadata_values,
                               size_t metadata_count)
{
    size_t *order = calloc(tensor_count + 1, sizeof *order), *sizes = calloc(tensor_count + 1, sizeof *sizes);
    json_t *header = json_object();
    char *text = NULL;
    blurry_status status = BLURRY_OK;
    if (!order || !sizes || !header)
        status = status_fail(BLURRY_E_MEMORY, "%s: out of memory while saving", path);
    if (status == BLURRY_OK && metadata_count)
        status = put_metadata(header, metadata_keys, metadata_values, metadata_count, path);
    if (status == BLURRY_OK) {
        order_by_size(tensors, tensor_count, order);
        status = build_header(header, tensors, tensor_count, order, sizes, path);
    }
    if (status == BLURRY_OK) {
        text = json_dumps(header, JSON_COMPACT);
        status = text ? write_file(path, text, tensors, tensor_count, order, sizes)
                      : status_fail(BLURRY_E_MEMORY, "%s: out of memory while saving", path);
    }
    free(text);
    json_decref(header);
    free(sizes);
    free(order);
    return status;
}
