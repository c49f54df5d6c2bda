/* The public settings object: set and get by name, compare, canonical text and hash. */
#include "base/settings_table.h"

#include "base/sha256.h"
#include "base/status.h"

#include <stdlib.h>
#include <string.h>

blurry_status blurry_settings_create(blurry_settings **settings)
{
    if (!settings) return status_fail(BLURRY_E_INVALID, "settings is NULL");
    *settings = malloc(sizeof **settings);
    if (!*settings) return status_fail(BLURRY_E_MEMORY, "settings: out of memory");
    settings_init(&(*settings)->values);
    return BLURRY_OK;
}

blurry_status blurry_settings_copy(blurry_settings **copy, const blurry_settings *settings)
{
    if (!copy || !settings) return status_fail(BLURRY_E_INVALID, "%s is NULL", copy ? "settings" : "copy");
    STATUS_TRY(blurry_settings_create(copy));
    (*copy)->values = settings->values;
    return BLURRY_OK;
}

void blurry_settings_destroy(blurry_settings **settings)
{
    if (!settings) return;
    free(*settings);
    *settings = NULL;
}

blurry_status blurry_settings_set(blurry_settings *settings, const char *key, const char *value)
{
    if (!settings || !key || !value)
        return status_fail(BLURRY_E_INVALID, "%s is NULL", !settings ? "settings" : !key ? "key" : "value");
    const setting *option = settings_find(key);
    return option ? settings_parse_value(option, value, &settings->values) : settings_unknown_key(key);
}

blurry_status blurry_settings_assign(blurry_settings *settings, const char *assignment)
{
    if (!settings || !assignment)
        return status_fail(BLURRY_E_INVALID, "%s is NULL", settings ? "assignment" : "settings");
    const char *equals = strchr(assignment, '=');
    if (!equals) return status_fail(BLURRY_E_INVALID, "'%.80s': give key=value", assignment);
    char key[64] = {0};
    size_t length = (size_t)(equals - assignment);
    memcpy(key, assignment, length < sizeof key ? length : sizeof key - 1);
    return blurry_settings_set(settings, key, equals + 1);
}

blurry_status blurry_settings_get(const blurry_settings *settings, const char *key, char *text,
                                  size_t capacity)
{
    if (!settings || !key || !text)
        return status_fail(BLURRY_E_INVALID, "%s is NULL", !settings ? "settings" : !key ? "key" : "text");
    const setting *option = settings_find(key);
    if (!option) return settings_unknown_key(key);
    char whole[SETTINGS_TEXT];
    settings_format_value(option, &settings->values, whole);
    size_t needed = strlen(whole) + 1;
    if (needed > capacity)
        return status_fail(BLURRY_E_INVALID, "capacity is %zu: %s needs %zu bytes", capacity, key, needed);
    memcpy(text, whole, needed);
    return BLURRY_OK;
}

const char *blurry_settings_difference(const blurry_settings *a, const blurry_settings *b, unsigned groups)
{
    char text_a[SETTINGS_TEXT], text_b[SETTINGS_TEXT];
    for (size_t i = 0; i < settings_table_count; i++) {
        const setting *option = &settings_table[i];
        if (!(option->info.group_bit & groups)) continue;
        settings_format_value(option, &a->values, text_a);
        settings_format_value(option, &b->values, text_b);
        if (strcmp(text_a, text_b) != 0) return option->info.name;
    }
    return NULL;
}

/* ---- text form ---- */

/* Counts everything, stores what fits. */
typedef struct text_sink {
    char *text;
    size_t capacity, length;
} text_sink;

static void put_char(text_sink *sink, char c)
{
    if (sink->length + 1 < sink->capacity) sink->text[sink->length] = c;
    sink->length++;
}

static void put(text_sink *sink, const char *text)
{
    while (*text) put_char(sink, *text++);
}

/* Free text is quoted; everything else is plain in YAML as it stands, unless it is empty. */
static void put_value(text_sink *sink, const setting *option, const char *value)
{
    if (option->type != SETTING_TEXT && *value) {
        put(sink, value);
        return;
    }
    put_char(sink, '"');
    for (; *value; value++) {
        if (*value == '"' || *value == '\\') put_char(sink, '\\');
        put_char(sink, *value);
    }
    put_char(sink, '"');
}

size_t blurry_settings_text(const blurry_settings *settings, unsigned groups, char *text, size_t capacity)
{
    text_sink sink = {text, capacity, 0};
    char value[SETTINGS_TEXT];
    for (size_t i = 0; i < settings_table_count; i++) {
        const setting *option = &settings_table[i];
        if (!(option->info.group_bit & groups)) continue;
        settings_format_value(option, &settings->values, value);
        put(&sink, option->info.name);
        put(&sink, ": ");
        put_value(&sink, option, value);
        put_char(&sink, '\n');
    }
    if (capacity) text[sink.length < capacity ? sink.length : capacity - 1] = 0;
    return sink.length;
}

void blurry_settings_hash(const blurry_settings *settings, unsigned groups, char hex[65])
{
    char value[SETTINGS_TEXT];
    uint8_t digest[32];
    sha256 hash;
    sha256_init(&hash);
    for (size_t i = 0; i < settings_table_count; i++) {
        const setting *option = &settings_table[i];
        if (!(option->info.group_bit & groups)) continue;
        settings_format_value(option, &settings->values, value);
        /* Each with its final 0, which no name or value contains. */
        sha256_update(&hash, option->info.name, strlen(option->info.name) + 1);
        sha256_update(&hash, value, strlen(value) + 1);
    }
    sha256_final(&hash, digest);
    sha256_hex(digest, hex);
}
