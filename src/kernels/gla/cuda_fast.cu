/* Gated linear attention in bf16 with keys up to 64 and values up to 128 wide: the chains of
 * cuda_gated_chain.h with one side, and a kernel each way with a block per chunk. */
#include "kernels/gla/cuda_fast.h"

#include "kernels/cuda_gated_chunk.h"

/* o, and q e^G to `reader` [batch * heads, chunks, 64, pad] unless that is NULL. Grid: chunks of all
 * heads. Tiles: gates' weights; v, states. */
__global__ static void __launch_bounds__(TILE_THREADS, 2)
    gla_read(chain p, const bf16 *q, bf16 *o, bf16 *reader, float scale)
{
    CUDA_DYNAMIC_SHARED(char, shared);
    const int SIZE = tile_of<bf16>::SIZE;
    gated_sums *s = reinterpret_cast<gated_sums *>(shared);
    const chain_side &side = p.side[0];
    bf16 *weights = reinterpret_cast<bf16 *>(s + 1), *v = weights + SIZE,
         *h0 = v + chunk_parts(side.width) * SIZE;
    gated_place x = chain_place(p, blockIdx.x / p.chunks, blockIdx.x % p.chunks);
    int keys = (int)p.keys;
    chunk_fetch(v, side.x + x.at * side.width, p.heads * side.width, x.rows, side.width);
    strip P, faded;
    strip_fetch(P, q + x.at * p.keys, p.heads * p.keys, x.rows, keys);
    chunk_gates gates = chunk_gates_at(p, x, s, weights);
    cuda_wait_previous(); /* for the states */
    chunk_fetch(h0, p.states + (int64_t)blockIdx.x * p.keys * p.row, p.row, keys, (side.width + 7) / 8 * 8);
    copy_async_commit();
    faded = P;
    strip_each(faded, [&](int t, int c, float &e) { e *= gated_exp(gates.G(t, c)); });
    if (reader)
        strip_to_memory(faded, reader + (int64_t)blockIdx.x * TILE * p.pad, p.pad, TILE, (int)p.pad, 1);
    fragment f, scores;
    fragment_of(f, faded);
    copy_async_wait<0>();
    __syncthreads();
    bf16 *room =
        reinterpret_cast<bf16 *>(shared + sizeof(gated_sums)); /* the weights, not read where harsh */
    chunk_scores(faded, f, P, gates, room);
    fragment_of(scores, faded);
    chunk_read(o + x.at * side.width, p.heads * side.width, scale, f, scores, h0, v, gates, side.width);
}

/* d_q, d_k, d_v, d_g. Grid: chunks of all heads. Tiles: gates' weights, reader; d_o, v, states and their
 * gradients. */
__global__ static void __launch_bounds__(TILE_THREADS, 2)
    gla_collect(chain p, const bf16 *q, bf16 *d_q, bf16 *d_k, bf16 *d_v, bf16 *d_g, float scale)
{
    CUDA_DYNAMIC_SHARED(char, shared);
    const int SIZE = tile_of<bf16>::SIZE;
    gated_sums *s = reinterpret_cast<gated_sums *>(shared);
    const chain_side &side = p.side[0];
    int keys = (int)p.keys, parts = chunk_parts(side.width);
    bf16 *weights = reinterpret_cast<bf16 *>(s + 1), *reader = weights + SIZE, *d_o = reader + SIZE,
         *v = d_o + parts * SIZE, *h0 = v + parts * SIZE, *grads = h0 + parts * SIZE;
    gated_place x = chain_place(p, blockIdx.x / p.chunks, blockIdx.x % p.chunks);
    int64_t state = (int64_t)blockIdx.x * p.keys * p.row, stride = p.heads * side.width;
    int64_t at = x.at * p.keys, key_stride = p.heads * p.keys;
    chunk_fetch(d_o, side.d + x.at * side.width, stride, x.rows, side.width);
    chunk_fetch(v, side.x + x.at * side.width, stride, x.rows, side.width);
    chunk_fetch(h0, p.states + state, p.row, keys, (side.width + 7) / 8 * 8);
    copy_async_commit();
    tile_load_async(reader, side.reader + (int64_t)blockIdx.x * TILE * p.pad, p.pad, TILE, (int)p.pad);
    fragment left[CHAIN_PARTS];
    chunk_left(left, side.d + x.at * side.width, stride, x.rows, side.width);
    chunk_gates gates = chunk_gates_at(p, x, s, weights);
    strip share, d_key, y;
    strip_fetch(y, q + at, key_stride, x.rows, keys);
    cuda_wait_previous(); /* for the gradients of the states */
    chunk_fetch(grads, p.grads + state, p.row, keys, (side.width + 7) / 8 * 8);
    copy_async_commit();
    copy_async_wait<1>();
    __syncthreads();
    chunk_mix(share, left, v, h0, gates, parts);
    strip_to_memory(share, d_q + at, key_stride, x.rows, keys, scale);
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) share.x[n][e] *= scale * y.x[n][e];
    copy_async_wait<0>();
    __syncthreads();
    strip_zero(d_key);
    chunk_side a = {
        side.x + x.at * side.width, d_v + x.at * side.width, d_o, grads, reader, stride, side.width, scale};
    chunk_collect(d_key, a, gates, reader,
                  [&](int t, int c) { return c < keys ? from_bf16(q[at + t * key_stride + c]) : 0; });
    strip_to_memory(d_key, d_k + at, key_stride, x.rows, keys, 1);
    strip_fetch(y, p.k + at, key_stride, x.rows, keys);
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) share.x[n][e] -= y.x[n][e] * d_key.x[n][e];
    __syncthreads();
    strip_each(share, [&](int t, int c, float &e) { GATED_G(s, t, c) = t < x.rows ? e : 0; });
    __syncthreads();
    chunk_gate_gradient(p, x, s, scale, nullptr, d_g);
}

/* ---- calls ---- */
struct gla_fast_room { /* bytes */
    size_t states, ends, reader, own, carry;
};

bool gla_fast_fits(const gla_args *a, size_t element)
{
    return element == sizeof(bf16) && chain_fits(a->dim_k, a->dim_v, 0, a->batch * a->heads, a->length);
}

static gla_fast_room gla_fast_bytes(const gla_args *a, int64_t chunks)
{
    size_t heads = (size_t)(a->batch * a->heads), n = heads * (size_t)chunks, keys = (size_t)a->dim_k;
    gla_fast_room r;
    r.states = kernel_round64(n * keys * (size_t)chain_padded(a->dim_v) * sizeof(bf16));
    r.ends = kernel_round64(2 * n * keys * sizeof(float));
    r.reader = kernel_round64(n * TILE * (size_t)chain_padded(a->dim_k) * sizeof(bf16));
    r.own = kernel_round64(2 * n * keys * (size_t)chain_blocks(a->dim_v) * sizeof(float));
    r.carry = kernel_round64(heads * keys * (size_t)a->dim_v * sizeof(float));
    return r;
}

static int64_t gla_fast_segment(const gla_args *a)
{
    gla_fast_room one = gla_fast_bytes(a, 1);
    return gated_segment(kernel_blocks(a->length, TILE), (int64_t)(one.states + one.ends));
}

void gla_fast_sizes(const gla_args *a, kernel_sizes *sizes)
{
    gla_fast_room all = gla_fast_bytes(a, kernel_blocks(a->length, TILE)),
                  some = gla_fast_bytes(a, gla_fast_segment(a));
    size_t forward = some.states + some.ends + some.carry, backward = all.states + all.own;
    sizes->state = all.carry;
    sizes->saved = all.states + all.ends + all.reader;
    sizes->scratch = forward > backward ? forward : backward;
}

static chain gla_chain(const gla_args *a)
{
    chain p = {};
    p.g = (const bf16 *)a->g, p.k = (const bf16 *)a->k;
    p.side[0] = {(const bf16 *)a->v, (const bf16 *)a->d_o, nullptr, a->dim_v, 0, 0};
    p.total = p.length = a->length;
    p.heads = a->heads, p.keys = a->dim_k;
    p.chunks = kernel_blocks(a->length, TILE);
    p.row = chain_padded(a->dim_v), p.carried_row = a->dim_v;
    p.pad = chain_padded(a->dim_k), p.blocks = chain_blocks(a->dim_v);
    return p;
}

void gla_fast_forward(const kernel_run *run, const gla_args *a)
{
    chain p = gla_chain(a);
    int64_t chunks = p.chunks, segment = a->saved ? chunks : gla_fast_segment(a);
    gla_fast_room room = gla_fast_bytes(a, segment);
    char *memory = (char *)(a->saved ? a->saved : run->scratch), *rest = memory + room.states + room.ends;
    p.states = (bf16 *)memory, p.ends = (float *)(memory + room.states);
    bf16 *reader = a->saved ? (bf16 *)rest : nullptr;
    float *carry = (float *)rest;
    for (int64_t done = 0;; done += segment) {
        bool last = done + segment >= chunks;
        p.chunks = kernel_min(segment, chunks - done), p.first = done * TILE;
        p.length = kernel_min(a->length - p.first, p.chunks * TILE);
        chain_run_states(run, p, a->batch, done ? carry : (const float *)a->state_in,
                         last ? (float *)a->state_out : carry);
        if (p.chunks > 0)
            cuda_launch_early(run->early, gla_read, dim3((unsigned)(a->batch * a->heads * p.chunks)),
                              dim3(TILE_THREADS), gated_shared<bf16>(1 + 2 * p.blocks),
                              (cudaStream_t)run->stream, p, (const bf16 *)a->q, (bf16 *)a->o, reader,
                              (float)a->scale);
        if (last) break;
    }
}

void gla_fast_backward(const kernel_run *run, const gla_args *a)
{
    chain p = gla_chain(a);
    gla_fast_room room = gla_fast_bytes(a, p.chunks);
    char *saved = (char *)a->saved;
    p.states = (bf16 *)saved, p.ends = (float *)(saved + room.states);
    p.side[0].reader = (bf16 *)(saved + room.states + room.ends);
    p.grads = (bf16 *)run->scratch, p.own = (float *)((char *)run->scratch + room.states);
    chain_run_grads(run, p, a->batch);
    cuda_launch_early(run->early, gla_collect, dim3((unsigned)(a->batch * a->heads * p.chunks)),
                      dim3(TILE_THREADS), gated_shared<bf16>(2 + 4 * p.blocks), (cudaStream_t)run->stream, p,
                      (const bf16 *)a->q, (bf16 *)a->d_q, (bf16 *)a->d_k, (bf16 *)a->d_v, (bf16 *)a->d_g,
                      (float)a->scale);
}
