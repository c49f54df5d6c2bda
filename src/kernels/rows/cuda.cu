/* Rows picked out of a matrix and put back on a CUDA device. */
#include "kernels/cuda_vector.h"
#include "kernels/rows/rows.h"

enum { THREADS = 256 };

/* ---- copies: y[i] = x[index[i]], or 0 where that is -1; bits only, in pieces of type U ---- */
template <typename U> struct rows_matrix {
    const U *x;
    U *y;
    int64_t pieces; /* of a row */
};
template <typename U> struct rows_copy {
    int64_t rows;         /* of y */
    const int64_t *index; /* [rows] */
    rows_matrix<U> matrix[2];
};

/* Block (lanes, rows), grid (rows, matrices). */
template <typename U> __global__ void __launch_bounds__(THREADS) rows_copy_kernel(rows_copy<U> a)
{
    cuda_wait_previous();
    int64_t i = (int64_t)blockIdx.x * blockDim.y + threadIdx.y;
    if (i >= a.rows) return;
    rows_matrix<U> m = blockIdx.y ? a.matrix[1] : a.matrix[0];
    int64_t from = a.index[i];
    for (int64_t c = threadIdx.x; c < m.pieces; c += blockDim.x)
        m.y[i * m.pieces + c] = from < 0 ? U() : m.x[from * m.pieces + c];
}

/* size: bytes of an element. */
template <typename U>
static void copy_as(const kernel_run *run, const rows_args *a, const int64_t *index, int64_t rows,
                    size_t size)
{
    rows_copy<U> copy = {};
    copy.rows = rows, copy.index = index;
    copy.matrix[0].x = (const U *)a->x, copy.matrix[0].y = (U *)a->y;
    copy.matrix[0].pieces = a->width * (int64_t)size / (int64_t)sizeof(U);
    copy.matrix[1].x = (const U *)a->other_x, copy.matrix[1].y = (U *)a->other_y;
    copy.matrix[1].pieces = a->other_width * (int64_t)size / (int64_t)sizeof(U);
    int lanes = lanes_for(kernel_max(copy.matrix[0].pieces, copy.matrix[1].pieces));
    dim3 block((unsigned)lanes, (unsigned)(THREADS / lanes));
    dim3 grid((unsigned)kernel_blocks(rows, block.y), a->other_width ? 2 : 1);
    if (rows > 0)
        cuda_launch_early(run->early, rows_copy_kernel<U>, grid, block, 0, (cudaStream_t)run->stream, copy);
}

template <typename T>
static void rows_copies(const kernel_run *run, const rows_args *a, const int64_t *index, int64_t rows)
{
    enum { N = vector_of<T>::N };
    if (a->width % N == 0 && a->other_width % N == 0 && all_aligned(a->x, a->y, a->other_x, a->other_y))
        copy_as<uint4>(run, a, index, rows, sizeof(T));
    else
        copy_as<T>(run, a, index, rows, sizeof(T));
}

/* ---- sums: N elements of one row of y per thread; the summands of a row stand side by side in the list ----
 */
template <typename T, int N> __global__ void __launch_bounds__(THREADS) rows_scatter_kernel(rows_args a)
{
    int64_t pieces = a.width / N, n = (int64_t)blockIdx.x * THREADS + threadIdx.x, row = n / pieces,
            c = n % pieces * N;
    if (row >= a.total) return;
    int64_t i = rows_place(&a, row);
    if (!a.clear && (i >= a.count || a.row[i] != row)) return;
    T *y = (T *)a.y + row * a.width + c;
    float sum[N], x[N];
    for (int k = 0; k < N; k++) sum[k] = 0;
    if (!a.clear) load_many<N>(y, sum);
    for (; i < a.count && a.row[i] == row; i++) {
        load_many<N>((const T *)a.x + (a.from ? a.from[i] : i) * a.width + c, x);
        for (int k = 0; k < N; k++) sum[k] += x[k];
    }
    store_many<N>(y, sum);
}

template <typename T, int N> static void scatter_as(const kernel_run *run, const rows_args *a)
{
    int64_t threads = a->total * (a->width / N);
    if (threads > 0)
        cuda_launch(rows_scatter_kernel<T, N>, dim3((unsigned)kernel_blocks(threads, THREADS)), dim3(THREADS),
                    0, (cudaStream_t)run->stream, *a);
}

template <typename T> static void rows_scatter(const kernel_run *run, const rows_args *a)
{
    enum { N = vector_of<T>::N };
    if (a->place)
        rows_copies<T>(run, a, a->place, a->total);
    else if (a->width % N == 0 && all_aligned(a->x, a->y))
        scatter_as<T, N>(run, a);
    else
        scatter_as<T, 1>(run, a);
}

#define ENTRIES(T, suffix)                                                                                   \
    extern "C" void rows_gather_cuda_##suffix(const kernel_run *run, const rows_args *a)                     \
    {                                                                                                        \
        rows_copies<T>(run, a, a->row, a->count);                                                            \
    }                                                                                                        \
    extern "C" void rows_scatter_cuda_##suffix(const kernel_run *run, const rows_args *a)                    \
    {                                                                                                        \
        rows_scatter<T>(run, a);                                                                             \
    }

ENTRIES(float, f32)
ENTRIES(bf16, bf16)
