/* Output head and cross-entropy, a block of labels at a time, with the logits kept transposed: [vocab,
 * labels]. Then every product finds its operands as they lie, and the softmax of VL labels is one of vectors.
 *
 *   1. the labelled rows x are gathered and packed for two products
 *   2. per block of the vocabulary: logits = W x^T, their maximum over the block, and exp(logits - maximum)
 *   3. per label: the maximum and the sum over all blocks, hence log-probability and argmax
 *   4. per part of the vocabulary, block by block: the logits' gradient p out of the exponentials, then
 *      d_W += p x, and p^T W summed over the part
 *   5. d_x is the sum over the parts in order
 *
 * Blocks and parts depend on the shape alone, so results do not depend on the number of threads. */
#include "kernels/panel_gemm.h"
#include "kernels/vector_functions.h"
#include "kernels/xent/xent.h"

#include "base/threads.h"

#include <string.h>

enum { LOGITS_MOST = 1 << 21, LABELS_LEAST = 64, ZERO_ROWS = 256 };
enum { GROUP = 256 }; /* labels of one product: the depth of d_W = p x */
/* Between rows of logits: a line more than a group, or a column's elements would share a few cache sets. */
enum { STRIDE = GROUP + 64 / (int)sizeof(real) };
enum { SLICE = 2 * PANEL }; /* labels of a task that looks at labels one by one */
enum { SPAN = PANEL_ROWS }; /* rows of the vocabulary in a block */
enum { PARTS = 32, PART_LEAST = SPAN };
_Static_assert((int)GROUP <= (int)PANEL_DEPTH && (int)GROUP % (int)SLICE == 0, "one product's sizes");

/* What a block of SPAN logits has for each label of a group. */
typedef struct span_notes {
    real most[GROUP], sum[GROUP]; /* the largest, and the sum of exp(logit - most) */
    int32_t top[GROUP];           /* the first largest */
} span_notes;

typedef struct layout {
    int64_t labels, groups;                                   /* of one block of labels */
    int64_t parts, spans;                                     /* spans: blocks per part, the longest part's */
    int64_t x_panels, x_t_panels;                             /* elements of a group's packed rows */
    size_t x, x_t, logits, notes, chosen, factor, d_x, total; /* bytes from the start of the scratch */
} layout;

static int64_t part_start(const layout *z, int64_t vocab, int64_t part)
{
    return vocab * part / z->parts;
}

static size_t take(layout *z, int64_t elements, size_t size)
{
    size_t at = z->total;
    z->total += kernel_round64((size_t)elements * size);
    return at;
}

static layout layout_of(const xent_args *a)
{
    layout z = {0};
    int64_t fit = kernel_max(LABELS_LEAST, LOGITS_MOST / kernel_max(1, a->vocab));
    z.labels = kernel_min(fit, kernel_max(1, a->labels));
    z.groups = kernel_blocks(z.labels, GROUP);
    z.parts = kernel_max(1, kernel_min(PARTS, a->vocab / PART_LEAST));
    z.spans = kernel_blocks(kernel_blocks(a->vocab, z.parts), SPAN);
    z.x_panels = panel_elements(GROUP, a->width);
    z.x_t_panels = GROUP * a->width;
    z.x = take(&z, z.groups * z.x_panels, sizeof(real));
    z.x_t = take(&z, z.groups * z.x_t_panels, sizeof(real));
    z.logits = take(&z, z.groups * STRIDE * a->vocab, sizeof(real));
    z.notes = take(&z, z.groups * z.parts * z.spans, sizeof(span_notes));
    z.chosen = take(&z, z.groups * GROUP, sizeof(real));
    z.factor = take(&z, z.groups * GROUP, 2 * sizeof(real));
    z.d_x = take(&z, z.groups * GROUP * z.parts * a->width, sizeof(real));
    return z;
}

KERNEL_SIZES(xent_sizes, xent_args)
{
    *sizes = (kernel_sizes){.scratch = layout_of(a).total};
}

typedef struct block {
    const xent_args *a;
    layout z;
    int64_t first, count, groups; /* labels */
    real *x;                      /* [groups] x [labels, width] in panels */
    real *x_t;            /* [groups] x^T [width, labels] in panels, PANEL_DEPTH of the width at a time */
    real *logits;         /* [groups, vocab, STRIDE] */
    span_notes *notes;    /* [groups, parts, spans] */
    real *chosen;         /* [groups, GROUP] logit of the target */
    real *most, *inverse; /* [groups, GROUP] maximum over the vocabulary, scale over the sum */
    real *d_x;            /* [groups, parts, GROUP, width] */
    int backward;
} block;

static block block_of(const xent_args *a, char *scratch, int backward)
{
    layout z = layout_of(a);
    block k = {.a = a, .z = z, .backward = backward};
    k.x = (real *)(void *)(scratch + z.x);
    k.x_t = (real *)(void *)(scratch + z.x_t);
    k.logits = (real *)(void *)(scratch + z.logits);
    k.notes = (span_notes *)(void *)(scratch + z.notes);
    k.chosen = (real *)(void *)(scratch + z.chosen);
    k.most = (real *)(void *)(scratch + z.factor);
    k.inverse = k.most + z.groups * GROUP;
    k.d_x = (real *)(void *)(scratch + z.d_x);
    return k;
}

static int64_t group_count(const block *k, int64_t group)
{
    return kernel_min(GROUP, k->count - group * GROUP);
}

static real *logits_at(const block *k, int64_t group, int64_t v)
{
    return k->logits + (group * k->a->vocab + v) * STRIDE;
}

/* ---- 1: pack ---- */
/* SLICE labels of a group. */
static void pack_task(void *context, int64_t task, int worker)
{
    (void)worker;
    const block *k = context;
    int64_t group = task / (GROUP / SLICE), first = task % (GROUP / SLICE) * SLICE;
    int64_t n = k->a->width, count = group_count(k, group);
    real *x = k->x + group * k->z.x_panels, *x_t = k->x_t + group * k->z.x_t_panels;
    for (int64_t r = first; r < first + SLICE; r++) {
        int64_t row = r < count ? xent_row(k->a, k->first + group * GROUP + r) : -1;
        const real *from = row >= 0 ? (const real *)k->a->hidden + row * n : NULL;
        for (int64_t j = 0; j < n && from; j += PANEL)
            for (int64_t i = 0; i < PANEL; i++) x[j * count + r * PANEL + i] = j + i < n ? from[j + i] : 0;
        /* depth by depth, each [GROUP / PANEL][depth][PANEL] */
        for (int64_t p0 = 0; p0 < n; p0 += PANEL_DEPTH) {
            int64_t depth = kernel_min(PANEL_DEPTH, n - p0);
            real *to = x_t + p0 * GROUP + r / PANEL * depth * PANEL + r % PANEL;
            for (int64_t p = 0; p < depth; p++) to[p * PANEL] = from ? from[p0 + p] : 0;
        }
    }
}

/* ---- 2: logits ---- */
/* Maximum, its first place and the sum of exponentials of z [rows, STRIDE], column by column; z becomes
 * exp(z - maximum). */
static void span_softmax(int64_t rows, int64_t columns, int64_t v, real *z, span_notes *notes)
{
    for (int64_t j = 0; j < columns; j += VL) {
        vreal most = v_load(z + j), sum = v_zero(), top = v_zero();
        for (int64_t r = 1; r < rows; r++) {
            vreal x = v_load(z + r * STRIDE + j);
            top = v_select((vint)(x > most), v_set1((real)r), top);
            most = v_max(x, most);
        }
        for (int64_t r = 0; r < rows; r++) {
            vreal e = v_exp(v_load(z + r * STRIDE + j) - most);
            v_store(z + r * STRIDE + j, e);
            sum += e;
        }
        v_store(notes->most + j, most);
        v_store(notes->sum + j, sum);
        for (int i = 0; i < VL; i++) notes->top[j + i] = (int32_t)v + (int32_t)top[i];
    }
}

/* What must be taken from the logits before they turn into exponentials. */
static void keep_logits(const block *k, int64_t group, int64_t v, int64_t rows, const real *z)
{
    const xent_args *a = k->a;
    int64_t first = k->first + group * GROUP, count = group_count(k, group);
    for (int64_t i = 0; i < count; i++) {
        int64_t target = a->target[first + i] - v;
        if (target >= 0 && target < rows) k->chosen[group * GROUP + i] = z[target * STRIDE + i];
        for (int64_t r = 0; r < rows && a->logits; r++)
            ((real *)a->logits)[(first + i) * a->vocab + v + r] = z[r * STRIDE + i];
    }
}

static void logits_task(void *context, int64_t task, int worker)
{
    (void)worker;
    const block *k = context;
    const layout *z = &k->z;
    int64_t group = task / (z->parts * z->spans), part = task / z->spans % z->parts, span = task % z->spans;
    int64_t V = k->a->vocab, n = k->a->width, end = part_start(z, V, part + 1);
    int64_t v = part_start(z, V, part) + span * SPAN, rows = kernel_min(SPAN, end - v);
    span_notes *notes = &k->notes[task];
    if (rows <= 0) {
        for (int64_t i = 0; i < GROUP; i++) notes->sum[i] = 0, notes->most[i] = -INFINITY, notes->top[i] = 0;
        return;
    }
    int64_t columns = kernel_blocks(group_count(k, group), VL) * VL;
    real *to = logits_at(k, group, v);
    for (int64_t p = 0; p < n; p += PANEL_DEPTH)
        panel_gemm(rows, columns, kernel_min(PANEL_DEPTH, n - p),
                   (tile_a){(const real *)k->a->weight + v * n + p, n, 1},
                   k->x_t + group * z->x_t_panels + p * GROUP, to, STRIDE, p > 0);
    keep_logits(k, group, v, rows, to);
    span_softmax(rows, columns, v, to, notes);
}

/* ---- 3: labels ---- */
/* Maximum and sum over all blocks for labels at .. at+VL-1 of a group. */
static void whole_sum(const span_notes *notes, int64_t spans, int64_t at, real *most, real *sum, int32_t *top)
{
    vreal largest = v_load(notes[0].most + at), total = v_zero();
    for (int64_t s = 1; s < spans; s++) largest = v_max(v_load(notes[s].most + at), largest);
    for (int64_t s = 0; s < spans; s++)
        total += v_load(notes[s].sum + at) * v_exp(v_load(notes[s].most + at) - largest);
    v_store(most, largest);
    v_store(sum, total);
    for (int i = 0; i < VL; i++) {
        int64_t s = 0;
        while (s + 1 < spans && notes[s].most[at + i] != most[i]) s++;
        top[i] = notes[s].top[at + i];
    }
}

static void label_task(void *context, int64_t task, int worker)
{
    (void)worker;
    const block *k = context;
    const xent_args *a = k->a;
    int64_t group = task / (GROUP / SLICE), slice = task % (GROUP / SLICE) * SLICE;
    int64_t spans = k->z.parts * k->z.spans, end = kernel_min(slice + SLICE, group_count(k, group));
    for (int64_t j = slice; j < end; j += VL) {
        real *most = k->most + group * GROUP + j, sum[VL];
        int32_t top[VL];
        whole_sum(k->notes + group * spans, spans, j, most, sum, top);
        for (int64_t i = 0; i < VL && j + i < end; i++) {
            int64_t at = group * GROUP + j + i, label = k->first + at, target = a->target[label];
            if (a->argmax) a->argmax[label] = top[i];
            ((real *)a->log_prob)[label] = target < 0 ? 0 : k->chosen[at] - most[i] - (real)log(sum[i]);
            k->inverse[at] = k->backward && target >= 0 ? (real)*a->grad_scale / sum[i] : 0;
        }
    }
}

/* ---- 4: gradients ---- */
/* Exponentials [rows, STRIDE] to the gradient of the logits p, which has a place of its own: what is not
 * written over need not go back to memory. */
static void span_gradient(const block *k, int64_t group, int64_t v, int64_t rows, const span_notes *notes,
                          const real *from, real *p)
{
    const int32_t *target = k->a->target + k->first + group * GROUP;
    int64_t count = group_count(k, group);
    real factor[GROUP];
    for (int64_t j = 0; j < count; j += VL) {
        vreal shift = v_load(notes->most + j) - v_load(k->most + group * GROUP + j);
        v_store(factor + j, v_load(k->inverse + group * GROUP + j) * v_exp(shift));
    }
    for (int64_t r = 0; r < rows; r++)
        for (int64_t j = 0; j < count; j += VL)
            v_store(p + r * STRIDE + j, v_load(from + r * STRIDE + j) * v_load(factor + j));
    for (int64_t i = 0; i < count; i++)
        if (target[i] >= v && target[i] < v + rows)
            p[(target[i] - v) * STRIDE + i] -= (real)*k->a->grad_scale;
}

/* d_x [count, width] (+)= p^T [count, rows] W [rows, width] */
static void span_d_x(int64_t count, int64_t rows, int64_t n, const real *p, const real *weight, real *d_x,
                     int accumulate)
{
    real packed[SPAN * PANEL_WIDTH] __attribute__((aligned(64)));
    for (int64_t j = 0; j < n; j += PANEL_WIDTH) {
        int64_t columns = kernel_min(PANEL_WIDTH, n - j);
        panel_pack(rows, columns, weight + j, n, packed);
        panel_gemm(count, columns, rows, (tile_a){p, 1, STRIDE}, packed, d_x + j, n, accumulate);
    }
}

static void part_task(void *context, int64_t part, int worker)
{
    (void)worker;
    const block *k = context;
    const layout *z = &k->z;
    int64_t n = k->a->width, first = part_start(z, k->a->vocab, part),
            end = part_start(z, k->a->vocab, part + 1);
    real p[SPAN * STRIDE] __attribute__((aligned(64)));
    for (int64_t v = first; v < end; v += SPAN)
        for (int64_t group = 0; group < k->groups; group++) {
            int64_t rows = kernel_min(SPAN, end - v), count = group_count(k, group);
            const span_notes *notes = &k->notes[(group * z->parts + part) * z->spans + (v - first) / SPAN];
            span_gradient(k, group, v, rows, notes, logits_at(k, group, v), p);
            span_d_x(count, rows, n, p, (const real *)k->a->weight + v * n,
                     k->d_x + (group * z->parts + part) * GROUP * n, v > first);
            if (k->a->d_weight)
                panel_gemm(rows, n, count, (tile_a){p, STRIDE, 1}, k->x + group * z->x_panels,
                           (real *)k->a->d_weight + v * n, n, 1);
        }
}

/* ---- 5: d_hidden ---- */
/* The sum over the parts, in the first part's place. */
static void sum_task(void *context, int64_t task, int worker)
{
    (void)worker;
    const block *k = context;
    int64_t n = k->a->width, whole = GROUP * n, group = task / (GROUP / SLICE),
            first = task % (GROUP / SLICE) * SLICE;
    int64_t rows = kernel_min(SLICE, group_count(k, group) - first);
    real *to = k->d_x + group * k->z.parts * whole + first * n;
    for (int64_t i = 0, left; left = rows * n - i, left > 0; i += VL) {
        vreal sum = v_load_up_to(to + i, left);
        for (int64_t p = 1; p < k->z.parts; p++) sum += v_load_up_to(to + p * whole + i, left);
        v_store_up_to(to + i, sum, left);
    }
}

/* Labels in order, so that rows with several labels are summed in one order. */
static void scatter(const block *k)
{
    int64_t n = k->a->width;
    for (int64_t r = 0; r < k->count; r++) {
        const real *from = k->d_x + (r / GROUP * k->z.parts * GROUP + r % GROUP) * n;
        real *to = (real *)k->a->d_hidden + xent_row(k->a, k->first + r) * n;
        for (int64_t i = 0, left; left = n - i, left > 0; i += VL)
            v_store_up_to(to + i, v_load_up_to(to + i, left) + v_load_up_to(from + i, left), left);
    }
}

static void run_block(const kernel_run *run, block *k)
{
    k->groups = kernel_blocks(k->count, GROUP);
    int64_t slices = k->groups * (GROUP / SLICE);
    threads_run(run->threads, slices, pack_task, k);
    threads_run(run->threads, k->groups * k->z.parts * k->z.spans, logits_task, k);
    threads_run(run->threads, slices, label_task, k);
    if (!k->backward) return;
    threads_run(run->threads, k->z.parts, part_task, k);
    threads_run(run->threads, slices, sum_task, k);
    scatter(k);
}

static void run_all(const kernel_run *run, const xent_args *a, int backward)
{
    int64_t count = a->count ? *a->count : a->labels;
    block k = block_of(a, run->scratch, backward);
    for (k.first = 0; k.first < count; k.first += k.z.labels) {
        k.count = kernel_min(k.z.labels, count - k.first);
        run_block(run, &k);
    }
}

static void zero_rows(void *context, int64_t task, int worker)
{
    (void)worker;
    const xent_args *a = context;
    int64_t count = kernel_min(ZERO_ROWS, a->n_hidden - task * ZERO_ROWS);
    memset((real *)a->d_hidden + task * ZERO_ROWS * a->width, 0, (size_t)(count * a->width) * sizeof(real));
}

KERNEL(xent_forward, xent_args)
{
    run_all(run, a, 0);
}

KERNEL(xent_backward, xent_args)
{
    threads_run(run->threads, kernel_blocks(a->n_hidden, ZERO_ROWS), zero_rows, (void *)a);
    run_all(run, a, 1);
}
