/* The states of the gated delta rule from chunk to chunk and the outputs, and their gradients back. A block
 * has 32 value columns of one head; the state is in registers as accumulators, and as a bf16 tile for
 * products. */
#ifndef BLURRY_KERNELS_GDN_CUDA_FAST_SCAN_CUH
#define BLURRY_KERNELS_GDN_CUDA_FAST_SCAN_CUH
#include "kernels/gdn/cuda_fast.cuh"

/* A warp's share of the state: 16 keys, and 32 columns of 128 keys or 16 of 64. */
template <int D> struct scan_share {
    static constexpr int N = D == 128 ? 4 : 2;
    int row, column;
    __device__ scan_share(int warp) : row(16 * (warp % (D / 16))), column(warp / (D / 16) * 16) {}
};

/* Shared memory of one chunk: three tiles of D, P, 32 columns, gates; two of those, then the state and two
 * more tiles of 32 columns. */
template <int D> struct scan_room {
    static constexpr int WIDE = tile_bytes(FAST_CHUNK, D), SMALL = tile_bytes(FAST_CHUNK, FAST_CHUNK),
                         THIN = tile_bytes(FAST_CHUNK, FAST_COLUMNS),
                         STAGE = 3 * WIDE + SMALL + THIN + FAST_GATES * FAST_CHUNK * 4,
                         STATE = tile_bytes(D, FAST_COLUMNS), ALL = 2 * STAGE + STATE + 2 * THIN;
};

/* The tiles of chunk after chunk, from the first or from the last. */
template <int D> struct scan_source {
    tile_source<D, FAST_CHUNK, FAST_THREADS> key, query, note;
    tile_source<FAST_CHUNK, FAST_CHUNK, FAST_THREADS> square;
    tile_source<FAST_COLUMNS, FAST_CHUNK, FAST_THREADS> thin; /* U, or d_o with BACK */
    template <bool BACK> __device__ void begin(const fast_view &p, int64_t head, int64_t value)
    {
        fast_place x = fast_at(p, head, BACK ? p.chunks - 1 : 0);
        int64_t sign = BACK ? -1 : 1, keys = p.heads * p.K, values = p.heads * p.V, wide = FAST_CHUNK * D;
        key.begin(p.k + x.at * p.K, keys, sign * FAST_CHUNK * keys, (int)p.K);
        query.begin(p.q + x.at * p.K, keys, sign * FAST_CHUNK * keys, (int)p.K);
        note.begin(p.W + x.index * wide, D, sign * wide, D);
        square.begin(p.P + x.index * FAST_SQUARE, FAST_CHUNK, sign * FAST_SQUARE, FAST_CHUNK);
        if (BACK)
            thin.begin(p.d_o + x.at * p.V + value, values, sign * FAST_CHUNK * values, (int)(p.V - value));
        else
            thin.begin(p.U + x.index * wide + value, D, sign * wide, FAST_COLUMNS);
    }
    /* To W, k, q, P, the thin tile and the gates. */
    template <bool BACK> __device__ void load(char *to, const fast_view &p, int64_t head, int64_t chunk)
    {
        typedef scan_room<D> room;
        int rows = (int)min(p.length - chunk * FAST_CHUNK, (int64_t)FAST_CHUNK);
        note.load(to, FAST_CHUNK);
        key.load(to + room::WIDE, rows);
        query.load(to + 2 * room::WIDE, rows);
        square.load(to + 3 * room::WIDE, FAST_CHUNK);
        thin.load(to + 3 * room::WIDE + room::SMALL, BACK ? rows : FAST_CHUNK);
        fast_gates(reinterpret_cast<float *>(to + 3 * room::WIDE + room::SMALL + room::THIN), p,
                   head * p.chunks + chunk);
        copy_async_commit();
    }
};

/* What a chunk leaves of the state before it, or of the gradient behind it. */
template <int D>
static __device__ inline void scan_fade(float (&state)[scan_share<D>::N][4], const float *gates)
{
    float all = gates[FAST_UP * FAST_CHUNK + FAST_CHUNK - 1];
#pragma unroll
    for (int n = 0; n < scan_share<D>::N; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) state[n][e] *= all;
}

/* The state as bf16 to its tile, as floats to a note where wanted. */
template <int D>
static __device__ inline void scan_put(float (&state)[scan_share<D>::N][4], const scan_share<D> &mine,
                                       char *tile, float *note)
{
    int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < scan_share<D>::N; n++) {
        tile_put<4>(tile, mine.row, mine.column + 8 * n, state[n]);
        if (!note) continue;
        float *to = note + (mine.row + lane / 4) * D + mine.column + 8 * n + lane % 4 * 2;
        *reinterpret_cast<float2 *>(to) = make_float2(state[n][0], state[n][1]);
        *reinterpret_cast<float2 *>(to + 8 * D) = make_float2(state[n][2], state[n][3]);
    }
}

/* Grid: batch * heads, blocks of 32 values. */
template <int D>
__global__ void __launch_bounds__(FAST_THREADS)
    gdn_fast_scan(fast_view p, bf16 *o, const float *in, float *out, bool keep)
{
    typedef scan_room<D> room;
    constexpr int U = tile_units(D);
    CUDA_DYNAMIC_SHARED(char, stages);
    char *ts = stages + 2 * room::STAGE, *plain = ts + room::STATE, *faded = plain + room::THIN;
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, m = 16 * (warp % 4), h = 16 * (warp / 4);
    int64_t head = blockIdx.x, value = (int64_t)blockIdx.y * FAST_COLUMNS;
    scan_share<D> mine(warp);
    float state[scan_share<D>::N][4];
    scan_source<D> source;
    cuda_wait_previous();
    source.template begin<false>(p, head, value);
    if (p.chunks > 0) source.template load<false>(stages, p, head, 0);
    fast_each(state, mine.row, mine.column, [&](int r, int c, float &y) {
        y = in && r < p.K && value + c < p.V ? in[(head * p.K + r) * p.V + value + c] : 0;
    });
    for (int64_t chunk = 0; chunk < p.chunks; chunk++) {
        fast_place x = fast_at(p, head, chunk);
        char *tw = stages + (chunk & 1) * room::STAGE, *tk = tw + room::WIDE, *tq = tk + room::WIDE,
             *tp = tq + room::WIDE, *tu = tp + room::SMALL;
        const float *gates = reinterpret_cast<const float *>(tu + room::THIN);
        scan_put<D>(state, mine, ts, keep ? p.states + x.index * D * D + value : nullptr);
        copy_async_wait<0>();
        __syncthreads();
        if (chunk + 1 < p.chunks)
            source.template load<false>(stages + (~chunk & 1) * room::STAGE, p, head, chunk + 1);
        float corrected[2][4] = {}, read[2][4] = {};
#pragma unroll
        for (int k = 0; k < D; k += 16) {
            uint32_t w[4], q[4], b[4];
            tile_a<U>(w, tw, m, k);
            tile_a<U>(q, tq, m, k);
            tile_b<4>(b, ts, k, h);
            mma_bf16(corrected[0], w, b), mma_bf16(read[0], q, b);
            mma_bf16(corrected[1], w, b + 2), mma_bf16(read[1], q, b + 2);
        }
#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                int r = m + lane / 4 + 8 * half, c = h + 8 * n + lane % 4 * 2;
                float end = gates[FAST_END * FAST_CHUNK + r], up = gates[FAST_UP * FAST_CHUNK + r];
                float2 u = unpack_bf16(*fast_word<4>(tu, r, c));
                u.x -= corrected[n][2 * half], u.y -= corrected[n][2 * half + 1];
                uint32_t word = pack_bf16(u.x, u.y);
                *fast_word<4>(plain, r, c) = word;
                *fast_word<4>(faded, r, c) = pack_bf16(u.x * end, u.y * end);
                if (keep)
                    *reinterpret_cast<uint32_t *>(p.U + (x.index * FAST_CHUNK + r) * D + value + c) = word;
                read[n][2 * half] *= up, read[n][2 * half + 1] *= up;
            }
        __syncthreads();
        scan_fade<D>(state, gates);
#pragma unroll
        for (int k = 0; k < FAST_CHUNK; k += 16) {
            uint32_t a[4];
            tile_a_trans<U>(a, tk, mine.row, k);
            tile_mma<4>(state, a, faded, k, mine.column);
            if (k > m) continue;
            tile_a<8>(a, tp, m, k);
            tile_mma<4>(read, a, plain, k, h);
        }
        bf16 *to = o + x.at * p.V + value;
#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                int r = m + lane / 4 + 8 * half, c = h + 8 * n + lane % 4 * 2;
                if (r < x.rows && value + c < p.V)
                    *reinterpret_cast<uint32_t *>(to + r * p.heads * p.V + c) =
                        pack_bf16(p.scale * read[n][2 * half], p.scale * read[n][2 * half + 1]);
            }
    }
    if (!out) return;
    fast_each(state, mine.row, mine.column, [&](int r, int c, float &y) {
        if (r < p.K && value + c < p.V) out[(head * p.K + r) * p.V + value + c] = y;
    });
}

/* D, the gradient of the state at a chunk's end, and d_U, from the last chunk to the first. Grid: batch *
 * heads, blocks of 32 values. */
template <int D> __global__ void __launch_bounds__(FAST_THREADS) gdn_fast_scan_backward(fast_view p)
{
    typedef scan_room<D> room;
    constexpr int U = tile_units(D);
    CUDA_DYNAMIC_SHARED(char, stages);
    char *ts = stages + 2 * room::STAGE, *minus = ts + room::STATE, *late = minus + room::THIN;
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, m = 16 * (warp % 4), h = 16 * (warp / 4);
    int64_t head = blockIdx.x, value = (int64_t)blockIdx.y * FAST_COLUMNS;
    scan_share<D> mine(warp);
    float state[scan_share<D>::N][4] = {};
    scan_source<D> source;
    cuda_wait_previous();
    source.template begin<true>(p, head, value);
    source.template load<true>(stages, p, head, p.chunks - 1);
    for (int64_t turn = 0; turn < p.chunks; turn++) {
        int64_t index = head * p.chunks + p.chunks - 1 - turn;
        char *tw = stages + (turn & 1) * room::STAGE, *tk = tw + room::WIDE, *tq = tk + room::WIDE,
             *tp = tq + room::WIDE, *to = tp + room::SMALL;
        const float *gates = reinterpret_cast<const float *>(to + room::THIN);
        scan_put<D>(state, mine, ts, p.grads + index * D * D + value);
        copy_async_wait<0>();
        __syncthreads();
        if (turn + 1 < p.chunks)
            source.template load<true>(stages + (~turn & 1) * room::STAGE, p, head, p.chunks - 2 - turn);
        float ahead[2][4] = {}, here[2][4] = {};
#pragma unroll
        for (int k = 0; k < D; k += 16) {
            uint32_t a[4];
            tile_a<U>(a, tk, m, k);
            tile_mma<4>(ahead, a, ts, k, h);
            if (k >= FAST_CHUNK || k < m) continue;
            tile_a_trans<8>(a, tp, m, k);
            tile_mma<4>(here, a, to, k, h);
        }
#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                int r = m + lane / 4 + 8 * half, c = h + 8 * n + lane % 4 * 2;
                float end = gates[FAST_END * FAST_CHUNK + r], up = p.scale * gates[FAST_UP * FAST_CHUNK + r];
                float a = end * ahead[n][2 * half] + p.scale * here[n][2 * half],
                      b = end * ahead[n][2 * half + 1] + p.scale * here[n][2 * half + 1];
                float2 d = unpack_bf16(*fast_word<4>(to, r, c));
                *fast_word<4>(minus, r, c) = pack_bf16(-a, -b);
                *fast_word<4>(late, r, c) = pack_bf16(d.x * up, d.y * up);
                *reinterpret_cast<uint32_t *>(p.d_U + (index * FAST_CHUNK + r) * D + value + c) =
                    pack_bf16(a, b);
            }
        __syncthreads();
        scan_fade<D>(state, gates);
#pragma unroll
        for (int k = 0; k < FAST_CHUNK; k += 16) {
            uint32_t a[4];
            tile_a_trans<U>(a, tq, mine.row, k);
            tile_mma<4>(state, a, late, k, mine.column);
            tile_a_trans<U>(a, tw, mine.row, k);
            tile_mma<4>(state, a, minus, k, mine.column);
        }
    }
}

#endif
