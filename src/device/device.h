/* The device layer: one table of operations under mixers, model and training, with a CPU reference table,
 * fast CPU tables per instruction set, and CUDA tables. Arguments and contracts of the operations are in
 * src/kernels/<op>/<op>.h, their list in ops.def; kernels/kernel.h has the rules they share.
 *
 * A device runs operations in call order, one at a time but for device_side_open, and is used by one thread
 * at a time. Several devices may be used at once, each by its own thread: a CUDA device has its own stream,
 * scratch and products. */
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
#include "kernels/mqar/mqar.h"
#include "kernels/norm/norm.h"
#include "kernels/optim/optim.h"
#include "kernels/rope/rope.h"
#include "kernels/rows/rows.h"
#include "kernels/slots/slots.h"
#include "kernels/ssm/ssm.h"
#include "kernels/xent/xent.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum device_kind { DEVICE_CPU = 0, DEVICE_CUDA = 1 } device_kind;

/* One slot per line of ops.def: dev->ops->rmsnorm_forward(&dev->run, &(norm_args){.rows = ...}). */
typedef struct device_ops {
    const char *name; /* "ref", "base", "avx2", "avx512", "cuda" */
#define OP(name, args, contract) void (*name)(const kernel_run *run, const args *a);
#define SIZES(name, args)        void (*name)(const kernel_run *run, const args *a, kernel_sizes *sizes);
#include "device/ops.def"
} device_ops;

typedef struct device device;
typedef struct device_graph device_graph; /* operations recorded once, to be run again and again */

/* What a kind of device does itself, beside the operations; the functions below call it. */
typedef struct device_backend {
    void (*destroy)(device *dev);
    blurry_status (*alloc)(device *dev, size_t bytes, const char *what, void **memory);
    void (*release)(device *dev, void *memory);
    blurry_status (*upload)(device *dev, void *to, const void *from_host, size_t bytes);
    blurry_status (*download)(device *dev, void *to_host, const void *from, size_t bytes);
    void (*copy)(device *dev, void *to, const void *from, size_t bytes);
    void (*zero)(device *dev, void *memory, size_t bytes);
    blurry_status (*wait)(device *dev); /* for all operations; failures go to dev->failure or are returned */
    blurry_status (*capture_begin)(device *dev); /* NULL: no graphs */
    blurry_status (*capture_end)(device *dev, device_graph **graph);
    blurry_status (*graph_run)(device *dev, device_graph *graph);
    void (*graph_destroy)(device_graph **graph);
    void (*mqar)(device *dev, const mqar_args *a); /* NULL: samples are made on the host */
    const struct device_side *side;                /* NULL: there is one queue */
} device_backend;

/* A second queue, of backends that have one: see device_side_open. */
typedef struct device_side {
    blurry_status (*reserve)(device *dev, size_t handed);
    void (*open)(device *dev);
    void (*mark)(device *dev, int slot);
    void (*wait)(device *dev, int slot);
    void (*close)(device *dev);
} device_side;

struct device {
    device_kind kind;
    blurry_dtype dtype;   /* of activations */
    size_t element;       /* bytes of one activation */
    size_t param_element; /* bytes of one parameter, gradient or moment; on the CPU as `element` */
    size_t stat_element;  /* bytes of one statistic or element of a carried state; on the CPU as `element` */
    int threads, reference;
    kernel_run run; /* first argument of every operation */
    const device_ops *ops;
    const device_backend *backend;
    int one_queue;         /* whether device_side_reserve does nothing */
    void *own;             /* the backend's */
    blurry_status failure; /* the first failure of an operation since the last device_sync */
    char message[256];
};

typedef struct device_options {
    device_kind kind;   /* default DEVICE_CPU */
    blurry_dtype dtype; /* default BLURRY_F32. CPU: F32, F64; CUDA: F32, BF16 */
    int threads;        /* 0: BLURRY_THREADS or the cores available */
    int reference;      /* 1: the reference table; CPU */
    int tf32;           /* 1: CUDA may round the factors of float products to tf32 */
    int one_queue;      /* 1: no side queue */
    int early_starts;   /* 1: CUDA kernels are brought onto the chip while the one before them ends */
} device_options;

/* BLURRY_ISA lowers the fast table's instruction set. */
blurry_status device_create(device **dev, const device_options *options);
void device_destroy(device **dev);

/* The CPU table for a type: isa < 0 is the reference; NULL where the machine lacks the instruction set. */
const device_ops *device_cpu_table(blurry_dtype dtype, int isa);
/* Completes a device of kind DEVICE_CUDA: table, backend, stream and products. Says what is missing and what
 * to do about it; nothing is left behind then, and a CPU device can still be made. */
blurry_status device_cuda_open(device *dev, const device_options *options);

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
/* Keeps a failure for device_sync, unless an earlier one is kept already. */
void device_fail(device *dev, blurry_status status, const char *message);

/* ---- graphs: operations recorded instead of run ----
 * Between begin and end, operations, device_copy and device_zero are recorded; uploads, downloads and
 * allocations are not allowed. The memory they name must live as long as the graph. Run every operation once
 * before recording it. */
int device_records(const device *dev); /* whether this device can */
blurry_status device_capture_begin(device *dev);
blurry_status device_capture_end(device *dev, device_graph **graph);
blurry_status device_graph_run(device *dev,
                               device_graph *graph); /* in order with operations; does not wait */
void device_graph_destroy(device *dev, device_graph **graph);

/* ---- work beside ----
 * Between open and close an accelerator runs two queues. Operations still run in call order, but what they
 * add to parameters' gradients they may leave to the side queue (kernels/cuda_side.h): that is complete after
 * close, and until then their inputs must not be overwritten. To use such memory again earlier, mark the end
 * of the work that reads it and wait for the mark before the first operation that writes:
 *     device_side_open(dev);
 *     ... operations that read A ...  device_side_mark(dev, 0);
 *     ... others ...                  device_side_wait(dev, 0);  ... operations that write A ...
 *     device_side_close(dev);
 * All of it may be recorded. On the CPU, and where nothing was reserved, all of this does nothing and work is
 * done in call order. */
enum { DEVICE_SIDE_MARKS = 2 };
/* Makes the side queue, with memory for this many bytes that operations hand over to it between open and
 * close; what does not fit stays in the main queue. Call while planning. */
blurry_status device_side_reserve(device *dev, size_t handed);
void device_side_open(device *dev);
void device_side_mark(device *dev, int slot);
void device_side_wait(device *dev, int slot); /* nothing where the slot has no mark since open */
void device_side_close(device *dev);
/* For an operation that nothing queued before the next wait or close reads: starts after what is queued so
 * far, beside what follows. The main run where the side is not open. */
const kernel_run *device_side_run(device *dev);

/* Training batches of mqar made on the device; NULL in the backend where it cannot. */
int device_makes_mqar(const device *dev);
void device_mqar(device *dev, const mqar_args *a);

/* Blurry attention. The plan is made for this device: type, reference and, where desc says 0, threads are
 * taken from it. */
blurry_status device_blurry_plan(device *dev, const blurry_attn_desc *desc, blurry_attn_plan **plan);
void device_blurry_sizes(device *dev, const blurry_attn_plan *plan,
                         kernel_sizes *sizes); /* scratch also covers step */
int device_blurry_rows(const device *dev);     /* whether it can leave outputs out: blurry_args.rows */
void device_blurry_forward(device *dev, const blurry_args *a);
void device_blurry_backward(device *dev, const blurry_args *a);
void device_blurry_step(device *dev, const blurry_step_args *a);
void device_blurry_states_init(device *dev, const blurry_attn_plan *plan, void *states, int64_t count);

#ifdef __cplusplus
}
#endif
#endif
