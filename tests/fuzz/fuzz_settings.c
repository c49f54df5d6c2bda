/* libFuzzer target: settings from YAML. Whatever is accepted must survive the way to text and back unchanged.
 */
#include "base/settings.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t length);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t length)
{
    static char text[1 << 18];
    blurry_settings *read = NULL, *again = NULL;
    if (blurry_settings_create(&read) != BLURRY_OK || blurry_settings_copy(&again, read) != BLURRY_OK)
        abort();
    if (blurry_settings_parse_yaml(read, (const char *)data, length, "input") == BLURRY_OK) {
        size_t n = blurry_settings_text(read, BLURRY_SETTINGS_ALL, text, sizeof text);
        if (n >= sizeof text || blurry_settings_parse_yaml(again, text, n, "text") != BLURRY_OK) abort();
    }
    /* After a refusal nothing has changed. */
    if (memcmp(settings_values(read), settings_values(again), sizeof(struct settings)) != 0) abort();
    blurry_settings_destroy(&read);
    blurry_settings_destroy(&again);
    return 0;
}
