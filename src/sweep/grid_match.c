/* Matched state sizes: the option that makes a mixer's state larger, and the value that comes nearest below a
 * number. */
#include "base/settings_table.h"
#include "blurry/model.h"
#include "sweep/grid.h"

#include <stdio.h>
#include <string.h>

static const struct size_option {
    const char *mixer, *option;
    int64_t step; /* the option is a multiple of this */
} size_options[] = {{"blurry", "modes", 1},
                    {"swa", "window", 1},
                    {"gsa", "slots", 1},
                    {"abc", "slots", 1},
                    {"s4d", "state", 2}};
enum { SIZE_OPTIONS = sizeof size_options / sizeof size_options[0] };
static const int64_t LARGEST = 1 << 20; /* states of a million slots are beyond any sweep */

static blurry_status state_with(blurry_settings *settings, const struct size_option *by, int64_t n,
                                int64_t *elements)
{
    char text[32];
    snprintf(text, sizeof text, "%lld", (long long)(n * by->step));
    STATUS_TRY(blurry_settings_set(settings, by->option, text));
    return blurry_state_size(settings, by->mixer, INT64_MAX / 4, elements);
}

blurry_status grid_match_state(blurry_settings *settings, int64_t elements)
{
    char mixer[SETTINGS_TEXT];
    STATUS_TRY(blurry_settings_get(settings, "mixer", mixer, sizeof mixer));
    const struct size_option *by = NULL;
    for (int i = 0; i < SIZE_OPTIONS; i++)
        if (!strcmp(mixer, size_options[i].mixer)) by = &size_options[i];
    if (!by)
        return status_fail(BLURRY_E_UNSUPPORTED,
                           GRID_MATCH_STATE
                           " is %lld, but mixer is %s, which has no single option for its size: choose "
                           "from blurry, swa, gsa, abc, s4d",
                           (long long)elements, mixer);
    int64_t most = settings_find(by->option)->most, size = 0;
    int64_t low = 0, high = (most < LARGEST ? most : LARGEST) /
                            by->step; /* low fits (0: nothing yet), high + 1 does not */
    while (low < high) {
        int64_t middle = low + (high - low + 1) / 2;
        STATUS_TRY(state_with(settings, by, middle, &size));
        if (size <= elements)
            low = middle;
        else
            high = middle - 1;
    }
    if (low == 0)
        return status_fail(BLURRY_E_INVALID, GRID_MATCH_STATE " is %lld: the smallest %s has more",
                           (long long)elements, mixer);
    return state_with(settings, by, low, &size);
}
