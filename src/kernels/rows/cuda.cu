/* Rows picked out of a matrix and put back on a CUDA device: N elements of one row of the result per thread.
 */
#include "kernels/cuda_vector.h"
#include "kernels/rows/rows.h"

enum { THREADS = 256 };

template <typename T, int N> __global__ void __launch_bounds__(THREADS) rows_gather_kernel(rows_args a)
{
    int64_t pieces = a.width / N, n = (int64_t)blockIdx.x * THREADS + threadIdx.x, i = n / pieces,
            c = n % pieces * N;
    if (i >= a.count) return;
    float x[N];
    load_many<N>((const T *)a.x + a.row[i] * a.width + c, x);
    store_many<N>((T *)a.y + i * a.width + c, x);
}

/* The summands of one row of y stand side by side in the list. */
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

template <typename T, int N> static void rows_as(const kernel_run *run, const rows_args *a, int scatter)
{
    int64_t rows = scatter ? a->total : a->count, threads = rows * (a->width / N);
    if (threads > 0)
        cuda_launch(scatter ? rows_scatter_kernel<T, N> : rows_gather_kernel<T, N>,
                    dim3((unsigned)kernel_blocks(threads, THREADS)), dim3(THREADS), 0,
                    (cudaStream_t)run->stream, *a);
}

template <typename T> static void rows(const kernel_run *run, const rows_args *a, int scatter)
{
    enum { N = vector_of<T>::N };
    if (a->width % N == 0 && all_aligned(a->x) && all_aligned(a->y))
        rows_as<T, N>(run, a, scatter);
    else
        rows_as<T, 1>(run, a, scatter);
}

#define ENTRIES(T, suffix)                                                                                   \
    extern "C" void rows_gather_cuda_##suffix(const kernel_run *run, const rows_args *a)                     \
    {                                                                                                        \
        rows<T>(run, a, 0);                                                                                  \
    }                                                                                                        \
    extern "C" void rows_scatter_cuda_##suffix(const kernel_run *run, const rows_args *a)                    \
    {                                                                                                        \
        rows<T>(run, a, 1);                                                                                  \
    }

ENTRIES(float, f32)
ENTRIES(bf16, bf16)
