/* The CUDA operator against the double-precision reference: shapes that reach every path, then random ones.
 *     test_operator [random cases] [first seed] */
#include "kernels/blurry/cuda_fast.h"
#include "operator_case.h"

#include <stdio.h>
#include <stdlib.h>

static const double tolerance_f32 = 1e-4, tolerance_bf16 = 2e-2;

static int check(const operator_case &c)
{
    double tolerance = c.dtype == BLURRY_BF16 ? tolerance_bf16 : tolerance_f32;
    operator_errors e = operator_case_run(c);
    operator_case_print(c, e, tolerance);
    return e.worst >= 0 && e.worst <= tolerance ? 0 : 1;
}

static const operator_case fixed[] = {
    /* dtype B L H Hkv Dk Dv M T step decay relative position states packed period seed */
    {BLURRY_F32, 1, 20, 1, 1, 16, 16, 4, 14, 0, 0, 0, 0, 0, 0, 0, 1},
    {BLURRY_F32, 2, 19, 2, 2, 16, 8, 4, 14, 3.3, 1, 0, 0, 1, 0, 1, 2},
    {BLURRY_F32, 2, 21, 4, 2, 8, 16, 6, 30.5, 0, 0, 1, 5, 1, 0, 1, 3},
    {BLURRY_F32, 3, 11, 1, 1, 40, 40, 8, 15, 0, 1, 0, 1000000007, 1, 1, 1, 4},
    {BLURRY_F32, 1, 0, 1, 1, 16, 16, 4, 14, 0, 1, 0, 0, 1, 0, 1, 5},
    {BLURRY_F32, 1, 1, 1, 1, 16, 16, 1, 14, 0, 1, 0, 0, 1, 0, 1, 6},
    {BLURRY_F32, 1, 40, 1, 1, 16, 16, 16, 900, 0, 1, 0, 0, 1, 0, 1, 7},
    /* float kernels: all widths and numbers of slots, groups of sequences and windows of chunks */
    {BLURRY_F32, 1, 150, 2, 1, 64, 64, 64, 254, 0, 1, 0, 0, 1, 0, 1, 14},
    {BLURRY_F32, 2, 100, 2, 2, 32, 32, 20, 78.5, 3.3, 0, 0, 77, 1, 0, 1, 15},
    {BLURRY_F32, 1, 70, 1, 1, 128, 96, 32, 126, 0, 1, 0, 1000000000, 1, 0, 1, 16},
    {BLURRY_F32, 1, 130, 1, 1, 128, 128, 128, 300.5, 0, 1, 0, 0, 1, 0, 0, 17},
    {BLURRY_F32, 2, 140, 20, 20, 16, 12, 9, 34, 0, 1, 0, 3, 1, 1, 1, 18},
    {BLURRY_F32, 5, 66, 16, 16, 16, 16, 9, 34, 0.7, 1, 0, 3, 1, 0, 0, 19},
    {BLURRY_F32, 40, 8, 8, 1, 16, 16, 9, 34, 0, 1, 0, 3, 1, 1, 1, 34},  /* states kept before windows */
    {BLURRY_F32, 1, 90, 1, 1, 32, 32, 32, 63, 0, 1, 0, 0, 0, 0, 1, 30}, /* gates of 0 */
    {BLURRY_F32, 1, 90, 3, 1, 32, 32, 32, 63.0001, 0, 1, 0, 0, 0, 0, 1, 31},
    {BLURRY_BF16, 1, 100, 2, 1, 64, 32, 128, 510, 0, 1, 0, 0, 1, 0, 0, 20},
    {BLURRY_BF16, 2, 70, 4, 2, 64, 64, 64, 200, 0.5, 1, 0, 9, 1, 1, 1, 32},
    {BLURRY_BF16, 1, 100, 1, 1, 128, 128, 32, 126, 0, 0, 0, 0, 1, 0, 1, 33},
    /* several segments (folded and scanned), with and without decay and notes */
    {BLURRY_BF16, 1, 330, 2, 1, 64, 64, 64, 254, 0, 1, 0, 0, 1, 0, 0, 8},
    {BLURRY_BF16, 1, 390, 1, 1, 32, 32, 20, 78.5, 0, 0, 0, 77, 1, 0, 0, 9},
    {BLURRY_BF16, 1, 1000, 1, 1, 32, 32, 20, 78, 0, 1, 0, 0, 1, 0, 0, 10},
    {BLURRY_BF16, 2, 500, 1, 1, 32, 24, 20, 78, 0, 0, 0, 3, 1, 1, 0, 11},
    {BLURRY_BF16, 1, 150, 1, 1, 128, 128, 64, 254, 0, 1, 0, 0, 1, 0, 0, 12},
    {BLURRY_BF16, 1, 75, 3, 1, 128, 128, 64, 254, 0, 0, 0, 0, 1, 0, 0, 21},
    {BLURRY_BF16, 1, 150, 1, 1, 128, 128, 32, 126, 0, 0, 0, 0, 0, 0, 0, 13},
    {BLURRY_BF16, 1, 75, 3, 1, 96, 96, 44, 200, 0, 1, 0, 0, 1, 0, 0, 22},
    /* 32 slots at most: all widths, one segment and several, packed, groups of heads */
    {BLURRY_BF16, 2, 130, 2, 1, 64, 64, 16, 62, 0, 1, 0, 5, 1, 0, 0, 23},
    {BLURRY_BF16, 2, 200, 1, 1, 64, 64, 16, 62, 0, 0, 0, 0, 0, 0, 0, 24},
    {BLURRY_BF16, 1, 270, 1, 1, 64, 48, 16, 62.5, 0, 1, 0, 9, 1, 0, 0, 25},
    {BLURRY_BF16, 3, 150, 2, 2, 32, 24, 8, 30, 2.5, 1, 0, 3, 1, 1, 0, 26},
    {BLURRY_BF16, 1, 90, 3, 1, 128, 96, 15, 87, 0, 1, 0, 0, 1, 0, 0, 27},
    {BLURRY_BF16, 2, 140, 1, 1, 128, 128, 4, 14, 0, 0, 0, 0, 1, 0, 0, 28},
    {BLURRY_BF16, 1, 70, 1, 1, 32, 32, 1, 3, 0, 1, 0, 0, 1, 0, 0, 29},
};

static operator_case random_case(uint64_t seed)
{
    uint64_t s = seed * 0x9e3779b97f4a7c15u + 12345;
    auto draw = [&s](int64_t n) {
        s = s * 6364136223846793005u + 1442695040888963407u;
        return (int64_t)((s >> 33) % (uint64_t)n);
    };
    static const int64_t widths[] = {32, 64, 96, 128, 16, 40, 72, 100};
    operator_case c = {};
    c.dtype = draw(3) ? BLURRY_BF16 : BLURRY_F32;
    c.B = 1 + draw(3), c.L = draw(4) ? 1 + draw(150) : draw(12);
    c.Hkv = 1 + draw(2), c.H = c.Hkv * (1 + draw(2));
    c.Dk = widths[draw(draw(3) ? 2 : 8)], c.Dv = draw(4) ? c.Dk : widths[draw(8)];
    c.M = draw(3) ? 1 + draw(33) : 1 + draw(80);
    double S = 2.0 * (double)c.M - 1, ratios[] = {1, 2, 2, 3, 1.7, 2.31, 5.5, 0.5, 16, 40};
    c.T = S * ratios[draw(10)], c.T_step = draw(3) ? 0 : 1.25;
    c.decay = (int)draw(2), c.relative = !c.decay && draw(4) == 0;
    c.position = draw(2) ? 0 : draw(3) ? draw(500) : 1000000000;
    c.states = (int)draw(2), c.packed = c.B > 1 && draw(3) == 0 && c.L > 0, c.period = draw(4) == 0;
    c.seed = seed;
    return c;
}

/* Both forms, where there are two. */
static int check_forms(const operator_case &c)
{
    int failures = 0;
    for (fast_wished_form = 1; fast_wished_form <= (c.dtype == BLURRY_BF16 && c.M <= 64 ? 2 : 1);
         fast_wished_form++)
        failures += check(c);
    fast_wished_form = 0;
    return failures;
}

int main(int count, char **arguments)
{
    int failures = 0, random = count > 1 ? atoi(arguments[1]) : 4,
        first = count > 2 ? atoi(arguments[2]) : 100;
    if (first == 100)
        for (const operator_case &c : fixed) failures += check_forms(c);
    for (int i = 0; i < random; i++) failures += check(random_case((uint64_t)(first + i)));
    printf("%d failed\n", failures);
    return failures != 0;
}
