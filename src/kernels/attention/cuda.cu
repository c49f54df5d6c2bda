/* Causal softmax attention on CUDA: which kernel for which shape. */
#include "kernels/attention/cuda_backward.cuh"
#include "kernels/attention/cuda_step.cuh"

template <typename T> static attention_view<T> attention_view_of(const attention_args *a)
{
    attention_view<T> v = {};
    v.q = (const T *)a->q, v.k = (const T *)a->k, v.v = (const T *)a->v;
    v.o = (const T *)a->o, v.d_o = (const T *)a->d_o;
    v.cache_k = (const float *)a->cache_k, v.cache_v = (const float *)a->cache_v;
    v.position = a->position;
    v.length = a->length, v.heads = a->heads, v.heads_kv = a->heads_kv;
    v.K = a->dim_k, v.V = a->dim_v;
    v.window = a->window, v.capacity = a->capacity;
    v.scale = (float)a->scale;
    return v;
}

/* Shares of the keys of one query where there are few queries: enough blocks to fill the device. */
static int attention_splits(const attention_args *a)
{
    int64_t queries = a->batch * a->length * a->heads, keys = a->window > 0 ? a->window : a->capacity;
    int64_t most = kernel_min(STEP_SPLITS, kernel_blocks(keys, STEP_THREADS));
    return (int)kernel_max(1, kernel_min(most, 528 / kernel_max(1, queries)));
}

/* Bytes for dS of all tiles, where bf16 heads of 65 to 128 channels make it worth noting; 0: it is not, or
 * there are too many. */
static size_t attention_squares(const attention_args *a, size_t element)
{
    const size_t most = (size_t)64 << 20;
    int64_t tiles = kernel_blocks(a->length, TILE), widest = kernel_max(a->dim_k, a->dim_v);
    double bytes =
        (double)(a->batch * a->heads) * (double)tiles * (double)tiles * (TILE * TILE * sizeof(bf16));
    return element == sizeof(bf16) && widest > TILE && widest <= 2 * TILE && bytes <= (double)most
               ? (size_t)bytes
               : 0;
}

static size_t attention_deltas(const attention_args *a)
{
    return kernel_round64((size_t)(a->batch * a->heads * a->length) * sizeof(float));
}

static void attention_sizes(const attention_args *a, size_t element, kernel_sizes *sizes)
{
    size_t token = (size_t)(a->heads_kv * (a->dim_k + a->dim_v)) * sizeof(float);
    size_t backward = attention_deltas(a) + attention_squares(a, element);
    size_t partial = (size_t)(a->batch * a->heads * STEP_MOST * STEP_SPLITS * (a->dim_v + 2)) * sizeof(float);
    *sizes = kernel_sizes();
    sizes->state = kernel_round64((size_t)(a->batch * a->capacity) * token);
    sizes->scratch = kernel_round64(backward > partial ? backward : partial);
}

/* Groups of threads that share the tiles of keys of a block (or of queries, backward): two where one would
 * leave a multiprocessor with too few warps. */
template <typename T, int KB, bool CACHED> static constexpr int attention_groups()
{
    return sizeof(T) == 2 && !CACHED && KB == 2 ? 2 : 1;
}

/* Two groups: the heads first. */
static dim3 attention_grid(int groups, int64_t tiles, int64_t heads, int64_t values)
{
    return groups == 1 ? dim3((unsigned)tiles, (unsigned)heads, (unsigned)values)
                       : dim3((unsigned)heads, (unsigned)tiles, (unsigned)values);
}

template <typename T, int KB, int VB, bool CACHED>
static void run_forward(const kernel_run *run, const attention_args *a)
{
    constexpr int GROUPS = attention_groups<T, KB, CACHED>();
    int tiles =
        (KB ? KB : 1) + (sizeof(T) == 4) + ((KB ? KB : 1) + VB) * (sizeof(T) == 2 && !CACHED && KB ? 2 : 1);
    dim3 grid = attention_grid(GROUPS, kernel_blocks(a->length, TILE), a->batch * a->heads,
                               kernel_blocks(a->dim_v, VB * TILE));
    cuda_launch(attention_forward_kernel<T, KB, VB, CACHED, GROUPS>, grid, dim3(TILE_THREADS, GROUPS),
                (size_t)tiles * tile_of<T>::SIZE * sizeof(T), (cudaStream_t)run->stream,
                attention_view_of<T>(a), (T *)a->o, (float *)a->lse);
}

static void run_pair(const kernel_run *run, const attention_args *a)
{
    cuda_launch(attention_forward_pair,
                dim3((unsigned)kernel_blocks(a->length, 2 * TILE), (unsigned)(a->batch * a->heads)),
                dim3(TILE_THREADS), 6 * tile_of<bf16>::SIZE * sizeof(bf16), (cudaStream_t)run->stream,
                attention_view_of<bf16>(a), (bf16 *)a->o, (float *)a->lse);
}

template <typename T, bool CACHED> static void choose_forward(const kernel_run *run, const attention_args *a)
{
    if (sizeof(T) == 2 && !CACHED && a->dim_k <= TILE && a->dim_v <= TILE)
        run_pair(run, a);
    else if (a->dim_k <= TILE && a->dim_v <= TILE)
        run_forward<T, 1, 1, CACHED>(run, a);
    else if (a->dim_k <= 2 * TILE && a->dim_v <= 2 * TILE)
        run_forward<T, 2, 2, CACHED>(run, a);
    else
        run_forward<T, 0, 1, CACHED>(run, a);
}

template <typename T> static void run_step(const kernel_run *run, const attention_args *a)
{
    int splits = attention_splits(a);
    int64_t queries = a->batch * a->length * a->heads, groups = kernel_max(1, STEP_THREADS / a->dim_v);
    size_t shared = (size_t)(a->dim_k + STEP_THREADS + groups * a->dim_v) * sizeof(float);
    cuda_launch(attention_step<T>, dim3((unsigned)splits, (unsigned)queries), dim3(STEP_THREADS), shared,
                (cudaStream_t)run->stream, attention_view_of<T>(a), (float *)run->scratch);
    cuda_launch(attention_join<T>, dim3((unsigned)queries), dim3(64), 0, (cudaStream_t)run->stream,
                (const float *)run->scratch, (T *)a->o, a->dim_v, splits);
}

template <typename T>
static void store_ring(const kernel_run *run, const attention_args *a, const void *own, void *ring,
                       int64_t dim)
{
    int64_t row = a->heads_kv * dim, count = a->batch * kernel_min(a->length, a->capacity) * row;
    if (count > 0)
        cuda_launch(attention_store<T>, dim3((unsigned)kernel_blocks(count, STEP_THREADS)),
                    dim3(STEP_THREADS), 0, (cudaStream_t)run->stream, (const T *)own, (float *)ring,
                    a->position, a->length, a->capacity, row, count);
}

template <typename T> static void attention_forward(const kernel_run *run, const attention_args *a)
{
    if (a->batch * a->length * a->heads * a->dim_v == 0) return;
    if (!a->cache_k) {
        choose_forward<T, false>(run, a);
        return;
    }
    if (a->length <= STEP_MOST && !a->lse)
        run_step<T>(run, a);
    else
        choose_forward<T, true>(run, a);
    store_ring<T>(run, a, a->k, a->cache_k, a->dim_k);
    store_ring<T>(run, a, a->v, a->cache_v, a->dim_v);
}

template <typename T, int KB, int VB> static void run_backward(const kernel_run *run, const attention_args *a)
{
    attention_view<T> v = attention_view_of<T>(a);
    const float *delta = (const float *)run->scratch, *lse = (const float *)a->lse;
    constexpr int GROUPS = attention_groups<T, KB, false>();
    int tiles = (KB + VB) * (sizeof(T) == 2 ? 1 + 2 * GROUPS : 2) + (sizeof(T) == 4);
    size_t shared = (size_t)tiles * tile_of<T>::SIZE * sizeof(T);
    int64_t rows = kernel_blocks(a->length, TILE);
    T *squares =
        attention_squares(a, sizeof(T)) ? (T *)((char *)run->scratch + attention_deltas(a)) : nullptr;
    cuda_launch(attention_backward_kernel<T, KB, VB, true, GROUPS>,
                attention_grid(GROUPS, rows, a->batch * a->heads_kv, 1), dim3(TILE_THREADS, GROUPS), shared,
                (cudaStream_t)run->stream, v, lse, delta, (T *)a->d_k, (T *)a->d_v, squares);
    if constexpr (GROUPS == 2)
        if (squares) {
            cuda_launch(attention_queries<KB>, attention_grid(GROUPS, rows, a->batch * a->heads, 1),
                        dim3(TILE_THREADS, GROUPS), 4 * (1 + KB) * tile_of<T>::SIZE * sizeof(T),
                        (cudaStream_t)run->stream, v, squares, (T *)a->d_q);
            return;
        }
    cuda_launch(attention_backward_kernel<T, KB, VB, false, GROUPS>,
                attention_grid(GROUPS, rows, a->batch * a->heads, 1), dim3(TILE_THREADS, GROUPS), shared,
                (cudaStream_t)run->stream, v, lse, delta, (T *)a->d_q, (T *)nullptr, (T *)nullptr);
}

template <typename T> static void run_backward_wide(const kernel_run *run, const attention_args *a)
{
    attention_view<T> v = attention_view_of<T>(a);
    const float *delta = (const float *)run->scratch, *lse = (const float *)a->lse;
    size_t shared = 3 * (size_t)tile_of<T>::SIZE * sizeof(T);
    unsigned rows = (unsigned)kernel_blocks(a->length, TILE), keys = (unsigned)kernel_blocks(a->dim_k, TILE),
             values = (unsigned)kernel_blocks(a->dim_v, TILE);
    cuda_launch(attention_backward_wide<T, true>,
                dim3(rows, (unsigned)(a->batch * a->heads_kv), keys + values), dim3(TILE_THREADS), shared,
                (cudaStream_t)run->stream, v, lse, delta, (T *)a->d_k, (T *)a->d_v);
    cuda_launch(attention_backward_wide<T, false>, dim3(rows, (unsigned)(a->batch * a->heads), keys),
                dim3(TILE_THREADS), shared, (cudaStream_t)run->stream, v, lse, delta, (T *)a->d_q,
                (T *)nullptr);
}

template <typename T> static void attention_backward(const kernel_run *run, const attention_args *a)
{
    int64_t rows = a->batch * a->length * a->heads;
    if (rows == 0) return;
    cuda_launch(attention_delta<T>, dim3((unsigned)kernel_blocks(rows, DELTA_ROWS)), dim3(DELTA_THREADS), 0,
                (cudaStream_t)run->stream, (const T *)a->o, (const T *)a->d_o, (float *)run->scratch,
                a->length, a->heads, a->dim_v, rows);
    if (a->dim_k <= TILE && a->dim_v <= TILE)
        run_backward<T, 1, 1>(run, a);
    else if (a->dim_k <= 2 * TILE && a->dim_v <= 2 * TILE)
        run_backward<T, 2, 2>(run, a);
    else
        run_backward_wide<T>(run, a);
}

#define ATTENTION_ENTRIES(type, T)                                                                           \
    extern "C" void attention_sizes_cuda_##type(const kernel_run *, const attention_args *a,                 \
                                                kernel_sizes *sizes)                                         \
    {                                                                                                        \
        attention_sizes(a, sizeof(T), sizes);                                                                \
    }                                                                                                        \
    extern "C" void attention_forward_cuda_##type(const kernel_run *run, const attention_args *a)            \
    {                                                                                                        \
        attention_forward<T>(run, a);                                                                        \
    }                                                                                                        \
    extern "C" void attention_backward_cuda_##type(const kernel_run *run, const attention_args *a)           \
    {                                                                                                        \
        attention_backward<T>(run, a);                                                                       \
    }
ATTENTION_ENTRIES(f32, float)
ATTENTION_ENTRIES(bf16, bf16)
