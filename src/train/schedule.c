/* Learning-rate schedules: see schedule.h. Pure functions of the step, so a resumed run needs no state for
 * them. */
#include "train/schedule.h"

#include <math.h>
#include <string.h>

blurry_status schedule_init(schedule *s, const char *kind, int64_t steps, double warmup, double peak,
                            double floor)
{
    if (!strcmp(kind, "cosine"))
        s->kind = SCHEDULE_COSINE;
    else if (!strcmp(kind, "constant"))
        s->kind = SCHEDULE_CONSTANT;
    else
        return status_fail(BLURRY_E_INVALID, "schedule is '%s': give cosine or constant", kind);
    if (steps < 1) return status_fail(BLURRY_E_INVALID, "steps is %lld: give at least 1", (long long)steps);
    if (!(peak >= 0) || !isfinite(peak))
        return status_fail(BLURRY_E_INVALID, "lr is %g: give a finite number >= 0", peak);
    if (!(floor >= 0) || floor > peak)
        return status_fail(BLURRY_E_INVALID, "lr_min is %g: give a number from 0 to lr (%g)", floor, peak);
    if (!(warmup >= 0) || warmup > (double)steps)
        return status_fail(BLURRY_E_INVALID,
                           "warmup is %g: give a fraction below 1, or a number of steps up to steps (%lld)",
                           warmup, (long long)steps);
    s->steps = steps;
    s->warmup = (int64_t)llrint(warmup < 1 ? warmup * (double)steps : warmup);
    s->peak = peak;
    s->floor = floor;
    return BLURRY_OK;
}

double schedule_rate(const schedule *s, int64_t step)
{
    if (step < s->warmup) return s->peak * (double)(step + 1) / (double)s->warmup;
    if (s->kind == SCHEDULE_CONSTANT || s->steps <= s->warmup) return s->peak;
    double done = (double)(step - s->warmup) / (double)(s->steps - s->warmup);
    if (done > 1) done = 1;
    return s->floor + (s->peak - s->floor) * 0.5 * (1 + cos(M_PI * done));
}
