/* Copying tensors out of a file as float or double, with the checks every loader needs. Files are
 * little-endian; so are the machines this library supports. */
#include "base/safetensors.h"

#include <stdio.h>
#include <string.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "safetensors data is little-endian: this machine needs byte swaps here"
#endif

static float from_bf16(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}

static float from_f16(uint16_t bits)
{
    uint32_t sign = (uint32_t)(bits & 0x8000) << 16, exponent = bits >> 10 & 31, fraction = bits & 1023, wide;
    float value;
    if (exponent == 0) { /* zero and subnormal: fraction * 2^-24 exactly */
        value = (float)fraction * 0x1p-24f;
        return sign ? -value : value;
    }
    wide = sign | (exponent == 31 ? 255u : exponent + 112u) << 23 | fraction << 13;
    memcpy(&value, &wide, sizeof value);
    return value;
}

/* Element i of a floating-point tensor, exactly. */
static double element(const safetensors_tensor *t, int64_t i)
{
    const uint8_t *at = (const uint8_t *)t->data + (size_t)i * safetensors_dtype_size(t->dtype);
    double wide;
    float single;
    uint16_t half;
    switch (t->dtype) {
    case SAFETENSORS_F64:
        memcpy(&wide, at, sizeof wide);
        return wide;
    case SAFETENSORS_F32:
        memcpy(&single, at, sizeof single);
        return (double)single;
    case SAFETENSORS_F16:
        memcpy(&half, at, sizeof half);
        return (double)from_f16(half);
    default:
        memcpy(&half, at, sizeof half);
        return (double)from_bf16(half);
    }
}

static void shape_text(const int64_t *shape, int rank, char *text, size_t capacity)
{
    size_t used = (size_t)snprintf(text, capacity, "[");
    for (int i = 0; i < rank && used < capacity; i++)
        used += (size_t)snprintf(text + used, capacity - used, "%s%lld", i ? ", " : "", (long long)shape[i]);
    if (used < capacity) snprintf(text + used, capacity - used, "]");
}

/* The tensor, once it is known to be there, of a floating type and of the wanted shape. */
static blurry_status find_checked(const safetensors *file, const char *name, const int64_t *shape, int rank,
                                  int64_t count, const safetensors_tensor **found)
{
    const char *path = safetensors_path(file);
    const safetensors_tensor *t = safetensors_find(file, name);
    if (!t) return status_fail(BLURRY_E_FORMAT, "%s: there is no tensor '%s'", path, name);
    if (t->dtype != SAFETENSORS_F64 && t->dtype != SAFETENSORS_F32 && t->dtype != SAFETENSORS_F16 &&
        t->dtype != SAFETENSORS_BF16)
        return status_fail(BLURRY_E_FORMAT, "%s: tensor '%s' has type %s: F64, F32, F16 or BF16 is needed",
                           path, name, safetensors_dtype_name(t->dtype));
    bool same =
        rank < 0 || (rank == t->rank && (!rank || !memcmp(shape, t->shape, (size_t)rank * sizeof *shape)));
    if (!same || t->count != count) {
        char have[200], want[200];
        shape_text(t->shape, t->rank, have, sizeof have);
        if (rank < 0)
            snprintf(want, sizeof want, "%lld elements", (long long)count);
        else
            shape_text(shape, rank, want, sizeof want);
        return status_fail(BLURRY_E_FORMAT, "%s: tensor '%s' has shape %s: %s is needed", path, name, have,
                           want);
    }
    *found = t;
    return BLURRY_OK;
}

blurry_status safetensors_read_f32(const safetensors *file, const char *name, const int64_t *shape, int rank,
                                   int64_t count, float *out)
{
    const safetensors_tensor *t;
    STATUS_TRY(find_checked(file, name, shape, rank, count, &t));
    if (t->dtype == SAFETENSORS_F32 && count)
        memcpy(out, t->data, t->bytes);
    else
        for (int64_t i = 0; i < count; i++) out[i] = (float)element(t, i);
    return BLURRY_OK;
}

blurry_status safetensors_read_f64(const safetensors *file, const char *name, const int64_t *shape, int rank,
                                   int64_t count, double *out)
{
    const safetensors_tensor *t;
    STATUS_TRY(find_checked(file, name, shape, rank, count, &t));
    for (int64_t i = 0; i < count; i++) out[i] = element(t, i);
    return BLURRY_OK;
}
