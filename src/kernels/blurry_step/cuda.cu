/* Decoding on CUDA: the step kernel as a whole, and its launch. What a state is: cuda.h; the kernel's parts:
 * cuda_step.cuh, cuda_softmax.cuh; states beside the step: cuda_state.cu. */
#include "kernels/blurry_step/cuda_host.h"
#include "kernels/blurry_step/cuda_softmax.cuh"

/* ---- staging: loads into registers first, into shared memory when all are under way ---- */

/* A thread's share of the ring (16 bytes) and of the new token and queries (one element). */
struct step_staged {
    uint4 ring;
    float element;
};

/* Piece n of the ring: its place in the state and, in floats, in ring_k or ring_v. */
struct ring_piece {
    const char *from;
    float *to;
};

static __device__ inline int ring_pieces(const bla_step_cuda_shape &s)
{
    return s.fold * (s.row_k + s.row_v) / (s.token_bf16 ? 8 : 4);
}

static __device__ inline ring_piece ring_at(const bla_step_cuda_shape &s, const char *state, int kv,
                                            const step_shared &m, int n)
{
    const int unit = s.token_bf16 ? 8 : 4, of_k = s.fold * s.row_k / unit;
    const bool k = n < of_k;
    const int64_t head = (int64_t)kv * s.fold * (k ? s.row_k : s.row_v) * (16 / unit);
    const int i = k ? n : n - of_k;
    ring_piece p;
    p.from = state + (k ? s.ring_k : s.ring_v) + head + (int64_t)i * 16;
    p.to = (k ? m.ring_k : m.ring_v) + i * unit;
    return p;
}

static __device__ inline void keep_piece(const bla_step_cuda_shape &s, uint4 raw, float *to)
{
    float4 *four = (float4 *)(void *)to;
    if (!s.token_bf16) {
        four[0] = make_float4(__uint_as_float(raw.x), __uint_as_float(raw.y), __uint_as_float(raw.z),
                              __uint_as_float(raw.w));
        return;
    }
    float2 a = unpack_bf16(raw.x), b = unpack_bf16(raw.y), c = unpack_bf16(raw.z), d = unpack_bf16(raw.w);
    four[0] = make_float4(a.x, a.y, b.x, b.y);
    four[1] = make_float4(c.x, c.y, d.x, d.y);
}

/* Element n of the queries [group, Dk], the new k [Dk], the new v [Dv], one after another. */
static __device__ inline float fresh_element(const bla_step_cuda_shape &s, const step_io &io, int64_t b,
                                             int kv, int group, int n)
{
    const int queries = group * s.Dk;
    if (n < queries) return token_element(io.q, (b * s.H + kv * group) * s.Dk + n, s.token_bf16);
    n -= queries;
    if (n < s.Dk) return token_element(io.k, (b * s.Hkv + kv) * s.Dk + n, s.token_bf16);
    return token_element(io.v, (b * s.Hkv + kv) * s.Dv + n - s.Dk, s.token_bf16);
}

static __device__ inline float *fresh_place(const bla_step_cuda_shape &s, const step_shared &m, int group,
                                            int n)
{
    const int queries = group * s.Dk;
    if (n < queries) return m.q + n;
    n -= queries;
    return n < s.Dk ? m.ring_k + s.fold * s.row_k + n : m.ring_v + s.fold * s.row_v + n - s.Dk;
}

static __device__ inline step_staged stage_begin(const bla_step_cuda_shape &s, const step_io &io,
                                                 const char *state, int64_t b, int kv, int group,
                                                 const step_shared &m)
{
    const int tid = (int)threadIdx.x;
    step_staged mine = {make_uint4(0, 0, 0, 0), 0.0f};
    if (tid < ring_pieces(s))
        mine.ring = __ldcg((const uint4 *)(const void *)ring_at(s, state, kv, m, tid).from);
    if (tid < (group + 1) * s.Dk + s.Dv) mine.element = fresh_element(s, io, b, kv, group, tid);
    return mine;
}

static __device__ inline void stage_end(const bla_step_cuda_shape &s, const step_io &io, const char *state,
                                        int64_t b, int kv, int group, const step_shared &m,
                                        const step_staged &mine)
{
    const int tid = (int)threadIdx.x, pieces = ring_pieces(s), elements = (group + 1) * s.Dk + s.Dv;
    if (tid < pieces) keep_piece(s, mine.ring, ring_at(s, state, kv, m, tid).to);
    if (tid < elements) *fresh_place(s, m, group, tid) = mine.element;
    for (int n = tid + STEP_THREADS; n < pieces; n += STEP_THREADS) {
        ring_piece p = ring_at(s, state, kv, m, n);
        keep_piece(s, __ldcg((const uint4 *)(const void *)p.from), p.to);
    }
    for (int n = tid + STEP_THREADS; n < elements; n += STEP_THREADS)
        *fresh_place(s, m, group, n) = fresh_element(s, io, b, kv, group, n);
    if (tid < s.row_k - s.Dk) m.ring_k[s.fold * s.row_k + s.Dk + tid] = 0.0f;
    if (tid < s.row_v - s.Dv) m.ring_v[s.fold * s.row_v + s.Dv + tid] = 0.0f;
    const float2 *wave = (const float2 *)(const void *)s.wave;
    for (int n = tid; n < s.S; n += STEP_THREADS) m.wave[n] = __ldg(wave + n);
}

/* ---- weights of the ring's tokens, their scores, and the new token into the state's ring ---- */

static __device__ inline void weigh_ring(const bla_step_cuda_shape &s, const token_place *places,
                                         const step_moment &now, const step_shared &m)
{
    /* half of the block takes every second token where the slots allow it */
    const int columns = s.S <= STEP_THREADS / 2 ? STEP_THREADS / 2 : (int)STEP_THREADS;
    const int turn = (int)threadIdx.x / columns, turns = STEP_THREADS / columns;
    for (int j = (int)threadIdx.x % columns; j < s.S; j += columns) {
        for (int age = turn; age < now.held; age += turns)
            m.phi[age * s.S + j] = token_weight(places[age], m.wave, s.S, j);
        if (turn == 0) m.missed[j] = (unsigned char)block_missed(s, block_of(s, j), now.at, now.held, true);
    }
}

static __device__ inline void score_ring(const bla_step_cuda_shape &s, const step_moment &now,
                                         const step_shared &m, int group)
{
    const int lane = (int)threadIdx.x % 32;
    for (int g = 0; g < group; g++)
        for (int age = (int)threadIdx.x / 32; age < now.held; age += STEP_WARPS) {
            const float *q = m.q + g * s.Dk, *k = m.ring_k + ring_row(s, now, age) * s.row_k;
            float sum = 0.0f;
            for (int c = lane; c < s.Dk; c += 32) sum = fmaf(q[c], k[c], sum);
            sum = warp_sum(sum);
            if (lane == 0) m.scores[g * s.fold + age] = sum;
        }
}

static __device__ inline void keep_token(const bla_step_cuda_shape &s, char *state, int kv, int at,
                                         const step_shared &m)
{
    const int64_t row = (int64_t)kv * s.fold + at;
    const int n = (int)threadIdx.x; /* widths are at most STEP_THREADS / 2 */
    if (n < s.Dk)
        store_token_element(state + s.ring_k, row * s.row_k + n, s.token_bf16,
                            m.ring_k[s.fold * s.row_k + n]);
    else if (n - s.Dk < s.Dv)
        store_token_element(state + s.ring_v, row * s.row_v + n - s.Dk, s.token_bf16,
                            m.ring_v[s.fold * s.row_v + n - s.Dk]);
}

/* ---- o ---- */

/* sum [N] += what the ring's tokens of this warp give to query g; lanes of the first row only. */
template <int LANES, int N>
static __device__ inline void add_ring(const bla_step_cuda_shape &s, const step_moment &now,
                                       const step_shared &m, int g, float *sum)
{
    const int lane = (int)threadIdx.x % 32, c = lane * N, parts = step_parts(s.S);
    if (lane >= LANES || c >= s.row_v) return;
    for (int age = (int)threadIdx.x / 32; age < now.held; age += STEP_WARPS) {
        const float *part = m.ring_part + g * parts * s.fold + age;
        const float *v = m.ring_v + ring_row(s, now, age) * s.row_v + c;
        float weight = 0.0f;
        for (int p = 0; p < parts; p++) weight += part[p * s.fold];
#pragma unroll
        for (int e = 0; e < N; e++) sum[e] = fmaf(weight, v[e], sum[e]);
    }
}

/* Queries first .. first+count-1 from the warps' sums. */
static __device__ inline void write_output(const bla_step_cuda_shape &s, const step_io &io, int64_t b, int kv,
                                           int group, int width, const step_shared &m, int first, int count)
{
    const int c = (int)threadIdx.x % (STEP_THREADS / 2), half = (int)threadIdx.x / (STEP_THREADS / 2);
    for (int i = half; i < count && c < s.Dv; i += 2) { /* widths are at most half the threads */
        float sum = 0.0f;
#pragma unroll
        for (int w = 0; w < STEP_WARPS; w++) sum += m.partial[(i * STEP_WARPS + w) * width + c];
        store_token_element(io.o, (b * s.H + kv * group + first + i) * s.Dv + c, s.token_bf16, sum);
    }
}

/* ---- the kernel; MANY: the rows do not fit the registers and come in turns ---- */
template <typename E, int LANES, int ROWS, bool MANY>
__global__ void __launch_bounds__(STEP_THREADS, 2)
    step_kernel(const __grid_constant__ bla_step_cuda_shape s, bla_step_cuda_states states,
                int64_t first_state, step_io io)
{
    typedef step_rows<E, LANES, ROWS> rows;
    enum { N = rows::N, WIDTH = LANES * N };
    CUDA_DYNAMIC_SHARED(char, memory);
    __shared__ token_place places[BLA_STEP_CUDA_FOLD];
    __shared__ int usable;
    const step_shared m = step_carve(s, WIDTH, memory);
    const int kv = (int)blockIdx.x, group = s.group;
    const int64_t b = first_state + (int64_t)blockIdx.y;
    const int tid = (int)threadIdx.x, warp = tid / 32, lane = tid % 32;
    char *state = state_at(s, states, b);
    bla_state_header *header = (bla_state_header *)(void *)state;
    E *slots_k = (E *)(void *)(state + s.k) + (int64_t)kv * s.S * s.row_k;
    E *slots_v = (E *)(void *)(state + s.v) + (int64_t)kv * s.S * s.row_v;

    const int64_t position = __ldcg(&header->position), empty_at = __ldcg(&header->empty_at);
    const bla_step_head head = s.heads[kv];
    const step_staged staged = stage_begin(s, io, state, b, kv, group, m);
    rows k, v;
    if (!MANY) k.load(slots_k, s.S, s.row_k, 0), v.load(slots_v, s.S, s.row_v, 0);
    const step_moment now = step_now(s, position, empty_at);
    if (warp == STEP_WARPS - 1) {
        if (lane < now.held) places[lane] = place_token(s, head, now.t - lane);
        if (lane == 0) usable = state_usable(s, *header) && now.t < BLA_POSITION_MAX;
    }
    stage_end(s, io, state, b, kv, group, m, staged);
    __syncthreads();
    if (!usable) {
        for (int n = tid; n < group * s.Dv; n += STEP_THREADS)
            store_token_element(io.o, (b * s.H + kv * group) * s.Dv + n, s.token_bf16, NAN);
        if (tid == 0) *s.refused = 1;
        return;
    }
    /* all threads have read the header: once all blocks of the sequence have, the last one moves it on */
    unsigned long long arrived = 0;
    if (tid == 0) arrived = atomicAdd((unsigned long long *)(void *)&header->arrived, 1ull);
    weigh_ring(s, places, now, m);
    score_ring(s, now, m, group);
    keep_token(s, state, kv, now.at, m);
    __syncthreads();
    for (int first = 0; first < s.S; first += rows::ALL) {
        if (MANY) k.load(slots_k, s.S, s.row_k, first);
        for (int g = 0; g < group; g++) k.dots(m.q + g * s.Dk, s.Dk, s.S, first, m.weights + g * s.S);
        k.bring_up_to_date(s, now, m.phi, m.ring_k, slots_k, s.row_k, first);
    }
    __syncthreads();
    step_weigh(s, m, now, now.t >= head.all_visible ? NULL : s.visible + kv * s.S, group);
    __syncthreads();
    for (int tile = 0; tile < group; tile += STEP_TILE) {
        int count = min((int)STEP_TILE, group - tile);
        for (int i = 0; i < count; i++) {
            float sum[N];
#pragma unroll
            for (int e = 0; e < N; e++) sum[e] = 0.0f;
            for (int first = 0; first < s.S; first += rows::ALL) {
                if (MANY) v.load(slots_v, s.S, s.row_v, first);
                v.add(m.weights + (tile + i) * s.S, s.S, first, sum);
                if (tile + i == group - 1)
                    v.bring_up_to_date(s, now, m.phi, m.ring_v, slots_v, s.row_v, first);
            }
            add_ring<LANES, N>(s, now, m, tile + i, sum);
#pragma unroll
            for (int e = 0; e < N; e++) {
#pragma unroll
                for (int step = LANES; step < 32; step *= 2)
                    sum[e] += __shfl_xor_sync(CUDA_FULL_WARP, sum[e], step);
                if (lane < LANES) m.partial[(i * STEP_WARPS + warp) * WIDTH + lane * N + e] = sum[e];
            }
        }
        __syncthreads();
        write_output(s, io, b, kv, group, WIDTH, m, tile, count);
        if (tile + STEP_TILE < group) __syncthreads();
    }
    if (tid == 0 && arrived == (unsigned long long)(s.Hkv - 1)) {
        header->position = now.t + 1;
        header->checksum = bla_state_checksum(s.fingerprint, now.t + 1, empty_at);
        header->arrived = 0;
    }
}

template <typename E, int LANES>
static void launch(const bla_step_cuda_shape &s, const bla_step_cuda_states &states, const step_io &io,
                   cudaStream_t stream)
{
    enum { MOST = 32768 }; /* states of a launch: the grid's second side ends at 65535 */
    const int width = LANES * row_vector<E>::N, turn = STEP_WARPS * 32 / LANES;
    size_t bytes = step_carve(s, width, NULL).bytes;
    /* few rows are worth a kernel of their own where many fit a turn */
    void (*kernel)(const bla_step_cuda_shape, bla_step_cuda_states, int64_t, step_io) =
        LANES == 8 && s.S <= 4 * turn ? step_kernel<E, 8, 4, false>
        : s.S <= 8 * turn             ? step_kernel<E, LANES, 8, false>
                                      : step_kernel<E, LANES, 8, true>;
    for (int64_t first = 0; first < states.count; first += MOST) {
        unsigned count = (unsigned)(states.count - first < MOST ? states.count - first : (int64_t)MOST);
        cuda_launch(kernel, dim3((unsigned)s.Hkv, count), dim3(STEP_THREADS), bytes, stream, s, states, first,
                    io);
    }
}

static int lanes_of(const bla_step_cuda_shape &s)
{
    int elements = s.state_bf16 ? 8 : 4, lanes = 8;
    while (lanes * elements < max(s.Dk, s.Dv)) lanes *= 2;
    return lanes;
}

size_t bla_step_cuda_shared(const bla_step_cuda_shape *s)
{
    return step_carve(*s, lanes_of(*s) * (s->state_bf16 ? 8 : 4), NULL).bytes;
}

blurry_status bla_step_cuda_run(const bla_step_cuda_shape *shape, const bla_step_cuda_states *states,
                                const void *q, const void *k, const void *v, void *o, blurry_stream stream)
{
    const step_io io = {q, k, v, o};
    const int lanes = lanes_of(*shape);
    if (states->count == 0) return BLURRY_OK;
    if (shape->state_bf16)
        (lanes == 8 ? launch<bf16, 8> : launch<bf16, 16>)(*shape, *states, io, stream);
    else
        (lanes == 8    ? launch<float, 8>
         : lanes == 16 ? launch<float, 16>
                       : launch<float, 32>)(*shape, *states, io, stream);
    return bla_step_cuda_launched("the decode step");
}
