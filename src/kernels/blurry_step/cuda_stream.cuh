/* What the streaming decode kernel (cuda_stream.cu) is made of: its shared memory, its fetches, and the steps
 * of one key/value head.
 *
 * P threads serve one slot, the same one throughout: its logit, its weights of the ring's tokens and its
 * softmax stay in their registers. Rows of K and V lie in shared memory, where the copy engine puts them
 * while the head before is worked on. What a row lacks is linear: with w the weights of the tokens it lacks,
 * newest first, row = rest * stored + sum over ages of share[age] * token,   share = w * product of (1 - w)
 * of newer ones, so logits, weights of V rows and of ring tokens, and rows brought up to date all use one set
 * of shares, which depends on the position and the period alone. Logits are in units of log 2. */
#ifndef BLURRY_KERNELS_BLURRY_STEP_CUDA_STREAM_CUH
#define BLURRY_KERNELS_BLURRY_STEP_CUDA_STREAM_CUH
#include "kernels/blurry_step/cuda_step.cuh"
#include "kernels/cuda_bulk.h"

/* E: type of the state; D: both widths; ROWS: slots that the threads can serve; FOLD: most tokens of a ring.
 */
template <typename E_, int D_, int ROWS_, int THREADS_, int FOLD_> struct stream_kind {
    typedef E_ E;
    enum {
        D = D_,
        ROWS = ROWS_,
        THREADS = THREADS_,
        FOLD = FOLD_,
        WARPS = THREADS / 32,
        P = THREADS / ROWS,    /* threads of a slot */
        SLOTS = 32 / P,        /* of a warp */
        AGES = FOLD / P,       /* ring tokens of a thread */
        N = row_vector<E>::N,  /* elements of 16 bytes */
        CHUNKS = D / N,        /* 16 bytes each, of a row */
        ABREAST = 32 / CHUNKS, /* rows that a warp reads at once */
        PIECES = D / 8         /* 8 elements each, of a token */
    };
    static_assert(P >= 1 && P * AGES == FOLD && CHUNKS % P == 0 && CHUNKS <= 32 && SLOTS % ABREAST == 0 &&
                      FOLD % ABREAST == 0,
                  "work divides evenly");
};

#define STREAM_LOG2_E 1.44269504088896341f

struct stream_shared {
    char *k, *v;            /* rows [S, D], [ROWS, D] of type E */
    float *ring_k, *ring_v; /* [FOLD, D] by age, 0 the newest */
    float *q;               /* [group, D], times scale / log 2 */
    float *scores;          /* [group, FOLD] <q, token> by age */
    float *weights;         /* [ROWS] of V rows */
    float *partial;         /* [group, WARPS, D] */
    float2 *stats;          /* [group, WARPS] top and sum of a warp's exponentials */
    float *due;             /* [block, FOLD] shares of the rows due */
    float *due_rest;        /* [block] */
    float2 *wave;           /* [S] */
    bla_state_header *header;
    char *raw_q, *raw_k, *raw_v, *raw_ring_k, *raw_ring_v; /* as they are in global memory */
    uint64_t *fresh, *rows_k, *rows_v;                     /* barriers of the fetches */
    size_t bytes;
};

template <typename KIND>
static __host__ __device__ inline stream_shared stream_carve(const bla_step_cuda_shape &s, char *base)
{
    const int token = (int)KIND::D * (s.token_bf16 ? 2 : 4);
    stream_shared m;
    size_t at = 0;
#define CARVE(field, type, count)                                                                            \
    m.field = (type *)(void *)(base + at);                                                                   \
    at += ((size_t)(count) * sizeof(type) + 15) / 16 * 16
    CARVE(v, char, KIND::ROWS *KIND::D * sizeof(typename KIND::E));
    CARVE(ring_k, float, KIND::FOLD *KIND::D);
    CARVE(ring_v, float, KIND::FOLD *KIND::D);
    CARVE(weights, float, KIND::ROWS);
    CARVE(header, bla_state_header, 1);
    CARVE(fresh, uint64_t, 1);
    CARVE(rows_k, uint64_t, 1);
    CARVE(rows_v, uint64_t, 1);
    CARVE(raw_k, char, token);
    CARVE(raw_v, char, token);
    CARVE(raw_ring_k, char, s.fold *token);
    CARVE(raw_ring_v, char, s.fold *token);
    CARVE(wave, float2, s.S);
    CARVE(due_rest, float, s.block);
    CARVE(due, float, s.block *KIND::FOLD);
    CARVE(raw_q, char, s.group *token);
    CARVE(q, float, s.group *KIND::D);
    CARVE(scores, float, s.group *KIND::FOLD);
    CARVE(stats, float2, s.group * KIND::WARPS);
    CARVE(partial, float, s.group *KIND::WARPS *KIND::D);
    CARVE(k, char, s.S *KIND::D * sizeof(typename KIND::E));
#undef CARVE
    m.bytes = at;
    return m;
}

/* ---- fetches, by one thread ---- */

/* Header, queries, the new token and the ring of a head. */
template <typename KIND>
static __device__ inline void fetch_fresh(const bla_step_cuda_shape &s, const stream_shared &m,
                                          const step_io &io, const char *state, int64_t b, int kv)
{
    const uint32_t token = (uint32_t)KIND::D * (s.token_bf16 ? 2 : 4), ring = (uint32_t)s.fold * token;
    const int64_t at = (b * s.Hkv + kv) * (int64_t)token;
    bulk_announce(m.fresh, (uint32_t)sizeof *m.header + (uint32_t)(s.group + 2) * token + 2 * ring);
    bulk_copy(m.header, state, sizeof *m.header, m.fresh);
    bulk_copy(m.raw_ring_k, state + s.ring_k + kv * (int64_t)ring, ring, m.fresh);
    bulk_copy(m.raw_k, (const char *)io.k + at, token, m.fresh);
    bulk_copy(m.raw_q, (const char *)io.q + at * s.group, (uint32_t)s.group * token, m.fresh);
    bulk_copy(m.raw_ring_v, state + s.ring_v + kv * (int64_t)ring, ring, m.fresh);
    bulk_copy(m.raw_v, (const char *)io.v + at, token, m.fresh);
}

template <typename KIND>
static __device__ inline void fetch_rows(const bla_step_cuda_shape &s, const stream_shared &m,
                                         const char *state, int kv)
{
    const uint32_t bytes = (uint32_t)(s.S * KIND::D) * (uint32_t)sizeof(typename KIND::E);
    bulk_announce(m.rows_k, bytes);
    bulk_copy(m.k, state + s.k + kv * (int64_t)bytes, bytes, m.rows_k);
    bulk_announce(m.rows_v, bytes);
    bulk_copy(m.v, state + s.v + kv * (int64_t)bytes, bytes, m.rows_v);
}

/* ---- shares ---- */

template <typename KIND> struct stream_shares {
    float share[KIND::AGES]; /* of the tokens that this thread's slot lacks, ages first() on */
    float rest;              /* of the stored row */
    bool seen;               /* whether the slot exists and is visible */

    static __device__ inline int slot() { return (int)threadIdx.x / KIND::P; }
    static __device__ inline int first() { return (int)threadIdx.x % KIND::P * KIND::AGES; }

    /* Each warp makes the places of all tokens, one to a lane, for itself. */
    __device__ inline void make(const bla_step_cuda_shape &s, const bla_step_head &head,
                                const step_moment &now, const float2 *wave, const int64_t *visible)
    {
        const int j = slot();
        const token_place mine = place_token(s, head, now.t - (int)threadIdx.x % KIND::FOLD);
        const int missed = j < s.S ? block_missed(s, block_of(s, j), now.at, now.held, true) : 0;
        rest = 1.0f;
#pragma unroll
        for (int i = 0; i < KIND::AGES; i++) {
            const int age = first() + i;
            token_place p;
            p.slot = __shfl_sync(CUDA_FULL_WARP, mine.slot, age);
            p.height = __shfl_sync(CUDA_FULL_WARP, mine.height, age);
            p.sine = __shfl_sync(CUDA_FULL_WARP, mine.sine, age);
            p.cosine = __shfl_sync(CUDA_FULL_WARP, mine.cosine, age);
            const float w = age < missed ? token_weight(p, wave, s.S, j) : 0.0f;
            share[i] = rest * w;
            if (s.decay) rest -= share[i];
        }
        if (KIND::P > 1 && s.decay) {
            float newer = 1.0f; /* the product over ages before first() */
#pragma unroll
            for (int p = 0; p + 1 < KIND::P; p++) {
                float his = __shfl_sync(CUDA_FULL_WARP, rest, p, KIND::P);
                newer *= p * KIND::AGES < first() ? his : 1.0f;
            }
#pragma unroll
            for (int i = 0; i < KIND::AGES; i++) share[i] *= newer;
            rest = __shfl_sync(CUDA_FULL_WARP, rest * newer, KIND::P - 1, KIND::P);
        }
        seen = j < s.S && (!visible || now.t >= visible[j]);
    }

    /* For the rows due now, where all threads find them. */
    __device__ inline void tell(const step_moment &now, const stream_shared &m) const
    {
        const int row = slot() - now.due_from;
        if (row < 0 || slot() >= now.due_end) return;
        m.due_rest[row] = rest;
#pragma unroll
        for (int i = 0; i < KIND::AGES; i++) m.due[row * KIND::FOLD + first() + i] = share[i];
    }
};

/* ---- tokens: from their own type to float, the ring by age with the new token in front ---- */

struct eight {
    float x[8];
};

static __device__ inline eight load_eight(const char *raw, int piece, int is_bf16)
{
    eight r;
    const uint4 *from = (const uint4 *)(const void *)raw;
    row_vector<bf16> narrow;
    row_vector<float> lower, upper;
    if (is_bf16) {
        narrow.raw = from[piece];
        narrow.unpack(r.x);
    } else {
        lower.raw = from[2 * piece], upper.raw = from[2 * piece + 1];
        lower.unpack(r.x), upper.unpack(r.x + 4);
    }
    return r;
}

static __device__ inline void store_eight(float *to, const eight &a, float factor)
{
    float4 *four = (float4 *)(void *)to;
    four[0] = make_float4(a.x[0] * factor, a.x[1] * factor, a.x[2] * factor, a.x[3] * factor);
    four[1] = make_float4(a.x[4] * factor, a.x[5] * factor, a.x[6] * factor, a.x[7] * factor);
}

/* The new token also goes into the state's ring. */
template <typename KIND>
static __device__ inline void unpack_tokens(const bla_step_cuda_shape &s, const stream_shared &m,
                                            const step_moment &now, bool usable, char *state, int kv)
{
    enum { PIECES = KIND::PIECES, OF_K = KIND::FOLD * PIECES };
    const int narrow = s.token_bf16;
    for (int n = (int)threadIdx.x; n < 2 * OF_K; n += KIND::THREADS) {
        const bool k = n < OF_K;
        const int u = n / PIECES % KIND::FOLD, piece = n % PIECES;
        const bool newest = u == now.at;
        const int age = u > now.at ? now.at - u + s.fold : now.at - u;
        float *to = (k ? m.ring_k : m.ring_v) + (u < s.fold ? age : u) * KIND::D + piece * 8;
        if (u >= s.fold || age >= now.held) {
            eight zero = {{0, 0, 0, 0, 0, 0, 0, 0}};
            store_eight(to, zero, 0.0f);
            continue;
        }
        const char *fresh = k ? m.raw_k : m.raw_v, *ring = k ? m.raw_ring_k : m.raw_ring_v;
        const char *from = newest ? fresh : ring + u * (KIND::D * (narrow ? 2 : 4));
        store_eight(to, load_eight(from, piece, narrow), 1.0f);
        if (!newest || !usable) continue;
        const int each = narrow ? 1 : 2; /* 16 bytes of 8 elements */
        uint4 *kept = (uint4 *)(void *)(state + (k ? s.ring_k : s.ring_v)) +
                      ((kv * s.fold + u) * PIECES + piece) * each;
        for (int i = 0; i < each; i++) kept[i] = ((const uint4 *)(const void *)from)[piece * each + i];
    }
    const float factor = s.scale * STREAM_LOG2_E;
    for (int n = (int)threadIdx.x; n < s.group * PIECES; n += KIND::THREADS)
        store_eight(m.q + n * 8, load_eight(m.raw_q, n, narrow), factor);
}

/* ---- logits ---- */

/* COUNT neighbouring floats from shared memory, aligned to as many. */
template <int COUNT> static __device__ inline void load_floats(const float *from, float (&to)[COUNT])
{
    if (COUNT % 4 == 0) {
#pragma unroll
        for (int i = 0; i < COUNT / 4; i++) {
            float4 x = ((const float4 *)(const void *)from)[i];
            to[4 * i % COUNT] = x.x, to[(4 * i + 1) % COUNT] = x.y;
            to[(4 * i + 2) % COUNT] = x.z, to[(4 * i + 3) % COUNT] = x.w;
        }
    } else {
#pragma unroll
        for (int i = 0; i < COUNT; i++) to[i] = from[i];
    }
}

/* <q, token> for all tokens of the ring, one warp each, from the tokens as they came. */
template <typename KIND>
static __device__ inline void score_tokens(const bla_step_cuda_shape &s, const stream_shared &m,
                                           const step_moment &now)
{
    enum { PAIRS = KIND::D / 64 }; /* of a lane */
    const int lane = (int)threadIdx.x % 32, narrow = s.token_bf16, bytes = KIND::D * (narrow ? 2 : 4);
    for (int n = (int)threadIdx.x / 32; n < s.group * KIND::FOLD; n += KIND::WARPS) {
        const int g = n / KIND::FOLD, u = n % KIND::FOLD;
        const int age = u >= s.fold ? u : u > now.at ? now.at - u + s.fold : now.at - u;
        const char *q = m.raw_q + g * bytes, *k = age == 0 ? m.raw_k : m.raw_ring_k + u * bytes;
        float sum = 0.0f;
        if (age < now.held) {
#pragma unroll
            for (int i = 0; i < PAIRS; i++) {
                float2 x, y;
                if (narrow) {
                    x = unpack_bf16(((const uint32_t *)(const void *)q)[32 * i + lane]);
                    y = unpack_bf16(((const uint32_t *)(const void *)k)[32 * i + lane]);
                } else {
                    x = ((const float2 *)(const void *)q)[32 * i + lane];
                    y = ((const float2 *)(const void *)k)[32 * i + lane];
                }
                sum = fmaf(x.x, y.x, fmaf(x.y, y.y, sum));
            }
        }
        sum = warp_sum(sum);
        if (lane == 0) m.scores[g * KIND::FOLD + age] = sum * (s.scale * STREAM_LOG2_E);
    }
}

/* The logit of this thread's slot. Neighbouring lanes take a row's chunks in other orders: other banks. */
template <typename KIND>
static __device__ inline float slot_logit(const stream_shared &m, int g, int S,
                                          const stream_shares<KIND> &shares)
{
    enum { N = KIND::N, CHUNKS = KIND::CHUNKS, P = KIND::P };
    const char *row = m.k + min(stream_shares<KIND>::slot(), S - 1) * (CHUNKS * 16);
    const float *q = m.q + g * KIND::D;
    const int begin = (int)threadIdx.x % CHUNKS;
    float dot = 0.0f, other = 0.0f, score[KIND::AGES];
#pragma unroll
    for (int i = 0; i < CHUNKS / P; i++) {
        const int at = begin ^ (P * i);
        row_vector<typename KIND::E> chunk;
        chunk.raw = *(const uint4 *)(const void *)(row + at * 16);
        float x[N];
        chunk.unpack(x);
        const float4 *query = (const float4 *)(const void *)(q + at * N);
#pragma unroll
        for (int e = 0; e < N / 4; e++) {
            float4 y = query[e];
            dot = fmaf(x[4 * e], y.x, dot), other = fmaf(x[4 * e + 1], y.y, other);
            dot = fmaf(x[4 * e + 2], y.z, dot), other = fmaf(x[4 * e + 3], y.w, other);
        }
    }
    load_floats(m.scores + g * KIND::FOLD + stream_shares<KIND>::first(), score);
    dot = (dot + other) * shares.rest;
#pragma unroll
    for (int i = 0; i < KIND::AGES; i++) dot = fmaf(shares.share[i], score[i], dot);
#pragma unroll
    for (int step = P / 2; step > 0; step /= 2) dot += __shfl_xor_sync(CUDA_FULL_WARP, dot, step);
    return shares.seen ? dot : -INFINITY;
}

/* ---- values ---- */

/* v [COUNT] summed over the lanes that differ in the bits of P and above; value i ends up in lanes
 * i * 32 / COUNT + 0 .. P-1. */
template <int COUNT, int P> static __device__ inline float sum_slots(float (&v)[COUNT])
{
    const int lane = (int)threadIdx.x;
#pragma unroll
    for (int half = COUNT / 2, step = 16; step >= P; half /= 2, step /= 2) {
        if (half == 0) {
            v[0] += __shfl_xor_sync(CUDA_FULL_WARP, v[0], step);
            continue;
        }
        const bool upper = lane & step;
#pragma unroll
        for (int i = 0; i < half; i++) {
            float keep = upper ? v[i + half] : v[i], give = upper ? v[i] : v[i + half];
            v[i] = keep + __shfl_xor_sync(CUDA_FULL_WARP, give, step);
        }
    }
    return v[0];
}

/* Softmax over this warp's slots alone; the sums over rows and ring tokens that go with it. */
template <typename KIND>
static __device__ inline void add_values(const stream_shared &m, float logit,
                                         const stream_shares<KIND> &shares, int parity, int g)
{
    enum { N = KIND::N, P = KIND::P, AGES = KIND::AGES, ABREAST = KIND::ABREAST };
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    float top = logit;
#pragma unroll
    for (int step = 16; step >= P; step /= 2) top = fmaxf(top, __shfl_xor_sync(CUDA_FULL_WARP, top, step));
    const float e = logit == -INFINITY ? 0.0f : exp2_fast(logit - top);
    float sum = e, part[AGES];
#pragma unroll
    for (int step = 16; step >= P; step /= 2) sum += __shfl_xor_sync(CUDA_FULL_WARP, sum, step);
    __syncwarp(); /* the query before has been through with them */
    if (lane % P == 0) m.weights[stream_shares<KIND>::slot()] = e * shares.rest;
#pragma unroll
    for (int i = 0; i < AGES; i++) part[i] = e * shares.share[i];
    const float token_sum = sum_slots<AGES, P>(part);
    __syncwarp();

    const int group = lane / KIND::CHUNKS, chunk = lane % KIND::CHUNKS;
    const int row = warp * KIND::SLOTS + group * (KIND::SLOTS / ABREAST);
    float o[N], weight[KIND::SLOTS / ABREAST];
    load_floats(m.weights + row, weight);
#pragma unroll
    for (int c = 0; c < N; c++) o[c] = 0.0f;
#pragma unroll
    for (int i = 0; i < KIND::FOLD / ABREAST; i++) {
        const int age = group * (KIND::FOLD / ABREAST) + i;
        const float w = __shfl_sync(CUDA_FULL_WARP, token_sum, age % AGES * (32 / AGES) + age / AGES);
        float token[N];
        load_floats(m.ring_v + age * KIND::D + chunk * N, token);
#pragma unroll
        for (int c = 0; c < N; c++) o[c] = fmaf(w, token[c], o[c]);
    }
    bulk_wait(m.rows_v, parity);
    const uint4 *from = (const uint4 *)(const void *)m.v + row * KIND::CHUNKS + chunk;
#pragma unroll
    for (int i = 0; i < KIND::SLOTS / ABREAST; i++) {
        row_vector<typename KIND::E> values;
        values.raw = from[i * KIND::CHUNKS];
        float x[N];
        values.unpack(x);
#pragma unroll
        for (int c = 0; c < N; c++) o[c] = fmaf(weight[i], x[c], o[c]);
    }
#pragma unroll
    for (int c = 0; c < N; c++)
#pragma unroll
        for (int step = KIND::CHUNKS; step < 32; step *= 2)
            o[c] += __shfl_xor_sync(CUDA_FULL_WARP, o[c], step);
    if (lane == 0) m.stats[g * KIND::WARPS + warp] = make_float2(top, sum);
    if (group > 0) return;
    float *partial = m.partial + (g * KIND::WARPS + warp) * KIND::D + chunk * N;
#pragma unroll
    for (int c = 0; c < N; c += 4)
        *(float4 *)(void *)(partial + c) = make_float4(o[c], o[c + 1], o[c + 2], o[c + 3]);
}

/* ---- rows due ---- */

/* Half of the threads bring rows of K up to date, half those of V, two rows at a time. slots_k, slots_v: the
 * head's rows in the state. */
template <typename KIND>
static __device__ inline void update_rows(const stream_shared &m, const step_moment &now, char *slots_k,
                                          char *slots_v)
{
    enum { N = KIND::N, CHUNKS = KIND::CHUNKS, HALF = KIND::THREADS / 2, APART = HALF / CHUNKS };
    const bool k = (int)threadIdx.x < HALF;
    const int chunk = (int)threadIdx.x % CHUNKS, rows = now.due_end - now.due_from;
    const float *ring = (k ? m.ring_k : m.ring_v) + chunk * N;
    const uint4 *old = (const uint4 *)(const void *)(k ? m.k : m.v) + now.due_from * CHUNKS + chunk;
    uint4 *to = (uint4 *)(void *)(k ? slots_k : slots_v) + now.due_from * CHUNKS + chunk;
    for (int row = (int)threadIdx.x % HALF / CHUNKS; row < rows; row += 2 * APART) {
        const int second = min(row + APART, rows - 1);
        row_vector<typename KIND::E> a, b;
        a.raw = old[row * CHUNKS], b.raw = old[second * CHUNKS];
        float x[N], y[N], rest_x = m.due_rest[row], rest_y = m.due_rest[second];
        a.unpack(x), b.unpack(y);
#pragma unroll
        for (int c = 0; c < N; c++) x[c] *= rest_x, y[c] *= rest_y;
#pragma unroll
        for (int age = 0; age < KIND::FOLD; age += 4) {
            float of_x[4], of_y[4];
            load_floats(m.due + row * KIND::FOLD + age, of_x);
            load_floats(m.due + second * KIND::FOLD + age, of_y);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float token[N];
                load_floats(ring + (age + i) * KIND::D, token);
#pragma unroll
                for (int c = 0; c < N; c++)
                    x[c] = fmaf(of_x[i], token[c], x[c]), y[c] = fmaf(of_y[i], token[c], y[c]);
            }
        }
        a.pack(x), b.pack(y);
        to[row * CHUNKS] = a.raw;
        if (row + APART < rows) to[second * CHUNKS] = b.raw;
    }
}

/* ---- o ---- */
template <typename KIND>
static __device__ inline void write_outputs(const bla_step_cuda_shape &s, const stream_shared &m, bool usable,
                                            void *o, int64_t first_query)
{
    for (int n = (int)threadIdx.x; n < s.group * KIND::D; n += KIND::THREADS) {
        const int g = n / KIND::D, c = n % KIND::D;
        const float2 *stats = m.stats + g * KIND::WARPS;
        const float *partial = m.partial + g * (KIND::WARPS * KIND::D) + c;
        float top = stats[0].x, sum = 0.0f, total = 0.0f; /* slot 0 is always visible */
#pragma unroll
        for (int w = 1; w < KIND::WARPS; w++) top = fmaxf(top, stats[w].x);
#pragma unroll
        for (int w = 0; w < KIND::WARPS; w++) {
            const float f = exp2_fast(stats[w].x - top);
            sum = fmaf(f, partial[w * KIND::D], sum), total = fmaf(f, stats[w].y, total);
        }
        store_token_element(o, first_query * KIND::D + n, s.token_bf16,
                            usable ? __fdividef(sum, total) : NAN);
    }
}

#endif
