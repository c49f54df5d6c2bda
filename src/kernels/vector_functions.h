/* Functions on vectors beyond e^x: log, sigmoid, softplus, the normal distribution. Floats by polynomials
 * fitted here (each within a few units in the last place); doubles lane by lane through the C library, as
 * speed matters for floats only. */
#ifndef BLURRY_KERNELS_VECTOR_FUNCTIONS_H
#define BLURRY_KERNELS_VECTOR_FUNCTIONS_H
#include "kernels/vector_math.h"
#include <math.h>

#if REAL_IS_FLOAT
/* Natural logarithm of positive normal numbers: x = m 2^e, m in [sqrt(1/2), sqrt(2)). */
V_INLINE vreal v_log(vreal x)
{
    const vint root_half = (vint){0} + 0x3f3504f3;
    vint bits = (vint)x, e = (bits - root_half) >> 23;
    vreal r = (vreal)(bits - (e << 23)) - 1.0f, s = r * r, n = __builtin_convertvector(e, vreal);
    vreal p = r * -0.0635017958f + 0.106161869f;
    p = p * r - 0.106265624f;
    p = p * r + 0.110224444f;
    p = p * r - 0.124512974f;
    p = p * r + 0.14287393f;
    p = p * r - 0.166680079f;
    p = p * r + 0.199999945f;
    p = p * r - 0.249999901f;
    p = p * r + 0.333333333f;
    vreal low = n * -2.12194440e-4f + (p * r * s - s * 0.5f);
    return n * 0.693359375f + (r + low);
}

/* Probability that a standard normal exceeds z >= 0, relative error below 1e-6: t e^{polynomial(t) - z^2/2}.
 */
V_INLINE vreal v_normal_tail(vreal z)
{
    vreal y = z * 0.70710678118654752f, t = 1.0f / (1.0f + 0.5f * y);
    vreal p = t * 0.148059829f - 0.697874159f;
    p = p * t + 1.19684817f;
    p = p * t - 0.749624859f;
    p = p * t - 0.0361684773f;
    p = p * t - 0.0221389824f;
    p = p * t + 0.0425483927f;
    p = p * t + 0.384982441f;
    p = p * t + 0.998825111f;
    p = p * t - 1.26545742f;
    return 0.5f * t * v_exp(p - y * y);
}
#else
V_INLINE vreal v_log(vreal x)
{
    for (int i = 0; i < VL; i++) x[i] = log(x[i]);
    return x;
}

V_INLINE vreal v_normal_tail(vreal z)
{
    for (int i = 0; i < VL; i++) z[i] = 0.5 * erfc(z[i] * M_SQRT1_2);
    return z;
}
#endif

V_INLINE vreal v_abs(vreal x)
{
    return v_max(x, -x);
}

V_INLINE vreal v_sigmoid(vreal x)
{
    return 1 / (1 + v_exp(-x));
}

/* log(1 + e) for 0 <= e <= 1, accurate also for small e. */
V_INLINE vreal v_log1p(vreal e)
{
    vreal u = 1 + e;
    return v_log(u) + (e - (u - 1)) / u;
}

/* log(1 + e^x). */
V_INLINE vreal v_softplus(vreal x)
{
    return v_max(v_zero(), x) + v_log1p(v_exp(-v_abs(x)));
}

/* Phi(x), the probability that a standard normal is at most x. */
V_INLINE vreal v_normal(vreal x)
{
    vreal tail = v_normal_tail(v_abs(x));
    return v_select((vint)(x > 0), 1 - tail, tail);
}

V_INLINE vreal v_sqrt(vreal x)
{
#if BLURRY_VECTOR_BYTES == 64 && defined(__AVX512F__)
    return REAL_IS_FLOAT ? (vreal)_mm512_sqrt_ps((__m512)x) : (vreal)_mm512_sqrt_pd((__m512d)x);
#elif BLURRY_VECTOR_BYTES == 32 && defined(__AVX2__)
    return REAL_IS_FLOAT ? (vreal)_mm256_sqrt_ps((__m256)x) : (vreal)_mm256_sqrt_pd((__m256d)x);
#else
    for (int i = 0; i < VL; i++) x[i] = (real)sqrt(x[i]);
    return x;
#endif
}

/* For loops over n elements in steps of VL: a whole vector, or at the end what is left. */
V_INLINE vreal v_load_up_to(const real *from, int64_t left)
{
    return left >= VL ? v_load(from) : v_load_part(from, left, 0);
}

V_INLINE void v_store_up_to(real *to, vreal x, int64_t left)
{
    if (left >= VL)
        v_store(to, x);
    else
        v_store_part(to, x, left);
}

#endif
