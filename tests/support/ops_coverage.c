/* Counts which slots of which tables the cases have called. */
#include "support/ops_run.h"

#include "support/test.h"

enum { CUDA_TABLE = 2 + 2 * CPU_ISA_COUNT, TABLES = CUDA_TABLE + 2 };
typedef struct hits {
#define OP(op, args, contract) int op;
#define SIZES(op, args)        int op;
#include "device/ops.def"
} hits;
static hits counted[TABLES];
static int tried[TABLES];

/* every call is noted, and passed on to the table in use */
static const device_ops *counted_table;
static int counted_index;

#define OP(op, args, contract)                                                                               \
    static void counted_##op(const kernel_run *run, const args *a)                                           \
    {                                                                                                        \
        counted[counted_index].op++;                                                                         \
        counted_table->op(run, a);                                                                           \
    }
#define SIZES(op, args)                                                                                      \
    static void counted_##op(const kernel_run *run, const args *a, kernel_sizes *sizes)                      \
    {                                                                                                        \
        counted[counted_index].op++;                                                                         \
        counted_table->op(run, a, sizes);                                                                    \
    }
#include "device/ops.def"

static const device_ops counting = {
    .name = "counting",
#define OP(op, args, contract) .op = counted_##op,
#define SIZES(op, args)        .op = counted_##op,
#include "device/ops.def"
};

void op_coverage_check(void)
{
    for (int i = 0; i < TABLES; i++) {
        if (!tried[i]) continue;
#define OP(op, args, contract)                                                                               \
    if (!counted[i].op) fail_msg("no case calls slot %s of table %d", #op, i);
#define SIZES(op, args)                                                                                      \
    if (!counted[i].op) fail_msg("no case calls slot %s of table %d", #op, i);
#include "device/ops.def"
    }
}

void op_count_calls(device *dev, const device_ops *table, int isa)
{
    counted_table = table;
    counted_index = isa == OP_CUDA ? CUDA_TABLE + (dev->dtype == BLURRY_BF16)
                                   : (isa + 1) * 2 + (dev->dtype == BLURRY_F64);
    tried[counted_index] = 1;
    dev->ops = &counting;
}
