/* Normalisations on a CUDA device. All four are one formula,
 *     y = (x - mean) rstd weight SiLU(gate) + bias,   rstd = 1 / sqrt(share sum((x - mean)^2) + eps),
 * with parts left out: rmsnorm has no mean, headnorm has a gate, l2norm has share = 1 and neither weight nor
 * gate. A row lies on a group of up to 32 lanes and is read again, out of the first-level cache, for each
 * pass over it. Gradients of weight and bias are summed by each block over its rows and then over blocks. */
#include "kernels/cuda_vector.h"
#include "kernels/norm/norm.h"

enum { THREADS = 256, WIDEST = 1024 /* for sums in registers */ };

template <typename T> struct norm_rows {
    int64_t rows, width;
    int lanes; /* per row */
    int centred;
    float share, eps;
    const T *x, *gate;
    const float *weight, *bias;
    T *y;
    float *mean, *rstd;
    const T *d_y, *d_residual;
    T *d_x, *d_gate;
    float *part; /* [blocks, 1 or 2, width]: sums for d_weight, d_bias */
    int with_bias;
};

static __device__ inline float silu_of(float x)
{
    return x * sigmoid_of(x);
}

/* sum of (x - mean)^2, or of x where `squares` is 0, over this lane's columns [from, width). */
template <typename T, int N>
static __device__ inline float lane_sum(const T *x, int64_t from, int64_t step, int64_t width, float mean,
                                        int squares)
{
    float v[N], sum = 0;
    for (int64_t c = from; c < width; c += step) {
        load_many<N>(x + c, v);
        for (int i = 0; i < N; i++) sum += squares ? (v[i] - mean) * (v[i] - mean) : v[i];
    }
    return sum;
}

template <typename T, int N> __global__ void __launch_bounds__(THREADS) norm_forward_kernel(norm_rows<T> a)
{
    int lane = (int)threadIdx.x & (a.lanes - 1);
    int64_t row = ((int64_t)blockIdx.x * THREADS + threadIdx.x) / a.lanes, width = a.width;
    bool live = row < a.rows;
    const T *x = a.x + row * width;
    int64_t from = live ? (int64_t)lane * N : width, step = (int64_t)a.lanes * N;
    float mean = 0;
    if (a.centred) mean = lanes_sum(lane_sum<T, N>(x, from, step, width, 0, 0), a.lanes) * a.share;
    float squares = lanes_sum(lane_sum<T, N>(x, from, step, width, mean, 1), a.lanes);
    float rstd = 1 / sqrtf(squares * a.share + a.eps);
    float v[N], w[N], extra[N];
    for (int64_t c = from; c < width; c += step) {
        load_many<N>(x + c, v);
        for (int i = 0; i < N; i++) v[i] = (v[i] - mean) * rstd;
        if (a.weight) {
            load_many<N>(a.weight + c, w);
            for (int i = 0; i < N; i++) v[i] *= w[i];
        }
        if (a.gate) {
            load_many<N>(a.gate + row * width + c, extra);
            for (int i = 0; i < N; i++) v[i] *= silu_of(extra[i]);
        }
        if (a.bias) {
            load_many<N>(a.bias + c, extra);
            for (int i = 0; i < N; i++) v[i] += extra[i];
        }
        store_many<N>(a.y + row * width + c, v);
    }
    if (!live || lane) return;
    if (a.mean) a.mean[row] = mean;
    if (a.rstd) a.rstd[row] = rstd;
}

/* One step of backward at columns c .. c+N: what all passes need. */
template <int N> struct norm_step {
    float xhat[N], w[N], d[N], gate[N]; /* normalised x, weight, d_y SiLU(gate), d_y SiLU'(gate) */
};

template <typename T, int N>
static __device__ inline void norm_step_load(const norm_rows<T> &a, int64_t row, int64_t c, float mean,
                                             float rstd, norm_step<N> &s)
{
    load_many<N>(a.x + row * a.width + c, s.xhat);
    load_many<N>(a.d_y + row * a.width + c, s.d);
    for (int i = 0; i < N; i++) s.xhat[i] = (s.xhat[i] - mean) * rstd, s.w[i] = 1;
    if (a.weight) load_many<N>(a.weight + c, s.w);
    if (!a.gate) return;
    load_many<N>(a.gate + row * a.width + c, s.gate);
    for (int i = 0; i < N; i++) {
        float g = s.gate[i], sigmoid = sigmoid_of(g), d = s.d[i];
        s.d[i] = d * g * sigmoid;
        s.gate[i] = d * sigmoid * (1 + g * (1 - sigmoid));
    }
}

/* Gradients of one row; d_x = rstd (w d - xhat mean(xhat w d) [- mean(w d)]). Adds to the sums of this lane's
 * columns where K > 0. */
template <typename T, int N, int K>
static __device__ inline void norm_backward_row(const norm_rows<T> &a, int64_t row, bool live, int lane,
                                                float (&d_weight)[K ? K : 1][N],
                                                float (&d_bias)[K ? K : 1][N])
{
    int64_t width = a.width, from = live ? (int64_t)lane * N : width, step = (int64_t)a.lanes * N;
    float mean = live && a.centred ? a.mean[row] : 0, rstd = 1;
    if (a.rstd)
        rstd = live ? a.rstd[row] : 1;
    else
        rstd = 1 / sqrtf(lanes_sum(lane_sum<T, N>(a.x + row * width, from, step, width, 0, 1), a.lanes) *
                             a.share +
                         a.eps);
    norm_step<N> s;
    float along = 0, level = 0;
    for (int64_t c = from; c < width; c += step) {
        norm_step_load<T, N>(a, row, c, mean, rstd, s);
        for (int i = 0; i < N; i++) along += s.xhat[i] * s.w[i] * s.d[i], level += s.w[i] * s.d[i];
    }
    along = lanes_sum(along, a.lanes) * a.share;
    level = a.centred ? lanes_sum(level, a.lanes) * a.share : 0;
    for (int k = 0; k < (K ? K : 1); k++) {
        int64_t c = from + k * step;
        for (; c < width; c += K ? width : step) { /* once where K > 0 */
            norm_step_load<T, N>(a, row, c, mean, rstd, s);
            float d_x[N], more[N];
            for (int i = 0; i < N; i++) {
                d_x[i] = rstd * (s.w[i] * s.d[i] - s.xhat[i] * along - level);
                if (K) d_weight[k][i] += s.xhat[i] * s.d[i], d_bias[k][i] += s.d[i];
            }
            if (a.d_residual) {
                load_many<N>(a.d_residual + row * width + c, more);
                for (int i = 0; i < N; i++) d_x[i] += more[i];
            }
            store_many<N>(a.d_x + row * width + c, d_x);
            if (a.gate) {
                for (int i = 0; i < N; i++) more[i] = s.gate[i] * s.xhat[i] * s.w[i];
                store_many<N>(a.d_gate + row * width + c, more);
            }
        }
    }
}

/* Block b takes rows [b, b+1) * rows / blocks. K: accesses of a lane to its row, for which it keeps sums; 0:
 * any number, no sums. */
template <typename T, int N, int K>
__global__ void __launch_bounds__(THREADS) norm_backward_kernel(norm_rows<T> a)
{
    CUDA_DYNAMIC_SHARED(float, room); /* [groups, width] */
    int lane = (int)threadIdx.x & (a.lanes - 1), group = (int)threadIdx.x / a.lanes,
        groups = THREADS / a.lanes;
    int64_t first = a.rows * blockIdx.x / gridDim.x, last = a.rows * (blockIdx.x + 1) / gridDim.x;
    float d_weight[K ? K : 1][N] = {}, d_bias[K ? K : 1][N] = {};
    for (int64_t base = first; base < last; base += groups)
        norm_backward_row<T, N, K>(a, base + group, base + group < last, lane, d_weight, d_bias);
    if (!K) return;
    float *part = a.part + (int64_t)blockIdx.x * a.width * (1 + a.with_bias);
    for (int bias = 0; bias <= a.with_bias; bias++, part += a.width) {
        for (int k = 0; k < K; k++) {
            int64_t c = ((int64_t)k * a.lanes + lane) * N;
            if (c < a.width) store_many<N>(room + group * a.width + c, bias ? d_bias[k] : d_weight[k]);
        }
        __syncthreads();
        for (int64_t c = threadIdx.x; c < a.width; c += THREADS) {
            float sum = 0;
            for (int g = 0; g < groups; g++) sum += room[g * a.width + c];
            part[c] = sum;
        }
        __syncthreads();
    }
}

/* Sums for d_weight and d_bias of rows too wide for norm_backward_kernel: a thread per column, block (x, y)
 * takes a share of the rows. */
template <typename T> __global__ void __launch_bounds__(THREADS) norm_columns_kernel(norm_rows<T> a)
{
    int64_t c = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (c >= a.width) return;
    int64_t first = a.rows * blockIdx.y / gridDim.y, last = a.rows * (blockIdx.y + 1) / gridDim.y;
    float weight = 0, bias = 0;
    for (int64_t row = first; row < last; row++) {
        norm_step<1> s;
        norm_step_load<T, 1>(a, row, c, a.centred ? a.mean[row] : 0, a.rstd[row], s);
        weight += s.xhat[0] * s.d[0], bias += s.d[0];
    }
    float *part = a.part + (int64_t)blockIdx.y * a.width * (1 + a.with_bias);
    part[c] = weight;
    if (a.with_bias) part[a.width + c] = bias;
}

template <typename T> static bool norm_aligned(const norm_rows<T> &a)
{
    return a.width % vector_of<T>::N == 0 && all_aligned(a.x, a.gate, a.weight, a.bias, a.y) &&
           all_aligned(a.d_y, a.d_residual, a.d_x, a.d_gate);
}

template <typename T, int N> static void norm_forward_as(const kernel_run *run, norm_rows<T> a)
{
    a.lanes = lanes_for(kernel_blocks(a.width, N));
    cuda_launch(norm_forward_kernel<T, N>, dim3((unsigned)kernel_blocks(a.rows * a.lanes, THREADS)),
                dim3(THREADS), 0, (cudaStream_t)run->stream, a);
}

template <typename T> static void norm_forward(const kernel_run *run, const norm_rows<T> &a)
{
    if (a.rows <= 0 || a.width <= 0) return;
    if (norm_aligned(a))
        norm_forward_as<T, vector_of<T>::N>(run, a);
    else
        norm_forward_as<T, 1>(run, a);
}

template <typename T, int N, int K>
static void norm_backward_as(const kernel_run *run, norm_rows<T> a, int64_t most_blocks)
{
    a.lanes = lanes_for(kernel_blocks(a.width, N));
    int64_t groups = THREADS / a.lanes, blocks = kernel_min(kernel_blocks(a.rows, groups), most_blocks);
    size_t shared = K ? (size_t)(groups * a.width) * sizeof(float) : 0;
    cuda_launch(norm_backward_kernel<T, N, K>, dim3((unsigned)blocks), dim3(THREADS), shared,
                (cudaStream_t)run->stream, a);
}

/* With sums: at most WIDEST columns, 16-byte accesses. */
template <typename T>
static void norm_backward_sums(const kernel_run *run, const norm_rows<T> &a, int64_t blocks)
{
    enum { N = vector_of<T>::N };
    int64_t steps = kernel_blocks(a.width, 32 * N);
    if (steps <= 1)
        norm_backward_as<T, N, 1>(run, a, blocks);
    else if (steps <= 2)
        norm_backward_as<T, N, 2>(run, a, blocks);
    else if (steps <= 4)
        norm_backward_as<T, N, 4>(run, a, blocks);
    else
        norm_backward_as<T, N, WIDEST / 32 / N>(run, a, blocks);
}

/* Overwrites d_x and d_gate, adds to d_weight and d_bias (NULL: not wanted). */
template <typename T>
static void norm_backward(const kernel_run *run, norm_rows<T> a, float *d_weight, float *d_bias)
{
    enum { MANY = 1 << 20 };
    if (a.rows <= 0 || a.width <= 0) return;
    cudaStream_t stream = (cudaStream_t)run->stream;
    bool aligned = norm_aligned(a);
    a.with_bias = d_bias != NULL;
    a.part = (float *)run->scratch;
    int64_t columns = a.width * (1 + a.with_bias), parts = 0;
    if (d_weight && aligned && a.width <= WIDEST) {
        int64_t groups = THREADS / lanes_for(kernel_blocks(a.width, vector_of<T>::N));
        parts = parts_for(kernel_blocks(a.rows, groups), columns);
        norm_backward_sums(run, a, parts);
    } else {
        if (d_weight) { /* first: d_x may be where d_y is */
            parts = parts_for(kernel_blocks(a.rows, 16), columns);
            cuda_launch(norm_columns_kernel<T>,
                        dim3((unsigned)kernel_blocks(a.width, THREADS), (unsigned)parts), dim3(THREADS), 0,
                        stream, a);
        }
        if (aligned)
            norm_backward_as<T, vector_of<T>::N, 0>(run, a, MANY);
        else
            norm_backward_as<T, 1, 0>(run, a, MANY);
    }
    if (d_weight) column_sums<float>(stream, a.part, parts, columns, a.width, d_weight, d_bias);
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
