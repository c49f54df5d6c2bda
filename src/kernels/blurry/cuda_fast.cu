/* Host side of the tensor-core kernels: which shapes they cover, their tables, how a call is spread over the
 * chip. */
#include "kernels/blurry/cuda_fast.h"
#include "base/sizes.h"
#include "kernels/blurry/cuda_entry.cuh"

#include <math.h>

enum { MADE_BYTES_MOST = 128 << 20, FOLD_MOST = 8 };

/* ---- segments ---- */

/* The number of segments per chain that is estimated to finish first, in units of one chunk's time; the
 * pass that joins segments takes the share `extra` of it. Short of the
 * chip, more blocks than fit at once are not worth having: their states would only take memory. */
static int64_t choose_segments(int64_t chains, int64_t chunks, int64_t blocks, double extra)
{
    int64_t best = 1;
    double least = INFINITY;
    for (int64_t n = 1; n <= chunks && (n == 1 || n * chains <= 2 * blocks); n++) {
        double each = (double)((chunks + n - 1) / n);
        double waves = (double)((chains * n + blocks - 1) / blocks);
        double first = n > 1 ? extra * each * (double)((chains * (n - 1) + blocks - 1) / blocks) + 1.0 : 0.0;
        double cost = waves * (each + 0.5) + first + (n > FOLD_MOST ? 1.0 : 0.05 * (double)n);
        if (cost < least) least = cost, best = n;
    }
    return best;
}

/* Parts per segment, so that the joining pass fills `blocks` too; never more states than there is room for.
 */
static int64_t choose_parts(int64_t chains, int64_t chunks, int64_t segments, int64_t blocks, int64_t states)
{
    if (segments < 2) return 1;
    int64_t each = (chunks + segments - 1) / segments, parts = blocks / (chains * (segments - 1));
    while (parts > 1 && (parts > each || chains * segments * parts > states)) parts--;
    return parts < 1 ? 1 : parts;
}

/* Most states of all parts together. */
static int64_t states_most(const bla_shape *s, int64_t blocks)
{
    int64_t chunks = (s->tokens + CHUNK - 1) / CHUNK; /* of one packed sequence, at worst */
    int64_t chains = s->batch * s->Hkv;
    return chains > 0 && chunks > 2 * blocks / chains ? 2 * blocks : chains * chunks;
}

/* Replaces what each unit adds by what came before it: forwards the units are parts, backwards segments, the
 * last one first, and the sum of all goes to `start`. */
static __global__ void scan_kernel(fast_run r, int SP, int D, int decay, int backwards)
{
    cuda_wait_previous();
    int64_t floats = 2 * (int64_t)SP * D, i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x,
            chain = blockIdx.y;
    if (i >= floats / 4) return;
    int slot = (int)(i / 32 % (SP / 16)) * 16 + (int)(i % 32 >> 2);
    int64_t stride = backwards ? r.parts : 1, first = chain * r.segments * r.parts;
    int64_t units = backwards ? r.segments : (r.segments - 1) * r.parts + 1;
    float4 running = make_float4(0, 0, 0, 0);
    for (int64_t step = 0; step < units; step++) {
        int64_t at = first + (backwards ? units - 1 - step : step) * stride;
        float4 *state = (float4 *)(r.states + at * floats) + i, add = make_float4(0, 0, 0, 0);
        bool last = !backwards && step + 1 == units; /* nobody wants the state after it */
        if (!last) add = *state;
        *state = running;
        if (last) return;
        float low = 1.0f, high = 1.0f;
        for (int64_t part = 0; decay && part < stride; part++)
            low *= r.keeps[(at + part) * SP + slot], high *= r.keeps[(at + part) * SP + slot + 8];
        running.x = low * running.x + add.x, running.y = low * running.y + add.y;
        running.z = high * running.z + add.z, running.w = high * running.w + add.w;
    }
    ((float4 *)(r.start + chain * floats))[i] = running;
}

static void scan(const fast_kernels *k, const bla_call *call, fast_run *run, int backwards,
                 cudaStream_t stream)
{
    dim3 grid((unsigned)((2 * k->SP * k->D / 4 + 255) / 256), (unsigned)call->chains);
    cuda_launch_early(run->early, scan_kernel, grid, dim3(256), 0, stream, *run, k->SP, k->D, call->decay,
                      backwards);
    run->scanned = 1;
}

/* ---- memory ---- */

struct carver {
    char *base;
    size_t used;
};
static void *carve(carver *m, size_t bytes)
{
    void *at = m->base ? m->base + m->used : NULL;
    m->used = size_add(m->used, size_align(bytes));
    return at;
}

/* Room for the entries of periods that are not tabulated: those of every chunk, or two per block of a launch.
 */
static size_t scratch_bytes(const bla_shape *s, const fast_kernels *k, int64_t blocks, int loose)
{
    if (loose == 0) return 0;
    int64_t most = s->batch * s->Hkv > 2 * blocks ? s->batch * s->Hkv : 2 * blocks;
    size_t spot = size_of(most, 2 * (size_t)entry_bytes(k->SP));
    size_t every = size_mul(size_of(s->batch * loose, (size_t)(s->tokens / CHUNK + 1)),
                            (size_t)entry_made_bytes(k->SP, s->decay));
    if (every > MADE_BYTES_MOST) every = MADE_BYTES_MOST;
    return every > spot ? every : spot;
}

/* Entries of every chunk of a call. grid: chunks, periods that are not tabulated, sequences (1 where all
 * start at 0). */
static __global__ void make_entries_kernel(bla_call c, fast_run r, int SP)
{
    __shared__ entry_row room[CHUNK];
    int64_t h = 0, chunk = blockIdx.x;
    while (c.periods[h].rows || c.periods[h].loose != (int)blockIdx.y) h++;
    bla_chain x = bla_chain_of(c, blockIdx.z * c.Hkv);
    if (gridDim.z > 1 && chunk * CHUNK >= x.count) return;
    char *entry =
        r.scratch + ((blockIdx.z * r.loose + blockIdx.y) * r.made + chunk) * entry_made_bytes(SP, c.decay);
    entry_build(c.S, SP, c.periods[h].T, x.position + chunk * CHUNK, c.decay, r.sines, room, entry,
                (int)blockDim.x);
}

/* Makes them where there is room. */
static void make_entries(const fast_tables *t, const bla_shape *s, const bla_call *call, int64_t chunks,
                         int64_t blocks, fast_run *r, cudaStream_t stream)
{
    const fast_kernels *k = t->kernels;
    int64_t sequences = call->positions ? call->chains / call->Hkv : 1;
    size_t need =
        size_mul(size_of(sequences * t->loose, (size_t)chunks), (size_t)entry_made_bytes(k->SP, call->decay));
    r->loose = t->loose, r->sines = t->sines;
    if (need == 0 || need > scratch_bytes(s, k, blocks, t->loose) || sequences > 65535 || t->loose > 65535)
        return;
    r->made = chunks;
    cuda_launch(make_entries_kernel, dim3((unsigned)chunks, (unsigned)t->loose, (unsigned)sequences),
                dim3(128), 0, stream, *call, *r, k->SP);
}

/* Lays the workspace of one pass out for so many blocks at once (base NULL: measures it). */
static void pass_place(const bla_shape *s, const fast_kernels *k, int64_t blocks, carver *m, fast_run *r)
{
    int64_t states = states_most(s, blocks);
    size_t state = sizeof(float) * 2 * (size_t)k->SP * (size_t)k->D;
    r->states = (float *)carve(m, size_of(states, state));
    r->start = (float *)carve(m, size_of(s->batch * s->Hkv < states ? s->batch * s->Hkv : states, state));
    r->keeps = (float *)carve(m, size_of(states, sizeof(float) * (size_t)k->SP));
    int loose;
    (void)fast_entries_total(s, k, &loose);
    r->scratch = (char *)carve(m, scratch_bytes(s, k, blocks, loose));
}

size_t fast_saved_for(const bla_shape *s, const fast_kernels *k)
{
    int64_t chunks = (s->tokens / CHUNK + s->batch + 1) * s->Hkv;
    return size_mul(size_of(chunks, 2 * (size_t)k->SP), (size_t)k->D * sizeof(bf16));
}

size_t fast_saved_bytes(const bla_shape *s)
{
    const fast_kernels *k = fast_find_widths(s);
    return k ? fast_saved_for(s, k) : 0;
}

/* ---- calls ---- */

/* Also finds room for the slots of a call without notes; NULL: they are too many. */
static bf16 *forward_place(const bla_shape *s, const fast_kernels *k, int64_t blocks, carver *m, fast_run *r)
{
    pass_place(s, k, blocks, m, r);
    size_t own = fast_own_slots(s, k);
    return own ? (bf16 *)carve(m, own) : NULL;
}

size_t fast_forward_workspace(const bla_shape *s, int multiprocessors)
{
    const fast_kernels *k = fast_find(s);
    fast_run run;
    carver m = {NULL, 0};
    if (k) forward_place(s, k, (int64_t)multiprocessors * k->state_blocks, &m, &run);
    return m.used;
}

void fast_forward(const fast_tables *t, const bla_shape *s, const bla_call *call, int64_t longest,
                  void *saved, void *workspace, cudaStream_t stream)
{
    const fast_kernels *k = t->kernels;
    fast_run run = {};
    carver m = {(char *)workspace, 0};
    int64_t states = (int64_t)t->multiprocessors * k->state_blocks;
    bf16 *own = forward_place(s, k, states, &m, &run);
    run.saved = (bf16 *)saved, run.spread = t->multiprocessors, run.early = t->early;
    int64_t chunks = (longest + CHUNK - 1) / CHUNK;
    make_entries(t, s, call, chunks, states, &run, stream);
    fast_pass pass = call->o ? FAST_READ : FAST_STATES;
    int64_t blocks = pass == FAST_READ ? (int64_t)t->multiprocessors * k->read_blocks : states;
    if (fast_forward_in_two(t, s, call, chunks, states_most(s, states), &run, own, stream)) return;
    run.segments = choose_segments(call->chains, chunks, blocks, 0.2);
    run.parts = choose_parts(call->chains, chunks, run.segments, t->multiprocessors, states_most(s, states));
    if (run.segments > 1) {
        if (t->loose > 0 && !run.made)
            k->forward(call, &run, FAST_INCREMENTS, stream);
        else
            fast_increments(k, call, &run, stream);
        if ((run.segments - 1) * run.parts > FOLD_MOST) scan(k, call, &run, 0, stream);
    }
    k->forward(call, &run, pass, stream);
}

static void backward_place(const bla_shape *s, const fast_kernels *k, int64_t blocks, carver *m, fast_run *r)
{
    pass_place(s, k, blocks, m, r);
    size_t rows = fast_rows_total(s, k);
    r->rows = rows ? (char *)carve(m, rows) : NULL;
}

/* A backward pass takes its own states, then those of a forward pass, which also end at once when it has
 * notes. */
size_t fast_backward_workspace(const bla_shape *s, int multiprocessors)
{
    const fast_kernels *k = fast_find(s);
    fast_run run;
    carver m = {NULL, 0};
    if (!k) return 0;
    backward_place(s, k, (int64_t)multiprocessors * k->backward_blocks, &m, &run);
    carve(&m, fast_saved_for(s, k));
    return size_add(m.used, fast_forward_workspace(s, multiprocessors));
}

void fast_backward(const fast_tables *t, const bla_shape *s, const bla_call *call, int64_t longest,
                   const void *saved, void *workspace, cudaStream_t stream)
{
    const fast_kernels *k = t->kernels;
    fast_run run = {};
    carver m = {(char *)workspace, 0};
    int64_t blocks = (int64_t)t->multiprocessors * k->backward_blocks;
    backward_place(s, k, blocks, &m, &run);
    int64_t chunks = (longest + CHUNK - 1) / CHUNK;
    run.saved = (bf16 *)(uintptr_t)saved, run.spread = t->multiprocessors, run.early = t->early;
    make_entries(t, s, call, chunks, blocks, &run, stream);
    if (!saved) {
        run.saved = (bf16 *)carve(&m, fast_saved_for(s, k));
        bla_call states = *call;
        states.o = NULL;
        fast_forward(t, s, &states, longest, run.saved, m.base + m.used, stream);
    }
    if (fast_backward_in_two(t, s, call, chunks, &run, stream)) return;
    run.segments = choose_segments(call->chains, chunks, blocks, 0.15);
    run.parts = choose_parts(call->chains, chunks, run.segments, blocks, states_most(s, blocks));
    k->backward(call, &run, false, stream);
    if (run.segments == 1) return;
    if (run.segments - 1 > FOLD_MOST) scan(k, call, &run, 1, stream);
    k->backward(call, &run, true, stream);
}
