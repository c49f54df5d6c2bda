/* Decoding on CUDA: the step kernel as a whole, and its launch. What a state is: cuda.h; how its rows are
 * read and brought up to date: cuda_step.cuh; states beside the step: cuda_state.cu. */
#include "kernels/blurry_step/cuda_host.h"
#include "kernels/blurry_step/cuda_softmax.cuh"

/* Tokens and tables into shared memory: nothing here depends on the position. */
template <int WIDTH>
static __device__ inline void stage(const bla_step_cuda_shape &s, const step_io &io, const char *state,
                                    int64_t b, int kv, const step_shared &m)
{
    const int group = s.H / s.Hkv;
    const float2 *wave = (const float2 *)(const void *)s.wave;
    for (int n = (int)threadIdx.x; n < s.S; n += STEP_THREADS) m.wave[n] = wave[n];
    for (int n = (int)threadIdx.x; n < group * WIDTH; n += STEP_THREADS) {
        int g = n / WIDTH, c = n % WIDTH;
        m.q[n] = c < s.Dk ? token_element(io.q, (b * s.H + kv * group + g) * s.Dk + c, s.token_bf16) : 0.0f;
    }
    for (int n = (int)threadIdx.x; n < (s.fold + 1) * WIDTH; n += STEP_THREADS) {
        int u = n / WIDTH, c = n % WIDTH;
        bool fresh = u == s.fold;
        int64_t row = fresh ? b * s.Hkv + kv : (int64_t)kv * s.fold + u;
        const void *k = fresh ? io.k : state + s.ring_k, *v = fresh ? io.v : state + s.ring_v;
        int64_t from_k = row * (fresh ? s.Dk : s.row_k) + c, from_v = row * (fresh ? s.Dv : s.row_v) + c;
        m.ring_k[n] = c < s.Dk ? token_element(k, from_k, s.token_bf16) : 0.0f;
        m.ring_v[n] = c < s.Dv ? token_element(v, from_v, s.token_bf16) : 0.0f;
    }
}

/* The new token into the state's ring; weights of the ring's tokens; their scores with the queries. */
template <int WIDTH>
static __device__ inline void score(const bla_step_cuda_shape &s, char *state, int kv, const step_moment &now,
                                    const step_shared &m)
{
    const int group = s.H / s.Hkv, warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    int64_t row = (int64_t)kv * s.fold + now.at;
    for (int c = (int)threadIdx.x; c < s.Dk; c += STEP_THREADS)
        store_token_element(state + s.ring_k, row * s.row_k + c, s.token_bf16, m.ring_k[s.fold * WIDTH + c]);
    for (int c = (int)threadIdx.x; c < s.Dv; c += STEP_THREADS)
        store_token_element(state + s.ring_v, row * s.row_v + c, s.token_bf16, m.ring_v[s.fold * WIDTH + c]);
    for (int n = (int)threadIdx.x; n < now.held * s.S; n += STEP_THREADS) {
        int age = n / s.S;
        m.phi[n] = token_weight(now.places[age], m.wave, s.S, n - age * s.S);
    }
    for (int n = warp; n < group * now.held; n += STEP_WARPS) {
        int g = n / now.held, age = n - g * now.held;
        const float *q = m.q + g * WIDTH, *k = m.ring_k + ring_row(s, now.at, age) * WIDTH;
        float sum = 0.0f;
        for (int c = lane; c < WIDTH; c += 32) sum = fmaf(q[c], k[c], sum);
        sum = warp_sum(sum);
        if (lane == 0) m.scores[g * s.fold + age] = sum;
    }
}

/* o of up to STEP_TILE queries from the warps' partial sums and the ring. */
template <int WIDTH>
static __device__ inline void finish(const bla_step_cuda_shape &s, const step_io &io, int64_t b, int kv,
                                     const step_moment &now, const step_shared &m, int first, int count)
{
    const int parts = step_parts(s.S), group = s.H / s.Hkv;
    for (int n = (int)threadIdx.x; n < count * s.Dv; n += STEP_THREADS) {
        int i = n / s.Dv, c = n - i * s.Dv, g = first + i;
        const float *ring_part = m.ring_part + g * parts * s.fold;
        float sum = 0.0f;
        for (int w = 0; w < STEP_WARPS; w++) sum += m.partial[(i * STEP_WARPS + w) * WIDTH + c];
        for (int age = 0; age < now.held; age++) {
            float weight = 0.0f;
            for (int p = 0; p < parts; p++) weight += ring_part[p * s.fold + age];
            sum = fmaf(weight, m.ring_v[ring_row(s, now.at, age) * WIDTH + c], sum);
        }
        store_token_element(io.o, (b * s.H + kv * group + g) * s.Dv + c, s.token_bf16, sum);
    }
}

/* MANY: the rows do not fit the registers and come in turns. */
template <typename E, int LANES, int ROWS, bool MANY>
__global__ void __launch_bounds__(STEP_THREADS, 2)
    step_kernel(bla_step_cuda_shape s, bla_step_cuda_states states, step_io io)
{
    typedef step_rows<E, LANES, ROWS> rows;
    enum { N = rows::N, WIDTH = LANES * N };
    CUDA_DYNAMIC_SHARED(char, memory);
    __shared__ step_moment now;
    const step_shared m = step_carve(s, WIDTH, memory);
    const int64_t b = (int64_t)blockIdx.x / s.Hkv;
    const int kv = (int)((int64_t)blockIdx.x - b * s.Hkv), group = s.H / s.Hkv;
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    char *state = state_at(s, states, b);
    E *slots_k = (E *)(void *)(state + s.k) + (int64_t)kv * s.S * s.row_k;
    E *slots_v = (E *)(void *)(state + s.v) + (int64_t)kv * s.S * s.row_v;
    rows k, v;
    if (!MANY) k.load(slots_k, s.S, s.row_k, 0), v.load(slots_v, s.S, s.row_v, 0);
    const double T = s.period[kv];
    if (threadIdx.x < 32) step_open(s, state, T, &now);
    stage<WIDTH>(s, io, state, b, kv, m);
    __syncthreads();
    if (!now.usable) {
        for (int n = (int)threadIdx.x; n < group * s.Dv; n += STEP_THREADS)
            store_token_element(io.o, (b * s.H + kv * group) * s.Dv + n, s.token_bf16, NAN);
        return;
    }
    score<WIDTH>(s, state, kv, now, m);
    __syncthreads();
    for (int first = 0; first < s.S; first += rows::ALL) {
        if (MANY) k.load(slots_k, s.S, s.row_k, first);
        k.bring_up_to_date(s, now, m.phi, m.ring_k, slots_k, s.row_k, first);
        for (int g = 0; g < group; g++) k.dots(m.q + g * WIDTH, s.S, first, m.weights + g * s.S);
    }
    __syncthreads();
    step_weigh(s, m, now, T, group);
    __syncthreads();
    if (!MANY) v.bring_up_to_date(s, now, m.phi, m.ring_v, slots_v, s.row_v, 0);
    for (int tile = 0; tile < group; tile += STEP_TILE) {
        int count = min((int)STEP_TILE, group - tile);
        for (int i = 0; i < count; i++) {
            float sum[N];
            for (int e = 0; e < N; e++) sum[e] = 0.0f;
            for (int first = 0; first < s.S; first += rows::ALL) {
                if (MANY) v.load(slots_v, s.S, s.row_v, first);
                if (MANY && tile + i == 0)
                    v.bring_up_to_date(s, now, m.phi, m.ring_v, slots_v, s.row_v, first);
                v.add(m.weights + (tile + i) * s.S, s.S, first, sum);
            }
            for (int e = 0; e < N; e++) {
                for (int step = LANES; step < 32; step *= 2)
                    sum[e] += __shfl_xor_sync(CUDA_FULL_WARP, sum[e], step);
                if (lane < LANES) m.partial[(i * STEP_WARPS + warp) * WIDTH + lane * N + e] = sum[e];
            }
        }
        __syncthreads();
        finish<WIDTH>(s, io, b, kv, now, m, tile, count);
        __syncthreads();
    }
}

template <typename E, int LANES>
static void launch(const bla_step_cuda_shape &s, const bla_step_cuda_states &states, const step_io &io,
                   cudaStream_t stream)
{
    const int width = LANES * row_vector<E>::N, turn = STEP_WARPS * 32 / LANES;
    size_t bytes = step_carve(s, width, NULL).bytes;
    dim3 grid((unsigned)(states.count * s.Hkv));
    if (s.S <= 4 * turn)
        cuda_launch(step_kernel<E, LANES, 4, false>, grid, dim3(STEP_THREADS), bytes, stream, s, states, io);
    else if (s.S <= 8 * turn)
        cuda_launch(step_kernel<E, LANES, 8, false>, grid, dim3(STEP_THREADS), bytes, stream, s, states, io);
    else
        cuda_launch(step_kernel<E, LANES, 8, true>, grid, dim3(STEP_THREADS), bytes, stream, s, states, io);
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
