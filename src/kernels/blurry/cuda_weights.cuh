/* The write weights on the device, in double: base/dirichlet.c, whose comments explain the formulas, for one
 * slot at a time. */
#ifndef BLURRY_KERNELS_BLURRY_CUDA_WEIGHTS_CUH
#define BLURRY_KERNELS_BLURRY_CUDA_WEIGHTS_CUH
#include "kernels/cuda.h"

#define BLA_PI 3.14159265358979323846264338327950288

/* What all slots of one position share: the nearest slot n, the distance f from it and two sines. */
struct bla_position {
    double f, sin_f, cos_f;
    int n;
};

static __device__ inline bla_position bla_position_of(int S, double T, int64_t t)
{
    const int64_t early = 1 << 21; /* as base/dirichlet.c rounds */
    double at = (double)t, tau;
    if (t < early && T != rint(T))
        tau = fmod(at / T, 1.0) * (double)S;
    else
        tau = fmod(at, T) * (double)S / T;
    double nearest = rint(tau);
    bla_position p;
    p.n = (int)nearest % S;
    p.f = tau - nearest;
    sincospi(p.f, &p.sin_f, &p.cos_f); /* unlike sin, these need no slow path for large arguments */
    return p;
}

/* Slot j's offset n - j brought into [-(S-1)/2, (S-1)/2]. */
static __device__ inline int bla_offset(int S, int n, int j)
{
    int d = n - j;
    if (d > (S - 1) / 2) d -= S;
    if (d < -((S - 1) / 2)) d += S;
    return d;
}

static __device__ inline double bla_weight(int S, const bla_position &p, int j)
{
    int d = bla_offset(S, p.n, j);
    if (d == 0 && fabs(p.f) < 1e-150) return 1.0;
    double sine = sinpi((p.f + (double)d) / (double)S);
    return (d & 1 ? -p.sin_f : p.sin_f) / ((double)S * sine);
}

/* d phi_t[j] / d T. */
static __device__ inline double bla_weight_dT(int S, double T, int64_t t, const bla_position &p, int j)
{
    int d = bla_offset(S, p.n, j);
    double x = p.f + (double)d, slope;
    if (fabs(x) < 1e-4) {
        slope = -BLA_PI * BLA_PI * (1.0 - 1.0 / ((double)S * (double)S)) * x / 3.0;
    } else {
        double sign = d & 1 ? -1.0 : 1.0, sine, cosine;
        sincospi(x / (double)S, &sine, &cosine);
        slope = BLA_PI * sign * (p.cos_f * sine - p.sin_f * cosine / (double)S) / ((double)S * sine * sine);
    }
    return slope * (-(double)t * (double)S / (T * T));
}

#endif
