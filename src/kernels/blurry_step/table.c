/* The variants of decoding, and what they share that depends on the shape alone. */
#include "kernels/blurry_step/blurry_step.h"

#include <math.h>

extern const bla_step_kernel bla_step_kernel_ref_f32, bla_step_kernel_ref_f64;
extern const bla_step_kernel bla_step_kernel_base_f32, bla_step_kernel_base_f64;
#if defined(__x86_64__)
extern const bla_step_kernel bla_step_kernel_avx2_f32, bla_step_kernel_avx2_f64;
extern const bla_step_kernel bla_step_kernel_avx512_f32, bla_step_kernel_avx512_f64;
#endif
void bla_step_settle_ref_f32(const bla_step_shape *s, const bla_step_sequence *x, void *k, void *v);
void bla_step_settle_ref_f64(const bla_step_shape *s, const bla_step_sequence *x, void *k, void *v);

const bla_step_kernel *bla_step_kernel_reference(blurry_dtype dtype)
{
    return dtype == BLURRY_F32 ? &bla_step_kernel_ref_f32 : &bla_step_kernel_ref_f64;
}

const bla_step_kernel *bla_step_kernel_fast(blurry_dtype dtype, cpu_isa isa)
{
#if defined(__x86_64__)
    if (isa == CPU_ISA_AVX512)
        return dtype == BLURRY_F32 ? &bla_step_kernel_avx512_f32 : &bla_step_kernel_avx512_f64;
    if (isa == CPU_ISA_AVX2)
        return dtype == BLURRY_F32 ? &bla_step_kernel_avx2_f32 : &bla_step_kernel_avx2_f64;
#endif
    (void)isa;
    return dtype == BLURRY_F32 ? &bla_step_kernel_base_f32 : &bla_step_kernel_base_f64;
}

void bla_step_settle(blurry_dtype dtype, const bla_step_shape *shape, const bla_step_sequence *sequence,
                     void *k, void *v)
{
    if (dtype == BLURRY_F32)
        bla_step_settle_ref_f32(shape, sequence, k, v);
    else
        bla_step_settle_ref_f64(shape, sequence, k, v);
}

static int64_t round_up(int64_t n)
{
    return (n + BLA_STEP_ALIGN - 1) / BLA_STEP_ALIGN * BLA_STEP_ALIGN;
}

void bla_step_blocks(bla_step_shape *shape)
{
    shape->padded = round_up(shape->S);
    shape->block = round_up((shape->S + shape->fold - 1) / shape->fold);
    shape->n_blocks = (shape->S + shape->block - 1) / shape->block;
}

/* (-1)^e cos(pi e / S) and (-1)^e sin(pi e / S) for e = -(S-1) .. S-1, the angle reduced so that both are
 * accurate. */
void bla_step_sines(const bla_step_shape *shape, double *sines)
{
    const double pi = 3.14159265358979323846264338327950288;
    int64_t S = shape->S;
    for (int64_t e = -(S - 1); e < S; e++) {
        /* S is odd, so moving the angle by pi changes the sign of both and of (-1)^e alike. */
        int64_t d = e > (S - 1) / 2 ? e - S : e < -(S - 1) / 2 ? e + S : e;
        double sign = d & 1 ? -1.0 : 1.0, angle = pi * (double)d / (double)S;
        sines[e + S - 1] = sign * cos(angle);
        sines[2 * shape->padded + e + S - 1] = sign * sin(angle);
    }
}
