/* Slot attention in bf16 with up to 64 slots and heads up to 128 wide: the chains of cuda_gated_chain.h, and
 * the kernels between them, a block per chunk. Side 0 of the chain holds the keys, side 1 the values.
 *     forward:   logits = mix(q, keys),  P = softmax,  o = read(P, values)
 *     backward:  dP = mix(d_o, values),  dX = softmax backward,  d_q = read(dX, keys);  then the chain of
 * gradients, and d_k, d_v, d_g = collect(dX, P) */
#include "kernels/slots/cuda_fast.h"

#include "kernels/cuda_gated_chunk.h"
#include "kernels/slots/cuda_weights.cuh"

/* What lies between the kernels, each [batch * heads, chunks, 64, pad]. */
struct slots_notes {
    float *logits;            /* scaled; NULL: no backward will follow */
    bf16 *weights, *d_logits; /* P and scale dX, times e^G */
    bf16 *plain, *d_plain;    /* without e^G, of chunks with harsh gates only */
    float *shares;            /* what tokens give to the gates' gradients: X dX + P dP */
};

/* Tiles of the keys or values of a chunk, and of their states behind them. */
static __device__ inline void slots_fetch_x(bf16 *tiles, const chain &p, const gated_place &x, int i)
{
    const chain_side &side = p.side[i];
    chunk_fetch(tiles, side.x + x.at * side.width, p.heads * side.width, x.rows, side.width);
}

static __device__ inline void slots_fetch_state(bf16 *tiles, const chain &p, const gated_place &x, int i)
{
    const chain_side &side = p.side[i];
    chunk_fetch(tiles + chunk_parts(side.width) * tile_of<bf16>::SIZE,
                p.states + (x.head * p.chunks + x.chunk) * p.keys * p.row + side.offset, p.row, (int)p.keys,
                (side.width + 7) / 8 * 8);
    copy_async_commit();
}

/* y: logits. On return P the weights, x (dP) the gradient of the logits; shares as in slots_notes. */
static __device__ inline void slots_softmax_gradient(strip &x, strip &P, strip &shares, const strip &y,
                                                     int slots)
{
    P = y;
    slots_softmax(P, slots);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float mean = 0;
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int e = 2 * half; e < 2 * half + 2; e++) mean += P.x[n][e] * x.x[n][e];
        mean += __shfl_xor_sync(CUDA_FULL_WARP, mean, 1);
        mean += __shfl_xor_sync(CUDA_FULL_WARP, mean, 2);
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int e = 2 * half; e < 2 * half + 2; e++) {
                float d = P.x[n][e] * (x.x[n][e] - mean);
                shares.x[n][e] = P.x[n][e] * x.x[n][e] + d * y.x[n][e];
                x.x[n][e] = d;
            }
    }
}

/* left: q, or d_o; o: o, or d_q. Grid: chunks of all heads. Tiles: gates' weights; keys or values and states
 * of mix, then of read. */
template <bool BACKWARD>
__global__ void __launch_bounds__(TILE_THREADS, 2)
    slots_read(chain p, slots_notes notes, const bf16 *left, bf16 *o, float scale)
{
    CUDA_DYNAMIC_SHARED(char, shared);
    const int SIZE = tile_of<bf16>::SIZE, MIX = BACKWARD ? 1 : 0, READ = 1 - MIX;
    gated_sums *s = reinterpret_cast<gated_sums *>(shared);
    bf16 *weights = reinterpret_cast<bf16 *>(s + 1), *mix = weights + SIZE;
    const int64_t mix_width = p.side[MIX].width, read_width = p.side[READ].width;
    int parts = chunk_parts(mix_width);
    bf16 *read = mix + 2 * parts * SIZE;
    gated_place x = chain_place(p, blockIdx.x / p.chunks, blockIdx.x % p.chunks);
    int64_t note = (int64_t)blockIdx.x * TILE * p.pad;
    int slots = (int)p.keys, pad = (int)p.pad;
    fragment f[CHAIN_PARTS];
    strip logits, y, P, shares;
    auto fetch_left = [&] { chunk_left(f, left + x.at * mix_width, p.heads * mix_width, x.rows, mix_width); };
    auto fetch_states = [&] { slots_fetch_state(mix, p, x, MIX), slots_fetch_state(read, p, x, READ); };
    slots_fetch_x(mix, p, x, MIX);
    slots_fetch_x(read, p, x, READ);
    if (BACKWARD) {
        fetch_states();
        strip_fetch(logits, notes.logits + note, p.pad, TILE, pad);
    } else
        fetch_left();
    chunk_gates gates = chunk_gates_at(p, x, s, weights);
    cuda_wait_previous(); /* for the states, or d_o */
    if (BACKWARD)
        fetch_left();
    else
        fetch_states();
    copy_async_wait<1>();
    __syncthreads();
    chunk_mix(y, f, mix, mix + parts * SIZE, gates, parts);
    if (BACKWARD) {
        slots_softmax_gradient(y, P, shares, logits, slots);
        strip_to_memory(shares, notes.shares + note, p.pad, TILE, pad, 1);
        strip_each(y, [&](int, int, float &e) { e *= scale; });
        if (gates.harsh) {
            strip_to_memory(P, notes.plain + note, p.pad, TILE, pad, 1);
            strip_to_memory(y, notes.d_plain + note, p.pad, TILE, pad, 1);
        }
        strip_each(P, [&](int t, int c, float &e) { e *= gated_exp(gates.G(t, c)); });
        strip_to_memory(P, notes.weights + note, p.pad, TILE, pad, 1);
    } else {
        strip_each(y, [&](int, int, float &e) { e *= scale; });
        if (notes.logits) strip_to_memory(y, notes.logits + note, p.pad, TILE, pad, 1);
        slots_softmax(y, slots);
    }
    P = y;
    strip_each(P, [&](int t, int c, float &e) { e *= gated_exp(gates.G(t, c)); });
    if (BACKWARD) strip_to_memory(P, notes.d_logits + note, p.pad, TILE, pad, 1);
    fragment faded, scores;
    fragment_of(faded, P);
    chunk_scores(P, faded, y, gates, mix);
    fragment_of(scores, P);
    copy_async_wait<0>();
    __syncthreads();
    chunk_read(o + x.at * read_width, p.heads * read_width, 1, faded, scores,
               read + chunk_parts(read_width) * SIZE, read, gates, read_width);
}

/* d_k, d_v, d_g. Grid: chunks of all heads. Tiles: gates' weights; d, reader of each side; gradients of
 * states of each side, or with one_room of one after the other. */
__global__ static void __launch_bounds__(TILE_THREADS, 2)
    slots_collect(chain p, slots_notes notes, bf16 *d_k, bf16 *d_v, bf16 *d_g, bool one_room)
{
    CUDA_DYNAMIC_SHARED(char, shared);
    const int SIZE = tile_of<bf16>::SIZE;
    gated_sums *s = reinterpret_cast<gated_sums *>(shared);
    gated_place x = chain_place(p, blockIdx.x / p.chunks, blockIdx.x % p.chunks);
    int64_t note = (int64_t)blockIdx.x * TILE * p.pad, state = (int64_t)blockIdx.x * p.keys * p.row;
    int slots = (int)p.keys, pad = (int)p.pad;
    int parts[CHAIN_SIDES] = {chunk_parts(p.side[0].width), chunk_parts(p.side[1].width)};
    bf16 *weights = reinterpret_cast<bf16 *>(s + 1), *first = weights + SIZE,
         *second = first + (parts[0] + 1) * SIZE, *behind = second + (parts[1] + 1) * SIZE;
    auto grads_at = [&](int i) { return i && !one_room ? behind + parts[0] * SIZE : behind; };
    auto fetch_grads = [&](int i) {
        chunk_fetch(grads_at(i), p.grads + state + p.side[i].offset, p.row, slots,
                    (p.side[i].width + 7) / 8 * 8);
    };
    for (int i = 0; i < CHAIN_SIDES; i++) {
        const chain_side &side = p.side[i];
        bf16 *d = i ? second : first;
        chunk_fetch(d, side.d + x.at * side.width, p.heads * side.width, x.rows, side.width);
        tile_load_async(d + chunk_parts(side.width) * SIZE, side.reader + note, p.pad, TILE, pad);
    }
    chunk_gates gates = chunk_gates_at(p, x, s, weights);
    cuda_wait_previous(); /* for the gradients of the states */
    fetch_grads(0);
    if (!one_room) fetch_grads(1);
    strip d_write, g, y;
    strip_zero(d_write);
#pragma unroll 1
    for (int i = 0; i < CHAIN_SIDES; i++) {
        const chain_side &side = p.side[i];
        copy_async_commit();
        copy_async_wait<0>();
        __syncthreads();
        const bf16 *plain = (i ? notes.plain : notes.d_plain) + note;
        bf16 *to = i ? d_v : d_k, *d = i ? second : first, *reader = d + chunk_parts(side.width) * SIZE;
        chunk_side a = {side.x + x.at * side.width,
                        to + x.at * side.width,
                        d,
                        grads_at(i),
                        reader,
                        p.heads * side.width,
                        side.width,
                        1};
        chunk_collect(d_write, a, gates, reader,
                      [&](int t, int c) { return c < slots ? from_bf16(plain[t * p.pad + c]) : 0; });
        __syncthreads();
        if (i == 0 && one_room) fetch_grads(1);
    }
    strip_fetch(g, gates.g, gates.stride, x.rows, slots);
    strip_fetch(y, notes.shares + note, p.pad, TILE, pad);
    float *direct = reinterpret_cast<float *>(weights); /* with the next tile */
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            float write = gated_write(g.x[n][e]);
            y.x[n][e] -= write * d_write.x[n][e];
            d_write.x[n][e] *= 1 - write;
        }
    strip_each(y, [&](int t, int c, float &e) { GATED_G(s, t, c) = e; });
    strip_each(d_write, [&](int t, int c, float &e) { direct[t * tile_of<float>::LD + c] = e; });
    __syncthreads();
    chunk_gate_gradient(p, x, s, 1, direct, d_g);
}

/* ---- calls ---- */
struct slots_fast_room { /* bytes */
    size_t states, ends, floats, halves, own;
};

bool slots_fast_fits(const slots_args *a, size_t element)
{
    return element == sizeof(bf16) &&
           chain_fits(a->slots, a->dim_k, a->dim_v, a->batch * a->heads, a->length);
}

static slots_fast_room slots_fast_bytes(const slots_args *a, int64_t chunks)
{
    size_t n = (size_t)(a->batch * a->heads * chunks), S = (size_t)a->slots,
           pad = (size_t)chain_padded(a->slots);
    slots_fast_room r;
    r.states =
        kernel_round64(n * S * (size_t)(chain_padded(a->dim_k) + chain_padded(a->dim_v)) * sizeof(bf16));
    r.ends = kernel_round64(2 * n * S * sizeof(float));
    r.floats = kernel_round64(n * TILE * pad * sizeof(float));
    r.halves = kernel_round64(n * TILE * pad * sizeof(bf16));
    r.own =
        kernel_round64(2 * n * S * (size_t)(chain_blocks(a->dim_k) + chain_blocks(a->dim_v)) * sizeof(float));
    return r;
}

static int64_t slots_fast_segment(const slots_args *a)
{
    slots_fast_room one = slots_fast_bytes(a, 1);
    return gated_segment(kernel_blocks(a->length, TILE), (int64_t)(one.states + one.ends));
}

void slots_fast_sizes(const slots_args *a, kernel_sizes *sizes)
{
    slots_fast_room all = slots_fast_bytes(a, kernel_blocks(a->length, TILE)),
                    some = slots_fast_bytes(a, slots_fast_segment(a));
    size_t carry =
        kernel_round64((size_t)(a->batch * a->heads * a->slots * (a->dim_k + a->dim_v)) * sizeof(float));
    size_t forward = some.states + some.ends + carry;
    size_t backward = all.states + all.floats + 4 * all.halves + all.own;
    sizes->state = carry;
    sizes->saved = all.states + all.ends + all.floats;
    sizes->scratch = forward > backward ? forward : backward;
}

static chain slots_chain(const slots_args *a)
{
    chain p = {};
    p.g = (const bf16 *)a->g;
    p.side[0] = {(const bf16 *)a->k, (const bf16 *)a->q, nullptr, a->dim_k, 0, 0};
    p.side[1] = {(const bf16 *)a->v, (const bf16 *)a->d_o,   nullptr,
                 a->dim_v,           chain_padded(a->dim_k), a->dim_k};
    p.total = p.length = a->length;
    p.heads = a->heads, p.keys = a->slots;
    p.chunks = kernel_blocks(a->length, TILE);
    p.row = chain_padded(a->dim_k) + chain_padded(a->dim_v), p.carried_row = a->dim_k + a->dim_v;
    p.pad = chain_padded(a->slots);
    p.blocks = chain_blocks(a->dim_k) + chain_blocks(a->dim_v);
    return p;
}

template <bool BACKWARD>
static void slots_run_read(const kernel_run *run, const slots_args *a, const chain &p,
                           const slots_notes &notes)
{
    cuda_launch_early(run->early, slots_read<BACKWARD>, dim3((unsigned)(a->batch * a->heads * p.chunks)),
                      dim3(TILE_THREADS), gated_shared<bf16>(1 + 2 * p.blocks), (cudaStream_t)run->stream, p,
                      notes, (const bf16 *)(BACKWARD ? a->d_o : a->q), (bf16 *)(BACKWARD ? a->d_q : a->o),
                      (float)a->scale);
}

void slots_fast_forward(const kernel_run *run, const slots_args *a)
{
    chain p = slots_chain(a);
    int64_t chunks = p.chunks, segment = a->saved ? chunks : slots_fast_segment(a);
    slots_fast_room room = slots_fast_bytes(a, segment);
    char *memory = (char *)(a->saved ? a->saved : run->scratch);
    slots_notes notes = {};
    p.states = (bf16 *)memory, p.ends = (float *)(memory + room.states);
    float *rest = (float *)(memory + room.states + room.ends);
    if (a->saved) notes.logits = rest;
    for (int64_t done = 0;; done += segment) {
        bool last = done + segment >= chunks;
        p.chunks = kernel_min(segment, chunks - done), p.first = done * TILE;
        p.length = kernel_min(a->length - p.first, p.chunks * TILE);
        chain_run_states(run, p, a->batch, done ? rest : (const float *)a->state_in,
                         last ? (float *)a->state_out : rest);
        if (p.chunks > 0) slots_run_read<false>(run, a, p, notes);
        if (last) break;
    }
}

void slots_fast_backward(const kernel_run *run, const slots_args *a)
{
    chain p = slots_chain(a);
    slots_fast_room room = slots_fast_bytes(a, p.chunks);
    char *saved = (char *)a->saved, *scratch = (char *)run->scratch;
    p.states = (bf16 *)saved, p.ends = (float *)(saved + room.states);
    slots_notes notes = {};
    notes.logits = (float *)(saved + room.states + room.ends);
    p.grads = (bf16 *)scratch, scratch += room.states;
    notes.shares = (float *)scratch, scratch += room.floats;
    bf16 **halves[] = {&notes.weights, &notes.d_logits, &notes.plain, &notes.d_plain};
    for (bf16 **half : halves) *half = (bf16 *)scratch, scratch += room.halves;
    p.own = (float *)scratch;
    p.side[0].reader = notes.d_logits, p.side[1].reader = notes.weights;
    slots_run_read<true>(run, a, p, notes);
    chain_run_grads(run, p, a->batch);
    bool one_room = p.blocks == 4; /* both sides wide: two blocks would not fit a multiprocessor */
    cuda_launch_early(run->early, slots_collect, dim3((unsigned)(a->batch * a->heads * p.chunks)),
                      dim3(TILE_THREADS), gated_shared<bf16>(one_room ? 9 : 3 + 2 * p.blocks),
                      (cudaStream_t)run->stream, p, notes, (bf16 *)a->d_k, (bf16 *)a->d_v, (bf16 *)a->d_g,
                      one_room);
}
