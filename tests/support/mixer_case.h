/* One mixer on one device with its memory, for tests: settings in, tensors as double in and out. */
#ifndef BLURRY_TEST_MIXER_CASE_H
#define BLURRY_TEST_MIXER_CASE_H
#include "mixers/mixer.h"

typedef struct mixer_case {
    device *dev;
    mixer_layer layer;
    mixer_parameter_list list;
    mixer_sizes sizes;
    void *saved, *work, *state;
    int64_t *position;
    int64_t row_count;   /* 0, or the rows at which y is wanted: y, d_y [row_count, d] then */
    const int64_t *rows; /* in host memory */
} mixer_case;

typedef enum case_device {
    CASE_REF_F64,
    CASE_FAST_F64,
    CASE_REF_F32,
    CASE_FAST_F32,
    CASE_DEVICES,                 /* of the CPU */
    CASE_CUDA_F32 = CASE_DEVICES, /* these two in programs built with BLURRY_TEST_CUDA */
    CASE_CUDA_BF16,
    CASE_ALL_DEVICES
} case_device;
extern const char *const case_device_name[CASE_ALL_DEVICES];
/* The devices a program tests: from CASE_FIRST up to CASE_END. */
#ifdef BLURRY_TEST_CUDA
enum { CASE_FIRST = CASE_CUDA_F32, CASE_END = CASE_ALL_DEVICES };
#else
enum { CASE_FIRST = CASE_REF_F64, CASE_END = CASE_DEVICES };
#endif

/* `options` is "mixer=gla heads=2 ..."; the mixer's name comes from it. Fails the test on any error. */
void mixer_case_open(mixer_case *c, case_device kind, const char *options, int64_t batch, int64_t length,
                     int64_t capacity);
void mixer_case_close(mixer_case *c);

void mixer_case_set(mixer_case *c, int parameter, const double *values); /* index into list */
void mixer_case_values(mixer_case *c, int parameter, double *values);
void mixer_case_gradient(mixer_case *c, int parameter, double *values);
void mixer_case_zero_gradients(mixer_case *c);
int64_t mixer_case_elements(const mixer_case *c, int parameter);
/* Parameters of a size that makes every term matter, from `seed`. */
void mixer_case_draw(mixer_case *c, uint64_t seed);

/* x, y [batch, length, d]. */
void mixer_case_forward(mixer_case *c, int64_t batch, int64_t length, const double *x, double *y);
/* d_x [batch, length, d]; adds to the parameters' gradients. */
void mixer_case_backward(mixer_case *c, int64_t batch, int64_t length, const double *x, const double *d_y,
                         double *d_x);
/* Starts empty states; then each call continues. x [batch, length, d] for the whole layer's batch. */
void mixer_case_start(mixer_case *c);
void mixer_case_continue(mixer_case *c, int64_t length, const double *x, double *y);

/* Largest |a - b| divided by the largest |b|. */
double relative_error(const double *a, const double *b, int64_t count);
/* Root mean square of a - b divided by that of b, the latter at least `least`. */
double relative_distance(const double *a, const double *b, int64_t count, double least);
/* Settings from words "key=value ..."; to be freed with blurry_settings_destroy. */
blurry_settings *settings_from(const char *options);
double *draw_normal(int64_t count, uint64_t seed); /* malloc'ed standard normal numbers */

#endif
