/* settings.def as a table: how the parts of the settings code walk over the options. */
#ifndef BLURRY_BASE_SETTINGS_TABLE_H
#define BLURRY_BASE_SETTINGS_TABLE_H
#include "base/settings.h"

typedef enum setting_type {
    SETTING_INT,
    SETTING_REAL,
    SETTING_BOOL,
    SETTING_TEXT,
    SETTING_NAMES,
    SETTING_REALS,
    SETTING_CHOICE
} setting_type;

typedef struct setting {
    blurry_setting_info info;
    setting_type type;
    size_t offset;       /* of the field in struct settings */
    int64_t least, most; /* INT; for CHOICE `most` counts the choices */
    double low, high;    /* REAL, and each number of REALS */
    const char *const *choices;
} setting;

extern const setting settings_table[];
extern const size_t settings_table_count;

/* NULL when unknown. */
const setting *settings_find(const char *key);

/* Sets one field from text; on failure the message names key, value and range and the field keeps its value.
 */
blurry_status settings_parse_value(const setting *option, const char *text, struct settings *s);

/* The field's canonical text. */
void settings_format_value(const setting *option, const struct settings *s, char text[SETTINGS_TEXT]);

/* Fails with the nearest known name. */
blurry_status settings_unknown_key(const char *key);

#endif
