/* Sorts tokens by id, stably, in one launch: each block takes some rows of the vocabulary, counts their
 * tokens and puts them in order. */
#ifndef BLURRY_KERNELS_EMBED_CUDA_SORT_CUH
#define BLURRY_KERNELS_EMBED_CUDA_SORT_CUH
#include "kernels/cuda.h"
#include "kernels/kernel.h"

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

#endif
