/* Launches of the plain kernels (cuda_direct.cuh). Blocks take chains in turn, so memory depends on the
 * number of blocks and not on the batch; the backward pass keeps a state every sqrt(chunks) chunks and
 * replays the chunks between two of them. */
#include "kernels/blurry/cuda_direct.h"
#include "base/sizes.h"
#include "kernels/blurry/cuda_direct_backward.cuh"

/* Where a block's matrices lie: offsets in floats into shared memory, or, where negative, in the workspace.
 */
struct direct_room {
    float *workspace;
    int64_t per_block;                /* floats of workspace per block */
    int64_t rows, slots, checkpoints; /* offsets in the block's workspace; -1: in shared memory */
    int64_t state;                    /* floats of one saved state */
    double *sums;                     /* [chains, 2] */
};

enum { SHARED_MOST = 200 * 1024 };

static __device__ inline direct direct_open(const bla_call &c, const direct_room &room, float *shared)
{
    float *mine = room.workspace + (int64_t)blockIdx.x * room.per_block;
    int64_t rows = direct_rows_floats(c.S, c.Dk, c.Dv);
    return direct_carve(c, room.rows < 0 ? shared : mine + room.rows,
                        room.slots < 0 ? shared + rows : mine + room.slots);
}

static __device__ inline void direct_copy(const float *from, float *to, int64_t n)
{
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) to[i] = from[i];
}

/* Loads k and v of the n tokens from `start` of chain x and forms their tables. */
template <typename E>
static __device__ inline void direct_chunk(const bla_call &c, direct &z, const bla_chain &x, int64_t start)
{
    int64_t left = x.count - start, token = x.first + start;
    z.n = left < DIRECT_C ? (int)left : DIRECT_C;
    direct_load<E>(z, (const E *)c.k + (token * c.Hkv + x.h) * c.Dk, c.Hkv * c.Dk, z.Dk, z.k, z.ldk);
    direct_load<E>(z, (const E *)c.v + (token * c.Hkv + x.h) * c.Dv, c.Hkv * c.Dv, z.Dv, z.v, z.ldv);
    direct_tables(c, z, x.position + start);
}

static __device__ inline void direct_advance(const direct &z)
{
    direct_update(z, z.k, z.Dk, z.ldk, z.K);
    direct_update(z, z.v, z.Dv, z.ldv, z.V);
    __syncthreads();
}

template <typename E>
static __global__ void __launch_bounds__(DIRECT_THREADS) direct_forward_kernel(bla_call c, direct_room room)
{
    CUDA_DYNAMIC_SHARED(float, shared);
    direct z = direct_open(c, room, shared);
    int64_t sq = c.H * c.Dk, so = c.H * c.Dv;
    for (int64_t index = blockIdx.x; index < c.chains; index += gridDim.x) {
        bla_chain x = bla_chain_of(c, index);
        z.period = c.periods + x.h;
        direct_slots_in(z, c.in, x, z.K, z.V);
        for (int64_t start = 0; start < x.count; start += DIRECT_C) {
            direct_chunk<E>(c, z, x, start);
            for (int64_t head = x.h * c.group; head < (x.h + 1) * c.group; head++) {
                int64_t token = x.first + start;
                direct_load<E>(z, (const E *)c.q + token * sq + head * c.Dk, sq, z.Dk, z.q, z.ldk);
                __syncthreads();
                const float *w = direct_read(c, z, x.position + start);
                direct_onto(z, w, z.G);
                __syncthreads();
                direct_gather<E>(z, w, z.G, z.V, z.v, z.Dv, z.ldv, 1.0f, (E *)c.o + token * so + head * c.Dv,
                                 so);
                __syncthreads();
            }
            direct_advance(z);
        }
        direct_slots_out(z, c.out, x, z.K, z.V);
        __syncthreads();
    }
}

/* Chunks between two kept states: the smallest n with n * n >= chunks. */
static inline __host__ __device__ int64_t direct_span(int64_t tokens)
{
    int64_t chunks = (tokens + DIRECT_C - 1) / DIRECT_C, n = 1;
    while (n * n < chunks) n++;
    return n;
}

/* One chunk backwards, all query heads; z.K and z.V hold the slots before it. */
template <typename E>
static __device__ inline void direct_chunk_backward(const bla_call &c, direct &z, const bla_chain &x,
                                                    int64_t start, bool period, double *sums)
{
    int64_t token = x.first + start;
    direct_chunk<E>(c, z, x, start);
    for (int i = threadIdx.x; i < z.n * z.S; i += blockDim.x) z.d_phi[i] = 0;
    for (int g = 0; g < c.group; g++)
        direct_head_backward<E>(c, z, x.position + start, token, x.h * c.group + g, g == 0, period);
    direct_store<E>(z, (E *)c.d_k + (token * c.Hkv + x.h) * c.Dk, c.Hkv * c.Dk, z.Dk, z.d_k, z.ldk);
    direct_store<E>(z, (E *)c.d_v + (token * c.Hkv + x.h) * c.Dv, c.Hkv * c.Dv, z.Dv, z.d_v, z.ldv);
    if (period) direct_d_period(z, x.position + start, sums);
    __syncthreads();
}

template <typename E>
static __global__ void __launch_bounds__(DIRECT_THREADS) direct_backward_kernel(bla_call c, direct_room room)
{
    CUDA_DYNAMIC_SHARED(float, shared);
    __shared__ double sum_room[32];
    direct z = direct_open(c, room, shared);
    float *kept = room.workspace + (int64_t)blockIdx.x * room.per_block + room.checkpoints;
    for (int64_t index = blockIdx.x; index < c.chains; index += gridDim.x) {
        bla_chain x = bla_chain_of(c, index);
        z.period = c.periods + x.h;
        bool period = room.sums && !z.period->raised;
        double sums[2] = {0, 0};
        int64_t span = direct_span(x.count), chunks = (x.count + DIRECT_C - 1) / DIRECT_C;
        float *replay = kept + span * room.state;
        direct_slots_in(z, c.in, x, z.K, z.V);
        direct_slots_in(z, c.d_out, x, z.dK, z.dV);
        for (int64_t i = 0; i < chunks; i++) {
            if (i % span == 0) direct_copy(z.K, kept + i / span * room.state, room.state);
            __syncthreads();
            direct_chunk<E>(c, z, x, i * DIRECT_C);
            direct_advance(z);
        }
        for (int64_t low = chunks > 0 ? (chunks - 1) / span * span : -1; low >= 0; low -= span) {
            int64_t high = low + span < chunks ? low + span : chunks;
            direct_copy(kept + low / span * room.state, z.K, room.state);
            __syncthreads();
            for (int64_t i = low; i < high; i++) {
                direct_copy(z.K, replay + (i - low) * room.state, room.state);
                __syncthreads();
                direct_chunk<E>(c, z, x, i * DIRECT_C);
                direct_advance(z);
            }
            for (int64_t i = high - 1; i >= low; i--) {
                direct_copy(replay + (i - low) * room.state, z.K, room.state);
                __syncthreads();
                direct_chunk_backward<E>(c, z, x, i * DIRECT_C, period, sums);
            }
        }
        direct_slots_out(z, c.d_in, x, z.dK, z.dV);
        if (room.sums)
            for (int which = 0; which < 2; which++) {
                double total = block_sum(sums[which], sum_room);
                if (threadIdx.x == 0) room.sums[2 * index + which] = total;
            }
        __syncthreads();
    }
}

/* d_period [Hkv] from the chains' sums. */
static __global__ void direct_period_kernel(bla_call c, const double *sums, double *d_period,
                                            double *d_period_abs)
{
    int64_t h = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (h >= c.Hkv) return;
    for (int which = 0; which < 2; which++) {
        double *out = which == 0 ? d_period : d_period_abs, total = 0;
        for (int64_t b = 0; b < c.chains / c.Hkv; b++) total += sums[2 * (b * c.Hkv + h) + which];
        if (out) out[h] = total;
    }
}

/* ---- sizes and launches ---- */

static int64_t min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Lays out a block's workspace and returns the bytes of shared memory. */
static size_t direct_place(int S, int Dk, int Dv, int64_t longest, bool backward, direct_room *room)
{
    int64_t rows = direct_rows_floats(S, Dk, Dv), state = direct_slots_floats(S, Dk, Dv);
    int64_t slots = backward ? 2 * state : state, limit = SHARED_MOST / (int64_t)sizeof(float);
    room->rows = rows <= limit ? -1 : 0;
    room->slots = room->rows < 0 && rows + slots <= limit ? -1 : 0;
    int64_t used = 0;
    if (room->rows == 0) used += rows;
    if (room->slots == 0) room->slots = used, used += slots;
    room->checkpoints = used, room->state = state;
    if (backward) used += 2 * direct_span(longest) * state;
    room->per_block = (used + 15) / 16 * 16;
    return sizeof(float) * (size_t)((room->rows < 0 ? rows : 0) + (room->slots < 0 ? slots : 0));
}

static size_t direct_workspace(const bla_shape *s, int blocks, bool backward)
{
    direct_room room;
    direct_place((int)s->S, (int)s->Dk, (int)s->Dv, s->tokens, backward, &room);
    int64_t used = min64(s->batch * s->Hkv, blocks);
    size_t sums = backward ? size_align(size_of(s->batch * s->Hkv, 2 * sizeof(double))) : 0;
    return size_add(size_align(size_mul(size_of(used, (size_t)room.per_block), sizeof(float))), sums);
}

size_t direct_forward_workspace(const bla_shape *s, int blocks)
{
    return direct_workspace(s, blocks, false);
}
size_t direct_backward_workspace(const bla_shape *s, int blocks)
{
    return direct_workspace(s, blocks, true);
}

void direct_forward(const bla_call *call, bool is_bf16, int blocks, void *workspace, cudaStream_t stream)
{
    direct_room room = {};
    size_t shared = direct_place(call->S, call->Dk, call->Dv, 0, false, &room);
    room.workspace = (float *)workspace;
    unsigned grid = (unsigned)min64(call->chains, blocks);
    if (grid > 0)
        cuda_launch(is_bf16 ? direct_forward_kernel<bf16> : direct_forward_kernel<float>, dim3(grid),
                    dim3(DIRECT_THREADS), shared, stream, *call, room);
}

void direct_backward(const bla_call *call, bool is_bf16, int blocks, int64_t longest, double *d_period,
                     double *d_period_abs, void *workspace, cudaStream_t stream)
{
    direct_room room = {};
    size_t shared = direct_place(call->S, call->Dk, call->Dv, longest, true, &room);
    room.workspace = (float *)workspace;
    unsigned grid = (unsigned)min64(call->chains, blocks);
    size_t bytes = size_align(size_mul(size_of((int64_t)grid, (size_t)room.per_block), sizeof(float)));
    if (d_period || d_period_abs) room.sums = (double *)((char *)workspace + bytes);
    if (grid > 0)
        cuda_launch(is_bf16 ? direct_backward_kernel<bf16> : direct_backward_kernel<float>, dim3(grid),
                    dim3(DIRECT_THREADS), shared, stream, *call, room);
    if (room.sums)
        cuda_launch(direct_period_kernel, dim3((unsigned)((call->Hkv + 127) / 128)), dim3(128), 0, stream,
                    *call, (const double *)room.sums, d_period, d_period_abs);
}
