/* Zero-order hold of one mode, in double: a = e^{A step}, b = (a - 1) / A with A = -1/2 + i pi n, and the
 * derivatives of both with respect to log_step. */
#ifndef BLURRY_KERNELS_SSM_COEFFICIENTS_H
#define BLURRY_KERNELS_SSM_COEFFICIENTS_H
#include <math.h>
#include <stdint.h>

typedef struct ssm_mode {
    double a_re, a_im, b_re, b_im;
    double da_re, da_im, db_re, db_im; /* d a / d log_step = A step a, d b / d log_step = step a */
} ssm_mode;

static inline ssm_mode ssm_mode_of(double log_step, int64_t n)
{
    double step = exp(log_step), re = -0.5, im = M_PI * (double)n, size = re * re + im * im;
    double fade = exp(re * step), c = cos(im * step), s = sin(im * step);
    ssm_mode m;
    m.a_re = fade * c;
    m.a_im = fade * s;
    /* a - 1 = expm1(re step) cos - 2 sin^2(im step / 2) + i e^{re step} sin, without cancellation. */
    double half = sin(im * step / 2), x = expm1(re * step) * c - 2 * half * half, y = m.a_im;
    m.b_re = (x * re + y * im) / size;
    m.b_im = (y * re - x * im) / size;
    m.da_re = step * (re * m.a_re - im * m.a_im);
    m.da_im = step * (re * m.a_im + im * m.a_re);
    m.db_re = step * m.a_re;
    m.db_im = step * m.a_im;
    return m;
}

#endif
