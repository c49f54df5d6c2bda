/* The CPU tables, generated from ops.def: the reference and one per instruction set, for each element type.
 */
#include "device/device.h"

/* ---- declarations of every variant ---- */
#define DECLARE_OP(name, suffix, args) void name##_##suffix(const kernel_run *run, const args *a);
#define DECLARE_SIZES(name, suffix, args)                                                                    \
    void name##_##suffix(const kernel_run *run, const args *a, kernel_sizes *sizes);

#define OP(name, args, contract) DECLARE_OP(name, ref_f32, args) DECLARE_OP(name, ref_f64, args)
#define SIZES(name, args)        DECLARE_SIZES(name, ref_f32, args) DECLARE_SIZES(name, ref_f64, args)
#include "device/ops.def"

#define DECLARE_ISAS(name, args, declare)                                                                    \
    declare(name, base_f32, args) declare(name, base_f64, args) declare(name, avx2_f32, args)                \
        declare(name, avx2_f64, args) declare(name, avx512_f32, args) declare(name, avx512_f64, args)
#define SIMD_OP(name, args, contract) DECLARE_ISAS(name, args, DECLARE_OP)
#define SIMD_SIZES(name, args)        DECLARE_ISAS(name, args, DECLARE_SIZES)
#include "device/ops.def"

/* ---- tables ---- */
static const device_ops table_ref_f32 = {
    .name = "ref",
#define OP(op, args, contract) .op = op##_ref_f32,
#define SIZES(op, args)        .op = op##_ref_f32,
#include "device/ops.def"
};
static const device_ops table_ref_f64 = {
    .name = "ref",
#define OP(op, args, contract) .op = op##_ref_f64,
#define SIZES(op, args)        .op = op##_ref_f64,
#include "device/ops.def"
};
static const device_ops table_base_f32 = {
    .name = "base",
#define OP(op, args, contract)      .op = op##_ref_f32,
#define SIZES(op, args)             .op = op##_ref_f32,
#define SIMD_OP(op, args, contract) .op = op##_base_f32,
#define SIMD_SIZES(op, args)        .op = op##_base_f32,
#include "device/ops.def"
};
static const device_ops table_base_f64 = {
    .name = "base",
#define OP(op, args, contract)      .op = op##_ref_f64,
#define SIZES(op, args)             .op = op##_ref_f64,
#define SIMD_OP(op, args, contract) .op = op##_base_f64,
#define SIMD_SIZES(op, args)        .op = op##_base_f64,
#include "device/ops.def"
};
#if defined(__x86_64__)
static const device_ops table_avx2_f32 = {
    .name = "avx2",
#define OP(op, args, contract)      .op = op##_ref_f32,
#define SIZES(op, args)             .op = op##_ref_f32,
#define SIMD_OP(op, args, contract) .op = op##_avx2_f32,
#define SIMD_SIZES(op, args)        .op = op##_avx2_f32,
#include "device/ops.def"
};
static const device_ops table_avx2_f64 = {
    .name = "avx2",
#define OP(op, args, contract)      .op = op##_ref_f64,
#define SIZES(op, args)             .op = op##_ref_f64,
#define SIMD_OP(op, args, contract) .op = op##_avx2_f64,
#define SIMD_SIZES(op, args)        .op = op##_avx2_f64,
#include "device/ops.def"
};
static const device_ops table_avx512_f32 = {
    .name = "avx512",
#define OP(op, args, contract)      .op = op##_ref_f32,
#define SIZES(op, args)             .op = op##_ref_f32,
#define SIMD_OP(op, args, contract) .op = op##_avx512_f32,
#define SIMD_SIZES(op, args)        .op = op##_avx512_f32,
#include "device/ops.def"
};
static const device_ops table_avx512_f64 = {
    .name = "avx512",
#define OP(op, args, contract)      .op = op##_ref_f64,
#define SIZES(op, args)             .op = op##_ref_f64,
#define SIMD_OP(op, args, contract) .op = op##_avx512_f64,
#define SIMD_SIZES(op, args)        .op = op##_avx512_f64,
#include "device/ops.def"
};
#endif

const device_ops *device_cpu_table(blurry_dtype dtype, int isa)
{
    static const device_ops *const tables[CPU_ISA_COUNT][2] = {
        [CPU_ISA_BASE] = {&table_base_f32, &table_base_f64},
#if defined(__x86_64__)
        [CPU_ISA_AVX2] = {&table_avx2_f32, &table_avx2_f64},
        [CPU_ISA_AVX512] = {&table_avx512_f32, &table_avx512_f64},
#endif
    };
    int wide = dtype == BLURRY_F64;
    if (isa < 0) return wide ? &table_ref_f64 : &table_ref_f32;
    return isa < CPU_ISA_COUNT && cpu_isa_supported((cpu_isa)isa) ? tables[isa][wide] : NULL;
}
