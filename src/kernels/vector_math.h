/* Vectors of the variant's element type, in GCC/Clang vector extensions: one source for every instruction
 * set.
 *
 * For sources compiled by cmake/variants.cmake, which sets BLURRY_VECTOR_BYTES. `vreal` holds VL elements;
 * loads and stores need no alignment. Everything is inline and free of branches. */
#ifndef BLURRY_KERNELS_VECTOR_MATH_H
#define BLURRY_KERNELS_VECTOR_MATH_H
#include "kernels/variant.h"
#include <stdint.h>
#include <string.h>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#define VL (BLURRY_VECTOR_BYTES / (int)sizeof(real))

typedef real vreal __attribute__((vector_size(BLURRY_VECTOR_BYTES)));
#if REAL_IS_FLOAT
typedef int32_t vint __attribute__((vector_size(BLURRY_VECTOR_BYTES))); /* lanes of comparison masks */
#else
typedef int64_t vint __attribute__((vector_size(BLURRY_VECTOR_BYTES)));
#endif
/* The same vector at any address, allowed to alias arrays of `real`. */
typedef real vreal_unaligned
    __attribute__((vector_size(BLURRY_VECTOR_BYTES), aligned(sizeof(real)), may_alias));

#define V_INLINE static inline __attribute__((always_inline, unused))

V_INLINE vreal v_load(const real *from)
{
    return *(const vreal_unaligned *)from;
}

V_INLINE void v_store(real *to, vreal x)
{
    *(vreal_unaligned *)to = x;
}

/* The first n elements (0 <= n <= VL), the rest `fill`. Touches no memory beyond them. */
V_INLINE vreal v_load_part(const real *from, int64_t n, real fill)
{
    vreal x;
    for (int i = 0; i < VL; i++) x[i] = i < n ? from[i] : fill;
    return x;
}

V_INLINE void v_store_part(real *to, vreal x, int64_t n)
{
    for (int i = 0; i < n; i++) to[i] = x[i];
}

V_INLINE vreal v_set1(real x)
{
    return x - (vreal){0};
}

V_INLINE vreal v_zero(void)
{
    return (vreal){0};
}

/* Lanes of a where the mask is all ones, of b where it is 0. */
V_INLINE vreal v_select(vint mask, vreal a, vreal b)
{
    return (vreal)(((vint)a & mask) | ((vint)b & ~mask));
}

/* The larger of each pair; b where they do not compare, so v_max(bound, x) keeps a NaN in x. */
V_INLINE vreal v_max(vreal a, vreal b)
{
#if BLURRY_VECTOR_BYTES == 64 && defined(__AVX512F__)
    return REAL_IS_FLOAT ? (vreal)_mm512_max_ps((__m512)a, (__m512)b)
                         : (vreal)_mm512_max_pd((__m512d)a, (__m512d)b);
#elif BLURRY_VECTOR_BYTES == 32 && defined(__AVX2__)
    return REAL_IS_FLOAT ? (vreal)_mm256_max_ps((__m256)a, (__m256)b)
                         : (vreal)_mm256_max_pd((__m256d)a, (__m256d)b);
#else
    return v_select((vint)(a > b), a, b);
#endif
}

V_INLINE vreal v_min(vreal a, vreal b)
{
    return -v_max(-a, -b);
}

/* Sum of the lanes in a fixed tree order. */
V_INLINE real v_sum(vreal x)
{
    real lane[VL];
    memcpy(lane, &x, sizeof lane);
    for (int half = VL / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++) lane[i] += lane[i + half];
    return lane[0];
}

/* out [8] = the sums of eight vectors. */
V_INLINE void v_sum8(const vreal x[8], real *out)
{
#if REAL_IS_FLOAT && BLURRY_VECTOR_BYTES == 32 && defined(__AVX2__)
    __m256 a = _mm256_hadd_ps(_mm256_hadd_ps((__m256)x[0], (__m256)x[1]),
                              _mm256_hadd_ps((__m256)x[2], (__m256)x[3]));
    __m256 b = _mm256_hadd_ps(_mm256_hadd_ps((__m256)x[4], (__m256)x[5]),
                              _mm256_hadd_ps((__m256)x[6], (__m256)x[7]));
    v_store(out,
            (vreal)_mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31)));
#else
    for (int i = 0; i < 8; i++) out[i] = v_sum(x[i]);
#endif
}

V_INLINE real v_hmax(vreal x)
{
    real lane[VL];
    memcpy(lane, &x, sizeof lane);
    for (int half = VL / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++) lane[i] = lane[i] > lane[i + half] ? lane[i] : lane[i + half];
    return lane[0];
}

/* e^x. Relative error below 2 units in the last place for arguments from V_EXP_LOW to V_EXP_HIGH; exactly 0
 * below (also at -infinity), saturated at e^V_EXP_HIGH above; NaN stays NaN. e^0 is exactly 1. x = n ln2 + r
 * with |r| <= ln2/2; n comes out of the low bits of x/ln2 + 1.5*2^(mantissa bits) and is added to the
 * exponent of the polynomial's value. */
#if REAL_IS_FLOAT
#define V_EXP_LOW  (-87.0f)
#define V_EXP_HIGH 88.0f
V_INLINE vreal v_exp(vreal x)
{
    const real magic = 12582912.0f; /* 1.5 * 2^23 */
    vreal y = v_max(v_set1(V_EXP_LOW), v_min(v_set1(V_EXP_HIGH), x));
    vreal shifted = y * 1.44269504088896341f + magic;
    vreal n = shifted - magic;
    vreal r = (y - n * 0.693359375f) - n * -2.12194440e-4f;
    vreal p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    vreal value = (vreal)((vint)p + ((vint)shifted << 23));
    return v_select((vint)(x < V_EXP_LOW), v_zero(), value);
}
#else
#define V_EXP_LOW  (-708.0)
#define V_EXP_HIGH 709.0
V_INLINE vreal v_exp(vreal x)
{
    const real magic = 6755399441055744.0; /* 1.5 * 2^52 */
    vreal y = v_max(v_set1(V_EXP_LOW), v_min(v_set1(V_EXP_HIGH), x));
    vreal shifted = y * 1.4426950408889634074 + magic;
    vreal n = shifted - magic;
    vreal r = (y - n * 6.93145751953125e-1) - n * 1.42860682030941723212e-6;
    /* Taylor to r^13 in two interleaved halves; the remainder is below 5e-18. */
    vreal s = r * r;
    vreal even = s * (1.0 / 479001600.0) + 1.0 / 3628800.0, odd = s * (1.0 / 6227020800.0) + 1.0 / 39916800.0;
    even = even * s + 1.0 / 40320.0, odd = odd * s + 1.0 / 362880.0;
    even = even * s + 1.0 / 720.0, odd = odd * s + 1.0 / 5040.0;
    even = even * s + 1.0 / 24.0, odd = odd * s + 1.0 / 120.0;
    even = even * s + 0.5, odd = odd * s + 1.0 / 6.0;
    vreal p = s * (odd * r + even) + r + 1.0;
    vreal value = (vreal)((vint)p + ((vint)shifted << 52));
    return v_select((vint)(x < V_EXP_LOW), v_zero(), value);
}
#endif

#endif
