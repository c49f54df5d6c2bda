/* Sweep files: expansion, keys, matched state sizes, and every kind of mistake with its file and line. */
#include "support/test.h"
#include "blurry/model.h"
#include "blurry/sweep.h"

#include <stdio.h>
#include <string.h>

#define TINY "task: mqar, length: 32, pairs: 4, vocab: 64, width: 16, batch: 8, steps: 10"

static blurry_status parse(const char *text, const blurry_sweep_choice *choice, blurry_sweep **sweep)
{
    return blurry_sweep_parse(sweep, text, strlen(text), "grid.yaml", choice);
}

static blurry_sweep *good(const char *text)
{
    blurry_sweep *sweep = NULL;
    assert_ok(parse(text, NULL, &sweep));
    return sweep;
}

static blurry_sweep_entry at(const blurry_sweep *sweep, int64_t index)
{
    blurry_sweep_entry entry;
    assert_ok(blurry_sweep_at(sweep, index, &entry));
    return entry;
}

static void value_is(const blurry_sweep_entry *entry, const char *key, const char *expected)
{
    char text[1024];
    assert_ok(blurry_settings_get(entry->settings, key, text, sizeof text));
    assert_string_equal(text, expected);
}

static const char two_groups[] = "name: both\n"
                                 "base: {" TINY "}\n"
                                 "axes:\n"
                                 "  lr: [1e-3, 1e-2]\n"
                                 "  seed: [5, 6, 7]\n"
                                 "groups:\n"
                                 "  blurry: {base: {mixer: blurry}, axes: {modes: [2, 4]}}\n"
                                 "  swa: {base: {mixer: swa, window: 3}}\n";

static void expands_in_order(void **state)
{
    (void)state;
    blurry_sweep *sweep = good(two_groups);
    assert_string_equal(blurry_sweep_name(sweep), "both");
    assert_int_equal(blurry_sweep_count(sweep), 2 * 3 * 2 + 2 * 3);
    blurry_sweep_entry first = at(sweep, 0), second = at(sweep, 1), third = at(sweep, 2),
                       last = at(sweep, 17);
    assert_string_equal(first.group, "blurry");
    assert_string_equal(first.label, "lr=1e-3 seed=5 modes=2");
    assert_string_equal(second.label, "lr=1e-3 seed=5 modes=4");
    assert_string_equal(third.label, "lr=1e-3 seed=6 modes=2");
    assert_string_equal(last.group, "swa");
    assert_string_equal(last.label, "lr=1e-2 seed=7");
    value_is(&last, "lr", "0.01");
    value_is(&last, "window", "3");
    value_is(&last, "width", "16");
    assert_int_equal(last.steps, 10);
    int64_t elements;
    assert_ok(blurry_state_size_model(last.settings, 32, &elements));
    assert_int_equal(last.state_elements, elements);
    blurry_sweep_entry beyond;
    assert_fails(blurry_sweep_at(sweep, 18, &beyond), BLURRY_E_INVALID, "18");
    assert_fails(blurry_sweep_at(sweep, -1, &beyond), BLURRY_E_INVALID, "-1");
    blurry_sweep_destroy(&sweep);
}

static void keys_follow_the_content(void **state)
{
    (void)state;
    blurry_sweep *sweep = good(two_groups), *other;
    for (int64_t i = 0; i < blurry_sweep_count(sweep); i++)
        for (int64_t k = 0; k < i; k++) assert_string_not_equal(at(sweep, i).key, at(sweep, k).key);
    /* The same run written another way, in another file: the same key. What is left at its default does not
     * matter, nor does how the run is carried out. */
    other = good("base: {seed: 6, mixer: swa, window: 3, lr: 0.0010, width: 16, batch: 8, steps: 10, task: "
                 "mqar, vocab: 64,\n"
                 "       pairs: 4, length: 32, min_lr: 0, threads: 3, save_every: 7}\n");
    assert_int_equal(blurry_sweep_count(other), 1);
    assert_string_equal(at(other, 0).key, at(sweep, 13).key);
    assert_string_equal(at(other, 0).group, "all");
    blurry_sweep_destroy(&sweep);
    blurry_sweep_destroy(&other);
    /* Pinned: a results database must recognise its runs in every later version. */
    sweep = good("base: {" TINY "}\n");
    assert_string_equal(at(sweep, 0).key, "e05e82e3108b4ca8fab6d866213d5fa756d7aa83052feb4a0ec6ace38682f3d4");
    blurry_sweep_destroy(&sweep);
}

static void settings_that_change_together(void **state)
{
    (void)state;
    blurry_sweep *sweep = good("base: {task: mqar, length: 32, pairs: 4, vocab: 64, steps: 10}\n"
                               "axes:\n"
                               "  shape: [{width: 16, heads: 1}, {width: 32, heads: 2}]\n"
                               "  period: [[7, 9], \"8,8\"]\n"
                               "exclude: [{width: 16}]\n");
    assert_int_equal(blurry_sweep_count(sweep), 2);
    blurry_sweep_entry entry = at(sweep, 0);
    value_is(&entry, "width", "32");
    value_is(&entry, "heads", "2");
    value_is(&entry, "period", "7,9");
    assert_string_equal(entry.label, "width=32 heads=2 period=7,9");
    blurry_sweep_destroy(&sweep);
}

static void matched_states(void **state)
{
    (void)state;
    blurry_sweep *sweep = good("base: {" TINY ", heads: 2}\n"
                               "axes: {state_elements: [224, 500]}\n"
                               "groups:\n"
                               "  blurry: {base: {mixer: blurry}}\n"
                               "  swa: {base: {mixer: swa}}\n"
                               "  gsa: {base: {mixer: gsa}}\n"
                               "  s4d: {base: {mixer: s4d}}\n");
    static const char *const option[] = {"modes", "window", "slots", "state"};
    static const char *const value[] = {"4", "8",  "7",  "15",
                                        "7", "15", "14", "30"}; /* 32 elements per slot; 16 per mode */
    for (int64_t i = 0; i < 8; i++) {
        blurry_sweep_entry entry = at(sweep, i);
        value_is(&entry, option[i / 2], value[i]);
        int64_t elements;
        char mixer[1024];
        assert_ok(blurry_settings_get(entry.settings, "mixer", mixer, sizeof mixer));
        assert_ok(blurry_state_size(entry.settings, mixer, 1000000, &elements));
        assert_true(elements <= (i % 2 ? 500 : 224));
    }
    blurry_sweep_destroy(&sweep);
}

static void choices_of_the_caller(void **state)
{
    (void)state;
    const char *set[] = {"steps=20", "stop_at=0.5"};
    blurry_sweep_choice choice = {.overrides = set, .override_count = 2, .groups = "swa"};
    blurry_sweep *sweep = NULL;
    assert_ok(parse(two_groups, &choice, &sweep));
    assert_int_equal(blurry_sweep_count(sweep), 6);
    blurry_sweep_entry entry = at(sweep, 0);
    assert_int_equal(entry.steps, 20);
    value_is(&entry, "stop_at", "0.5");
    blurry_sweep_destroy(&sweep);
    choice.no_early_stop = 1;
    assert_ok(parse(two_groups, &choice, &sweep));
    entry = at(sweep, 0);
    value_is(&entry, "stop_at", "0");
    blurry_sweep_destroy(&sweep);
    const char *axis[] = {"lr=1"};
    choice = (blurry_sweep_choice){.overrides = axis, .override_count = 1};
    assert_fails(parse(two_groups, &choice, &sweep), BLURRY_E_INVALID, "grid.yaml:4: lr is an axis");
    choice = (blurry_sweep_choice){.groups = "swa,gsa"};
    assert_fails(parse(two_groups, &choice, &sweep), BLURRY_E_INVALID, "no group 'gsa'");
    assert_null(sweep);
}

static void mistakes_have_file_and_line(void **state)
{
    (void)state;
    static const struct {
        const char *text, *line, *said;
    } cases[] = {
        {"", "grid.yaml:1:", "empty"},
        {"- 1\n- 2\n", "grid.yaml:1:", "key: value"},
        {"base: {}\n", "grid.yaml:1:", "the grid is empty"},
        {"groups: {}\n", "grid.yaml:1:", "groups is empty"},
        {"base:\n  widht: 16\n", "grid.yaml:2:", "width"},
        {"width: 16\n", "grid.yaml:1:", "settings belong under base"},
        {"base:\n  width: 16\n  lr: 1\n  width: 32\n",
         "grid.yaml:4:", "width is given twice (first in line 2)"},
        {"base:\n  width: none\n", "grid.yaml:2:", "width"},
        {"base:\n  width: 0\n", "grid.yaml:2:", "width"},
        {"base: {" TINY "}\naxes:\n  lr: []\n", "grid.yaml:3:", "the grid is empty"},
        {"base: {" TINY "}\naxes:\n  lr: 0.1\n", "grid.yaml:3:", "list of values"},
        {"base: {" TINY "}\naxes:\n  lr: [1e-3, 0.001]\n", "grid.yaml:1:", "are the same run"},
        {"base: {" TINY "}\naxes:\n  lr: [1e-3, 1e-3]\n", "grid.yaml:3:", "holds 1e-3 twice"},
        {"base: {" TINY "}\naxes:\n  lr: [1e-3]\n  seed: [1]\n  lr: [1e-2]\n",
         "grid.yaml:5:", "axis lr is given twice (first in line 3)"},
        {"base: {" TINY "}\naxes: {lr: [1]}\ngroups:\n  a: {axes: {lr: [2]}}\n",
         "grid.yaml:4:", "axis lr is given twice (first in line 2)"},
        {"base: {" TINY "}\naxes:\n  width: [16]\n",
         "grid.yaml:1:", "width is fixed here and an axis (line 3)"},
        {"base: {" TINY "}\naxes:\n  lr: [1]\n  both: [{lr: 2, seed: 1}]\n",
         "grid.yaml:4:", "sets lr, which is an axis already"},
        {"base: {" TINY "}\naxes:\n  lr: [{lr: 2}]\n", "grid.yaml:3:", "whose name is no setting"},
        {"base: {" TINY "}\naxes:\n  both: [1, 2]\n", "grid.yaml:3:", "both"},
        {"base: {" TINY "}\naxes:\n  threads: [1, 2]\n", "grid.yaml:3:", "cannot be an axis"},
        {"base: {" TINY "}\naxes:\n  seed: [1, x]\n", "grid.yaml:3:", "seed"},
        {"base: {" TINY "}\naxes:\n  state_elements: [x]\n", "grid.yaml:3:", "state_elements is 'x'"},
        {"base: {" TINY "}\naxes:\n  state_elements: [3]\n", "grid.yaml:3:", "the smallest blurry has more"},
        {"base: {" TINY ", mixer: gla}\naxes:\n  state_elements: [300]\n", "grid.yaml:3:", "mixer is gla"},
        {"base: {" TINY "}\ngroups:\n  a: {base: {mixer: swa}}\n  a: {}\n",
         "grid.yaml:4:", "group a is given twice (first in line 3)"},
        {"base: {" TINY "}\ngroups:\n  a: {mixer: swa}\n", "grid.yaml:3:", "'mixer' is not known here"},
        {"base: {" TINY "}\nfigure: bars\n", "grid.yaml:2:", "bars"},
        {"base: {" TINY "}\npreset: nothing\n", "grid.yaml:2:", "nothing"},
        {"base: {" TINY "}\nexclude:\n  - {seed: 9}\n", "grid.yaml:3:", "no run has this combination"},
        {"base: {" TINY "}\nexclude:\n  - {seed: 0}\n", "grid.yaml:1:", "every combination is excluded"},
        {"base: {" TINY "}\nsurprise: 1\n", "grid.yaml:2:", "'surprise' is not known"},
        {"base: {" TINY "}\nbase: {}\n", "grid.yaml:2:", "base is given twice"},
        {"base: {lr: [\n", "grid.yaml:2:", "not YAML"},
        /* combinations that no run can have, at the setting the message speaks of */
        {"base: {" TINY "}\naxes:\n  heads:\n    - 2\n    - 3\n",
         "grid.yaml:5:", "impossible combination: heads=3 (line 5): mixer blurry: heads is 3"},
        {"base: {task: mqar, vocab: 64, steps: 3}\naxes:\n  pairs: [8]\n  length: [64, 30]\n",
         "grid.yaml:4:", "length=30 (line 4)"},
        {"base:\n  task: mqar\n  batch: 8\n  accumulate: 3\n", "grid.yaml:4:", "accumulate is 3"},
        {"base: {" TINY "}\naxes:\n  warmup: [0.1, 11]\n", "grid.yaml:3:", "warmup is 11"},
        {"base: {" TINY "}\ngroups:\n  a:\n    base: {mixer: nonsense}\n", "grid.yaml:4:", "nonsense"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        blurry_sweep *sweep = NULL;
        blurry_status status = parse(cases[i].text, NULL, &sweep);
        const char *message = blurry_last_error();
        if (status == BLURRY_OK || strncmp(message, cases[i].line, strlen(cases[i].line)) ||
            !strstr(message, cases[i].said))
            fail_msg("case %zu: wanted '%s ... %s', got %d '%s' for\n%s", i, cases[i].line, cases[i].said,
                     status, status == BLURRY_OK ? "" : message, cases[i].text);
        assert_null(sweep);
    }
    blurry_sweep *sweep;
    assert_fails(blurry_sweep_load(&sweep, "/nonexistent/grid.yaml", NULL), BLURRY_E_IO,
                 "/nonexistent/grid.yaml");
    assert_fails(blurry_sweep_load(&sweep, NULL, NULL), BLURRY_E_INVALID, "NULL");
}

/* Bytes changed at random never do worse than a message. */
static void random_damage(void **state)
{
    (void)state;
    char text[sizeof two_groups];
    uint32_t random = 12345;
    for (int round = 0; round < 3000; round++) {
        memcpy(text, two_groups, sizeof text);
        for (int k = 0; k < 3; k++) {
            random = random * 1664525u + 1013904223u;
            text[(random >> 8) % (sizeof text - 1)] = (char)(32 + (random >> 24) % 95);
        }
        blurry_sweep *sweep = NULL;
        blurry_sweep_parse(&sweep, text, sizeof text - 1, "damaged", NULL);
        blurry_sweep_destroy(&sweep);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(expands_in_order),
        cmocka_unit_test(keys_follow_the_content),
        cmocka_unit_test(settings_that_change_together),
        cmocka_unit_test(matched_states),
        cmocka_unit_test(choices_of_the_caller),
        cmocka_unit_test(mistakes_have_file_and_line),
        cmocka_unit_test(random_damage),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
