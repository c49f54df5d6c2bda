/* What the coordinator tells its caller: counts, groups, runs under way, the time that is left. */
#include "sweep/coordinator.h"

#include <math.h>

void coordinator_score(coordinator *c, int64_t entry, double best)
{
    const grid_run *run = &c->sweep->run[entry];
    blurry_sweep_group *group = &c->groups[run->group];
    if (c->done[entry]) return;
    c->done[entry] = true;
    group->done++;
    if (!isfinite(best)) return;
    if (group->best_entry >= 0 && (run->descends ? best >= group->best : best <= group->best)) return;
    group->best = best;
    group->best_entry = entry;
}

static void score_result(void *context, int64_t index, const char *state, double best, double seconds)
{
    (void)state, (void)seconds;
    coordinator_score(context, index, best);
}

blurry_status coordinator_refresh(coordinator *c)
{
    const grid *g = &c->sweep->grid;
    for (int i = 0; i < g->group_count; i++)
        c->groups[i] = (blurry_sweep_group){.name = g->group[i].name, .best = NAN, .best_entry = -1};
    for (int64_t i = 0; i < c->sweep->count; i++) {
        c->groups[c->sweep->run[i].group].total++;
        c->done[i] = false;
    }
    STATUS_TRY(database_results(&c->database, score_result, c));
    return database_count(&c->database, &c->counts);
}

/* Work that is left over the speed so far. */
static double time_left(const coordinator *c)
{
    double left = 0, done = c->work_done, seconds = coordinator_now() - c->started;
    for (int64_t i = 0; i < c->sweep->count; i++)
        if (!c->done[i]) left += c->sweep->run[i].work;
    for (int i = 0; i < c->slot_count; i++) {
        const slot_view *s = &c->slots[i];
        if (s->channel.fd < 0 || s->entry == IDLE || s->steps < 1) continue;
        double part = c->sweep->run[s->entry].work * (double)s->step / (double)s->steps;
        done += part;
        left -= part;
    }
    return done > 0 && seconds > 1 ? left / done * seconds : NAN;
}

static int64_t list_active(coordinator *c)
{
    int64_t n = 0;
    for (int i = 0; i < c->slot_count; i++) {
        const slot_view *s = &c->slots[i];
        if (s->channel.fd < 0 || s->entry == IDLE) continue;
        c->active[n++] = (blurry_sweep_running){.entry = s->entry,
                                                .step = s->step,
                                                .steps = s->steps,
                                                .accuracy = s->accuracy,
                                                .best = s->best,
                                                .seconds = coordinator_now() - s->since,
                                                .host = s->host};
    }
    return n;
}

void coordinator_tell(coordinator *c, blurry_sweep_event event, int64_t entry, const char *state,
                      const char *reason, double best, double seconds)
{
    if (!c->options->progress) return;
    int64_t running = list_active(c);
    blurry_sweep_progress p = {.event = event,
                               .entry = entry,
                               .state = state,
                               .reason = reason,
                               .best = best,
                               .entry_seconds = seconds,
                               .total = c->counts.total,
                               .done = c->counts.done,
                               .diverged = c->counts.diverged,
                               .failed = c->counts.failed,
                               .pending = c->counts.pending,
                               .running = running,
                               .elsewhere = c->counts.running - c->counts.mine,
                               .seconds = coordinator_now() - c->started,
                               .eta_seconds = time_left(c),
                               .active = c->active,
                               .groups = c->groups,
                               .group_count = c->sweep->grid.group_count};
    if (c->options->progress(c->options->context, &p)) coordinator_stop(c);
}
