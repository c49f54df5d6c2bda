/* What the decode kernel is made of: its shared memory, the moment a sequence is at, and a head's rows in
 * registers.
 *
 * One block serves one sequence and key/value head. All its loads are issued first, before anything that
 * depends on the position: the 65 KB of a head (S = 127, D = 64, float) are then under way at once, in
 * registers, while the weights of the ring's tokens are made. Then, as in
 * kernels/blurry_step/simd.c: logits, what the rows lack applied to the logits, softmax, the same backwards,
 * V; rows of the due block are brought up to date and stored beside that, and read as they were. */
#ifndef BLURRY_KERNELS_BLURRY_STEP_CUDA_STEP_CUH
#define BLURRY_KERNELS_BLURRY_STEP_CUDA_STEP_CUH
#include "kernels/blurry_step/cuda_weights.cuh"

enum { STEP_THREADS = 256, STEP_WARPS = STEP_THREADS / 32, STEP_TILE = 4 };

struct step_io {
    const void *q, *k, *v;
    void *o;
};

/* Shared memory of a block; `width` = lanes of a row times elements of a lane. Weights and scores of the
 * ring's tokens are kept by age, 0 the newest. */
struct step_shared {
    float *ring_k;         /* [fold + 1, width] by age; row `fold` takes what is not needed */
    float *ring_v;         /* [fold + 1, width] */
    float *partial;        /* [STEP_TILE, warps, width] */
    float2 *wave;          /* [S] */
    float *phi;            /* [fold, S] by age */
    float *weights;        /* [group, S] logits, then the weights of V rows */
    float *spare;          /* [group, S] where the grid is relative */
    float *q;              /* [group, Dk] */
    float *scores;         /* [group, fold] <q, k_u> by age */
    float2 *stats;         /* [group, parts] top and sum of 32 slots' exponentials */
    float *ring_part;      /* [group, parts, fold] what 32 slots give to the weight of v_u */
    unsigned char *missed; /* [S] tokens that the slot's row lacks */
    size_t bytes;
};

static __host__ __device__ inline int step_parts(int S)
{
    return (S + 31) / 32;
}

static __host__ __device__ inline step_shared step_carve(const bla_step_cuda_shape &s, int width, char *base)
{
    int group = s.group, parts = step_parts(s.S);
    step_shared m;
    size_t at = 0;
#define CARVE(field, type, count)                                                                            \
    m.field = (type *)(void *)(base + at);                                                                   \
    at += ((size_t)(count) * sizeof(type) + 15) / 16 * 16
    CARVE(ring_k, float, (s.fold + 1) * width);
    CARVE(ring_v, float, (s.fold + 1) * width);
    CARVE(partial, float, STEP_TILE *STEP_WARPS *width);
    CARVE(wave, float2, s.S);
    CARVE(phi, float, s.fold *s.S);
    CARVE(weights, float, group *s.S);
    CARVE(spare, float, s.relative ? group *s.S : 0);
    CARVE(q, float, group *s.Dk);
    CARVE(scores, float, group *s.fold);
    CARVE(stats, float2, group * parts);
    CARVE(ring_part, float, group *parts *s.fold);
    CARVE(missed, unsigned char, s.S);
#undef CARVE
    m.bytes = at;
    return m;
}

/* ---- the moment: every thread makes it from the header for itself ---- */
struct step_moment {
    int64_t t;
    int at, held;          /* ring index of the new token; ring entries in use, it included */
    int due_from, due_end; /* rows to bring up to date */
};

static __device__ inline step_moment step_now(const bla_step_cuda_shape &s, int64_t position,
                                              int64_t empty_at)
{
    step_moment m;
    int64_t seen = position + 1 - empty_at;
    m.t = position;
    m.held = (int)(seen < s.fold ? seen : s.fold);
    m.at =
        (int)(position >> 32 ? (uint64_t)position % (unsigned)s.fold : (uint32_t)position % (unsigned)s.fold);
    int r = s.due[m.at];
    m.due_from = r < 0 ? 0 : r * s.block;
    m.due_end = r < 0 ? 0 : min(m.due_from + s.block, s.S);
    return m;
}

/* ---- sums over lanes ---- */

/* v [COUNT] summed over LANES neighbouring lanes, COUNT <= LANES, both powers of two. Each exchange halves
 * the values a lane still has, so COUNT sums cost little more than one: the lane gets that of value `which`.
 */
template <int COUNT, int LANES> static __device__ inline float sum_many(float (&v)[COUNT], int *which)
{
    const int lane = (int)threadIdx.x;
    int mine = 0;
#pragma unroll
    for (int half = COUNT / 2, step = LANES / 2; half > 0; half /= 2, step /= 2) {
        bool upper = lane & step;
        mine += upper ? half : 0;
#pragma unroll
        for (int i = 0; i < half; i++) {
            float keep = upper ? v[i + half] : v[i], give = upper ? v[i] : v[i + half];
            v[i] = keep + __shfl_xor_sync(CUDA_FULL_WARP, give, step);
        }
    }
#pragma unroll
    for (int step = LANES / COUNT / 2; step > 0; step /= 2)
        v[0] += __shfl_xor_sync(CUDA_FULL_WARP, v[0], step);
    *which = mine;
    return v[0];
}

/* ---- rows in registers ----
 * LANES lanes hold one row of type E; rows go round, so that those of a due block are spread over the warps.
 */
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
        return first + i * PER_TURN + (int)threadIdx.x / LANES;
    }
    static __device__ inline int column() { return (int)threadIdx.x % LANES * N; }
    /* Lanes beyond the width and rows beyond the last read what others read, and give nothing. */
    __device__ inline void load(const E *slots, int S, int stride, int first)
    {
        const E *from = slots + min(column(), stride - (int)N);
#pragma unroll
        for (int i = 0; i < ROWS; i++)
            x[i].raw =
                __ldcg((const uint4 *)(const void *)(from + (int64_t)(min(row(first, i), S - 1) * stride)));
    }
    /* Rows of the due block take in what they lack, newest first, and are stored; here they stay as they
     * were. */
    __device__ inline void bring_up_to_date(const bla_step_cuda_shape &s, const step_moment &m,
                                            const float *phi, const float *ring, E *slots, int stride,
                                            int first) const
    {
        const int c = column(), mine = row(first, 0);
        if (c >= stride) return;
        for (int i = max(0, (m.due_from - mine + PER_TURN - 1) / PER_TURN), j = mine + i * PER_TURN;
             i < ROWS && j < m.due_end; i++, j += PER_TURN) {
            row_vector<E> kept = x[0]; /* x[i], but registers have no index */
#pragma unroll
            for (int n = 1; n < ROWS; n++)
                if (n == i) kept = x[n];
            float old[N], sum[N], rest = 1.0f;
            kept.unpack(old);
#pragma unroll
            for (int e = 0; e < N; e++) sum[e] = 0.0f;
#pragma unroll 2
            for (int age = 0; age < m.held; age++) {
                const float4 *token = (const float4 *)(const void *)(ring + age * (LANES * N) + c);
                float w = phi[age * s.S + j], take = rest * w;
#pragma unroll
                for (int e = 0; e < N / 4; e++) {
                    float4 y = token[e];
                    sum[4 * e] = fmaf(take, y.x, sum[4 * e]);
                    sum[4 * e + 1] = fmaf(take, y.y, sum[4 * e + 1]);
                    sum[4 * e + 2] = fmaf(take, y.z, sum[4 * e + 2]);
                    sum[4 * e + 3] = fmaf(take, y.w, sum[4 * e + 3]);
                }
                if (s.decay) rest -= take;
            }
#pragma unroll
            for (int e = 0; e < N; e++) old[e] = fmaf(rest, old[e], sum[e]);
            kept.pack(old);
            *(uint4 *)(void *)(slots + (int64_t)j * stride + c) = kept.raw;
        }
    }
    /* weights [S] = <q, row>, q [width] */
    __device__ inline void dots(const float *q, int width, int S, int first, float *weights) const
    {
        const int c = column();
        float query[N], sum[ROWS];
#pragma unroll
        for (int e = 0; e < N; e++) query[e] = c + e < width ? q[c + e] : 0.0f;
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            float value[N];
            x[i].unpack(value);
            sum[i] = 0.0f;
#pragma unroll
            for (int e = 0; e < N; e++) sum[i] = fmaf(query[e], value[e], sum[i]);
        }
        int i;
        float total = sum_many<ROWS, LANES>(sum, &i);
        int j = row(first, i);
        if (threadIdx.x % (LANES / ROWS) == 0 && j < S) weights[j] = total;
    }
    /* sum [N] += weight * row */
    __device__ inline void add(const float *weights, int S, int first, float *sum) const
    {
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            int j = row(first, i);
            float value[N], w = j < S ? weights[j] : 0.0f;
            x[i].unpack(value);
#pragma unroll
            for (int e = 0; e < N; e++) sum[e] = fmaf(w, value[e], sum[e]);
        }
    }
};

#endif
