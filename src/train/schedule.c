/* Learning-rate schedules: see schedule.h. Pure functions of the step, so a resumed run needs no state for
 * them. */
#include "train/schedule.h"

#include <math.h>

blurry_status schedule_init(schedule *s, const struct settings *settings, int64_t steps)
{
    double warmup = settings->warmup;
    if (steps < 1) return status_fail(BLURRY_E_INVALID, "steps is %lld: give at least 1", (long long)steps);
    if (settings->min_lr > settings->lr)
        return status_fail(BLURRY_E_INVALID, "min_lr is %g: give a number from 0 to lr (%g)",
                           settings->min_lr, settings->lr);
    if (warmup > (double)steps)
        return status_fail(BLURRY_E_INVALID,
                           "warmup is %g: give a fraction below 1, or a number of steps up to steps (%lld)",
                           warmup, (long long)steps);
    *s = (schedule){.kind = settings->schedule,
                    .steps = steps,
                    .warmup = llrint(warmup < 1 ? warmup * (double)steps : warmup),
                    .peak = settings->lr,
                    .floor = settings->min_lr};
    return BLURRY_OK;
}

double schedule_rate(const schedule *s, int64_t step)
{
    if (step < s->warmup) return s->peak * (double)(step + 1) / (double)s->warmup;
    if (s->kind == SETTINGS_schedule_constant || s->steps <= s->warmup) return s->peak;
    double done = (double)(step - s->warmup) / (double)(s->steps - s->warmup);
    if (done > 1) done = 1;
    return s->floor + (s->peak - s->floor) * 0.5 * (1 + cos(M_PI * done));
}
