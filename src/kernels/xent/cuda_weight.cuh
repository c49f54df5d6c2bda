/* Last kernel of the fused head: d_weight, from logits computed once more now that every label's sum is
 * known. Rows that stay are of the vocabulary, rows that pass are labels. */
#ifndef BLURRY_KERNELS_XENT_CUDA_WEIGHT_CUH
#define BLURRY_KERNELS_XENT_CUDA_WEIGHT_CUH
#include "kernels/xent/cuda_shape.cuh"

template <int D> struct weight_shared {
    bf16 w[BLOCK_ROWS * shape<D>::STRIDE];
    bf16 x[STAGES][TILE * shape<D>::STRIDE];
    label_note notes[STAGES][TILE];
    weights_room weights[GROUPS * (shape<D>::PARTS - 1) + 1][2]; /* with two parts: of each warp */
    int last;
};

/* Logits s of rows `row0` .. and labels `notes` .. to the gradient of the logits over grad_scale. */
static __device__ inline void weight_gradient(warp_logits &s, const label_note *notes, int row0)
{
    int lane = (int)threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int n = 0; n < WARP_TILE / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float k = notes[n * 8 + 2 * t + i % 2].log2_sum;
#pragma unroll
            for (int m = 0; m < ROW_TILES; m++) s[m][n][i] = exp2_fast(fmaf(s[m][n][i], LOG2_E, -k));
        }
    int mine = notes[lane].target - row0;
    if (!__any_sync(CUDA_FULL_WARP, mine >= 0 && mine < WARP_ROWS)) return;
#pragma unroll
    for (int n = 0; n < WARP_TILE / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const label_note &note = notes[n * 8 + 2 * t + i % 2];
            int r = note.target - row0;
#pragma unroll
            for (int m = 0; m < ROW_TILES; m++)
                if (r == m * 16 + i / 2 * 8 + g) s[m][n][i] = -note.missing;
        }
}

/* o += the gradient of the tile's logits times the tile. */
template <int D>
static __device__ inline void weight_tile(weight_shared<D> &shared, const bf16 *w, int stage, int row0,
                                          float (&o)[ROW_TILES][shape<D>::COLUMNS / 8][4])
{
    enum { PARTS = shape<D>::PARTS, STRIDE = shape<D>::STRIDE };
    int warp = (int)threadIdx.x / 32, group = warp / PARTS, part = warp % PARTS;
    const bf16 *x = shared.x[stage];
    int column = part * shape<D>::COLUMNS;
#pragma unroll 1
    for (int c = 0; c < TILE; c += WARP_TILE * PARTS) {
        int from = c + part * WARP_TILE;
        warp_logits s;
        warp_weights p;
        logits_of<D>(w, x + from * STRIDE, s);
        weight_gradient(s, shared.notes[stage] + from, row0);
        weights_of(s, p);
        if constexpr (PARTS == 2) {
            put_weights(p, shared.weights[group][part]);
            meet(group);
        }
        product_of<D>(p, x + from * STRIDE, column, o);
        if constexpr (PARTS == 2) {
            get_weights(p, shared.weights[group][part ^ 1]);
            product_of<D>(p, x + (part ^ 1) * WARP_TILE * STRIDE, column, o);
        }
    }
}

/* The warp's rows of `to` [vocab, width] = (add: +=) scale * o. */
template <int D>
static __device__ inline void weight_store(const xent_block &b, float *to, bool add, float scale,
                                           int64_t row0, int column,
                                           const float (&o)[ROW_TILES][shape<D>::COLUMNS / 8][4])
{
    enum { N = shape<D>::COLUMNS / 8 };
    int lane = (int)threadIdx.x % 32, g = lane / 4, t = lane % 4;
    to += (int64_t)(row0 + g) * b.a.width + column + 2 * t;
#pragma unroll
    for (int m = 0; m < ROW_TILES; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int r = m * 16 + half * 8;
            if (row0 + r + g >= b.a.vocab) continue;
            float2 old[N]; /* all loads of a row before its first store */
#pragma unroll
            for (int n = 0; n < N; n++)
                old[n] = add && column + n * 8 < b.a.width
                             ? *reinterpret_cast<const float2 *>(to + r * b.a.width + n * 8)
                             : make_float2(0, 0);
#pragma unroll
            for (int n = 0; n < N; n++)
                if (column + n * 8 < b.a.width)
                    *reinterpret_cast<float2 *>(to + r * b.a.width + n * 8) = make_float2(
                        old[n].x + scale * o[m][n][2 * half], old[n].y + scale * o[m][n][2 * half + 1]);
        }
}

/* The block of these rows that ends last adds up what all have left, in their order. */
template <int D> static __device__ inline void weight_join(const xent_block &b, int &last, int first)
{
    enum { THREADS = shape<D>::THREADS };
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) last = atomicAdd(b.arrived + blockIdx.x, 1) == (int)b.label_splits - 1;
    __syncthreads();
    if (!last) return;
    __threadfence();
    int64_t rows = kernel_min(BLOCK_ROWS, b.a.vocab - first), size = b.a.vocab * b.a.width;
    const float *from = b.weight_parts + first * b.a.width;
    float *to = (float *)b.a.d_weight + first * b.a.width;
#pragma unroll 2
    for (int64_t i = threadIdx.x * 4; i < rows * b.a.width; i += THREADS * 4) {
        float sum[4], x[4];
        load_many<4>((const float *)to + i, sum);
#pragma unroll 4
        for (int s = 0; s < b.label_splits; s++) {
            load_many<4>(from + s * size + i, x);
            for (int n = 0; n < 4; n++) sum[n] += x[n];
        }
        store_many<4>(to + i, sum);
    }
}

/* Grid (blocks of the vocabulary, label_splits). */
template <int D>
__global__ void __launch_bounds__(shape<D>::THREADS, D == 64 ? 4 : 2) xent_weight_kernel(xent_block b)
{
    enum { THREADS = shape<D>::THREADS, PARTS = shape<D>::PARTS };
    CUDA_DYNAMIC_SHARED(weight_shared<D>, shared);
    cuda_wait_previous();
    int thread = (int)threadIdx.x, warp = thread / 32, width = (int)b.a.width;
    int first = (int)blockIdx.x * BLOCK_ROWS, row0 = first + warp / PARTS * WARP_ROWS;
    int64_t count = label_count(b.a), tiles = kernel_blocks(count, TILE);
    int tile = (int)(tiles * blockIdx.y / b.label_splits),
        last = (int)(tiles * (blockIdx.y + 1) / b.label_splits);
    auto fetch = [&](int which, int stage) {
        if (which < last) {
            int64_t label = (int64_t)which * TILE;
            int rows = (int)kernel_min(TILE, count - label);
            rows_async<D, TILE, THREADS>(shared->x[stage], b.x + label * width, width, rows, thread);
            if (thread < TILE) /* no label: a row of zeros, whatever its note */
                copy_async16(shared->notes[stage] + thread, b.notes + label + (thread < rows ? thread : 0),
                             thread < rows);
        }
        copy_async_commit();
    };
    rows_async<D, BLOCK_ROWS, THREADS>(shared->w, (const bf16 *)b.a.weight + (int64_t)first * width, width,
                                       (int)b.a.vocab - first, thread);
    for (int s = 0; s < STAGES - 1; s++) fetch(tile + s, s);
    float o[ROW_TILES][shape<D>::COLUMNS / 8][4] = {};
    const bf16 *w = shared->w + warp / PARTS * WARP_ROWS * shape<D>::STRIDE;
    for (int stage = 0; tile < last; tile++, stage = (stage + 1) % STAGES) {
        copy_async_wait<STAGES - 2>();
        __syncthreads(); /* the tile has arrived for all, and all are done with the one before */
        fetch(tile + STAGES - 1, (stage + STAGES - 1) % STAGES);
        weight_tile<D>(*shared, w, stage, row0, o);
    }
    int column = warp % PARTS * shape<D>::COLUMNS;
    float scale = (float)*b.a.grad_scale;
    if (b.label_splits == 1) return weight_store<D>(b, (float *)b.a.d_weight, true, scale, row0, column, o);
    weight_store<D>(b, b.weight_parts + blockIdx.y * b.a.vocab * width, false, scale, row0, column, o);
    weight_join<D>(b, shared->last, first);
}

#endif
