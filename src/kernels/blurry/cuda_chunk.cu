/* Host side of the float kernels: which shapes they cover, memory, windows and the order of launches. */
#include "kernels/blurry/cuda_chunk_steps.cuh"
#include "base/sizes.h"
#include "kernels/blurry/cuda_fast.h"

/* The backward pass keeps the slots before every chunk where they are this many windows' worth, else those
 * before every window. */
enum { WINDOWS_KEPT = 4 };

/* ---- coverage ---- */

const chunk_kernels *chunk_find(const bla_shape *s, bool is_bf16)
{
    int64_t widest = s->Dk > s->Dv ? s->Dk : s->Dv;
    if (s->relative || s->S > 256 || widest > 128 || s->Dk % 4 || s->Dv % 4) return NULL;
    if (s->H > 1 << 16) return NULL; /* 64 tokens within the range of int */
    for (int64_t h = 0; s->decay && h < s->Hkv; h++) {
        bool same = h > 0 && s->period[h] == s->period[h - 1];
        if (!same && fast_gates_range(s->S, s->period[h], CHUNK_GATE_LEAST) < -122) return NULL;
    }
    int slots = s->S <= 64 ? 64 : s->S <= 128 ? 128 : 256;
    return widest <= 32   ? chunk_kernels_32(slots, is_bf16)
           : widest <= 64 ? chunk_kernels_64(slots, is_bf16)
                          : chunk_kernels_128(slots, is_bf16);
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

/* Most states of a window, at least one of each head. Where the period's gradient is wanted, all query heads
 * leave rows of about a state's size. */
static int64_t window_states(const bla_shape *s, int64_t most, bool period)
{
    int64_t chains = s->batch * s->Hkv;
    if (period) most /= s->H / s->Hkv;
    if (chains > 0 && chunks_of(s->tokens) < most / chains) most = chains * chunks_of(s->tokens);
    return most > s->Hkv ? most : s->Hkv;
}

/* States of all chunks of a call, at most. */
static int64_t states_of_all(const bla_shape *s)
{
    return (s->tokens / CHUNK_TOKENS + s->batch + 1) * s->Hkv;
}

/* How a call is cut: groups of `sequences`, each in `count` windows of `span` chunks. */
struct chunk_windows {
    int64_t sequences, span, count, chunks;
};
static chunk_windows windows_of(const bla_shape *s, int64_t sequences, int64_t longest, int64_t states)
{
    chunk_windows w;
    w.chunks = chunks_of(longest);
    w.sequences = sequences;
    int64_t span = least(w.chunks, states / (sequences * s->Hkv));
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

/* States before windows that there is room for: those of one sequence, which may have all tokens. */
static int64_t starts_most(const bla_shape *s, int64_t states)
{
    int64_t one = windows_of(s, 1, s->tokens, states).count * s->Hkv, some = WINDOWS_KEPT * states;
    return one > some ? one : some;
}

/* The windows of a backward pass that keeps states before windows only: as many sequences at once as there is
 * room for. */
static chunk_windows windows_kept(const bla_shape *s, int64_t n, int64_t longest, int64_t states)
{
    int64_t sequences = least(n, states / s->Hkv), most = starts_most(s, states);
    chunk_windows w = windows_of(s, sequences, longest, states);
    while (sequences > 1 && w.count * sequences * s->Hkv > most) {
        sequences = (sequences + 1) / 2;
        w = windows_of(s, sequences, longest, states);
    }
    return w;
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

/* Lays out the workspace for windows of so many states (base NULL: measures it). */
static chunk_run lay_out(const chunk_kernels *k, const bla_shape *s, int64_t states, bool backward,
                         bool period, chunk_memory *m)
{
    chunk_run r = {};
    int64_t state = 2 * (int64_t)k->SP * k->D, all = states_of_all(s);
    r.periods = distinct_periods(s), r.every = backward && all <= WINDOWS_KEPT * states;
    r.entries = chunk_carve(m, states / s->Hkv * r.periods, chunk_entry_floats(k->SP, s->decay, period));
    r.carry = r.onwards = chunk_carve(m, least(s->batch * s->Hkv, states), state);
    r.states = chunk_carve(m, r.every ? all : states, state);
    if (backward) r.pulls = chunk_carve(m, states, state);
    if (backward && !r.every) r.starts = chunk_carve(m, starts_most(s, states), state);
    if (!period) return r;
    r.rows = chunk_carve(m, states, s->H / s->Hkv * chunk_rows_floats(k->SP));
    r.sums = (double *)chunk_carve(m, states, 4 * (k->SP / k->period_slots));
    return r;
}

size_t chunk_forward_workspace(const chunk_kernels *k, const bla_shape *s, int64_t states)
{
    chunk_memory m = {NULL, 0};
    (void)lay_out(k, s, window_states(s, states, false), false, false, &m);
    return m.used;
}
size_t chunk_backward_workspace(const chunk_kernels *k, const bla_shape *s, int64_t states, bool period)
{
    chunk_memory m = {NULL, 0};
    (void)lay_out(k, s, window_states(s, states, period), true, period, &m);
    return m.used;
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

/* ---- the period's gradient ---- */

static void add_period(const chunk_kernels *k, const bla_call *call, const chunk_run *r, double *d_period,
                       double *d_period_abs, cudaStream_t stream)
{
    k->launch(call, r, CHUNK_PERIOD, stream);
    cuda_launch(chunk_period_add_kernel, dim3((unsigned)call->Hkv), dim3(CHUNK_THREADS), 0, stream, *call, *r,
                k->SP / k->period_slots, d_period, d_period_abs);
}

void chunk_forward(const chunk_kernels *k, const bla_shape *s, const bla_call *call, int64_t longest,
                   int64_t states, void *workspace, cudaStream_t stream)
{
    chunk_memory m = {(char *)workspace, 0};
    int64_t n = call->chains / call->Hkv;
    states = window_states(s, states, false);
    chunk_run r = lay_out(k, s, states, false, false, &m);
    if (n == 0) return;
    chunk_windows w = windows_of(s, least(n, states / s->Hkv), longest, states);
    for (r.sequence0 = 0; r.sequence0 < n; r.sequence0 += w.sequences) {
        r.sequences = least(w.sequences, n - r.sequence0);
        for (int64_t i = 0; i < w.count; i++) {
            move_window(&w, i, &r);
            find_states(k, call, &r, stream);
            k->launch(call, &r, CHUNK_READ, stream);
        }
    }
}

/* The slots before every chunk of window i, from those before it, and those before the next one. */
static void find_window(const chunk_kernels *k, const bla_call *call, const chunk_windows *w, int64_t i,
                        const chunk_run *r, cudaStream_t stream)
{
    chunk_run from = *r;
    int64_t each = w->sequences * call->Hkv * 2 * (int64_t)k->SP * k->D;
    if (!r->every) from.carry = r->starts + i * each, from.onwards = from.carry + each;
    find_states(k, call, &from, stream);
}

void chunk_backward(const chunk_kernels *k, const bla_shape *s, const bla_call *call, int64_t longest,
                    int64_t states, double *d_period, double *d_period_abs, void *workspace,
                    cudaStream_t stream)
{
    chunk_memory m = {(char *)workspace, 0};
    const bool period = d_period || d_period_abs;
    int64_t n = call->chains / call->Hkv;
    states = window_states(s, states, period);
    chunk_run r = lay_out(k, s, states, true, period, &m);
    if (period)
        cuda_launch(chunk_period_clear_kernel, dim3(1), dim3(CHUNK_THREADS), 0, stream, call->Hkv, d_period,
                    d_period_abs);
    if (n == 0) return;
    chunk_windows w = r.every ? windows_of(s, least(n, states / s->Hkv), longest, states)
                              : windows_kept(s, n, longest, states);
    for (r.sequence0 = 0; r.sequence0 < n; r.sequence0 += w.sequences) {
        r.sequences = least(w.sequences, n - r.sequence0);
        for (int64_t i = 0; i < w.count; i++) {
            move_window(&w, i, &r);
            find_window(k, call, &w, i, &r, stream);
        }
        for (int64_t i = w.count - 1; i >= 0; i--) { /* the last window's tables are still there */
            move_window(&w, i, &r);
            if (!r.last && r.every) make_entries(k, call, &r, stream);
            if (!r.last && !r.every) find_window(k, call, &w, i, &r, stream);
            k->launch(call, &r, CHUNK_GRADIENTS, stream);
            scan(k, call, &r, 1, stream);
            k->launch(call, &r, CHUNK_THROUGH, stream);
            if (period) add_period(k, call, &r, d_period, d_period_abs, stream);
        }
    }
}
