/* Sums over the tokens of each vocabulary row, in one order: tokens are sorted by id (stably), the sorted
 * list is cut into equal parts, each summed by one group of lanes, and rows that go on beyond a part are
 * joined last. */
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
    SORT_THREADS = 1024,
    SORT_WARPS = SORT_THREADS / 32,
    SORT_BLOCKS = 16, /* few: all of them read all ids */
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

/* A warp's share [begin, end) of the tokens and the block's 2^bits rows of the vocabulary, from `first` on.
 * ids: those of the lane among the 32 AHEAD tokens from `loaded` on. */
struct sort_share {
    const int32_t *id;
    int64_t begin, end, loaded;
    int first, bits, ids[AHEAD];
};

/* Goes over the share, 32 tokens at a time: visit(token, row, whether that is one of the block's, lanes where
 * it is). Returns how many of this lane's ids lie before the block's rows. */
template <typename F> static __device__ inline int sort_pass(sort_share &s, F visit)
{
    int lane = (int)threadIdx.x % 32, below = 0;
    for (int64_t t = s.begin; t < s.end; t += 32 * AHEAD) {
        if (t != s.loaded) {
#pragma unroll
            for (int k = 0; k < AHEAD; k++) {
                int64_t at = t + k * 32 + lane;
                s.ids[k] = at < s.end ? s.id[at] : INT32_MAX;
            }
            s.loaded = t;
        }
#pragma unroll 1 /* code that runs once must be fetched once */
        for (int k = 0; k < AHEAD; k++) {
            int row = s.ids[k] - s.first;
            bool mine = (unsigned)row < 1u << s.bits && s.ids[k] != INT32_MAX;
            below += row < 0;
            unsigned found = __ballot_sync(CUDA_FULL_WARP, mine);
            if (found) visit((int)(t + k * 32) + lane, row, mine, found);
        }
    }
    return below;
}

/* Lanes whose row is that of the first lane found: often all of them, where most tokens are one. */
static __device__ inline unsigned first_alike(int row, bool mine, unsigned found)
{
    int first = __shfl_sync(CUDA_FULL_WARP, row, __ffs((int)found) - 1);
    return __ballot_sync(CUDA_FULL_WARP, mine && row == first);
}

/* count [rows] += the tokens of each of the block's rows in the warp's share. */
static __device__ inline int sort_count(sort_share &s, int *count)
{
    int lane = (int)threadIdx.x % 32;
    return sort_pass(s, [=](int, int row, bool mine, unsigned found) {
        unsigned alike = first_alike(row, mine, found);
        if (mine && (!(alike >> lane & 1) || lane == __ffs((int)alike) - 1))
            atomicAdd(count + row, alike >> lane & 1 ? __popc(alike) : 1);
    });
}

/* Puts the tokens of the warp's share in order; place [rows]: where the next token of each row goes. */
static __device__ inline void sort_place(sort_share &s, int *place, int32_t *order)
{
    int lane = (int)threadIdx.x % 32, bits = s.bits;
    sort_pass(s, [=](int token, int row, bool mine, unsigned found) {
        unsigned alike = first_alike(row, mine, found), rest = found & ~alike;
        unsigned others = rest ? equal_lanes(rest, row, bits) : 0;
        if (rest >> lane & 1) alike = others;
        int before = __popc(alike & ((1u << lane) - 1)), base = mine ? place[row] : 0;
        __syncwarp();
        if (mine) order[base + before] = token;
        if (mine && before == 0) place[row] = base + __popc(alike);
        __syncwarp();
    });
}

/* place [SORT_WARPS, rows]: from the warps' counts to where each puts its first token of a row, the block's
 * first at `below`. Returns, to thread r, where row r ends. */
static __device__ inline int sort_scan(int *place, int rows, int below)
{
    __shared__ int room[32];
    enum { AT_ONCE = 8 };
    int warp = (int)threadIdx.x / 32, me = (int)threadIdx.x, mine = 0;
    if (me < rows)
#pragma unroll AT_ONCE
        for (int w = 0; w < SORT_WARPS; w++) mine += place[w * rows + me];
    int through = warp_scan(mine); /* of this row and those before it in its warp */
    if (me % 32 == 31) room[warp] = through;
    __syncthreads();
    for (int w = 0; w < warp; w++) through += room[w];
    int at = below + through - mine;
    for (int w = 0; w < SORT_WARPS && me < rows; w += AT_ONCE) {
        int count[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) count[i] = place[(w + i) * rows + me];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) place[(w + i) * rows + me] = at, at += count[i];
    }
    __syncthreads();
    return below + through;
}

/* order [n]: tokens by id, equal ones as they come. start [vocab + 1]: where each id's tokens start. arrived
 * [counters] = 0, for embed_sums_kernel. Block b takes the 2^bits ids from b 2^bits on; warps take
 * consecutive shares of the tokens. */
static __global__ void __launch_bounds__(SORT_THREADS, 1)
    embed_sort_kernel(const int32_t *id, int64_t n, int64_t vocab, int bits, int32_t *order, int32_t *start,
                      unsigned *arrived, int64_t counters)
{
    CUDA_DYNAMIC_SHARED(int, place); /* [SORT_WARPS, rows] */
    __shared__ int room[32];
    int rows = 1 << bits, warp = (int)threadIdx.x / 32, me = (int)threadIdx.x;
    int64_t share = kernel_blocks(n, SORT_WARPS * 32) * 32, first = (int64_t)blockIdx.x << bits;
    sort_share s;
    s.id = id, s.begin = kernel_min(n, warp * share), s.end = kernel_min(n, s.begin + share), s.loaded = -1;
    s.first = (int)first, s.bits = bits;
    for (int i = me; i < rows * SORT_WARPS; i += SORT_THREADS) place[i] = 0;
    __syncthreads();
    int below = sort_count(s, place + warp * rows);
    below = block_sum(below, room); /* also a barrier */
    int end = sort_scan(place, rows, below);
    if (me < rows && first + me < vocab) start[first + me + 1] = end;
    if (blockIdx.x == 0 && me == 0) start[0] = 0;
    for (int64_t i = (int64_t)blockIdx.x * SORT_THREADS + me; i < counters; i += gridDim.x * SORT_THREADS)
        arrived[i] = 0;
    sort_place(s, place + warp * rows, order);
}

/* ---- sums over the sorted list ---- */
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
