/* Cases of cuda_ops: tensors, how an operation is called on them, and what it must move. Each family has a
 * file that adds its cases. */
#ifndef BLURRY_BENCH_CUDA_OPS_CASES_H
#define BLURRY_BENCH_CUDA_OPS_CASES_H
#include "kernels/cuda.h"
#include "kernels/kernel.h"

#include <vector>

enum type { BF16, F32, F64 }; /* tables: two on the GPU, the reference */

/* call_NAME: an operation of the three tables. */
#define DECLARE(name, args)                                                                                  \
    extern "C" void name##_cuda_bf16(const kernel_run *, const args *);                                      \
    extern "C" void name##_cuda_f32(const kernel_run *, const args *);                                       \
    extern "C" void name##_ref_f64(const kernel_run *, const args *);                                        \
    static void call_##name(type t, const kernel_run *run, const args &a)                                    \
    {                                                                                                        \
        (t == BF16 ? name##_cuda_bf16 : t == F32 ? name##_cuda_f32 : name##_ref_f64)(run, &a);               \
    }

enum kind { ACTIVATION, COPIED /* a weight read as activation */, FLOATS, INT32, INT64, DOUBLE };
struct tensor {
    kind is;
    int64_t count;
    double low, high; /* of random inputs */
    int written;      /* 1: an output; 2: added to */
    std::vector<double> values;
};

/* One operation at one shape: call runs it on x, the tensors in order. */
struct bench_case {
    const char *name;
    void (*call)(type t, const kernel_run *run, void **x, int64_t checked);
    std::vector<tensor> tensors;
    double bytes[2]; /* that must move, for bf16 and float */
    double flop;
    int64_t checked; /* labels the check uses where the reference is too slow for all; 0: all */
};

typedef std::vector<bench_case> case_list;

enum : int64_t { B = 32, L = 512, D = 128, ROWS = B * L, V = 8192, LABELS = 2048 };

/* ---- tensors: inputs, outputs, parameters, sums, statistics, integers ---- */
inline tensor act(int64_t n, double low = 0, double high = 0)
{
    return {ACTIVATION, n, low, high, 0, {}};
}
inline tensor act_out(int64_t n)
{
    return {ACTIVATION, n, 0, 0, 1, {}};
}
inline tensor par(int64_t n, double low = 0, double high = 0)
{
    return {FLOATS, n, low, high, 0, {}};
}
inline tensor par_sum(int64_t n)
{
    return {FLOATS, n, 0, 0, 2, {}};
}
inline tensor stat_out(int64_t n)
{
    return {FLOATS, n, 0, 0, 1, {}};
}
inline tensor ints(kind is, int64_t n, double (*value)(int64_t))
{
    tensor x = {is, n, 0, 0, 0, {}};
    for (int64_t i = 0; i < n; i++) x.values.push_back(value(i));
    return x;
}

/* ---- bytes that must move ---- */
struct traffic {
    double bf16, f32;
};
inline traffic moves(double activations, double floats)
{
    return {activations * 2 + floats * 4, activations * 4 + floats * 4};
}

inline void add_case(case_list &to, const char *name,
                     void (*call)(type, const kernel_run *, void **, int64_t), std::vector<tensor> tensors,
                     traffic bytes, double flop = 0, int64_t checked = 0)
{
    to.push_back({name, call, tensors, {bytes.bf16, bytes.f32}, flop, checked});
}

/* ---- the families ---- */
void elementwise_cases(case_list &to);
void norm_cases(case_list &to);
void sequence_cases(case_list &to);
void embedding_cases(case_list &to);
void gate_cases(case_list &to);
void head_cases(case_list &to);
size_t head_scratch(const kernel_run *run); /* the most any operation here takes */

#endif
