/* Names and types of a kernel variant. A ref.c or simd.c is compiled several times (cmake/variants.cmake);
 * this header gives each compilation its element type `real` and its symbol names: VARIANT(bla_forward) ->
 * bla_forward_avx2_f32. */
#ifndef BLURRY_KERNELS_VARIANT_H
#define BLURRY_KERNELS_VARIANT_H

#if defined(BLURRY_VARIANT_f32)
typedef float real;
#define REAL_IS_FLOAT 1
#elif defined(BLURRY_VARIANT_f64)
typedef double real;
#define REAL_IS_FLOAT 0
#else
#error "variant.h is for sources compiled by blurry_add_variants (cmake/variants.cmake)"
#endif

#define VARIANT_JOIN_(a, b) a##_##b
#define VARIANT_JOIN(a, b)  VARIANT_JOIN_(a, b)
#define VARIANT(name)       VARIANT_JOIN(name, BLURRY_VARIANT_SUFFIX)

#endif
