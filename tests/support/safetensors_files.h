/* safetensors files for tests: built by hand, or a typical one as the writer makes it. */
#ifndef BLURRY_TEST_SAFETENSORS_FILES_H
#define BLURRY_TEST_SAFETENSORS_FILES_H
#include "blurry/status.h"

#include <stddef.h>
#include <stdint.h>

enum { SAMPLE_MAX = 1 << 16 };
typedef struct sample {
    uint8_t bytes[SAMPLE_MAX];
    size_t length;
} sample;

/* length | header | data_bytes of data. `claim` replaces the header's length where it is not negative. */
void sample_build(sample *s, const char *header, size_t header_bytes, size_t data_bytes, int64_t claim);

/* Saves folder/typical.safetensors, a file with everything in it, and reads its bytes. */
void sample_typical(sample *s, const char *folder);

/* Reads it from memory that ends where the file ends, so that the sanitizers see the first byte read too far,
 * and checks every accessor on what was accepted. */
blurry_status sample_parse(const sample *s);

/* Group setup and teardown: *state is a fresh folder. */
int sample_make_folder(void **state);
int sample_remove_folder(void **state);

#endif
