/* The gated delta rule in bf16 for heads up to 128 wide: memory and launches. */
#include "kernels/gdn/cuda_fast.h"
#include "kernels/gdn/cuda_fast_keys.cuh"
#include "kernels/gdn/cuda_fast_prepare.cuh"
#include "kernels/gdn/cuda_fast_scan.cuh"

struct fast_room { /* bytes */
    size_t states, square, wide, gates, carry, rows, ends;
};

/* Rows are copied 16 bytes at a time. */
bool gdn_fast_fits(const gdn_args *a)
{
    return a->dim_k <= 128 && a->dim_v <= 128 && a->dim_k % 8 == 0 && a->dim_v % 8 == 0;
}

static int64_t fast_width(const gdn_args *a)
{
    return a->dim_k <= 64 && a->dim_v <= 64 ? 64 : 128;
}

static fast_room fast_bytes(const gdn_args *a, int64_t chunks)
{
    size_t heads = (size_t)(a->batch * a->heads), n = heads * (size_t)chunks, D = (size_t)fast_width(a),
           blocks = (size_t)kernel_blocks(a->dim_k, FAST_CHUNK);
    fast_room r;
    r.states = n * D * D * sizeof(float);
    r.square = n * FAST_SQUARE * sizeof(bf16);
    r.wide = n * FAST_CHUNK * D * sizeof(bf16);
    r.gates = n * FAST_GATES * FAST_CHUNK * sizeof(float);
    r.carry = kernel_round64(heads * (size_t)(a->dim_k * a->dim_v) * sizeof(float));
    r.rows = n * (FAST_BY_BLOCK + FAST_SHARES * blocks) * FAST_CHUNK * sizeof(float);
    r.ends = kernel_round64(n * blocks * sizeof(float));
    return r;
}

/* What a pass over chunks writes beside the states: W, U, P, N, gates. */
static size_t fast_chunks(const fast_room &r)
{
    return 2 * r.wide + 2 * r.square + r.gates;
}

/* How many chunks to process at once where nothing is kept: bounded memory, any length. */
static int64_t fast_segment(const gdn_args *a)
{
    const int64_t budget = (int64_t)128 << 20, least = 4;
    int64_t bytes = kernel_max(1, (int64_t)fast_chunks(fast_bytes(a, 1)));
    return kernel_max(1, kernel_min(kernel_blocks(a->length, FAST_CHUNK), kernel_max(least, budget / bytes)));
}

void gdn_fast_sizes(const gdn_args *a, kernel_sizes *sizes)
{
    fast_room all = fast_bytes(a, kernel_blocks(a->length, FAST_CHUNK)),
              some = fast_bytes(a, fast_segment(a));
    size_t forward = fast_chunks(some) + some.carry;
    size_t backward = all.states + all.wide + 2 * all.square + all.rows + all.ends;
    sizes->state = all.carry;
    sizes->saved = all.states + fast_chunks(all);
    sizes->scratch = forward > backward ? forward : backward;
}

static fast_view fast_pass(const gdn_args *a)
{
    fast_view p = {};
    p.q = (const bf16 *)a->q, p.k = (const bf16 *)a->k, p.v = (const bf16 *)a->v;
    p.beta = (const bf16 *)a->beta, p.g = (const bf16 *)a->g, p.d_o = (const bf16 *)a->d_o;
    p.total = p.length = a->length;
    p.heads = a->heads, p.K = a->dim_k, p.V = a->dim_v;
    p.chunks = kernel_blocks(a->length, FAST_CHUNK);
    p.scale = (float)a->scale;
    return p;
}

/* The notes' places. */
static void fast_layout(fast_view &p, const fast_room &room, char **memory)
{
    p.W = (bf16 *)gdn_take(memory, room.wide);
    p.U = (bf16 *)gdn_take(memory, room.wide);
    p.P = (bf16 *)gdn_take(memory, room.square);
    p.N = (bf16 *)gdn_take(memory, room.square);
    p.gates = (float *)gdn_take(memory, room.gates);
}

template <int D>
static void run_forward(const kernel_run *run, const gdn_args *a, const fast_view &p, const float *in,
                        float *out)
{
    cudaStream_t stream = (cudaStream_t)run->stream;
    unsigned heads = (unsigned)(a->batch * a->heads);
    if (p.chunks > 0)
        cuda_launch_early(run->early, gdn_fast_prepare<D>, dim3(heads * (unsigned)p.chunks),
                          dim3(FAST_THREADS), fast_prepare_shared<D>(), stream, p);
    int64_t columns = a->saved ? D : a->dim_v; /* notes have zeros beyond the values */
    cuda_launch_early(run->early, gdn_fast_scan<D>,
                      dim3(heads, (unsigned)kernel_blocks(columns, FAST_COLUMNS)), dim3(FAST_THREADS),
                      scan_room<D>::ALL, stream, p, (bf16 *)a->o, in, out, a->saved != nullptr);
}

void gdn_fast_forward(const kernel_run *run, const gdn_args *a)
{
    fast_view p = fast_pass(a);
    int64_t chunks = p.chunks, segment = a->saved ? chunks : fast_segment(a);
    const float *in = (const float *)a->state_in;
    float *out = (float *)a->state_out;
    fast_room room = fast_bytes(a, segment);
    for (int64_t done = 0;; done += segment) {
        bool last = done + segment >= chunks;
        char *memory = (char *)(a->saved ? a->saved : run->scratch);
        p.chunks = kernel_min(segment, chunks - done);
        p.first = done * FAST_CHUNK;
        p.length = kernel_min(a->length - p.first, p.chunks * FAST_CHUNK);
        fast_layout(p, room, &memory);
        if (a->saved) p.states = (float *)memory;
        float *carry = (float *)memory;
        auto run_width = fast_width(a) == 64 ? run_forward<64> : run_forward<128>;
        run_width(run, a, p, done ? carry : in, last ? out : carry);
        if (last) break;
    }
}

template <int D> static void run_backward(const kernel_run *run, const gdn_args *a, const fast_view &p)
{
    cudaStream_t stream = (cudaStream_t)run->stream;
    unsigned heads = (unsigned)(a->batch * a->heads), chunks = heads * (unsigned)p.chunks,
             keys = (unsigned)kernel_blocks(a->dim_k, FAST_CHUNK);
    cuda_launch_early(run->early, gdn_fast_scan_backward<D>, dim3(heads, D / FAST_COLUMNS),
                      dim3(FAST_THREADS), scan_room<D>::ALL, stream, p);
    cuda_launch_early(run->early, gdn_fast_squares<D>, dim3(chunks), dim3(FAST_THREADS),
                      fast_squares_shared<D>(), stream, p, (bf16 *)a->d_v);
    cuda_launch_early(run->early, gdn_fast_keys<D>, dim3(chunks, keys), dim3(FAST_THREADS),
                      fast_keys_shared<D>(), stream, p, (bf16 *)a->d_q, (bf16 *)a->d_k);
    cuda_launch_early(run->early, gdn_fast_gates, dim3(chunks), dim3(FAST_CHUNK), 0, stream, p,
                      (bf16 *)a->d_beta, (bf16 *)a->d_g, (int)keys);
}

void gdn_fast_backward(const kernel_run *run, const gdn_args *a)
{
    fast_view p = fast_pass(a);
    fast_room room = fast_bytes(a, p.chunks);
    char *notes = (char *)a->saved, *memory = (char *)run->scratch;
    fast_layout(p, room, &notes);
    p.states = (float *)notes;
    p.grads = (float *)gdn_take(&memory, room.states);
    p.d_U = (bf16 *)gdn_take(&memory, room.wide);
    p.d_qk = (bf16 *)gdn_take(&memory, room.square);
    p.d_kk = (bf16 *)gdn_take(&memory, room.square);
    p.rows = (float *)gdn_take(&memory, room.rows);
    p.ends = (float *)gdn_take(&memory, room.ends);
    if (fast_width(a) == 64)
        run_backward<64>(run, a, p);
    else
        run_backward<128>(run, a, p);
}
