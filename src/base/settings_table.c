/* The option table and looking options up by name. */
#include "base/settings_table.h"

#include "base/status.h"
#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>

#define GROUP_MODEL    "model"
#define GROUP_MIXER    "mixer"
#define GROUP_TASK     "task"
#define GROUP_TRAINING "training"
#define GROUP_RUN      "run"
#define INFO(name, type, fallback, range, group, applies, help)                                              \
    .info = {#name, type, fallback, range, GROUP_##group, BLURRY_SETTINGS_##group, applies, help},           \
    .offset = offsetof(struct settings, name)

#define CHOICE_TEXT(name, choice)   #choice,
#define CHOICE_JOINED(name, choice) " | " #choice

const setting settings_table[] = {
#define INT(name, fallback, min, max, group, applies, help)                                                  \
    {INFO(name, "integer", #fallback, #min " .. " #max, group, applies, help), .type = SETTING_INT,          \
     .least = min, .most = max},
#define REAL(name, fallback, min, max, group, applies, help)                                                 \
    {INFO(name, "number", #fallback, #min " .. " #max, group, applies, help), .type = SETTING_REAL,          \
     .low = min, .high = max},
#define BOOL(name, fallback, group, applies, help)                                                           \
    {INFO(name, "switch", #fallback, "true | false", group, applies, help), .type = SETTING_BOOL},
#define TEXT(name, fallback, group, applies, help)                                                           \
    {INFO(name, "text", fallback, "", group, applies, help), .type = SETTING_TEXT},
#define NAMES(name, fallback, group, applies, help)                                                          \
    {INFO(name, "names", fallback, "", group, applies, help), .type = SETTING_NAMES},
#define REALS(name, fallback, min, max, group, applies, help)                                                \
    {INFO(name, "numbers", fallback, #min " .. " #max, group, applies, help), .type = SETTING_REALS,         \
     .low = min, .high = max},
#define CHOICE(name, fallback, list, group, applies, help)                                                   \
    {INFO(name, "choice", #fallback, &(SETTINGS_CHOICE_EACH(CHOICE_JOINED, name, SETTINGS_LIST list))[3],    \
          group, applies, help),                                                                             \
     .type = SETTING_CHOICE, .most = SETTINGS_##name##_count,                                                \
     .choices = (const char *const[]){SETTINGS_CHOICE_EACH(CHOICE_TEXT, name, SETTINGS_LIST list)}},
#include "base/settings.def"
};
const size_t settings_table_count = sizeof settings_table / sizeof settings_table[0];

void settings_init(struct settings *s)
{
    memset(s, 0, sizeof *s); /* padding and unused text too, so that equal settings are equal bytes */
#define INT(name, fallback, ...)    s->name = fallback;
#define REAL(name, fallback, ...)   s->name = fallback;
#define BOOL(name, fallback, ...)   s->name = fallback;
#define TEXT(name, fallback, ...)   strncpy(s->name, fallback, SETTINGS_TEXT - 1);
#define NAMES(name, fallback, ...)  strncpy(s->name, fallback, SETTINGS_TEXT - 1);
#define REALS(name, fallback, ...)  strncpy(s->name, fallback, SETTINGS_TEXT - 1);
#define CHOICE(name, fallback, ...) s->name = SETTINGS_##name##_##fallback;
#include "base/settings.def"
}

const setting *settings_find(const char *key)
{
    for (size_t i = 0; i < settings_table_count; i++)
        if (!strcmp(settings_table[i].info.name, key)) return &settings_table[i];
    return NULL;
}

blurry_status settings_unknown_key(const char *key)
{
    if (!utf8_printable(key, strlen(key)))
        return status_fail(BLURRY_E_INVALID, "unknown setting (its name is not printable text)");
    return status_fail(BLURRY_E_INVALID, "unknown setting '%.60s': did you mean '%s'?", key,
                       blurry_settings_nearest(key));
}

size_t blurry_settings_count(void)
{
    return settings_table_count;
}

blurry_status blurry_settings_describe(size_t index, blurry_setting_info *info)
{
    if (!info) return status_fail(BLURRY_E_INVALID, "info is NULL");
    if (index >= settings_table_count)
        return status_fail(BLURRY_E_INVALID, "index is %zu: there are %zu settings", index,
                           settings_table_count);
    *info = settings_table[index].info;
    return BLURRY_OK;
}
