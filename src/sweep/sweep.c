/* The public face of sweep files: load, list, keys. */
#include "base/file.h"
#include "base/settings_table.h"
#include "base/sha256.h"
#include "sweep/grid.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FILE_BYTES_MAX = 1 << 20 };

void grid_key(const blurry_settings *settings, char hex[65])
{
    char value[SETTINGS_TEXT], fallback[SETTINGS_TEXT];
    struct settings defaults;
    uint8_t digest[32];
    sha256 hash;
    settings_init(&defaults);
    sha256_init(&hash);
    for (size_t i = 0; i < settings_table_count; i++) {
        const setting *option = &settings_table[i];
        if (option->info.group_bit == BLURRY_SETTINGS_RUN) continue;
        settings_format_value(option, settings_values(settings), value);
        settings_format_value(option, &defaults, fallback);
        if (!strcmp(value, fallback)) continue;
        sha256_update(&hash, option->info.name, strlen(option->info.name) + 1);
        sha256_update(&hash, value, strlen(value) + 1);
    }
    sha256_final(&hash, digest);
    sha256_hex(digest, hex);
}

/* "experiments/fig3b-small.yaml" is called fig3b-small. */
static void name_after_file(grid *g, const char *file)
{
    const char *base = strrchr(file, '/');
    base = base ? base + 1 : file;
    const char *dot = strrchr(base, '.');
    size_t n = dot && dot > base ? (size_t)(dot - base) : strlen(base);
    snprintf(g->name, sizeof g->name, "%.*s", (int)(n < GRID_NAME ? n : GRID_NAME - 1), base);
}

static blurry_status build(blurry_sweep *s, const char *text, size_t length, const char *name,
                           const blurry_sweep_choice *choice)
{
    s->file = strdup(name);
    s->text = strndup(text, length);
    if (!s->file || !s->text) return status_fail(BLURRY_E_MEMORY, "%s: out of memory", name);
    STATUS_TRY(grid_parse(&s->grid, text, length, s->file));
    if (!s->grid.name[0]) name_after_file(&s->grid, name);
    return grid_expand(s, choice);
}

blurry_status blurry_sweep_parse(blurry_sweep **sweep, const char *text, size_t length, const char *name,
                                 const blurry_sweep_choice *choice)
{
    if (!sweep || !text || !name) return status_fail(BLURRY_E_INVALID, "sweep, text or name is NULL");
    *sweep = NULL;
    if (length > FILE_BYTES_MAX)
        return status_fail(BLURRY_E_INVALID, "%s: %zu bytes are too many for a sweep file", name, length);
    blurry_sweep *s = calloc(1, sizeof *s);
    if (!s) return status_fail(BLURRY_E_MEMORY, "%s: out of memory", name);
    blurry_status status = build(s, text, length, name, choice);
    if (status != BLURRY_OK) blurry_sweep_destroy(&s);
    *sweep = s;
    return status;
}

blurry_status blurry_sweep_load(blurry_sweep **sweep, const char *path, const blurry_sweep_choice *choice)
{
    if (!sweep || !path) return status_fail(BLURRY_E_INVALID, "sweep or path is NULL");
    *sweep = NULL;
    void *text;
    size_t length;
    STATUS_TRY(file_read(path, FILE_BYTES_MAX, &text, &length));
    blurry_status status = blurry_sweep_parse(sweep, text, length, path, choice);
    free(text);
    return status;
}

void blurry_sweep_destroy(blurry_sweep **sweep)
{
    blurry_sweep *s = sweep ? *sweep : NULL;
    if (!s) return;
    for (int64_t i = 0; i < s->count; i++) {
        free(s->run[i].label);
        blurry_settings_destroy(&s->run[i].settings);
    }
    free(s->run);
    grid_free(&s->grid);
    free(s->file);
    free(s->text);
    free(s);
    *sweep = NULL;
}

const char *blurry_sweep_name(const blurry_sweep *sweep)
{
    return sweep ? sweep->grid.name : "";
}

int64_t blurry_sweep_count(const blurry_sweep *sweep)
{
    return sweep ? sweep->count : 0;
}

blurry_status blurry_sweep_at(const blurry_sweep *sweep, int64_t index, blurry_sweep_entry *entry)
{
    if (!sweep || !entry) return status_fail(BLURRY_E_INVALID, "sweep or entry is NULL");
    if (index < 0 || index >= sweep->count)
        return status_fail(BLURRY_E_INVALID, "index is %lld: the sweep has %lld runs", (long long)index,
                           (long long)sweep->count);
    const grid_run *run = &sweep->run[index];
    *entry = (blurry_sweep_entry){.group = sweep->grid.group[run->group].name,
                                  .label = run->label,
                                  .settings = run->settings,
                                  .steps = run->steps,
                                  .state_elements = run->state_elements,
                                  .parameters = run->parameters,
                                  .work = run->work,
                                  .bytes = run->bytes};
    memcpy(entry->key, run->key, sizeof entry->key);
    return BLURRY_OK;
}
