/* Runs one case on every table and checks what it promises. */
#include "support/ops_case.h"

#include "base/rng.h"
#include "support/device_memory.h"
#include "support/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { GUARD = 64, THREADS = 3 };
static const unsigned char GUARD_BYTE = 0xA5;

/* ---- counting table: every call is noted per slot and table ---- */
static const device_ops *counted_table;
static int counted_index;
enum { CUDA_TABLE = 2 + 2 * CPU_ISA_COUNT, TABLES = CUDA_TABLE + 2 };
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

const int64_t op_lengths[OP_LENGTHS] = {0, 1, 5, 16, 33, 70, 131};

/* ---- one run of a case ---- */
typedef struct run_of_case {
    device *dev;
    const op_case *c;
    int rounded; /* activations hold values that bf16 has too: the truth for a run in bf16 */
    void *x[OP_TENSORS], *d[OP_TENSORS];
    size_t bytes[OP_TENSORS], d_bytes[OP_TENSORS];
} run_of_case;

static int is_compared(const op_tensor *t)
{
    return t->role == OP_OUTPUT || t->role == OP_RESULT || t->role == OP_CARRIED;
}

static int has_gradient(const op_tensor *t)
{
    return t->role == OP_INPUT || t->role == OP_PARAM || t->role == OP_WEIGHT || t->role == OP_OUTPUT;
}

/* Whether a gradient is added to. */
static int is_trained(const op_tensor *t)
{
    return t->role == OP_PARAM || t->role == OP_WEIGHT;
}

/* ---- types ---- */
static op_type type_of(const op_tensor *t)
{
    if (t->type != OP_BY_ROLE) return t->type;
    if (t->role == OP_PARAM) return OP_PARAMETER;
    return t->role == OP_RESULT || t->role == OP_CARRIED ? OP_STATISTIC : OP_ACTIVATION;
}

static op_type gradient_type(const op_tensor *t)
{
    return is_trained(t) ? OP_PARAMETER : type_of(t);
}

static size_t element_of(const device *dev, op_type type)
{
    return type == OP_ACTIVATION  ? dev->element
           : type == OP_PARAMETER ? dev->param_element
                                  : dev->stat_element;
}

static double get_element(const void *x, int64_t i, size_t element)
{
    if (element == 8) return ((const double *)x)[i];
    if (element == 4) return ((const float *)x)[i];
    union {
        uint32_t bits;
        float value;
    } wide = {.bits = (uint32_t)((const uint16_t *)x)[i] << 16};
    return wide.value;
}

/* To the nearest bf16, ties to even. */
static uint16_t bf16_of(float value)
{
    union {
        float value;
        uint32_t bits;
    } wide = {.value = value};
    if (isnan(value)) return 0x7fff;
    return (uint16_t)((wide.bits + 0x7fff + (wide.bits >> 16 & 1)) >> 16);
}

static void set_element(void *x, int64_t i, size_t element, double value)
{
    if (element == 8)
        ((double *)x)[i] = value;
    else if (element == 4)
        ((float *)x)[i] = (float)value;
    else
        ((uint16_t *)x)[i] = bf16_of((float)value);
}

/* Element k of tensor i, and of its gradient. */
static double get(const run_of_case *r, int i, int64_t k)
{
    return get_element(r->x[i], k, element_of(r->dev, type_of(&r->c->tensor[i])));
}
static void set(const run_of_case *r, int i, int64_t k, double value)
{
    set_element(r->x[i], k, element_of(r->dev, type_of(&r->c->tensor[i])), value);
}
static double get_d(const run_of_case *r, int i, int64_t k)
{
    return get_element(r->d[i], k, element_of(r->dev, gradient_type(&r->c->tensor[i])));
}

double op_get(const op_call *call, int i, int64_t k)
{
    return get_element(call->x[i], k, op_bytes(call, i));
}

void op_set(const op_call *call, int i, int64_t k, double value)
{
    set_element(call->x[i], k, op_bytes(call, i), value);
}

size_t op_bytes(const op_call *call, int i)
{
    return element_of(call->dev, type_of(&call->c->tensor[i]));
}

/* ---- memory ---- */
static void *guarded(const device *dev, size_t bytes)
{
    unsigned char *memory = test_device_memory(dev, kernel_round64(bytes + 2 * GUARD));
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

/* What cases lend to a CUDA device lies in one piece that is used anew for every case. */
static char *lent;
static size_t lent_bytes;

void *op_lend(const op_call *call, const void *data, size_t bytes)
{
    enum { LEND_MOST = 1 << 24 };
    if (call->dev->kind == DEVICE_CPU) return (void *)data;
    if (!lent) lent = test_device_memory(call->dev, LEND_MOST);
    assert_true(lent_bytes + bytes + 64 <= LEND_MOST);
    char *to = lent + lent_bytes;
    lent_bytes += kernel_round64(bytes);
    memcpy(to, data, bytes);
    return to;
}

void op_wait(const op_call *call)
{
    assert_ok(device_sync(call->dev));
}

/* Random values that are the same for all types: floats, or where asked bf16. */
static void fill(const run_of_case *r, void *x, op_type type, const op_tensor *t, int gradient, int stream)
{
    rng random = rng_stream(7, RNG_TEST, (uint64_t)stream);
    double low = gradient ? 0 : t->low, high = gradient ? 0 : t->high;
    if (low == 0 && high == 0) low = -1, high = 1;
    for (int64_t i = 0; i < t->count; i++) {
        float value = (float)(low + (high - low) * rng_double(&random));
        if (r->rounded && type == OP_ACTIVATION) {
            uint16_t rounded = bf16_of(value);
            value = (float)get_element(&rounded, 0, 2);
        }
        set_element(x, i, element_of(r->dev, type), (double)value);
    }
}

static void poison(const run_of_case *r, void *x, op_type type, int64_t count)
{
    for (int64_t i = 0; i < count; i++) set_element(x, i, element_of(r->dev, type), NAN);
}

/* Sets all tensors as they are before a run: inputs, zeros in carried state, NaN in whatever is to be
 * written. */
static void prepare(run_of_case *r, const op_case *c)
{
    assert_ok(device_sync(r->dev));
    for (int i = 0; i < OP_TENSORS && c->tensor[i].name; i++) {
        const op_tensor *t = &c->tensor[i];
        op_type type = type_of(t), d_type = gradient_type(t);
        void *x = r->x[i];
        if (t->role == OP_INT)
            memcpy(x, t->ints, r->bytes[i]);
        else if (t->role == OP_BYTES)
            memset(x, 0xff, r->bytes[i]);
        else if (t->role == OP_OUTPUT || t->role == OP_RESULT)
            poison(r, x, type, t->count);
        else if (t->role == OP_CARRIED)
            for (int64_t k = 0; k < t->count; k++) set(r, i, k, t->low);
        else
            fill(r, x, type, t, 0, i);
        if (t->role == OP_INPUT) poison(r, r->d[i], d_type, t->count);
        if (is_trained(t) || t->role == OP_OUTPUT) fill(r, r->d[i], d_type, t, 1, 100 + i);
    }
}

/* Which table a run uses: isa -1 is the CPU's reference, CUDA the table of the GPU. */
enum { CUDA = 100 };

static void choose_table(run_of_case *r, blurry_dtype dtype, int isa, int threads)
{
    device_options options = {.kind = isa == CUDA ? DEVICE_CUDA : DEVICE_CPU,
                              .dtype = dtype,
                              .threads = threads,
                              .reference = isa < 0};
    assert_ok(device_create(&r->dev, &options));
    counted_table = isa == CUDA ? r->dev->ops : device_cpu_table(dtype, isa);
    counted_index = isa == CUDA ? CUDA_TABLE + (dtype == BLURRY_BF16) : (isa + 1) * 2 + (dtype == BLURRY_F64);
    tried[counted_index] = 1;
    r->dev->ops = &counting;
}

static run_of_case start_rounded(const op_case *c, blurry_dtype dtype, int isa, int threads, int rounded)
{
    run_of_case r = {.c = c, .rounded = rounded};
    choose_table(&r, dtype, isa, threads);
    kernel_sizes sizes = {0};
    if (c->sizes) c->sizes(c, r.dev, &sizes);
    assert_ok(device_reserve(r.dev, sizes.scratch));
    if (isa != CUDA) memset(r.dev->run.scratch, 0xff, r.dev->run.scratch_bytes);
    for (int i = 0; i < OP_TENSORS && c->tensor[i].name; i++) {
        const op_tensor *t = &c->tensor[i];
        size_t element = t->role == OP_INT ? sizeof(int64_t) : element_of(r.dev, type_of(t));
        r.bytes[i] = t->role == OP_BYTES ? sizes.saved : (size_t)t->count * element;
        r.d_bytes[i] = (size_t)t->count * element_of(r.dev, gradient_type(t));
        r.x[i] = guarded(r.dev, r.bytes[i]);
        if (has_gradient(t)) r.d[i] = guarded(r.dev, r.d_bytes[i]);
    }
    prepare(&r, c);
    return r;
}

static run_of_case start(const op_case *c, blurry_dtype dtype, int isa, int threads)
{
    return start_rounded(c, dtype, isa, threads, dtype == BLURRY_BF16);
}

static void finish(run_of_case *r, const op_case *c)
{
    assert_ok(device_sync(r->dev));
    for (int i = 0; i < OP_TENSORS && c->tensor[i].name; i++) {
        check_guard(c, c->tensor[i].name, r->x[i], r->bytes[i]);
        test_device_free(r->dev, (char *)r->x[i] - GUARD);
        if (!r->d[i]) continue;
        check_guard(c, c->tensor[i].name, r->d[i], r->d_bytes[i]);
        test_device_free(r->dev, (char *)r->d[i] - GUARD);
    }
    device_destroy(&r->dev);
}

static void forward(run_of_case *r, const op_case *c, int64_t first, int64_t count, int carry, int keep)
{
    op_call call = {c, r->dev, r->x, r->d, first, count, carry, keep};
    c->forward(&call);
    op_wait(&call);
}

static void run_all(run_of_case *r, const op_case *c)
{
    forward(r, c, 0, c->L, 0, 1);
    if (c->backward) c->backward(&(op_call){c, r->dev, r->x, r->d, 0, c->L, 0, 1});
    assert_ok(device_sync(r->dev));
}

void *op_at(const op_call *call, int i)
{
    return (char *)call->x[i] + (size_t)(call->first * call->c->tensor[i].per_token) * op_bytes(call, i);
}

void *op_grad_at(const op_call *call, int i)
{
    size_t element = element_of(call->dev, gradient_type(&call->c->tensor[i]));
    return (char *)call->d[i] + (size_t)(call->first * call->c->tensor[i].per_token) * element;
}

/* ---- comparisons ---- */

/* Largest difference relative to the largest value; fails on NaN. */
static void compare(const op_case *c, const run_of_case *r, const run_of_case *truth, int tensor,
                    int gradient, double tolerance, const char *table)
{
    const op_tensor *t = &c->tensor[tensor];
    const char *kind = gradient ? "d_" : "";
    double worst = 0, scale = 1e-3;
    for (int64_t i = 0; i < t->count; i++) {
        double got = gradient ? get_d(r, tensor, i) : get(r, tensor, i);
        double want = gradient ? get_d(truth, tensor, i) : get(truth, tensor, i);
        if (isinf(want) && got == want) continue;
        if (isnan(got) || isnan(want))
            fail_msg("%s %s [%s]: %s%s[%ld] is %g, want %g", c->family, c->note, table, kind, t->name,
                     (long)i, got, want);
        worst = fmax(worst, fabs(got - want));
        scale = fmax(scale, fabs(want));
    }
    if (worst > tolerance * scale)
        fail_msg("%s %s [%s, %zu bytes; B %ld L %ld H %ld K %ld V %ld S %ld]: %s%s is off by %.3g of %.3g, "
                 "allowed %.3g",
                 c->family, c->note, table, r->dev->element, (long)c->B, (long)c->L, (long)c->H, (long)c->K,
                 (long)c->V, (long)c->S, kind, t->name, worst, scale, tolerance * scale);
}

/* In units of the type's rounding: sums of a few hundred terms of mixed sign, through exponentials and
 * quotients. */
static const double DEFAULT_TOLERANCE = 200;
/* Of bf16: inputs are exact, factors of products and outputs are rounded to 8 bits. */
static const double BF16_TOLERANCE = 2e-2;
/* Of float on CUDA: products of tiles are three TF32 products, gates are fast exponentials. */
static const double CUDA_F32_TOLERANCE = 1e-4;

static double tolerance_of(const op_case *c, const run_of_case *r)
{
    if (r->dev->element == 2) return BF16_TOLERANCE;
    if (r->dev->kind == DEVICE_CUDA) return CUDA_F32_TOLERANCE;
    double unit = r->dev->element == 4 ? 0x1p-23 : 0x1p-52;
    return unit * (c->tolerance > 0 ? c->tolerance : DEFAULT_TOLERANCE);
}

static void compare_all(const op_case *c, const run_of_case *r, const run_of_case *truth, const char *table)
{
    double tolerance = tolerance_of(c, r);
    for (int i = 0; i < OP_TENSORS && c->tensor[i].name; i++) {
        const op_tensor *t = &c->tensor[i];
        if (is_compared(t)) compare(c, r, truth, i, 0, tolerance, table);
        if (c->backward && (t->role == OP_INPUT || is_trained(t)))
            compare(c, r, truth, i, 1, tolerance, table);
    }
}

static void same_bits(const op_case *c, const run_of_case *r, const run_of_case *other, const char *what)
{
    for (int i = 0; i < OP_TENSORS && c->tensor[i].name; i++) {
        const op_tensor *t = &c->tensor[i];
        if ((is_compared(t) && memcmp(r->x[i], other->x[i], r->bytes[i])) ||
            (c->backward && has_gradient(t) && memcmp(r->d[i], other->d[i], r->d_bytes[i])))
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
            for (int64_t k = 0; k < c->tensor[i].count; k++) sum += get(r, i, k) * get_d(r, i, k);
    return sum;
}

/* Central differences of the double reference, of some elements of every input and parameter: fewer where a
 * pass takes long, since the reference is the same code at every size. */
static void check_finite_differences(const op_case *c)
{
    enum { MOST = 24, MOST_OF_LARGE = 4, LARGE = 20000 };
    const double h = 1e-5;
    int64_t elements = 0;
    for (int i = 0; i < OP_TENSORS && c->tensor[i].name; i++) elements += c->tensor[i].count;
    const int64_t most = elements > LARGE ? MOST_OF_LARGE : MOST;
    run_of_case exact = start(c, BLURRY_F64, -1, 1), moved = start(c, BLURRY_F64, -1, 1);
    run_all(&exact, c);
    for (int i = 0; i < OP_TENSORS && c->tensor[i].name; i++) {
        const op_tensor *t = &c->tensor[i];
        if (t->role != OP_INPUT && !is_trained(t)) continue;
        int64_t stride = t->count / most + 1;
        double scale = 1e-3;
        for (int64_t k = 0; k < t->count; k++) scale = fmax(scale, fabs(get_d(&exact, i, k)));
        for (int64_t k = 0; k < t->count; k += stride) {
            double value[2];
            for (int side = 0; side < 2; side++) {
                prepare(&moved, c);
                set(&moved, i, k, get(&moved, i, k) + (side ? h : -h));
                forward(&moved, c, 0, c->L, 0, 0);
                value[side] = objective(c, &moved);
            }
            prepare(&moved, c);
            double slope = (value[1] - value[0]) / (2 * h);
            double got = get_d(&exact, i, k) - (is_trained(t) ? get_d(&moved, i, k) : 0);
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
                set(&other, i, k, get(&other, i, k) * 0.5 - 0.01);
    forward(&plain, c, 0, c->L, 0, 0);
    forward(&other, c, 0, c->L, 0, 0);
    for (int i = 0; i < OP_TENSORS && c->tensor[i].name; i++)
        if (c->tensor[i].role == OP_OUTPUT && c->tensor[i].per_token &&
            memcmp(plain.x[i], other.x[i],
                   (size_t)(t * c->tensor[i].per_token) * element_of(plain.dev, type_of(&c->tensor[i]))))
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

/* One type on the GPU: the truth has the very inputs that the type can hold. */
static void check_cuda(const op_case *c, blurry_dtype dtype)
{
    run_of_case truth = start_rounded(c, BLURRY_F64, -1, 1, dtype == BLURRY_BF16);
    run_all(&truth, c);
    run_of_case r = start(c, dtype, CUDA, 1), again = start(c, dtype, CUDA, 1);
    run_all(&r, c);
    compare_all(c, &r, &truth, "cuda");
    run_all(&again, c);
    same_bits(c, &r, &again, "devices");
    if (!TEST_EMULATED) {
        prepare(&again, c);
        run_all(&again, c);
        same_bits(c, &r, &again, "reruns");
    }
    finish(&r, c);
    finish(&again, c);
    finish(&truth, c);
    enum { EMULATED_MOST = 40 };
    if (!c->splits || c->L < 1 || (TEST_EMULATED && c->L > EMULATED_MOST)) return;
    check_splits(c, dtype, CUDA);
    check_causality(c, dtype, CUDA);
}

static void check_cpu(const op_case *c)
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

void op_case_check(const op_case *c)
{
    lent_bytes = 0;
    if (TEST_ON_CUDA) {
        check_cuda(c, BLURRY_F32);
        check_cuda(c, BLURRY_BF16);
    } else {
        check_cpu(c);
    }
}
