/* Host side of the float kernels: which shapes they cover, windows, tables and the scan between chunks. */
#include "kernels/blurry/cuda_chunk.cuh"
#include "base/sizes.h"
#include "kernels/blurry/cuda_fast.h"
#include "kernels/blurry/cuda_weights.cuh"

/* States of a window: enough blocks to fill the chip some times over. */
enum { STATES_PER_PROCESSOR = 16 };

/* ---- coverage ---- */

const chunk_kernels *chunk_find(const bla_shape *s, bool is_bf16)
{
    int64_t widest = s->Dk > s->Dv ? s->Dk : s->Dv;
    if (s->relative || s->S > 256 || widest > 128 || s->Dk % 4 || s->Dv % 4) return NULL;
    if (s->H > 1 << 16) return NULL; /* 64 tokens within the range of int */
    for (int64_t h = 0; s->decay && h < s->Hkv; h++) {
        bool same = h > 0 && s->period[h] == s->period[h - 1];
        if (!same && fast_gates_range(s->S, s->period[h], CHUNK_GATE_LEAST) < -108) return NULL;
    }
    int slots = s->S <= 64 ? 64 : s->S <= 128 ? 128 : 256;
    return widest <= 32   ? chunk_kernels_32(slots, is_bf16)
           : widest <= 64 ? chunk_kernels_64(slots, is_bf16)
                          : chunk_kernels_128(slots, is_bf16);
}

/* ---- tables ---- */

/* grid: span, periods, sequences (1 where all start at 0). Shared memory with decay: gates [64, SP] and their
 * running products. In double: 1 - phi may be small, and 64 factors in float would cost several roundings. */
static __global__ void __launch_bounds__(CHUNK_THREADS) chunk_entries_kernel(bla_call c, chunk_run r, int SP)
{
    CUDA_DYNAMIC_SHARED(double, gates);
    __shared__ bla_position at[CHUNK_TOKENS];
    int64_t h = 0, chunk = r.chunk0 + blockIdx.x;
    while (c.periods[h].loose != (int)blockIdx.y) h++;
    bla_chain x = bla_chain_of(c, (r.sequence0 + blockIdx.z) * c.Hkv + h);
    if (c.positions && chunk * CHUNK_TOKENS >= x.count) return;
    int64_t t0 = x.position + chunk * CHUNK_TOKENS;
    if (threadIdx.x < CHUNK_TOKENS) at[threadIdx.x] = bla_position_of(c.S, c.periods[h].T, t0 + threadIdx.x);
    __syncthreads();
    const int all = CHUNK_TOKENS * SP;
    float *P = (float *)chunk_entry(c, r, x, chunk, SP), *running = P + all;
    for (int i = threadIdx.x; i < all; i += CHUNK_THREADS) {
        double weight = i % SP < c.S ? bla_weight(c.S, at[i / SP], i % SP) : 0.0;
        P[i] = (float)weight;
        if (c.decay) gates[i] = fmax(1.0 - weight, (double)CHUNK_GATE_LEAST);
    }
    __syncthreads();
    if (!c.decay) return;
    for (int j = threadIdx.x; j < SP; j += CHUNK_THREADS) {
        double product = CHUNK_START;
        for (int i = j; i < all; i += SP) gates[i] = product *= gates[i];
    }
    __syncthreads();
    for (int i = threadIdx.x; i < all; i += CHUNK_THREADS)
        running[i] = (float)gates[i], P[i] = (float)(P[i] / gates[i]);
}

/* ---- the scan ---- */

/* Four elements of the caller's slots [Hkv, S, width] at (j, d). */
static __device__ inline float *chunk_caller_slots(const bla_call &c, const bla_state &s, const bla_chain &x,
                                                   int side, int j, int d)
{
    return side ? s.v + x.b * s.stride_v + (x.h * c.S + j) * c.Dv + d
                : s.k + x.b * s.stride_k + (x.h * c.S + j) * c.Dk + d;
}

/* Replaces what the window's chunks add to the slots by the slots before them, or (backwards) what they pull
 * at the gradient of the slots by the gradient after them times what they keep. Threads have four elements
 * each and load ahead of the sum. grid: elements, chains. */
static __global__ void __launch_bounds__(CHUNK_THREADS)
    chunk_scan_kernel(bla_call c, chunk_run r, int SP, int D, int backwards)
{
    const int AHEAD = 16;
    int i = blockIdx.x * CHUNK_THREADS + threadIdx.x;
    if (i >= SP * D / 2) return;
    const int side = i / (SP * D / 4), j = i / (D / 4) % SP, d = i % (D / 4) * 4, floats = 2 * SP * D;
    const bla_chain x = bla_chain_of(c, r.sequence0 * c.Hkv + blockIdx.y);
    const bla_state &from = backwards ? c.d_out : c.in, &to = backwards ? c.d_in : c.out;
    const bool mine = j < c.S && d < (side ? c.Dv : c.Dk), first = r.chunk0 == 0, last = r.last;
    const float in = !c.decay ? 1.0f : backwards ? CHUNK_START : CHUNK_UNIT;
    const float out = !c.decay ? 1.0f : backwards ? CHUNK_UNIT : CHUNK_START;
    float4 *carry = (float4 *)(r.carry + blockIdx.y * (int64_t)floats) + i;
    float4 running = make_float4(0, 0, 0, 0);
    if (!(backwards ? last : first)) {
        running = *carry;
    } else if (from.k && mine) {
        const float *y = chunk_caller_slots(c, from, x, side, j, d);
        running = make_float4(in * y[0], in * y[1], in * y[2], in * y[3]);
    }
    int64_t total = (x.count + CHUNK_TOKENS - 1) / CHUNK_TOKENS;
    int64_t n = min(r.span, max(total - r.chunk0, (int64_t)0)); /* of this window */
    for (int64_t done = 0; done < n; done += AHEAD) {
        float4 *at[AHEAD], add[AHEAD];
        float keep[AHEAD];
#pragma unroll
        for (int a = 0; a < AHEAD; a++) {
            int64_t step = min(done + a, n - 1); /* beyond the last: loaded, not used */
            int64_t chunk = r.chunk0 + (backwards ? n - 1 - step : step);
            int64_t index = chunk_index(c, r, x, chunk, !backwards && r.every);
            int tokens = (int)min((int64_t)CHUNK_TOKENS, x.count - chunk * CHUNK_TOKENS);
            at[a] = (float4 *)((backwards ? r.pulls : r.states) + index * floats) + i;
            add[a] = *at[a];
            keep[a] = c.decay
                          ? CHUNK_UNIT * chunk_entry(c, r, x, chunk, SP)[(CHUNK_TOKENS + tokens - 1) * SP + j]
                          : 1.0f;
        }
#pragma unroll
        for (int a = 0; a < AHEAD; a++) {
            if (done + a >= n) break;
            float before = backwards ? keep[a] : 1.0f, after = backwards ? 1.0f : keep[a];
            running.x *= before, running.y *= before, running.z *= before, running.w *= before;
            *at[a] = running;
            running.x = after * (running.x + add[a].x), running.y = after * (running.y + add[a].y);
            running.z = after * (running.z + add[a].z), running.w = after * (running.w + add[a].w);
        }
    }
    if (!(backwards ? first : last)) {
        *carry = running;
    } else if (to.k && mine) {
        float *y = chunk_caller_slots(c, to, x, side, j, d);
        y[0] = out * running.x, y[1] = out * running.y, y[2] = out * running.z, y[3] = out * running.w;
    }
}

/* ---- windows ---- */

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}
static int64_t chunks_of(int64_t tokens)
{
    return tokens > CHUNK_TOKENS ? (tokens + CHUNK_TOKENS - 1) / CHUNK_TOKENS : 1;
}

/* Most states of a window, at least one of each head. */
static int64_t window_states(const bla_shape *s, int multiprocessors)
{
    int64_t most = STATES_PER_PROCESSOR * (int64_t)multiprocessors, chains = s->batch * s->Hkv;
    if (chains > 0 && chunks_of(s->tokens) < most / chains) most = chains * chunks_of(s->tokens);
    return most > s->Hkv ? most : s->Hkv;
}

static int distinct_periods(const bla_shape *s)
{
    int n = 0;
    for (int64_t h = 0; h < s->Hkv; h++) {
        int64_t i = 0;
        while (s->period[i] != s->period[h]) i++;
        n += i == h;
    }
    return n;
}

struct chunk_memory {
    char *base;
    size_t used;
};
static float *chunk_carve(chunk_memory *m, int64_t n, int64_t floats)
{
    char *at = m->base ? m->base + m->used : NULL;
    m->used = size_add(m->used, size_align(size_mul(size_of(n, (size_t)floats), sizeof(float))));
    return (float *)at;
}

/* Lays out the workspace (base NULL: measures it). */
static chunk_run lay_out(const chunk_kernels *k, const bla_shape *s, int multiprocessors, bool backward,
                         chunk_memory *m)
{
    chunk_run r = {};
    int64_t states = window_states(s, multiprocessors), state = 2 * (int64_t)k->SP * k->D;
    int64_t all = (s->tokens / CHUNK_TOKENS + s->batch + 1) * s->Hkv;
    r.periods = distinct_periods(s), r.every = backward;
    r.entries = chunk_carve(m, states / s->Hkv * r.periods, chunk_entry_floats(k->SP, s->decay));
    r.carry = chunk_carve(m, least(s->batch * s->Hkv, states), state);
    r.states = chunk_carve(m, backward ? all : states, state);
    if (backward) r.pulls = chunk_carve(m, states, state);
    return r;
}

static size_t workspace_of(const bla_shape *s, bool is_bf16, int multiprocessors, bool backward)
{
    const chunk_kernels *k = chunk_find(s, is_bf16);
    chunk_memory m = {NULL, 0};
    if (k) (void)lay_out(k, s, multiprocessors, backward, &m);
    return m.used;
}
size_t chunk_forward_workspace(const bla_shape *s, bool is_bf16, int multiprocessors)
{
    return workspace_of(s, is_bf16, multiprocessors, false);
}
size_t chunk_backward_workspace(const bla_shape *s, bool is_bf16, int multiprocessors)
{
    return workspace_of(s, is_bf16, multiprocessors, true);
}

/* ---- calls ---- */

static void make_entries(const chunk_kernels *k, const bla_call *call, const chunk_run *r,
                         cudaStream_t stream)
{
    dim3 grid((unsigned)r->span, (unsigned)r->periods, (unsigned)(call->positions ? r->sequences : 1));
    cuda_launch(chunk_entries_kernel, grid, dim3(CHUNK_THREADS),
                call->decay ? sizeof(double) * CHUNK_TOKENS * (size_t)k->SP : 0, stream, *call, *r, k->SP);
}

static void scan(const chunk_kernels *k, const bla_call *call, const chunk_run *r, int backwards,
                 cudaStream_t stream)
{
    dim3 grid((unsigned)((k->SP * k->D / 2 + CHUNK_THREADS - 1) / CHUNK_THREADS),
              (unsigned)(r->sequences * call->Hkv));
    cuda_launch(chunk_scan_kernel, grid, dim3(CHUNK_THREADS), 0, stream, *call, *r, k->SP, k->D, backwards);
}

/* The slots before every chunk of a window. */
static void find_states(const chunk_kernels *k, const bla_call *call, const chunk_run *r, cudaStream_t stream)
{
    make_entries(k, call, r, stream);
    k->launch(call, r, CHUNK_ADDS, stream);
    scan(k, call, r, 0, stream);
}

/* How a call is cut: groups of `sequences`, each in `count` windows of `span` chunks. */
struct chunk_windows {
    int64_t sequences, span, count, chunks;
};
static chunk_windows windows_of(const bla_shape *s, int64_t n, int64_t longest, int multiprocessors)
{
    chunk_windows w;
    int64_t states = window_states(s, multiprocessors);
    w.chunks = chunks_of(longest);
    w.sequences = least(n, states / s->Hkv);
    int64_t span = least(w.chunks, states / (w.sequences * s->Hkv));
    w.count = (w.chunks + span - 1) / span;
    w.span = (w.chunks + w.count - 1) / w.count; /* of about the same size */
    return w;
}
static void move_window(const chunk_windows *w, int64_t i, chunk_run *r)
{
    r->chunk0 = i * w->span;
    r->span = least(w->span, w->chunks - r->chunk0);
    r->last = i == w->count - 1;
}

void chunk_forward(const chunk_kernels *k, const bla_shape *s, const bla_call *call, int64_t longest,
                   int multiprocessors, void *workspace, cudaStream_t stream)
{
    chunk_memory m = {(char *)workspace, 0};
    chunk_run r = lay_out(k, s, multiprocessors, false, &m);
    int64_t n = call->chains / call->Hkv;
    if (n == 0) return;
    chunk_windows w = windows_of(s, n, longest, multiprocessors);
    for (r.sequence0 = 0; r.sequence0 < n; r.sequence0 += w.sequences) {
        r.sequences = least(w.sequences, n - r.sequence0);
        for (int64_t i = 0; i < w.count; i++) {
            move_window(&w, i, &r);
            find_states(k, call, &r, stream);
            k->launch(call, &r, CHUNK_READ, stream);
        }
    }
}

void chunk_backward(const chunk_kernels *k, const bla_shape *s, const bla_call *call, int64_t longest,
                    int multiprocessors, void *workspace, cudaStream_t stream)
{
    chunk_memory m = {(char *)workspace, 0};
    chunk_run r = lay_out(k, s, multiprocessors, true, &m);
    int64_t n = call->chains / call->Hkv;
    if (n == 0) return;
    chunk_windows w = windows_of(s, n, longest, multiprocessors);
    for (r.sequence0 = 0; r.sequence0 < n; r.sequence0 += w.sequences) {
        r.sequences = least(w.sequences, n - r.sequence0);
        for (int64_t i = 0; i < w.count; i++) {
            move_window(&w, i, &r);
            find_states(k, call, &r, stream);
        }
        for (int64_t i = w.count - 1; i >= 0; i--) { /* the last window's tables are still there */
            move_window(&w, i, &r);
            if (!r.last) make_entries(k, call, &r, stream);
            k->launch(call, &r, CHUNK_GRADIENTS, stream);
            scan(k, call, &r, 1, stream);
            k->launch(call, &r, CHUNK_THROUGH, stream);
        }
    }
}
