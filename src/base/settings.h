/* The options of the program as plain values. settings.def lists them; this file turns the list into types.
 *
 * Code below the public API reads `const struct settings *`. Ranges and spelling are checked when a value is
 * set; what depends on several options at once (heads and kv_heads, for example) is checked by the part that
 * uses them. */
#ifndef BLURRY_BASE_SETTINGS_H
#define BLURRY_BASE_SETTINGS_H
#include "blurry/settings.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SETTINGS_TEXT = 1024 }; /* bytes of a text option, the final 0 included */

/* SETTINGS_EACH(M, name, a, b, c) -> M(name, a) M(name, b) M(name, c), for one to eight choices. */
#define SETTINGS_E1(M, n, a)                          M(n, a)
#define SETTINGS_E2(M, n, a, ...)                     M(n, a) SETTINGS_E1(M, n, __VA_ARGS__)
#define SETTINGS_E3(M, n, a, ...)                     M(n, a) SETTINGS_E2(M, n, __VA_ARGS__)
#define SETTINGS_E4(M, n, a, ...)                     M(n, a) SETTINGS_E3(M, n, __VA_ARGS__)
#define SETTINGS_E5(M, n, a, ...)                     M(n, a) SETTINGS_E4(M, n, __VA_ARGS__)
#define SETTINGS_E6(M, n, a, ...)                     M(n, a) SETTINGS_E5(M, n, __VA_ARGS__)
#define SETTINGS_E7(M, n, a, ...)                     M(n, a) SETTINGS_E6(M, n, __VA_ARGS__)
#define SETTINGS_E8(M, n, a, ...)                     M(n, a) SETTINGS_E7(M, n, __VA_ARGS__)
#define SETTINGS_PICK(a, b, c, d, e, f, g, h, M, ...) M
#define SETTINGS_EACH(M, n, ...)                                                                             \
    SETTINGS_PICK(__VA_ARGS__, SETTINGS_E8, SETTINGS_E7, SETTINGS_E6, SETTINGS_E5, SETTINGS_E4, SETTINGS_E3, \
                  SETTINGS_E2, SETTINGS_E1, )                                                                \
    (M, n, __VA_ARGS__)
#define SETTINGS_LIST(...) __VA_ARGS__

/* enum settings_grid { SETTINGS_grid_absolute, SETTINGS_grid_relative, SETTINGS_grid_count }; and so on. */
#define SETTINGS_CHOICE_ENUM(name, choice) SETTINGS_##name##_##choice,
#define SETTINGS_CHOICE_EACH(M, name, ...) SETTINGS_EACH(M, name, __VA_ARGS__)
#define CHOICE(name, default_value, choices, group, applies, help)                                           \
    enum settings_##name{SETTINGS_CHOICE_EACH(SETTINGS_CHOICE_ENUM, name, SETTINGS_LIST choices)             \
                             SETTINGS_##name##_count};
#include "base/settings.def"

struct settings {
#define INT(name, ...)    int64_t name;
#define REAL(name, ...)   double name;
#define BOOL(name, ...)   bool name;
#define TEXT(name, ...)   char name[SETTINGS_TEXT];
#define NAMES(name, ...)  char name[SETTINGS_TEXT];
#define REALS(name, ...)  char name[SETTINGS_TEXT];
#define CHOICE(name, ...) enum settings_##name name;
#include "base/settings.def"
};

struct blurry_settings {
    struct settings values;
};

/* The values behind the public handle. */
static inline const struct settings *settings_values(const blurry_settings *handle)
{
    return &handle->values;
}

/* Every option at its default. */
void settings_init(struct settings *s);

/* Reads a list option such as "2,3" into out [count]: one number serves for all, else exactly `count` are
 * needed. `key` names the option in the message, as in settings_reals("period", s->period, kv_heads, out). An
 * empty list is an error: ask settings_list_count first where that has a meaning. */
blurry_status settings_reals(const char *key, const char *list, int64_t count, double *out);

/* The entry `index` of a list of names that has one entry or `count` of them, as in
 * settings_name_at("mixer", s->mixer, s->layers, layer, name, sizeof name). */
blurry_status settings_name_at(const char *key, const char *list, int64_t count, int64_t index, char *name,
                               size_t capacity);

/* Entries of a list option; 0 when it is empty. */
int64_t settings_list_count(const char *list);

#endif
