/* Gated slot attention on CUDA: bf16 with up to 64 slots as in cuda_fast.cu, all else as two gated passes
 * over the slots (cuda_gated.h), whose keys are the write weights 1 - e^g: one over the keys gives the
 * logits, one over the values the output. The weights of the slots are noted for backward; states are kept at
 * chunk starts only. */
#include "kernels/slots/cuda_fast.h"
#include "kernels/slots/cuda_weights.cuh"

struct slots_room { /* bytes */
    size_t states, ends, weights, logits, carry, grad_k, grad_v;
};

static slots_room slots_bytes(const slots_args *a, int64_t chunks, size_t element)
{
    size_t heads = (size_t)(a->batch * a->heads), n = heads * (size_t)chunks, S = (size_t)a->slots;
    slots_room r;
    r.states = kernel_round64(n * S * (size_t)(a->dim_k + a->dim_v) * sizeof(float));
    r.ends = kernel_round64(n * S * sizeof(float));
    r.weights = kernel_round64(n * TILE * S * element);
    r.logits = kernel_round64(n * TILE * S * sizeof(float));
    r.carry = kernel_round64(heads * S * (size_t)(a->dim_k + a->dim_v) * sizeof(float));
    r.grad_k = kernel_round64(n * S * (size_t)a->dim_k * sizeof(float));
    r.grad_v = kernel_round64(n * S * (size_t)a->dim_v * sizeof(float));
    return r;
}

static int64_t slots_segment(const slots_args *a)
{
    slots_room one = slots_bytes(a, 1, sizeof(float));
    return gated_segment(kernel_blocks(a->length, TILE), (int64_t)(one.states + one.weights + one.logits));
}

static void slots_sizes(const slots_args *a, size_t element, kernel_sizes *sizes)
{
    slots_room all = slots_bytes(a, kernel_blocks(a->length, TILE), element),
               some = slots_bytes(a, slots_segment(a), element);
    size_t forward = some.states + some.ends + some.weights + some.logits + some.carry;
    size_t backward = (all.grad_k > all.grad_v ? all.grad_k : all.grad_v) + 2 * all.logits;
    if (all.logits > forward) forward = all.logits; /* with notes only the logits are scratch */
    sizes->state = all.carry;
    sizes->saved = all.states + all.ends + all.weights;
    sizes->scratch = forward > backward ? forward : backward;
}

/* Scratch also serves shorter calls than the one asked about, which may go the other way. */
static void slots_sizes_of(const slots_args *a, size_t element, kernel_sizes *sizes)
{
    kernel_sizes fast = {};
    slots_args shorter = *a;
    shorter.length = kernel_min(a->length, CHAIN_MOST);
    if (slots_fast_fits(a, element)) return slots_fast_sizes(a, sizes);
    slots_sizes(a, element, sizes);
    if (slots_fast_fits(&shorter, element)) slots_fast_sizes(&shorter, &fast);
    if (fast.scratch > sizes->scratch) sizes->scratch = fast.scratch;
}

/* The pass over keys (values NULL) or over values. */
template <typename T> static gated<T> slots_pass(const slots_args *a, int over_values)
{
    gated<T> p = {};
    p.v = (const T *)(over_values ? a->v : a->k);
    p.g = (const T *)a->g;
    p.d_o = (const T *)(over_values ? a->d_o : a->q);
    p.total = p.q_total = p.length = a->length;
    p.heads = a->heads;
    p.keys = a->slots;
    p.values = over_values ? a->dim_v : a->dim_k;
    p.row = a->dim_k + a->dim_v;
    p.offset = over_values ? a->dim_k : 0;
    p.chunks = kernel_blocks(a->length, TILE);
    p.scale = 1;
    return p;
}

/* Weights of the slots from the states at chunk starts. */
template <typename T>
static void run_weights(const kernel_run *run, const slots_args *a, const gated<T> &keys, T *weights,
                        float *logits)
{
    cudaStream_t stream = (cudaStream_t)run->stream;
    bool direct = a->slots <= TILE;
    cuda_launch(slots_weights<T>, gated_grid(keys, a->batch, a->slots), dim3(TILE_THREADS),
                gated_shared<T>(sizeof(T) == 4 ? 3 : 4), stream, keys, (const T *)a->q, (float)a->scale,
                weights, direct ? (float *)nullptr : logits);
    int64_t rows = a->batch * keys.q_total * a->heads;
    if (!direct)
        cuda_launch(slots_softmax_rows<T>, dim3((unsigned)kernel_blocks(rows, ROW_WARPS)),
                    dim3(32 * ROW_WARPS), 0, stream, (const float *)logits, weights, a->slots, rows);
}

template <typename T> static void run_step(const kernel_run *run, const slots_args *a)
{
    int64_t groups = kernel_max(1, STEP_THREADS / a->dim_v);
    cuda_launch(slots_step<T>, dim3((unsigned)(a->batch * a->heads)), dim3(STEP_THREADS),
                (size_t)(3 * a->slots + groups * a->dim_v) * sizeof(float), (cudaStream_t)run->stream,
                (const T *)a->q, (const T *)a->k, (const T *)a->v, (const T *)a->g, (T *)a->o,
                (const float *)a->state_in, (float *)a->state_out, a->length, a->heads, a->dim_k, a->dim_v,
                a->slots, (float)a->scale);
}

template <typename T> static void slots_forward(const kernel_run *run, const slots_args *a)
{
    gated<T> keys = slots_pass<T>(a, 0), values = slots_pass<T>(a, 1);
    int64_t chunks = keys.chunks, segment = a->saved ? chunks : slots_segment(a);
    const float *in = (const float *)a->state_in;
    float *out = (float *)a->state_out;
    if (a->batch * a->heads == 0) return;
    if (!a->saved && out && a->length > 0 && a->length <= STEP_MOST) {
        run_step<T>(run, a);
        return;
    }
    if (slots_fast_fits(a, sizeof(T))) return slots_fast_forward(run, a);
    slots_room room = slots_bytes(a, segment, sizeof(T));
    char *memory = (char *)(a->saved ? a->saved : run->scratch);
    float *states = (float *)memory, *ends = (float *)(memory + room.states);
    T *weights = (T *)(memory + room.states + room.ends);
    char *rest = a->saved ? (char *)run->scratch : memory + room.states + room.ends + room.weights;
    float *logits = (float *)rest, *carry = a->saved ? nullptr : (float *)(rest + room.logits);
    keys.states = values.states = states, keys.ends = values.ends = ends;
    values.q = weights;
    for (int64_t done = 0;; done += segment) {
        bool last = done + segment >= chunks;
        keys.chunks = values.chunks = kernel_min(segment, chunks - done);
        keys.first = values.first = done * TILE;
        keys.length = values.length = kernel_min(a->length - keys.first, keys.chunks * TILE);
        keys.q_total = values.q_total = keys.length;
        if (keys.chunks > 0) {
            gated_run_local<T, false>(run, keys, a->batch);
            gated_run_local<T, false>(run, values, a->batch);
        }
        gated_run_scan<T, false>(run, keys, a->batch, done ? carry : in, last ? out : carry);
        if (keys.chunks > 0) {
            run_weights(run, a, keys, weights, logits);
            gated_run_output(run, values, a->batch, (T *)a->o);
        }
        if (last) break;
    }
}

template <typename T> static void slots_backward(const kernel_run *run, const slots_args *a)
{
    gated<T> keys = slots_pass<T>(a, 0), values = slots_pass<T>(a, 1);
    int64_t rows = a->batch * a->length * a->heads;
    if (rows == 0) return;
    if (slots_fast_fits(a, sizeof(T))) return slots_fast_backward(run, a);
    slots_room room = slots_bytes(a, keys.chunks, sizeof(T));
    char *notes = (char *)a->saved, *scratch = (char *)run->scratch;
    T *weights = (T *)(notes + room.states + room.ends);
    keys.states = values.states = (float *)notes, keys.ends = values.ends = (float *)(notes + room.states);
    keys.grads = values.grads = (float *)scratch;
    scratch += room.grad_k > room.grad_v ? room.grad_k : room.grad_v;
    float *d_weights = (float *)scratch, *gate = (float *)(scratch + room.logits);
    values.q = weights, keys.q_float = d_weights; /* which become the gradients of the logits */
    gated_key_gradients<T> of_values = {nullptr, nullptr, nullptr, d_weights, gate, nullptr},
                           of_keys = {nullptr, nullptr, (T *)a->d_g, nullptr, nullptr, gate};
    gated_run_local<T, true>(run, values, a->batch);
    gated_run_scan<T, true>(run, values, a->batch, nullptr, nullptr);
    gated_run_backward(run, values, a->batch, of_values, (T *)a->d_v);
    cuda_launch(slots_softmax_backward<T>, dim3((unsigned)kernel_blocks(rows, ROW_WARPS)),
                dim3(32 * ROW_WARPS), 0, (cudaStream_t)run->stream, (const T *)weights, d_weights,
                (float)a->scale, a->slots, rows);
    gated_run_local<T, true>(run, keys, a->batch);
    gated_run_scan<T, true>(run, keys, a->batch, nullptr, nullptr);
    gated_run_backward(run, keys, a->batch, of_keys, (T *)a->d_k);
    gated_run_output(run, keys, a->batch, (T *)a->d_q);
}

#define SLOTS_ENTRIES(type, T)                                                                               \
    extern "C" void slots_sizes_cuda_##type(const kernel_run *, const slots_args *a, kernel_sizes *sizes)    \
    {                                                                                                        \
        slots_sizes_of(a, sizeof(T), sizes);                                                                 \
    }                                                                                                        \
    extern "C" void slots_forward_cuda_##type(const kernel_run *run, const slots_args *a)                    \
    {                                                                                                        \
        slots_forward<T>(run, a);                                                                            \
    }                                                                                                        \
    extern "C" void slots_backward_cuda_##type(const kernel_run *run, const slots_args *a)                   \
    {                                                                                                        \
        slots_backward<T>(run, a);                                                                           \
    }
SLOTS_ENTRIES(f32, float)
SLOTS_ENTRIES(bf16, bf16)
