/* The presets of presets.def behind blurry_preset_*. */
#include "base/status.h"
#include "blurry/train.h"

#include <string.h>

typedef struct preset {
    const char *name, *summary, *yaml;
} preset;

static const preset presets[] = {
#define PRESET(name, summary, yaml) {name, summary, yaml},
#include "train/presets.def"
};
enum { PRESETS = sizeof presets / sizeof presets[0] };

int blurry_preset_count(void)
{
    return PRESETS;
}

const char *blurry_preset_name(int index)
{
    return index >= 0 && index < PRESETS ? presets[index].name : NULL;
}

const char *blurry_preset_summary(int index)
{
    return index >= 0 && index < PRESETS ? presets[index].summary : NULL;
}

blurry_status blurry_preset_apply(blurry_settings *settings, const char *name)
{
    if (!settings || !name) return status_fail(BLURRY_E_INVALID, "settings or name is NULL");
    for (int i = 0; i < PRESETS; i++)
        if (!strcmp(name, presets[i].name))
            return blurry_settings_parse_yaml(settings, presets[i].yaml, strlen(presets[i].yaml), name);
    char known[512] = "";
    for (int i = 0; i < PRESETS; i++) {
        if (i) strncat(known, ", ", sizeof known - strlen(known) - 1);
        strncat(known, presets[i].name, sizeof known - strlen(known) - 1);
    }
    return status_fail(BLURRY_E_INVALID, "preset is '%s': give one of %s", name, known);
}
