/* The variants of blurry attention. A slot is never empty: where no fast variant serves, the reference does. */
#include "kernels/blurry/blurry.h"

extern const bla_kernel bla_kernel_ref_f32, bla_kernel_ref_f64;

const bla_kernel *bla_kernel_reference(blurry_dtype dtype)
{
    return dtype == BLURRY_F32 ? &bla_kernel_ref_f32 : &bla_kernel_ref_f64;
}

const bla_kernel *bla_kernel_fast(blurry_dtype dtype, cpu_isa isa)
{
    (void)isa;
    return bla_kernel_reference(dtype);
}
