/* Host side of the tensor-core kernels: which shapes they cover, their tables, how a call is spread over the
 * chip. */
#include "kernels/blurry/cuda_fast.h"
#include "base/sizes.h"
#include "kernels/blurry/cuda_entry.cuh"

#include <math.h>
#include <stdlib.h>

enum { ENTRIES_BYTES_MOST = 256 << 20, MADE_BYTES_MOST = 128 << 20, FOLD_MOST = 8 };

/* ---- coverage ---- */

/* The least log2 of a running product of gates over a chunk, for the slot at 0 and any phase. Slots differ by
 * their phase only. */
static double entry_range(int64_t S, double T)
{
    double least = 0;
    const double pi = 3.14159265358979323846;
    for (int phase = 0; phase < 16; phase++) {
        double window[CHUNK] = {0}, sum = 0;
        int reach = 3 * CHUNK;
        for (int i = -reach; i < reach; i++) {
            double x = fmod((double)i + phase / 16.0, T) * (double)S / T, sine = sin(pi * x / (double)S);
            double gate = 1 - (fabs(sine) < 1e-12 ? 1.0 : sin(pi * x) / ((double)S * sine));
            double bits = log2(fmax(gate, (double)ENTRY_GATE_LEAST));
            int at = (i + reach) % CHUNK;
            sum += bits - window[at], window[at] = bits;
            if (sum < least) least = sum;
        }
    }
    return least;
}

const fast_kernels *fast_find(const bla_shape *s)
{
    int64_t widest = s->Dk > s->Dv ? s->Dk : s->Dv;
    if (s->relative || !(s->scale > 0) || s->S > 128 || widest > 128 || s->Dk % 8 || s->Dv % 8) return NULL;
    if (s->decay)
        for (int64_t h = 0; h < s->Hkv; h++) {
            bool same = h > 0 && s->period[h] == s->period[h - 1];
            if (!same && entry_range(s->S, s->period[h]) < -1.8 * ENTRY_SCALE) return NULL;
        }
    int slots = s->S <= 64 ? 64 : 128;
    return widest <= 32   ? fast_kernels_32(slots, s->decay)
           : widest <= 64 ? fast_kernels_64(slots, s->decay)
                          : fast_kernels_128(slots, s->decay);
}

/* ---- tables ---- */

/* Entries of one period: with decay one block per entry; without, entries overlap and one holds 64 rows. */
static __global__ void entries_kernel(int S, int SP, double T, int decay, const double *sines, char *entries,
                                      int64_t entry_stride)
{
    __shared__ entry_row room[CHUNK];
    int64_t row = decay ? blockIdx.x : (int64_t)blockIdx.x * CHUNK;
    entry_build(S, SP, T, row, decay, sines, room, entries + row * entry_stride);
}

/* Bytes of the tabulated entries of a period, 0 where they are made on the spot. */
static size_t entries_of(const fast_kernels *k, double T, int decay, int64_t *stride)
{
    *stride = decay ? entry_bytes(k->SP) : k->SP * 2;
    if (T != rint(T) || T > 1e6) return 0;
    size_t bytes = decay ? size_of((int64_t)T, (size_t)*stride)
                         : size_of(((int64_t)T + 2 * CHUNK - 1) / CHUNK * CHUNK, (size_t)*stride);
    return bytes > ENTRIES_BYTES_MOST ? 0 : bytes;
}

static cudaError_t upload_sines(int64_t S, double **sines)
{
    double *host = (double *)malloc(2 * (size_t)S * sizeof *host);
    if (!host) return cudaErrorMemoryAllocation;
    for (int64_t d = 0; d < S; d++) {
        host[d] = sin(BLA_PI * (double)d / (double)S);
        host[S + d] = cos(BLA_PI * (double)d / (double)S);
    }
    cudaError_t error = cudaMalloc((void **)sines, 2 * (size_t)S * sizeof *host);
    if (error == cudaSuccess)
        error = cudaMemcpy(*sines, host, 2 * (size_t)S * sizeof *host, cudaMemcpyHostToDevice);
    free(host);
    return error;
}

/* Index of the first head with the same period. */
static int64_t first_with(const bla_shape *s, int64_t h)
{
    int64_t i = 0;
    while (s->period[i] != s->period[h]) i++;
    return i;
}

/* Bytes of all tabulated entries; *loose counts the periods that are not among them. */
static size_t entries_total(const bla_shape *s, const fast_kernels *k, int *loose)
{
    size_t total = 0;
    *loose = 0;
    for (int64_t h = 0; h < s->Hkv; h++) {
        int64_t stride;
        if (first_with(s, h) != h) continue;
        size_t bytes = entries_of(k, s->period[h], s->decay, &stride);
        if (bytes > 0 && size_add(total, bytes) <= ENTRIES_BYTES_MOST)
            total += bytes;
        else
            ++*loose;
    }
    return total;
}

cudaError_t fast_prepare(const bla_shape *s, fast_tables *t, bla_period *periods)
{
    const fast_kernels *k = t->kernels;
    cudaError_t error = upload_sines(s->S, &t->sines);
    int loose = 0;
    size_t total = entries_total(s, k, &t->loose);
    int64_t stride;
    if (error == cudaSuccess && total > 0) error = cudaMalloc((void **)&t->entries, total);
    if (error != cudaSuccess) return error;
    size_t used = 0;
    for (int64_t h = 0; h < s->Hkv; h++) {
        int64_t same = first_with(s, h);
        size_t bytes = entries_of(k, s->period[h], s->decay, &stride);
        periods[h].entry_stride = stride;
        if (same != h) {
            periods[h].rows = periods[same].rows, periods[h].entries = periods[same].entries;
            periods[h].loose = periods[same].loose;
        } else if (bytes > 0 && used + bytes <= total) {
            periods[h].rows = (int64_t)s->period[h], periods[h].entries = t->entries + used;
            int64_t blocks = s->decay ? periods[h].rows : (int64_t)(bytes / (size_t)stride) / CHUNK;
            cuda_launch(entries_kernel, dim3((unsigned)blocks), dim3(128), 0, (cudaStream_t)0, (int)s->S,
                        k->SP, s->period[h], s->decay, (const double *)t->sines, t->entries + used, stride);
            used += bytes;
        } else {
            periods[h].loose = loose++;
        }
    }
    error = cudaGetLastError();
    return error == cudaSuccess ? cudaDeviceSynchronize() : error;
}

void fast_release(fast_tables *t)
{
    if (t->sines) (void)cudaFree(t->sines);
    if (t->entries) (void)cudaFree(t->entries);
}

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
    cuda_launch(scan_kernel, grid, dim3(256), 0, stream, *run, k->SP, k->D, call->decay, backwards);
    run->scanned = 1;
}

/* ---- calls ---- */

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
    entry_build(c.S, SP, c.periods[h].T, x.position + chunk * CHUNK, c.decay, r.sines, room, entry);
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
    (void)entries_total(s, k, &loose);
    r->scratch = (char *)carve(m, scratch_bytes(s, k, blocks, loose));
}

size_t fast_forward_workspace(const bla_shape *s, int multiprocessors)
{
    const fast_kernels *k = fast_find(s);
    fast_run run;
    carver m = {NULL, 0};
    if (k) pass_place(s, k, (int64_t)multiprocessors * k->state_blocks, &m, &run);
    return m.used;
}

size_t fast_saved_bytes(const bla_shape *s)
{
    const fast_kernels *k = fast_find(s);
    if (!k) return 0;
    int64_t chunks = (s->tokens / CHUNK + s->batch + 1) * s->Hkv;
    return size_mul(size_of(chunks, 2 * (size_t)k->SP), (size_t)k->D * sizeof(bf16));
}

void fast_forward(const fast_tables *t, const bla_shape *s, const bla_call *call, int64_t longest,
                  void *saved, void *workspace, cudaStream_t stream)
{
    const fast_kernels *k = t->kernels;
    fast_run run = {};
    carver m = {(char *)workspace, 0};
    int64_t states = (int64_t)t->multiprocessors * k->state_blocks;
    pass_place(s, k, states, &m, &run);
    run.saved = (bf16 *)saved, run.spread = t->multiprocessors;
    int64_t chunks = (longest + CHUNK - 1) / CHUNK;
    make_entries(t, s, call, chunks, states, &run, stream);
    fast_pass pass = call->o ? FAST_READ : FAST_STATES;
    int64_t blocks = pass == FAST_READ ? (int64_t)t->multiprocessors * k->read_blocks : states;
    run.segments = choose_segments(call->chains, chunks, blocks, 0.2);
    run.parts = choose_parts(call->chains, chunks, run.segments, states, states_most(s, states));
    if (run.segments > 1) {
        k->forward(call, &run, FAST_INCREMENTS, stream);
        if ((run.segments - 1) * run.parts > FOLD_MOST) scan(k, call, &run, 0, stream);
    }
    k->forward(call, &run, pass, stream);
}

/* A backward pass takes its own states, then those of a forward pass, which also end at once when it has
 * notes. */
size_t fast_backward_workspace(const bla_shape *s, int multiprocessors)
{
    const fast_kernels *k = fast_find(s);
    fast_run run;
    carver m = {NULL, 0};
    if (!k) return 0;
    pass_place(s, k, multiprocessors, &m, &run);
    carve(&m, fast_saved_bytes(s));
    return size_add(m.used, fast_forward_workspace(s, multiprocessors));
}

void fast_backward(const fast_tables *t, const bla_shape *s, const bla_call *call, int64_t longest,
                   const void *saved, void *workspace, cudaStream_t stream)
{
    const fast_kernels *k = t->kernels;
    fast_run run = {};
    carver m = {(char *)workspace, 0};
    pass_place(s, k, t->multiprocessors, &m, &run);
    int64_t chunks = (longest + CHUNK - 1) / CHUNK;
    run.saved = (bf16 *)(uintptr_t)saved, run.spread = t->multiprocessors;
    make_entries(t, s, call, chunks, t->multiprocessors, &run, stream);
    if (!saved) {
        run.saved = (bf16 *)carve(&m, fast_saved_bytes(s));
        bla_call states = *call;
        states.o = NULL;
        fast_forward(t, s, &states, longest, run.saved, m.base + m.used, stream);
    }
    run.segments = choose_segments(call->chains, chunks, t->multiprocessors, 0.15);
    run.parts = choose_parts(call->chains, chunks, run.segments, t->multiprocessors,
                             states_most(s, t->multiprocessors));
    k->backward(call, &run, false, stream);
    if (run.segments == 1) return;
    if (run.segments - 1 > FOLD_MOST) scan(k, call, &run, 1, stream);
    k->backward(call, &run, true, stream);
}
