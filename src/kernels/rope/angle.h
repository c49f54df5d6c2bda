/* The rotation of channel pair i at a position, in double: shared by every variant so that all agree on the
 * angles. */
#ifndef BLURRY_KERNELS_ROPE_ANGLE_H
#define BLURRY_KERNELS_ROPE_ANGLE_H
#include <math.h>
#include <stdint.h>

static inline double rope_frequency(double base, int64_t i, int64_t dim)
{
    return pow(base, -2.0 * (double)i / (double)dim);
}

#endif
