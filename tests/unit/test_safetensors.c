/* The safetensors reader against hostile files, and the writer's round trip. */
#include "support/strict_safetensors.h"
#include "support/test.h"

#include "base/file.h"
#include "base/safetensors.h"
#include "blurry/checkpoint.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FILE_MAX = 1 << 16 };
typedef struct sample {
    uint8_t bytes[FILE_MAX];
    size_t length;
} sample;

/* length | header | data_bytes of data. `claim` replaces the header's length where it is not negative. */
static void build(sample *s, const char *header, size_t header_bytes, size_t data_bytes, int64_t claim)
{
    uint64_t n = claim >= 0 ? (uint64_t)claim : header_bytes;
    assert_true(8 + header_bytes + data_bytes <= FILE_MAX);
    for (int i = 0; i < 8; i++) s->bytes[i] = (uint8_t)(n >> 8 * i);
    memcpy(s->bytes + 8, header, header_bytes);
    for (size_t i = 0; i < data_bytes; i++) s->bytes[8 + header_bytes + i] = (uint8_t)(i * 37 + 1);
    s->length = 8 + header_bytes + data_bytes;
}

static volatile uint8_t sink; /* makes every byte of every tensor be read */

/* In memory that ends where the file ends, so that the sanitizers see the first byte read too far. */
static blurry_status parse_exactly(const sample *s)
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

/* Data sizes below count the bytes after the header. */
typedef struct rule_case {
    const char *header;
    size_t data;
    const char *message; /* NULL: must be accepted */
} rule_case;

#define T(dtype, shape, offsets) "{\"dtype\":" dtype ",\"shape\":" shape ",\"data_offsets\":" offsets "}"
static const rule_case rules[] = {
    {"{}", 0, NULL},
    {"{}  \n\t ", 0, NULL},
    {"{\"a\":" T("\"F32\"", "[2,3]", "[0,24]") "}", 24, NULL},
    {"{\"a\":" T("\"F32\"", "[]", "[0,4]") "}", 4, NULL},
    {"{\"a\":" T("\"F32\"", "[0,3]", "[0,0]") "}", 0, NULL},
    {"{\"a\":" T("\"F32\"", "[0]", "[4,4]") ",\"b\":" T("\"U8\"", "[4]", "[0,4]") "}", 4, NULL},
    {"{\"b\":" T("\"I64\"", "[1]", "[8,16]") ",\"a\":" T("\"F64\"", "[1]", "[0,8]") "}", 16, NULL},
    {"{\"__metadata__\":{},\"\":" T("\"BOOL\"", "[1]", "[0,1]") "}", 1, NULL},
    {"{\"__metadata__\":{\"k\":\"v\",\"l\":\"\\u20ac\\n\"}}", 0, NULL},
    {"{\"a\":{\"data_offsets\":[0,2],\"shape\":[1],\"dtype\":\"BF16\"}}", 2, NULL},
    {"{\"a\":" T("\"F8_E4M3\"", "[3]", "[0,3]") ",\"b\":" T("\"F8_E5M2\"", "[1]", "[3,4]") "}", 4, NULL},
    /* the header as a whole */
    {"", 0, "does not begin with '{'"},
    {" {}", 0, "does not begin with '{'"},
    {"[]", 0, "does not begin with '{'"},
    {"{", 0, "not valid JSON"},
    {"{}x", 0, "not valid JSON"},
    {"{}{}", 0, "not valid JSON"},
    {"{\"a\":}", 0, "not valid JSON"},
    {"{\"a\" 1}", 0, "not valid JSON"},
    {"{\"\xff\":1}", 0, "not valid JSON"},
    {"{\"a\xc0\x80\":1}", 0, "not valid JSON"},
    {"{\"a\\u0000\":1}", 0, "not valid JSON"},
    {"{\"\\ud800\":1}", 0, "not valid JSON"},
    {"{'a':1}", 0, "not valid JSON"},
    {"{\"a\":" T("\"U8\"", "[1]", "[0,1]") ",}", 1, "not valid JSON"},
    /* duplicates */
    {"{\"a\":" T("\"U8\"", "[1]", "[0,1]") ",\"a\":" T("\"U8\"", "[1]", "[1,2]") "}", 2, "duplicate"},
    {"{\"a\":" T("\"U8\"", "[1]", "[0,1]") ",\"\\u0061\":" T("\"U8\"", "[1]", "[1,2]") "}", 2, "duplicate"},
    {"{\"__metadata__\":{\"k\":\"v\",\"k\":\"w\"}}", 0, "duplicate"},
    {"{\"__metadata__\":{},\"__metadata__\":{}}", 0, "duplicate"},
    {"{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "duplicate"},
    /* metadata */
    {"{\"__metadata__\":[]}", 0, "__metadata__ is not an object"},
    {"{\"__metadata__\":null}", 0, "__metadata__ is not an object"},
    {"{\"__metadata__\":\"x\"}", 0, "__metadata__ is not an object"},
    {"{\"__metadata__\":{\"k\":1}}", 0, "metadata 'k' is not a string"},
    {"{\"__metadata__\":{\"k\":null}}", 0, "metadata 'k' is not a string"},
    {"{\"__metadata__\":{\"k\":{\"l\":\"m\"}}}", 0, "metadata 'k' is not a string"},
    /* entries */
    {"{\"a\":1}", 0, "tensor 'a': its entry is not an object"},
    {"{\"a\":[]}", 0, "tensor 'a': its entry is not an object"},
    {"{\"a\":{}}", 0, "tensor 'a': dtype is missing"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1, "data_offsets are missing"},
    {"{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,1]}}", 1, "shape is missing"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1],\"x\":1}}", 1, "more than dtype"},
    /* types */
    {"{\"a\":" T("\"F31\"", "[1]", "[0,4]") "}", 4, "dtype is 'F31': not a known type"},
    {"{\"a\":" T("\"f32\"", "[1]", "[0,4]") "}", 4, "not a known type"},
    {"{\"a\":" T("\"\"", "[1]", "[0,4]") "}", 4, "not a known type"},
    {"{\"a\":" T("\"F32 \"", "[1]", "[0,4]") "}", 4, "not a known type"},
    {"{\"a\":" T("32", "[1]", "[0,4]") "}", 4, "not a string"},
    /* shapes */
    {"{\"a\":" T("\"U8\"", "1", "[0,1]") "}", 1, "not a list"},
    {"{\"a\":" T("\"U8\"", "{}", "[0,1]") "}", 1, "not a list"},
    {"{\"a\":" T("\"U8\"", "[-1]", "[0,1]") "}", 1, "shape[0] is -1: negative"},
    {"{\"a\":" T("\"U8\"", "[-1,-1]", "[0,1]") "}", 1, "negative"},
    {"{\"a\":" T("\"U8\"", "[1.0]", "[0,1]") "}", 1, "not a whole number"},
    {"{\"a\":" T("\"U8\"", "[1e0]", "[0,1]") "}", 1, "not a whole number"},
    {"{\"a\":" T("\"U8\"", "[\"1\"]", "[0,1]") "}", 1, "not a whole number"},
    {"{\"a\":" T("\"U8\"", "[true]", "[0,1]") "}", 1, "not a whole number"},
    {"{\"a\":" T("\"U8\"", "[[1]]", "[0,1]") "}", 1, "not a whole number"},
    {"{\"a\":" T("\"U8\"", "[01]", "[0,1]") "}", 1, "not valid JSON"},
    {"{\"a\":" T("\"U8\"", "[9223372036854775808]", "[0,1]") "}", 1, "not valid JSON"},
    {"{\"a\":" T("\"U8\"", "[4294967296,4294967296]", "[0,0]") "}", 0, "more elements than fit"},
    {"{\"a\":" T("\"F64\"", "[2305843009213693952]", "[0,0]") "}", 0, "than fit|needs"},
    {"{\"a\":" T("\"F64\"", "[4611686018427387904]", "[0,0]") "}", 0, "than fit|needs"},
    {"{\"a\":" T("\"U8\"", "[0,4294967296,4294967296]", "[0,0]") "}", 0, "more elements than fit"},
    {"{\"a\":" T("\"U8\"", "[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]",
                 "[0,1]") "}",
     1, "33 dimensions"},
    /* offsets */
    {"{\"a\":" T("\"U8\"", "[1]", "[0]") "}", 1, "not two whole numbers"},
    {"{\"a\":" T("\"U8\"", "[1]", "[0,1,2]") "}", 1, "not two whole numbers"},
    {"{\"a\":" T("\"U8\"", "[1]", "0") "}", 1, "not two whole numbers"},
    {"{\"a\":" T("\"U8\"", "[1]", "{\"0\":0}") "}", 1, "not two whole numbers"},
    {"{\"a\":" T("\"U8\"", "[1]", "[0.0,1]") "}", 1, "not two whole numbers"},
    {"{\"a\":" T("\"U8\"", "[1]", "[-1,0]") "}", 1, "-1 and 0: not ascending"},
    {"{\"a\":" T("\"U8\"", "[1]", "[1,0]") "}", 1, "1 and 0: not ascending"},
    {"{\"a\":" T("\"U8\"", "[1]", "[0,2]") "}", 1, "not ascending within the 1 bytes"},
    {"{\"a\":" T("\"U8\"", "[9223372036854775807]", "[0,9223372036854775807]") "}", 1, "within the 1 bytes"},
    {"{\"a\":" T("\"U8\"", "[2]", "[0,1]") "}", 1, "span 1 bytes, but the shape needs 2"},
    {"{\"a\":" T("\"F32\"", "[1]", "[0,1]") "}", 1, "span 1 bytes, but the shape needs 4"},
    /* tiling */
    {"{\"a\":" T("\"U8\"", "[1]", "[1,2]") "}", 2, "there is a hole"},
    {"{\"a\":" T("\"U8\"", "[1]", "[0,1]") ",\"b\":" T("\"U8\"", "[1]", "[2,3]") "}", 3, "there is a hole"},
    {"{\"a\":" T("\"U8\"", "[2]", "[0,2]") ",\"b\":" T("\"U8\"", "[2]", "[1,3]") "}", 3, "overlap"},
    {"{\"a\":" T("\"U8\"", "[2]", "[0,2]") ",\"b\":" T("\"U8\"", "[2]", "[0,2]") "}", 2, "overlap"},
    {"{\"a\":" T("\"U8\"", "[2]", "[0,2]") ",\"b\":" T("\"U8\"", "[0]", "[1,1]") "}", 2, "overlap"},
    {"{\"a\":" T("\"U8\"", "[1]", "[0,1]") "}", 2, "1 bytes are left over"},
    {"{}", 1, "1 bytes are left over"},
};

static bool message_holds(const char *wanted) /* alternatives separated by '|' */
{
    char copy[200], *rest = NULL;
    snprintf(copy, sizeof copy, "%s", wanted);
    for (char *part = strtok_r(copy, "|", &rest); part; part = strtok_r(NULL, "|", &rest))
        if (strstr(blurry_last_error(), part)) return true;
    return false;
}

static void every_rule_is_enforced(void **state)
{
    (void)state;
    static sample s;
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++) {
        build(&s, rules[i].header, strlen(rules[i].header), rules[i].data, -1);
        blurry_status status = parse_exactly(&s);
        bool right =
            rules[i].message ? status == BLURRY_E_FORMAT && message_holds(rules[i].message) : !status;
        if (!right) fail_msg("%s: status %d, message '%s'", rules[i].header, status, blurry_last_error());
        if (strict_safetensors(s.bytes, s.length) != !status)
            fail_msg("the second opinion differs: %s", rules[i].header);
    }
}

static void header_length_is_checked(void **state)
{
    (void)state;
    static sample s;
    build(&s, "{}", 2, 0, 3);
    assert_fails(parse_exactly(&s), BLURRY_E_FORMAT, "cut short");
    build(&s, "{}", 2, 0, 100000001);
    assert_fails(parse_exactly(&s), BLURRY_E_FORMAT, "more than the 100000000 allowed");
    build(&s, "{}", 2, 0, INT64_MAX);
    assert_fails(parse_exactly(&s), BLURRY_E_FORMAT, "more than the 100000000 allowed");
    memset(s.bytes, 0xff, 8);
    assert_fails(parse_exactly(&s), BLURRY_E_FORMAT, "more than the 100000000 allowed");
    build(&s, "{}", 2, 0, 1);
    assert_fails(parse_exactly(&s), BLURRY_E_FORMAT, "not valid JSON");
    build(&s, "{}", 2, 0, 0);
    assert_fails(parse_exactly(&s), BLURRY_E_FORMAT, "does not begin");
    s.length = 0;
    assert_fails(parse_exactly(&s), BLURRY_E_FORMAT, "too few");
}

static void deep_nesting_is_refused(void **state)
{
    (void)state;
    enum { DEPTH = 2000000 };
    for (int kind = 0; kind < 3; kind++) {
        static const char *const opening[] = {"{\"a\":", "[", "{\"dtype\":["};
        size_t unit = strlen(opening[kind]), n = 5 + DEPTH * unit;
        uint8_t *bytes = malloc(8 + n);
        for (int i = 0; i < 8; i++) bytes[i] = (uint8_t)((uint64_t)n >> 8 * i);
        memcpy(bytes + 8, "{\"a\":", 5);
        for (size_t i = 0; i < DEPTH; i++) memcpy(bytes + 13 + i * unit, opening[kind], unit);
        safetensors *file;
        assert_fails(safetensors_parse(&file, bytes, 8 + n, "deep"), BLURRY_E_FORMAT, "not valid JSON");
        assert_null(file);
        free(bytes);
    }
}

static void hostile_names_stay_out_of_messages(void **state)
{
    (void)state;
    static sample s;
    const char *header = "{\"\\u001b[31m\":1}";
    build(&s, header, strlen(header), 0, -1);
    assert_fails(parse_exactly(&s), BLURRY_E_FORMAT, "not printable");
    assert_null(strchr(blurry_last_error(), 0x1b));
}

/* A file with everything in it, as the writer makes it. */
static void typical(sample *s, const char *folder)
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
    assert_ok(file_read(path, FILE_MAX, &data, &s->length));
    memcpy(s->bytes, data, s->length);
    free(data);
}

static void writer_and_reader_agree(void **state)
{
    static sample s, again;
    typical(&s, *state);
    typical(&again, *state);
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
    typical(&s, *state);
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

static void truncation_anywhere_is_refused(void **state)
{
    static sample s;
    typical(&s, *state);
    size_t whole = s.length;
    for (s.length = 0; s.length < whole; s.length++) {
        if (parse_exactly(&s) != BLURRY_E_FORMAT)
            fail_msg("accepted when cut to %zu of %zu bytes", s.length, whole);
        assert_false(strict_safetensors(s.bytes, s.length));
    }
    assert_ok(parse_exactly(&s));
}

/* ---- mutations ---- */
static uint64_t random_state = 88172645463325252ull;
static size_t below(size_t n)
{
    random_state ^= random_state << 13, random_state ^= random_state >> 7, random_state ^= random_state << 17;
    return (size_t)(random_state >> 11) % n;
}

static void splice(sample *s, size_t at, size_t removed, const char *text, size_t added)
{
    if (at > s->length || removed > s->length - at || s->length - removed + added > FILE_MAX) return;
    memmove(s->bytes + at + added, s->bytes + at + removed, s->length - at - removed);
    memcpy(s->bytes + at, text, added);
    s->length = s->length - removed + added;
}

/* One change, half of them with an eye for the format: numbers, tokens, moved pieces, the length made to fit
 * again. */
static void mutate(sample *s, size_t header_end)
{
    static const char *const tokens[] = {"0",
                                         "1",
                                         "-1",
                                         "24",
                                         "9223372036854775807",
                                         "9223372036854775808",
                                         "1e3",
                                         "1.0",
                                         "[",
                                         "]",
                                         "{",
                                         "}",
                                         ",",
                                         ":",
                                         "\"",
                                         "\\",
                                         "null",
                                         "true",
                                         "\"a\"",
                                         "{}",
                                         "[]",
                                         "\"F32\"",
                                         "\"F64\"",
                                         "\"U8\"",
                                         " ",
                                         "\n",
                                         "\\u0000",
                                         "\\ud834\\udd1e",
                                         "\"__metadata__\"",
                                         "\"shape\"",
                                         "\"dtype\"",
                                         "\"data_offsets\""};
    size_t at = below(header_end), count = 1 + below(8);
    char piece[64];
    switch (below(8)) {
    case 0:
        s->bytes[below(s->length)] ^= (uint8_t)(1u << below(8));
        break;
    case 1:
        s->bytes[at] = (uint8_t)below(256);
        break;
    case 2:
        splice(s, at, count, "", 0);
        break;
    case 3: {
        const char *token = tokens[below(sizeof tokens / sizeof tokens[0])];
        splice(s, at, below(3), token, strlen(token));
        break;
    }
    case 4: /* copy a piece of the header elsewhere */
        count = 1 + below(sizeof piece);
        if (at + count > s->length) break;
        memcpy(piece, s->bytes + at, count);
        splice(s, 8 + below(header_end - 8), below(2) ? count : 0, piece, count);
        break;
    case 5: /* replace a digit */
        for (size_t i = 0; i < header_end && (s->bytes[at] < '0' || s->bytes[at] > '9'); i++)
            at = (at + 1) % header_end;
        s->bytes[at] = (uint8_t)('0' + below(10));
        break;
    case 6:
        s->length = below(2) ? s->length - below(s->length) : s->length;
        break;
    default:
        splice(s, s->length, 0, "\0\0\0\0\0\0\0\0", count);
        break;
    }
}

static void mutations_never_break_a_rule(void **state)
{
    static sample seeds[12], s;
    typical(&seeds[0], *state);
    size_t n_seeds = 1;
    for (size_t i = 0; i < sizeof rules / sizeof rules[0] && n_seeds < 12; i++)
        if (!rules[i].message)
            build(&seeds[n_seeds++], rules[i].header, strlen(rules[i].header), rules[i].data, -1);
    int accepted = 0, refused = 0;
    for (int round = 0; round < 100000; round++) {
        const sample *seed = &seeds[below(n_seeds)];
        memcpy(s.bytes, seed->bytes, seed->length);
        s.length = seed->length;
        size_t header_end = 8, before = s.length;
        for (int i = 7; i >= 0; i--) header_end += (size_t)seed->bytes[i] << 8 * i;
        for (size_t changes = 1 + below(4); changes; changes--) {
            mutate(&s, header_end < s.length ? header_end : s.length);
            if (s.length < 9) s.length = 9; /* what was cut off comes back as old bytes */
        }
        if (below(4)) { /* make the header's length fit what was inserted, so that deeper rules are met */
            uint64_t n = header_end - 8 + s.length - before;
            for (int i = 0; i < 8; i++) s.bytes[i] = (uint8_t)(n >> 8 * i);
        }
        bool good = parse_exactly(&s) == BLURRY_OK;
        if (good != strict_safetensors(s.bytes, s.length))
            fail_msg("round %d: reader %s (%s), second opinion differs: %.*s", round,
                     good ? "accepts" : "refuses", blurry_last_error(), (int)s.length - 8,
                     (const char *)s.bytes + 8);
        *(good ? &accepted : &refused) += 1;
    }
    print_message("%d mutated files accepted, %d refused\n", accepted, refused);
    assert_true(accepted > 1000 && refused > 50000); /* both sides of the rules were really met */
}

static int make_folder(void **state)
{
    static char folder[] = "/tmp/blurry-safetensors-XXXXXX";
    *state = mkdtemp(folder);
    return *state ? 0 : -1;
}

static int remove_folder(void **state)
{
    char command[256];
    snprintf(command, sizeof command, "rm -rf '%s'", (char *)*state);
    return system(command);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_rule_is_enforced),
        cmocka_unit_test(header_length_is_checked),
        cmocka_unit_test(deep_nesting_is_refused),
        cmocka_unit_test(hostile_names_stay_out_of_messages),
        cmocka_unit_test(writer_and_reader_agree),
        cmocka_unit_test(narrow_floats_convert_exactly),
        cmocka_unit_test(writer_refuses_bad_input),
        cmocka_unit_test(public_face),
        cmocka_unit_test(truncation_anywhere_is_refused),
        cmocka_unit_test(mutations_never_break_a_rule),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
