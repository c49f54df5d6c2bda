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

/* Piece n of the ring's 16-byte pieces, K's first. */
struct ring_piece {
    bool k;
    int i; /* among K's or V's */
};

static __device__ inline int ring_pieces(const bla_step_cuda_shape &s)
{
    return s.fold * (s.row_k + s.row_v) >> (s.token_bf16 ? 3 : 2);
}

static __device__ inline ring_piece ring_at(const bla_step_cuda_shape &s, int n)
{
    const int of_k = s.fold * s.row_k >> (s.token_bf16 ? 3 : 2);
    ring_piece p = {n < of_k, n < of_k ? n : n - of_k};
    return p;
}

static __device__ inline uint4 ring_load(const bla_step_cuda_shape &s, const char *state, int kv,
                                         ring_piece p)
{
    const int head = kv * s.fold * (p.k ? s.row_k : s.row_v) << (s.token_bf16 ? 1 : 2);
    return __ldcg((const uint4 *)(const void *)(state + (p.k ? s.ring_k : s.ring_v) + head + p.i * 16));
}

/* Its place in ring_k or ring_v [age, width]. */
static __device__ inline float *ring_place(const bla_step_cuda_shape &s, const step_shared &m, int width,
                                           int at, ring_piece p)
{
    const int unit = s.token_bf16 ? 8 : 4, u = (int)(((float)p.i + 0.5f) * (p.k ? s.per_row_k : s.per_row_v));
    const int age = at - u;
    return (p.k ? m.ring_k : m.ring_v) + (age > 0 ? age : age + s.fold) * width + p.i * unit -
           u * (p.k ? s.row_k : s.row_v);
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
                                             int kv, int n)
{
    const int queries = s.group * s.Dk, i = n - queries;
    const bool q = i < 0, k = i < s.Dk;
    const void *from = q ? io.q : k ? io.k : io.v;
    const int64_t row = q ? (b * s.Hkv + kv) * queries : (b * s.Hkv + kv) * (k ? s.Dk : s.Dv);
    return token_element(from, row + (q ? n : k ? i : i - s.Dk), s.token_bf16);
}

static __device__ inline float *fresh_place(const bla_step_cuda_shape &s, const step_shared &m, int n)
{
    const int i = n - s.group * s.Dk;
    return i < 0 ? m.q + n : i < s.Dk ? m.ring_k + i : m.ring_v + i - s.Dk;
}

static __device__ inline step_staged stage_begin(const bla_step_cuda_shape &s, const step_io &io,
                                                 const char *state, int64_t b, int kv)
{
    const int tid = (int)threadIdx.x;
    step_staged mine = {make_uint4(0, 0, 0, 0), 0.0f};
    if (tid < ring_pieces(s)) mine.ring = ring_load(s, state, kv, ring_at(s, tid));
    if (tid < (s.group + 1) * s.Dk + s.Dv) mine.element = fresh_element(s, io, b, kv, tid);
    return mine;
}

template <int WIDTH>
static __device__ inline void stage_end(const bla_step_cuda_shape &s, const step_io &io, const char *state,
                                        int64_t b, int kv, int at, const step_shared &m,
                                        const step_staged &mine)
{
    const int tid = (int)threadIdx.x, pieces = ring_pieces(s), elements = (s.group + 1) * s.Dk + s.Dv;
    if (tid < pieces) keep_piece(s, mine.ring, ring_place(s, m, WIDTH, at, ring_at(s, tid)));
    if (tid < elements) *fresh_place(s, m, tid) = mine.element;
    for (int n = tid + STEP_THREADS; n < pieces; n += STEP_THREADS) {
        ring_piece p = ring_at(s, n);
        keep_piece(s, ring_load(s, state, kv, p), ring_place(s, m, WIDTH, at, p));
    }
    for (int n = tid + STEP_THREADS; n < elements; n += STEP_THREADS)
        *fresh_place(s, m, n) = fresh_element(s, io, b, kv, n);
}

/* Once per block: the table of waves, what each row lacks, zeros beyond the new token's width. */
template <int WIDTH>
static __device__ inline void stage_once(const bla_step_cuda_shape &s, const step_moment &now,
                                         const step_shared &m)
{
    const int tid = (int)threadIdx.x;
    const float2 *wave = (const float2 *)(const void *)s.wave;
    for (int j = tid; j < s.S; j += STEP_THREADS) {
        m.wave[j] = __ldg(wave + j);
        m.missed[j] = (unsigned char)block_missed(s, block_of(s, j), now.at, now.held, true);
    }
    if (tid < WIDTH - s.Dk) m.ring_k[s.Dk + tid] = 0.0f;
    if (tid < WIDTH - s.Dv) m.ring_v[s.Dv + tid] = 0.0f;
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
    }
}

template <int WIDTH>
static __device__ inline void score_ring(const bla_step_cuda_shape &s, const step_moment &now,
                                         const step_shared &m)
{
    const int lane = (int)threadIdx.x % 32;
    for (int g = 0; g < s.group; g++)
        for (int age = (int)threadIdx.x / 32; age < now.held; age += STEP_WARPS) {
            const float *q = m.q + g * s.Dk, *k = m.ring_k + age * WIDTH;
            float sum = 0.0f;
            for (int c = lane; c < s.Dk; c += 32) sum = fmaf(q[c], k[c], sum);
            sum = warp_sum(sum);
            if (lane == 0) m.scores[g * s.fold + age] = sum;
        }
}

static __device__ inline void keep_token(const bla_step_cuda_shape &s, char *state, int kv, int at,
                                         const step_shared &m)
{
    const int n = (int)threadIdx.x, row = kv * s.fold + at; /* widths are at most STEP_THREADS / 2 */
    if (n < s.Dk)
        store_token_element(state + s.ring_k, row * s.row_k + n, s.token_bf16, m.ring_k[n]);
    else if (n - s.Dk < s.Dv)
        store_token_element(state + s.ring_v, row * s.row_v + n - s.Dk, s.token_bf16, m.ring_v[n - s.Dk]);
}

/* ---- o ---- */

/* sum [N] += what the ring's tokens of this warp give to query g; lanes of the first row only. */
template <int LANES, int N>
static __device__ inline void add_ring(const bla_step_cuda_shape &s, const step_moment &now,
                                       const step_shared &m, int g, float *sum)
{
    const int lane = (int)threadIdx.x % 32, parts = step_parts(s.S);
    if (lane >= LANES) return;
    for (int age = (int)threadIdx.x / 32; age < now.held; age += STEP_WARPS) {
        const float *part = m.ring_part + g * parts * s.fold + age, *v = m.ring_v + (age * LANES + lane) * N;
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

/* One head's V rows into the warps' sums; queries in tiles. */
template <typename R, int LANES, bool MANY, typename E>
static __device__ inline void read_values(const bla_step_cuda_shape &s, const step_io &io, int64_t b, int kv,
                                          const step_moment &now, const step_shared &m, R &v, E *slots)
{
    enum { N = R::N, WIDTH = LANES * N };
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    for (int tile = 0; tile < s.group; tile += STEP_TILE) {
        const int count = min((int)STEP_TILE, s.group - tile);
        for (int i = 0; i < count; i++) {
            float sum[N];
#pragma unroll
            for (int e = 0; e < N; e++) sum[e] = 0.0f;
            for (int first = 0; first < (MANY ? s.S : 1); first += R::ALL) {
                if (MANY) v.load(slots, s.S, s.row_v, first);
                v.add(m.weights + (tile + i) * s.S, s.S, first, sum);
                if (tile + i == s.group - 1)
                    v.bring_up_to_date(s, now, m.phi, m.ring_v, slots, s.row_v, first);
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
        if (tile + STEP_TILE >= s.group) return; /* the last tile is written by the caller */
        __syncthreads();
        write_output(s, io, b, kv, s.group, WIDTH, m, tile, count);
        __syncthreads();
    }
}

/* ---- the kernel: a block takes `each` heads of one sequence, one after another, and fetches the next head's
 * rows as soon as registers are free. MANY: the rows do not fit the registers and come in turns. ---- */
template <typename E, int LANES, int ROWS, bool MANY>
__global__ void __launch_bounds__(STEP_THREADS, 2)
    step_kernel(const __grid_constant__ bla_step_cuda_shape s, bla_step_cuda_states states,
                int64_t first_state, int each, step_io io)
{
    typedef step_rows<E, LANES, ROWS> rows;
    enum { WIDTH = LANES * rows::N };
    CUDA_DYNAMIC_SHARED(char, memory);
    __shared__ token_place places[BLA_STEP_CUDA_FOLD];
    __shared__ int usable;
    const step_shared m = step_carve(s, WIDTH, memory);
    const int tid = (int)threadIdx.x, warp = tid / 32, lane = tid % 32;
    const int first_kv = (int)blockIdx.x * each, end_kv = min(first_kv + each, s.Hkv);
    const int64_t b = first_state + (int64_t)blockIdx.y;
    char *state = state_at(s, states, b);
    bla_state_header *header = (bla_state_header *)(void *)state;
    E *slots_k = (E *)(void *)(state + s.k), *slots_v = (E *)(void *)(state + s.v);
    const int head_k = s.S * s.row_k, head_v = s.S * s.row_v; /* elements of a head */

    const int64_t position = __ldcg(&header->position), empty_at = __ldcg(&header->empty_at);
    bla_step_head head = s.heads[first_kv];
    step_staged staged = stage_begin(s, io, state, b, first_kv);
    rows k, v;
    if (!MANY) {
        k.load(slots_k + (int64_t)first_kv * head_k, s.S, s.row_k, 0);
        v.load(slots_v + (int64_t)first_kv * head_v, s.S, s.row_v, 0);
    }
    const step_moment now = step_now(s, position, empty_at);
    stage_once<WIDTH>(s, now, m);
    if (tid == 0) usable = state_usable(s, *header) && now.t < BLA_POSITION_MAX;
    unsigned long long arrived = 0;
    bool weighed = false; /* whether phi is that of this head's period */
    for (int kv = first_kv; kv < end_kv; kv++) {
        const bool more = kv + 1 < end_kv;
        if (!weighed && warp == STEP_WARPS - 1 && lane < now.held)
            places[lane] = place_token(s, head, now.t - lane);
        stage_end<WIDTH>(s, io, state, b, kv, now.at, m, staged);
        __syncthreads();
        if (!usable) {
            for (int n = tid; n < (end_kv - first_kv) * s.group * s.Dv; n += STEP_THREADS)
                store_token_element(io.o, (b * s.Hkv + first_kv) * s.group * s.Dv + n, s.token_bf16, NAN);
            if (tid == 0) *s.refused = 1;
            return;
        }
        /* all threads have read the header: once all blocks of the sequence have, the last one moves it on */
        if (tid == 0 && kv == first_kv)
            arrived = atomicAdd((unsigned long long *)(void *)&header->arrived, 1ull);
        if (!weighed) weigh_ring(s, places, now, m);
        score_ring<WIDTH>(s, now, m);
        keep_token(s, state, kv, now.at, m);
        if (more) staged = stage_begin(s, io, state, b, kv + 1);
        __syncthreads();
        for (int first = 0; first < (MANY ? s.S : 1); first += rows::ALL) {
            E *slots = slots_k + (int64_t)kv * head_k;
            if (MANY) k.load(slots, s.S, s.row_k, first);
            for (int g = 0; g < s.group; g++) k.dots(m.q + g * s.Dk, s.Dk, s.S, first, m.weights + g * s.S);
            k.bring_up_to_date(s, now, m.phi, m.ring_k, slots, s.row_k, first);
        }
        if (!MANY && more) k.load(slots_k + (int64_t)(kv + 1) * head_k, s.S, s.row_k, 0);
        __syncthreads();
        step_weigh(s, m, now, now.t >= head.all_visible ? NULL : s.visible + kv * s.S, s.group);
        __syncthreads();
        read_values<rows, LANES, MANY>(s, io, b, kv, now, m, v, slots_v + (int64_t)kv * head_v);
        if (more) {
            const bla_step_head next = s.heads[kv + 1];
            weighed = next.turn_hi == head.turn_hi && next.turn_lo == head.turn_lo;
            head = next;
            if (!MANY) v.load(slots_v + (int64_t)(kv + 1) * head_v, s.S, s.row_v, 0);
        }
        __syncthreads();
        const int last = (s.group - 1) / STEP_TILE * STEP_TILE;
        write_output(s, io, b, kv, s.group, WIDTH, m, last, s.group - last);
    }
    if (tid == 0 && arrived == (unsigned long long)(gridDim.x - 1)) {
        header->position = now.t + 1;
        header->checksum = bla_state_checksum(s.fingerprint, now.t + 1, empty_at);
        header->arrived = 0;
    }
}

template <typename E, int LANES>
static void launch(const bla_step_cuda_shape &s, const bla_step_cuda_states &states, const step_io &io,
                   cudaStream_t stream)
{
    enum { HEADS_EACH = 8, MOST = 32768 }; /* states of a launch: the grid's second side ends at 65535 */
    const int width = LANES * row_vector<E>::N, turn = STEP_WARPS * 32 / LANES;
    size_t bytes = step_carve(s, width, NULL).bytes;
    /* few rows are worth a kernel of their own where many fit a turn */
    void (*kernel)(const bla_step_cuda_shape, bla_step_cuda_states, int64_t, int, step_io) =
        LANES == 8 && s.S <= 4 * turn ? step_kernel<E, 8, 4, false>
        : s.S <= 8 * turn             ? step_kernel<E, LANES, 8, false>
                                      : step_kernel<E, LANES, 8, true>;
    for (int64_t first = 0; first < states.count; first += MOST) {
        unsigned count = (unsigned)(states.count - first < MOST ? states.count - first : (int64_t)MOST);
        /* as many heads to a block as keep the device full, and not more than even out its rounds */
        int64_t share = ((int64_t)count * s.Hkv + 2 * s.processors - 1) / (2 * s.processors);
        int each = (int)(share < HEADS_EACH ? share : (int64_t)HEADS_EACH);
        dim3 grid((unsigned)((s.Hkv + each - 1) / each), count);
        cuda_launch(kernel, grid, dim3(STEP_THREADS), bytes, stream, s, states, first, each, io);
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
    if (bla_step_cuda_stream(shape, states, q, k, v, o, stream))
        return bla_step_cuda_launched("the decode step");
    if (shape->state_bf16)
        (lanes == 8 ? launch<bf16, 8> : launch<bf16, 16>)(*shape, *states, io, stream);
    else
        (lanes == 8    ? launch<float, 8>
         : lanes == 16 ? launch<float, 16>
                       : launch<float, 32>)(*shape, *states, io, stream);
    return bla_step_cuda_launched("the decode step");
}
