/* Last kernel of the fused head: d_weight, from logits computed once more now that every label's sum is
 * known. Rows that stay are of the vocabulary, rows that pass are labels. */
#ifndef BLURRY_KERNELS_XENT_CUDA_WEIGHT_CUH
#define BLURRY_KERNELS_XENT_CUDA_WEIGHT_CUH
#include "kernels/xent/cuda_shape.cuh"

template <int D> struct weight_shared {
    bf16 w[BLOCK_ROWS * shape<D>::STRIDE];
    bf16 x[STAGES][TILE * shape<D>::STRIDE];
    label_note notes[STAGES][TILE];
    int last;
};

/* Logits s of rows `row0` .. and labels `notes` .. to the gradient of the logits over grad_scale. */
template <int R, int N>
static __device__ inline void weight_gradient(float (&s)[R][N][4], const label_note *notes, int row0)
{
    int lane = (int)threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float k = notes[n * 8 + 2 * t + i].log2_sum;
#pragma unroll
            for (int m = 0; m < R; m++)
#pragma unroll
                for (int half = 0; half < 2; half++)
                    s[m][n][2 * half + i] = exp2_fast(fmaf(s[m][n][2 * half + i], LOG2_E, -k));
        }
#pragma unroll
    for (int n0 = 0; n0 < N; n0 += 4) { /* a label for each lane */
        int mine = notes[n0 * 8 + lane].target - row0;
        if (!__any_sync(CUDA_FULL_WARP, mine >= 0 && mine < 16 * R)) continue;
#pragma unroll
        for (int n = n0; n < n0 + 4; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const label_note &note = notes[n * 8 + 2 * t + i % 2];
                int r = note.target - row0;
#pragma unroll
                for (int m = 0; m < R; m++)
                    if (r == m * 16 + i / 2 * 8 + g) s[m][n][i] = -note.missing;
            }
    }
}

/* o += the gradient of the tile's logits times the tile. */
template <int D>
static __device__ inline void weight_tile(const weight_shared<D> &shared, int stage, int row0,
                                          float (&o)[ROW_TILES][D / 8][4])
{
    const bf16 *w = shared.w + (int)threadIdx.x / 32 * WARP_ROWS * shape<D>::STRIDE;
#pragma unroll 1
    for (int from = 0; from < TILE; from += WARP_TILE) {
        const bf16 *x = shared.x[stage] + from * shape<D>::STRIDE;
        warp_logits s;
        warp_weights p;
        logits_of<D>(w, x, s);
        weight_gradient(s, shared.notes[stage] + from, row0);
        weights_of(s, p);
        product_of<D>(p, x, o);
    }
}

/* The warp's rows of `to` [vocab, width] = (add: +=) scale * o. */
template <int R, int N>
static __device__ inline void weight_store(const xent_block &b, float *to, bool add, float scale,
                                           int64_t row0, const float (&o)[R][N][4])
{
    int lane = (int)threadIdx.x % 32, g = lane / 4, t = lane % 4;
    to += (int64_t)(row0 + g) * b.a.width + 2 * t;
#pragma unroll
    for (int m = 0; m < R; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int r = m * 16 + half * 8;
            if (row0 + r + g >= b.a.vocab) continue;
            float2 old[N]; /* all loads of a row before its first store */
#pragma unroll
            for (int n = 0; n < N; n++)
                old[n] = add && n * 8 < b.a.width
                             ? *reinterpret_cast<const float2 *>(to + r * b.a.width + n * 8)
                             : make_float2(0, 0);
#pragma unroll
            for (int n = 0; n < N; n++)
                if (n * 8 < b.a.width)
                    *reinterpret_cast<float2 *>(to + r * b.a.width + n * 8) = make_float2(
                        old[n].x + scale * o[m][n][2 * half], old[n].y + scale * o[m][n][2 * half + 1]);
        }
}

/* The block of these rows that ends last adds up what all have left, in their order. */
template <int THREADS> static __device__ inline void weight_join(const xent_block &b, int &last, int first)
{
    enum { AT_ONCE = 4, STEP = 4 * THREADS }; /* loads under way, and elements between them */
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) last = atomicAdd(b.arrived + blockIdx.x, 1) == (int)b.label_splits - 1;
    __syncthreads();
    if (!last) return;
    __threadfence();
    int64_t size = b.a.vocab * b.a.width, end = kernel_min(BLOCK_ROWS, b.a.vocab - first) * b.a.width;
    const float *from = b.weight_parts + first * b.a.width;
    float *to = (float *)b.a.d_weight + first * b.a.width, sum[AT_ONCE][4], x[4];
    for (int64_t i = threadIdx.x * 4; i < end; i += AT_ONCE * STEP) {
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++)
            if (i + k * STEP < end) load_many<4>((const float *)to + i + k * STEP, sum[k]);
#pragma unroll 4
        for (int s = 0; s < b.label_splits; s++)
#pragma unroll
            for (int k = 0; k < AT_ONCE; k++) {
                if (i + k * STEP >= end) continue;
                load_many<4>(from + s * size + i + k * STEP, x);
#pragma unroll
                for (int n = 0; n < 4; n++) sum[k][n] += x[n];
            }
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++)
            if (i + k * STEP < end) store_many<4>(to + i + k * STEP, sum[k]);
    }
}

/* What a block does with the gradients o of its rows `first` .., a warp having those from row0 on. */
template <int THREADS, int R, int N>
static __device__ inline void weight_finish(const xent_block &b, int &last, int first, int row0,
                                            const float (&o)[R][N][4])
{
    float scale = (float)*b.a.grad_scale;
    if (b.label_splits == 1) return weight_store(b, (float *)b.a.d_weight, true, scale, row0, o);
    weight_store(b, b.weight_parts + blockIdx.y * b.a.vocab * b.a.width, false, scale, row0, o);
    weight_join<THREADS>(b, last, first);
}

/* Grid (blocks of the vocabulary, label_splits). */
template <int D>
__global__ void __launch_bounds__(FUSED_THREADS, shape<D>::BLOCKS) xent_weight_kernel(xent_block b)
{
    CUDA_DYNAMIC_SHARED(weight_shared<D>, shared);
    cuda_wait_previous();
    int thread = (int)threadIdx.x, width = (int)b.a.width;
    int first = (int)blockIdx.x * BLOCK_ROWS, row0 = first + thread / 32 * WARP_ROWS;
    int64_t count = label_count(b.a), tiles = kernel_blocks(count, TILE);
    int tile = (int)(tiles * blockIdx.y / b.label_splits),
        last = (int)(tiles * (blockIdx.y + 1) / b.label_splits);
    auto fetch = [&](int which, int stage) {
        if (which < last) {
            int64_t label = (int64_t)which * TILE;
            int rows = (int)kernel_min(TILE, count - label);
            rows_async<D, TILE>(shared->x[stage], b.x + label * width, width, rows, thread);
            if (thread < TILE) /* no label: a row of zeros, whatever its note */
                copy_async16(shared->notes[stage] + thread, b.notes + label + (thread < rows ? thread : 0),
                             thread < rows);
        }
        copy_async_commit();
    };
    rows_async<D, BLOCK_ROWS>(shared->w, (const bf16 *)b.a.weight + (int64_t)first * width, width,
                              (int)b.a.vocab - first, thread);
    for (int s = 0; s < STAGES - 1; s++) fetch(tile + s, s);
    float o[ROW_TILES][D / 8][4] = {};
    for (int stage = 0; tile < last; tile++, stage = (stage + 1) % STAGES) {
        copy_async_wait<STAGES - 2>();
        __syncthreads(); /* the tile has arrived for all, and all are done with the one before */
        fetch(tile + STAGES - 1, (stage + STAGES - 1) % STAGES);
        weight_tile<D>(*shared, stage, row0, o);
    }
    weight_finish<FUSED_THREADS>(b, shared->last, first, row0, o);
}

#endif
