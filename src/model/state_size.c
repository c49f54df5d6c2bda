/* Public face of the mixers' list and of the one function behind every state size. */
#include "blurry/model.h"

#include "base/status.h"
#include "mixers/mixer.h"

int blurry_mixer_count(void)
{
    return mixer_count();
}

const char *blurry_mixer_name(int index)
{
    return mixer_at(index) ? mixer_at(index)->name : NULL;
}

const char *blurry_mixer_summary(int index)
{
    return mixer_at(index) ? mixer_at(index)->summary : NULL;
}

blurry_status blurry_state_size(const blurry_settings *settings, const char *name, int64_t length,
                                int64_t *elements)
{
    mixer_config config;
    if (!settings || !name || !elements)
        return status_fail(BLURRY_E_INVALID, "%s is NULL",
                           !settings ? "settings"
                           : !name   ? "mixer"
                                     : "elements");
    if (length < 0)
        return status_fail(BLURRY_E_INVALID, "length is %lld: give at least 0", (long long)length);
    STATUS_TRY(mixer_config_init(&config, settings_values(settings), name));
    *elements = mixer_state_elements(&config, length);
    mixer_config_release(&config);
    return BLURRY_OK;
}

blurry_status blurry_state_size_model(const blurry_settings *settings, int64_t length, int64_t *elements)
{
    if (!settings || !elements)
        return status_fail(BLURRY_E_INVALID, "%s is NULL", !settings ? "settings" : "elements");
    const struct settings *s = settings_values(settings);
    int64_t total = 0;
    for (int64_t layer = 0; layer < s->layers; layer++) {
        char name[SETTINGS_TEXT];
        int64_t part;
        STATUS_TRY(settings_name_at("mixer", s->mixer, s->layers, layer, name, sizeof name));
        STATUS_TRY(blurry_state_size(settings, name, length, &part));
        total += part;
    }
    *elements = total;
    return BLURRY_OK;
}
