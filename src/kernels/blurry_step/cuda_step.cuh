/* The decode kernel: one block for each sequence and key/value head.
 *
 * All loads of a head's K and V rows are issued first, into registers, before anything that depends on the
 * position; the 65 KB of a head (S = 127, D = 64, float) are then under way while the weights of the ring's
 * tokens are made. After that the passes of kernels/blurry_step/simd.c: rows of the due block are brought up
 * to date and stored, logits, what other blocks miss applied to the logits, softmax, the same backwards, V.
 *
 * LANES lanes hold one row, E is the slots' type; rows go round: row = (i * warps + warp) * rows of a warp +
 * lane / LANES, so the rows of a due block are spread over all warps. */
#ifndef BLURRY_KERNELS_BLURRY_STEP_CUDA_STEP_CUH
#define BLURRY_KERNELS_BLURRY_STEP_CUDA_STEP_CUH
#include "kernels/blurry_step/cuda_weights.cuh"

enum { STEP_THREADS = 256, STEP_WARPS = STEP_THREADS / 32, STEP_TILE = 4 };

struct step_io {
    const void *q, *k, *v;
    void *o;
};

/* Shared memory of a block, in floats; `width` = LANES * N. Weights and scores of the ring's
 * tokens are kept by age, 0 the newest. */
struct step_shared {
    float2 *wave;     /* [S] */
    float *phi;       /* [fold, S] by age */
    float *weights;   /* [group, S] logits, then the weights of V rows */
    float *spare;     /* [group, S] where the grid is relative */
    float *q;         /* [group, width] */
    float *ring_k;    /* [fold + 1, width] by ring index, the new token last */
    float *ring_v;    /* [fold + 1, width] */
    float *scores;    /* [group, fold] <q, k_u> by age */
    float2 *stats;    /* [group, parts] top and sum of 32 slots' exponentials */
    float *ring_part; /* [group, parts, fold] what 32 slots give to the weight of v_u */
    float *partial;   /* [STEP_TILE, warps, width] */
    size_t bytes;
};

static __host__ __device__ inline int step_parts(int S)
{
    return (S + 31) / 32;
}

static __host__ __device__ inline step_shared step_carve(const bla_step_cuda_shape &s, int width, char *base)
{
    int group = s.H / s.Hkv, parts = step_parts(s.S);
    step_shared m;
    size_t at = 0;
#define CARVE(field, type, count)                                                                            \
    m.field = (type *)(base + at);                                                                           \
    at += ((size_t)(count) * sizeof(type) + 15) / 16 * 16
    CARVE(wave, float2, s.S);
    CARVE(phi, float, s.fold *s.S);
    CARVE(weights, float, group *s.S);
    CARVE(spare, float, s.relative ? group *s.S : 0);
    CARVE(q, float, group *width);
    CARVE(ring_k, float, (s.fold + 1) * width);
    CARVE(ring_v, float, (s.fold + 1) * width);
    CARVE(scores, float, group *s.fold);
    CARVE(stats, float2, group * parts);
    CARVE(ring_part, float, group *parts *s.fold);
    CARVE(partial, float, STEP_TILE *STEP_WARPS *width);
#undef CARVE
    m.bytes = at;
    return m;
}

/* What all threads of a block know after the header has been read. */
struct step_moment {
    int64_t t;
    int usable, at, held, due; /* ring index of t, ring entries in use, block to bring up to date or -1 */
    int due_tokens;
    token_place places[BLA_STEP_CUDA_FOLD];
};

/* Reads the header, makes the places of the ring's tokens (one lane each) and moves the position on once all
 * blocks of the sequence have read it. Warp 0. */
static __device__ inline void step_open(const bla_step_cuda_shape &s, char *state, double T, step_moment *m)
{
    const int lane = (int)threadIdx.x;
    bla_state_header h = *(const bla_state_header *)state;
    bool usable = state_usable(s, h) && h.position < BLA_POSITION_MAX;
    int64_t t = usable ? h.position : 0, seen = usable ? t + 1 - h.empty_at : 1;
    int held = (int)(seen < s.fold ? seen : s.fold), at = (int)((uint64_t)t % (unsigned)s.fold);
    if (lane < held) m->places[lane] = place_token(s.S, T, t - lane);
    __syncwarp(); /* every lane has read the header before it moves on */
    if (lane != 0) return;
    m->t = t, m->usable = usable, m->at = at, m->held = held, m->due = -1, m->due_tokens = held;
    for (int r = 0; r < s.n_blocks; r++)
        if (block_phase(s, r) == at) m->due = r;
    if (!usable) {
        *s.refused = 1;
        return;
    }
    __threadfence(); /* the header was read before it is counted as read */
    bla_state_header *header = (bla_state_header *)state;
    unsigned long long before = atomicAdd((unsigned long long *)&header->arrived, 1ull);
    if (before != (unsigned long long)(s.Hkv - 1)) return;
    header->position = t + 1;
    header->checksum = bla_state_checksum(s.fingerprint, t + 1, h.empty_at);
    header->arrived = 0;
}

/* Where the token of this age lies in ring_k and ring_v. */
static __device__ inline int ring_row(const bla_step_cuda_shape &s, int at, int age)
{
    int u = at - age;
    return age == 0 ? s.fold : u < 0 ? u + s.fold : u;
}

/* ---- rows in registers ---- */
template <typename E, int LANES, int ROWS> struct step_rows {
    enum {
        N = row_vector<E>::N,
        PER_WARP = 32 / LANES,
        PER_TURN = STEP_WARPS * PER_WARP,
        ALL = ROWS * PER_TURN
    };
    row_vector<E> x[ROWS];

    static __device__ inline int row(int first, int i)
    {
        int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
        return first + i * PER_TURN + warp * PER_WARP + lane / LANES;
    }
    static __device__ inline int column() { return (int)threadIdx.x % LANES * N; }
    __device__ inline void load(const E *slots, int S, int stride, int first)
    {
        const int c = column();
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            int j = row(first, i);
            x[i].raw = make_uint4(0, 0, 0, 0);
            if (j < S && c < stride)
                x[i].raw = __ldcg((const uint4 *)(const void *)(slots + (int64_t)j * stride + c));
        }
    }
    /* Rows of the due block take in what they missed, newest first, and are stored. */
    __device__ inline void bring_up_to_date(const bla_step_cuda_shape &s, const step_moment &m,
                                            const float *phi, const float *ring, E *slots, int stride,
                                            int first)
    {
        const int c = column(), width = LANES * N, from = m.due * s.block, end = min(from + s.block, s.S);
        if (m.due < 0) return;
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            int j = row(first, i);
            if (j < from || j >= end || c >= stride) continue;
            float old[N], sum[N], rest = 1.0f;
            x[i].unpack(old);
            for (int e = 0; e < N; e++) sum[e] = 0.0f;
            for (int age = 0; age < m.due_tokens; age++) {
                const float *token = ring + ring_row(s, m.at, age) * width + c;
                float w = phi[age * s.S + j], take = rest * w;
                for (int e = 0; e < N; e++) sum[e] = fmaf(take, token[e], sum[e]);
                if (s.decay) rest -= take;
            }
            for (int e = 0; e < N; e++) old[e] = fmaf(rest, old[e], sum[e]);
            x[i].pack(old);
            *(uint4 *)(void *)(slots + (int64_t)j * stride + c) = x[i].raw;
            x[i].unpack(old); /* what is read is what was kept */
        }
    }
    /* weights [S] = <q, row> */
    __device__ inline void dots(const float *q, int S, int first, float *weights) const
    {
        const int c = column();
        float query[N];
        for (int e = 0; e < N; e++) query[e] = q[c + e];
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            float value[N], sum = 0.0f;
            x[i].unpack(value);
            for (int e = 0; e < N; e++) sum = fmaf(query[e], value[e], sum);
#pragma unroll
            for (int step = LANES / 2; step > 0; step /= 2) sum += __shfl_xor_sync(CUDA_FULL_WARP, sum, step);
            int j = row(first, i);
            if (j < S && threadIdx.x % LANES == 0) weights[j] = sum;
        }
    }
    /* sum [N] += weight * row */
    __device__ inline void add(const float *weights, int S, int first, float *sum) const
    {
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            int j = row(first, i);
            float value[N], w = j < S ? weights[j] : 0.0f;
            x[i].unpack(value);
            for (int e = 0; e < N; e++) sum[e] = fmaf(w, value[e], sum[e]);
        }
    }
};

#endif
