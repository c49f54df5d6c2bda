/* What the kernels of all normalisations share, and those for rows wider than a warp holds in registers: a
 * warp per row that goes over it several times. */
#ifndef BLURRY_KERNELS_NORM_CUDA_WIDE_CUH
#define BLURRY_KERNELS_NORM_CUDA_WIDE_CUH
#include "kernels/cuda_vector.h"

enum { THREADS = 256 };

template <typename T> struct norm_rows {
    int64_t rows, width;
    int lanes, shift; /* per row: 2^shift */
    int centred;
    float share, eps;
    const T *x, *gate;
    const float *weight, *bias;
    T *y;
    float *mean, *rstd;
    const T *d_y, *d_residual;
    const int64_t *residual_place;
    T *d_x, *d_gate;
    float *part; /* [blocks, 1 or 2, width]: sums for d_weight, d_bias */
    int with_bias;
    int64_t per_block; /* rows of a block of norm_backward_kernel */
};

/* The row of d_residual that belongs to a row; -1: none. */
template <typename T> static __device__ inline int64_t residual_row(const norm_rows<T> &a, int64_t row)
{
    return !a.d_residual ? -1 : a.residual_place ? a.residual_place[row] : row;
}

static __device__ inline float silu_of(float x)
{
    return x * sigmoid_of(x);
}

/* The normalised x, d = d_y SiLU(gate) and, where there is a gate, d_y SiLU'(gate), at some columns. */
template <int N>
static __device__ inline void norm_slopes(bool gated, float mean, float rstd, float (&x)[N], float (&d)[N],
                                          float (&gate)[N])
{
    for (int i = 0; i < N; i++) {
        x[i] = (x[i] - mean) * rstd;
        if (!gated) continue;
        float g = gate[i], sigmoid = sigmoid_of(g), d_y = d[i];
        d[i] = d_y * g * sigmoid;
        gate[i] = d_y * sigmoid * (1 + g * (1 - sigmoid));
    }
}

template <typename T>
static __device__ inline float wide_sum(const T *x, int64_t width, float mean, int squares)
{
    float sum = 0;
    for (int64_t c = threadIdx.x % 32; c < width; c += 32) {
        float v = cuda_load(x + c) - mean;
        sum += squares ? v * v : v;
    }
    return warp_sum(sum);
}

template <typename T> __global__ void __launch_bounds__(THREADS) norm_forward_wide_kernel(norm_rows<T> a)
{
    cuda_wait_previous();
    int64_t row = ((int64_t)blockIdx.x * THREADS + threadIdx.x) / 32, width = a.width, at0 = row * width;
    if (row >= a.rows) return;
    float mean = a.centred ? wide_sum(a.x + at0, width, 0, 0) * a.share : 0;
    float rstd = 1 / sqrtf(wide_sum(a.x + at0, width, mean, 1) * a.share + a.eps);
    for (int64_t c = threadIdx.x % 32; c < width; c += 32) {
        float y = (cuda_load(a.x + at0 + c) - mean) * rstd * (a.weight ? a.weight[c] : 1);
        if (a.gate) y *= silu_of(cuda_load(a.gate + at0 + c));
        cuda_store(a.y + at0 + c, a.bias ? y + a.bias[c] : y);
    }
    if (threadIdx.x % 32) return;
    if (a.mean) a.mean[row] = mean;
    if (a.rstd) a.rstd[row] = rstd;
}

/* Column c of a row for backward: x to xhat, d_y to d, gate as norm_slopes leaves it. */
template <typename T>
static __device__ inline void wide_slopes(const norm_rows<T> &a, int64_t at, float mean, float rstd,
                                          float (&x)[1], float (&d)[1], float (&gate)[1])
{
    x[0] = cuda_load(a.x + at), d[0] = cuda_load(a.d_y + at), gate[0] = a.gate ? cuda_load(a.gate + at) : 0;
    norm_slopes<1>(a.gate != NULL, mean, rstd, x, d, gate);
}

template <typename T> __global__ void __launch_bounds__(THREADS) norm_backward_wide_kernel(norm_rows<T> a)
{
    int64_t row = ((int64_t)blockIdx.x * THREADS + threadIdx.x) / 32, width = a.width, at0 = row * width;
    if (row >= a.rows) return;
    int64_t beside = residual_row(a, row) * width;
    float mean = a.centred ? a.mean[row] : 0, rstd, along = 0, level = 0, x[1], d[1], gate[1];
    rstd = a.rstd ? a.rstd[row] : 1 / sqrtf(wide_sum(a.x + at0, width, 0, 1) * a.share + a.eps);
    for (int64_t c = threadIdx.x % 32; c < width; c += 32) {
        wide_slopes(a, at0 + c, mean, rstd, x, d, gate);
        float w = a.weight ? a.weight[c] : 1;
        along += x[0] * w * d[0], level += w * d[0];
    }
    along = warp_sum(along) * a.share, level = a.centred ? warp_sum(level) * a.share : 0;
    for (int64_t c = threadIdx.x % 32; c < width; c += 32) {
        wide_slopes(a, at0 + c, mean, rstd, x, d, gate);
        float w = a.weight ? a.weight[c] : 1, d_x = rstd * (w * d[0] - x[0] * along - level);
        if (beside >= 0) d_x += cuda_load(a.d_residual + beside + c);
        cuda_store(a.d_x + at0 + c, d_x);
        if (a.gate) cuda_store(a.d_gate + at0 + c, gate[0] * x[0] * w);
    }
}

/* Their sums for d_weight and d_bias: a thread per column, block (x, y) takes a share of the rows. */
template <typename T> __global__ void __launch_bounds__(THREADS) norm_columns_kernel(norm_rows<T> a)
{
    int64_t c = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (c >= a.width) return;
    int64_t first = a.rows * blockIdx.y / gridDim.y, last = a.rows * (blockIdx.y + 1) / gridDim.y;
    float weight = 0, bias = 0, x[1], d[1], gate[1];
    for (int64_t row = first; row < last; row++) {
        wide_slopes(a, row * a.width + c, a.centred ? a.mean[row] : 0, a.rstd[row], x, d, gate);
        weight += x[0] * d[0], bias += d[0];
    }
    float *part = a.part + (int64_t)blockIdx.y * a.width * (1 + a.with_bias);
    part[c] = weight;
    if (a.with_bias) part[a.width + c] = bias;
}

#endif
