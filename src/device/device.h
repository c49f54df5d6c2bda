/* The device layer: one table of operations under mixers, model and training, with a CPU reference table,
 * fast CPU tables per instruction set, and room for CUDA. Arguments and contracts of the operations are in
 * src/kernels/<op>/<op>.h, their list in ops.def; kernels/kernel.h has the rules they share.
 *
 * A device runs one operation at a time, in call order, and is used by one thread at a time. */
#ifndef BLURRY_DEVICE_H
#define BLURRY_DEVICE_H
#include "base/cpu.h"
#include "blurry/attention.h"
#include "blurry/status.h"
#include "device/blurry.h"
#include "kernels/attention/attention.h"
#include "kernels/conv/conv.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/embed/embed.h"
#include "kernels/gates/gates.h"
#include "kernels/gdn/gdn.h"
#include "kernels/gemm/gemm.h"
#include "kernels/gla/gla.h"
#include "kernels/kernel.h"
#include "kernels/norm/norm.h"
#include "kernels/optim/optim.h"
#include "kernels/rope/rope.h"
#include "kernels/slots/slots.h"
#include "kernels/ssm/ssm.h"
#include "kernels/xent/xent.h"

typedef enum device_kind { DEVICE_CPU = 0, DEVICE_CUDA = 1 } device_kind;

/* One slot per line of ops.def: dev->ops->rmsnorm_forward(&dev->run, &(norm_args){.rows = ...}). */
typedef struct device_ops {
    const char *name; /* "ref", "base", "avx2", "avx512", "cuda" */
#define OP(name, args, contract) void (*name)(const kernel_run *run, const args *a);
#define SIZES(name, args)        void (*name)(const kernel_run *run, const args *a, kernel_sizes *sizes);
#include "device/ops.def"
} device_ops;

typedef struct device {
    device_kind kind;
    blurry_dtype dtype;   /* of activations */
    size_t element;       /* bytes of one activation */
    size_t param_element; /* bytes of one parameter, gradient or moment; on the CPU as `element` */
    int threads, reference;
    kernel_run run; /* first argument of every operation */
    const device_ops *ops;
    blurry_status failure; /* the first failure of an operation since the last device_sync */
    char message[256];
} device;

typedef struct device_options {
    device_kind kind;   /* default DEVICE_CPU */
    blurry_dtype dtype; /* default BLURRY_F32 */
    int threads;        /* 0: BLURRY_THREADS or the cores available */
    int reference;      /* 1: the reference table */
} device_options;

/* BLURRY_ISA lowers the fast table's instruction set. */
blurry_status device_create(device **dev, const device_options *options);
void device_destroy(device **dev);

/* The CPU table for a type: isa < 0 is the reference; NULL where the machine lacks the instruction set. */
const device_ops *device_cpu_table(blurry_dtype dtype, int isa);

/* Memory, aligned to 64 and zeroed. */
blurry_status device_alloc(device *dev, size_t bytes, void **memory);
void device_free(device *dev, void *memory);
/* In order with the operations; host memory may be reused when the call returns. */
blurry_status device_upload(device *dev, void *to, const void *from_host, size_t bytes);
blurry_status device_download(device *dev, void *to_host, const void *from, size_t bytes);
void device_copy(device *dev, void *to, const void *from, size_t bytes);
void device_zero(device *dev, void *memory, size_t bytes);

/* Makes the scratch memory at least this large. Call while planning, never between the operations of a step.
 */
blurry_status device_reserve(device *dev, size_t bytes);

/* Waits for all operations and reports the first failure of any of them. */
blurry_status device_sync(device *dev);

/* Blurry attention. The plan is made for this device: type, reference and, where desc says 0, threads are
 * taken from it. */
blurry_status device_blurry_plan(device *dev, const blurry_attn_desc *desc, blurry_attn_plan **plan);
void device_blurry_sizes(device *dev, const blurry_attn_plan *plan,
                         kernel_sizes *sizes); /* scratch also covers step */
void device_blurry_forward(device *dev, const blurry_args *a);
void device_blurry_backward(device *dev, const blurry_args *a);
void device_blurry_step(device *dev, const blurry_step_args *a);

#endif
