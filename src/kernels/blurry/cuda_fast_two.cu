/* Host side of the passes in two kernels, for short sequences: whether they are there for a call and faster,
 * and how they are spread over the chip. */
#include "kernels/blurry/cuda_fast.h"
#include "base/sizes.h"

#include <math.h>

/* The second-level cache holds 50 MiB. */
enum { OWN_SLOTS_BYTES = 40 << 20, ROWS_BYTES = 32 << 20, SEGMENTS_MOST = 8 };

int fast_wished_form;

/* ---- the forward pass in two: cuda_fast_states.cu, then cuda_fast_read.cuh ---- */

/* Columns to a block of the kernels that take a chain through its chunks, forwards or backwards: a step of
 * all blocks takes what its bytes take from the second-level cache, for one multiprocessor and for all, and
 * never less than its latency. */
static int choose_columns(const fast_kernels *k, int64_t chains, int multiprocessors, bool backwards)
{
    int best = 16;
    double least = INFINITY;
    for (int columns = backwards ? 32 : 16; columns <= 64 && columns <= k->D; columns *= 2) {
        double blocks = (double)(chains * 2 * (k->D / columns)),
               at_once = fmin(blocks, 2.0 * multiprocessors);
        double bytes = backwards ? fast_collect_stage(k->SP, columns) + 2.0 * CHUNK * columns
                                 : 2.0 * CHUNK * (k->SP + columns) + 2.0 * k->SP * columns;
        double one = bytes * ceil(at_once / multiprocessors) / 90e3, all = bytes * at_once / 5.5e6;
        double cost = ceil(blocks / (2.0 * multiprocessors)) * fmax(0.25, fmax(one, all));
        if (cost < least) least = cost, best = columns;
    }
    return best;
}

size_t fast_own_slots(const bla_shape *s, const fast_kernels *k)
{
    size_t all = k->read ? fast_saved_for(s, k) : 0;
    return all <= OWN_SLOTS_BYTES ? all : 0;
}

/* Units of work of the second one: query heads times chunks, with gaps where sequences are packed. */
static int64_t read_units(const bla_shape *s, const bla_call *call, int64_t chunks)
{
    int64_t n = call->chains / call->Hkv;
    return (call->offsets ? s->tokens / CHUNK + n : n * chunks) * call->H;
}

/* How its first kernel goes through the chains: columns to a block, segments of a chain, and the chunks it
 * then takes one after another, twice where chains are cut. */
struct states_plan {
    int columns;
    int64_t segments, steps;
};

/* Chains are cut where that leaves fewer steps: as often as fills the chip with blocks of most columns, into
 * pieces of four chunks or more. */
static states_plan plan_states(const fast_tables *t, int64_t chains, int64_t chunks, int64_t states)
{
    const fast_kernels *k = t->kernels;
    states_plan plan = {choose_columns(k, chains, t->multiprocessors, false), 1, chunks};
    const int widest = k->D < 64 ? k->D : 64;
    for (int64_t n = 2; chunks > SEGMENTS_MOST && n <= SEGMENTS_MOST && 4 * n <= chunks; n++) {
        int64_t steps = 2 * ((chunks + n - 1) / n) + 4, blocks = chains * 2 * (k->D / widest) * n;
        if (blocks > 2 * t->multiprocessors || chains * n > states || steps >= plan.steps) continue;
        plan.columns = widest, plan.segments = n, plan.steps = steps;
    }
    return plan;
}

/* Whether the pass in two is there for a call and faster; its first kernel takes about a microsecond for a
 * chunk: that pays up to 64 of them where the slots are wanted as notes, up to 16 where they are not
 * (measured: docs/performance.md). */
bool fast_forward_in_two(const fast_tables *t, const bla_shape *s, const bla_call *call, int64_t chunks,
                         int64_t states, fast_run *run, bf16 *own, cudaStream_t stream)
{
    const fast_kernels *k = t->kernels;
    if (!k->read || (!run->saved && !own) || (t->loose > 0 && !run->made) || chunks > INT32_MAX ||
        read_units(s, call, chunks) > INT32_MAX)
        return false;
    const states_plan plan = plan_states(t, call->chains, chunks, states);
    if (fast_wished_form ? fast_wished_form == 1 : plan.steps > (run->saved ? 64 : 16)) return false;
    run->segments = plan.segments, run->parts = 1;
    if (!run->saved) run->saved = own;
    run->sequences = (int)(call->chains / call->Hkv);
    run->units = (uint32_t)read_units(s, call, chunks);
    fast_states(k, plan.columns, call, run, stream);
    if (call->o) k->read(call, run, stream);
    return true;
}

/* ---- the backward pass in two: cuda_fast_rows.cuh, then cuda_fast_collect.cu ---- */

size_t fast_rows_total(const bla_shape *s, const fast_kernels *k)
{
    int64_t units = (s->tokens / CHUNK + s->batch + 1) * s->H;
    size_t all = k->rows ? size_of(units, 2 * (size_t)fast_rows_bytes(k->SP)) : 0;
    return all <= ROWS_BYTES ? all : 0;
}

/* Its second kernel takes a sequence's chunks one after another. */
bool fast_backward_in_two(const fast_tables *t, const bla_shape *s, const bla_call *call, int64_t chunks,
                          fast_run *run, cudaStream_t stream)
{
    if (!run->rows || (t->loose > 0 && !run->made) || chunks > INT32_MAX ||
        read_units(s, call, chunks) > INT32_MAX || (fast_wished_form ? fast_wished_form == 1 : chunks > 16))
        return false;
    run->sequences = (int)(call->chains / call->Hkv);
    run->units = (uint32_t)read_units(s, call, chunks);
    t->kernels->rows(call, run, stream);
    fast_collect(t->kernels, choose_columns(t->kernels, call->chains, t->multiprocessors, true), call, run,
                 stream);
    return true;
}
