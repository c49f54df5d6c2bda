/* The Dirichlet write weights: phi_t[j] = D(t*S/T - j), in double, equally accurate at every position. */
#ifndef BLURRY_BASE_DIRICHLET_H
#define BLURRY_BASE_DIRICHLET_H
#include <stdint.h>

/* phi [S] for position t >= 0, period T >= S. */
void dirichlet_weights(int64_t S, double T, int64_t t, double *phi);

/* phi [S] and its derivative by the period, d phi / d T [S] (proportional to t). */
void dirichlet_weights_dT(int64_t S, double T, int64_t t, double *phi, double *dphi_dT);

/* The slot n in [0, S) nearest to position t and, returned, its distance f in [-1/2, 1/2]: t*S/T = n + f
 * modulo S. */
double dirichlet_nearest(int64_t S, double T, int64_t t, int64_t *slot);

/* The first position at which slot j may be attended to: rint(j/S*T), half to even, in this order. */
int64_t dirichlet_visible_from(int64_t S, double T, int64_t j);

#endif
