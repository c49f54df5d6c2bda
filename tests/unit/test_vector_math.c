/* The vector exponential within its stated error on every instruction set, and its special values. */
#include "support/test.h"

#include "base/cpu.h"

#include <math.h>

typedef void exp_probe(const double *x, double *y, int n);
typedef double sum_probe(const double *x, double *high);
#define PROBE(suffix)                                                                                        \
    exp_probe vector_probe_exp_##suffix;                                                                     \
    sum_probe vector_probe_sum_##suffix;
PROBE(base_f32)
PROBE(base_f64)
#if defined(__x86_64__)
PROBE(avx2_f32)
PROBE(avx2_f64)
PROBE(avx512_f32)
PROBE(avx512_f64)
#endif

static const struct {
    cpu_isa isa;
    int is_float;
    exp_probe *exp;
    sum_probe *sum;
} probes[] = {
    {CPU_ISA_BASE, 1, vector_probe_exp_base_f32, vector_probe_sum_base_f32},
    {CPU_ISA_BASE, 0, vector_probe_exp_base_f64, vector_probe_sum_base_f64},
#if defined(__x86_64__)
    {CPU_ISA_AVX2, 1, vector_probe_exp_avx2_f32, vector_probe_sum_avx2_f32},
    {CPU_ISA_AVX2, 0, vector_probe_exp_avx2_f64, vector_probe_sum_avx2_f64},
    {CPU_ISA_AVX512, 1, vector_probe_exp_avx512_f32, vector_probe_sum_avx512_f32},
    {CPU_ISA_AVX512, 0, vector_probe_exp_avx512_f64, vector_probe_sum_avx512_f64},
#endif
};

enum { N = 1 << 12 };

static void exponential(void **state)
{
    (void)state;
    static double x[N], y[N];
    for (size_t p = 0; p < sizeof probes / sizeof probes[0]; p++) {
        if (!cpu_isa_supported(probes[p].isa)) continue;
        double low = probes[p].is_float ? -87 : -708, high = probes[p].is_float ? 88 : 709;
        double unit = probes[p].is_float ? 0x1p-23 : 0x1p-52;
        for (int pass = 0; pass < 64; pass++) {
            for (int i = 0; i < N; i++) {
                double at = ((double)i + (double)pass / 64) / N;
                x[i] = pass % 2 ? low + (high - low) * at
                                : -1 + 2 * at; /* the whole range, and densely around 0 */
                if (probes[p].is_float) x[i] = (double)(float)x[i];
            }
            probes[p].exp(x, y, N);
            for (int i = 0; i < N; i++) {
                long double want = expl((long double)x[i]);
                if (fabsl((long double)y[i] - want) > 2 * unit * want)
                    fail_msg("%s: exp(%.17g) is %.17g", cpu_isa_name(probes[p].isa), x[i], y[i]);
            }
        }
        double special[16] = {0, -INFINITY, NAN, INFINITY, -1e30, -0.0, low - 1, high + 1}, got[16];
        probes[p].exp(special, got, 16);
        assert_true(got[0] == 1 && got[1] == 0 && isnan(got[2]) && got[4] == 0 && got[5] == 1 && got[6] == 0);
        assert_true(isfinite(got[3]) && got[3] == got[7] && got[3] > 1e37); /* saturated */
    }
}

static void sums(void **state)
{
    (void)state;
    const double x[16] = {1, -2, 3, 4.5, 0.25, 6, -7, 8, 9, -10, 11, 12, 13, 14.5, -15, 16};
    for (size_t p = 0; p < sizeof probes / sizeof probes[0]; p++) {
        if (!cpu_isa_supported(probes[p].isa)) continue;
        static const int bytes[] = {16, 32, 64};
        int lanes = bytes[probes[p].isa] / (probes[p].is_float ? 4 : 8);
        double want = 0, top = -INFINITY, high;
        for (int i = 0; i < lanes; i++) want += x[i], top = fmax(top, x[i]);
        assert_true(probes[p].sum(x, &high) == want && high == top);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(exponential), cmocka_unit_test(sums)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
