/* Settings: defaults, every type's parsing and refusal, lists, YAML, round trips, comparison and hash. */
#include "support/test.h"

#include "base/number.h"
#include "base/settings.h"
#include "base/settings_table.h"
#include "base/sha256.h"

#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static blurry_settings *fresh(void)
{
    blurry_settings *s = NULL;
    assert_ok(blurry_settings_create(&s));
    return s;
}

static const char *get(const blurry_settings *s, const char *key)
{
    static char text[SETTINGS_TEXT];
    assert_ok(blurry_settings_get(s, key, text, sizeof text));
    return text;
}

static void defaults_are_valid(void **state)
{
    (void)state;
    blurry_settings *s = fresh(), *again = fresh();
    char text[SETTINGS_TEXT];
    for (size_t i = 0; i < settings_table_count; i++) {
        const setting *option = &settings_table[i];
        /* The default as help prints it, and the canonical text, must both set the default value. */
        assert_ok(blurry_settings_set(again, option->info.name, option->info.fallback));
        settings_format_value(option, &s->values, text);
        assert_ok(blurry_settings_set(again, option->info.name, text));
        assert_null(blurry_settings_difference(s, again, BLURRY_SETTINGS_ALL));
        assert_ptr_equal(settings_find(option->info.name), option);
        assert_true(strlen(option->info.help) > 3 && strlen(option->info.name) < 32);
        blurry_setting_info info;
        assert_ok(blurry_settings_describe(i, &info));
        assert_string_equal(info.name, option->info.name);
    }
    assert_memory_equal(&s->values, &again->values, sizeof s->values);
    assert_fails(blurry_settings_describe(settings_table_count, NULL), BLURRY_E_INVALID, "NULL");
    blurry_setting_info info;
    assert_fails(blurry_settings_describe(settings_table_count, &info), BLURRY_E_INVALID, "index is");
    assert_string_equal(get(s, "mixer"), "blurry");
    assert_string_equal(get(s, "lr"), "0.001");
    assert_true(s->values.rope && s->values.schedule == SETTINGS_schedule_cosine && s->values.warmup == 0.1);
    blurry_settings_destroy(&s);
    blurry_settings_destroy(&again);
    blurry_settings_destroy(&again);
    assert_null(s);
}

typedef struct set_case {
    const char *key, *value, *result; /* canonical text */
} set_case;

static void values_are_read(void **state)
{
    (void)state;
    static const set_case cases[] = {
        {"modes", "7", "7"},
        {"modes", "+8", "8"},
        {"seed", "9223372036854775807", "9223372036854775807"},
        {"lr", "3e-4", "0.0003"},
        {"lr", ".5", "0.5"},
        {"lr", "-0", "0"},
        {"lr", "0.1000000000000000055511151231257827", "0.1"},
        {"lr", "0.30000000000000004", "0.30000000000000004"},
        {"decay", "on", "true"},
        {"decay", "yes", "true"},
        {"decay", "1", "true"},
        {"decay", "off", "false"},
        {"decay", "no", "false"},
        {"decay", "0", "false"},
        {"grid", "relative", "relative"},
        {"mlp", "none", "none"},
        {"norm", "layernorm", "layernorm"},
        {"mixer", "blurry, blurry ,softmax,blurry", "blurry,blurry,softmax,blurry"},
        {"period", "62, 93.50", "62,93.5"},
        {"period", "", ""},
        {"period", "  ", ""},
        {"resolution", "2", "2"},
        {"file", "/tmp/a b=\"c\\\xc3\xa9", "/tmp/a b=\"c\\\xc3\xa9"},
        {"warmup", "2000", "2000"},
    };
    blurry_settings *s = fresh();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_ok(blurry_settings_set(s, cases[i].key, cases[i].value));
        assert_string_equal(get(s, cases[i].key), cases[i].result);
    }
    assert_ok(blurry_settings_assign(s, "file=a=b"));
    assert_string_equal(s->values.file, "a=b");
    blurry_settings_destroy(&s);
}

static void wrong_values_are_refused(void **state)
{
    (void)state;
    static const set_case cases[] = {
        /* key, value, what the message must hold */
        {"modes", "0", "modes is '0': give a whole number in 1 .. 1048576"},
        {"modes", "-3", "modes is '-3'"},
        {"modes", "3.5", "modes is '3.5'"},
        {"modes", "", "modes is ''"},
        {"modes", "8x", "modes is '8x'"},
        {"modes", " 8", "modes is ' 8'"},
        {"modes", "0x10", "modes is '0x10'"},
        {"modes", "99999999999999999999", "modes is '99999999999999999999'"},
        {"lr", "nan", "lr is 'nan'"},
        {"lr", "inf", "lr is 'inf'"},
        {"lr", "1e999", "lr is '1e999'"},
        {"lr", "-1e-3", "0 .. 1000"},
        {"lr", "1e", "lr is '1e'"},
        {"lr", "0x1p3", "lr is '0x1p3'"},
        {"beta1", "1", "beta1 is '1'"},
        {"decay", "maybe", "true | false"},
        {"decay", "TRUE", "decay is 'TRUE'"},
        {"grid", "rel", "absolute | relative"},
        {"schedule", "", "cosine | constant"},
        {"mixer", "", "give a name"},
        {"mixer", "blurry,", "separated by commas"},
        {"mixer", "a,,b", "mixer is 'a,,b'"},
        {"mixer", "Blurry", "mixer is 'Blurry'"},
        {"period", "62;93", "period is '62;93'"},
        {"period", "62,", "period is '62,'"},
        {"period", "-1", "period is '-1'"},
        {"resolution", "", "give numbers in 0 .. 1e9"},
        {"file", "a\nb", "control characters"},
        {"file", "\xff", "not UTF-8"},
        {"mods", "3", "unknown setting 'mods': did you mean 'modes'?"},
        {"wieght_decay", "3", "did you mean 'weight_decay'?"},
        {"learning_period", "3", "did you mean 'learned_period'?"},
        {"kv-heads", "3", "did you mean 'kv_heads'?"},
        {"learning_rate", "3", "did you mean 'lr'?"},
        {"batch_size", "3", "did you mean 'batch'?"},
        {"num_heads", "3", "did you mean 'heads'?"},
        {"heads_kv", "3", "did you mean 'kv_heads'?"},
        {"n_layers", "3", "did you mean 'layers'?"},
        {"max-steps", "3", "did you mean 'steps'?"},
        {"windw", "3", "did you mean 'window'?"},
        {"slot", "3", "did you mean 'slots'?"},
        {"expand-k", "3", "did you mean 'expand_k'?"},
        {"xyzzy", "3", "did you mean '"},
        {"", "3", "unknown setting ''"},
        {"\x1b[31m", "3", "not printable"},
    };
    blurry_settings *s = fresh(), *before = fresh();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_fails(blurry_settings_set(s, cases[i].key, cases[i].value), BLURRY_E_INVALID, cases[i].result);
        assert_memory_equal(&s->values, &before->values, sizeof s->values);
    }
    char longer[5000];
    memset(longer, '1', sizeof longer);
    longer[sizeof longer - 1] = 0;
    assert_fails(blurry_settings_set(s, "file", longer), BLURRY_E_INVALID, "too long");
    assert_fails(blurry_settings_set(s, "modes", longer), BLURRY_E_INVALID, "modes is");
    assert_fails(blurry_settings_set(s, "period", longer), BLURRY_E_INVALID, "period is");
    assert_fails(blurry_settings_set(s, "mixer", longer), BLURRY_E_INVALID, "too long");
    assert_fails(blurry_settings_set(s, longer, "1"), BLURRY_E_INVALID, "unknown setting");
    assert_fails(blurry_settings_assign(s, "modes"), BLURRY_E_INVALID, "give key=value");
    assert_fails(blurry_settings_set(s, NULL, "1"), BLURRY_E_INVALID, "key is NULL");
    assert_fails(blurry_settings_set(NULL, "modes", "1"), BLURRY_E_INVALID, "settings is NULL");
    char small[3];
    assert_fails(blurry_settings_get(s, "mixer", small, sizeof small), BLURRY_E_INVALID, "needs 7 bytes");
    assert_memory_equal(&s->values, &before->values, sizeof s->values);
    blurry_settings_destroy(&s);
    blurry_settings_destroy(&before);
}

static void lists_are_spread(void **state)
{
    (void)state;
    double out[3];
    assert_ok(settings_reals("period", "62", 3, out));
    assert_true(out[0] == 62 && out[1] == 62 && out[2] == 62);
    assert_ok(settings_reals("period", "62,93.5,1e3", 3, out));
    assert_true(out[0] == 62 && out[1] == 93.5 && out[2] == 1000);
    assert_fails(settings_reals("period", "62,93", 3, out), BLURRY_E_INVALID, "give one entry, or 3");
    assert_fails(settings_reals("period", "", 3, out), BLURRY_E_INVALID, "not 0");
    assert_fails(settings_reals("period", "x", 3, out), BLURRY_E_INVALID, "not a number");
    char name[16];
    assert_ok(settings_name_at("mixer", "blurry", 4, 3, name, sizeof name));
    assert_string_equal(name, "blurry");
    assert_ok(settings_name_at("mixer", "blurry,swa,softmax,gla", 4, 2, name, sizeof name));
    assert_string_equal(name, "softmax");
    assert_fails(settings_name_at("mixer", "a,b", 4, 0, name, sizeof name), BLURRY_E_INVALID, "not 2");
    assert_fails(settings_name_at("mixer", "a_name_that_is_too_long", 4, 0, name, sizeof name),
                 BLURRY_E_INVALID, "too long");
    assert_int_equal(settings_list_count(""), 0);
    assert_int_equal(settings_list_count("1,2,3"), 3);
}

static blurry_status parse(blurry_settings *s, const char *yaml)
{
    return blurry_settings_parse_yaml(s, yaml, strlen(yaml), "run.yaml");
}

static void yaml_is_read(void **state)
{
    (void)state;
    blurry_settings *s = fresh();
    assert_ok(parse(s, "# a run\nmixer: [blurry, softmax]\nmodes: 8\nperiod:\n  - 30\n  - 45.5\ndecay: on\n"
                       "lr: 1e-3\nfile: 'my text'\nresolution: 2\n"));
    assert_string_equal(s->values.mixer, "blurry,softmax");
    assert_string_equal(s->values.period, "30,45.5");
    assert_true(s->values.decay && s->values.modes == 8 && s->values.lr == 1e-3);
    assert_string_equal(s->values.file, "my text");
    assert_ok(parse(s, "{modes: 9, period: }"));
    assert_true(s->values.modes == 9 && !*s->values.period);
    blurry_settings_destroy(&s);
}

static void wrong_yaml_is_refused(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"modes: 8\nmods: 9\n", "run.yaml:2: unknown setting 'mods': did you mean 'modes'?"},
        {"modes: 8\n\nmodes: 9\n", "run.yaml:3: modes is given twice"},
        {"modes: many\n", "run.yaml:1: modes is 'many'"},
        {"modes: [1, 2]\n", "run.yaml:1: modes takes one value, not a list"},
        {"modes: {a: 1}\n", "run.yaml:1: modes takes a value, not a map"},
        {"model:\n  modes: 8\n", "run.yaml:1: unknown setting 'model'"},
        {"period: [[1]]\n", "run.yaml:1: nested"},
        {"period: [1, ]\n", NULL},
        {"period: ['1,2']\n", "comma"},
        {"period: ['']\n", "empty"},
        {"modes: &a 8\n", "run.yaml:1: anchors"},
        {"modes: &a 8\nheads: *a\n", "anchors"},
        {"heads: *a\n", "run.yaml:1: aliases"},
        {"&x {modes: 8}\n", "anchors"},
        {"period: &x [8]\n", "anchors"},
        {"modes: !!int 8\n", "tags"},
        {"!foo {modes: 8}\n", "tags"},
        {"? [a]\n: 1\n", "nested"},
        {"<<: {modes: 3}\n", "unknown setting '<<'"},
        {"- modes\n", "run.yaml:1: give lines"},
        {"modes\n", "run.yaml:1: give lines"},
        {"", "empty"},
        {"# nothing\n", "empty"},
        {"modes: 8\n---\nheads: 2\n", "one document only"},
        {"modes: 8\n  bad: 3\n", "run.yaml:1: modes is '8 bad'"},
        {"modes: 8\n bad\nheads: 3\n: :\n", "run.yaml:1: modes is"},
        {"modes: 8\n- 3\n", "run.yaml:2: not YAML"},
        {"modes: \"8\n", "not YAML"},
        {"file: \"a\\0b\"\n", "zero byte"},
        {"file: \"a\\nb\"\n", "control characters"},
        {"file: \xff\xfe\n", "not YAML at byte"},
        {"modes: \n", "modes is ''"},
    };
    blurry_settings *s = fresh(), *before = fresh();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        if (!cases[i][1]) {
            assert_ok(parse(before, cases[i][0])); /* a trailing comma is plain YAML */
            assert_ok(parse(s, cases[i][0]));
            continue;
        }
        assert_fails(parse(s, cases[i][0]), BLURRY_E_INVALID, cases[i][1]);
        assert_memory_equal(&s->values, &before->values, sizeof s->values);
    }
    size_t depth = 500000;
    char *deep = malloc(depth + 10);
    memcpy(deep, "period: ", 8);
    memset(deep + 8, '[', depth);
    assert_fails(blurry_settings_parse_yaml(s, deep, depth, "deep"), BLURRY_E_INVALID, "deep:1");
    free(deep);
    assert_fails(blurry_settings_parse_yaml(s, "", (size_t)1 << 40, "big"), BLURRY_E_INVALID, "too many");
    assert_fails(blurry_settings_load_yaml(s, "/no/such/file.yaml"), BLURRY_E_IO,
                 "/no/such/file.yaml: cannot read");
    assert_fails(blurry_settings_load_yaml(s, "/"), BLURRY_E_IO, "not a regular file");
    blurry_settings_destroy(&s);
    blurry_settings_destroy(&before);
}

/* A value that is legal for the option, different for different seeds. */
static void random_value(const setting *option, unsigned *seed, char text[SETTINGS_TEXT])
{
    double u = rand_r(seed) / (RAND_MAX + 1.0), w = rand_r(seed) / (RAND_MAX + 1.0);
    switch (option->type) {
    case SETTING_INT:
        snprintf(text, SETTINGS_TEXT, "%lld",
                 (long long)(option->least + (int64_t)(u * (double)(option->most / 2))));
        break;
    case SETTING_REAL:
        number_format_real(option->low + u * w * (option->high - option->low), text);
        break;
    case SETTING_BOOL:
        strcpy(text, u < .5 ? "true" : "false");
        break;
    case SETTING_TEXT:
        snprintf(text, SETTINGS_TEXT, " %d: #\\\"'[{}\xe2\x82\xac ", (int)(u * 1e6));
        break;
    case SETTING_NAMES:
        snprintf(text, SETTINGS_TEXT, "a%d,b,c_%d", (int)(u * 100), (int)(w * 100));
        break;
    case SETTING_REALS:
        snprintf(text, SETTINGS_TEXT, "%.17g,%.17g", u * 100, w * 100);
        break;
    case SETTING_CHOICE:
        strcpy(text, option->choices[(int64_t)(u * (double)option->most)]);
        break;
    }
}

static void every_setting_survives_the_round_trip(void **state)
{
    (void)state;
    unsigned seed = 1;
    enum { CAPACITY = 1 << 17 };
    char *text = malloc(CAPACITY), value[SETTINGS_TEXT];
    for (int round = 0; round < 200; round++) {
        blurry_settings *s = fresh(), *yaml = fresh(), *pairs = fresh();
        for (size_t i = 0; i < settings_table_count; i++) {
            random_value(&settings_table[i], &seed, value);
            assert_ok(blurry_settings_set(s, settings_table[i].info.name, value));
            assert_ok(blurry_settings_get(s, settings_table[i].info.name, value, sizeof value));
            assert_ok(blurry_settings_set(pairs, settings_table[i].info.name, value));
        }
        size_t length = blurry_settings_text(s, BLURRY_SETTINGS_ALL, text, CAPACITY);
        assert_true(length < CAPACITY && strlen(text) == length);
        assert_ok(blurry_settings_parse_yaml(yaml, text, length, "text"));
        assert_memory_equal(&s->values, &yaml->values, sizeof s->values);
        assert_memory_equal(&s->values, &pairs->values, sizeof s->values);
        assert_null(blurry_settings_difference(s, yaml, BLURRY_SETTINGS_ALL));
        blurry_settings_destroy(&s);
        blurry_settings_destroy(&yaml);
        blurry_settings_destroy(&pairs);
    }
    free(text);
}

static void text_is_cut_to_fit(void **state)
{
    (void)state;
    blurry_settings *s = fresh();
    char small[8];
    memset(small, 'x', sizeof small);
    size_t whole = blurry_settings_text(s, BLURRY_SETTINGS_MODEL, NULL, 0);
    assert_int_equal(blurry_settings_text(s, BLURRY_SETTINGS_MODEL, small, sizeof small), whole);
    assert_string_equal(small, "mixer: ");
    assert_int_equal(blurry_settings_text(s, 0, small, sizeof small), 0);
    assert_string_equal(small, "");
    blurry_settings_destroy(&s);
}

static void differences_and_hashes(void **state)
{
    (void)state;
    blurry_settings *a = fresh(), *b = NULL;
    assert_ok(blurry_settings_copy(&b, a));
    char hash_a[65], hash_b[65];
    blurry_settings_hash(a, BLURRY_SETTINGS_ALL, hash_a);
    blurry_settings_hash(b, BLURRY_SETTINGS_ALL, hash_b);
    assert_string_equal(hash_a, hash_b);
    assert_ok(blurry_settings_set(b, "threads", "2"));
    assert_string_equal(blurry_settings_difference(a, b, BLURRY_SETTINGS_ALL), "threads");
    assert_null(blurry_settings_difference(a, b, BLURRY_SETTINGS_ALL & ~BLURRY_SETTINGS_RUN));
    blurry_settings_hash(b, BLURRY_SETTINGS_ALL & ~BLURRY_SETTINGS_RUN, hash_b);
    blurry_settings_hash(a, BLURRY_SETTINGS_ALL & ~BLURRY_SETTINGS_RUN, hash_a);
    assert_string_equal(hash_a, hash_b);
    blurry_settings_hash(b, BLURRY_SETTINGS_ALL, hash_b);
    blurry_settings_hash(a, BLURRY_SETTINGS_ALL, hash_a);
    assert_string_not_equal(hash_a, hash_b);
    assert_ok(blurry_settings_set(b, "modes", "5"));
    assert_ok(blurry_settings_set(b, "seed", "5"));
    assert_string_equal(blurry_settings_difference(a, b, BLURRY_SETTINGS_ALL), "modes");
    blurry_settings_destroy(&a);
    blurry_settings_destroy(&b);
}

static void locale_does_not_matter(void **state)
{
    (void)state;
    /* Where no locale with a decimal comma is installed this still checks the plain path. */
    const char *const commas[] = {"de_DE.UTF-8", "de_DE", "fr_FR.UTF-8"};
    for (size_t i = 0; i < 3; i++)
        if (setlocale(LC_ALL, commas[i])) break;
    char text[NUMBER_TEXT];
    double value = 0;
    number_format_real(0.5, text);
    assert_string_equal(text, "0.5");
    assert_true(number_parse_real("0.25", &value) && value == 0.25);
    assert_false(number_parse_real("0,25", &value));
    setlocale(LC_ALL, "C");
}

static void sha256_matches_the_standard(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
        {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
        {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
         "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
    };
    uint8_t digest[32];
    char hex[65];
    sha256 h;
    for (size_t i = 0; i < 3; i++) {
        sha256_init(&h);
        sha256_update(&h, cases[i][0], strlen(cases[i][0]));
        sha256_final(&h, digest);
        sha256_hex(digest, hex);
        assert_string_equal(hex, cases[i][1]);
    }
    /* A million 'a', in pieces of every size: the standard's long example. */
    static char many[1000];
    memset(many, 'a', sizeof many);
    sha256_init(&h);
    for (size_t left = 1000000, piece = 0; left; left -= piece) {
        piece = piece % 997 + 1 < left ? piece % 997 + 1 : left;
        sha256_update(&h, many, piece);
    }
    sha256_final(&h, digest);
    sha256_hex(digest, hex);
    assert_string_equal(hex, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_are_valid),
        cmocka_unit_test(values_are_read),
        cmocka_unit_test(wrong_values_are_refused),
        cmocka_unit_test(lists_are_spread),
        cmocka_unit_test(yaml_is_read),
        cmocka_unit_test(wrong_yaml_is_refused),
        cmocka_unit_test(every_setting_survives_the_round_trip),
        cmocka_unit_test(text_is_cut_to_fit),
        cmocka_unit_test(differences_and_hashes),
        cmocka_unit_test(locale_does_not_matter),
        cmocka_unit_test(sha256_matches_the_standard),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
