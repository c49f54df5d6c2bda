/* Diagonal state space on CUDA as a convolution, for bf16 sequences of up to 512 tokens that start from rest:
 * y = k * u with k_l = Re sum_n R_n a_n^l, on the tensor cores. A warp takes one channel; its tokens stand in
 * shared memory as rows of 16, u[p][r] = u_{16 p + r}, and
 *     y[p][s] = sum_d sum_r u[p - d][r] k_{16 d + s - r}
 * is for each d a product of the rows, d further up, with a 16 x 16 Toeplitz matrix. Neighbouring Toeplitz
 * matrices share their fragments: word j of a lane holds k at 8 j + its column - its row, 64 words are all of
 * them. Backward: d_u is the same with time turned round, and the gradient of k is
 *     d_k_{16 d + s - r} = sum_{sequences, p} d_y[p][s] u[p - d][r],
 * products whose sums along diagonals are taken at the end. */
#ifndef BLURRY_KERNELS_SSM_CUDA_CONVOLVE_CUH
#define BLURRY_KERNELS_SSM_CUDA_CONVOLVE_CUH
#include "kernels/cuda.h"
#include "kernels/kernel.h"

enum {
    CONVOLVE_TOKENS = 512,
    CONVOLVE_CHANNELS = 8, /* of a block: 16 bytes of a token, one for each warp */
    CONVOLVE_THREADS = 32 * CONVOLVE_CHANNELS,
    CONVOLVE_WORDS = CONVOLVE_TOKENS / 8,
    CONVOLVE_BEFORE = 16,                                          /* rows of zeros before the first */
    CONVOLVE_AREA = 32 * (CONVOLVE_BEFORE + CONVOLVE_TOKENS / 16), /* bytes of a channel */
    CONVOLVE_TABLE = CONVOLVE_TOKENS + 8,                          /* words of a channel's table */
    CONVOLVE_STRIDE = 17                                           /* floats of a row of diagonals */
};
static_assert((int)CONVOLVE_THREADS == (int)CONVOLVE_TOKENS / 2, "a thread moves two tokens");

struct convolve_view {
    const bf16 *in, *by;   /* [batch, length, channels]; by: the second operand of d_k */
    bf16 *out;             /* [batch, length, channels] */
    const uint32_t *table; /* [channels, CONVOLVE_TABLE] (k_l, k_{l-1}) for l from -8 */
    const float *skip;     /* [channels] */
    float *parts;          /* [blocks y, 2, channels, CONVOLVE_TOKENS] */
    int64_t batch, length, channels;
    int each; /* sequences of a block */
};

/* Byte of half a row (8 tokens) in a channel's area; the halves change places so that eight neighbouring rows
 * lie in different banks. */
static __device__ inline int convolve_at(int row, int half)
{
    return 32 * (row + CONVOLVE_BEFORE) + 16 * (half ^ (row >> 2 & 1));
}

/* The same for row `first` + `more`, the first known to the compiler: with the rows' two low bits it needs
 * eight offsets in all. */
struct convolve_rows {
    int at[4][2];
    __device__ void begin(int more, int half)
    {
#pragma unroll
        for (int low = 0; low < 4; low++)
#pragma unroll
            for (int odd = 0; odd < 2; odd++) at[low][odd] = convolve_at(low + 4 * odd + more, half);
    }
    __device__ int from(int first) const
    {
        int low = (first + 32) % 4, odd = (first + 32) / 4 % 2;
        return at[low][odd] + 32 * (first - low - 4 * odd);
    }
};

/* Two tokens of eight channels. */
struct convolve_pair {
    uint4 x[2];
};

template <bool REVERSE>
static __device__ inline convolve_pair convolve_fetch(const convolve_view &p, const bf16 *from, int64_t b)
{
    convolve_pair pair;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int64_t place = 2 * (int64_t)threadIdx.x + i, t = REVERSE ? p.length - 1 - place : place;
        pair.x[i] = make_uint4(0, 0, 0, 0);
        if (place < p.length && b < p.batch)
            pair.x[i] = *reinterpret_cast<const uint4 *>(from + (b * p.length + t) * p.channels +
                                                         (int64_t)blockIdx.x * CONVOLVE_CHANNELS);
    }
    return pair;
}

/* Where this thread's two tokens stand in a channel's area. */
static __device__ inline int convolve_mine(void)
{
    int token = 2 * (int)threadIdx.x;
    return convolve_at(token / 16, token / 8 % 2) + token % 8 * 2;
}

static __device__ inline void convolve_put(char *area, const convolve_pair &pair)
{
    char *to = area + convolve_mine();
    const uint32_t a[4] = {pair.x[0].x, pair.x[0].y, pair.x[0].z, pair.x[0].w};
    const uint32_t b[4] = {pair.x[1].x, pair.x[1].y, pair.x[1].z, pair.x[1].w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        *reinterpret_cast<uint32_t *>(to + 2 * i * CONVOLVE_AREA) = (a[i] & 0xffffu) | b[i] << 16;
        *reinterpret_cast<uint32_t *>(to + (2 * i + 1) * CONVOLVE_AREA) = a[i] >> 16 | (b[i] & 0xffff0000u);
    }
}

template <bool REVERSE>
static __device__ inline void convolve_write(const convolve_view &p, const char *area, int64_t b)
{
    const char *from = area + convolve_mine();
    uint32_t a[4], c[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint32_t even = *reinterpret_cast<const uint32_t *>(from + 2 * i * CONVOLVE_AREA),
                 odd = *reinterpret_cast<const uint32_t *>(from + (2 * i + 1) * CONVOLVE_AREA);
        a[i] = (even & 0xffffu) | odd << 16, c[i] = even >> 16 | (odd & 0xffff0000u);
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int64_t place = 2 * (int64_t)threadIdx.x + i, t = REVERSE ? p.length - 1 - place : place;
        const uint32_t *x = i ? c : a;
        if (place < p.length)
            *reinterpret_cast<uint4 *>(p.out + (b * p.length + t) * p.channels +
                                       (int64_t)blockIdx.x * CONVOLVE_CHANNELS) =
                make_uint4(x[0], x[1], x[2], x[3]);
    }
}

static __device__ inline void convolve_clear(char *areas)
{
    for (int i = (int)threadIdx.x; i < CONVOLVE_CHANNELS * CONVOLVE_BEFORE * 2; i += CONVOLVE_THREADS)
        *reinterpret_cast<uint4 *>(areas + i / (2 * CONVOLVE_BEFORE) * CONVOLVE_AREA +
                                   i % (2 * CONVOLVE_BEFORE) * 16) = make_uint4(0, 0, 0, 0);
}

/* The channel's rows 0 .. 15 and 16 .. 31 times the Toeplitz matrices of `word`. */
static __device__ inline void convolve_channel(float (&sum)[2][2][4], const char *area,
                                               const uint32_t (&word)[CONVOLVE_WORDS])
{
    int lane = (int)threadIdx.x % 32;
    convolve_rows rows;
    rows.begin(lane & 15, lane >> 4);
#pragma unroll
    for (int d = 0; d < CONVOLVE_TOKENS / 16; d++) {
        /* rows 16 - d ..: the upper rows move by d, the lower ones by d - 16 */
        uint32_t a[4];
        ldmatrix_x4(a, area + rows.from(16 - d));
#pragma unroll
        for (int upper = 0; upper < 2; upper++) {
            int by = upper ? d : d - 16;
            if (by < 0) continue;
            uint32_t low[2] = {word[2 * by], by ? word[max(2 * by - 1, 0)] : 0u},
                     high[2] = {word[2 * by + 1], word[2 * by]};
            mma_bf16(sum[upper][0], a, low);
            mma_bf16(sum[upper][1], a, high);
        }
    }
}

/* y, or d_u with REVERSE. Grid: groups of 8 channels, groups of sequences. */
template <bool REVERSE> __global__ void __launch_bounds__(CONVOLVE_THREADS, 2) ssm_convolve(convolve_view p)
{
    CUDA_DYNAMIC_SHARED(char, areas);
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    int64_t channel = (int64_t)blockIdx.x * CONVOLVE_CHANNELS + warp, first = (int64_t)blockIdx.y * p.each;
    char *area = areas + warp * CONVOLVE_AREA;
    cuda_wait_previous();
    convolve_pair next = convolve_fetch<REVERSE>(p, p.in, first);
    uint32_t word[CONVOLVE_WORDS];
    const uint32_t *table = p.table + channel * CONVOLVE_TABLE + 8 + lane / 4 - lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < CONVOLVE_WORDS; j++) word[j] = table[8 * j];
    float skip = p.skip[channel];
    convolve_clear(areas);
    for (int64_t b = first; b < first + p.each && b < p.batch; b++) {
        __syncthreads();
        convolve_put(areas, next);
        __syncthreads();
        next = convolve_fetch<REVERSE>(p, p.in, b + 1 < first + p.each ? b + 1 : p.batch);
        float sum[2][2][4] = {};
        convolve_channel(sum, area, word);
        __syncwarp();
#pragma unroll
        for (int upper = 0; upper < 2; upper++)
#pragma unroll
            for (int half = 0; half < 2; half++)
#pragma unroll
                for (int late = 0; late < 2; late++) { /* in place: the warp has read all it needs */
                    float *y = sum[upper][half] + 2 * late;
                    uint32_t *at = reinterpret_cast<uint32_t *>(
                        area + convolve_at(16 * upper + 8 * late + lane / 4, half) + lane % 4 * 4);
                    float2 u = unpack_bf16(*at);
                    *at = pack_bf16(fmaf(skip, u.x, y[0]), fmaf(skip, u.y, y[1]));
                }
        __syncthreads();
        convolve_write<REVERSE>(p, areas, b);
    }
}

/* The share of a group of sequences in the gradient of k; this block's d are even, or odd. Grid: groups of 8
 * channels, groups of sequences, 2. */
static __global__ void __launch_bounds__(CONVOLVE_THREADS) ssm_correlate(convolve_view p)
{
    const int TURNS = CONVOLVE_TOKENS / 32;
    CUDA_DYNAMIC_SHARED(char, areas); /* of u, of d_y */
    char *others = areas + CONVOLVE_CHANNELS * CONVOLVE_AREA;
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, odd = (int)blockIdx.z;
    int64_t channel = (int64_t)blockIdx.x * CONVOLVE_CHANNELS + warp, first = (int64_t)blockIdx.y * p.each;
    convolve_rows rows;
    rows.begin((lane & 15) - odd, lane >> 4);
    const char *u = areas + warp * CONVOLVE_AREA, *d_y = others + warp * CONVOLVE_AREA;
    cuda_wait_previous();
    convolve_pair next = convolve_fetch<false>(p, p.in, first),
                  next_by = convolve_fetch<false>(p, p.by, first);
    float sum[TURNS][2][4] = {};
    convolve_clear(areas);
    for (int64_t b = first; b < first + p.each && b < p.batch; b++) {
        int64_t later = b + 1 < first + p.each ? b + 1 : p.batch;
        __syncthreads();
        convolve_put(areas, next);
        convolve_put(others, next_by);
        __syncthreads();
        next = convolve_fetch<false>(p, p.in, later), next_by = convolve_fetch<false>(p, p.by, later);
#pragma unroll
        for (int upper = 0; upper < 2; upper++) {
            uint32_t a[4];
            ldmatrix_x4_trans(a, d_y + convolve_at(16 * upper + (lane >> 4) * 8 + (lane & 7), lane >> 3 & 1));
#pragma unroll
            for (int i = 0; i < TURNS; i++) {
                if (!upper && 2 * i >= 16) continue; /* rows before the first */
                uint32_t x[4];
                ldmatrix_x4_trans(x, u + rows.from(16 * upper - 2 * i));
                mma_bf16(sum[i][0], a, x);
                mma_bf16(sum[i][1], a, x + 2);
            }
        }
    }
    __syncthreads();
    float *square = reinterpret_cast<float *>(areas) + warp * 16 * CONVOLVE_STRIDE;
    float *to = p.parts + (((int64_t)blockIdx.y * 2 + odd) * p.channels + channel) * CONVOLVE_TOKENS;
#pragma unroll
    for (int i = 0; i < TURNS; i++) {
        __syncwarp();
#pragma unroll
        for (int e = 0; e < 8; e++)
            square[(lane / 4 + e / 2 % 2 * 8) * CONVOLVE_STRIDE + e / 4 * 8 + lane % 4 * 2 + e % 2] =
                sum[i][e / 4][e % 4];
        __syncwarp();
        int away = lane - 16, l = 16 * (2 * i + odd) + away; /* s - r */
        float total = 0;
        for (int r = max(0, -away); r < min(16, 16 - away); r++)
            total += square[(r + away) * CONVOLVE_STRIDE + r];
        if (l >= 0) to[l] = total;
    }
    if (!odd && lane < 16) to[CONVOLVE_TOKENS - 16 + lane] = 0; /* no even d meets them */
}

#endif
