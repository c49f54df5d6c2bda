/* The write weights themselves, for figures and tests outside the library. */
#include "attention/plan.h"
#include "base/dirichlet.h"
#include "base/status.h"

#include <math.h>

blurry_status blurry_weights(int64_t modes, double period, int64_t start, int64_t count, double *weights)
{
    if (modes < 1 || modes > (int64_t)1 << 24)
        return status_fail(BLURRY_E_INVALID, "modes is %lld: give 1 to %lld", (long long)modes, 1LL << 24);
    if (!isfinite(period) || period < 0)
        return status_fail(BLURRY_E_INVALID, "period is %g: give a finite number of at least 0", period);
    if (start < 0 || start > BLA_POSITION_MAX)
        return status_fail(BLURRY_E_INVALID, "start is %lld: give 0 to %lld", (long long)start,
                           (long long)BLA_POSITION_MAX);
    if (count < 0 || count > BLA_POSITION_MAX - start)
        return status_fail(BLURRY_E_INVALID, "count is %lld: positions end at %lld", (long long)count,
                           (long long)BLA_POSITION_MAX);
    if (!weights && count > 0)
        return status_fail(BLURRY_E_INVALID, "weights is NULL: give count * (2*modes-1) numbers");
    int64_t S = 2 * modes - 1;
    double T = period < (double)S ? (double)S : period;
    for (int64_t i = 0; i < count; i++) dirichlet_weights(S, T, start + i, weights + i * S);
    return BLURRY_OK;
}
