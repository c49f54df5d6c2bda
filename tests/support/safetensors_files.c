#include "support/safetensors_files.h"
#include "support/test.h"

#include "base/file.h"
#include "base/safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void sample_build(sample *s, const char *header, size_t header_bytes, size_t data_bytes, int64_t claim)
{
    uint64_t n = claim >= 0 ? (uint64_t)claim : header_bytes;
    assert_true(8 + header_bytes + data_bytes <= SAMPLE_MAX);
    for (int i = 0; i < 8; i++) s->bytes[i] = (uint8_t)(n >> 8 * i);
    memcpy(s->bytes + 8, header, header_bytes);
    for (size_t i = 0; i < data_bytes; i++) s->bytes[8 + header_bytes + i] = (uint8_t)(i * 37 + 1);
    s->length = 8 + header_bytes + data_bytes;
}

static volatile uint8_t sink; /* makes every byte of every tensor be read */

blurry_status sample_parse(const sample *s)
{
    uint8_t *copy = malloc(s->length ? s->length : 1);
    memcpy(copy, s->bytes, s->length);
    safetensors *file;
    blurry_status status = safetensors_parse(&file, copy, s->length, "test");
    assert_true((status == BLURRY_OK) == (file != NULL));
    if (file) {
        /* Every accessor must hold what it promises on whatever was accepted. */
        for (size_t i = 0; i < safetensors_count(file); i++) {
            const safetensors_tensor *t = safetensors_at(file, i);
            assert_ptr_equal(safetensors_find(file, t->name), t);
            for (size_t b = 0; b < t->bytes; b++) sink ^= ((const uint8_t *)t->data)[b];
        }
        for (size_t i = 0; i < safetensors_metadata_count(file); i++)
            assert_string_equal(safetensors_metadata(file, safetensors_metadata_key(file, i)),
                                safetensors_metadata_value(file, i));
        assert_null(safetensors_at(file, safetensors_count(file)));
    }
    safetensors_close(&file);
    free(copy);
    return status;
}

void sample_typical(sample *s, const char *folder)
{
    static const double wide[3] = {1, -2.5, 1e300};
    static const float single[4] = {0.5f, 1.5f, -3, 7};
    static const uint16_t half[2] = {0x3c00, 0xc000};
    static const uint8_t byte[5] = {1, 2, 3, 4, 5};
    const safetensors_tensor tensors[] = {
        {.name = "mask", .dtype = SAFETENSORS_U8, .rank = 1, .shape = {5}, .data = byte},
        {.name = "layers.0.mixer.q.weight",
         .dtype = SAFETENSORS_F32,
         .rank = 2,
         .shape = {2, 2},
         .data = single},
        {.name = "state \"\\\xe2\x82\xac",
         .dtype = SAFETENSORS_F64,
         .rank = 3,
         .shape = {1, 3, 1},
         .data = wide},
        {.name = "h", .dtype = SAFETENSORS_F16, .rank = 1, .shape = {2}, .data = half},
        {.name = "b", .dtype = SAFETENSORS_BF16, .rank = 1, .shape = {2}, .data = half},
        {.name = "none", .dtype = SAFETENSORS_F32, .rank = 2, .shape = {0, 7}},
        {.name = "step", .dtype = SAFETENSORS_F32, .rank = 0, .data = single + 3},
    };
    const char *const keys[] = {"mixer", "note"}, *const values[] = {"blurry,softmax", "two\nlines \xc3\xa9"};
    char path[256];
    snprintf(path, sizeof path, "%s/typical.safetensors", folder);
    assert_ok(safetensors_save(path, tensors, 7, keys, values, 2));
    void *data;
    assert_ok(file_read(path, SAMPLE_MAX, &data, &s->length));
    memcpy(s->bytes, data, s->length);
    free(data);
}

int sample_make_folder(void **state)
{
    static char folder[] = "/tmp/blurry-safetensors-XXXXXX";
    *state = mkdtemp(folder);
    return *state ? 0 : -1;
}

int sample_remove_folder(void **state)
{
    char command[256];
    snprintf(command, sizeof command, "rm -rf '%s'", (char *)*state);
    return system(command);
}
