/* safetensors: the writer's round trip, conversions, refusals of the writer, the public face. */
#include "support/safetensors_files.h"
#include "support/strict_safetensors.h"
#include "support/test.h"

#include "base/file.h"
#include "base/safetensors.h"
#include "blurry/checkpoint.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void writer_and_reader_agree(void **state)
{
    static sample s, again;
    sample_typical(&s, *state);
    sample_typical(&again, *state);
    assert_int_equal(s.length, again.length);
    assert_memory_equal(s.bytes, again.bytes, s.length);
    assert_true(strict_safetensors(s.bytes, s.length));
    char path[256];
    snprintf(path, sizeof path, "%s/typical.safetensors", (char *)*state);
    safetensors *file;
    assert_ok(safetensors_open(&file, path));
    assert_int_equal(safetensors_count(file), 7);
    assert_string_equal(safetensors_at(file, 0)->name, "state \"\\\xe2\x82\xac");
    assert_int_equal((uintptr_t)safetensors_at(file, 0)->data % 64, 0);
    for (size_t i = 0; i < 7; i++) {
        const safetensors_tensor *t = safetensors_at(file, i);
        assert_int_equal((uintptr_t)t->data % safetensors_dtype_size(t->dtype), 0);
    }
    double wide[4];
    float single[4];
    assert_ok(safetensors_read_f64(file, "state \"\\\xe2\x82\xac", (int64_t[]){1, 3, 1}, 3, 3, wide));
    assert_true(wide[0] == 1 && wide[1] == -2.5 && wide[2] == 1e300);
    assert_ok(safetensors_read_f32(file, "layers.0.mixer.q.weight", (int64_t[]){2, 2}, 2, 4, single));
    assert_true(single[0] == 0.5f && single[3] == 7);
    assert_ok(safetensors_read_f64(file, "layers.0.mixer.q.weight", NULL, -1, 4, wide));
    assert_true(wide[1] == 1.5);
    assert_ok(safetensors_read_f32(file, "h", (int64_t[]){2}, 1, 2, single));
    assert_true(single[0] == 1 && single[1] == -2);
    assert_ok(safetensors_read_f64(file, "step", NULL, 0, 1, wide));
    assert_true(wide[0] == 7);
    assert_ok(safetensors_read_f64(file, "none", (int64_t[]){0, 7}, 2, 0, wide));
    assert_fails(safetensors_read_f32(file, "q", NULL, -1, 4, single), BLURRY_E_FORMAT, "no tensor 'q'");
    assert_fails(safetensors_read_f32(file, "mask", NULL, -1, 5, single), BLURRY_E_FORMAT, "has type U8");
    assert_fails(safetensors_read_f32(file, "h", (int64_t[]){1, 2}, 2, 2, single), BLURRY_E_FORMAT,
                 "has shape [2]: [1, 2] is needed");
    assert_fails(safetensors_read_f32(file, "h", NULL, -1, 3, single), BLURRY_E_FORMAT, "3 elements");
    assert_string_equal(safetensors_metadata(file, "note"), "two\nlines \xc3\xa9");
    assert_null(safetensors_metadata(file, "absent"));
    assert_string_equal(safetensors_metadata_key(file, 0), "mixer");
    safetensors_close(&file);
    safetensors_close(&file);
}

/* All 65536 half and bfloat numbers against their definition. */
static void narrow_floats_convert_exactly(void **state)
{
    char path[256];
    snprintf(path, sizeof path, "%s/narrow.safetensors", (char *)*state);
    uint16_t *bits = malloc(65536 * sizeof *bits);
    for (int i = 0; i < 65536; i++) bits[i] = (uint16_t)i;
    const safetensors_tensor tensors[] = {
        {.name = "f16", .dtype = SAFETENSORS_F16, .rank = 1, .shape = {65536}, .data = bits},
        {.name = "bf16", .dtype = SAFETENSORS_BF16, .rank = 1, .shape = {65536}, .data = bits}};
    assert_ok(safetensors_save(path, tensors, 2, NULL, NULL, 0));
    safetensors *file;
    assert_ok(safetensors_open(&file, path));
    double *out = malloc(65536 * sizeof *out);
    for (int kind = 0; kind < 2; kind++) {
        int fraction_bits = kind ? 7 : 10, bias = kind ? 127 : 15, top = kind ? 255 : 31;
        assert_ok(safetensors_read_f64(file, kind ? "bf16" : "f16", NULL, -1, 65536, out));
        for (int i = 0; i < 65536; i++) {
            int exponent = (i & 0x7fff) >> fraction_bits, fraction = i & ((1 << fraction_bits) - 1);
            double one = 1 << fraction_bits;
            double value = exponent == top ? (fraction ? NAN : INFINITY)
                           : exponent      ? ldexp(1 + fraction / one, exponent - bias)
                                           : ldexp(fraction / one, 1 - bias);
            if (i & 0x8000) value = -value;
            if (isnan(value) ? !isnan(out[i]) : out[i] != value) fail_msg("bits %04x gave %g", i, out[i]);
        }
    }
    free(out);
    free(bits);
    safetensors_close(&file);
}

static void writer_refuses_bad_input(void **state)
{
    char path[256];
    snprintf(path, sizeof path, "%s/refused.safetensors", (char *)*state);
    float x[2] = {1, 2};
    const safetensors_tensor good = {
        .name = "a", .dtype = SAFETENSORS_F32, .rank = 1, .shape = {2}, .data = x};
    safetensors_tensor t[2] = {good, good};
    assert_fails(safetensors_save(path, t, 2, NULL, NULL, 0), BLURRY_E_INVALID, "'a' is taken");
    t[0].name = "__metadata__";
    assert_fails(safetensors_save(path, t, 1, NULL, NULL, 0), BLURRY_E_INVALID, "is taken");
    t[0].name = NULL;
    assert_fails(safetensors_save(path, t, 1, NULL, NULL, 0), BLURRY_E_INVALID, "no name");
    t[0].name = "\xff";
    assert_fails(safetensors_save(path, t, 1, NULL, NULL, 0), BLURRY_E_INVALID, "UTF-8");
    t[0] = good;
    t[0].shape[0] = -1;
    assert_fails(safetensors_save(path, t, 1, NULL, NULL, 0), BLURRY_E_INVALID, "impossible");
    t[0].shape[0] = INT64_MAX;
    assert_fails(safetensors_save(path, t, 1, NULL, NULL, 0), BLURRY_E_INVALID, "impossible");
    t[0] = good;
    t[0].rank = 33;
    assert_fails(safetensors_save(path, t, 1, NULL, NULL, 0), BLURRY_E_INVALID, "impossible");
    t[0] = good;
    t[0].dtype = SAFETENSORS_DTYPE_COUNT;
    assert_fails(safetensors_save(path, t, 1, NULL, NULL, 0), BLURRY_E_INVALID, "impossible");
    t[0] = good;
    t[0].data = NULL;
    assert_fails(safetensors_save(path, t, 1, NULL, NULL, 0), BLURRY_E_INVALID, "no data");
    const char *keys[] = {"k", "k"}, *values[] = {"v", "w"}, *bad[] = {"v", "\xff"}, *missing[] = {"v", NULL};
    assert_fails(safetensors_save(path, &good, 1, keys, values, 2), BLURRY_E_INVALID, "there twice");
    keys[1] = "l";
    assert_fails(safetensors_save(path, &good, 1, keys, bad, 2), BLURRY_E_INVALID, "UTF-8");
    assert_fails(safetensors_save(path, &good, 1, keys, missing, 2), BLURRY_E_INVALID, "NULL");
    assert_false(file_exists(path));
}

static void public_face(void **state)
{
    char path[256];
    static sample s;
    sample_typical(&s, *state);
    snprintf(path, sizeof path, "%s/typical.safetensors", (char *)*state);
    blurry_checkpoint *c = NULL;
    blurry_tensor t;
    const char *key, *value;
    assert_ok(blurry_checkpoint_open(&c, path));
    assert_int_equal(blurry_checkpoint_tensor_count(c), 7);
    assert_ok(blurry_checkpoint_tensor(c, 1, &t));
    assert_string_equal(t.name, "layers.0.mixer.q.weight");
    assert_string_equal(t.dtype, "F32");
    assert_true(t.rank == 2 && t.shape[0] == 2 && t.shape[1] == 2 && t.elements == 4 && t.bytes == 16);
    assert_fails(blurry_checkpoint_tensor(c, 7, &t), BLURRY_E_INVALID, "index is 7");
    assert_int_equal(blurry_checkpoint_metadata_count(c), 2);
    assert_ok(blurry_checkpoint_metadata_at(c, 0, &key, &value));
    assert_string_equal(key, "mixer");
    assert_fails(blurry_checkpoint_metadata_at(c, 2, &key, &value), BLURRY_E_INVALID, "index is 2");
    assert_string_equal(blurry_checkpoint_metadata(c, "mixer"), "blurry,softmax");
    blurry_checkpoint_close(&c);
    assert_null(c);
    assert_fails(blurry_checkpoint_open(&c, "/no/such"), BLURRY_E_IO, "/no/such: cannot read: No such file");
    assert_fails(blurry_checkpoint_open(&c, "/tmp"), BLURRY_E_IO, "not a regular file");
    assert_fails(blurry_checkpoint_open(&c, "/dev/null"), BLURRY_E_IO, "not a regular file");
    assert_fails(blurry_checkpoint_open(NULL, "x"), BLURRY_E_INVALID, "checkpoint is NULL");
}

static void public_writer(void **state)
{
    char path[256];
    const float numbers[6] = {1, 2, 3, 4, 5, 6};
    const char *keys[] = {"task"}, *values[] = {"mqar"};
    blurry_tensor t = {.name = "x", .dtype = "F32", .rank = 2, .shape = {2, 3}, .data = numbers}, back;
    blurry_checkpoint *c = NULL;
    snprintf(path, sizeof path, "%s/written.safetensors", (char *)*state);
    assert_ok(blurry_tensors_save(path, &t, 1, keys, values, 1));
    assert_ok(blurry_checkpoint_open(&c, path));
    assert_ok(blurry_checkpoint_tensor(c, 0, &back));
    assert_true(back.rank == 2 && back.shape[0] == 2 && back.shape[1] == 3 && back.bytes == sizeof numbers);
    assert_memory_equal(back.data, numbers, sizeof numbers);
    assert_string_equal(blurry_checkpoint_metadata(c, "task"), "mqar");
    blurry_checkpoint_close(&c);
    t.dtype = "F33";
    assert_fails(blurry_tensors_save(path, &t, 1, keys, values, 1), BLURRY_E_INVALID, "dtype is F33");
    t.dtype = "F32", t.rank = 33;
    assert_fails(blurry_tensors_save(path, &t, 1, keys, values, 1), BLURRY_E_INVALID, "rank is 33");
    assert_fails(blurry_tensors_save(path, NULL, 1, keys, values, 1), BLURRY_E_INVALID, "tensors is NULL");
    assert_fails(blurry_tensors_save(path, &t, 0, keys, NULL, 1), BLURRY_E_INVALID, "values is NULL");
    assert_ok(blurry_tensors_save(path, NULL, 0, NULL, NULL, 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(writer_and_reader_agree),
        cmocka_unit_test(narrow_floats_convert_exactly),
        cmocka_unit_test(writer_refuses_bad_input),
        cmocka_unit_test(public_face),
        cmocka_unit_test(public_writer),
    };
    return cmocka_run_group_tests(tests, sample_make_folder, sample_remove_folder);
}
