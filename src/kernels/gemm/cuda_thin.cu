/* Linear maps with up to 8 outputs of all maps together: 16 lanes take a row of x, 8 elements each at a time.
 */
#include "kernels/gemm/cuda_thin.h"
#include "kernels/cuda_vector.h"

enum {
    THIN_LANES = 16,
    THIN_THREADS = 256,
    THIN_GROUPS = THIN_THREADS / THIN_LANES,
    THIN_MOST = 8,
    UNIT = 8
};

struct thin_view {
    const bf16 *x, *weight, *d_y; /* [rows, in], [outputs, in], [maps, rows, out] */
    bf16 *y, *d_x;
    float *part; /* [blocks, outputs, in] */
    int64_t rows, in, out;
    int add;
};

/* Output o of row r in [maps, rows, out]. */
static __device__ inline int64_t thin_at(const thin_view &a, int64_t r, int o)
{
    return (o / a.out * a.rows + r) * a.out + o % a.out;
}

template <int OUTPUTS> __global__ void __launch_bounds__(THIN_THREADS) thin_forward_kernel(thin_view a)
{
    int lane = (int)threadIdx.x % THIN_LANES;
    int64_t r = (int64_t)blockIdx.x * THIN_GROUPS + threadIdx.x / THIN_LANES;
    bool there = r < a.rows;
    float sum[OUTPUTS] = {};
    cuda_wait_previous();
    for (int64_t c = lane * UNIT; c < a.in && there; c += THIN_LANES * UNIT) {
        float x[UNIT], w[UNIT];
        load_many<UNIT>(a.x + r * a.in + c, x);
#pragma unroll
        for (int o = 0; o < OUTPUTS; o++) {
            load_many<UNIT>(a.weight + o * a.in + c, w);
            for (int i = 0; i < UNIT; i++) sum[o] += x[i] * w[i];
        }
    }
#pragma unroll
    for (int o = 0; o < OUTPUTS; o++) {
        float total = lanes_sum(sum[o], THIN_LANES);
        if (there && lane == o) a.y[thin_at(a, r, o)] = to_bf16(total);
    }
}

template <int OUTPUTS> __global__ void __launch_bounds__(THIN_THREADS) thin_input_kernel(thin_view a)
{
    int lane = (int)threadIdx.x % THIN_LANES;
    int64_t r = (int64_t)blockIdx.x * THIN_GROUPS + threadIdx.x / THIN_LANES;
    cuda_wait_previous();
    if (r >= a.rows) return;
    float d[OUTPUTS];
#pragma unroll
    for (int o = 0; o < OUTPUTS; o++) d[o] = from_bf16(a.d_y[thin_at(a, r, o)]);
    for (int64_t c = lane * UNIT; c < a.in; c += THIN_LANES * UNIT) {
        float sum[UNIT] = {}, w[UNIT];
        if (a.add) load_many<UNIT>(a.d_x + r * a.in + c, sum);
#pragma unroll
        for (int o = 0; o < OUTPUTS; o++) {
            load_many<UNIT>(a.weight + o * a.in + c, w);
            for (int i = 0; i < UNIT; i++) sum[i] += d[o] * w[i];
        }
        store_many<UNIT>(a.d_x + r * a.in + c, sum);
    }
}

/* Block (x, y): 128 columns from x on, the rows y, y + gridDim.y, .. of all groups of 16. */
template <int OUTPUTS> __global__ void __launch_bounds__(THIN_THREADS) thin_weight_kernel(thin_view a)
{
    __shared__ float room[THIN_GROUPS][THIN_LANES * UNIT];
    int lane = (int)threadIdx.x % THIN_LANES, group = (int)threadIdx.x / THIN_LANES;
    int64_t first = (int64_t)blockIdx.x * THIN_LANES * UNIT, c = first + lane * UNIT;
    float sum[OUTPUTS][UNIT] = {};
    cuda_wait_previous();
#pragma unroll 4
    for (int64_t r = (int64_t)blockIdx.y * THIN_GROUPS + group; r < a.rows && c < a.in;
         r += (int64_t)gridDim.y * THIN_GROUPS) {
        float x[UNIT];
        load_many<UNIT>(a.x + r * a.in + c, x);
#pragma unroll
        for (int o = 0; o < OUTPUTS; o++) {
            float d = from_bf16(a.d_y[thin_at(a, r, o)]);
            for (int i = 0; i < UNIT; i++) sum[o][i] += d * x[i];
        }
    }
#pragma unroll
    for (int o = 0; o < OUTPUTS; o++) {
        __syncthreads();
        for (int i = 0; i < UNIT; i++) room[group][lane * UNIT + i] = sum[o][i];
        __syncthreads();
        int column = (int)threadIdx.x;
        if (column >= THIN_LANES * UNIT || first + column >= a.in) continue;
        float total = 0;
        for (int g = 0; g < THIN_GROUPS; g++) total += room[g][column];
        a.part[((int64_t)blockIdx.y * OUTPUTS + o) * a.in + first + column] = total;
    }
}

static int64_t thin_outputs(const linear_args *a)
{
    return kernel_max(a->maps, 1) * a->out;
}

static bool thin_suits(const linear_args *a, const void *first, const void *second)
{
    return thin_outputs(a) > 0 && thin_outputs(a) <= THIN_MOST && a->in > 0 && a->in % UNIT == 0 &&
           a->rows > 0 && !a->bias && !a->residual && all_aligned(first, second);
}

static thin_view thin_pass(const linear_args *a)
{
    thin_view v = {};
    v.x = (const bf16 *)a->x, v.weight = (const bf16 *)a->weight, v.d_y = (const bf16 *)a->d_y;
    v.y = (bf16 *)a->y, v.d_x = (bf16 *)a->d_x;
    v.rows = a->rows, v.in = a->in, v.out = a->out, v.add = a->add_d_x;
    return v;
}

static void thin_launch(void (*const kernels[THIN_MOST])(thin_view), const kernel_run *run, int early,
                        const linear_args *a, dim3 grid, const thin_view &v)
{
    cuda_launch_early(early, kernels[thin_outputs(a) - 1], grid, dim3(THIN_THREADS), 0,
                      (cudaStream_t)run->stream, v);
}

#define THIN_KERNELS(kernel)                                                                                 \
    {                                                                                                        \
        kernel<1>, kernel<2>, kernel<3>, kernel<4>, kernel<5>, kernel<6>, kernel<7>, kernel<8>               \
    }

int thin_forward(const kernel_run *run, const linear_args *a)
{
    static void (*const kernels[THIN_MOST])(thin_view) = THIN_KERNELS(thin_forward_kernel);
    if (!thin_suits(a, a->x, a->weight)) return 0;
    thin_launch(kernels, run, run->early, a, dim3((unsigned)kernel_blocks(a->rows, THIN_GROUPS)),
                thin_pass(a));
    return 1;
}

int thin_input_gradient(const kernel_run *run, const linear_args *a)
{
    static void (*const kernels[THIN_MOST])(thin_view) = THIN_KERNELS(thin_input_kernel);
    if (!thin_suits(a, a->d_x, a->weight)) return 0;
    thin_launch(kernels, run, run->early, a, dim3((unsigned)kernel_blocks(a->rows, THIN_GROUPS)),
                thin_pass(a));
    return 1;
}

int thin_weight_gradient(const kernel_run *run, const linear_args *a)
{
    static void (*const kernels[THIN_MOST])(thin_view) = THIN_KERNELS(thin_weight_kernel);
    int64_t columns = thin_outputs(a) * a->in,
            parts = parts_for(kernel_blocks(a->rows, 8 * THIN_GROUPS), columns);
    if (!thin_suits(a, a->x, nullptr) || (size_t)(parts * columns) * sizeof(float) > run->scratch_bytes)
        return 0;
    thin_view v = thin_pass(a);
    v.part = (float *)run->scratch;
    thin_launch(kernels, run, 0, a, dim3((unsigned)kernel_blocks(a->in, THIN_LANES * UNIT), (unsigned)parts),
                v);
    column_sums<float>((cudaStream_t)run->stream, v.part, parts, columns, columns, (float *)a->d_weight,
                       (float *)a->d_weight);
    return 1;
}
