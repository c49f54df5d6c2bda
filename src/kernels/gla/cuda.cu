/* Gated linear attention on CUDA: bf16 of the usual widths as in cuda_fast.cu, all else all chunks at once
 * (cuda_gated.h), and token by token where a call brings only a few. */
#include "kernels/cuda_gated.h"
#include "kernels/gla/cuda_fast.h"

enum { STEP_MOST = 4, STEP_COLUMNS = 32, STEP_WARPS = 8 };

/* A few tokens: each thread holds one column of the state. Grid: blocks of values, batch * heads. */
template <typename T>
__global__ void gla_step(const T *q, const T *k, const T *v, const T *g, T *o, const float *in, float *out,
                         int64_t length, int64_t heads, int64_t K, int64_t V, float scale)
{
    __shared__ float room[STEP_WARPS][STEP_COLUMNS];
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    int64_t head = blockIdx.y, j = (int64_t)blockIdx.x * STEP_COLUMNS + lane;
    const float *state = in ? in + head * K * V : nullptr;
    out += head * K * V;
    for (int64_t t = 0; t < length; t++) {
        int64_t at = (head / heads * length + t) * heads + head % heads;
        float value = j < V ? cuda_load(v + at * V + j) : 0, sum = 0;
#pragma unroll 4
        for (int64_t i = warp; i < K; i += STEP_WARPS) {
            float before = state && j < V ? state[i * V + j] : 0;
            float after = __expf(cuda_load(g + at * K + i)) * before + cuda_load(k + at * K + i) * value;
            if (j < V) out[i * V + j] = after;
            sum += after * cuda_load(q + at * K + i);
        }
        room[warp][lane] = sum;
        __syncthreads();
        if (warp == 0 && j < V) {
            for (int w = 1; w < STEP_WARPS; w++) sum += room[w][lane];
            cuda_store(o + at * V + j, scale * sum);
        }
        __syncthreads();
        state = out;
    }
}

struct gla_room { /* bytes */
    size_t states, ends, carry;
};

static gla_room gla_bytes(const gla_args *a, int64_t chunks)
{
    size_t heads = (size_t)(a->batch * a->heads), keys = (size_t)a->dim_k, row = (size_t)a->dim_v;
    gla_room r;
    r.states = kernel_round64(heads * (size_t)chunks * keys * row * sizeof(float));
    r.ends = kernel_round64(heads * (size_t)chunks * keys * sizeof(float));
    r.carry = kernel_round64(heads * keys * row * sizeof(float));
    return r;
}

static int64_t gla_segment(const gla_args *a)
{
    gla_room one = gla_bytes(a, 1);
    return gated_segment(kernel_blocks(a->length, TILE), (int64_t)one.states);
}

static void gla_sizes(const gla_args *a, kernel_sizes *sizes)
{
    gla_room all = gla_bytes(a, kernel_blocks(a->length, TILE)), some = gla_bytes(a, gla_segment(a));
    size_t forward = some.states + some.ends + some.carry;
    sizes->state = all.carry;
    sizes->saved = all.states + all.ends;
    sizes->scratch = forward > all.states ? forward : all.states;
}

/* Scratch also serves shorter calls than the one asked about, which may go the other way. */
static void gla_sizes_of(const gla_args *a, size_t element, kernel_sizes *sizes)
{
    kernel_sizes fast = {};
    gla_args shorter = *a;
    shorter.length = kernel_min(a->length, CHAIN_MOST);
    if (gla_fast_fits(a, element)) return gla_fast_sizes(a, sizes);
    gla_sizes(a, sizes);
    if (gla_fast_fits(&shorter, element)) gla_fast_sizes(&shorter, &fast);
    if (fast.scratch > sizes->scratch) sizes->scratch = fast.scratch;
}

template <typename T> static gated<T> gla_pass(const gla_args *a)
{
    gated<T> p = {};
    p.q = (const T *)a->q, p.k = (const T *)a->k, p.v = (const T *)a->v, p.g = (const T *)a->g;
    p.d_o = (const T *)a->d_o;
    p.total = p.q_total = p.length = a->length;
    p.heads = a->heads;
    p.keys = a->dim_k;
    p.values = p.row = a->dim_v;
    p.chunks = kernel_blocks(a->length, TILE);
    p.scale = (float)a->scale;
    return p;
}

template <typename T> static void gla_forward(const kernel_run *run, const gla_args *a)
{
    gated<T> p = gla_pass<T>(a);
    int64_t heads = a->batch * a->heads, chunks = p.chunks, segment = a->saved ? chunks : gla_segment(a);
    const float *in = (const float *)a->state_in;
    float *out = (float *)a->state_out;
    if (heads == 0 || a->dim_v == 0) return;
    if (!a->saved && out && a->length > 0 && a->length <= STEP_MOST) {
        cuda_launch(gla_step<T>, dim3((unsigned)kernel_blocks(a->dim_v, STEP_COLUMNS), (unsigned)heads),
                    dim3(STEP_COLUMNS * STEP_WARPS), 0, (cudaStream_t)run->stream, p.q, p.k, p.v, p.g,
                    (T *)a->o, in, out, a->length, a->heads, a->dim_k, a->dim_v, p.scale);
        return;
    }
    if (gla_fast_fits(a, sizeof(T))) return gla_fast_forward(run, a);
    gla_room room = gla_bytes(a, segment);
    char *memory = (char *)(a->saved ? a->saved : run->scratch);
    p.states = (float *)memory;
    p.ends = (float *)(memory + room.states);
    float *carry = a->saved ? nullptr : (float *)(memory + room.states + room.ends);
    for (int64_t done = 0; done < chunks || done == 0; done += segment) {
        bool last = done + segment >= chunks;
        p.chunks = kernel_min(segment, chunks - done);
        p.first = p.q_first = done * TILE;
        p.length = kernel_min(a->length - p.first, p.chunks * TILE);
        if (p.chunks > 0) gated_run_local<T, false>(run, p, a->batch);
        gated_run_scan<T, false>(run, p, a->batch, done ? carry : in, last ? out : carry);
        if (p.chunks > 0) gated_run_output(run, p, a->batch, (T *)a->o);
        if (last) break;
    }
}

template <typename T> static void gla_backward(const kernel_run *run, const gla_args *a)
{
    gated<T> p = gla_pass<T>(a);
    if (a->batch * a->heads * p.chunks == 0) return;
    if (gla_fast_fits(a, sizeof(T))) return gla_fast_backward(run, a);
    gla_room room = gla_bytes(a, p.chunks);
    p.states = (float *)a->saved;
    p.ends = (float *)((char *)a->saved + room.states);
    p.grads = (float *)run->scratch;
    gated_key_gradients<T> d = {(T *)a->d_q, (T *)a->d_k, (T *)a->d_g, nullptr, nullptr, nullptr};
    gated_run_local<T, true>(run, p, a->batch);
    gated_run_scan<T, true>(run, p, a->batch, nullptr, nullptr);
    gated_run_backward(run, p, a->batch, d, (T *)a->d_v);
}

#define GLA_ENTRIES(type, T)                                                                                 \
    extern "C" void gla_sizes_cuda_##type(const kernel_run *, const gla_args *a, kernel_sizes *sizes)        \
    {                                                                                                        \
        gla_sizes_of(a, sizeof(T), sizes);                                                                   \
    }                                                                                                        \
    extern "C" void gla_forward_cuda_##type(const kernel_run *run, const gla_args *a)                        \
    {                                                                                                        \
        gla_forward<T>(run, a);                                                                              \
    }                                                                                                        \
    extern "C" void gla_backward_cuda_##type(const kernel_run *run, const gla_args *a)                       \
    {                                                                                                        \
        gla_backward<T>(run, a);                                                                             \
    }
GLA_ENTRIES(f32, float)
GLA_ENTRIES(bf16, bf16)
