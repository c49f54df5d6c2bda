/* The fused head by products of warp groups, for Hopper: the kernels of cuda_scan.cuh and cuda_weight.cuh
 * with other tiles. Each of a block's two warp groups has 64 of the rows that stay, in registers. Tiles of
 * the rows that pass lie in shared memory and serve both products. While the tensor cores multiply the
 * weights of a tile with it, the logits of the next, made just before, are turned into weights. */
#include "kernels/cuda_group.h"
#include "kernels/xent/cuda_hopper.h"
#include "kernels/xent/cuda_scan.cuh"
#include "kernels/xent/cuda_weight.cuh"

enum {
    GROUPS_THREADS = 2 * GROUP_THREADS,
    GROUPS_WARPS = GROUPS_THREADS / 32,
    GROUP_STAGES = 3,
    HALF = HOPPER_TILE / 2
};
static_assert(2 * 64 == BLOCK_ROWS, "64 rows to a warp group");

template <int D> struct group_tiles {
    bf16 rows[GROUP_STAGES][HOPPER_TILE * D]; /* panels of 64 columns */
};
template <int D> struct scan_group_shared {
    group_tiles<D> tiles; /* first: aligned to 1024 bytes */
    scan_labels<D, GROUPS_WARPS> labels;
};
template <int D> struct weight_group_shared {
    group_tiles<D> tiles;
    bf16 w[BLOCK_ROWS * shape<D>::STRIDE];
    label_note notes[GROUP_STAGES][HOPPER_TILE];
    int last;
};

/* Dynamic shared memory from a multiple of 1024 bytes on; launches ask for as many more. */
template <typename S> static __device__ inline S *aligned_shared(char *room)
{
    return reinterpret_cast<S *>(room + (1024 - cuda_shared_address(room) % 1024) % 1024);
}

/* HOPPER_TILE neighbouring rows to a tile; zero from row `rows` and from column `width` on. */
template <int D>
static __device__ inline void tile_async(bf16 *to, const bf16 *from, int width, int rows, int thread)
{
    enum { PIECES = D / 8, AT_ONCE = GROUPS_THREADS / PIECES, TIMES = HOPPER_TILE / AT_ONCE };
    static_assert(AT_ONCE % 8 == 0, "a thread's rows have one place modulo 8");
    int c = thread % PIECES * 8, r = thread / PIECES;
    const bf16 *row = from + r * width + c;
    to += group_place<HOPPER_TILE>(r, c);
    if (rows >= HOPPER_TILE && width == D) {
#pragma unroll
        for (int i = 0; i < TIMES; i++)
            copy_async16(to + i * AT_ONCE * GROUP_PANEL, row + i * AT_ONCE * D, true);
        return;
    }
#pragma unroll 1
    for (int i = 0; i < TIMES; i++) {
        bool valid = c < width && r + i * AT_ONCE < rows;
        copy_async16(to + i * AT_ONCE * GROUP_PANEL, valid ? row + i * AT_ONCE * width : from, valid);
    }
}

/* The warp's 16 rows from shared rows of D + PAD, as left operands. */
template <int D> static __device__ inline void load_left(uint32_t (&a)[D / 16][4], const bf16 *rows)
{
    int lane = (int)threadIdx.x % 32;
    rows += ((int)threadIdx.x / 32 * 16 + lane % 16) * shape<D>::STRIDE + lane / 16 * 8;
#pragma unroll
    for (int k = 0; k < D / 16; k++) ldmatrix_x4(a[k], rows + k * 16);
}

/* s = left (half a tile)^T, begun. */
template <int D>
static __device__ inline void begin_logits(float (&s)[1][HALF / 8][4], uint32_t (&left)[D / 16][4],
                                           const bf16 *half)
{
    group_hold(s[0]);
    group_begin();
#pragma unroll
    for (int k = 0; k < D / 16; k++)
        group_multiply<false>(s[0], left[k], group_operand<HOPPER_TILE, false>(half, k * 16), k > 0);
    group_commit();
}

/* o += p (half a tile), begun. */
template <int D>
static __device__ inline void begin_product(float (&o)[1][D / 8][4], uint32_t (&p)[1][HALF / 16][4],
                                            const bf16 *half)
{
    group_hold(o[0]), group_hold(p[0]);
    group_begin();
#pragma unroll
    for (int k = 0; k < HALF / 16; k++)
        group_multiply<true>(o[0], p[0][k], group_operand<HOPPER_TILE, true>(half, k * 16), true);
    group_commit();
}

/* What happens to half a tile once the products that make the next half's logits are begun: its logits s
 * become weights p and their product with it is begun. Ends when the next half's logits are there. */
template <int D, bool PRODUCT, typename WEIGH, typename SETTLE>
static __device__ inline void pass_half(float (&s)[1][HALF / 8][4], float (&next)[1][HALF / 8][4],
                                        uint32_t (&p)[1][HALF / 16][4], float (&o)[1][D / 8][4],
                                        const bf16 *half, int first, WEIGH weigh, SETTLE settle)
{
    weigh(s, first);
    if (PRODUCT) {
        settle();
        group_wait<1>(); /* the product of the half before */
        group_hold(p[0]);
        weights_of(s, p);
        begin_product<D>(o, p, half);
    }
    group_wait<PRODUCT ? 1 : 0>();
    group_hold(next[0]);
}

/* Tiles `tile` .. `last` - 1 (at least one), the first of which has arrived for all and the second is on its
 * way: o += weights of left tile^T, times tile. weigh(s, row, stage) makes weights of the logits of rows
 * `row`
 * .. of the tile in `stage`, settle() is called when o may be touched after that. */
template <int D, bool PRODUCT, typename FETCH, typename WEIGH, typename SETTLE>
static __device__ inline void pass_tiles(const group_tiles<D> &tiles, uint32_t (&left)[D / 16][4], int tile,
                                         int last, FETCH fetch, WEIGH weigh, SETTLE settle,
                                         float (&o)[1][D / 8][4])
{
    float s[1][HALF / 8][4], t[1][HALF / 8][4];
    uint32_t p[1][HALF / 16][4];
    group_hold(left);
    begin_logits<D>(s, left, tiles.rows[0]);
    group_wait<0>();
    group_hold(s[0]);
    for (int stage = 0; tile < last; tile++) {
        int next = (stage + 1) % GROUP_STAGES;
        const bf16 *upper = tiles.rows[stage], *lower = upper + HALF * GROUP_PANEL;
        auto weigh_here = [&](float(&z)[1][HALF / 8][4], int first) { weigh(z, tile, first, stage); };
        begin_logits<D>(t, left, lower);
        pass_half<D, PRODUCT>(s, t, p, o, upper, 0, weigh_here, settle);
        copy_async_wait<0>();
        group_publish();
        __syncthreads(); /* the next tile has arrived for all, and all are done with the one before */
        fetch(tile + 2, (stage + 2) % GROUP_STAGES);
        copy_async_commit();
        begin_logits<D>(s, left, tiles.rows[next]); /* of no use after the last tile */
        pass_half<D, PRODUCT>(t, s, p, o, lower, HALF, weigh_here, settle);
        stage = next;
    }
    group_wait<0>();
    group_hold(o[0]);
}

/* Grid (splits, blocks of labels). */
template <int D, bool BACKWARD, bool BEST>
__global__ void __launch_bounds__(GROUPS_THREADS, 1) xent_scan_group_kernel(xent_block b)
{
    CUDA_DYNAMIC_SHARED(char, room);
    scan_group_shared<D> *shared = aligned_shared<scan_group_shared<D>>(room);
    cuda_wait_previous();
    const xent_args &a = b.a;
    int thread = (int)threadIdx.x;
    int tile = (int)(b.tiles * blockIdx.x / b.splits), last = (int)(b.tiles * (blockIdx.x + 1) / b.splits);
    auto fetch = [&](int which, int stage) {
        if (which < last)
            tile_async<D>(shared->tiles.rows[stage],
                          (const bf16 *)a.weight + (int64_t)which * HOPPER_TILE * a.width, (int)a.width,
                          (int)a.vocab - which * HOPPER_TILE, thread);
    };
    fetch(tile, 0); /* needs nothing that has to be read first */
    int64_t count = label_count(a), first = (int64_t)blockIdx.y * BLOCK_ROWS, row0 = first + thread / 32 * 16;
    if (BACKWARD) scan_clear(b);
    if (first >= count) return;
    scan_gather(a, shared->labels, first, count);
    copy_async_commit();
    fetch(tile + 1, 1);
    copy_async_commit();
    scan_note_targets(a, shared->labels, first, count);
    copy_async_wait<1>();
    group_publish();
    __syncthreads();
    uint32_t x[D / 16][4];
    load_left<D>(x, shared->labels.x);
    scan_rows<1> rows;
    scan_start(rows);
    float o[1][D / 8][4] = {}, factor[1][2];
    bool raised = false;
    pass_tiles<D, BACKWARD>(
        shared->tiles, x, tile, last, fetch,
        [&](float(&s)[1][HALF / 8][4], int which, int from, int) {
            raised = scan_softmax<BACKWARD, BEST>(b, shared->labels, s, which * HOPPER_TILE + from, row0,
                                                  count, rows, factor);
            group_known(rows.sum[0][0] + rows.sum[0][1]);
        },
        [&] {
            if (!raised) return;
            group_wait<0>();
            group_hold(o[0]);
            scale_rows(o, factor);
            group_hold(o[0]);
        },
        o);
    scan_stats(rows, b.stats + blockIdx.x * b.padded + row0);
    if (BACKWARD) scan_sums(b, shared->labels, row0, o);
}

/* Grid (blocks of the vocabulary, label_splits). */
template <int D> __global__ void __launch_bounds__(GROUPS_THREADS, 1) xent_weight_group_kernel(xent_block b)
{
    CUDA_DYNAMIC_SHARED(char, room);
    weight_group_shared<D> *shared = aligned_shared<weight_group_shared<D>>(room);
    cuda_wait_previous();
    int thread = (int)threadIdx.x, width = (int)b.a.width;
    int first = (int)blockIdx.x * BLOCK_ROWS, row0 = first + thread / 32 * 16;
    int64_t count = label_count(b.a), tiles = kernel_blocks(count, HOPPER_TILE);
    int tile = (int)(tiles * blockIdx.y / b.label_splits),
        last = (int)(tiles * (blockIdx.y + 1) / b.label_splits);
    auto fetch = [&](int which, int stage) {
        if (which < last) {
            int64_t label = (int64_t)which * HOPPER_TILE;
            int rows = (int)kernel_min(HOPPER_TILE, count - label);
            tile_async<D>(shared->tiles.rows[stage], b.x + label * width, width, rows, thread);
            if (thread < HOPPER_TILE) /* no label: a row of zeros, whatever its note */
                copy_async16(shared->notes[stage] + thread, b.notes + label + (thread < rows ? thread : 0),
                             thread < rows);
        }
    };
    rows_async<D, BLOCK_ROWS, GROUPS_THREADS>(shared->w, (const bf16 *)b.a.weight + (int64_t)first * width,
                                              width, (int)b.a.vocab - first, thread);
    fetch(tile, 0);
    copy_async_commit();
    fetch(tile + 1, 1);
    copy_async_commit();
    copy_async_wait<1>();
    group_publish();
    __syncthreads();
    uint32_t w[D / 16][4];
    load_left<D>(w, shared->w);
    float o[1][D / 8][4] = {};
    if (tile < last)
        pass_tiles<D, true>(
            shared->tiles, w, tile, last, fetch,
            [&](float(&s)[1][HALF / 8][4], int, int from, int stage) {
                weight_gradient(s, shared->notes[stage] + from, row0);
            },
            [] {}, o);
    weight_finish<GROUPS_THREADS>(b, shared->last, first, row0, o);
}

/* ---- entries for cuda.cu ---- */
bool xent_hopper_usable(void)
{
    int device = 0, major = 0, minor = 0;
    cudaFuncAttributes attributes;
    bool usable =
        cudaGetDevice(&device) == cudaSuccess &&
        cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
        cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) == cudaSuccess &&
        major == 9 && minor == 0 &&
        cudaFuncGetAttributes(&attributes, (const void *)xent_weight_group_kernel<128>) == cudaSuccess;
    (void)cudaGetLastError();
    return usable;
}

template <int D> static void scan_labels_of(const kernel_run *run, const xent_block &b, int backward)
{
    auto scan = !backward    ? xent_scan_group_kernel<D, false, true>
                : b.a.argmax ? xent_scan_group_kernel<D, true, true>
                             : xent_scan_group_kernel<D, true, false>;
    cuda_launch_early(run->early, scan, dim3((unsigned)b.splits, (unsigned)(b.padded / BLOCK_ROWS)),
                      dim3(GROUPS_THREADS), sizeof(scan_group_shared<D>) + 1024, (cudaStream_t)run->stream,
                      b);
}

template <int D> static void weight_of(const kernel_run *run, const xent_block &b)
{
    cuda_launch_early(run->early, xent_weight_group_kernel<D>,
                      dim3((unsigned)kernel_blocks(b.a.vocab, BLOCK_ROWS), (unsigned)b.label_splits),
                      dim3(GROUPS_THREADS), sizeof(weight_group_shared<D>) + 1024, (cudaStream_t)run->stream,
                      b);
}

void xent_hopper_scan(const kernel_run *run, const xent_block &b, int backward)
{
    b.a.width <= 64 ? scan_labels_of<64>(run, b, backward) : scan_labels_of<128>(run, b, backward);
}
void xent_hopper_weight(const kernel_run *run, const xent_block &b)
{
    b.a.width <= 64 ? weight_of<64>(run, b) : weight_of<128>(run, b);
}
