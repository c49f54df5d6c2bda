/* What the coordinator hears from its slots: results, progress, and that a worker is gone. */
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

enum { STARTS_MAX = 5 };

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
    return coordinator_start_process(c, index, slots);
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
