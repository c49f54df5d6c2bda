/* Short causal depthwise convolution on a CUDA device: a thread walks along RUN tokens of N neighbouring
 * channels with their inputs in registers. TAPS is the kernel's length or more; then the older taps weigh
 * 0. Carried state is float for every activation type. */
#include "kernels/conv/conv.h"
#include "kernels/cuda_vector.h"

enum { THREADS = 256, RUN = 8, LANES_MOST = 32 };
static_assert((int)RUN >= (int)CONV_KERNEL_MAX - 1,
              "only a sequence's first run may reach back to its state");

template <typename T> struct conv_shape {
    int64_t batch, length, channels, kernel, runs; /* runs of tokens per sequence */
    int silu;
    const T *x, *d_y;
    const float *weight, *state_in;
    float *state_out, *part;
    T *y, *d_x;
};

/* x of sequence b at token t, where t < 0 is carried state. */
template <typename T, int N>
static __device__ inline void conv_input(const conv_shape<T> &a, int64_t b, int64_t t, int64_t c,
                                         float (&x)[N])
{
    int64_t place = t + a.kernel - 1;
    if (t >= 0 && t < a.length)
        load_many<N>(a.x + (b * a.length + t) * a.channels + c, x);
    else if (t < 0 && place >= 0 && a.state_in)
        load_many<N>(a.state_in + (b * (a.kernel - 1) + place) * a.channels + c, x);
    else
        for (int i = 0; i < N; i++) x[i] = 0;
}

/* w[j] belongs to the token TAPS-1-j before the newest. */
template <typename T, int N, int TAPS>
static __device__ inline void conv_weights(const conv_shape<T> &a, int64_t c, float (&w)[TAPS][N])
{
    for (int j = 0; j < TAPS; j++)
        for (int i = 0; i < N; i++) {
            int64_t tap = j - (TAPS - a.kernel);
            w[j][i] = tap >= 0 ? a.weight[(c + i) * a.kernel + tap] : 0;
        }
}

/* c at a token whose inputs are x[0 .. TAPS). */
template <int N, int TAPS>
static __device__ inline void conv_sum(const float (*x)[N], const float (&w)[TAPS][N], float (&sum)[N])
{
    for (int i = 0; i < N; i++) sum[i] = 0;
#pragma unroll
    for (int j = 0; j < TAPS; j++)
        for (int i = 0; i < N; i++) sum[i] += w[j][i] * x[j][i];
}

/* The last kernel-1 inputs. Only the thread that reads a sequence's state_in calls it, after it has. */
template <typename T, int N, int TAPS>
static __device__ inline void conv_keep(const conv_shape<T> &a, int64_t b, int64_t c)
{
    float x[TAPS][N];
    for (int j = 0; j < TAPS; j++)
        if (j < a.kernel - 1) conv_input<T, N>(a, b, a.length - a.kernel + 1 + j, c, x[j]);
    for (int j = 0; j < TAPS; j++)
        if (j < a.kernel - 1) store_many<N>(a.state_out + (b * (a.kernel - 1) + j) * a.channels + c, x[j]);
}

/* All inputs of a run are on their way before the first is used. */
template <typename T, int N, int TAPS>
__global__ void __launch_bounds__(THREADS) conv_forward_kernel(conv_shape<T> a)
{
    int64_t groups = a.channels / N, n = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    int64_t c = n % groups * N, place = n / groups, b = place / a.runs, first = (place - b * a.runs) * RUN;
    if (b >= a.batch) return;
    float w[TAPS][N], x[RUN + TAPS - 1][N], y[N];
#pragma unroll
    for (int j = 0; j < RUN + TAPS - 1; j++) conv_input<T, N>(a, b, first - TAPS + 1 + j, c, x[j]);
    conv_weights<T, N, TAPS>(a, c, w);
#pragma unroll
    for (int t = 0; t < RUN; t++) {
        conv_sum<N, TAPS>(x + t, w, y);
        if (a.silu)
            for (int i = 0; i < N; i++) y[i] *= sigmoid_of(y[i]);
        if (first + t < a.length) store_many<N>(a.y + (b * a.length + first + t) * a.channels + c, y);
    }
    if (a.state_out && first == 0) conv_keep<T, N, TAPS>(a, b, c);
}

/* Gradients of one run: with d the gradients of c, d_x_t = sum_j w[TAPS-1-j] d_{t+j} and d_w[j] += d_t
 * x_{t-TAPS+1+j}. */
template <typename T, int N, int TAPS>
static __device__ inline void conv_backward_run(const conv_shape<T> &a, int64_t b, int64_t first, int64_t c,
                                                const float (&w)[TAPS][N], float (&d_w)[TAPS][N])
{
    float x[RUN + 2 * (TAPS - 1)][N], d[RUN + TAPS - 1][N];
#pragma unroll
    for (int j = 0; j < RUN + 2 * (TAPS - 1); j++) conv_input<T, N>(a, b, first - TAPS + 1 + j, c, x[j]);
#pragma unroll
    for (int t = 0; t < RUN + TAPS - 1; t++)
        if (first + t < a.length)
            load_many<N>(a.d_y + (b * a.length + first + t) * a.channels + c, d[t]);
        else
            for (int i = 0; i < N; i++) d[t][i] = 0;
#pragma unroll
    for (int t = 0; t < RUN + TAPS - 1; t++) {
        float sum[N];
        conv_sum<N, TAPS>(x + t, w, sum);
        for (int i = 0; i < N; i++) {
            float s = sigmoid_of(sum[i]);
            if (a.silu) d[t][i] *= s * (1 + sum[i] * (1 - s));
        }
        if (t < RUN)
#pragma unroll
            for (int j = 0; j < TAPS; j++)
                for (int i = 0; i < N; i++) d_w[j][i] += d[t][i] * x[t + j][i];
    }
#pragma unroll
    for (int t = 0; t < RUN; t++) {
        float d_x[N];
        for (int i = 0; i < N; i++) d_x[i] = 0;
#pragma unroll
        for (int j = 0; j < TAPS; j++)
            for (int i = 0; i < N; i++) d_x[i] += w[TAPS - 1 - j][i] * d[t + j][i];
        if (first + t < a.length) store_many<N>(a.d_x + (b * a.length + first + t) * a.channels + c, d_x);
    }
}

/* Block (x, y): blockDim.x groups of channels from x on; threads along y and blocks along y share the runs.
 * Leaves part [gridDim.y, channels, kernel], the block's share of d_weight. */
template <typename T, int N, int TAPS>
__global__ void __launch_bounds__(THREADS) conv_backward_kernel(conv_shape<T> a)
{
    CUDA_DYNAMIC_SHARED(float, room); /* [blockDim.y, blockDim.x, TAPS, N] */
    int64_t c = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * N;
    bool live = c < a.channels;
    float w[TAPS][N], d_w[TAPS][N];
    for (int j = 0; j < TAPS; j++)
        for (int i = 0; i < N; i++) d_w[j][i] = 0;
    if (live) {
        conv_weights<T, N, TAPS>(a, c, w);
        for (int64_t n = (int64_t)blockIdx.y * blockDim.y + threadIdx.y; n < a.batch * a.runs;
             n += (int64_t)gridDim.y * blockDim.y)
            conv_backward_run<T, N, TAPS>(a, n / a.runs, n % a.runs * RUN, c, w, d_w);
    }
    float *mine = room + (threadIdx.y * blockDim.x + threadIdx.x) * (TAPS * N);
    for (int j = 0; j < TAPS; j++)
        for (int i = 0; i < N; i++) mine[j * N + i] = d_w[j][i];
    __syncthreads();
    int sums = (int)blockDim.x * TAPS * N;
    for (int s = (int)(threadIdx.y * blockDim.x + threadIdx.x); s < sums;
         s += (int)(blockDim.x * blockDim.y)) {
        int64_t channel = ((int64_t)blockIdx.x * blockDim.x + s / (TAPS * N)) * N + s % N;
        int64_t tap = s / N % TAPS - (TAPS - a.kernel);
        if (channel >= a.channels || tap < 0) continue;
        float sum = 0;
        for (int y = 0; y < (int)blockDim.y; y++) sum += room[y * sums + s];
        a.part[((int64_t)blockIdx.y * a.channels + channel) * a.kernel + tap] = sum;
    }
}

template <typename T, int N, int TAPS>
static void conv_forward_as(const kernel_run *run, const conv_shape<T> &a)
{
    int64_t threads = a.batch * a.runs * (a.channels / N);
    cuda_launch(conv_forward_kernel<T, N, TAPS>, dim3((unsigned)kernel_blocks(threads, THREADS)),
                dim3(THREADS), 0, (cudaStream_t)run->stream, a);
}

template <typename T, int N, int TAPS>
static void conv_backward_as(const kernel_run *run, conv_shape<T> a, float *d_weight)
{
    cudaStream_t stream = (cudaStream_t)run->stream;
    int64_t groups = a.channels / N, columns = a.channels * a.kernel;
    unsigned wide = (unsigned)lanes_for(groups), tall = THREADS / LANES_MOST;
    int64_t parts = parts_for(kernel_blocks(a.batch * a.runs, tall), columns);
    a.part = (float *)run->scratch;
    cuda_launch(conv_backward_kernel<T, N, TAPS>,
                dim3((unsigned)kernel_blocks(groups, wide), (unsigned)parts), dim3(wide, tall),
                (size_t)wide * tall * TAPS * N * sizeof(float), stream, a);
    column_sums<float>(stream, a.part, parts, columns, columns, d_weight, d_weight);
}

template <typename T> static conv_shape<T> shape_of(const conv_args *a)
{
    conv_shape<T> s = {};
    s.batch = a->batch, s.length = a->length, s.channels = a->channels, s.kernel = a->kernel;
    s.runs =
        kernel_max(1, kernel_blocks(a->length, RUN)); /* a sequence of no tokens still hands on its state */
    s.silu = a->silu;
    s.x = (const T *)a->x, s.weight = (const float *)a->weight, s.y = (T *)a->y;
    s.state_in = (const float *)a->state_in, s.state_out = (float *)a->state_out;
    s.d_y = (const T *)a->d_y, s.d_x = (T *)a->d_x;
    return s;
}

/* Two channels per thread keep enough threads in flight with their inputs in registers. */
enum { CHANNELS = 2, USUAL_TAPS = 4 };

template <typename T> static bool conv_wide(const conv_args *a)
{
    return a->channels % CHANNELS == 0 && all_aligned(a->x, a->y, a->d_y, a->d_x) &&
           all_aligned(a->state_in, a->state_out);
}

template <typename T> static void conv_forward(const kernel_run *run, const conv_args *a)
{
    conv_shape<T> s = shape_of<T>(a);
    if (a->batch * a->channels <= 0) return;
    if (a->kernel > USUAL_TAPS)
        conv_forward_as<T, 1, CONV_KERNEL_MAX>(run, s);
    else if (conv_wide<T>(a))
        conv_forward_as<T, CHANNELS, USUAL_TAPS>(run, s);
    else
        conv_forward_as<T, 1, USUAL_TAPS>(run, s);
}

template <typename T> static void conv_backward(const kernel_run *run, const conv_args *a)
{
    conv_shape<T> s = shape_of<T>(a);
    if (a->batch * a->channels * a->length <= 0) return;
    float *d_weight = (float *)a->d_weight;
    if (a->kernel > USUAL_TAPS)
        conv_backward_as<T, 1, CONV_KERNEL_MAX>(run, s, d_weight);
    else if (conv_wide<T>(a))
        conv_backward_as<T, CHANNELS, USUAL_TAPS>(run, s, d_weight);
    else
        conv_backward_as<T, 1, USUAL_TAPS>(run, s, d_weight);
}

#define ENTRIES(T, suffix)                                                                                   \
    extern "C" void conv_forward_cuda_##suffix(const kernel_run *run, const conv_args *a)                    \
    {                                                                                                        \
        conv_forward<T>(run, a);                                                                             \
    }                                                                                                        \
    extern "C" void conv_backward_cuda_##suffix(const kernel_run *run, const conv_args *a)                   \
    {                                                                                                        \
        conv_backward<T>(run, a);                                                                            \
    }

ENTRIES(float, f32)
ENTRIES(bf16, bf16)
