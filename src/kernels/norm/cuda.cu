/* Normalisations on a CUDA device. All four are one formula,
 *     y = (x - mean) rstd weight SiLU(gate) + bias,   rstd = 1 / sqrt(share sum((x - mean)^2) + eps),
 * with parts left out: rmsnorm has no mean, headnorm has a gate, l2norm has share = 1 and neither weight nor
 * gate. A row lies in the registers of a group of up to 32 lanes. Gradients of weight and bias are summed by
 * each block over its rows and then over blocks. */
#include "kernels/cuda_side.h"
#include "kernels/norm/cuda_wide.cuh"
#include "kernels/norm/norm.h"

enum { WIDEST = 1024 }; /* for a row in registers */

/* A lane's columns of one row: K accesses of N elements, `step` apart; beyond the width they are 0. */
template <int N, int K> struct norm_lane {
    int64_t from, step, width;
    __device__ int64_t column(int k) const { return from + k * step; }
    __device__ bool inside(int k) const { return column(k) < width; }
};

template <typename E, int N, int K>
static __device__ inline void lane_load(const norm_lane<N, K> &at, const E *row, float (&x)[K][N])
{
#pragma unroll
    for (int k = 0; k < K; k++)
        if (at.inside(k))
            load_many<N>(row + at.column(k), x[k]);
        else
            for (int i = 0; i < N; i++) x[k][i] = 0;
}

template <typename E, int N, int K>
static __device__ inline void lane_store(const norm_lane<N, K> &at, E *row, const float (&x)[K][N])
{
#pragma unroll
    for (int k = 0; k < K; k++)
        if (at.inside(k)) store_many<N>(row + at.column(k), x[k]);
}

/* sum of (x - mean)^2 over the lane's columns. */
template <int N, int K>
static __device__ inline float lane_squares(const norm_lane<N, K> &at, const float (&x)[K][N], float mean)
{
    float sum = 0;
#pragma unroll
    for (int k = 0; k < K; k++)
        if (at.inside(k))
            for (int i = 0; i < N; i++) sum += (x[k][i] - mean) * (x[k][i] - mean);
    return sum;
}

/* Tells the compiler what a PLAIN norm has not; half the registers then. */
template <bool PLAIN, typename T> static __device__ inline void leave_out(norm_rows<T> &a)
{
    if (PLAIN) a.centred = a.with_bias = 0, a.gate = NULL, a.bias = NULL;
}

/* One row per group of lanes. */
template <typename T, int N, int K, bool PLAIN>
__global__ void __launch_bounds__(THREADS) norm_forward_kernel(norm_rows<T> a)
{
    cuda_wait_previous();
    leave_out<PLAIN>(a);
    int lane = (int)threadIdx.x & (a.lanes - 1);
    int64_t row = ((int64_t)blockIdx.x * THREADS + threadIdx.x) >> a.shift, width = a.width,
            at0 = row * width;
    bool live = row < a.rows;
    norm_lane<N, K> at = {live ? (int64_t)lane * N : width, (int64_t)a.lanes * N, width};
    float x[K][N], w[K][N], extra[K][N], mean = 0;
    lane_load(at, a.x + at0, x);
    if (a.weight) lane_load(at, a.weight, w);
    if (a.gate)
        lane_load(at, a.gate + at0, extra);
    else if (a.bias)
        lane_load(at, a.bias, extra);
    if (a.centred) {
        for (int k = 0; k < K; k++)
            for (int i = 0; i < N; i++) mean += x[k][i];
        mean = lanes_sum(mean, a.lanes) * a.share;
    }
    float rstd = 1 / sqrtf(lanes_sum(lane_squares(at, x, mean), a.lanes) * a.share + a.eps);
#pragma unroll
    for (int k = 0; k < K; k++)
        for (int i = 0; i < N; i++) {
            x[k][i] = (x[k][i] - mean) * rstd * (a.weight ? w[k][i] : 1);
            x[k][i] = a.gate ? x[k][i] * silu_of(extra[k][i]) : a.bias ? x[k][i] + extra[k][i] : x[k][i];
        }
    lane_store(at, a.y + at0, x);
    if (!live || lane) return;
    if (a.mean) a.mean[row] = mean;
    if (a.rstd) a.rstd[row] = rstd;
}

/* Gradients of one row: d_x = rstd (w d - xhat mean(xhat w d) [- mean(w d)]). Adds to the sums of the lane's
 * columns. */
template <typename T, int N, int K>
static __device__ inline void norm_backward_row(const norm_rows<T> &a, int64_t row, bool live, int lane,
                                                float (&d_weight)[K][N], float (&d_bias)[K][N])
{
    int64_t width = a.width, at0 = row * width, beside = live ? residual_row(a, row) : -1;
    norm_lane<N, K> at = {live ? (int64_t)lane * N : width, (int64_t)a.lanes * N, width};
    float x[K][N], d[K][N], w[K][N], gate[K][N], more[K][N];
    lane_load(at, a.x + at0, x);
    lane_load(at, a.d_y + at0, d);
    if (a.gate) lane_load(at, a.gate + at0, gate);
    if (beside >= 0) lane_load(at, a.d_residual + beside * width, more);
    if (a.weight) lane_load(at, a.weight, w);
    float mean = live && a.centred ? a.mean[row] : 0, rstd = live && a.rstd ? a.rstd[row] : 1, along = 0,
          level = 0;
    if (!a.rstd) rstd = 1 / sqrtf(lanes_sum(lane_squares(at, x, 0), a.lanes) * a.share + a.eps);
#pragma unroll
    for (int k = 0; k < K; k++) {
        norm_slopes<N>(a.gate != NULL, mean, rstd, x[k], d[k], gate[k]);
        if (at.inside(k))
            for (int i = 0; i < N; i++) {
                d_weight[k][i] += x[k][i] * d[k][i], d_bias[k][i] += d[k][i];
                w[k][i] = a.weight ? w[k][i] : 1;
                along += x[k][i] * w[k][i] * d[k][i], level += w[k][i] * d[k][i];
            }
    }
    along = lanes_sum(along, a.lanes) * a.share;
    level = a.centred ? lanes_sum(level, a.lanes) * a.share : 0;
#pragma unroll
    for (int k = 0; k < K; k++)
        for (int i = 0; i < N; i++) {
            gate[k][i] = a.gate ? gate[k][i] * x[k][i] * w[k][i] : 0;
            x[k][i] = rstd * (w[k][i] * d[k][i] - x[k][i] * along - level) + (beside >= 0 ? more[k][i] : 0);
        }
    lane_store(at, a.d_x + at0, x);
    if (a.gate) lane_store(at, a.d_gate + at0, gate);
}

/* Where sums are wanted (a.part) a block leaves those over its rows. */
template <typename T, int N, int K, bool PLAIN>
__global__ void __launch_bounds__(THREADS) norm_backward_kernel(norm_rows<T> a)
{
    cuda_wait_previous();
    leave_out<PLAIN>(a);
    CUDA_DYNAMIC_SHARED(float, room); /* [groups, width] */
    int lane = (int)threadIdx.x & (a.lanes - 1), group = (int)threadIdx.x >> a.shift,
        groups = THREADS >> a.shift;
    int64_t first = blockIdx.x * a.per_block, last = kernel_min(a.rows, first + a.per_block);
    float d_weight[K][N] = {}, d_bias[K][N] = {};
    for (int64_t base = first; base < last; base += groups)
        norm_backward_row<T, N, K>(a, base + group, base + group < last, lane, d_weight, d_bias);
    if (!a.part) return;
    float *part = a.part + (int64_t)blockIdx.x * a.width * (1 + a.with_bias);
    norm_lane<N, K> at = {(int64_t)lane * N, (int64_t)a.lanes * N, a.width};
    for (int bias = 0; bias <= a.with_bias; bias++, part += a.width) {
        if (bias)
            lane_store(at, room + group * a.width, d_bias);
        else
            lane_store(at, room + group * a.width, d_weight);
        __syncthreads();
        for (int64_t c = threadIdx.x; c < a.width; c += THREADS) {
            float sum = 0;
            for (int g = 0; g < groups; g++) sum += room[g * a.width + c];
            part[c] = sum;
        }
        __syncthreads();
    }
}

/* ---- launches ---- */

/* Whether rows fit a warp's registers, in 16-byte accesses; sets the lanes of a row. */
template <typename T> static bool norm_fits(norm_rows<T> &a)
{
    a.lanes = lanes_for(a.width / vector_of<T>::N);
    for (a.shift = 0; 1 << a.shift < a.lanes;) a.shift++;
    return a.width % vector_of<T>::N == 0 && a.width <= WIDEST &&
           all_aligned(a.x, a.gate, a.weight, a.bias, a.y) &&
           all_aligned(a.d_y, a.d_residual, a.d_x, a.d_gate);
}

template <typename T> static bool is_plain(const norm_rows<T> &a)
{
    return !a.centred && !a.gate && !a.bias && !a.with_bias;
}

/* The kernel for a row's accesses per lane. */
template <typename T> static void (*forward_kernel(const norm_rows<T> &a))(norm_rows<T>)
{
    enum { N = vector_of<T>::N };
    int64_t steps = kernel_blocks(a.width, 32 * N);
    return steps <= 1 ? is_plain(a) ? norm_forward_kernel<T, N, 1, true> : norm_forward_kernel<T, N, 1, false>
           : steps <= 2 ? norm_forward_kernel<T, N, 2, false>
           : steps <= 4 ? norm_forward_kernel<T, N, 4, false>
                        : norm_forward_kernel<T, N, WIDEST / 32 / N, false>;
}
template <typename T> static void (*backward_kernel(const norm_rows<T> &a))(norm_rows<T>)
{
    enum { N = vector_of<T>::N };
    int64_t steps = kernel_blocks(a.width, 32 * N);
    return steps <= 1
               ? is_plain(a) ? norm_backward_kernel<T, N, 1, true> : norm_backward_kernel<T, N, 1, false>
           : steps <= 2 ? norm_backward_kernel<T, N, 2, false>
           : steps <= 4 ? norm_backward_kernel<T, N, 4, false>
                        : norm_backward_kernel<T, N, WIDEST / 32 / N, false>;
}

template <typename T> static void norm_forward(const kernel_run *run, norm_rows<T> a)
{
    if (a.rows <= 0 || a.width <= 0) return;
    bool fits = norm_fits(a);
    cuda_launch_early(run->early, fits ? forward_kernel(a) : norm_forward_wide_kernel<T>,
                      dim3((unsigned)kernel_blocks(a.rows * (fits ? a.lanes : 32), THREADS)), dim3(THREADS),
                      0, (cudaStream_t)run->stream, a);
}

/* Overwrites d_x and d_gate, adds to d_weight and d_bias (NULL: not wanted). */
template <typename T>
static void norm_backward(const kernel_run *run, norm_rows<T> a, float *d_weight, float *d_bias)
{
    if (a.rows <= 0 || a.width <= 0) return;
    cudaStream_t stream = (cudaStream_t)run->stream;
    bool fits = norm_fits(a);
    a.with_bias = d_bias != NULL;
    int64_t columns = a.width * (1 + a.with_bias), groups = THREADS / a.lanes,
            parts = parts_for(kernel_blocks(a.rows, fits ? groups : 16), columns);
    if (fits) { /* as many rows for every group */
        a.per_block = (d_weight ? kernel_blocks(a.rows, parts * groups) : 1) * groups;
        parts = kernel_blocks(a.rows, a.per_block);
    }
    float *handed = d_weight ? (float *)side_memory(run, (size_t)(parts * columns) * sizeof(float)) : NULL;
    a.part = handed ? handed : d_weight ? (float *)run->scratch : NULL;
    if (fits) {
        cuda_launch_early(run->early, backward_kernel(a), dim3((unsigned)parts), dim3(THREADS),
                          (size_t)(groups * a.width) * sizeof(float), stream, a);
    } else {
        if (d_weight) /* first: d_x may be where d_y is */
            cuda_launch(norm_columns_kernel<T>,
                        dim3((unsigned)kernel_blocks(a.width, THREADS), (unsigned)parts), dim3(THREADS), 0,
                        stream, a);
        cuda_launch(norm_backward_wide_kernel<T>, dim3((unsigned)kernel_blocks(a.rows * 32, THREADS)),
                    dim3(THREADS), 0, stream, a);
    }
    if (!d_weight) return;
    const kernel_run *then = handed ? side_run(run) : run;
    column_sums<float>((cudaStream_t)then->stream, a.part, parts, columns, a.width, d_weight, d_bias);
}

/* ---- entries ---- */
template <typename T> static norm_rows<T> rows_of(const norm_args *a, int centred)
{
    norm_rows<T> r = {};
    r.rows = a->rows, r.width = a->width, r.centred = centred;
    r.share = 1 / (float)a->width, r.eps = (float)a->eps;
    r.x = (const T *)a->x, r.weight = (const float *)a->weight, r.y = (T *)a->y;
    r.rstd = (float *)a->rstd;
    if (centred) r.mean = (float *)a->mean, r.bias = (const float *)a->bias;
    r.d_y = (const T *)a->d_y, r.d_residual = (const T *)a->d_residual, r.d_x = (T *)a->d_x;
    r.residual_place = a->residual_place;
    return r;
}

template <typename T> static norm_rows<T> head_rows_of(const headnorm_args *a)
{
    norm_rows<T> r = {};
    r.rows = a->rows * a->heads, r.width = a->width;
    r.share = 1 / (float)a->width, r.eps = (float)a->eps;
    r.x = (const T *)a->x, r.gate = (const T *)a->gate, r.weight = (const float *)a->weight;
    r.y = (T *)a->y, r.rstd = (float *)a->rstd;
    r.d_y = (const T *)a->d_y, r.d_x = (T *)a->d_x, r.d_gate = (T *)a->d_gate;
    return r;
}

template <typename T> static norm_rows<T> l2_rows_of(const l2norm_args *a)
{
    norm_rows<T> r = {};
    r.rows = a->rows, r.width = a->width, r.share = 1, r.eps = (float)a->eps;
    r.x = (const T *)a->x, r.y = (T *)a->y, r.d_y = (const T *)a->d_y, r.d_x = (T *)a->d_x;
    return r;
}

#define ENTRY(name, suffix, args, body)                                                                      \
    extern "C" void name##_cuda_##suffix(const kernel_run *run, const args *a)                               \
    {                                                                                                        \
        body;                                                                                                \
    }
#define ENTRIES(T, suffix)                                                                                   \
    ENTRY(rmsnorm_forward, suffix, norm_args, norm_forward(run, rows_of<T>(a, 0)))                           \
    ENTRY(rmsnorm_backward, suffix, norm_args,                                                               \
          norm_backward(run, rows_of<T>(a, 0), (float *)a->d_weight, NULL))                                  \
    ENTRY(layernorm_forward, suffix, norm_args, norm_forward(run, rows_of<T>(a, 1)))                         \
    ENTRY(layernorm_backward, suffix, norm_args,                                                             \
          norm_backward(run, rows_of<T>(a, 1), (float *)a->d_weight, (float *)a->d_bias))                    \
    ENTRY(headnorm_forward, suffix, headnorm_args, norm_forward(run, head_rows_of<T>(a)))                    \
    ENTRY(headnorm_backward, suffix, headnorm_args,                                                          \
          norm_backward(run, head_rows_of<T>(a), (float *)a->d_weight, NULL))                                \
    ENTRY(l2norm_forward, suffix, l2norm_args, norm_forward(run, l2_rows_of<T>(a)))                          \
    ENTRY(l2norm_backward, suffix, l2norm_args, norm_backward(run, l2_rows_of<T>(a), NULL, NULL))

ENTRIES(float, f32)
ENTRIES(bf16, bf16)
