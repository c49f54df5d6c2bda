/* Matrix products of a block in fp32: 64 rows by N columns, 256 threads, 4 rows by N/16 columns each.
 *
 * The left factor is a tile in shared memory; the right one is fetched from global memory in slabs of 16
 * steps, the next while one is worked on. Thread (ty, tx) = (thread / 16, thread % 16) has the rows 4 ty .. 4
 * ty + 3 and, in every group of 16 WIDE columns, the columns WIDE tx .. : neighbouring lanes read
 * neighbouring 16 bytes. A slab of a matrix that is used transposed is swizzled to the same end. */
#ifndef BLURRY_KERNELS_BLURRY_CUDA_CHUNK_PRODUCT_CUH
#define BLURRY_KERNELS_BLURRY_CUDA_CHUNK_PRODUCT_CUH
#include "kernels/blurry/cuda_chunk.h"

enum { SLAB = 16 };

/* Columns of a thread that lie side by side. */
static constexpr __host__ __device__ int product_wide(int N)
{
    return N % 64 == 0 ? 4 : 2;
}

/* Element (r, c) is at + r * stride + c; beyond `rows` and `columns` it is 0. Strides and columns are
 * multiples of 4, `at` is aligned for 4 elements. */
template <typename E> struct product_matrix {
    const E *at;
    int stride, rows, columns;
};

/* Two slabs, used in turn by all products of a kernel. */
struct product_slabs {
    float *room; /* [2, size] */
    int size, stage;
};

/* Starts bringing four elements to shared memory; complete after copy_async_wait and a barrier. */
static __device__ inline void product_fetch(float *to, const float *from, bool valid)
{
    copy_async16(to, from, valid);
}
static __device__ inline void product_fetch(float *to, const bf16 *from, bool valid)
{
    uint2 x = valid ? *(const uint2 *)from : make_uint2(0, 0);
    float2 low = unpack_bf16(x.x), high = unpack_bf16(x.y);
    *(float4 *)to = make_float4(low.x, low.y, high.x, high.y);
}

/* Leading dimension of a tile: the rows of neighbouring threads lie in different banks. */
static constexpr __host__ __device__ int product_ld(int columns)
{
    return columns + 4;
}

/* A tile of 64 rows. */
template <int COLUMNS, typename E>
static __device__ inline void product_load_tile(float *tile, const product_matrix<E> &m)
{
    constexpr int units = COLUMNS / 4, ld = product_ld(COLUMNS);
#pragma unroll 4
    for (int i = threadIdx.x; i < CHUNK_TOKENS * units; i += CHUNK_THREADS) {
        int row = i / units, column = i % units * 4;
        bool valid = row < m.rows && column < m.columns;
        product_fetch(tile + row * ld + column, valid ? m.at + row * m.stride + column : m.at, valid);
    }
    copy_async_commit();
}

/* Steps k0 .. k0 + 15 of the right factor, [16, N], or transposed [N, 16] with its units of four exchanged.
 */
template <int N, bool TRANSPOSED, typename E>
static __device__ inline void product_load_slab(float *slab, const product_matrix<E> &m, int k0)
{
    constexpr int units = N * SLAB / 4, across = TRANSPOSED ? SLAB / 4 : N / 4;
#pragma unroll
    for (int i = 0; i < units; i += CHUNK_THREADS) {
        int at = i + threadIdx.x;
        if (units % CHUNK_THREADS != 0 && at >= units) break;
        int row = at / across, column = at % across * 4;
        int to = TRANSPOSED ? at ^ (row / product_wide(N) & 7) : at;
        if (TRANSPOSED)
            column += k0;
        else
            row += k0;
        bool valid = row < m.rows && column < m.columns;
        product_fetch(slab + 4 * to, valid ? m.at + row * m.stride + column : m.at, valid);
    }
    copy_async_commit();
}

/* Four steps of the left factor from step k on. TURNED: it is the transpose of the tile. */
template <bool TURNED>
static __device__ inline void product_left(float (&a)[4][4], const float *tile, int ld, int k)
{
    const int ty = threadIdx.x / 16;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float4 x = *(const float4 *)(TURNED ? tile + (k + i) * ld + 4 * ty : tile + (4 * ty + i) * ld + k);
        float y[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
        for (int j = 0; j < 4; j++) a[TURNED ? j : i][TURNED ? i : j] = y[j];
    }
}

/* Four steps from step k on of WIDE columns of a slab, b[step][column]. */
template <int N, bool TRANSPOSED, int WIDE>
static __device__ inline void product_right(float (&b)[4][WIDE], const float *slab, int k, int group)
{
    const int column = (16 * group + threadIdx.x % 16) * WIDE;
    if constexpr (TRANSPOSED) {
#pragma unroll
        for (int i = 0; i < WIDE; i++) {
            int unit = ((column + i) * (SLAB / 4) + k / 4) ^ (column / WIDE & 7);
            float4 x = *(const float4 *)(slab + 4 * unit);
            b[0][i] = x.x, b[1][i] = x.y, b[2][i] = x.z, b[3][i] = x.w;
        }
    } else {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float *at = slab + (k + i) * N + column;
            if constexpr (WIDE == 4) {
                float4 x = *(const float4 *)at;
                b[i][0] = x.x, b[i][1] = x.y, b[i][2] = x.z, b[i][3] = x.w;
            } else {
                float2 x = *(const float2 *)at;
                b[i][0] = x.x, b[i][1] = x.y;
            }
        }
    }
}

template <int N, bool TURNED, bool TRANSPOSED>
static __device__ inline void product_slab(float (&c)[4][N / 16], const float *tile, int ld, int k0,
                                           const float *slab)
{
    constexpr int WIDE = product_wide(N);
#pragma unroll 2
    for (int k = 0; k < SLAB; k += 4) {
        float a[4][4];
        product_left<TURNED>(a, tile, ld, k0 + k);
#pragma unroll
        for (int group = 0; group < N / 16 / WIDE; group++) {
            float b[4][WIDE];
            product_right<N, TRANSPOSED>(b, slab, k, group);
#pragma unroll
            for (int step = 0; step < 4; step++)
#pragma unroll
                for (int i = 0; i < 4; i++)
#pragma unroll
                    for (int j = 0; j < WIDE; j++)
                        c[i][group * WIDE + j] = fmaf(a[i][step], b[step][j], c[i][group * WIDE + j]);
        }
    }
}

/* c += left right over `steps` (a multiple of 16). Waits for every copy under way and has a barrier before
 * the tile is read, and at least one more thread-wide meeting per slab: what other threads read before the
 * call may be written after it. */
template <int N, bool TURNED, bool TRANSPOSED, typename E>
static __device__ inline void product(float (&c)[4][N / 16], const float *tile, int ld,
                                      const product_matrix<E> &right, int steps, product_slabs &s)
{
    product_load_slab<N, TRANSPOSED>(s.room + s.stage * s.size, right, 0);
#pragma unroll 1
    for (int k = 0; k < steps; k += SLAB) {
        const float *slab = s.room + s.stage * s.size;
        copy_async_wait<0>();
        __syncthreads(); /* everyone is done with the other slab, too */
        s.stage ^= 1;
        if (k + SLAB < steps) product_load_slab<N, TRANSPOSED>(s.room + s.stage * s.size, right, k + SLAB);
        product_slab<N, TURNED, TRANSPOSED>(c, tile, ld, k, slab);
    }
}

/* ---- what becomes of the sums; N / 16 columns of 4 rows each ---- */

template <int M> static __device__ inline void product_zero(float (&c)[4][M])
{
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < M; j++) c[i][j] = 0.0f;
}

/* The column of c[.][j]. */
template <int M> static __device__ inline int product_column(int j)
{
    constexpr int WIDE = product_wide(16 * M);
    return (j / WIDE * 16 + (int)threadIdx.x % 16) * WIDE + j % WIDE;
}

/* n: 2 or 4. */
static __device__ inline void product_put(float *to, const float *x, int n)
{
    if (n == 4)
        *(float4 *)to = make_float4(x[0], x[1], x[2], x[3]);
    else
        *(float2 *)to = make_float2(x[0], x[1]);
}
static __device__ inline void product_put(bf16 *to, const float *x, int n)
{
    *(uint32_t *)to = pack_bf16(x[0], x[1]);
    if (n == 4) *((uint32_t *)to + 1) = pack_bf16(x[2], x[3]);
}

/* Into a tile [64, 16 M]; CAUSAL: zeros where the column is later than the row. */
template <bool CAUSAL, int M>
static __device__ inline void product_to_tile(float *tile, int ld, const float (&c)[4][M])
{
    constexpr int WIDE = product_wide(16 * M);
    const int row = threadIdx.x / 16 * 4;
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < M; j += WIDE) {
            int column = product_column<M>(j);
            float x[WIDE];
#pragma unroll
            for (int w = 0; w < WIDE; w++) x[w] = CAUSAL && column + w > row + i ? 0.0f : c[i][j + w];
            product_put(tile + (row + i) * ld + column, x, WIDE);
        }
}

/* A thread's columns of one row, M of them a multiple of 4. */
template <int M> static __device__ inline void product_row(float (&y)[M], const float *row)
{
#pragma unroll
    for (int j = 0; j < M; j += 4) {
        float4 x = *(const float4 *)(row + product_column<M>(j));
        y[j] = x.x, y[j + 1] = x.y, y[j + 2] = x.z, y[j + 3] = x.w;
    }
}

/* Rows of a matrix in global memory = (ADD: +=) c. */
template <typename E, int M>
static __device__ inline void product_store(const product_matrix<E> &m, const float (&c)[4][M], bool add)
{
    constexpr int WIDE = product_wide(16 * M);
    const int row = threadIdx.x / 16 * 4;
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < M; j += WIDE) {
            int column = product_column<M>(j);
            if (row + i >= m.rows || column >= m.columns) continue;
            E *to = (E *)m.at + (row + i) * m.stride + column;
            float x[WIDE];
#pragma unroll
            for (int w = 0; w < WIDE; w++) x[w] = c[i][j + w] + (add ? cuda_load(to + w) : 0.0f);
            product_put(to, x, WIDE);
        }
}

#endif
