/* The CUDA tables, generated from ops.def: one for float activations, one for bf16. */
#include "device/cuda.h"

#define OP(name, args, contract)                                                                             \
    void name##_cuda_f32(const kernel_run *run, const args *a);                                              \
    void name##_cuda_bf16(const kernel_run *run, const args *a);
#define SIZES(name, args)                                                                                    \
    void name##_cuda_f32(const kernel_run *run, const args *a, kernel_sizes *sizes);                         \
    void name##_cuda_bf16(const kernel_run *run, const args *a, kernel_sizes *sizes);
#include "device/ops.def"

static const device_ops table_f32 = {
    .name = "cuda",
#define OP(op, args, contract) .op = op##_cuda_f32,
#define SIZES(op, args)        .op = op##_cuda_f32,
#include "device/ops.def"
};
static const device_ops table_bf16 = {
    .name = "cuda",
#define OP(op, args, contract) .op = op##_cuda_bf16,
#define SIZES(op, args)        .op = op##_cuda_bf16,
#include "device/ops.def"
};

const device_ops *device_cuda_table(blurry_dtype dtype)
{
    return dtype == BLURRY_BF16 ? &table_bf16 : &table_f32;
}
