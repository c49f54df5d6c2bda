/* Reading safetensors: the header is parsed and every rule checked before a handle exists, so that all that
 * follows may trust names, shapes and offsets. */
#include "base/safetensors.h"

#include "base/memory.h"
#include "base/sizes.h"
#include "base/utf8.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { HEADER_BYTES_MAX = 100000000, LENGTH_BYTES = 8 };
static const char metadata_name[] = "__metadata__";

struct safetensors {
    const uint8_t *bytes; /* the whole file */
    size_t length;
    void *mapping; /* what to unmap, NULL when the memory is the caller's */
    char *path;
    json_t *header;              /* names and metadata texts live here */
    safetensors_tensor *tensors; /* [count], in the order of their data */
    size_t *by_name;             /* [count] indices into tensors, names ascending */
    size_t count;
    const char **keys, **values; /* [metadata_count] */
    size_t metadata_count;
};

static const char *const dtype_names[] = {
#define DTYPE_NAME(name, bytes) #name,
    SAFETENSORS_DTYPES(DTYPE_NAME)};
static const size_t dtype_sizes[] = {
#define DTYPE_SIZE(name, bytes) bytes,
    SAFETENSORS_DTYPES(DTYPE_SIZE)};

const char *safetensors_dtype_name(safetensors_dtype dtype)
{
    return (unsigned)dtype < SAFETENSORS_DTYPE_COUNT ? dtype_names[dtype] : "unknown";
}

size_t safetensors_dtype_size(safetensors_dtype dtype)
{
    return (unsigned)dtype < SAFETENSORS_DTYPE_COUNT ? dtype_sizes[dtype] : 0;
}

/* ---- rules of one tensor ---- */

/* A name as it may be shown: hostile ones stay out of messages. */
static const char *shown(const char *name)
{
    return utf8_printable(name, strlen(name)) ? name : "(name not printable)";
}

#define REFUSE(file, name, ...) refuse_tensor(file, name, status_fail(BLURRY_E_FORMAT, __VA_ARGS__))
static blurry_status refuse_tensor(const safetensors *file, const char *name, blurry_status status)
{
    return status_context(status, "%s: tensor '%.100s'", file->path, shown(name));
}

static blurry_status take_dtype(const safetensors *file, const json_t *entry, safetensors_tensor *t)
{
    const char *text = json_string_value(json_object_get(entry, "dtype"));
    if (!text) return REFUSE(file, t->name, "dtype is missing or not a string");
    for (int i = 0; i < SAFETENSORS_DTYPE_COUNT; i++)
        if (!strcmp(text, dtype_names[i])) {
            t->dtype = (safetensors_dtype)i;
            return BLURRY_OK;
        }
    return REFUSE(file, t->name, "dtype is '%.20s': not a known type", shown(text));
}

static blurry_status take_shape(const safetensors *file, const json_t *entry, safetensors_tensor *t)
{
    const json_t *shape = json_object_get(entry, "shape"), *item;
    if (!json_is_array(shape)) return REFUSE(file, t->name, "shape is missing or not a list");
    if (json_array_size(shape) > SAFETENSORS_RANK_MAX)
        return REFUSE(file, t->name, "shape has %zu dimensions: %d at most", json_array_size(shape),
                      SAFETENSORS_RANK_MAX);
    t->rank = (int)json_array_size(shape);
    for (int i = 0; i < t->rank; i++) {
        item = json_array_get(shape, (size_t)i);
        if (!json_is_integer(item)) return REFUSE(file, t->name, "shape[%d] is not a whole number", i);
        t->shape[i] = json_integer_value(item);
        if (t->shape[i] < 0)
            return REFUSE(file, t->name, "shape[%d] is %lld: negative", i, (long long)t->shape[i]);
    }
    t->bytes = memory_count(t->shape, t->rank, &t->count)
                   ? size_of(t->count, safetensors_dtype_size(t->dtype))
                   : SIZE_MAX;
    if (t->bytes == SIZE_MAX) return REFUSE(file, t->name, "shape has more elements than fit");
    return BLURRY_OK;
}

/* Leaves t->data pointing at the begin of the tensor in `data` [data_bytes]. */
static blurry_status take_offsets(const safetensors *file, const json_t *entry, const uint8_t *data,
                                  size_t data_bytes, safetensors_tensor *t)
{
    const json_t *offsets = json_object_get(entry, "data_offsets");
    const json_t *first = json_array_get(offsets, 0), *second = json_array_get(offsets, 1);
    if (json_array_size(offsets) != 2 || !json_is_integer(first) || !json_is_integer(second))
        return REFUSE(file, t->name, "data_offsets are missing or not two whole numbers");
    json_int_t begin = json_integer_value(first), end = json_integer_value(second);
    if (begin < 0 || end < begin || (size_t)end > data_bytes)
        return REFUSE(file, t->name,
                      "data_offsets are %lld and %lld: not ascending within the %zu bytes of data",
                      (long long)begin, (long long)end, data_bytes);
    if ((size_t)(end - begin) != t->bytes)
        return REFUSE(file, t->name, "data_offsets span %lld bytes, but the shape needs %zu",
                      (long long)(end - begin), t->bytes);
    t->data = data + begin;
    return BLURRY_OK;
}

static blurry_status take_tensor(const safetensors *file, const json_t *entry, const uint8_t *data,
                                 size_t data_bytes, safetensors_tensor *t)
{
    if (!json_is_object(entry)) return REFUSE(file, t->name, "its entry is not an object");
    STATUS_TRY(take_dtype(file, entry, t));
    STATUS_TRY(take_shape(file, entry, t));
    STATUS_TRY(take_offsets(file, entry, data, data_bytes, t));
    if (json_object_size(entry) != 3)
        return REFUSE(file, t->name, "its entry has more than dtype, shape and data_offsets");
    return BLURRY_OK;
}

/* ---- rules of the whole ---- */

static blurry_status take_metadata(safetensors *file)
{
    json_t *metadata = json_object_get(file->header, metadata_name), *value;
    if (!metadata) return BLURRY_OK;
    if (!json_is_object(metadata))
        return status_fail(BLURRY_E_FORMAT, "%s: %s is not an object", file->path, metadata_name);
    size_t count = json_object_size(metadata);
    file->keys = calloc(count + 1, sizeof *file->keys);
    file->values = calloc(count + 1, sizeof *file->values);
    if (!file->keys || !file->values) return status_fail(BLURRY_E_MEMORY, "%s: out of memory", file->path);
    const char *key;
    json_object_foreach(metadata, key, value)
    {
        if (!json_is_string(value))
            return status_fail(BLURRY_E_FORMAT, "%s: metadata '%.100s' is not a string", file->path,
                               shown(key));
        file->keys[file->metadata_count] = key;
        file->values[file->metadata_count++] = json_string_value(value);
    }
    return BLURRY_OK;
}

static int by_data(const void *a, const void *b)
{
    const safetensors_tensor *x = a, *y = b;
    const uint8_t *p = x->data, *q = y->data;
    if (p != q) return p < q ? -1 : 1;
    if (x->bytes != y->bytes)
        return x->bytes < y->bytes ? -1 : 1; /* empty tensors first: they share their place */
    return strcmp(x->name, y->name);
}

static int by_name(const void *a, const void *b, void *tensors)
{
    const safetensors_tensor *t = tensors;
    return strcmp(t[*(const size_t *)a].name, t[*(const size_t *)b].name);
}

/* The sorted tensors must tile the data from its first byte to its last. */
static blurry_status check_tiling(const safetensors *file, const uint8_t *data, size_t data_bytes)
{
    size_t expected = 0;
    for (size_t i = 0; i < file->count; i++) {
        const safetensors_tensor *t = &file->tensors[i];
        size_t begin = (size_t)((const uint8_t *)t->data - data);
        if (begin != expected)
            return REFUSE(file, t->name, "begins at byte %zu of the data, where %zu was expected: %s", begin,
                          expected, begin < expected ? "tensors overlap" : "there is a hole");
        expected += t->bytes;
    }
    if (expected != data_bytes)
        return status_fail(BLURRY_E_FORMAT, "%s: %zu bytes are left over after the last tensor", file->path,
                           data_bytes - expected);
    return BLURRY_OK;
}

static blurry_status take_tensors(safetensors *file, const uint8_t *data, size_t data_bytes)
{
    size_t most = json_object_size(file->header);
    file->tensors = calloc(most + 1, sizeof *file->tensors);
    file->by_name = calloc(most + 1, sizeof *file->by_name);
    if (!file->tensors || !file->by_name)
        return status_fail(BLURRY_E_MEMORY, "%s: out of memory", file->path);
    const char *name;
    json_t *entry;
    json_object_foreach(file->header, name, entry)
    {
        if (!strcmp(name, metadata_name)) continue;
        safetensors_tensor *t = &file->tensors[file->count];
        t->name = name;
        STATUS_TRY(take_tensor(file, entry, data, data_bytes, t));
        file->by_name[file->count] = file->count;
        file->count++;
    }
    qsort(file->tensors, file->count, sizeof *file->tensors, by_data);
    qsort_r(file->by_name, file->count, sizeof *file->by_name, by_name, file->tensors);
    return check_tiling(file, data, data_bytes);
}

static blurry_status take_header(safetensors *file)
{
    if (file->length < LENGTH_BYTES)
        return status_fail(BLURRY_E_FORMAT, "%s: %zu bytes are too few for a safetensors file", file->path,
                           file->length);
    uint64_t n = 0;
    for (int i = LENGTH_BYTES - 1; i >= 0; i--) n = n << 8 | file->bytes[i];
    if (n > HEADER_BYTES_MAX)
        return status_fail(BLURRY_E_FORMAT,
                           "%s: not a safetensors file: a header of %llu bytes is more than the %d allowed",
                           file->path, (unsigned long long)n, HEADER_BYTES_MAX);
    if (n > file->length - LENGTH_BYTES)
        return status_fail(BLURRY_E_FORMAT, "%s: cut short: the header should have %llu bytes, %zu are there",
                           file->path, (unsigned long long)n, file->length - LENGTH_BYTES);
    const char *text = (const char *)file->bytes + LENGTH_BYTES;
    if (n == 0 || text[0] != '{')
        return status_fail(BLURRY_E_FORMAT, "%s: not a safetensors file: the header does not begin with '{'",
                           file->path);
    /* The parser overlooks a zero byte right after a number. */
    if (memchr(text, 0, (size_t)n))
        return status_fail(BLURRY_E_FORMAT, "%s: the header is not valid JSON: it holds a zero byte",
                           file->path);
    json_error_t error;
    file->header = json_loadb(text, (size_t)n, JSON_REJECT_DUPLICATES, &error);
    if (!file->header && !*error.text) /* the parser has nothing to say when memory runs out */
        return status_fail(BLURRY_E_MEMORY, "%s: out of memory", file->path);
    if (!file->header)
        return status_fail(BLURRY_E_FORMAT, "%s: the header is not valid JSON (byte %d): %s", file->path,
                           error.position, shown(error.text));
    STATUS_TRY(take_metadata(file));
    return take_tensors(file, file->bytes + LENGTH_BYTES + n, file->length - LENGTH_BYTES - (size_t)n);
}

/* ---- handles ---- */

void safetensors_close(safetensors **file)
{
    safetensors *f = file ? *file : NULL;
    if (!f) return;
    if (f->mapping) munmap(f->mapping, f->length);
    json_decref(f->header);
    free(f->tensors);
    free(f->by_name);
    free(f->keys);
    free(f->values);
    free(f->path);
    free(f);
    *file = NULL;
}

static blurry_status open_bytes(safetensors **out, const void *bytes, size_t length, void *mapping,
                                const char *path)
{
    safetensors *file = calloc(1, sizeof *file);
    char *path_copy = strdup(path);
    if (!file || !path_copy) {
        free(file);
        free(path_copy);
        if (mapping) munmap(mapping, length);
        return status_fail(BLURRY_E_MEMORY, "%s: out of memory", path);
    }
    *file = (safetensors){.bytes = bytes, .length = length, .mapping = mapping, .path = path_copy};
    blurry_status status = take_header(file);
    if (status != BLURRY_OK) safetensors_close(&file);
    *out = file;
    return status;
}

blurry_status safetensors_parse(safetensors **file, const void *data, size_t length, const char *name)
{
    *file = NULL;
    return open_bytes(file, data, length, NULL, name);
}

blurry_status safetensors_open(safetensors **file, const char *path)
{
    *file = NULL;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* O_NONBLOCK: a pipe must not hang us */
    struct stat info;
    if (fd < 0 || fstat(fd, &info) != 0) {
        int error = errno;
        if (fd >= 0) close(fd);
        return status_fail(BLURRY_E_IO, "%s: cannot read: %s", path, strerror(error));
    }
    if (!S_ISREG(info.st_mode) || info.st_size < LENGTH_BYTES) {
        close(fd);
        if (!S_ISREG(info.st_mode))
            return status_fail(BLURRY_E_IO, "%s: cannot read: not a regular file", path);
        return status_fail(BLURRY_E_FORMAT, "%s: %lld bytes are too few for a safetensors file", path,
                           (long long)info.st_size);
    }
    size_t length = (size_t)info.st_size;
    void *mapping = mmap(NULL, length, PROT_READ, MAP_PRIVATE, fd, 0);
    int error = errno;
    close(fd);
    if (mapping == MAP_FAILED) return status_fail(BLURRY_E_IO, "%s: cannot map: %s", path, strerror(error));
    return open_bytes(file, mapping, length, mapping, path);
}

size_t safetensors_count(const safetensors *file)
{
    return file->count;
}

const safetensors_tensor *safetensors_at(const safetensors *file, size_t index)
{
    return index < file->count ? &file->tensors[index] : NULL;
}

const safetensors_tensor *safetensors_find(const safetensors *file, const char *name)
{
    size_t low = 0, high = file->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const safetensors_tensor *t = &file->tensors[file->by_name[middle]];
        int order = strcmp(name, t->name);
        if (order == 0) return t;
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return NULL;
}

size_t safetensors_metadata_count(const safetensors *file)
{
    return file->metadata_count;
}

const char *safetensors_metadata_key(const safetensors *file, size_t index)
{
    return index < file->metadata_count ? file->keys[index] : NULL;
}

const char *safetensors_metadata_value(const safetensors *file, size_t index)
{
    return index < file->metadata_count ? file->values[index] : NULL;
}

const char *safetensors_metadata(const safetensors *file, const char *key)
{
    return json_string_value(json_object_get(json_object_get(file->header, metadata_name), key));
}

const char *safetensors_path(const safetensors *file)
{
    return file->path;
}
