/* The program's options: one object holding all of them, set by name from text, YAML or a checkpoint.
 *
 * Every option has a type, a range and a default and is checked when it is set; a refused value leaves the
 * object as it was. `blurry train --help` and blurry_settings_describe list them. */
#ifndef BLURRY_SETTINGS_H
#define BLURRY_SETTINGS_H
#include "blurry/status.h"
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct blurry_settings blurry_settings;

/* Every option at its default. */
BLURRY_API blurry_status blurry_settings_create(blurry_settings **settings);
BLURRY_API blurry_status blurry_settings_copy(blurry_settings **copy, const blurry_settings *settings);
/* Releases the object and sets the pointer to NULL; NULL is fine. */
BLURRY_API void blurry_settings_destroy(blurry_settings **settings);

/* Sets one option from its text form: 64, 1e-3, true/false (also on/off, yes/no, 1/0), a choice, a list
 * "2,3". An unknown key is refused with the nearest known one. */
BLURRY_API blurry_status blurry_settings_set(blurry_settings *settings, const char *key, const char *value);
/* The same from "key=value". */
BLURRY_API blurry_status blurry_settings_assign(blurry_settings *settings, const char *assignment);
/* The option in its canonical text form, which `set` reads back to the very same value. BLURRY_E_INVALID
 * where the text with its final 0 does not fit; 1024 bytes always do. */
BLURRY_API blurry_status blurry_settings_get(const blurry_settings *settings, const char *key, char *text,
                                             size_t capacity);

/* Reads a YAML file: one flat map of options; lists for list options. All or nothing: a file with any mistake
 * changes nothing. Messages carry file and line. */
BLURRY_API blurry_status blurry_settings_load_yaml(blurry_settings *settings, const char *path);
/* The same from memory; `name` stands for the file in messages. */
BLURRY_API blurry_status blurry_settings_parse_yaml(blurry_settings *settings, const char *text,
                                                    size_t length, const char *name);

/* Groups of options, to be or-ed. */
enum {
    BLURRY_SETTINGS_MODEL = 1,    /* shape of the model */
    BLURRY_SETTINGS_MIXER = 2,    /* the sequence mixers' options */
    BLURRY_SETTINGS_TASK = 4,     /* task and data */
    BLURRY_SETTINGS_TRAINING = 8, /* optimiser, schedule, evaluation, seed */
    BLURRY_SETTINGS_RUN = 16,     /* how it is carried out: device, threads */
    BLURRY_SETTINGS_ALL = 31
};

/* Writes the options of these groups as YAML, one "key: value" line each in fixed order, cut to fit and
 * always 0-terminated; returns the length the whole text has. parse_yaml reads it back to the very same
 * values. */
BLURRY_API size_t blurry_settings_text(const blurry_settings *settings, unsigned groups, char *text,
                                       size_t capacity);

/* The name of the first option of these groups in which a and b differ, NULL when they agree. */
BLURRY_API const char *blurry_settings_difference(const blurry_settings *a, const blurry_settings *b,
                                                  unsigned groups);

/* SHA-256, as 64 hexadecimal digits, of the text form of these groups: equal settings, equal hash, on any
 * machine. */
BLURRY_API void blurry_settings_hash(const blurry_settings *settings, unsigned groups, char hex[65]);

/* What there is to set, for help texts. Strings are static. */
typedef struct blurry_setting_info {
    const char *name;
    const char *type;     /* "integer", "number", "switch", "text", "choice", "names", "numbers" */
    const char *fallback; /* the default, in text form */
    const char *range;    /* "1 .. 256", "cosine | constant", or "" */
    const char *group;    /* "model", "mixer", "task", "training", "run" */
    unsigned group_bit;   /* the same as a BLURRY_SETTINGS_ bit */
    const char *applies;  /* mixers or tasks it concerns, separated by blanks; "" for all */
    const char *help;
} blurry_setting_info;

BLURRY_API size_t blurry_settings_count(void);
/* BLURRY_E_INVALID when index is not below the count. */
BLURRY_API blurry_status blurry_settings_describe(size_t index, blurry_setting_info *info);
/* The known option nearest to `key`, by spelling or by its words; never NULL. */
BLURRY_API const char *blurry_settings_nearest(const char *key);

#ifdef __cplusplus
}
#endif
#endif
