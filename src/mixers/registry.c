/* All mixers, from mixers.def. */
#include "mixers/mixer.h"

#include <string.h>

static const mixer *const mixers[] = {
#define MIXER(name) &mixer_##name,
#include "mixers/mixers.def"
};
enum { MIXER_TOTAL = sizeof mixers / sizeof mixers[0] };

int mixer_count(void)
{
    return MIXER_TOTAL;
}

const mixer *mixer_at(int index)
{
    return index >= 0 && index < MIXER_TOTAL ? mixers[index] : NULL;
}

const mixer *mixer_find(const char *name)
{
    for (int i = 0; i < MIXER_TOTAL; i++)
        if (!strcmp(mixers[i]->name, name)) return mixers[i];
    return NULL;
}
