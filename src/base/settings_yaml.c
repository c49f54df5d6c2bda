/* Settings from YAML. Only a small, unambiguous part of YAML is accepted: one document, one flat map, each
 * key once, scalars, and flat lists for list options; no anchors, aliases or tags. */
#include "base/settings_table.h"

#include "base/file.h"
#include "base/status.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

enum { YAML_BYTES_MAX = 1 << 20 };

typedef struct loader {
    yaml_parser_t parser;
    yaml_event_t event; /* the current one; owned */
    bool have_event;
    const char *name;       /* the file, in messages */
    struct settings values; /* becomes the result when all went well */
    bool *seen;             /* [settings_table_count] keys met so far */
} loader;

/* Puts "file:line: " before the message already set. */
static blurry_status at(const loader *l, const yaml_mark_t *mark, blurry_status status)
{
    return status_context(status, "%s:%zu", l->name, mark->line + 1);
}

#define REFUSE(l, ...) at(l, &(l)->event.start_mark, status_fail(BLURRY_E_INVALID, __VA_ARGS__))

static blurry_status next(loader *l)
{
    if (l->have_event) yaml_event_delete(&l->event);
    l->have_event = yaml_parser_parse(&l->parser, &l->event);
    if (l->have_event) return BLURRY_OK;
    yaml_parser_t *p = &l->parser;
    if (p->error == YAML_MEMORY_ERROR) return status_fail(BLURRY_E_MEMORY, "%s: out of memory", l->name);
    const char *problem = p->problem ? p->problem : "not readable";
    if (p->error == YAML_READER_ERROR)
        return status_fail(BLURRY_E_INVALID, "%s: not YAML at byte %zu: %s", l->name, p->problem_offset,
                           problem);
    return at(l, &p->problem_mark, status_fail(BLURRY_E_INVALID, "not YAML: %s", problem));
}

/* The current event must be a plain or quoted scalar without anchor or tag; its text is valid until next().
 */
static blurry_status take_scalar(loader *l, const char **text)
{
    if (l->event.type == YAML_ALIAS_EVENT) return REFUSE(l, "aliases (*name) are not allowed here");
    if (l->event.type != YAML_SCALAR_EVENT) return REFUSE(l, "nested maps and lists are not allowed here");
    if (l->event.data.scalar.anchor) return REFUSE(l, "anchors (&name) are not allowed here");
    if (l->event.data.scalar.tag) return REFUSE(l, "tags (!name) are not allowed here");
    *text = (const char *)l->event.data.scalar.value;
    if (strlen(*text) != l->event.data.scalar.length) return REFUSE(l, "the text holds a zero byte");
    return BLURRY_OK;
}

/* [a, b, c] of a list option, joined by commas. */
static blurry_status take_list(loader *l, const setting *option, char list[SETTINGS_TEXT])
{
    if (option->type != SETTING_NAMES && option->type != SETTING_REALS)
        return REFUSE(l, "%s takes one value, not a list", option->info.name);
    if (l->event.data.sequence_start.anchor || l->event.data.sequence_start.tag)
        return REFUSE(l, "anchors and tags are not allowed here");
    size_t used = 0;
    for (;;) {
        const char *entry;
        STATUS_TRY(next(l));
        if (l->event.type == YAML_SEQUENCE_END_EVENT) break;
        STATUS_TRY(take_scalar(l, &entry));
        size_t length = strlen(entry);
        if (!length || strchr(entry, ','))
            return REFUSE(l, "%s: an entry is empty or holds a comma", option->info.name);
        if (used + length + 2 > SETTINGS_TEXT)
            return REFUSE(l, "%s: the list is too long", option->info.name);
        if (used) list[used++] = ',';
        memcpy(list + used, entry, length);
        used += length;
    }
    list[used] = 0;
    return BLURRY_OK;
}

/* One "key: value"; the key is the current event. */
static blurry_status take_pair(loader *l)
{
    const char *text;
    STATUS_TRY(take_scalar(l, &text));
    yaml_mark_t mark = l->event.start_mark;
    const setting *option = settings_find(text);
    if (!option) return at(l, &mark, settings_unknown_key(text));
    bool *seen = &l->seen[option - settings_table];
    if (*seen) return REFUSE(l, "%s is given twice", option->info.name);
    *seen = true;
    STATUS_TRY(next(l));
    char list[SETTINGS_TEXT];
    if (l->event.type == YAML_SEQUENCE_START_EVENT) {
        STATUS_TRY(take_list(l, option, list));
        text = list;
    } else if (l->event.type == YAML_MAPPING_START_EVENT) {
        return REFUSE(l, "%s takes a value, not a map", option->info.name);
    } else {
        STATUS_TRY(take_scalar(l, &text));
    }
    blurry_status status = settings_parse_value(option, text, &l->values);
    return status == BLURRY_OK ? status : at(l, &mark, status);
}

static blurry_status take_document(loader *l)
{
    STATUS_TRY(next(l)); /* stream start */
    STATUS_TRY(next(l));
    if (l->event.type != YAML_DOCUMENT_START_EVENT)
        return REFUSE(l, "the file is empty: give lines of the form key: value");
    STATUS_TRY(next(l));
    if (l->event.type != YAML_MAPPING_START_EVENT) return REFUSE(l, "give lines of the form key: value");
    if (l->event.data.mapping_start.anchor || l->event.data.mapping_start.tag)
        return REFUSE(l, "anchors and tags are not allowed here");
    for (;;) {
        STATUS_TRY(next(l));
        if (l->event.type == YAML_MAPPING_END_EVENT) break;
        STATUS_TRY(take_pair(l));
    }
    STATUS_TRY(next(l)); /* document end */
    STATUS_TRY(next(l));
    if (l->event.type != YAML_STREAM_END_EVENT) return REFUSE(l, "one document only");
    return BLURRY_OK;
}

blurry_status blurry_settings_parse_yaml(blurry_settings *settings, const char *text, size_t length,
                                         const char *name)
{
    if (!settings || !text || !name)
        return status_fail(BLURRY_E_INVALID, "%s is NULL", !settings ? "settings" : !text ? "text" : "name");
    if (length > YAML_BYTES_MAX)
        return status_fail(BLURRY_E_INVALID, "%s: %zu bytes are too many for a configuration", name, length);
    loader l = {.name = name, .values = settings->values, .seen = calloc(settings_table_count, sizeof(bool))};
    if (!l.seen || !yaml_parser_initialize(&l.parser)) {
        free(l.seen);
        return status_fail(BLURRY_E_MEMORY, "%s: out of memory", name);
    }
    yaml_parser_set_encoding(&l.parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&l.parser, (const unsigned char *)text, length);
    blurry_status status = take_document(&l);
    if (status == BLURRY_OK) settings->values = l.values;
    if (l.have_event) yaml_event_delete(&l.event);
    yaml_parser_delete(&l.parser);
    free(l.seen);
    return status;
}

blurry_status blurry_settings_load_yaml(blurry_settings *settings, const char *path)
{
    if (!settings || !path)
        return status_fail(BLURRY_E_INVALID, "%s is NULL", settings ? "path" : "settings");
    void *text;
    size_t length;
    STATUS_TRY(file_read(path, YAML_BYTES_MAX, &text, &length));
    blurry_status status = blurry_settings_parse_yaml(settings, text, length, path);
    free(text);
    return status;
}
