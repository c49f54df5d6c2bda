/* The gated delta rule on CUDA: memory and launches. */
#include "kernels/gdn/cuda_backward.cuh"
#include "kernels/gdn/cuda_fast.h"
#include "kernels/gdn/cuda_forward.cuh"
#include "kernels/gdn/cuda_scan_backward.cuh"
#include "kernels/gdn/cuda_step.cuh"
#include "kernels/gdn/gdn.h"

struct gdn_room { /* bytes */
    size_t states, inverse, W, U, gates, carry, rows, ends;
};

static gdn_room gdn_bytes(const gdn_args *a, int64_t chunks, size_t element)
{
    size_t heads = (size_t)(a->batch * a->heads), n = heads * (size_t)chunks, K = (size_t)a->dim_k,
           V = (size_t)a->dim_v, blocks = (size_t)kernel_blocks(a->dim_k, TILE);
    gdn_room r;
    r.states = kernel_round64(n * K * V * sizeof(float));
    r.inverse = kernel_round64(n * TILE * TILE * element);
    r.W = kernel_round64(n * TILE * K * element);
    r.U = kernel_round64(n * TILE * V * element);
    r.gates = kernel_round64(n * 2 * TILE * sizeof(float));
    r.carry = kernel_round64(heads * K * V * sizeof(float));
    r.rows = kernel_round64(n * (GDN_BY_BLOCK + GDN_SHARES * blocks) * TILE * sizeof(float));
    r.ends = kernel_round64(n * blocks * sizeof(float));
    return r;
}

/* What forward leaves for backward, where that follows. */
static size_t gdn_notes(const gdn_room &r)
{
    return r.states + r.inverse + r.W + r.U + r.gates;
}

/* How many chunks to process at once where their states are not kept: bounded memory, any length. */
static int64_t gdn_segment(const gdn_args *a)
{
    const int64_t budget = (int64_t)128 << 20, least = 4;
    gdn_room one = gdn_bytes(a, 1, sizeof(float));
    int64_t bytes = kernel_max(1, (int64_t)gdn_notes(one));
    return kernel_max(1, kernel_min(kernel_blocks(a->length, TILE), kernel_max(least, budget / bytes)));
}

static void gdn_sizes(const gdn_args *a, size_t element, kernel_sizes *sizes)
{
    if (element == sizeof(bf16) && gdn_fast_fits(a)) return gdn_fast_sizes(a, sizes);
    gdn_room all = gdn_bytes(a, kernel_blocks(a->length, TILE), element),
             some = gdn_bytes(a, gdn_segment(a), element);
    size_t forward = gdn_notes(some) + some.carry;
    size_t backward = all.states + 2 * all.U + 2 * all.inverse + all.rows + all.ends;
    sizes->state = all.carry;
    sizes->saved = gdn_notes(all);
    sizes->scratch = forward > backward ? forward : backward;
}

template <typename T> static gdn_view<T> gdn_pass(const gdn_args *a)
{
    gdn_view<T> p = {};
    p.q = (const T *)a->q, p.k = (const T *)a->k, p.v = (const T *)a->v;
    p.beta = (const T *)a->beta, p.g = (const T *)a->g, p.d_o = (const T *)a->d_o;
    p.total = p.length = a->length;
    p.heads = a->heads, p.K = a->dim_k, p.V = a->dim_v;
    p.chunks = kernel_blocks(a->length, TILE);
    p.scale = (float)a->scale;
    return p;
}

template <typename T> static size_t gdn_shared(int tiles)
{
    return sizeof(gdn_gates) + (size_t)tiles * tile_of<T>::SIZE * sizeof(T);
}

/* The notes' places. */
template <typename T> static void gdn_layout(gdn_view<T> &p, const gdn_room &room, char **memory)
{
    p.states = (float *)gdn_take(memory, room.states);
    p.inverse = (T *)gdn_take(memory, room.inverse);
    p.W = (T *)gdn_take(memory, room.W);
    p.U = (T *)gdn_take(memory, room.U);
    p.gates = (float *)gdn_take(memory, room.gates);
}

template <typename T> static size_t tiles_bytes(int64_t tiles)
{
    return (size_t)tiles * tile_of<T>::SIZE * sizeof(T);
}

template <typename T>
static void run_scan(const kernel_run *run, const gdn_args *a, const gdn_view<T> &p, const float *in,
                     float *out)
{
    dim3 grid((unsigned)(a->batch * a->heads), (unsigned)kernel_blocks(a->dim_v, TILE));
    int64_t blocks = kernel_blocks(p.K, TILE), stages = sizeof(T) == 2 ? 2 : 1;
    auto kernel = blocks <= 1 ? gdn_scan<T, 1> : blocks == 2 ? gdn_scan<T, 2> : gdn_scan_wide<T>;
    size_t shared = tiles_bytes<T>(blocks > 2 ? 3 : stages * (2 * blocks + 1) + blocks);
    cuda_launch(kernel, grid, dim3(TILE_THREADS), shared, (cudaStream_t)run->stream, p, in, out);
}

template <typename T>
static void run_scan_backward(const kernel_run *run, const gdn_args *a, const gdn_view<T> &p)
{
    dim3 grid((unsigned)(a->batch * a->heads), (unsigned)kernel_blocks(a->dim_v, TILE));
    int64_t blocks = kernel_blocks(p.K, TILE), stages = sizeof(T) == 2 ? 2 : 1;
    auto kernel = blocks <= 1   ? gdn_scan_backward<T, 1>
                  : blocks == 2 ? gdn_scan_backward<T, 2>
                                : gdn_scan_backward_wide<T>;
    size_t shared = tiles_bytes<T>(blocks > 2 ? 4 : stages * (3 * blocks + 2) + blocks);
    cuda_launch(kernel, grid, dim3(TILE_THREADS), shared, (cudaStream_t)run->stream, p);
}

template <typename T> static void gdn_forward(const kernel_run *run, const gdn_args *a)
{
    gdn_view<T> p = gdn_pass<T>(a);
    int64_t heads = a->batch * a->heads, chunks = p.chunks, segment = a->saved ? chunks : gdn_segment(a);
    const float *in = (const float *)a->state_in;
    float *out = (float *)a->state_out;
    if (heads == 0 || a->dim_v == 0) return;
    if (!a->saved && out && a->length > 0 && a->length <= STEP_MOST) {
        cuda_launch(gdn_step<T>, dim3((unsigned)kernel_blocks(a->dim_v, STEP_COLUMNS), (unsigned)heads),
                    dim3(STEP_COLUMNS * STEP_WARPS), 0, (cudaStream_t)run->stream, p, (T *)a->o, in, out);
        return;
    }
    if (sizeof(T) == sizeof(bf16) && gdn_fast_fits(a)) return gdn_fast_forward(run, a);
    gdn_room room = gdn_bytes(a, segment, sizeof(T));
    for (int64_t done = 0;; done += segment) {
        bool last = done + segment >= chunks;
        char *memory = (char *)(a->saved ? a->saved : run->scratch);
        p.chunks = kernel_min(segment, chunks - done);
        p.first = done * TILE;
        p.length = kernel_min(a->length - p.first, p.chunks * TILE);
        gdn_layout(p, room, &memory);
        float *carry = (float *)memory;
        if (p.chunks > 0)
            cuda_launch(gdn_prepare<T>, dim3((unsigned)(heads * p.chunks)), dim3(TILE_THREADS),
                        gdn_shared<float>(2), (cudaStream_t)run->stream, p);
        run_scan(run, a, p, done ? carry : in, last ? out : carry);
        if (p.chunks > 0)
            cuda_launch(gdn_output<T>,
                        dim3((unsigned)(heads * p.chunks), (unsigned)kernel_blocks(a->dim_v, TILE)),
                        dim3(TILE_THREADS), gdn_shared<T>(3), (cudaStream_t)run->stream, p, (T *)a->o);
        if (last) break;
    }
}

template <typename T> static void gdn_backward(const kernel_run *run, const gdn_args *a)
{
    gdn_view<T> p = gdn_pass<T>(a);
    cudaStream_t stream = (cudaStream_t)run->stream;
    unsigned chunks = (unsigned)(a->batch * a->heads * p.chunks),
             values = (unsigned)kernel_blocks(a->dim_v, TILE), keys = (unsigned)kernel_blocks(a->dim_k, TILE);
    if (chunks == 0) return;
    if (sizeof(T) == sizeof(bf16) && gdn_fast_fits(a)) return gdn_fast_backward(run, a);
    gdn_room room = gdn_bytes(a, p.chunks, sizeof(T));
    char *notes = (char *)a->saved, *memory = (char *)run->scratch;
    gdn_layout(p, room, &notes);
    p.grads = (float *)gdn_take(&memory, room.states);
    p.d_U = (T *)gdn_take(&memory, room.U);
    p.late = (T *)gdn_take(&memory, room.U);
    p.d_qk = (T *)gdn_take(&memory, room.inverse);
    p.d_kk = (T *)gdn_take(&memory, room.inverse);
    p.rows = (float *)gdn_take(&memory, room.rows);
    p.ends = (float *)gdn_take(&memory, room.ends);
    cuda_launch(gdn_corrections<T>, dim3(chunks, values), dim3(TILE_THREADS), gdn_shared<T>(2), stream, p);
    run_scan_backward(run, a, p);
    cuda_launch(gdn_squares_backward<T>, dim3(chunks), dim3(TILE_THREADS),
                gdn_shared<T>(4) + tile_of<float>::SIZE * sizeof(float), stream, p, (T *)a->d_v);
    cuda_launch(gdn_keys_backward<T>, dim3(chunks, keys), dim3(TILE_THREADS),
                gdn_shared<T>(sizeof(T) == 2 ? 6 : 5), stream, p, (T *)a->d_q, (T *)a->d_k);
    cuda_launch(gdn_gates_backward<T>, dim3(chunks), dim3(TILE), 0, stream, p, (T *)a->d_beta, (T *)a->d_g,
                (int)keys);
}

#define GDN_ENTRIES(type, T)                                                                                 \
    extern "C" void gdn_sizes_cuda_##type(const kernel_run *, const gdn_args *a, kernel_sizes *sizes)        \
    {                                                                                                        \
        gdn_sizes(a, sizeof(T), sizes);                                                                      \
    }                                                                                                        \
    extern "C" void gdn_forward_cuda_##type(const kernel_run *run, const gdn_args *a)                        \
    {                                                                                                        \
        gdn_forward<T>(run, a);                                                                              \
    }                                                                                                        \
    extern "C" void gdn_backward_cuda_##type(const kernel_run *run, const gdn_args *a)                       \
    {                                                                                                        \
        gdn_backward<T>(run, a);                                                                             \
    }
GDN_ENTRIES(f32, float)
GDN_ENTRIES(bf16, bf16)
