/* Training one run after another on request: see slot.h. */
#include "sweep/slot.h"
#include "base/file.h"
#include "blurry/device.h"
#include "blurry/train.h"
#include "sweep/result.h"

#include <dirent.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

enum { KEY_DIGITS = 20 };
static const double PROGRESS_SECONDS = 0.25, LOCK_SECONDS = 20;

typedef struct slot {
    channel channel;
    const char *folder;
    char host[64];
    char *run_folder; /* of the latest run */
    bool stop;        /* the run under way is to end */
    double told;      /* when progress was sent last */
} slot;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

char *slot_folder(const char *folder, const char *key)
{
    char name[KEY_DIGITS + 1];
    snprintf(name, sizeof name, "%.*s", KEY_DIGITS, key);
    return file_join(folder, name);
}

void slot_remove_folder(const char *path)
{
    DIR *list = opendir(path);
    if (!list) return;
    for (struct dirent *entry = readdir(list); entry; entry = readdir(list))
        if (strcmp(entry->d_name, ".") && strcmp(entry->d_name, ".."))
            unlinkat(dirfd(list), entry->d_name, 0);
    closedir(list);
    rmdir(path);
}

/* ---- a run under way ---- */
static void send_progress(slot *s, const blurry_progress *p)
{
    json_t *message = json_pack("{s:s,s:I,s:I}", "type", "progress", "step", (json_int_t)p->step, "steps",
                                (json_int_t)p->steps);
    if (message && isfinite(p->accuracy)) json_object_set_new(message, "accuracy", json_real(p->accuracy));
    if (message && isfinite(p->best)) json_object_set_new(message, "best", json_real(p->best));
    if (!channel_send(&s->channel, message)) s->stop = true;
    s->told = now();
}

static int on_progress(void *context, const blurry_progress *p)
{
    slot *s = context;
    json_t *message;
    channel_state state = channel_receive(&s->channel, false, &message);
    if (state == CHANNEL_CLOSED || (state == CHANNEL_MESSAGE && !strcmp(channel_type(message), "stop")))
        s->stop = true;
    if (state == CHANNEL_MESSAGE) json_decref(message);
    if (p->event == BLURRY_EVENT_EVAL || now() - s->told > PROGRESS_SECONDS) send_progress(s, p);
    return s->stop;
}

static bool folder_is_locked(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return false;
    bool locked = flock(fd, LOCK_EX | LOCK_NB) != 0;
    close(fd);
    return locked;
}

/* The process that had this run before may still be dying: its lock goes with it. */
static blurry_status train(slot *s, const blurry_settings *settings)
{
    double begin = now();
    for (;;) {
        blurry_status status = blurry_train(settings, s->run_folder, on_progress, s);
        if (status != BLURRY_E_INVALID || !folder_is_locked(s->run_folder) || now() - begin > LOCK_SECONDS)
            return status;
        usleep(50000);
    }
}

static run_outcome outcome_of(blurry_status status)
{
    switch (status) {
    case BLURRY_OK:
        return RUN_DONE;
    case BLURRY_E_NUMERIC:
        return RUN_DIVERGED;
    case BLURRY_E_CANCELLED:
        return RUN_CANCELLED;
    case BLURRY_E_MEMORY:
        return RUN_NO_MEMORY;
    case BLURRY_E_IO:
        return RUN_NO_DISK;
    case BLURRY_E_DEVICE:
        return RUN_NO_DEVICE;
    default:
        return RUN_FAILED;
    }
}

/* ---- one request ---- */
static blurry_status make_settings(const json_t *request, blurry_settings **settings)
{
    const char *config = json_string_value(json_object_get(request, "config"));
    const char *device = json_string_value(json_object_get(request, "device"));
    const char *overlap = json_string_value(json_object_get(request, "overlap"));
    char threads[32];
    snprintf(threads, sizeof threads, "%lld",
             (long long)json_integer_value(json_object_get(request, "threads")));
    if (!config) return status_fail(BLURRY_E_FORMAT, "a request without settings");
    STATUS_TRY(blurry_settings_create(settings));
    STATUS_TRY(blurry_settings_parse_yaml(*settings, config, strlen(config), "the run's settings"));
    if (device) STATUS_TRY(blurry_settings_set(*settings, "device", device));
    if (overlap) STATUS_TRY(blurry_settings_set(*settings, "overlap", overlap));
    return blurry_settings_set(*settings, "threads", threads);
}

static blurry_status carry_out(slot *s, const json_t *request, run_result *result)
{
    const char *key = json_string_value(json_object_get(request, "key"));
    blurry_settings *settings = NULL;
    free(s->run_folder);
    s->run_folder = slot_folder(s->folder, key ? key : "unknown");
    s->stop = false;
    s->told = 0;
    double begin = now();
    blurry_status status = s->run_folder ? make_settings(request, &settings) : BLURRY_E_MEMORY;
    if (status == BLURRY_OK) {
        blurry_settings_get(settings, "device", result->device, sizeof result->device);
        status = train(s, settings);
    }
    blurry_settings_destroy(&settings);
    result->seconds = now() - begin;
    return status;
}

static run_result make_result(slot *s, const json_t *request)
{
    run_result result = {.best = NAN, .threads = json_integer_value(json_object_get(request, "threads"))};
    snprintf(result.host, sizeof result.host, "%s", s->host);
    snprintf(result.version, sizeof result.version, "%s", blurry_version());
    blurry_status status = carry_out(s, request, &result);
    char message[sizeof result.reason] = "";
    if (status != BLURRY_OK) snprintf(message, sizeof message, "%s", blurry_last_error());
    if (status == BLURRY_OK || status == BLURRY_E_NUMERIC) {
        blurry_status read = run_result_read(&result, s->run_folder);
        if (read != BLURRY_OK) {
            status = read;
            snprintf(message, sizeof message, "%s", blurry_last_error());
        }
    }
    result.outcome = outcome_of(status);
    if (message[0]) memcpy(result.reason, message, sizeof message);
    return result;
}

static bool answer(slot *s, const json_t *request)
{
    run_result result = make_result(s, request);
    json_t *message = json_pack("{s:s}", "type", "result");
    if (message && run_result_to_json(&result, message) != BLURRY_OK) { /* text that is not UTF-8 */
        snprintf(result.reason, sizeof result.reason, "(the message cannot be shown)");
        run_result_to_json(&result, message);
    }
    run_result_free(&result);
    return channel_send(&s->channel, message);
}

static void handle(slot *s, const json_t *message)
{
    if (!strcmp(channel_type(message), "run")) answer(s, message);
    if (!strcmp(channel_type(message), "recorded") && s->run_folder &&
        !json_is_true(json_object_get(message, "keep")))
        slot_remove_folder(s->run_folder);
}

/* Whether the machine can do what will be asked of it is said at once, not by run after run that fails. */
static json_t *hello(const slot *s, const char *token, bool cuda)
{
    json_t *message = json_pack("{s:s,s:s,s:I,s:s}", "type", "hello", "host", s->host, "pid",
                                (json_int_t)getpid(), "token", token);
    if (message && cuda && blurry_device_check(BLURRY_DEVICE_CUDA) != BLURRY_OK)
        json_object_set_new(message, "error", json_string(blurry_last_error()));
    return message;
}

void slot_serve(int fd, const char *folder, const char *token, bool cuda)
{
    slot s = {.folder = folder};
    json_t *message;
    channel_open(&s.channel, fd);
    gethostname(s.host, sizeof s.host - 1);
    channel_send(&s.channel, hello(&s, token, cuda));
    while (channel_receive(&s.channel, true, &message) == CHANNEL_MESSAGE) {
        handle(&s, message);
        json_decref(message);
    }
    channel_close(&s.channel);
    free(s.run_folder);
}
