/* Sums over the tokens of each vocabulary row, in one order: tokens are sorted by id (cuda_sort.cuh), the
 * sorted list is cut into equal parts, each summed by one group of lanes, and rows that go on beyond a part
 * are joined last. */
#ifndef BLURRY_KERNELS_EMBED_CUDA_SUMS_CUH
#define BLURRY_KERNELS_EMBED_CUDA_SUMS_CUH
#include "kernels/cuda_vector.h"
#include "kernels/embed/dropout.h"
#include "kernels/embed/embed.h"

enum { THREADS = 256 };

/* x[i] *= mask of element first + i. Whole blocks of the generator where N is a multiple of 4, which then
 * also divides `first`. */
template <int N> static __device__ inline void drop(const embed_args &a, int64_t first, float (&x)[N])
{
    if (a.dropout <= 0) return;
    float kept = (float)(1 / (1 - a.dropout));
    int keep[4];
    for (int i = 0; i < N; i++) {
        if (i % 4 == 0) dropout_keep(&a, (first + i) / 4, keep);
        int place = N % 4 ? (int)((first + i) % 4) : i % 4, stays = 0;
        for (int k = 0; k < 4; k++) stays = place == k ? keep[k] : stays;
        x[i] *= stays ? kept : 0;
    }
}

struct embed_sums {
    embed_args a;
    const int32_t *order, *start;
    int64_t origin, n;            /* tokens from origin on are sorted */
    int64_t per_group, per_block; /* places of the list */
    int lanes;
    float *head, *tail; /* [blocks, width]: sums of a block's first and last row where those go on beyond */
    unsigned *arrived; /* [blocks, slabs] blocks that have left theirs of the row whose first block this is */
};

/* Columns of one vocabulary row while a group of lanes goes along its share of the list. */
template <int N> struct embed_row {
    int64_t id;
    bool begun_before;    /* in an earlier group */
    float sum[N], old[N]; /* old: of d_weight */
};

template <int N>
static __device__ inline void put_row(const embed_sums &s, int64_t c, const embed_row<N> &row)
{
    float sum[N];
    for (int i = 0; i < N; i++) sum[i] = row.old[i] + row.sum[i];
    store_many<N>((float *)s.a.d_weight + row.id * s.a.width + c, sum);
}

template <int N> static __device__ inline void add_many(const float *x, float (&sum)[N])
{
    float more[N];
    load_many<N>(x, more);
    for (int i = 0; i < N; i++) sum[i] += more[i];
}

template <int N> static __device__ inline void add_to(float *to, float (&x)[N])
{
    add_many<N>(to, x);
    store_many<N>(to, x);
}

/* As load_many, of what other blocks wrote in this launch. */
template <int N> static __device__ inline void load_fresh(const float *p, float (&x)[N])
{
    if constexpr (N % 4 == 0) {
        for (int i = 0; i < N; i += 4) {
            float4 v = __ldcg((const float4 *)(p + i));
            x[i] = v.x, x[i + 1] = v.y, x[i + 2] = v.z, x[i + 3] = v.w;
        }
    } else {
        for (int i = 0; i < N; i++) x[i] = __ldcg(p + i);
    }
}

enum { SEGMENT = 4 }; /* tokens on their way at once: they are far apart in memory */

/* What a group learns on its way: where in the list its first row starts and ends, and its last one ends. */
struct embed_ends {
    int64_t first_id, first_start, first_end, last_end;
};

/* The rows of a group's places [begin, end). Those that lie there entirely are done; the sum of one that
 * began before goes to `head`; one that goes on is left in `row`. */
template <typename T, int N>
static __device__ inline embed_ends sum_rows(const embed_sums &s, int64_t begin, int64_t end, int64_t c,
                                             float *head, embed_row<N> &row)
{
    const embed_args &a = s.a;
    embed_ends ends = {};
    for (int64_t e = begin; e < end; e += SEGMENT) {
        float x[SEGMENT][N], old[SEGMENT][N];
        int64_t token[SEGMENT], id[SEGMENT];
#pragma unroll
        for (int k = 0; k < SEGMENT; k++) token[k] = s.origin + s.order[kernel_min(e + k, end - 1)];
#pragma unroll
        for (int k = 0; k < SEGMENT; k++) id[k] = a.id[token[k]];
        if (e == begin)
            ends.first_id = id[0], ends.first_start = s.start[id[0]], ends.first_end = s.start[id[0] + 1];
        ends.last_end = s.start[id[SEGMENT - 1] + 1];
#pragma unroll
        for (int k = 0; k < SEGMENT; k++) {
            load_many<N>((const T *)a.d_y + token[k] * a.width + c, x[k]);
            load_many<N>((const float *)a.d_weight + id[k] * a.width + c, old[k]);
        }
#pragma unroll
        for (int k = 0; k < SEGMENT; k++)
            if (e + k < end) {
                if (id[k] != row.id) {
                    if (row.id >= 0 && row.begun_before) store_many<N>(head, row.sum);
                    if (row.id >= 0 && !row.begun_before) put_row<N>(s, c, row);
                    row.id = id[k], row.begun_before = e + k == begin && ends.first_start < begin;
                    for (int i = 0; i < N; i++) row.sum[i] = 0, row.old[i] = old[k][i];
                }
                drop<N>(a, token[k] * a.width + c, x[k]);
                for (int i = 0; i < N; i++) row.sum[i] += x[k][i];
            }
    }
    if (row.begun_before)
        store_many<N>(head, row.sum);
    else if (ends.last_end <= end)
        put_row<N>(s, c, row);
    return ends;
}

/* A row that goes on beyond its first block, as the blocks on its way see it. */
struct embed_long {
    int64_t id, from, to; /* first and last block; id -1: there is none */
    bool last;            /* this block is the last of them to arrive */
};

/* Adds up what all blocks left of a row, by all groups of the last one; room [groups, lanes * N]. */
template <int N>
static __device__ inline void join_row(const embed_sums &s, const embed_long &row, int64_t c, float *room)
{
    enum { AT_ONCE = 8 };
    int group = (int)threadIdx.x / s.lanes, groups = THREADS / s.lanes;
    int64_t width = s.a.width;
    float sum[N] = {}, *own = room + (int64_t)threadIdx.x * N;
    bool live = c < width;
    if (live) {
        for (int64_t k = row.from + 1 + group; k <= row.to; k += (int64_t)AT_ONCE * groups) {
            float x[AT_ONCE][N] = {};
#pragma unroll
            for (int j = 0; j < AT_ONCE; j++)
                if (k + j * groups <= row.to) load_fresh<N>(s.head + (k + j * groups) * width + c, x[j]);
#pragma unroll
            for (int j = 0; j < AT_ONCE; j++)
                for (int i = 0; i < N; i++) sum[i] += x[j][i];
        }
        store_many<N>(own, sum);
    }
    __syncthreads();
    if (live && group == 0) {
        float *to = (float *)s.a.d_weight + row.id * width + c, begun[N];
        load_many<N>(to, sum);
        load_fresh<N>(s.tail + row.from * width + c, begun);
        for (int i = 0; i < N; i++) sum[i] += begun[i];
        for (int g = 0; g < groups; g++) add_many<N>(own + (int64_t)g * s.lanes * N, sum);
        store_many<N>(to, sum);
    }
    __syncthreads();
}

/* This block has left its sums of a long row; whether it is the last to do so. */
static __device__ inline bool arrive(const embed_sums &s, const embed_long &row)
{
    unsigned *arrived = s.arrived + row.from * gridDim.y + blockIdx.y;
    bool last = atomicAdd(arrived, 1u) == (unsigned)(row.to - row.from);
    if (last) *arrived = 0;
    __threadfence();
    return last;
}

/* Block: per_block places of the list, per_group for a group of lanes; lane: columns c .. c+N. A row that
 * goes on beyond a group is summed by the group where it begins, or by the block's first one; a row beyond
 * blocks by the block that arrives last, in the order of the list. */
template <typename T, int N> __global__ void __launch_bounds__(THREADS, 2) embed_sums_kernel(embed_sums s)
{
    cuda_wait_previous();
    CUDA_DYNAMIC_SHARED(float, room); /* [groups, lanes * N]: what each group holds of a row begun before */
    __shared__ bool through[THREADS]; /* by group: whether that row goes on */
    __shared__ embed_long rows[2];    /* begun in an earlier block; begun here */
    int lane = (int)threadIdx.x & (s.lanes - 1), group = (int)threadIdx.x / s.lanes,
        groups = THREADS / s.lanes;
    int64_t block = blockIdx.x, c = ((int64_t)blockIdx.y * s.lanes + lane) * N, width = s.a.width;
    int64_t begin = kernel_min(s.n, block * s.per_block + group * s.per_group),
            end = kernel_min(s.n, begin + s.per_group);
    float *own = room + (int64_t)threadIdx.x * N;
    embed_row<N> row;
    row.id = -1, row.begun_before = false;
    embed_ends ends = {};
    bool live = c < width && begin < end;
    if (live) ends = sum_rows<T, N>(s, begin, end, c, own, row);
    bool goes_on = live && ends.last_end > end, begun = live && group == 0 && ends.first_start < begin;
    if (lane == 0) through[group] = goes_on && row.begun_before;
    if (threadIdx.x == 0) {
        rows[0] = {begun ? ends.first_id : -1, ends.first_start / s.per_block,
                   (ends.first_end - 1) / s.per_block, false};
        rows[1].id = -1;
    }
    __syncthreads();
    if (goes_on && !row.begun_before) {
        for (int g = group + 1; goes_on && g < groups; g++) {
            add_many<N>(own + (int64_t)(g - group) * s.lanes * N, row.sum);
            goes_on = through[g];
        }
        if (goes_on)
            store_many<N>(s.tail + block * width + c, row.sum);
        else
            put_row<N>(s, c, row);
        if (goes_on && lane == 0) rows[1] = {row.id, block, (ends.last_end - 1) / s.per_block, false};
    }
    if (begun) {
        load_many<N>(own, row.sum);
        for (int g = 1; g < groups && through[g - 1]; g++)
            add_many<N>(own + (int64_t)g * s.lanes * N, row.sum);
        store_many<N>(s.head + block * width + c, row.sum);
    }
    __threadfence();
    __syncthreads();
    if (rows[0].id < 0 && rows[1].id < 0) return;
    if (threadIdx.x < 2 && rows[threadIdx.x].id >= 0) rows[threadIdx.x].last = arrive(s, rows[threadIdx.x]);
    __syncthreads();
    for (int i = 0; i < 2; i++)
        if (rows[i].id >= 0 && rows[i].last) join_row<N>(s, rows[i], c, room);
}

#endif
