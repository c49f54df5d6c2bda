/* Blurry attention on CUDA: the table entry. Tables are built in prepare; a call is described once as a
 * bla_call and handed to the first of the tensor-core kernels, the float kernels and the plain kernels that
 * covers the shape. The tensor-core kernels do not know the gradient of the period; the plain ones cover
 * all. */
extern "C" {
#include "base/dirichlet.h"
#include "base/status.h"
}
#include "base/sizes.h"
#include "kernels/blurry/cuda_chunk.h"
#include "kernels/blurry/cuda_direct.h"
#include "kernels/blurry/cuda_fast.h"

#include <new>
#include <stdlib.h>
#include <string.h>

struct bla_tables {
    int blocks;          /* blocks of the plain kernels at once */
    bla_period *periods; /* [Hkv] device memory, followed by the visible positions of each distinct period */
    fast_tables fast;
    const chunk_kernels *chunk; /* NULL: the shape is not covered */
};

/* ---- tables ---- */

static blurry_status device_failure(cudaError_t error, const char *what)
{
    (void)cudaGetLastError();
    if (error == cudaErrorMemoryAllocation)
        return status_fail(BLURRY_E_MEMORY, "%s: no device memory: use a smaller shape or free some", what);
    return status_fail(BLURRY_E_DEVICE, "%s: %s", what, cudaGetErrorString(error));
}

/* The distinct periods: of_head [Hkv] indices into list [<= Hkv], whose count is returned. */
static int64_t distinct_periods(const bla_shape *s, double *list, int64_t *of_head)
{
    int64_t n = 0;
    for (int64_t h = 0; h < s->Hkv; h++) {
        int64_t i = 0;
        while (i < n && list[i] != s->period[h]) i++;
        if (i == n) list[n++] = s->period[h];
        of_head[h] = i;
    }
    return n;
}

/* Fills the periods and the visible positions into host memory laid out as on the device at `at`. */
static void fill_periods(const bla_shape *s, const double *list, const int64_t *of_head, int64_t n,
                         char *host, char *at)
{
    size_t head = size_align((size_t)s->Hkv * sizeof(bla_period));
    int64_t *visible = (int64_t *)(host + head);
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < s->S; j++) visible[i * s->S + j] = dirichlet_visible_from(s->S, list[i], j);
    bla_period *periods = (bla_period *)host;
    for (int64_t h = 0; h < s->Hkv; h++) {
        bla_period p = {};
        p.T = s->period[h];
        p.visible = (const int64_t *)(at + head) + of_head[h] * s->S;
        p.all_visible = visible[(of_head[h] + 1) * s->S - 1];
        p.index = (int)of_head[h];
        p.raised = s->raised[h] || s->S == 1; /* one slot: phi is 1 whatever the period */
        periods[h] = p;
    }
}

static blurry_status upload_periods(const bla_shape *s, bla_tables *t)
{
    double *list = (double *)calloc((size_t)s->Hkv, sizeof *list);
    int64_t *of_head = (int64_t *)calloc((size_t)s->Hkv, sizeof *of_head);
    int64_t n = list && of_head ? distinct_periods(s, list, of_head) : 0;
    size_t bytes = size_add(size_align(size_of(s->Hkv, sizeof(bla_period))),
                            size_mul(size_of(n, (size_t)s->S), sizeof(int64_t)));
    char *host = n ? (char *)calloc(1, bytes) : NULL;
    cudaError_t error = cudaErrorMemoryAllocation;
    if (host) {
        error = cuda_take((void **)&t->periods, bytes);
        if (error == cudaSuccess) {
            fill_periods(s, list, of_head, n, host, (char *)t->periods);
            if (t->fast.kernels) error = fast_prepare(s, &t->fast, (bla_period *)host);
            if (error == cudaSuccess) error = cudaMemcpy(t->periods, host, bytes, cudaMemcpyHostToDevice);
            if (error == cudaSuccess) error = cudaStreamSynchronize((cudaStream_t)0); /* it has arrived */
        }
    }
    free(host), free(of_head), free(list);
    return error == cudaSuccess ? BLURRY_OK : device_failure(error, "tables of blurry attention");
}

static void release(void *tables)
{
    bla_tables *t = (bla_tables *)tables;
    if (!t) return;
    cuda_give(t->periods);
    fast_release(&t->fast);
    free(t);
}

/* The multiprocessors of the current device; sizes asked before a device exists assume a large one. */
static int multiprocessors(void)
{
    static const int large = 132;
    int device, count;
    if (cudaGetDevice(&device) == cudaSuccess &&
        cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device) == cudaSuccess)
        return count;
    (void)cudaGetLastError();
    return large;
}

static int direct_blocks(void)
{
    return 2 * multiprocessors();
}

template <bool is_bf16> static blurry_status prepare(const bla_shape *shape, void **tables)
{
    *tables = NULL;
    bla_tables *t = (bla_tables *)calloc(1, sizeof *t);
    if (!t) return status_fail(BLURRY_E_MEMORY, "no memory for the tables of blurry attention");
    t->blocks = direct_blocks();
    t->fast.multiprocessors = multiprocessors();
    t->fast.kernels = is_bf16 ? fast_find(shape) : NULL;
    t->chunk = chunk_find(shape, is_bf16);
    blurry_status status = upload_periods(shape, t);
    if (status != BLURRY_OK) {
        release(t);
        return status;
    }
    *tables = t;
    return BLURRY_OK;
}

/* ---- offsets travel as arguments, so that a captured call keeps its own ---- */

enum { OFFSETS_PER_LAUNCH = 448 };
struct offsets_part {
    int64_t values[OFFSETS_PER_LAUNCH];
};

static __global__ void offsets_kernel(offsets_part part, int64_t *to, int count)
{
    for (int i = threadIdx.x; i < count; i += blockDim.x) to[i] = part.values[i];
}

static size_t offsets_bytes(const bla_shape *s)
{
    return size_align(size_of(s->batch + 1, sizeof(int64_t)));
}

static void put_offsets(const int64_t *offsets, int64_t n, int64_t *to, cudaStream_t stream)
{
    for (int64_t i = 0; i < n; i += OFFSETS_PER_LAUNCH) {
        offsets_part part;
        int count = (int)(n - i < (int64_t)OFFSETS_PER_LAUNCH ? n - i : (int64_t)OFFSETS_PER_LAUNCH);
        memset(&part, 0, sizeof part);
        memcpy(part.values, offsets + i, (size_t)count * sizeof *offsets);
        cuda_launch(offsets_kernel, dim3(1), dim3(256), 0, stream, part, to + i, count);
    }
}

/* ---- calls ---- */

static bla_state state_of(const bla_slots &s)
{
    bla_state r = {(float *)s.k, (float *)s.v, s.stride_k, s.stride_v};
    return r;
}

/* What forward and backward share. `room` is offsets_bytes of the workspace. */
static bla_call call_of(const bla_shape *s, const bla_tables *t, int64_t n, const int64_t *offsets,
                        void *room, cudaStream_t stream)
{
    bla_call c = {};
    c.length = s->batch > 0 ? s->tokens / s->batch : 0;
    c.chains = n * s->Hkv;
    c.H = s->H, c.Hkv = s->Hkv, c.group = (int)(s->H / s->Hkv);
    c.Dk = (int)s->Dk, c.Dv = (int)s->Dv, c.S = (int)s->S;
    c.scale = (float)s->scale, c.decay = s->decay, c.relative = s->relative;
    c.periods = t->periods;
    if (offsets) {
        put_offsets(offsets, n + 1, (int64_t *)room, stream);
        c.offsets = (const int64_t *)room;
    }
    return c;
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* States of a window of the float kernels. Beside the tensor-core kernels they are there for the period's
 * gradient only and take less memory. */
static int64_t chunk_states(int processors, bool beside_fast)
{
    return (int64_t)processors * (beside_fast ? CHUNK_STATES / 2 : CHUNK_STATES);
}

template <bool is_bf16> static size_t forward_workspace(const bla_shape *s)
{
    size_t fast = is_bf16 ? fast_forward_workspace(s, multiprocessors()) : 0, chunk = 0;
    const chunk_kernels *k = fast ? NULL : chunk_find(s, is_bf16);
    if (k) chunk = chunk_forward_workspace(k, s, chunk_states(multiprocessors(), false));
    return size_add(offsets_bytes(s),
                    larger(larger(fast, chunk), direct_forward_workspace(s, direct_blocks())));
}

template <bool is_bf16> static size_t backward_workspace(const bla_shape *s)
{
    size_t fast = is_bf16 ? fast_backward_workspace(s, multiprocessors()) : 0, chunk = 0;
    const chunk_kernels *k = chunk_find(s, is_bf16);
    int64_t states = chunk_states(multiprocessors(), fast > 0);
    if (k) chunk = chunk_backward_workspace(k, s, states, true);
    if (k && !fast) chunk = larger(chunk, chunk_backward_workspace(k, s, states, false));
    return size_add(offsets_bytes(s),
                    larger(larger(fast, chunk), direct_backward_workspace(s, direct_blocks())));
}

template <bool is_bf16> static size_t saved_bytes(const bla_shape *s)
{
    return is_bf16 ? size_align(fast_saved_bytes(s)) : 0;
}

/* The tokens of the longest sequence. */
static int64_t longest_of(const bla_shape *s, int64_t n, const int64_t *offsets)
{
    int64_t longest = s->batch > 0 && !offsets ? s->tokens / s->batch : 0;
    for (int64_t b = 0; offsets && b < n; b++)
        if (offsets[b + 1] - offsets[b] > longest) longest = offsets[b + 1] - offsets[b];
    return longest;
}

/* Whether tensors start where 16 bytes may be copied at once. */
static bool aligned(const void *a, const void *b, const void *c, const void *d)
{
    return (((uintptr_t)a | (uintptr_t)b | (uintptr_t)c | (uintptr_t)d) & 15) == 0;
}

template <bool is_bf16> static void forward(const bla_shape *s, const void *tables, const bla_forward *a)
{
    const bla_tables *t = (const bla_tables *)tables;
    cudaStream_t stream = (cudaStream_t)a->stream;
    bla_call c = call_of(s, t, a->n_sequences, a->offsets, a->workspace, stream);
    c.q = a->q, c.k = a->k, c.v = a->v, c.o = a->o;
    c.in = state_of(a->in), c.out = state_of(a->out);
    c.positions = (const char *)a->positions, c.position_stride = a->position_stride;
    char *room = (char *)a->workspace + offsets_bytes(s);
    bool blocks = aligned(c.q, c.k, c.v, c.o);
    int64_t longest = longest_of(s, a->n_sequences, a->offsets);
    if (t->fast.kernels && blocks)
        fast_forward(&t->fast, s, &c, longest, a->saved, room, stream);
    else if (t->chunk && !t->fast.kernels && blocks)
        chunk_forward(t->chunk, s, &c, longest, chunk_states(t->fast.multiprocessors, false), room, stream);
    else
        direct_forward(&c, is_bf16, t->blocks, room, stream);
}

template <bool is_bf16> static void backward(const bla_shape *s, const void *tables, const bla_backward *a)
{
    const bla_tables *t = (const bla_tables *)tables;
    cudaStream_t stream = (cudaStream_t)a->stream;
    bla_call c = call_of(s, t, a->n_sequences, a->offsets, a->workspace, stream);
    c.q = a->q, c.k = a->k, c.v = a->v, c.d_o = a->d_o;
    c.d_q = a->d_q, c.d_k = a->d_k, c.d_v = a->d_v;
    c.in = state_of(a->in), c.d_out = state_of(a->d_out), c.d_in = state_of(a->d_in);
    c.positions = (const char *)a->positions, c.position_stride = a->position_stride;
    char *room = (char *)a->workspace + offsets_bytes(s);
    bool period = a->d_period || a->d_period_abs;
    bool blocks = aligned(c.q, c.k, c.v, c.d_o) && aligned(c.d_q, c.d_k, c.d_v, NULL);
    int64_t longest = longest_of(s, a->n_sequences, a->offsets);
    if (t->fast.kernels && blocks && !period)
        fast_backward(&t->fast, s, &c, longest, a->saved, room, stream);
    else if (t->chunk && blocks && (period || !t->fast.kernels))
        chunk_backward(t->chunk, s, &c, longest,
                       chunk_states(t->fast.multiprocessors, t->fast.kernels != NULL), a->d_period,
                       a->d_period_abs, room, stream);
    else
        direct_backward(&c, is_bf16, t->blocks, s->tokens, a->d_period, a->d_period_abs, room, stream);
}

extern "C" const bla_kernel *bla_kernel_cuda(blurry_dtype dtype)
{
    static const bla_kernel kernels[2] = {
        {"cuda", BLURRY_F32, prepare<false>, release, forward_workspace<false>, backward_workspace<false>,
         saved_bytes<false>, forward<false>, backward<false>},
        {"cuda", BLURRY_BF16, prepare<true>, release, forward_workspace<true>, backward_workspace<true>,
         saved_bytes<true>, forward<true>, backward<true>},
    };
    return dtype == BLURRY_F32 ? &kernels[0] : dtype == BLURRY_BF16 ? &kernels[1] : NULL;
}
