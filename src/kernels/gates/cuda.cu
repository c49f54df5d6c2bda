/* Gates on a CUDA device. abc's is a scan along time: a block takes some channels of one sequence, its
 * threads share the time in pieces; each piece is reduced to what carries over, the pieces are chained, and
 * then each goes over its tokens again. Carried state is float for every activation type. */
#include "kernels/cuda_vector.h"
#include "kernels/gates/gates.h"

typedef float real; /* of SLOTS_FIRST_GATE */
#include "kernels/gates/first.h"

enum { LANES = 16, PIECES = 64, BATCH = 8, THREADS = 256 };

/* Running log-sum z and one more term s: z' = log(e^z + e^s). -infinity: nothing yet. */
static __device__ inline float log_add(float z, float s)
{
    return z == -INFINITY ? s : s == -INFINITY ? z : z + softplus_of(s - z);
}

template <typename T> struct gate_shape {
    int64_t length, channels;
    const T *s, *d_g;
    T *g, *d_s;
    const float *state_in;
    float *state_out;
};

/* This thread's channel, state and tokens [first, last) of the block's sequence. */
struct gate_piece {
    int64_t state, start, first, last; /* element of state; element of token 0 */
    bool live;
};

template <typename T> static __device__ inline gate_piece piece_of(const gate_shape<T> &a)
{
    int64_t c = (int64_t)blockIdx.x * LANES + threadIdx.x, b = blockIdx.y, y = threadIdx.y;
    bool live = c < a.channels;
    return {b * a.channels + c, b * a.length * a.channels + c, live ? a.length * y / PIECES : 0,
            live ? a.length * (y + 1) / PIECES : 0, live};
}

/* BATCH tokens from t on, downwards where step is -1; beyond [first, last) they are `otherwise`. They are on
 * their way together before the first is used. */
template <typename T>
static __device__ inline void load_batch(const gate_shape<T> &a, const T *x, const gate_piece &p, int64_t t,
                                         int step, float otherwise, float (&v)[BATCH])
{
#pragma unroll
    for (int i = 0; i < BATCH; i++) {
        int64_t at = t + i * step;
        v[i] = at >= p.first && at < p.last ? cuda_load(x + p.start + at * a.channels) : otherwise;
    }
}

template <typename T>
__global__ void __launch_bounds__(LANES *PIECES) slots_gate_forward_kernel(gate_shape<T> a)
{
    __shared__ float room[PIECES][LANES];
    gate_piece p = piece_of(a);
    int x = (int)threadIdx.x, y = (int)threadIdx.y;
    float z = p.live && a.state_in ? a.state_in[p.state] : -INFINITY, sum = -INFINITY, s[BATCH];
    for (int64_t t = p.first; t < p.last; t += BATCH) {
        load_batch(a, a.s, p, t, 1, -INFINITY, s);
        float most = s[0], total = 0;
        for (int i = 1; i < BATCH; i++) most = fmaxf(most, s[i]);
        for (int i = 0; i < BATCH; i++) total += most == -INFINITY ? 0 : expf(s[i] - most);
        sum = log_add(sum, most + logf(total));
    }
    room[y][x] = sum;
    for (int step = 1; step < PIECES; step *= 2) { /* running log-sums over the pieces */
        __syncthreads();
        float before = y >= step ? room[y - step][x] : -INFINITY;
        __syncthreads();
        room[y][x] = sum = log_add(sum, before);
    }
    __syncthreads();
    if (y > 0) z = log_add(z, room[y - 1][x]);
    for (int64_t t = p.first; t < p.last; t += BATCH) {
        load_batch(a, a.s, p, t, 1, 0, s);
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            if (t + i >= p.last) break;
            bool first = z == -INFINITY;
            float g = first ? SLOTS_FIRST_GATE : -softplus_of(s[i] - z);
            cuda_store(a.g + p.start + (t + i) * a.channels, g);
            z = first ? s[i] : z - g;
        }
    }
    if (p.live && a.state_out && y == PIECES - 1) a.state_out[p.state] = z;
}

/* What a later token hands to the earlier ones: F_t = e^{g_t} F_{t+1} + (1 - e^{g_t}) d_g_t; then d_s_t =
 * (1 - e^{g_t}) (F_{t+1} - d_g_t). A piece maps F to keep F + added. */
template <typename T>
__global__ void __launch_bounds__(LANES *PIECES) slots_gate_backward_kernel(gate_shape<T> a)
{
    __shared__ float keeps[PIECES][LANES], adds[PIECES][LANES];
    gate_piece p = piece_of(a);
    int x = (int)threadIdx.x, y = (int)threadIdx.y;
    bool fresh = !a.state_in || (p.live && a.state_in[p.state] == -INFINITY);
    float keep = 1, added = 0, g[BATCH], d_g[BATCH];
    for (int64_t t = p.last - 1; t >= p.first; t -= BATCH) {
        load_batch(a, (const T *)a.g, p, t, -1, 0, g); /* a token beyond the piece keeps everything */
        load_batch(a, a.d_g, p, t, -1, 0, d_g);
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            keep *= expf(g[i]);
            added = expf(g[i]) * added - expm1f(g[i]) * (fresh && t - i == 0 ? 0 : d_g[i]);
        }
    }
    for (int step = 1; step < PIECES; step *= 2) { /* what all later pieces do together */
        keeps[y][x] = keep, adds[y][x] = added;
        __syncthreads();
        bool more = y + step < PIECES;
        float keep_later = more ? keeps[y + step][x] : 1, added_later = more ? adds[y + step][x] : 0;
        __syncthreads();
        added = keep * added_later + added;
        keep *= keep_later;
    }
    adds[y][x] = added;
    __syncthreads();
    float later = y + 1 < PIECES ? adds[y + 1][x] : 0;
    for (int64_t t = p.last - 1; t >= p.first; t -= BATCH) {
        load_batch(a, (const T *)a.g, p, t, -1, 0, g);
        load_batch(a, a.d_g, p, t, -1, 0, d_g);
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            if (t - i < p.first) break;
            float d = fresh && t - i == 0 ? 0 : d_g[i], write = -expm1f(g[i]);
            cuda_store(a.d_s + p.start + (t - i) * a.channels, write * (later - d));
            later = expf(g[i]) * later + write * d;
        }
    }
}

template <typename T> static void slots_gate(const kernel_run *run, const slots_gate_args *a, int backward)
{
    gate_shape<T> s = {a->length,
                       a->channels,
                       (const T *)a->s,
                       (const T *)a->d_g,
                       (T *)a->g,
                       (T *)a->d_s,
                       (const float *)a->state_in,
                       (float *)a->state_out};
    if (a->batch <= 0 || a->channels <= 0) return;
    cuda_launch(backward ? slots_gate_backward_kernel<T> : slots_gate_forward_kernel<T>,
                dim3((unsigned)kernel_blocks(a->channels, LANES), (unsigned)a->batch), dim3(LANES, PIECES), 0,
                (cudaStream_t)run->stream, s);
}

/* ---- the delta rule's gate ---- */
template <typename T>
__global__ void __launch_bounds__(THREADS)
    gdn_gate_forward_kernel(int64_t count, int64_t heads, const T *x, const float *A, const float *bias, T *g)
{
    int64_t e = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (e >= count) return;
    int64_t h = e % heads;
    cuda_store(g + e, -expf(A[h]) * softplus_of(cuda_load(x + e) + bias[h]));
}

/* Block (x, y): up to LANES heads from x on, a share of the rows; part [gridDim.y, 2, heads]: d_A, d_dt_bias.
 */
template <typename T>
__global__ void __launch_bounds__(THREADS)
    gdn_gate_backward_kernel(int64_t rows, int64_t heads, const T *x, const float *A, const float *bias,
                             const T *d_g, T *d_x, float *part)
{
    __shared__ float room[2][THREADS];
    int64_t h = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    float sum_A = 0, sum_bias = 0;
    if (h < heads) {
        float rate = -expf(A[h]);
        for (int64_t r = (int64_t)blockIdx.y * blockDim.y + threadIdx.y; r < rows;
             r += (int64_t)gridDim.y * blockDim.y) {
            int64_t e = r * heads + h;
            float d = rate * cuda_load(d_g + e), z = cuda_load(x + e) + bias[h], d_z = d * sigmoid_of(z);
            cuda_store(d_x + e, d_z);
            sum_bias += d_z;
            sum_A += d * softplus_of(z);
        }
    }
    int me = (int)(threadIdx.y * blockDim.x + threadIdx.x);
    room[0][me] = sum_A, room[1][me] = sum_bias;
    __syncthreads();
    if (threadIdx.y || h >= heads) return;
    for (int y = 1; y < (int)blockDim.y; y++)
        sum_A += room[0][y * blockDim.x + threadIdx.x], sum_bias += room[1][y * blockDim.x + threadIdx.x];
    part[(int64_t)blockIdx.y * 2 * heads + h] = sum_A;
    part[((int64_t)blockIdx.y * 2 + 1) * heads + h] = sum_bias;
}

template <typename T> static void gdn_gate_forward(const kernel_run *run, const gdn_gate_args *a)
{
    int64_t count = a->rows * a->heads;
    if (count > 0)
        cuda_launch(gdn_gate_forward_kernel<T>, dim3((unsigned)kernel_blocks(count, THREADS)), dim3(THREADS),
                    0, (cudaStream_t)run->stream, count, a->heads, (const T *)a->x, (const float *)a->A,
                    (const float *)a->dt_bias, (T *)a->g);
}

template <typename T> static void gdn_gate_backward(const kernel_run *run, const gdn_gate_args *a)
{
    if (a->rows * a->heads <= 0) return;
    cudaStream_t stream = (cudaStream_t)run->stream;
    unsigned wide = (unsigned)lanes_for(a->heads), tall = THREADS / wide;
    int64_t parts = parts_for(kernel_blocks(a->rows, tall), 2 * a->heads);
    float *part = (float *)run->scratch;
    cuda_launch(gdn_gate_backward_kernel<T>, dim3((unsigned)kernel_blocks(a->heads, wide), (unsigned)parts),
                dim3(wide, tall), 0, stream, a->rows, a->heads, (const T *)a->x, (const float *)a->A,
                (const float *)a->dt_bias, (const T *)a->d_g, (T *)a->d_x, part);
    column_sums<float>(stream, part, parts, 2 * a->heads, a->heads, (float *)a->d_A, (float *)a->d_dt_bias);
}

#define ENTRIES(T, suffix)                                                                                   \
    extern "C" void slots_gate_forward_cuda_##suffix(const kernel_run *run, const slots_gate_args *a)        \
    {                                                                                                        \
        slots_gate<T>(run, a, 0);                                                                            \
    }                                                                                                        \
    extern "C" void slots_gate_backward_cuda_##suffix(const kernel_run *run, const slots_gate_args *a)       \
    {                                                                                                        \
        slots_gate<T>(run, a, 1);                                                                            \
    }                                                                                                        \
    extern "C" void gdn_gate_forward_cuda_##suffix(const kernel_run *run, const gdn_gate_args *a)            \
    {                                                                                                        \
        gdn_gate_forward<T>(run, a);                                                                         \
    }                                                                                                        \
    extern "C" void gdn_gate_backward_cuda_##suffix(const kernel_run *run, const gdn_gate_args *a)           \
    {                                                                                                        \
        gdn_gate_backward<T>(run, a);                                                                        \
    }

ENTRIES(float, f32)
ENTRIES(bf16, bf16)
