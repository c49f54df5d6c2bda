/* The vector helpers as plain functions, compiled once per instruction set and type (tests/CMakeLists.txt).
 */
#include "kernels/vector_math.h"

void VARIANT(vector_probe_exp)(const double *x, double *y, int n);
double VARIANT(vector_probe_sum)(const double *x, double *high);

/* y [n] = v_exp(x), n a multiple of 16. */
void VARIANT(vector_probe_exp)(const double *x, double *y, int n)
{
    for (int i = 0; i < n; i += VL) {
        vreal v;
        for (int e = 0; e < VL; e++) v[e] = (real)x[i + e];
        v = v_exp(v);
        for (int e = 0; e < VL; e++) y[i + e] = (double)v[e];
    }
}

/* The sum of x [VL], its maximum, and v_sum8 against v_sum: NaN where they differ. */
double VARIANT(vector_probe_sum)(const double *x, double *high)
{
    real lanes[VL], eight[8];
    for (int e = 0; e < VL; e++) lanes[e] = (real)x[e];
    vreal v = v_load(lanes), many[8];
    for (int i = 0; i < 8; i++) many[i] = v * (real)(i + 1);
    v_sum8(many, eight);
    *high = (double)v_hmax(v_max(v, v_load_part(lanes, VL - 1, (real)-9)));
    for (int i = 0; i < 8; i++)
        if (eight[i] != v_sum(many[i])) return 0.0 / 0.0;
    return (double)v_sum(v);
}
