/* Slots as the coordinator deals with them: starting, handing out, listening, replacing. */
#include "base/threads.h"
#include "sweep/coordinator.h"
#include "sweep/remote.h"
#include "sweep/slot.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { STARTS_MAX = 5, MANY_AT_ONCE = 4 };

/* ---- starting ---- */
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

static blurry_status start_process(coordinator *c, int index, int slots)
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
        return start_process(c, 0, c->jobs);
    }
    while (c->process_count < c->jobs) STATUS_TRY(start_process(c, c->process_count++, 1));
    return BLURRY_OK;
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

/* ---- results ---- */
static blurry_status give_back(coordinator *c, int64_t entry, const char *reason, double seconds)
{
    STATUS_TRY(database_release(&c->database, c->sweep->run[entry].key, reason, seconds));
    c->counts.pending++;
    c->counts.running--;
    c->counts.mine--;
    if (reason) coordinator_tell(c, BLURRY_SWEEP_REQUEUED, entry, "pending", reason, NAN, 0);
    return BLURRY_OK;
}

static blurry_status record(coordinator *c, int64_t entry, const run_result *result)
{
    STATUS_TRY(database_finish(&c->database, c->sweep->run[entry].key, result));
    int64_t *count = result->outcome == RUN_DONE       ? &c->counts.done
                     : result->outcome == RUN_DIVERGED ? &c->counts.diverged
                                                       : &c->counts.failed;
    ++*count;
    c->counts.running--;
    c->counts.mine--;
    c->work_done += c->sweep->run[entry].work;
    coordinator_score(c, entry, result->best);
    coordinator_tell(c, BLURRY_SWEEP_FINISHED, entry, run_outcome_name(result->outcome), result->reason,
                     result->best, result->seconds);
    return BLURRY_OK;
}

/* Memory ran out: the same run again with one run fewer at once; alone it is a failure. */
static blurry_status out_of_memory(coordinator *c, int64_t entry, run_result *result, int busy)
{
    if (busy <= 1) {
        result->outcome = RUN_FAILED;
        return record(c, entry, result);
    }
    c->jobs = busy - 1;
    return give_back(c, entry, result->reason, 0);
}

static blurry_status slot_gone(coordinator *c, slot_view *s, const char *reason);

/* The device of a whole process is of no more use: as if it had died of that, a new process gets a new one.
 */
static blurry_status device_failed(coordinator *c, slot_view *s, const char *reason)
{
    if (s->process < 0) return slot_gone(c, s, reason);
    process_view *process = &c->processes[s->process];
    if (!process->reason[0]) snprintf(process->reason, sizeof process->reason, "%s", reason);
    kill(process->pid, SIGKILL);
    return BLURRY_OK;
}

static blurry_status take_result(coordinator *c, slot_view *s, const json_t *message)
{
    run_result result;
    int64_t entry = s->entry;
    int busy = coordinator_busy(c);
    if (entry == IDLE) return BLURRY_OK;
    STATUS_TRY(run_result_from_json(&result, message));
    if (result.outcome == RUN_NO_DEVICE) {
        run_result_free(&result);
        return device_failed(c, s, result.reason);
    }
    s->entry = IDLE;
    blurry_status status;
    if (result.outcome == RUN_CANCELLED)
        status = give_back(c, entry, NULL, result.seconds);
    else if (result.outcome == RUN_NO_DISK) {
        status = give_back(c, entry, result.reason, result.seconds);
        if (status == BLURRY_OK) status = status_fail(BLURRY_E_IO, "%s", result.reason);
    } else if (result.outcome == RUN_NO_MEMORY)
        status = out_of_memory(c, entry, &result, busy);
    else {
        status = record(c, entry, &result);
        if (status == BLURRY_OK)
            channel_send(&s->channel, json_pack("{s:s,s:b}", "type", "recorded", "keep",
                                                c->options->keep && result.outcome == RUN_DONE));
    }
    run_result_free(&result);
    return status;
}

static double number(const json_t *message, const char *name, double fallback)
{
    const json_t *value = json_object_get(message, name);
    return json_is_number(value) ? json_number_value(value) : fallback;
}

static blurry_status take_message(coordinator *c, slot_view *s, const json_t *message)
{
    const char *type = channel_type(message), *text;
    if (!strcmp(type, "hello")) {
        text = json_string_value(json_object_get(message, "token"));
        if (s->process < 0 && (!text || strcmp(text, c->plan.token))) { /* a stranger */
            channel_close(&s->channel);
            return BLURRY_OK;
        }
        text = json_string_value(json_object_get(message, "host"));
        snprintf(s->host, sizeof s->host, "%s", text ? text : "");
        text = json_string_value(json_object_get(message, "error"));
        if (text) return status_fail(BLURRY_E_DEVICE, "%s: %s", s->host, text);
        s->ready = true;
        if (s->process >= 0) c->processes[s->process].failures = 0;
    } else if (!s->ready) {
        channel_close(&s->channel);
    } else if (!strcmp(type, "progress")) {
        s->step = (int64_t)number(message, "step", 0);
        s->steps = (int64_t)number(message, "steps", 0);
        s->accuracy = number(message, "accuracy", s->accuracy);
        s->best = number(message, "best", s->best);
    } else if (!strcmp(type, "result"))
        return take_result(c, s, message);
    return BLURRY_OK;
}

/* ---- losing workers ---- */
/* A run whose worker is gone: waits for another one, or has failed. */
static blurry_status lose_run(coordinator *c, int64_t entry, const char *reason, bool for_good)
{
    c->lost[entry]++;
    if (!for_good && c->lost[entry] < LOST_MAX) return give_back(c, entry, reason, 0);
    run_result result = {.outcome = RUN_FAILED, .best = NAN};
    snprintf(result.reason, sizeof result.reason, "%s%s", reason, for_good ? "" : ", again and again");
    gethostname(result.host, sizeof result.host - 1);
    snprintf(result.version, sizeof result.version, "%s", blurry_version());
    STATUS_TRY(record(c, entry, &result));
    char *path = slot_folder(c->folder, c->sweep->run[entry].key); /* nobody is left to remove it */
    if (path) slot_remove_folder(path);
    free(path);
    return BLURRY_OK;
}

/* All slots of a process that died, and a new process in its place. */
static blurry_status replace_process(coordinator *c, int index)
{
    process_view *process = &c->processes[index];
    char reason[256];
    bool crashed;
    int status = 0, slots = process->slots, busy = 0;
    while (waitpid(process->pid, &status, 0) < 0 && errno == EINTR) continue;
    process->pid = 0;
    worker_describe_end(status, reason, sizeof reason, &crashed);
    if (process->reason[0]) { /* it was ended for this */
        memcpy(reason, process->reason, sizeof reason);
        crashed = true;
        process->reason[0] = 0;
    }
    for (int i = 0; i < c->slot_count; i++) busy += c->slots[i].process == index && c->slots[i].entry != IDLE;
    for (int i = 0; i < c->slot_count; i++) {
        slot_view *s = &c->slots[i];
        if (s->process != index || s->channel.fd < 0) continue;
        int64_t entry = s->entry;
        channel_close(&s->channel);
        s->entry = IDLE;
        if (entry != IDLE) STATUS_TRY(lose_run(c, entry, reason, crashed && busy == 1));
    }
    if (c->stopping) return BLURRY_OK;
    if (++process->failures > STARTS_MAX)
        return status_fail(BLURRY_E_INTERNAL, "workers die as soon as they start: %s", reason);
    return start_process(c, index, slots);
}

static blurry_status slot_gone(coordinator *c, slot_view *s, const char *reason)
{
    if (s->process >= 0) return replace_process(c, s->process);
    int64_t entry = s->entry;
    channel_close(&s->channel);
    s->entry = IDLE;
    return entry == IDLE ? BLURRY_OK : lose_run(c, entry, reason, false);
}

/* ---- listening ---- */
static blurry_status drain(coordinator *c, int index)
{
    json_t *message;
    for (;;) {
        slot_view *s = &c->slots[index];
        channel_state state = channel_receive(&s->channel, false, &message);
        if (state == CHANNEL_NOTHING) return BLURRY_OK;
        if (state == CHANNEL_CLOSED)
            return s->channel.fd < 0 ? BLURRY_OK : slot_gone(c, s, "its rank was lost");
        blurry_status status = take_message(c, s, message);
        json_decref(message);
        if (status != BLURRY_OK) return status;
    }
}

blurry_status coordinator_listen(coordinator *c, int milliseconds)
{
    struct pollfd *waits = calloc((size_t)c->slot_count + 1, sizeof *waits);
    if (!waits) return status_fail(BLURRY_E_MEMORY, "list of workers: out of memory");
    int count = c->slot_count;
    for (int i = 0; i < count; i++)
        waits[i] = (struct pollfd){.fd = c->slots[i].channel.fd, .events = POLLIN};
    waits[count] = (struct pollfd){.fd = c->listener, .events = POLLIN};
    poll(waits, (nfds_t)count + 1, milliseconds);
    blurry_status status = BLURRY_OK;
    for (int fd; waits[count].revents && status == BLURRY_OK && (fd = remote_accept(c->listener)) >= 0;)
        status = coordinator_add_slot(c, fd, -1);
    for (int i = 0; i < count && status == BLURRY_OK; i++)
        if (waits[i].revents && c->slots[i].channel.fd == waits[i].fd) status = drain(c, i);
    free(waits);
    return status;
}

void coordinator_end_workers(coordinator *c)
{
    for (int i = 0; i < c->slot_count; i++) channel_close(&c->slots[i].channel);
    for (int i = 0; i < c->process_count; i++)
        if (c->processes[i].pid > 0)
            while (waitpid(c->processes[i].pid, NULL, 0) < 0 && errno == EINTR) continue;
}
