/* Parameters, gradients and activations as double in host memory, whatever their type and device. */
#ifndef BLURRY_MIXERS_VALUES_H
#define BLURRY_MIXERS_VALUES_H
#include "device/device.h"

/* values [count] from, or to, elements of the device's parameter type. In pieces of fixed size: nothing is
 * allocated. */
blurry_status values_read(device *dev, const void *from, int64_t count, double *values);
blurry_status values_write(device *dev, void *to, int64_t count, const double *values);
/* The same for elements of the device's activation type. */
blurry_status values_read_activations(device *dev, const void *from, int64_t count, double *values);
blurry_status values_write_activations(device *dev, void *to, int64_t count, const double *values);

#endif
