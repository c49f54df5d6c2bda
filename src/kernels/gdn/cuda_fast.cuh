/* What the tensor-core kernels of the gated delta rule share. Heads are padded to D = 64 or 128 channels,
 * chunks have 64 tokens (formulas: cuda_forward.cuh, cuda_backward.cuh). All that chunks can do
 * by themselves is done side by side; what runs along the chunks is two products and two barriers for each,
 * 32 value columns to a block. */
#ifndef BLURRY_KERNELS_GDN_CUDA_FAST_CUH
#define BLURRY_KERNELS_GDN_CUDA_FAST_CUH
#include "kernels/cuda_swizzled.h"
#include "kernels/kernel.h"

enum { FAST_CHUNK = 64, FAST_THREADS = 256, FAST_COLUMNS = 32, FAST_SQUARE = FAST_CHUNK * FAST_CHUNK };
enum { FAST_UP, FAST_END, FAST_SUM, FAST_BETA, FAST_GATES }; /* e^G, e^{G_end - G}, G, beta of a chunk */
/* shares of d_beta and d_g: of the squares, then of each block of 64 keys */
enum { FAST_D_BETA, FAST_D_GATE, FAST_BY_BLOCK, FAST_X = 0, FAST_Y = 1, FAST_Z = 2, FAST_SHARES = 3 };

/* Tensors [batch, total, heads, width], of which tokens first .. first+length-1 are processed; notes by
 * [batch * heads, chunks]. */
struct fast_view {
    const bf16 *q, *k, *v, *beta, *g, *d_o;
    bf16 *W, *U, *d_U;     /* [64, D] */
    bf16 *N, *P;           /* [64, 64] (I + M)^-1 and lower(E q k^T) */
    bf16 *d_qk, *d_kk;     /* [64, 64] */
    float *states, *grads; /* [D, D] at chunk starts; gradients of those at chunk ends */
    float *gates;          /* [FAST_GATES, 64] */
    float *rows, *ends;    /* [FAST_BY_BLOCK + FAST_SHARES key blocks, 64], [key blocks] */
    int64_t total, first, length, heads, K, V, chunks;
    float scale;
};

struct fast_place {
    int64_t index, at; /* of the chunk among all; of its first token as [token, head] */
    int rows;
};

static __device__ inline fast_place fast_at(const fast_view &p, int64_t head, int64_t chunk)
{
    fast_place x;
    x.index = head * p.chunks + chunk;
    x.at = (head / p.heads * p.total + p.first + chunk * FAST_CHUNK) * p.heads + head % p.heads;
    x.rows = (int)min(p.length - chunk * FAST_CHUNK, (int64_t)FAST_CHUNK);
    return x;
}

/* A tile [64, D] of tokens, of a note, and of 32 columns of either. */
template <int D>
static __device__ inline void fast_tokens(char *tile, const fast_view &p, const fast_place &x,
                                          const bf16 *from, int64_t width)
{
    tile_load<D, FAST_CHUNK, FAST_THREADS>(tile, from + x.at * width, p.heads * width, x.rows, (int)width,
                                           (int)threadIdx.x);
}
template <int D> static __device__ inline void fast_note(char *tile, const bf16 *from, int64_t stride)
{
    tile_load<D, FAST_CHUNK, FAST_THREADS>(tile, from, stride, FAST_CHUNK, D, (int)threadIdx.x);
}

/* The gates of a chunk, 1 KB, to shared memory. */
static __device__ inline void fast_gates(float *gates, const fast_view &p, int64_t index)
{
    if (threadIdx.x < FAST_GATES * FAST_CHUNK / 4)
        copy_async16(gates + 4 * threadIdx.x, p.gates + index * FAST_GATES * FAST_CHUNK + 4 * threadIdx.x,
                     true);
}

/* Two neighbouring elements of a tile. */
template <int U> static __device__ inline uint32_t *fast_word(char *tile, int row, int column)
{
    return reinterpret_cast<uint32_t *>(tile + tile_at<U>(row, column / 8) + column % 8 * 2);
}

/* f(row, column, element) for the accumulators of 16 rows from row0 and 8 N columns from column0. */
template <int N, typename Fn>
static __device__ inline void fast_each(float (&c)[N][4], int row0, int column0, Fn f)
{
    int lane = (int)threadIdx.x % 32, row = row0 + lane / 4, column = column0 + lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) f(row + e / 2 * 8, column + 8 * n + e % 2, c[n][e]);
}

#endif
