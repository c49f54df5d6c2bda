/* Output head and cross-entropy on a CUDA device. Two ways:
 *  - fused, for bf16 and widths up to 128: one kernel scans the vocabulary with a running softmax
 *    (cuda_scan.cuh), one finishes the labels (cuda_join.cuh), one makes d_weight (cuda_weight.cuh); logits
 *    stay on the chip. The first and the last have another form for Hopper (cuda_hopper.cu).
 *  - by products, for every other shape and for float, over blocks of labels: logits, softmax row by row, two
 *    products. */
#include "kernels/cuda_blas.h"
#include "kernels/cuda_side.h"
#include "kernels/xent/cuda_hopper.h"
#include "kernels/xent/cuda_join.cuh"
#include "kernels/xent/cuda_scan.cuh"
#include "kernels/xent/cuda_weight.cuh"

enum { ROW_THREADS = 256, WIDEST_FUSED = 128 };
/* Label splits: how many partial d_weight. */
enum { LABEL_SPLITS_MOST = 8 };
/* One block's logits should stay in the second-level cache. */
enum { LOGITS_MOST = 32 << 20 };

/* ---- scratch, handed out piece by piece; with base NULL only counted ---- */
typedef struct scratch_taker {
    char *base;
    size_t used;
} scratch_taker;

template <typename E> static E *take(scratch_taker *s, int64_t count)
{
    E *piece = s->base ? (E *)(s->base + s->used) : NULL;
    s->used += kernel_round64((size_t)count * sizeof(E));
    return piece;
}

static int64_t round_up(int64_t n, int64_t step)
{
    return kernel_blocks(n, step) * step;
}

/* d_hidden from the labels' d_x. */
template <typename T>
static void spread(const kernel_run *run, const xent_args *a, const float *d_x, const int *first_label,
                   const int *shared_row)
{
    bool wide = a->width % 4 == 0 && all_aligned(a->d_hidden, d_x);
    int64_t items = a->n_hidden * (wide ? a->width / 4 : a->width);
    if (items > 0)
        cuda_launch_early(run->early, wide ? xent_spread_kernel<T, 4> : xent_spread_kernel<T, 1>,
                          dim3((unsigned)kernel_blocks(items, JOIN_THREADS)), dim3(JOIN_THREADS), 0,
                          (cudaStream_t)run->stream, *a, d_x, first_label, shared_row);
}

/* ---- fused ---- */
static bool fused_fits(const xent_args *a)
{
    return a->width > 0 && a->width <= WIDEST_FUSED && a->width % 8 == 0 && a->vocab > 0 &&
           a->vocab < INT32_MAX && a->labels > 0 &&
           all_aligned(a->hidden, a->weight, a->d_weight, a->d_hidden);
}

/* Blocks of the fused kernels that fill the device. */
static int64_t blocks_of(bool hopper)
{
    int device = 0, processors = 0;
    (void)cudaGetDevice(&device);
    (void)cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
    return kernel_max(1, processors) * (hopper ? 1 : 2);
}

/* Sizes and places. What depends on the number of labels stays below a bound that holds for every smaller
 * number, so memory planned for the most labels serves fewer. */
static xent_block fused_layout(const xent_args *a, bool hopper, scratch_taker *s)
{
    xent_block b = {};
    b.a = *a, b.hopper = hopper;
    int64_t blocks = blocks_of(hopper), tile = hopper ? (int)HOPPER_TILE : (int)TILE;
    b.tiles = kernel_blocks(a->vocab, tile);
    b.padded = round_up(a->labels, BLOCK_ROWS);
    int64_t most_splits = kernel_min(SPLITS_MOST, b.tiles),
            vocab_blocks = kernel_blocks(a->vocab, BLOCK_ROWS);
    b.splits = kernel_max(1, kernel_min(most_splits, blocks / (b.padded / BLOCK_ROWS)));
    int64_t split_rows = kernel_min(most_splits * b.padded, kernel_max(b.padded, blocks * BLOCK_ROWS));
    /* d_weight is made beside the rest of a backward pass: where a block has a multiprocessor to itself, half
     * of them are left to that */
    int64_t weight_blocks = hopper ? blocks / 2 : blocks;
    b.label_splits = kernel_min(kernel_blocks(a->labels, tile),
                                kernel_max(1, kernel_min(LABEL_SPLITS_MOST, weight_blocks / vocab_blocks)));
    b.stats = take<float4>(s, split_rows);
    b.target_logit = take<float>(s, b.padded);
    b.sums = take<bf16>(s, split_rows * a->width);
    b.notes = take<label_note>(s, b.padded);
    b.x_copy = take<bf16>(s, a->labels * a->width);
    b.x = a->row ? b.x_copy : (const bf16 *)a->hidden;
    b.d_x = take<float>(s, a->labels * a->width);
    b.weight_parts = take<float>(s, b.label_splits > 1 ? b.label_splits * a->vocab * a->width : 0);
    b.arrived = take<int>(s, vocab_blocks);
    b.first_label = take<int>(s, a->n_hidden);
    b.shared_row = take<int>(s, a->n_hidden);
    return b;
}

template <int D> static void fused_scan(const kernel_run *run, const xent_block &b, int backward)
{
    if (b.hopper) return xent_hopper_scan(run, b, backward);
    auto scan = !backward    ? xent_scan_kernel<D, false, true>
                : b.a.argmax ? xent_scan_kernel<D, true, true>
                             : xent_scan_kernel<D, true, false>;
    cuda_launch_early(run->early, scan, dim3((unsigned)b.splits, (unsigned)(b.padded / BLOCK_ROWS)),
                      dim3(FUSED_THREADS), sizeof(scan_shared<D>), (cudaStream_t)run->stream, b);
}

/* The labels' losses and gradients. */
template <int D> static void fused_labels(const kernel_run *run, const xent_block &b, int backward)
{
    fused_scan<D>(run, b, backward);
    cuda_launch_early(run->early, backward ? xent_join_kernel<D, true> : xent_join_kernel<D, false>,
                      dim3((unsigned)kernel_blocks(b.a.labels * (D / 4), JOIN_THREADS)), dim3(JOIN_THREADS),
                      0, (cudaStream_t)run->stream, b);
}

template <int D> static void fused_weight(const kernel_run *run, const xent_block &b)
{
    if (b.hopper) return xent_hopper_weight(run, b);
    cuda_launch_early(run->early, xent_weight_kernel<D>,
                      dim3((unsigned)kernel_blocks(b.a.vocab, BLOCK_ROWS), (unsigned)b.label_splits),
                      dim3(FUSED_THREADS), sizeof(weight_shared<D>), (cudaStream_t)run->stream, b);
}

/* Where there is a side, what d_weight is made of goes to memory that stays, and d_weight to the side. */
static void fused(const kernel_run *run, const xent_args *a, int backward)
{
    scratch_taker counted = {}, scratch = {(char *)run->scratch, 0};
    bool hopper = xent_hopper_usable();
    xent_block b = fused_layout(a, hopper, &counted);
    int weight = backward && a->d_weight, narrow = a->width <= 64;
    void *handed = weight ? side_memory(run, counted.used) : NULL;
    if (handed) scratch.base = (char *)handed;
    b = fused_layout(a, hopper, &scratch);
    narrow ? fused_labels<64>(run, b, backward) : fused_labels<128>(run, b, backward);
    if (weight) {
        const kernel_run *then = handed ? side_run(run) : run;
        narrow ? fused_weight<64>(then, b) : fused_weight<128>(then, b);
    }
    if (backward && a->row) spread<bf16>(run, a, b.d_x, b.first_label, b.shared_row);
}

/* ---- by products ---- */
template <typename T> struct xent_pieces {
    int64_t labels, stride; /* of one block; elements between rows of logits */
    float *logits;          /* [labels, stride] */
    T *p, *x; /* [labels, stride]: gradient of the logits, for float where the logits were; [labels, width] */
    float *d_x; /* [all labels, width] */
    int *first_label, *shared_row;
};

template <typename T> static xent_pieces<T> pieces_of(const xent_args *a, scratch_taker *s)
{
    xent_pieces<T> p = {};
    p.stride = round_up(a->vocab, 8);
    int64_t fit = LOGITS_MOST / kernel_max(1, p.stride * (int64_t)sizeof(float));
    p.labels = kernel_min(a->labels, kernel_max(64, fit));
    p.logits = take<float>(s, p.labels * p.stride);
    p.p = sizeof(T) == sizeof(float) ? (T *)p.logits : take<T>(s, p.labels * p.stride);
    p.x = take<T>(s, p.labels * a->width);
    p.d_x = take<float>(s, a->labels * a->width);
    p.first_label = take<int>(s, a->n_hidden);
    p.shared_row = take<int>(s, a->n_hidden);
    return p;
}

/* Rows of hidden for labels first ..; also clears the map of rows to labels. */
template <typename T>
__global__ void __launch_bounds__(ROW_THREADS)
    xent_gather_kernel(xent_args a, xent_pieces<T> p, int64_t first, int64_t labels)
{
    int64_t n = (int64_t)blockIdx.x * ROW_THREADS + threadIdx.x, count = label_count(a);
    if (first == 0)
        for (int64_t i = n; i < a.n_hidden; i += (int64_t)gridDim.x * ROW_THREADS)
            p.first_label[i] = EMPTY, p.shared_row[i] = 0;
    if (n >= labels * a.width) return;
    int64_t label = first + n / a.width;
    float x = label < count ? cuda_load((const T *)a.hidden + a.row[label] * a.width + n % a.width) : 0;
    cuda_store(p.x + n, x);
}

/* The larger value, of equal ones the earlier index; over the block. */
static __device__ inline void block_best(float &value, int &at, float *values, int *places)
{
    for (int step = 16; step > 0; step /= 2) {
        float other = __shfl_xor_sync(CUDA_FULL_WARP, value, step);
        int place = __shfl_xor_sync(CUDA_FULL_WARP, at, step);
        if (other > value || (other == value && place < at)) value = other, at = place;
    }
    int warp = (int)threadIdx.x / 32;
    if (threadIdx.x % 32 == 0) values[warp] = value, places[warp] = at;
    __syncthreads();
    for (int w = 0; w < ROW_THREADS / 32; w++)
        if (values[w] > value || (values[w] == value && places[w] < at)) value = values[w], at = places[w];
    __syncthreads();
}

/* A block: one label's logits. Backward leaves grad_scale (softmax - [target]) in p; 0 where there is no
 * loss. */
template <typename T>
__global__ void __launch_bounds__(ROW_THREADS)
    xent_softmax_kernel(xent_args a, xent_pieces<T> p, int64_t first, int backward)
{
    __shared__ float room[32];
    __shared__ int places[32];
    int64_t label = first + blockIdx.x, me = threadIdx.x;
    float *z = p.logits + blockIdx.x * p.stride;
    T *gradient = p.p + blockIdx.x * p.stride;
    if (label >= label_count(a)) {
        for (int64_t v = me; backward && v < a.vocab; v += ROW_THREADS) cuda_store(gradient + v, 0);
        return;
    }
    float best = -INFINITY, sum = 0;
    int best_at = INT32_MAX;
    for (int64_t v = me; v < a.vocab; v += ROW_THREADS) {
        if (z[v] > best) best = z[v], best_at = (int)v;
        if (a.logits) ((float *)a.logits)[label * a.vocab + v] = z[v];
    }
    block_best(best, best_at, room, places);
    for (int64_t v = me; v < a.vocab; v += ROW_THREADS) sum += expf(z[v] - best);
    sum = block_sum(sum, room);
    int64_t target = a.target[label];
    float log_sum = logf(sum), log_prob = target < 0 ? 0 : z[target] - best - log_sum;
    if (me == 0) {
        ((float *)a.log_prob)[label] = log_prob;
        if (a.argmax) a.argmax[label] = best_at == INT32_MAX ? 0 : best_at; /* nothing compares among NaNs */
    }
    if (!backward) return;
    __syncthreads(); /* z[target] has been read by all: gradient may lie in the same place */
    float scale = target < 0 ? 0 : (float)*a.grad_scale;
    for (int64_t v = me; v < a.vocab; v += ROW_THREADS)
        cuda_store(gradient + v, scale * (v == target ? expm1f(log_prob) : expf(z[v] - best - log_sum)));
    if (me == 0 && a.row) mark_row(a, label, p.first_label, p.shared_row);
}

template <typename T>
static void products_weight(const kernel_run *run, const xent_args *a, const xent_pieces<T> &p, const T *x,
                            int64_t first)
{
    int64_t w = a->width;
    cuda_blas_product d_weight = {};
    d_weight.m = a->vocab, d_weight.n = w, d_weight.k = kernel_min(p.labels, a->labels - first);
    d_weight.trans_a = 1, d_weight.alpha = d_weight.beta = 1;
    d_weight.type = sizeof(T) == sizeof(float) ? CUDA_BLAS_F32 : CUDA_BLAS_BF16;
    d_weight.type_out = CUDA_BLAS_F32;
    d_weight.a = p.p, d_weight.b = x, d_weight.c = d_weight.d = a->d_weight;
    d_weight.lda = p.stride, d_weight.ldb = w, d_weight.ldc = d_weight.ldd = w;
    cuda_blas_multiply(run, &d_weight);
}

/* handed: the pieces stay until the side is done with them. */
template <typename T>
static void products_block(const kernel_run *run, const xent_args *a, const xent_pieces<T> &p, int64_t first,
                           int backward, bool handed)
{
    cudaStream_t stream = (cudaStream_t)run->stream;
    cuda_blas_type type = sizeof(T) == sizeof(float) ? CUDA_BLAS_F32 : CUDA_BLAS_BF16;
    int64_t n = kernel_min(p.labels, a->labels - first), w = a->width;
    const T *x = a->row ? p.x : (const T *)a->hidden + first * w;
    if (a->row)
        cuda_launch(xent_gather_kernel<T>, dim3((unsigned)kernel_max(1, kernel_blocks(n * w, ROW_THREADS))),
                    dim3(ROW_THREADS), 0, stream, *a, p, first, n);
    cuda_blas_product logits = {};
    logits.m = n, logits.n = a->vocab, logits.k = w, logits.trans_b = 1, logits.alpha = 1;
    logits.type = type, logits.type_out = CUDA_BLAS_F32;
    logits.a = x, logits.b = a->weight, logits.d = p.logits;
    logits.lda = w, logits.ldb = w, logits.ldc = logits.ldd = p.stride;
    cuda_blas_multiply(run, &logits);
    cuda_launch(xent_softmax_kernel<T>, dim3((unsigned)n), dim3(ROW_THREADS), 0, stream, *a, p, first,
                backward);
    if (!backward) return;
    if (a->d_weight) products_weight<T>(handed ? side_run(run) : run, a, p, x, first);
    cuda_blas_product d_x = {};
    d_x.m = n, d_x.n = w, d_x.k = a->vocab, d_x.alpha = 1, d_x.type = type;
    d_x.type_out = a->row ? CUDA_BLAS_F32 : type;
    d_x.a = p.p, d_x.b = a->weight;
    d_x.d = a->row ? (void *)(p.d_x + first * w) : (void *)((T *)a->d_hidden + first * w);
    d_x.lda = p.stride, d_x.ldb = w, d_x.ldc = d_x.ldd = w;
    cuda_blas_multiply(run, &d_x);
}

template <typename T> static void by_products(const kernel_run *run, const xent_args *a, int backward)
{
    scratch_taker counted = {}, scratch = {(char *)run->scratch, 0};
    xent_pieces<T> p = pieces_of<T>(a, &counted);
    void *handed = backward && a->d_weight && a->labels <= p.labels ? side_memory(run, counted.used) : NULL;
    if (handed) scratch.base = (char *)handed;
    p = pieces_of<T>(a, &scratch);
    for (int64_t first = 0; first < a->labels; first += p.labels)
        products_block<T>(run, a, p, first, backward, handed != NULL);
    if (!backward) return;
    if (a->labels > 0 && a->row)
        spread<T>(run, a, p.d_x, p.first_label, p.shared_row);
    else if (a->labels == 0)
        (void)cudaMemsetAsync(a->d_hidden, 0, (size_t)(a->n_hidden * a->width) * sizeof(T),
                              (cudaStream_t)run->stream);
}

/* ---- entries ---- */
static void xent(const kernel_run *run, const xent_args *a, int backward, float)
{
    by_products<float>(run, a, backward);
}
static void xent(const kernel_run *run, const xent_args *a, int backward, bf16)
{
    if (fused_fits(a))
        fused(run, a, backward);
    else
        by_products<bf16>(run, a, backward);
}

/* Pointers are not known yet: the larger of both ways. */
template <typename T> static void xent_sizes(const xent_args *a, kernel_sizes *sizes)
{
    scratch_taker one = {}, other = {};
    pieces_of<T>(a, &one);
    if (sizeof(T) == sizeof(bf16) && fused_fits(a)) fused_layout(a, xent_hopper_usable(), &other);
    *sizes = {};
    sizes->scratch = one.used > other.used ? one.used : other.used;
}

#define ENTRIES(T, suffix)                                                                                   \
    extern "C" void xent_sizes_cuda_##suffix(const kernel_run *, const xent_args *a, kernel_sizes *sizes)    \
    {                                                                                                        \
        xent_sizes<T>(a, sizes);                                                                             \
    }                                                                                                        \
    extern "C" void xent_forward_cuda_##suffix(const kernel_run *run, const xent_args *a)                    \
    {                                                                                                        \
        xent(run, a, 0, T());                                                                                \
    }                                                                                                        \
    extern "C" void xent_backward_cuda_##suffix(const kernel_run *run, const xent_args *a)                   \
    {                                                                                                        \
        xent(run, a, 1, T());                                                                                \
    }

ENTRIES(float, f32)
ENTRIES(bf16, bf16)
