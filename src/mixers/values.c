/* Conversion between a device's numbers and double. */
#include "mixers/values.h"

#include "base/status.h"

#include <math.h>
#include <string.h>

enum { VALUES_PIECE = 4096 }; /* a transfer to a GPU costs as much as some thousand values */

/* ---- one element of 2 (bf16), 4 or 8 bytes ---- */
static double get_value(const char *at, size_t element)
{
    double wide;
    float single;
    uint16_t half;
    if (element == sizeof wide) return memcpy(&wide, at, sizeof wide), wide;
    if (element == sizeof single) return memcpy(&single, at, sizeof single), (double)single;
    memcpy(&half, at, sizeof half);
    uint32_t bits = (uint32_t)half << 16;
    memcpy(&single, &bits, sizeof single);
    return single;
}

/* bf16: to the nearest, ties to even. */
static void set_value(char *at, size_t element, double value)
{
    float single = (float)value;
    uint32_t bits;
    if (element == sizeof value) {
        memcpy(at, &value, sizeof value);
        return;
    }
    if (element == sizeof single) {
        memcpy(at, &single, sizeof single);
        return;
    }
    memcpy(&bits, &single, sizeof bits);
    uint16_t half = isnan(single) ? 0x7fff : (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    memcpy(at, &half, sizeof half);
}

/* ---- arrays ---- */
static blurry_status read_elements(device *dev, const void *from, int64_t count, size_t element,
                                   double *values)
{
    char piece[VALUES_PIECE * sizeof(double)];
    if (element == sizeof(double)) return device_download(dev, values, from, (size_t)count * sizeof(double));
    for (int64_t i = 0; i < count; i += VALUES_PIECE) {
        int64_t n = count - i < VALUES_PIECE ? count - i : VALUES_PIECE;
        const char *at = (const char *)from + (size_t)i * element;
        STATUS_TRY(device_download(dev, piece, at, (size_t)n * element));
        for (int64_t j = 0; j < n; j++) values[i + j] = get_value(piece + (size_t)j * element, element);
    }
    return BLURRY_OK;
}

static blurry_status write_elements(device *dev, void *to, int64_t count, size_t element,
                                    const double *values)
{
    char piece[VALUES_PIECE * sizeof(double)];
    if (element == sizeof(double)) return device_upload(dev, to, values, (size_t)count * sizeof(double));
    for (int64_t i = 0; i < count; i += VALUES_PIECE) {
        int64_t n = count - i < VALUES_PIECE ? count - i : VALUES_PIECE;
        for (int64_t j = 0; j < n; j++) set_value(piece + (size_t)j * element, element, values[i + j]);
        STATUS_TRY(device_upload(dev, (char *)to + (size_t)i * element, piece, (size_t)n * element));
    }
    return BLURRY_OK;
}

blurry_status values_read(device *dev, const void *from, int64_t count, double *values)
{
    return read_elements(dev, from, count, dev->param_element, values);
}

blurry_status values_write(device *dev, void *to, int64_t count, const double *values)
{
    return write_elements(dev, to, count, dev->param_element, values);
}

blurry_status values_read_activations(device *dev, const void *from, int64_t count, double *values)
{
    return read_elements(dev, from, count, dev->element, values);
}

blurry_status values_write_activations(device *dev, void *to, int64_t count, const double *values)
{
    return write_elements(dev, to, count, dev->element, values);
}
