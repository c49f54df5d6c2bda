/* The safetensors reader against hostile files: every rule broken in turn, truncations, mutations; always
 * compared with an independent recogniser. */
#include "support/safetensors_files.h"
#include "support/strict_safetensors.h"
#include "support/test.h"

#include "base/safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
        sample_build(&s, rules[i].header, strlen(rules[i].header), rules[i].data, -1);
        blurry_status status = sample_parse(&s);
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
    sample_build(&s, "{}", 2, 0, 3);
    assert_fails(sample_parse(&s), BLURRY_E_FORMAT, "cut short");
    sample_build(&s, "{}", 2, 0, 100000001);
    assert_fails(sample_parse(&s), BLURRY_E_FORMAT, "more than the 100000000 allowed");
    sample_build(&s, "{}", 2, 0, INT64_MAX);
    assert_fails(sample_parse(&s), BLURRY_E_FORMAT, "more than the 100000000 allowed");
    memset(s.bytes, 0xff, 8);
    assert_fails(sample_parse(&s), BLURRY_E_FORMAT, "more than the 100000000 allowed");
    sample_build(&s, "{}", 2, 0, 1);
    assert_fails(sample_parse(&s), BLURRY_E_FORMAT, "not valid JSON");
    sample_build(&s, "{}", 2, 0, 0);
    assert_fails(sample_parse(&s), BLURRY_E_FORMAT, "does not begin");
    s.length = 0;
    assert_fails(sample_parse(&s), BLURRY_E_FORMAT, "too few");
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
    sample_build(&s, header, strlen(header), 0, -1);
    assert_fails(sample_parse(&s), BLURRY_E_FORMAT, "not printable");
    assert_null(strchr(blurry_last_error(), 0x1b));
}

static void truncation_anywhere_is_refused(void **state)
{
    static sample s;
    sample_typical(&s, *state);
    size_t whole = s.length;
    for (s.length = 0; s.length < whole; s.length++) {
        if (sample_parse(&s) != BLURRY_E_FORMAT)
            fail_msg("accepted when cut to %zu of %zu bytes", s.length, whole);
        assert_false(strict_safetensors(s.bytes, s.length));
    }
    assert_ok(sample_parse(&s));
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
    if (at > s->length || removed > s->length - at || s->length - removed + added > SAMPLE_MAX) return;
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
    sample_typical(&seeds[0], *state);
    size_t n_seeds = 1;
    for (size_t i = 0; i < sizeof rules / sizeof rules[0] && n_seeds < 12; i++)
        if (!rules[i].message)
            sample_build(&seeds[n_seeds++], rules[i].header, strlen(rules[i].header), rules[i].data, -1);
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
        bool good = sample_parse(&s) == BLURRY_OK;
        if (good != strict_safetensors(s.bytes, s.length))
            fail_msg("round %d: reader %s (%s), second opinion differs: %.*s", round,
                     good ? "accepts" : "refuses", blurry_last_error(), (int)s.length - 8,
                     (const char *)s.bytes + 8);
        *(good ? &accepted : &refused) += 1;
    }
    print_message("%d mutated files accepted, %d refused\n", accepted, refused);
    assert_true(accepted > 1000 && refused > 50000); /* both sides of the rules were really met */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_rule_is_enforced),
        cmocka_unit_test(header_length_is_checked),
        cmocka_unit_test(deep_nesting_is_refused),
        cmocka_unit_test(hostile_names_stay_out_of_messages),
        cmocka_unit_test(truncation_anywhere_is_refused),
        cmocka_unit_test(mutations_never_break_a_rule),
    };
    return cmocka_run_group_tests(tests, sample_make_folder, sample_remove_folder);
}
