/* One option's value: text to field, field to canonical text, and the entries of list options. */
#include "base/settings_table.h"

#include "base/number.h"
#include "base/status.h"
#include "base/utf8.h"

#include <stdio.h>
#include <string.h>

/* ---- lists ---- */

/* Takes the next entry of a comma-separated list, without the blanks around it. The cursor starts at the
 * list, or at NULL where that is empty, and ends at NULL. */
static bool next_entry(const char **cursor, const char **entry, size_t *length)
{
    const char *start = *cursor;
    if (!start) return false;
    const char *end = start + strcspn(start, ",");
    *cursor = *end ? end + 1 : NULL;
    start += strspn(start, " ");
    while (end > start && end[-1] == ' ') end--;
    *entry = start;
    *length = start < end ? (size_t)(end - start) : 0;
    return true;
}

static const char *list_start(const char *list)
{
    return list[strspn(list, " ")] ? list : NULL;
}

static bool entry_number(const char *entry, size_t length, double *value)
{
    char text[NUMBER_TEXT * 2];
    if (length >= sizeof text) return false;
    memcpy(text, entry, length);
    text[length] = 0;
    return number_parse_real(text, value);
}

int64_t settings_list_count(const char *list)
{
    const char *cursor = list_start(list), *entry;
    size_t length;
    int64_t count = 0;
    while (next_entry(&cursor, &entry, &length)) count++;
    return count;
}

static blurry_status check_list_count(const char *key, const char *list, int64_t count)
{
    int64_t have = settings_list_count(list);
    if (have == 1 || (have == count && have > 0)) return BLURRY_OK;
    return status_fail(BLURRY_E_INVALID,
                       "%s is '%.80s': give one entry, or %lld of them separated by commas, not %lld", key,
                       list, (long long)count, (long long)have);
}

blurry_status settings_reals(const char *key, const char *list, int64_t count, double *out)
{
    STATUS_TRY(check_list_count(key, list, count));
    const char *cursor = list_start(list), *entry;
    size_t length;
    double value = 0;
    for (int64_t i = 0; i < count; i++)
        if (next_entry(&cursor, &entry, &length) && !entry_number(entry, length, &value))
            return status_fail(BLURRY_E_INVALID, "%s is '%.80s': entry %lld is not a number", key, list,
                               (long long)i + 1);
        else
            out[i] = value;
    return BLURRY_OK;
}

blurry_status settings_name_at(const char *key, const char *list, int64_t count, int64_t index, char *name,
                               size_t capacity)
{
    STATUS_TRY(check_list_count(key, list, count));
    const char *cursor = list_start(list), *entry = list;
    size_t length = 0;
    for (int64_t i = 0; i <= index; i++)
        if (!next_entry(&cursor, &entry, &length)) break; /* one entry serves for all */
    if (length >= capacity)
        return status_fail(BLURRY_E_INVALID, "%s is '%.80s': entry %lld is too long", key, list,
                           (long long)index + 1);
    memcpy(name, entry, length);
    name[length] = 0;
    return BLURRY_OK;
}

/* ---- parsing ---- */

/* "key is 'value': remedy range", for example "modes is '0': give a whole number in 1 .. 1048576". */
static blurry_status refuse(const setting *option, const char *text, const char *remedy)
{
    const char *range = option->info.range;
    return status_fail(BLURRY_E_INVALID, "%s is '%.80s': %s%s%s", option->info.name, text, remedy,
                       *range ? " " : "", range);
}

static blurry_status refuse_length(const setting *option, const char *text)
{
    return status_fail(BLURRY_E_INVALID, "%s is '%.80s...': too long, %d bytes at most", option->info.name,
                       text, SETTINGS_TEXT - 1);
}

static blurry_status parse_bool(const setting *option, const char *text, bool *field)
{
    static const char *const words[] = {"false", "true", "off", "on", "no", "yes", "0", "1"};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (!strcmp(text, words[i])) {
            *field = i % 2;
            return BLURRY_OK;
        }
    return refuse(option, text, "give one of");
}

static blurry_status parse_choice(const setting *option, const char *text, void *field)
{
    for (int i = 0; i < (int)option->most; i++)
        if (!strcmp(text, option->choices[i])) {
            memcpy(field, &i, sizeof i);
            return BLURRY_OK;
        }
    return refuse(option, text, "give one of");
}

/* Appends "entry" or ",entry"; false when it does not fit. */
static bool append(char list[SETTINGS_TEXT], size_t *used, const char *entry, size_t length)
{
    if (*used + length + 2 > SETTINGS_TEXT) return false;
    if (*used) list[(*used)++] = ',';
    memcpy(list + *used, entry, length);
    *used += length;
    return true;
}

static blurry_status parse_names(const setting *option, const char *text, char *field)
{
    char list[SETTINGS_TEXT] = {0};
    const char *cursor = list_start(text), *entry;
    size_t length, used = 0;
    while (next_entry(&cursor, &entry, &length)) {
        if (strspn(entry, "abcdefghijklmnopqrstuvwxyz0123456789_-") < length || length == 0)
            return refuse(option, text, "give names, separated by commas");
        if (!append(list, &used, entry, length)) return refuse_length(option, text);
    }
    if (!used) return refuse(option, text, "give a name");
    memcpy(field, list, sizeof list);
    return BLURRY_OK;
}

static blurry_status parse_reals(const setting *option, const char *text, char *field)
{
    char list[SETTINGS_TEXT] = {0}, number[NUMBER_TEXT];
    const char *cursor = list_start(text), *entry;
    size_t length, used = 0;
    while (next_entry(&cursor, &entry, &length)) {
        double value;
        if (!entry_number(entry, length, &value) || value < option->low || value > option->high)
            return refuse(option, text, "give numbers, separated by commas, each in");
        number_format_real(value, number);
        if (!append(list, &used, number, strlen(number))) return refuse_length(option, text);
    }
    if (!used && *option->info.fallback) return refuse(option, text, "give numbers in");
    memcpy(field, list, sizeof list);
    return BLURRY_OK;
}

static blurry_status parse_text(const setting *option, const char *text, char *field)
{
    char kept[SETTINGS_TEXT] = {0};
    if (strlen(text) >= sizeof kept) return refuse_length(option, text);
    strcpy(kept, text);
    memcpy(field, kept, sizeof kept);
    return BLURRY_OK;
}

blurry_status settings_parse_value(const setting *option, const char *text, struct settings *s)
{
    char *field = (char *)s + option->offset;
    int64_t whole;
    double real;
    if (!utf8_printable(text, strlen(text)))
        return status_fail(BLURRY_E_INVALID, "%s: the value holds control characters or is not UTF-8",
                           option->info.name);
    switch (option->type) {
    case SETTING_INT:
        if (!number_parse_int(text, &whole) || whole < option->least || whole > option->most)
            return refuse(option, text, "give a whole number in");
        memcpy(field, &whole, sizeof whole);
        return BLURRY_OK;
    case SETTING_REAL:
        if (!number_parse_real(text, &real) || real < option->low || real > option->high)
            return refuse(option, text, "give a number in");
        memcpy(field, &real, sizeof real);
        return BLURRY_OK;
    case SETTING_BOOL:
        return parse_bool(option, text, (bool *)field);
    case SETTING_TEXT:
        return parse_text(option, text, field);
    case SETTING_NAMES:
        return parse_names(option, text, field);
    case SETTING_REALS:
        return parse_reals(option, text, field);
    case SETTING_CHOICE:
        return parse_choice(option, text, field);
    }
    return status_fail(BLURRY_E_INTERNAL, "%s has no type", option->info.name);
}

void settings_format_value(const setting *option, const struct settings *s, char text[SETTINGS_TEXT])
{
    const char *field = (const char *)s + option->offset;
    int64_t whole;
    double real;
    int choice;
    switch (option->type) {
    case SETTING_INT:
        memcpy(&whole, field, sizeof whole);
        snprintf(text, SETTINGS_TEXT, "%lld", (long long)whole);
        break;
    case SETTING_REAL:
        memcpy(&real, field, sizeof real);
        number_format_real(real, text);
        break;
    case SETTING_BOOL:
        strcpy(text, *(const bool *)field ? "true" : "false");
        break;
    case SETTING_TEXT:
    case SETTING_NAMES:
    case SETTING_REALS:
        memcpy(text, field, SETTINGS_TEXT);
        break;
    case SETTING_CHOICE:
        memcpy(&choice, field, sizeof choice);
        snprintf(text, SETTINGS_TEXT, "%s", option->choices[choice]);
        break;
    }
}
