/* libFuzzer target: the safetensors reader must survive every input and agree with the independent
 * recogniser. */
#include "base/safetensors.h"
#include "support/strict_safetensors.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t length);

static volatile uint8_t sink; /* makes every byte of every tensor be read */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t length)
{
    safetensors *file;
    blurry_status status = safetensors_parse(&file, data, length, "input");
    if ((status == BLURRY_OK) != strict_safetensors(data, length)) abort();
    if (status != BLURRY_OK) return 0;
    for (size_t i = 0; i < safetensors_count(file); i++) {
        const safetensors_tensor *t = safetensors_at(file, i);
        if (safetensors_find(file, t->name) != t) abort();
        for (size_t b = 0; b < t->bytes; b++) sink ^= ((const uint8_t *)t->data)[b];
    }
    for (size_t i = 0; i < safetensors_metadata_count(file); i++)
        if (strcmp(safetensors_metadata(file, safetensors_metadata_key(file, i)),
                   safetensors_metadata_value(file, i)))
            abort();
    safetensors_close(&file);
    return 0;
}
