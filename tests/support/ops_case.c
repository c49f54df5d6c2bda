/* Runs one case on every table and checks what it promises. */
#include "support/ops_case.h"

#include "base/rng.h"
#include "support/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { GUARD = 64, THREADS = 3 };
static const unsigned char GUARD_BYTE = 0xA5;

/* ---- counting table: every call is noted per slot and table ---- */
static const device_ops *counted_table;
static int counted_index;
enum { TABLES = 2 + 2 * CPU_ISA_COUNT };
typedef struct hits {
#define OP(op, args, contract) int op;
#define SIZES(op, args)        int op;
#include "device/ops.def"
} hits;
static hits counted[TABLES];
static int tried[TABLES];

#define OP(op, args, contract)                                                                               \
    static void counted_##op(const kernel_run *run, const args *a)                                           \
    {                                                                                                        \
        counted[counted_index].op++;                                                                         \
        counted_table->op(run, a);                                                                           \
    }
#define SIZES(op, args)                                                                                      \
    static void counted_##op(const kernel_run *run, const args *a, kernel_sizes *sizes)                      \
    {                                                                                                        \
        counted[counted_index].op++;                                                                         \
        counted_table->op(run, a, sizes);                                                                    \
    }
#include "device/ops.def"

static const device_ops counting = {
    .name = "counting",
#define OP(op, args, contract) .op = counted_##op,
#define SIZES(op, args)        .op = counted_##op,
#include "device/ops.def"
};

void op_coverage_check(void)
{
    for (int i = 0; i < TABLES; i++) {
        if (!tried[i]) continue;
#define OP(op, args, contract)                                                                               \
    if (!counted[i].op) fail_msg("no case calls slot %s of table %d", #op, i);
#define SIZES(op, args)                                                                                      \
    if (!counted[i].op) fail_msg("no case calls slot %s of table %d", #op, i);
#include "device/ops.def"
    }
}

/* ---- one run of a case ---- */
typedef struct run_of_case {
    device *dev;
    size_t element;
    void *x[OP_TENSORS], *d[OP_TENSORS];
    size_t bytes[OP_TENSORS];
} run_of_case;

static int is_compared(const op_tensor *t)
{
    return t->role == OP_OUTPUT || t->role == OP_RESULT || t->role == OP_CARRIED;
}

static int has_gradient(const op_tensor *t)
{
    return t->role == OP_INPUT || t->role == OP_PARAM || t->role == OP_OUTPUT;
}

static size_t bytes_of(const run_of_case *r, const op_tensor *t)
{
    return (size_t)t->count * (t->role == OP_INT ? sizeof(int64_t) : r->element);
}

static void *guarded(size_t bytes)
{
    unsigned char *memory = aligned_alloc(64, kernel_round64(bytes + 2 * GUARD));
    assert_non_null(memory);
    memset(memory, GUARD_BYTE, bytes + 2 * GUARD);
    return memory + GUARD;
}

static void check_guard(const op_case *c, const char *name, const void *memory, size_t bytes)
{
    const unsigned char *m = memory;
    for (int i = 1; i <= GUARD; i++)
        if (m[-i] != GUARD_BYTE || m[bytes + (size_t)i - 1] != GUARD_BYTE)
            fail_msg("%s %s: %s was written out of bounds", c->family, c->note, name);
}

static double get(const run_of_case *r, const void *x, int64_t i)
{
    return r->element == 4 ? (double)((const float *)x)[i] : ((const double *)x)[i];
}

static void set(const run_of_case *r, void *x, int64_t i, double value)
{
    if (r->element == 4)
        ((float *)x)[i] = (float)value;
    else
        ((double *)x)[i] = value;
}

/* Random values that are the same for both types: floats. */
static void fill(const run_of_case *r, void *x, int64_t count, double low, double high, int stream)
{
    rng random = rng_stream(7, RNG_TEST, (uint64_t)stream);
    if (low == 0 && high == 0) low = -1, high = 1;
    for (int64_t i = 0; i < count; i++)
        set(r, x, i, (double)(float)(low + (high - low) * rng_double(&random)));
}

static void poison(const run_of_case *r, void *x, int64_t count)
{
    for (int64_t i = 0; i < count; i++) set(r, x, i, NAN);
}

/* Sets all tensors as they are before a run: inputs, zeros in carried state, NaN in whatever is to be
 * written. */
static void prepare(run_of_case *r, const op_case *c)
{
    for (int i = 0; i < OP_TENSORS && c->tensor[i].name; i++) {
        const op_tensor *t = &c->tensor[i];
        void *x = r->x[i];
        if (t->role == OP_INT)
            memcpy(x, t->ints, r->bytes[i]);
        else if (t->role == OP_BYTES)
            memset(x, 0xff, r->bytes[i]);
        else if (t->role == OP_OUTPUT || t->role == OP_RESULT)
            poison(r, x, t->count);
        else if (t->role == OP_CARRIED)
            for (int64_t k = 0; k < t->count; k++) set(r, x, k, t->low);
        else
            fill(r, x, t->count, t->low, t->high, i);
        if (t->role == OP_INPUT) poison(r, r->d[i], t->count);
        if (t->role == OP_PARAM || t->role == OP_OUTPUT) fill(r, r->d[i], t->count, 0, 0, 100 + i);
    }
}

static run_of_case start(const op_case *c, blurry_dtype dtype, int isa, int threads)
{
    run_of_case r = {0};
    assert_ok(
        device_create(&r.dev, &(device_options){.dtype = dtype, .threads = threads, .reference = isa < 0}));
    counted_table = device_cpu_table(dtype, isa);
    counted_index = (isa + 1) * 2 + (dtype == BLURRY_F64);
    tried[counted_index] = 1;
    r.dev->ops = &counting;
    r.element = r.dev->element;
    kernel_sizes sizes = {0};
    if (c->sizes) c->sizes(c, r.dev, &sizes);
    assert_ok(device_reserve(r.dev, sizes.scratch));
    memset(r.dev->run.scratch, 0xff, r.dev->run.scratch_bytes);
    for (int i = 0; i < OP_TENSORS && c->tensor[i].name; i++) {
        const op_tensor *t = &c->tensor[i];
        r.bytes[i] = t->role == OP_BYTES ? sizes.saved : bytes_of(&r, t);
        r.x[i] = guarded(r.bytes[i]);
        if (has_gradient(t)) r.d[i] = guarded(r.bytes[i]);
    }
    prepare(&r, c);
    return r;
}

static void finish(run_of_case *r, const op_case *c)
{
    for (int i = 0; i < OP_TENSORS && c->tensor[i].name; i++) {
        size_t bytes = r->bytes[i];
        check_guard(c, c->tensor[i].name, r->x[i], bytes);
        free((char *)r->x[i] - GUARD);
        if (!r->d[i]) continue;
        check_guard(c, c->tensor[i].name, r->d[i], bytes);
        free((char *)r->d[i] - GUARD);
    }
    assert_ok(device_sync(r->dev));
    device_destroy(&r->dev);
}

static void forward(run_of_case *r, const op_case *c, int64_t first, int64_t count, int carry, int keep)
{
    c->forward(&(op_call){c, r->dev, r->x, r->d, first, count, carry, keep});
}

static void run_all(run_of_case *r, const op_case *c)
{
    forward(r, c, 0, c->L, 0, 1);
    if (c->backward) c->backward(&(op_call){c, r->dev, r->x, r->d, 0, c->L, 0, 1});
}

void *op_at(const op_call *call, int i)
{
    return (char *)call->x[i] + (size_t)(call->first * call->c->tensor[i].per_token) * call->dev->element;
}

void *op_grad_at(const op_call *call, int i)
{
    return (char *)call->d[i] + (size_t)(call->first * call->c->tensor[i].per_token) * call->dev->element;
}

/* ---- comparisons ---- */

/* Largest difference relative to the largest value; fails on NaN. */
static void compare(const op_case *c, const run_of_case *r, const void *x, const run_of_case *truth,
                    const void *y, const char *kind, const char *name, int64_t count, double tolerance,
                    const char *table)
{
    double worst = 0, scale = 1e-3;
    for (int64_t i = 0; i < count; i++) {
        double got = get(r, x, i), want = get(truth, y, i);
        if (isinf(want) && got == want) continue;
        if (isnan(got) || isnan(want))
            fail_msg("%s %s [%s]: %s%s[%ld] is %g, want %g", c->family, c->note, table, kind, name, (long)i,
                     got, want);
        worst = fmax(worst, fabs(got - want));
        scale = fmax(scale, fabs(want));
    }
    if (worst > tolerance * scale)
        fail_msg("%s %s [%s, %s]: %s%s is off by %.3g of %.3g, allowed %.3g", c->family, c->note, table,
                 r->element == 4 ? "f32" : "f64", kind, name, worst, scale, tolerance * scale);
}

/* In units of the type's rounding: sums of a few hundred terms of mixed sign, through exponentials and
 * quotients. */
static const double DEFAULT_TOLERANCE = 200;

static double tolerance_of(const op_case *c, const run_of_case *r)
{
    double unit = r->element == 4 ? 0x1p-23 : 0x1p-52;
    return unit * (c->tolerance > 0 ? c->tolerance : DEFAULT_TOLERANCE);
}

static void compare_all(const op_case *c, const run_of_case *r, const run_of_case *truth, const char *table)
{
    for (int i = 0; i < OP_TENSORS && c->tensor[i].name; i++) {
        const op_tensor *t = &c->tensor[i];
        double tolerance = tolerance_of(c, r);
        if (is_compared(t))
            compare(c, r, r->x[i], truth, truth->x[i], "", t->name, t->count, tolerance, table);
        if (c->backward && (t->role == OP_INPUT || t->role == OP_PARAM))
            compare(c, r, r->d[i], truth, truth->d[i], "d_", t->name, t->count, tolerance, table);
    }
}

static void same_bits(const op_case *c, const run_of_case *r, const run_of_case *other, const char *what)
{
    for (int i = 0; i < OP_TENSORS && c->tensor[i].name; i++) {
        const op_tensor *t = &c->tensor[i];
        size_t bytes = r->bytes[i];
        if ((is_compared(t) && memcmp(r->x[i], other->x[i], bytes)) ||
            (c->backward && has_gradient(t) && memcmp(r->d[i], other->d[i], bytes)))
            fail_msg("%s %s: %s differs between %s", c->family, c->note, t->name, what);
    }
}

/* ---- the promises ---- */

/* sum over outputs of value * given gradient. */
static double objective(const op_case *c, const run_of_case *r)
{
    double sum = 0;
    for (int i = 0; i < OP_TENSORS && c->tensor[i].name; i++)
        if (c->tensor[i].role == OP_OUTPUT)
            for (int64_t k = 0; k < c->tensor[i].count; k++) sum += get(r, r->x[i], k) * get(r, r->d[i], k);
    return sum;
}

/* Central differences of the double reference, of up to `MOST` elements of every input and parameter. */
static void check_finite_differences(const op_case *c)
{
    enum { MOST = 24 };
    const double h = 1e-5;
    run_of_case exact = start(c, BLURRY_F64, -1, 1), moved = start(c, BLURRY_F64, -1, 1);
    run_all(&exact, c);
    for (int i = 0; i < OP_TENSORS && c->tensor[i].name; i++) {
        const op_tensor *t = &c->tensor[i];
        if (t->role != OP_INPUT && t->role != OP_PARAM) continue;
        int64_t stride = t->count / MOST + 1;
        double scale = 1e-3;
        for (int64_t k = 0; k < t->count; k++) scale = fmax(scale, fabs(get(&exact, exact.d[i], k)));
        for (int64_t k = 0; k < t->count; k += stride) {
            double value[2];
            for (int side = 0; side < 2; side++) {
                prepare(&moved, c);
                set(&moved, moved.x[i], k, get(&moved, moved.x[i], k) + (side ? h : -h));
                forward(&moved, c, 0, c->L, 0, 0);
                value[side] = objective(c, &moved);
            }
            prepare(&moved, c);
            double slope = (value[1] - value[0]) / (2 * h);
            double got = get(&exact, exact.d[i], k) - (t->role == OP_PARAM ? get(&moved, moved.d[i], k) : 0);
            if (!(fabs(slope - got) < 2e-7 * scale + 1e-8 * fabs(value[0])))
                fail_msg("%s %s: d_%s[%ld] is %.10g, differences give %.10g", c->family, c->note, t->name,
                         (long)k, got, slope);
        }
    }
    finish(&exact, c);
    finish(&moved, c);
}

/* Whole = parts = token by token, with the state carried. */
static void check_splits(const op_case *c, blurry_dtype dtype, int isa)
{
    static const int64_t cuts[] = {7, 8, 21};
    run_of_case whole = start(c, dtype, isa, THREADS), parts = start(c, dtype, isa, THREADS);
    forward(&whole, c, 0, c->L, 1, 0);
    int64_t first = 0;
    for (int i = 0; i < 4; i++) {
        int64_t last = i < 3 && cuts[i] < c->L ? cuts[i] : c->L;
        forward(&parts, c, first, last - first, 1, 0);
        first = last;
    }
    op_case forward_only = *c;
    forward_only.backward = NULL;
    compare_all(&forward_only, &parts, &whole, "split");
    prepare(&parts, c);
    for (int64_t t = 0; t < c->L; t++) forward(&parts, c, t, 1, 1, 0);
    compare_all(&forward_only, &parts, &whole, "steps");
    finish(&whole, c);
    finish(&parts, c);
}

/* What tokens from `t` on bring changes nothing before t, not by one bit. */
static void check_causality(const op_case *c, blurry_dtype dtype, int isa)
{
    run_of_case plain = start(c, dtype, isa, 1), other = start(c, dtype, isa, 1);
    int64_t t = c->L * 2 / 3;
    for (int i = 0; i < OP_TENSORS && c->tensor[i].name; i++)
        if (c->tensor[i].role == OP_INPUT && c->tensor[i].per_token)
            for (int64_t k = t * c->tensor[i].per_token; k < c->tensor[i].count; k++)
                set(&other, other.x[i], k, get(&other, other.x[i], k) * 0.5 - 0.01);
    forward(&plain, c, 0, c->L, 0, 0);
    forward(&other, c, 0, c->L, 0, 0);
    for (int i = 0; i < OP_TENSORS && c->tensor[i].name; i++)
        if (c->tensor[i].role == OP_OUTPUT && c->tensor[i].per_token &&
            memcmp(plain.x[i], other.x[i], (size_t)(t * c->tensor[i].per_token) * plain.element))
            fail_msg("%s %s: %s before token %ld depends on later tokens", c->family, c->note,
                     c->tensor[i].name, (long)t);
    finish(&plain, c);
    finish(&other, c);
}

static void check_table(const op_case *c, const run_of_case *truth, blurry_dtype dtype, int isa)
{
    const device_ops *table = device_cpu_table(dtype, isa);
    if (!table) return;
    run_of_case r = start(c, dtype, isa, THREADS), alone = start(c, dtype, isa, 1);
    run_all(&r, c);
    compare_all(c, &r, truth, table->name);
    run_all(&alone, c);
    same_bits(c, &r, &alone, "thread counts");
    prepare(&alone, c);
    run_all(&alone, c);
    same_bits(c, &r, &alone, "reruns");
    finish(&r, c);
    finish(&alone, c);
    if (c->splits && c->L > 0) {
        check_splits(c, dtype, isa);
        check_causality(c, dtype, isa);
    }
}

void op_case_check(const op_case *c)
{
    run_of_case truth = start(c, BLURRY_F64, -1, 1);
    run_all(&truth, c);
    for (int isa = -1; isa < CPU_ISA_COUNT; isa++) {
        check_table(c, &truth, BLURRY_F32, isa);
        check_table(c, &truth, BLURRY_F64, isa);
    }
    finish(&truth, c);
    if (c->backward) check_finite_differences(c);
}
