/* The variants of blurry attention. */
#include "kernels/blurry/blurry.h"

extern const bla_kernel bla_kernel_ref_f32, bla_kernel_ref_f64;
extern const bla_kernel bla_kernel_base_f32, bla_kernel_base_f64;
#if defined(__x86_64__)
extern const bla_kernel bla_kernel_avx2_f32, bla_kernel_avx2_f64;
extern const bla_kernel bla_kernel_avx512_f32, bla_kernel_avx512_f64;
#endif

const bla_kernel *bla_kernel_reference(blurry_dtype dtype)
{
    return dtype == BLURRY_F32 ? &bla_kernel_ref_f32 : &bla_kernel_ref_f64;
}

const bla_kernel *bla_kernel_fast(blurry_dtype dtype, cpu_isa isa)
{
#if defined(__x86_64__)
    if (isa == CPU_ISA_AVX512) return dtype == BLURRY_F32 ? &bla_kernel_avx512_f32 : &bla_kernel_avx512_f64;
    if (isa == CPU_ISA_AVX2) return dtype == BLURRY_F32 ? &bla_kernel_avx2_f32 : &bla_kernel_avx2_f64;
#endif
    (void)isa;
    return dtype == BLURRY_F32 ? &bla_kernel_base_f32 : &bla_kernel_base_f64;
}
