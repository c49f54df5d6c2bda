/* Slots as the coordinator deals with them: starting and ending workers, handing out runs. */
#include "base/threads.h"
#include "sweep/coordinator.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <sys/wait.h>

enum { MANY_AT_ONCE = 4 };

/* ---- starting and ending ---- */
blurry_status coordinator_add_slot(coordinator *c, int fd, int process)
{
    int at = 0;
    while (at < c->slot_count && c->slots[at].channel.fd >= 0) at++;
    if (at == c->slot_room) {
        int room = c->slot_room ? 2 * c->slot_room : 16;
        slot_view *slots = realloc(c->slots, (size_t)room * sizeof *slots);
        if (slots) c->slots = slots;
        blurry_sweep_running *active = realloc(c->active, (size_t)room * sizeof *active);
        if (active) c->active = active;
        if (!slots || !active) return status_fail(BLURRY_E_MEMORY, "list of workers: out of memory");
        c->slot_room = room;
    }
    if (at == c->slot_count) c->slot_count++;
    c->slots[at] = (slot_view){.process = process, .entry = IDLE, .accuracy = NAN, .best = NAN};
    channel_open(&c->slots[at].channel, fd);
    return BLURRY_OK;
}

blurry_status coordinator_start_process(coordinator *c, int index, int slots)
{
    int fds[WORKER_SLOTS_MAX];
    process_view *process = &c->processes[index];
    STATUS_TRY(worker_start(&c->plan, slots, &process->pid, fds));
    process->slots = slots;
    for (int i = 0; i < slots; i++) STATUS_TRY(coordinator_add_slot(c, fds[i], index));
    return BLURRY_OK;
}

blurry_status coordinator_start_workers(coordinator *c)
{
    if (c->shared) {
        c->process_count = 1;
        return coordinator_start_process(c, 0, c->jobs);
    }
    while (c->process_count < c->jobs) STATUS_TRY(coordinator_start_process(c, c->process_count++, 1));
    return BLURRY_OK;
}

void coordinator_end_workers(coordinator *c)
{
    for (int i = 0; i < c->slot_count; i++) channel_close(&c->slots[i].channel);
    for (int i = 0; i < c->process_count; i++)
        if (c->processes[i].pid > 0)
            while (waitpid(c->processes[i].pid, NULL, 0) < 0 && errno == EINTR) continue;
}

/* ---- handing out ---- */
int coordinator_busy(const coordinator *c)
{
    int busy = 0;
    for (int i = 0; i < c->slot_count; i++) busy += c->slots[i].channel.fd >= 0 && c->slots[i].entry != IDLE;
    return busy;
}

/* Runs of this machine's slots, the memory they need, and whether one of them is a suspect. */
static int local_load(const coordinator *c, double *bytes, bool *suspect)
{
    int busy = 0;
    *bytes = 0;
    *suspect = false;
    for (int i = 0; i < c->slot_count; i++) {
        const slot_view *s = &c->slots[i];
        if (s->channel.fd < 0 || s->entry == IDLE || s->process < 0) continue;
        busy++;
        *bytes += c->sweep->run[s->entry].bytes;
        *suspect = *suspect || c->lost[s->entry] > 0;
    }
    return busy;
}

/* Runs that will be under way together when one more is handed out, as long as nothing changes. */
static int64_t runs_at_once(const coordinator *c)
{
    int64_t busy = coordinator_busy(c) + 1, waiting = c->counts.pending > 0 ? c->counts.pending - 1 : 0;
    int64_t at_once = busy + waiting < c->jobs ? busy + waiting : c->jobs;
    return at_once < 1 ? 1 : at_once;
}

/* Few runs left get the cores that the others leave free: results do not depend on the number of threads. */
static int threads_for_run(const coordinator *c)
{
    int64_t threads = threads_default() / runs_at_once(c);
    return c->shared || c->listener >= 0 || threads < 1 ? 1 : (int)threads;
}

/* Runs that share a GPU with several others fill it together: what one overlaps within itself only makes its
 * graph larger. Results do not depend on it either. */
static bool overlaps_nothing(const coordinator *c)
{
    return c->shared && runs_at_once(c) >= MANY_AT_ONCE;
}

static json_t *request(const coordinator *c, const grid_run *run)
{
    size_t size = blurry_settings_text(run->settings, BLURRY_SETTINGS_ALL, NULL, 0);
    char *config = malloc(size + 1);
    if (!config) return NULL;
    blurry_settings_text(run->settings, BLURRY_SETTINGS_ALL, config, size + 1);
    json_t *message = json_pack("{s:s,s:s,s:s,s:i}", "type", "run", "key", run->key, "config", config,
                                "threads", threads_for_run(c));
    if (message && c->options->device)
        json_object_set_new(message, "device", json_string(c->options->device));
    if (message && overlaps_nothing(c)) json_object_set_new(message, "overlap", json_string("none"));
    free(config);
    return message;
}

static void give(coordinator *c, slot_view *s, int64_t entry)
{
    s->entry = entry;
    s->since = coordinator_now();
    s->step = s->steps = 0;
    s->accuracy = s->best = NAN;
    channel_send(&s->channel, request(c, &c->sweep->run[entry])); /* one that is gone shows when it is read */
    c->counts.pending--;
    c->counts.running++;
    c->counts.mine++;
}

/* In a process that several runs share, a run whose process died before is tried alone, so that it can take
 * no other with it a second time. */
static blurry_status hand_to(coordinator *c, slot_view *s)
{
    double bytes = 0, room = INFINITY;
    bool suspect = false;
    int busy = s->process >= 0 ? local_load(c, &bytes, &suspect) : 0;
    if (s->process >= 0 && (busy >= c->jobs || (c->shared && suspect))) return BLURRY_OK;
    if (s->process >= 0 && c->options->memory_bytes > 0 && busy > 0) room = c->options->memory_bytes - bytes;
    int64_t entry;
    if (c->shared && s->process >= 0 && busy > 0) {
        STATUS_TRY(database_peek(&c->database, room, &entry));
        if (entry >= 0 && c->lost[entry] > 0) return BLURRY_OK;
    }
    STATUS_TRY(database_claim(&c->database, c->sweep, room, &entry));
    if (entry < 0) return BLURRY_OK;
    give(c, s, entry);
    return BLURRY_OK;
}

blurry_status coordinator_hand_out(coordinator *c)
{
    for (int i = 0; c->counts.pending > 0 && i < c->slot_count; i++) {
        slot_view *s = &c->slots[i];
        if (s->channel.fd >= 0 && s->ready && s->entry == IDLE) STATUS_TRY(hand_to(c, s));
    }
    return BLURRY_OK;
}

void coordinator_stop(coordinator *c)
{
    if (c->stopping) return;
    c->stopping = true;
    for (int i = 0; i < c->slot_count; i++)
        if (c->slots[i].channel.fd >= 0 && c->slots[i].entry != IDLE)
            channel_send(&c->slots[i].channel, json_pack("{s:s}", "type", "stop"));
}
