/* Embedding on a CUDA device. Forward gathers. Backward must add up the tokens of each vocabulary row in one
 * order, and often most tokens are the same one, so the work is shared out by tokens: cuda_sums.cuh. */
#include "kernels/cuda_side.h"
#include "kernels/embed/cuda_sort.cuh"
#include "kernels/embed/cuda_sums.cuh"

static __device__ inline int64_t position_row(const embed_args &a, int64_t r)
{
    int64_t p = (a.position ? a.position[r / a.length] : 0) + r % a.length;
    return p < a.max_length ? p : a.max_length - 1;
}

/* I: of indices; 32 bits where they do, for division. */
template <typename T, int N, typename I>
__global__ void __launch_bounds__(THREADS) embed_forward_kernel(embed_args a)
{
    cuda_wait_previous();
    I pieces = (I)a.width / N, n = (I)blockIdx.x * THREADS + threadIdx.x, token = n / pieces;
    int64_t r = token, c = (int64_t)(n - token * pieces) * N;
    if (r >= a.batch * a.length) return;
    float x[N], place[N];
    load_many<N>((const float *)a.weight + a.id[r] * a.width + c, x);
    if (a.position_weight) {
        load_many<N>((const float *)a.position_weight + position_row(a, r) * a.width + c, place);
        for (int i = 0; i < N; i++) x[i] += place[i];
    }
    drop<N>(a, r * a.width + c, x);
    store_many<N>((T *)a.y + r * a.width + c, x);
}

/* Thread: columns c .. c+N of one position's row, over the sequences in order. */
template <typename T, int N> __global__ void __launch_bounds__(THREADS) embed_positions_kernel(embed_args a)
{
    int64_t pieces = a.width / N, n = (int64_t)blockIdx.x * THREADS + threadIdx.x, p = n / pieces,
            c = n % pieces * N;
    if (p >= a.max_length) return;
    float sum[N], x[N];
    for (int i = 0; i < N; i++) sum[i] = 0;
    for (int64_t b = 0; b < a.batch; b++) {
        int64_t l = p - (a.position ? a.position[b] : 0), stop = p + 1 < a.max_length ? l + 1 : a.length;
        for (l = kernel_max(0, l); l < stop && l < a.length; l++) {
            int64_t first = (b * a.length + l) * a.width + c;
            load_many<N>((const T *)a.d_y + first, x);
            drop<N>(a, first, x);
            for (int i = 0; i < N; i++) sum[i] += x[i];
        }
    }
    add_to<N>((float *)a.d_position_weight + p * a.width + c, sum);
}

/* ---- launches ---- */
enum { TOKENS_AT_ONCE = 1 << 20 };

/* Where the sorted list lies: order [n], start [vocab + 1], arrived [blocks, slabs]. */
static size_t order_bytes(int64_t n)
{
    return kernel_round64((size_t)n * sizeof(int32_t));
}
static size_t start_bytes(int64_t vocab)
{
    return kernel_round64((size_t)(vocab + 1) * sizeof(int32_t));
}
/* As many as there can be: blocks take SEGMENT places for every group at least, and their sums have room in
 * scratch; slabs 32 columns. */
static int64_t counters_of(int64_t n, int64_t width)
{
    int64_t room = KERNEL_SCRATCH_CUDA / (2 * width * (int64_t)sizeof(float));
    return kernel_max(1, kernel_min(kernel_blocks(n, THREADS / 32 * SEGMENT), room)) *
           kernel_blocks(width, 32);
}
static size_t sorted_bytes(int64_t n, const embed_args *a)
{
    return order_bytes(n) + start_bytes(a->vocab) +
           kernel_round64((size_t)counters_of(n, a->width) * sizeof(unsigned));
}

/* Whether all tokens are sorted at once: forward can do it, beside what follows. */
static bool sorts_early(const embed_args *a)
{
    return a->batch * a->length <= TOKENS_AT_ONCE;
}

static void sort_tokens(const kernel_run *run, const embed_args *a, const int32_t *id, int64_t n,
                        char *sorted)
{
    int bits = BITS_LEAST;
    while (bits < BITS_MOST && a->vocab >> bits > SORT_BLOCKS) bits++;
    int32_t *start = (int32_t *)(sorted + order_bytes(n));
    cuda_launch(embed_sort_kernel, dim3((unsigned)kernel_blocks(a->vocab, 1 << bits)), dim3(SORT_THREADS),
                (size_t)SORT_WARPS << bits << 2, (cudaStream_t)run->stream, id, n, a->vocab, bits,
                (int32_t *)sorted, start, (unsigned *)((char *)start + start_bytes(a->vocab)),
                counters_of(n, a->width));
}

/* Gradients of at most TOKENS_AT_ONCE tokens. */
template <typename T, int N> static void embed_tokens(const kernel_run *run, embed_sums s)
{
    int64_t width = s.a.width;
    char *scratch = (char *)run->scratch, *sorted = scratch;
    if (s.a.saved && sorts_early(&s.a))
        sorted = (char *)s.a.saved;
    else
        sort_tokens(run, &s.a, s.a.id + s.origin, s.n, sorted);
    size_t used = sorted_bytes(s.n, &s.a);
    s.lanes = lanes_for(width / N);
    int64_t room =
                kernel_max(1, (KERNEL_SCRATCH_CUDA - (int64_t)used) / (2 * width * (int64_t)sizeof(float))),
            groups = THREADS / s.lanes;
    s.order = (int32_t *)sorted, s.start = (int32_t *)(sorted + order_bytes(s.n));
    s.arrived = (unsigned *)((char *)s.start + start_bytes(s.a.vocab));
    s.per_group = kernel_max(SEGMENT, kernel_blocks(s.n, room * groups)), s.per_block = s.per_group * groups;
    int64_t blocks = kernel_blocks(s.n, s.per_block);
    s.head = (float *)(scratch + used), s.tail = s.head + blocks * width;
    cuda_launch_early(run->early, embed_sums_kernel<T, N>,
                      dim3((unsigned)blocks, (unsigned)kernel_blocks(width, (int64_t)s.lanes * N)),
                      dim3(THREADS), THREADS * N * sizeof(float), (cudaStream_t)run->stream, s);
}

template <typename T, int N> static void embed_backward_as(const kernel_run *run, const embed_args *a)
{
    embed_sums s = {};
    s.a = *a;
    int64_t tokens = a->batch * a->length;
    for (s.origin = 0; s.origin < tokens; s.origin += TOKENS_AT_ONCE) {
        s.n = kernel_min(TOKENS_AT_ONCE, tokens - s.origin);
        embed_tokens<T, N>(run, s);
    }
    if (a->d_position_weight)
        cuda_launch(embed_positions_kernel<T, N>,
                    dim3((unsigned)kernel_blocks(a->max_length * (a->width / N), THREADS)), dim3(THREADS), 0,
                    (cudaStream_t)run->stream, *a);
}

template <typename T, int N> static void embed_forward_as(const kernel_run *run, const embed_args *a)
{
    int64_t tokens = a->batch * a->length, items = tokens * (a->width / N);
    if (a->saved && sorts_early(a)) sort_tokens(side_run(run), a, a->id, tokens, (char *)a->saved);
    cuda_launch_early(run->early,
                      items < INT32_MAX - THREADS ? embed_forward_kernel<T, N, uint32_t>
                                                  : embed_forward_kernel<T, N, int64_t>,
                      dim3((unsigned)kernel_blocks(items, THREADS)), dim3(THREADS), 0,
                      (cudaStream_t)run->stream, *a);
}

template <typename T> static void embed(const kernel_run *run, const embed_args *a, int backward)
{
    enum { N = vector_of<T>::N };
    if (a->batch * a->length * a->width <= 0) return;
    bool aligned = a->width % N == 0 && all_aligned(a->weight, a->position_weight, a->y) &&
                   all_aligned(a->d_y, a->d_weight, a->d_position_weight);
    if (backward)
        aligned ? embed_backward_as<T, N>(run, a) : embed_backward_as<T, 1>(run, a);
    else
        aligned ? embed_forward_as<T, N>(run, a) : embed_forward_as<T, 1>(run, a);
}

static void embed_sizes(const embed_args *a, kernel_sizes *sizes)
{
    *sizes = {};
    sizes->saved = sorts_early(a) ? sorted_bytes(a->batch * a->length, a) : 0;
}

#define ENTRIES(T, suffix)                                                                                   \
    extern "C" void embed_sizes_cuda_##suffix(const kernel_run *, const embed_args *a, kernel_sizes *sizes)  \
    {                                                                                                        \
        embed_sizes(a, sizes);                                                                               \
    }                                                                                                        \
    extern "C" void embed_forward_cuda_##suffix(const kernel_run *run, const embed_args *a)                  \
    {                                                                                                        \
        embed<T>(run, a, 0);                                                                                 \
    }                                                                                                        \
    extern "C" void embed_backward_cuda_##suffix(const kernel_run *run, const embed_args *a)                 \
    {                                                                                                        \
        embed<T>(run, a, 1);                                                                                 \
    }

ENTRIES(float, f32)
ENTRIES(bf16, bf16)
