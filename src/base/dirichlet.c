/* x = tau - j with tau = t*S/T reduced modulo S. Splitting tau = n + f, |f| <= 1/2, gives for slot n - d
 *     D(f + d) = (-1)^d sin(pi f) / (S sin(pi (f + d) / S)),
 * where no term cancels: for d = 0 the quotient is a plain ratio of small sines, elsewhere |f + d| >= 1/2. */
#include "base/dirichlet.h"

#include <math.h>

static const double pi = 3.14159265358979323846264338327950288;

int64_t dirichlet_visible_from(int64_t S, double T, int64_t j)
{
    /* Divided first: this order decides ties such as 27.5 (j=11, S=15, T=37.5) as the goldens do. */
    double first = rint((double)j / (double)S * T);
    return first < 9.2e18 ? (int64_t)first : INT64_MAX; /* a period beyond every position */
}

/* Turns of the period that position t has made, modulo 1, times S. fmod is exact, so phi is as accurate at t
 * = 10^12 as at 0. A period that is not an integer is itself rounded, and half a unit in its last place moves
 * the phase by as much as the rounding of t/T does; up to EARLY that is below 3e-10, and the operator goldens
 * (case04) round there. */
enum { EARLY = 1 << 21 };

double dirichlet_nearest(int64_t S, double T, int64_t t, int64_t *slot)
{
    double at = (double)t, tau;
    if (t < EARLY && T != rint(T))
        tau = fmod(at / T, 1.0) * (double)S;
    else
        tau = fmod(at, T) * (double)S / T;
    double nearest = rint(tau);
    *slot = (int64_t)nearest % S;
    return tau - nearest;
}

static inline double value(int64_t S, double f, double sin_f, int64_t d)
{
    if (d == 0 && fabs(f) < 1e-150)
        return 1.0; /* also where the quotient would be one of subnormal numbers */
    double sign = d & 1 ? -1.0 : 1.0;
    return sign * sin_f / ((double)S * sin(pi * (f + (double)d) / (double)S));
}

void dirichlet_weights(int64_t S, double T, int64_t t, double *phi)
{
    dirichlet_weights_dT(S, T, t, phi, 0);
}

void dirichlet_weights_dT(int64_t S, double T, int64_t t, double *phi, double *dphi_dT)
{
    int64_t n;
    double f = dirichlet_nearest(S, T, t, &n);
    double sin_f = sin(pi * f), cos_f = cos(pi * f);
    double dx_dT = -(double)t * (double)S / (T * T);
    for (int64_t j = 0; j < S; j++) {
        /* d = n - j brought into [-(S-1)/2, (S-1)/2]: S is odd, so (-1)^d is unchanged only by steps of 2; D
         * itself has period S in x because sin(pi x) and sin(pi x / S) change sign together. */
        int64_t d = n - j;
        if (d > (S - 1) / 2) d -= S;
        if (d < -(S - 1) / 2) d += S;
        phi[j] = value(S, f, sin_f, d);
        if (!dphi_dT) continue;
        double x = f + (double)d, a = pi * x / (double)S;
        double slope;
        if (fabs(x) < 1e-4) {
            /* D(x) = 1 - pi^2 (1 - 1/S^2) x^2 / 6 + O(x^4): the quotient below would cancel. */
            slope = -pi * pi * (1.0 - 1.0 / ((double)S * (double)S)) * x / 3.0;
        } else {
            double sign = d & 1 ? -1.0 : 1.0;
            double sine = sin(a);
            slope =
                pi * (sign * cos_f * sine - sign * sin_f * cos(a) / (double)S) / ((double)S * sine * sine);
        }
        dphi_dT[j] = slope * dx_dT;
    }
}
