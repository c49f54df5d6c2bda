/* What a case promises, on every table: agreement with the double reference, finite differences, the same
 * bits, splits, causality. */
#include "support/ops_run.h"

#include "support/device_memory.h"
#include "support/test.h"

#include <math.h>
#include <string.h>

const int64_t op_lengths[OP_LENGTHS] = {0, 1, 5, 16, 33, 70, 131};

/* ---- comparisons ---- */

/* Largest difference relative to the largest value; fails on NaN. */
static void compare(const op_case *c, const op_run *r, const op_run *truth, int tensor, int gradient,
                    double tolerance, const char *table)
{
    const op_tensor *t = &c->tensor[tensor];
    const char *kind = gradient ? "d_" : "";
    double worst = 0, scale = 1e-3;
    for (int64_t i = 0; i < t->count; i++) {
        double got = gradient ? op_run_get_d(r, tensor, i) : op_run_get(r, tensor, i);
        double want = gradient ? op_run_get_d(truth, tensor, i) : op_run_get(truth, tensor, i);
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

static double tolerance_of(const op_case *c, const op_run *r)
{
    if (r->dev->element == 2) return BF16_TOLERANCE;
    if (r->dev->kind == DEVICE_CUDA) return CUDA_F32_TOLERANCE;
    double unit = r->dev->element == 4 ? 0x1p-23 : 0x1p-52;
    return unit * (c->tolerance > 0 ? c->tolerance : DEFAULT_TOLERANCE);
}

static void compare_all(const op_case *c, const op_run *r, const op_run *truth, const char *table)
{
    double tolerance = tolerance_of(c, r);
    for (int i = 0; i < OP_TENSORS && c->tensor[i].name; i++) {
        const op_tensor *t = &c->tensor[i];
        if (op_is_compared(t)) compare(c, r, truth, i, 0, tolerance, table);
        if (c->backward && (t->role == OP_INPUT || op_is_trained(t)))
            compare(c, r, truth, i, 1, tolerance, table);
    }
}

static void same_bits(const op_case *c, const op_run *r, const op_run *other, const char *what)
{
    for (int i = 0; i < OP_TENSORS && c->tensor[i].name; i++) {
        const op_tensor *t = &c->tensor[i];
        if ((op_is_compared(t) && memcmp(r->x[i], other->x[i], r->bytes[i])) ||
            (c->backward && op_has_gradient(t) && memcmp(r->d[i], other->d[i], r->d_bytes[i])))
            fail_msg("%s %s: %s differs between %s", c->family, c->note, t->name, what);
    }
}

/* ---- the promises ---- */

/* sum over outputs of value * given gradient. */
static double objective(const op_case *c, const op_run *r)
{
    double sum = 0;
    for (int i = 0; i < OP_TENSORS && c->tensor[i].name; i++)
        if (c->tensor[i].role == OP_OUTPUT)
            for (int64_t k = 0; k < c->tensor[i].count; k++)
                sum += op_run_get(r, i, k) * op_run_get_d(r, i, k);
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
    op_run exact = op_run_start(c, BLURRY_F64, -1, 1), moved = op_run_start(c, BLURRY_F64, -1, 1);
    op_run_all(&exact);
    for (int i = 0; i < OP_TENSORS && c->tensor[i].name; i++) {
        const op_tensor *t = &c->tensor[i];
        if (t->role != OP_INPUT && !op_is_trained(t)) continue;
        int64_t stride = t->count / most + 1;
        double scale = 1e-3;
        for (int64_t k = 0; k < t->count; k++) scale = fmax(scale, fabs(op_run_get_d(&exact, i, k)));
        for (int64_t k = 0; k < t->count; k += stride) {
            double value[2];
            for (int side = 0; side < 2; side++) {
                op_run_prepare(&moved);
                op_run_set(&moved, i, k, op_run_get(&moved, i, k) + (side ? h : -h));
                op_run_forward(&moved, 0, c->L, 0, 0);
                value[side] = objective(c, &moved);
            }
            op_run_prepare(&moved);
            double slope = (value[1] - value[0]) / (2 * h);
            double got = op_run_get_d(&exact, i, k) - (op_is_trained(t) ? op_run_get_d(&moved, i, k) : 0);
            if (!(fabs(slope - got) < 2e-7 * scale + 1e-8 * fabs(value[0])))
                fail_msg("%s %s: d_%s[%ld] is %.10g, differences give %.10g", c->family, c->note, t->name,
                         (long)k, got, slope);
        }
    }
    op_run_finish(&exact);
    op_run_finish(&moved);
}

/* Whole = parts = token by token, with the state carried. */
static void check_splits(const op_case *c, blurry_dtype dtype, int isa)
{
    static const int64_t cuts[] = {7, 8, 21};
    op_run whole = op_run_start(c, dtype, isa, OP_THREADS), parts = op_run_start(c, dtype, isa, OP_THREADS);
    op_run_forward(&whole, 0, c->L, 1, 0);
    int64_t first = 0;
    for (int i = 0; i < 4; i++) {
        int64_t last = i < 3 && cuts[i] < c->L ? cuts[i] : c->L;
        op_run_forward(&parts, first, last - first, 1, 0);
        first = last;
    }
    op_case forward_only = *c;
    forward_only.backward = NULL;
    compare_all(&forward_only, &parts, &whole, "split");
    op_run_prepare(&parts);
    for (int64_t t = 0; t < c->L; t++) op_run_forward(&parts, t, 1, 1, 0);
    compare_all(&forward_only, &parts, &whole, "steps");
    op_run_finish(&whole);
    op_run_finish(&parts);
}

/* What tokens from `t` on bring changes nothing before t, not by one bit. */
static void check_causality(const op_case *c, blurry_dtype dtype, int isa)
{
    op_run plain = op_run_start(c, dtype, isa, 1), other = op_run_start(c, dtype, isa, 1);
    int64_t t = c->L * 2 / 3;
    for (int i = 0; i < OP_TENSORS && c->tensor[i].name; i++)
        if (c->tensor[i].role == OP_INPUT && c->tensor[i].per_token)
            for (int64_t k = t * c->tensor[i].per_token; k < c->tensor[i].count; k++)
                op_run_set(&other, i, k, op_run_get(&other, i, k) * 0.5 - 0.01);
    op_run_forward(&plain, 0, c->L, 0, 0);
    op_run_forward(&other, 0, c->L, 0, 0);
    for (int i = 0; i < OP_TENSORS && c->tensor[i].name; i++)
        if (c->tensor[i].role == OP_OUTPUT && c->tensor[i].per_token &&
            memcmp(plain.x[i], other.x[i],
                   (size_t)(t * c->tensor[i].per_token) * op_run_element(&plain, &c->tensor[i])))
            fail_msg("%s %s: %s before token %ld depends on later tokens", c->family, c->note,
                     c->tensor[i].name, (long)t);
    op_run_finish(&plain);
    op_run_finish(&other);
}

static void check_table(const op_case *c, const op_run *truth, blurry_dtype dtype, int isa)
{
    const device_ops *table = device_cpu_table(dtype, isa);
    if (!table) return;
    op_run r = op_run_start(c, dtype, isa, OP_THREADS), alone = op_run_start(c, dtype, isa, 1);
    op_run_all(&r);
    compare_all(c, &r, truth, table->name);
    op_run_all(&alone);
    same_bits(c, &r, &alone, "thread counts");
    op_run_prepare(&alone);
    op_run_all(&alone);
    same_bits(c, &r, &alone, "reruns");
    op_run_finish(&r);
    op_run_finish(&alone);
    if (c->splits && c->L > 0) {
        check_splits(c, dtype, isa);
        check_causality(c, dtype, isa);
    }
}

/* One type on the GPU: the truth has the very inputs that the type can hold. */
static void check_cuda(const op_case *c, blurry_dtype dtype)
{
    op_run truth = op_run_start_rounded(c, BLURRY_F64, -1, 1, dtype == BLURRY_BF16);
    op_run_all(&truth);
    op_run r = op_run_start(c, dtype, OP_CUDA, 1), again = op_run_start(c, dtype, OP_CUDA, 1);
    op_run_all(&r);
    compare_all(c, &r, &truth, "cuda");
    op_run_all(&again);
    same_bits(c, &r, &again, "devices");
    if (!TEST_EMULATED) {
        op_run_prepare(&again);
        op_run_all(&again);
        same_bits(c, &r, &again, "reruns");
    }
    op_run_finish(&r);
    op_run_finish(&again);
    op_run_finish(&truth);
    enum { EMULATED_MOST = 40 };
    if (!c->splits || c->L < 1 || (TEST_EMULATED && c->L > EMULATED_MOST)) return;
    check_splits(c, dtype, OP_CUDA);
    check_causality(c, dtype, OP_CUDA);
}

static void check_cpu(const op_case *c)
{
    op_run truth = op_run_start(c, BLURRY_F64, -1, 1);
    op_run_all(&truth);
    for (int isa = -1; isa < CPU_ISA_COUNT; isa++) {
        check_table(c, &truth, BLURRY_F32, isa);
        check_table(c, &truth, BLURRY_F64, isa);
    }
    op_run_finish(&truth);
    if (c->backward) check_finite_differences(c);
}

void op_case_check(const op_case *c)
{
    op_lend_again();
    if (TEST_ON_CUDA) {
        check_cuda(c, BLURRY_F32);
        check_cuda(c, BLURRY_BF16);
    } else {
        check_cpu(c);
    }
}
