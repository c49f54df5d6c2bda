/* What the kernels of the gated delta rule in chunks of 64 tokens share, for both element types and any
 * width: tensors and notes, gates, the inverse. The formulas are in cuda_forward.cuh and cuda_backward.cuh.
 */
#ifndef BLURRY_KERNELS_GDN_CUDA_CHUNK_CUH
#define BLURRY_KERNELS_GDN_CUDA_CHUNK_CUH
#include "kernels/cuda_tile.h"
#include "kernels/kernel.h"

/* Tensors [batch, total, heads, width], of which tokens first .. first+length-1 are processed. Notes of the
 * chunks are [batch * heads, chunks, 64 tokens, width]. */
template <typename T> struct gdn_view {
    const T *q, *k, *v, *beta, *g, *d_o;
    T *W, *U, *d_U, *late;    /* notes: K, V, V wide; late = scale e^G d_o, V wide */
    T *inverse, *d_qk, *d_kk; /* notes, 64 wide: N; gradients of q k^T and k k^T */
    float *states, *grads;    /* [batch * heads, chunks, K, V] at chunk starts; of the states at chunk ends */
    float *rows;              /* [batch * heads, chunks, 2 + 3 key blocks, 64] shares of d_beta and d_g */
    float *ends;              /* [batch * heads, chunks, key blocks] shares of the fading of the state */
    float *gates;             /* [batch * heads, chunks, 2, 64]: e^G and e^{G_end - G} */
    int64_t total, first, length, heads, K, V, chunks;
    float scale;
};

struct gdn_place {
    int64_t head, chunk, index, at; /* index: of the chunk among all; at: its first token as [token, head] */
    int rows;
};

template <typename T>
static __device__ inline gdn_place gdn_at(const gdn_view<T> &p, int64_t head, int64_t chunk)
{
    gdn_place x;
    x.head = head, x.chunk = chunk, x.index = head * p.chunks + chunk;
    x.at = (head / p.heads * p.total + p.first + chunk * TILE) * p.heads + head % p.heads;
    x.rows = (int)min(p.length - chunk * TILE, (int64_t)TILE);
    return x;
}

static __device__ inline int gdn_most(int64_t count, int64_t from)
{
    return (int)min(count - from, (int64_t)TILE);
}

struct gdn_gates {
    float g[TILE], G[TILE], up[TILE], end[TILE], beta[TILE]; /* up = e^G, end = e^{G_end - G} */
};

/* Starts and ends with a barrier. Rows beyond the chunk have g = beta = 0. */
template <typename T>
static __device__ inline void gdn_gate(gdn_gates *s, const gdn_view<T> &p, const gdn_place &x)
{
    int t = (int)threadIdx.x;
    __syncthreads();
    if (t < TILE) {
        s->g[t] = t < x.rows ? cuda_load(p.g + x.at + t * p.heads) : 0;
        s->beta[t] = t < x.rows ? cuda_load(p.beta + x.at + t * p.heads) : 0;
    }
    __syncthreads();
    if (t < TILE) {
        float sum = 0, all = 0;
        for (int u = 0; u < TILE; u++) {
            all += s->g[u];
            if (u == t) sum = all;
        }
        s->G[t] = sum;
        s->up[t] = __expf(sum);
        s->end[t] = __expf(all - sum);
    }
    __syncthreads();
}

/* x = E x below (or with DIAGONAL on) the diagonal, 0 above. */
template <bool DIAGONAL> static __device__ inline void gdn_fade(strip &x, const gdn_gates *s)
{
    strip_each(x, [&](int t, int u, float &y) {
        y = u < t || (DIAGONAL && u == t) ? y * __expf(s->G[t] - s->G[u]) : 0;
    });
}

/* N = (I + M)^-1 in place, M strictly lower in a tile of floats: blocks of 16 on the diagonal first, then
 * those below, N_ij = -N_ii sum_k M_ik N_kj. `room` is another tile. Starts and ends with a barrier. */
static __device__ inline void gdn_invert(float *M, float *room)
{
    const int LD = tile_of<float>::LD, B = 16;
    int i = (int)threadIdx.x;
    __syncthreads();
    if (i < TILE) {
        int base = i / B * B, c = i % B;
        float x[B];
#pragma unroll
        for (int r = 0; r < B; r++) {
            x[r] = r == c ? 1.0f : 0.0f;
#pragma unroll
            for (int k = 0; k < r; k++) x[r] -= M[(base + r) * LD + base + k] * x[k];
        }
#pragma unroll
        for (int r = 0; r < B; r++) room[(base + r) * LD + base + c] = x[r];
    }
    for (int away = 1; away < TILE / B; away++) {
        int blocks = TILE / B - away;
        float sums[3 * B * B / TILE_THREADS]; /* of up to 3 blocks */
        for (int pass = 0; pass < 2; pass++) {
            __syncthreads();
#pragma unroll
            for (int n = 0; n < 3 * B * B / TILE_THREADS; n++) {
                int e = i + n * TILE_THREADS, block = e / (B * B), r = e / B % B, c = e % B;
                int row = (block + away) * B + r, column = block * B + c;
                if (block >= blocks) continue;
                float sum = 0;
                if (pass == 0)
                    for (int from = block * B; from < (block + away) * B; from += B)
#pragma unroll
                        for (int k = from; k < from + B; k++) sum += M[row * LD + k] * room[k * LD + column];
                else
#pragma unroll
                    for (int k = 0; k < B; k++)
                        sum -= room[row * LD + (block + away) * B + k] *
                               room[((block + away) * B + k) * LD + column];
                sums[n] = sum;
            }
            __syncthreads();
#pragma unroll
            for (int n = 0; n < 3 * B * B / TILE_THREADS; n++) {
                int e = i + n * TILE_THREADS, block = e / (B * B), r = e / B % B, c = e % B;
                if (block < blocks) room[((block + away) * B + r) * LD + block * B + c] = sums[n];
            }
        }
    }
    __syncthreads();
    for (int e = i; e < TILE * TILE; e += TILE_THREADS) {
        int r = e / TILE, c = e % TILE;
        M[r * LD + c] = c / B <= r / B ? room[r * LD + c] : 0;
    }
    __syncthreads();
}

/* What this thread's two rows need of a chunk's gates. */
struct gdn_fades {
    float end[2], all; /* e^{G_end - G} of the rows, e^{G_end} */
};

template <typename T> static __device__ inline gdn_fades gdn_fades_of(const gdn_view<T> &p, int64_t index)
{
    const float *up = p.gates + index * 2 * TILE, *end = up + TILE;
    int r = 16 * tile_warp() + tile_lane() / 4;
    gdn_fades f;
    f.end[0] = end[r], f.end[1] = end[r + 8], f.all = up[TILE - 1];
    return f;
}

/* f applied to the rows of a strip. */
static __device__ inline void gdn_scale_rows(strip &x, const float by[2])
{
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) x.x[n][e] *= by[e / 2];
}

static __device__ inline void gdn_scale(strip &x, float by)
{
    const float both[2] = {by, by};
    gdn_scale_rows(x, both);
}

/* 64 x 64 floats between memory and a strip; NULL reads as zeros. */
static __device__ inline void gdn_read(strip &x, const float *from, int64_t stride, int rows, int columns)
{
    strip_each(
        x, [&](int r, int c, float &y) { y = from && r < rows && c < columns ? from[r * stride + c] : 0; });
}

#endif
