/* Conversion between a device's parameters and double. */
#include "mixers/values.h"

enum { VALUES_PIECE = 256 };

blurry_status values_read(device *dev, const void *from, int64_t count, double *values)
{
    if (dev->param_element == sizeof(double))
        return device_download(dev, values, from, (size_t)count * sizeof(double));
    float piece[VALUES_PIECE];
    for (int64_t i = 0; i < count; i += VALUES_PIECE) {
        int64_t n = count - i < VALUES_PIECE ? count - i : VALUES_PIECE;
        blurry_status status =
            device_download(dev, piece, (const float *)from + i, (size_t)n * sizeof(float));
        if (status != BLURRY_OK) return status;
        for (int64_t j = 0; j < n; j++) values[i + j] = piece[j];
    }
    return BLURRY_OK;
}

blurry_status values_write(device *dev, void *to, int64_t count, const double *values)
{
    if (dev->param_element == sizeof(double))
        return device_upload(dev, to, values, (size_t)count * sizeof(double));
    float piece[VALUES_PIECE];
    for (int64_t i = 0; i < count; i += VALUES_PIECE) {
        int64_t n = count - i < VALUES_PIECE ? count - i : VALUES_PIECE;
        for (int64_t j = 0; j < n; j++) piece[j] = (float)values[i + j];
        blurry_status status = device_upload(dev, (float *)to + i, piece, (size_t)n * sizeof(float));
        if (status != BLURRY_OK) return status;
    }
    return BLURRY_OK;
}
