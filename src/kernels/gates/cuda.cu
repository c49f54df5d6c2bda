/* Gates on a CUDA device. abc's is a scan along time: a block takes some channels of one sequence, its
 * threads share the time in pieces; each piece is reduced to what carries over, the pieces are chained, and
 * then each goes over its tokens again. Carried state is float for every activation type. */
#include "kernels/cuda_vector.h"
#include "kernels/gates/gates.h"

typedef float real; /* of SLOTS_FIRST_GATE */
#include "kernels/gates/first.h"

enum { LANES = 32, PIECES = 32, THREADS = 256 };

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

template <typename T>
__global__ void __launch_bounds__(LANES *PIECES) slots_gate_forward_kernel(gate_shape<T> a)
{
    __shared__ float room[PIECES][LANES];
    gate_piece p = piece_of(a);
    float z = p.live && a.state_in ? a.state_in[p.state] : -INFINITY, sum = -INFINITY;
    for (int64_t t = p.first; t < p.last; t++) sum = log_add(sum, cuda_load(a.s + p.start + t * a.channels));
    room[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    for (int y = 0; y < (int)threadIdx.y; y++) z = log_add(z, room[y][threadIdx.x]);
    for (int64_t t = p.first; t < p.last; t++) {
        int64_t e = p.start + t * a.channels;
        float s = cuda_load(a.s + e);
        if (z == -INFINITY) {
            cuda_store(a.g + e, SLOTS_FIRST_GATE);
            z = s;
            continue;
        }
        float g = -softplus_of(s - z);
        cuda_store(a.g + e, g);
        z -= g;
    }
    if (p.live && a.state_out && threadIdx.y == PIECES - 1) a.state_out[p.state] = z;
}

/* What a later token hands to the earlier ones: F_t = e^{g_t} F_{t+1} + (1 - e^{g_t}) d_g_t; then d_s_t =
 * (1 - e^{g_t}) (F_{t+1} - d_g_t). A piece maps F to keep F + added. */
template <typename T>
__global__ void __launch_bounds__(LANES *PIECES) slots_gate_backward_kernel(gate_shape<T> a)
{
    __shared__ float keeps[PIECES][LANES], adds[PIECES][LANES];
    gate_piece p = piece_of(a);
    bool fresh = !a.state_in || (p.live && a.state_in[p.state] == -INFINITY);
    float keep = 1, added = 0;
    for (int64_t t = p.last - 1; t >= p.first; t--) {
        int64_t e = p.start + t * a.channels;
        float g = cuda_load(a.g + e), d_g = fresh && t == 0 ? 0 : cuda_load(a.d_g + e), k = expf(g);
        keep *= k;
        added = k * added - expm1f(g) * d_g;
    }
    keeps[threadIdx.y][threadIdx.x] = keep;
    adds[threadIdx.y][threadIdx.x] = added;
    __syncthreads();
    float later = 0;
    for (int y = PIECES - 1; y > (int)threadIdx.y; y--)
        later = keeps[y][threadIdx.x] * later + adds[y][threadIdx.x];
    for (int64_t t = p.last - 1; t >= p.first; t--) {
        int64_t e = p.start + t * a.channels;
        float g = cuda_load(a.g + e), d_g = fresh && t == 0 ? 0 : cuda_load(a.d_g + e), write = -expm1f(g);
        cuda_store(a.d_s + e, write * (later - d_g));
        later = expf(g) * later + write * d_g;
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
