/* The public face of the safetensors reader and writer. */
#include "blurry/checkpoint.h"

#include "base/memory.h"
#include "base/safetensors.h"

#include <string.h>

_Static_assert((int)BLURRY_TENSOR_RANK_MAX == (int)SAFETENSORS_RANK_MAX, "the shapes are copied whole");

/* A checkpoint handle is the reader's handle under its public name. */
static const safetensors *reader(const blurry_checkpoint *checkpoint)
{
    return (const safetensors *)checkpoint;
}

blurry_status blurry_checkpoint_open(blurry_checkpoint **checkpoint, const char *path)
{
    if (!checkpoint || !path)
        return status_fail(BLURRY_E_INVALID, "%s is NULL", checkpoint ? "path" : "checkpoint");
    safetensors *file = NULL;
    blurry_status status = safetensors_open(&file, path);
    *checkpoint = (blurry_checkpoint *)file;
    return status;
}

void blurry_checkpoint_close(blurry_checkpoint **checkpoint)
{
    if (!checkpoint) return;
    safetensors *file = (safetensors *)*checkpoint;
    safetensors_close(&file);
    *checkpoint = NULL;
}

size_t blurry_checkpoint_tensor_count(const blurry_checkpoint *checkpoint)
{
    return checkpoint ? safetensors_count(reader(checkpoint)) : 0;
}

blurry_status blurry_checkpoint_tensor(const blurry_checkpoint *checkpoint, size_t index,
                                       blurry_tensor *tensor)
{
    if (!checkpoint || !tensor)
        return status_fail(BLURRY_E_INVALID, "%s is NULL", checkpoint ? "tensor" : "checkpoint");
    const safetensors_tensor *t = safetensors_at(reader(checkpoint), index);
    if (!t)
        return status_fail(BLURRY_E_INVALID, "index is %zu: there are %zu tensors", index,
                           safetensors_count(reader(checkpoint)));
    *tensor = (blurry_tensor){.name = t->name,
                              .dtype = safetensors_dtype_name(t->dtype),
                              .rank = t->rank,
                              .elements = t->count,
                              .bytes = t->bytes,
                              .data = t->data};
    memcpy(tensor->shape, t->shape, sizeof tensor->shape);
    return BLURRY_OK;
}

size_t blurry_checkpoint_metadata_count(const blurry_checkpoint *checkpoint)
{
    return checkpoint ? safetensors_metadata_count(reader(checkpoint)) : 0;
}

blurry_status blurry_checkpoint_metadata_at(const blurry_checkpoint *checkpoint, size_t index,
                                            const char **key, const char **value)
{
    if (!checkpoint || !key || !value)
        return status_fail(BLURRY_E_INVALID, "%s is NULL",
                           !checkpoint ? "checkpoint"
                           : !key      ? "key"
                                       : "value");
    if (index >= safetensors_metadata_count(reader(checkpoint)))
        return status_fail(BLURRY_E_INVALID, "index is %zu: there are %zu metadata entries", index,
                           safetensors_metadata_count(reader(checkpoint)));
    *key = safetensors_metadata_key(reader(checkpoint), index);
    *value = safetensors_metadata_value(reader(checkpoint), index);
    return BLURRY_OK;
}

const char *blurry_checkpoint_metadata(const blurry_checkpoint *checkpoint, const char *key)
{
    return checkpoint && key ? safetensors_metadata(reader(checkpoint), key) : NULL;
}

/* ---- writing ---- */
static blurry_status tensor_of(const blurry_tensor *from, safetensors_tensor *to)
{
    if (!from->dtype) return status_fail(BLURRY_E_INVALID, "dtype of a tensor is NULL");
    if (from->rank < 0 || from->rank > BLURRY_TENSOR_RANK_MAX)
        return status_fail(BLURRY_E_INVALID, "rank is %d: give 0 to %d", from->rank, BLURRY_TENSOR_RANK_MAX);
    int dtype = 0;
    while (dtype < SAFETENSORS_DTYPE_COUNT &&
           strcmp(from->dtype, safetensors_dtype_name((safetensors_dtype)dtype)))
        dtype++;
    if (dtype == SAFETENSORS_DTYPE_COUNT)
        return status_fail(BLURRY_E_INVALID, "dtype is %s: not a type of safetensors", from->dtype);
    *to = (safetensors_tensor){
        .name = from->name, .dtype = (safetensors_dtype)dtype, .rank = from->rank, .data = from->data};
    memcpy(to->shape, from->shape, sizeof to->shape);
    return BLURRY_OK;
}

blurry_status blurry_tensors_save(const char *path, const blurry_tensor *tensors, size_t count,
                                  const char *const *keys, const char *const *values, size_t metadata_count)
{
    if (!path) return status_fail(BLURRY_E_INVALID, "path is NULL");
    if (count && !tensors) return status_fail(BLURRY_E_INVALID, "tensors is NULL");
    if (metadata_count && (!keys || !values))
        return status_fail(BLURRY_E_INVALID, "%s is NULL", keys ? "values" : "keys");
    safetensors_tensor *list = NULL;
    STATUS_TRY(memory_alloc((void **)&list, count, sizeof *list, "list of tensors"));
    blurry_status status = BLURRY_OK;
    for (size_t i = 0; i < count && status == BLURRY_OK; i++) status = tensor_of(&tensors[i], &list[i]);
    if (status == BLURRY_OK) status = safetensors_save(path, list, count, keys, values, metadata_count);
    memory_free(list);
    return status;
}
