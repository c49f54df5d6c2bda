/* Sums over the tokens of each vocabulary row, in one order: tokens are sorted by id (stably), the sorted
 * list is cut into equal segments, each summed by one group of lanes, and rows that go on beyond a segment
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

/* ---- sorting tokens by id ---- */
enum {
    SORT_THREADS = 512,
    SORT_WARPS = SORT_THREADS / 32,
    SORT_BLOCKS = 256,
    BITS_LEAST = 5,
    BITS_MOST = 9,
    AHEAD = 16
};

/* Lanes among `all` whose `key` (of `bits` bits) is this lane's. */
static __device__ inline unsigned equal_lanes(unsigned all, int key, int bits)
{
    for (int i = 0; i < bits; i++) {
        unsigned ones = __ballot_sync(CUDA_FULL_WARP, key >> i & 1);
        all &= key >> i & 1 ? ones : ~ones;
    }
    return all;
}

/* Sum over this lane and those before it. */
static __device__ inline int warp_scan(int x)
{
    int lane = (int)threadIdx.x % 32;
    for (int step = 1; step < 32; step *= 2) {
        int before = __shfl_up_sync(CUDA_FULL_WARP, x, step);
        if (lane >= step) x += before;
    }
    return x;
}

/* One pass of a warp over its share [begin, end) of the ids. place [rows]: where the warp puts the next token
 * of each of the block's rows; it moves on by the tokens found. Writes them where order is given. Returns how
 * many of this lane's ids lie before the block's rows. */
static __device__ inline int sort_pass(const int32_t *id, int64_t begin, int64_t end, int64_t first, int bits,
                                       int *place, int32_t *order)
{
    int lane = (int)threadIdx.x % 32, below = 0, ids[AHEAD];
    for (int64_t t = begin; t < end; t += 32 * AHEAD) {
        for (int k = 0; k < AHEAD; k++) {
            int64_t at = t + k * 32 + lane;
            ids[k] = at < end ? id[at] : INT32_MAX;
        }
        for (int k = 0; k < AHEAD; k++) {
            int64_t local = ids[k] - first;
            bool mine = local >= 0 && local < 1 << bits && ids[k] != INT32_MAX;
            below += local < 0;
            unsigned found = __ballot_sync(CUDA_FULL_WARP, mine);
            if (!found) continue;
            unsigned equal = equal_lanes(found, (int)local, bits);
            int before = __popc(equal & ((1u << lane) - 1)), base = mine ? place[local] : 0;
            __syncwarp();
            if (mine && order) order[base + before] = (int32_t)(t + k * 32 + lane);
            if (mine && before == 0) place[local] = base + __popc(equal);
            __syncwarp();
        }
    }
    return below;
}

/* order [n]: tokens by id, equal ones as they come. start [vocab + 1]: where each id's tokens start. Block b
 * takes the 2^bits ids from b 2^bits on; warps take consecutive shares of the tokens. */
static __global__ void __launch_bounds__(SORT_THREADS, 2)
    embed_sort_kernel(const int32_t *id, int64_t n, int64_t vocab, int bits, int32_t *order, int32_t *start)
{
    CUDA_DYNAMIC_SHARED(int, place); /* [SORT_WARPS, rows] */
    __shared__ int room[32], totals[1 << BITS_MOST];
    int rows = 1 << bits, warp = (int)threadIdx.x / 32, me = (int)threadIdx.x;
    int64_t first = (int64_t)blockIdx.x << bits, share = kernel_blocks(n, SORT_WARPS * 32) * 32;
    int64_t begin = kernel_min(n, warp * share), end = kernel_min(n, begin + share);
    for (int i = me; i < rows * SORT_WARPS; i += SORT_THREADS) place[i] = 0;
    __syncthreads();
    int below = sort_pass(id, begin, end, first, bits, place + warp * rows, NULL);
    below = block_sum(below, room); /* also a barrier */
    for (int r = me; r < rows; r += SORT_THREADS) {
        int sum = 0;
        for (int w = 0; w < SORT_WARPS; w++) {
            int count = place[w * rows + r];
            place[w * rows + r] = sum;
            sum += count;
        }
        totals[r] = sum;
    }
    __syncthreads();
    int mine = me < rows ? totals[me] : 0,
        through = warp_scan(mine); /* of this row and those before it in its warp */
    if (me % 32 == 31) room[warp] = through;
    __syncthreads();
    for (int w = 0; w < warp; w++) through += room[w];
    if (me < rows) totals[me] = through - mine; /* tokens of the rows before */
    __syncthreads();
    for (int i = me; i < rows * SORT_WARPS; i += SORT_THREADS) {
        int r = i % rows;
        place[i] += below + totals[r];
    }
    if (me < rows && first + me < vocab) start[first + me + 1] = below + through;
    if (blockIdx.x == 0 && me == 0) start[0] = 0;
    __syncthreads();
    sort_pass(id, begin, end, first, bits, place + warp * rows, order);
}

/* ---- sums over the sorted list ---- */
struct embed_sums {
    embed_args a;
    const int32_t *order, *start;
    int64_t origin, n, segments,
        per_segment; /* tokens from origin on are sorted; per_segment of them in each */
    int lanes;
    float *head,
        *tail; /* [segments, width]: sums of a segment's first and last row where those go on beyond */
};

template <int N> static __device__ inline void add_to(float *to, const float (&x)[N])
{
    float sum[N];
    load_many<N>(to, sum);
    for (int i = 0; i < N; i++) sum[i] += x[i];
    store_many<N>(to, sum);
}

enum { SEGMENT = 8 }; /* tokens on their way at once */

/* What a group of lanes holds of one vocabulary row while it goes along its segment. */
template <int N> struct embed_row {
    int64_t id;
    bool begun_before;    /* in an earlier segment */
    float sum[N], old[N]; /* old: of d_weight */
};

/* A row is done in this segment, or goes on in the next one. */
template <int N>
static __device__ inline void put_row(const embed_sums &s, int64_t segment, int64_t c, embed_row<N> &row,
                                      bool goes_on)
{
    if (row.begun_before) return store_many<N>(s.head + segment * s.a.width + c, row.sum);
    if (goes_on) return store_many<N>(s.tail + segment * s.a.width + c, row.sum);
    for (int i = 0; i < N; i++) row.old[i] += row.sum[i];
    store_many<N>((float *)s.a.d_weight + row.id * s.a.width + c, row.old);
}

/* Group of lanes: one segment, columns c .. c+N of its lane. Rows of the vocabulary that lie in the segment
 * entirely are done here. Loads of SEGMENT tokens start together: they are far apart in memory. */
template <typename T, int N> __global__ void __launch_bounds__(THREADS) embed_segment_kernel(embed_sums s)
{
    cuda_wait_previous();
    CUDA_DYNAMIC_SHARED(float, room); /* [groups, lanes * N] */
    __shared__ int others[32];
    const embed_args &a = s.a;
    int64_t segment = ((int64_t)blockIdx.x * THREADS + threadIdx.x) / s.lanes;
    int64_t c = ((int64_t)blockIdx.y * s.lanes + ((int)threadIdx.x & (s.lanes - 1))) * N;
    bool live = segment < s.segments && c < a.width;
    int64_t begin = segment * s.per_segment, end = live ? kernel_min(s.n, begin + s.per_segment) : begin;
    int64_t before = live && begin > 0 ? a.id[s.origin + s.order[begin - 1]] : -1;
    int64_t after = live && end < s.n ? a.id[s.origin + s.order[end]] : -1;
    embed_row<N> row;
    row.id = -1, row.begun_before = false;
    for (int64_t e = begin; e < end; e += SEGMENT) {
        float x[SEGMENT][N], old[SEGMENT][N];
        int64_t token[SEGMENT], id[SEGMENT];
#pragma unroll
        for (int k = 0; k < SEGMENT; k++) token[k] = s.origin + s.order[kernel_min(e + k, end - 1)];
#pragma unroll
        for (int k = 0; k < SEGMENT; k++) id[k] = a.id[token[k]];
#pragma unroll
        for (int k = 0; k < SEGMENT; k++) {
            load_many<N>((const T *)a.d_y + token[k] * a.width + c, x[k]);
            load_many<N>((const float *)a.d_weight + id[k] * a.width + c, old[k]);
        }
#pragma unroll
        for (int k = 0; k < SEGMENT; k++)
            if (e + k < end) {
                if (id[k] != row.id) {
                    if (row.id >= 0) put_row<N>(s, segment, c, row, false);
                    row.id = id[k], row.begun_before = e + k == begin && id[k] == before;
                    for (int i = 0; i < N; i++) row.sum[i] = 0, row.old[i] = old[k][i];
                }
                drop<N>(a, token[k] * a.width + c, x[k]);
                for (int i = 0; i < N; i++) row.sum[i] += x[k][i];
            }
    }
    bool through = live && row.begun_before && row.id == after;
    if (block_sum(through || c >= a.width ? 0 : 1, others)) {
        if (live) put_row<N>(s, segment, c, row, row.id == after);
        return;
    }
    /* One row goes through all segments of the block: their sums together are the first one's. */
    int lane = (int)threadIdx.x & (s.lanes - 1), group = (int)threadIdx.x / s.lanes,
        groups = THREADS / s.lanes;
    store_many<N>(room + (group * s.lanes + lane) * N, row.sum);
    __syncthreads();
    if (group || !live) return;
    for (int g = 1; g < groups; g++) {
        float x[N];
        load_many<N>(room + (g * s.lanes + lane) * N, x);
        for (int i = 0; i < N; i++) row.sum[i] += x[i];
    }
    put_row<N>(s, segment, c, row, true);
}

/* Adds what segments first, first + step, ... up to last hold of a row that began before them. */
template <int N>
static __device__ inline void sum_heads(const embed_sums &s, int64_t first, int64_t last, int64_t step,
                                        int64_t c, float (&sum)[N])
{
#pragma unroll 4
    for (int64_t k = first; k <= last; k += step) {
        float x[N];
        load_many<N>(s.head + k * s.a.width + c, x);
        for (int i = 0; i < N; i++) sum[i] += x[i];
    }
}

/* The share of one of `groups` groups in the sum over segments first .. last of a row that began before them.
 * Whole blocks of `groups` segments that it goes through and beyond were summed by embed_segment_kernel. */
template <int N>
static __device__ inline void sum_chain(const embed_sums &s, int64_t first, int64_t last, int group,
                                        int groups, int64_t c, float (&sum)[N])
{
    int64_t blocks_from = kernel_blocks(first, groups),
            blocks_to = last / groups; /* [from, to) lie before last */
    if (blocks_from >= blocks_to) return sum_heads<N>(s, first + group, last, groups, c, sum);
    sum_heads<N>(s, first + group, blocks_from * groups - 1, groups, c, sum);
    sum_heads<N>(s, (blocks_from + group) * groups, blocks_to * groups - 1, (int64_t)groups * groups, c, sum);
    sum_heads<N>(s, blocks_to * groups + group, last, groups, c, sum);
}

/* The rows that go on beyond a segment, at the segment where they start: a group of lanes per segment; a row
 * that goes through many is summed by all groups of the block. */
template <int N> __global__ void __launch_bounds__(THREADS) embed_join_kernel(embed_sums s)
{
    cuda_wait_previous();
    enum { MANY = 4 };
    CUDA_DYNAMIC_SHARED(float, room);                        /* [groups, lanes * N] */
    __shared__ int64_t long_id[THREADS], long_last[THREADS]; /* by group */
    const embed_args &a = s.a;
    int lane = (int)threadIdx.x & (s.lanes - 1), group = (int)threadIdx.x / s.lanes,
        groups = THREADS / s.lanes;
    int64_t segment = (int64_t)blockIdx.x * groups + group, c = ((int64_t)blockIdx.y * s.lanes + lane) * N;
    int64_t begin = segment * s.per_segment, end = kernel_min(s.n, begin + s.per_segment), id = -1, last = -1;
    if (segment < s.segments) {
        id = a.id[s.origin + s.order[end - 1]];
        last = s.start[id] >= begin && s.start[id + 1] > end ? (s.start[id + 1] - 1) / s.per_segment : -1;
    }
    float sum[N], x[N];
    if (lane == 0) long_id[group] = id, long_last[group] = last - segment > MANY ? last : -1;
    if (last >= 0 && last - segment <= MANY && c < a.width) {
        load_many<N>(s.tail + segment * a.width + c, sum);
        sum_heads<N>(s, segment + 1, last, 1, c, sum);
        add_to<N>((float *)a.d_weight + id * a.width + c, sum);
    }
    __syncthreads();
    for (int g = 0; g < groups; g++) {
        if (long_last[g] < 0) continue; /* the same for all threads */
        int64_t start = (int64_t)blockIdx.x * groups + g;
        for (int i = 0; i < N; i++) sum[i] = 0;
        if (c < a.width) sum_chain<N>(s, start + 1, long_last[g], group, groups, c, sum);
        store_many<N>(room + (group * s.lanes + lane) * N, sum);
        __syncthreads();
        if (group == 0 && c < a.width) {
            load_many<N>(s.tail + start * a.width + c, sum);
            for (int other = 0; other < groups; other++) {
                load_many<N>(room + (other * s.lanes + lane) * N, x);
                for (int i = 0; i < N; i++) sum[i] += x[i];
            }
            add_to<N>((float *)a.d_weight + long_id[g] * a.width + c, sum);
        }
        __syncthreads();
    }
}

#endif
