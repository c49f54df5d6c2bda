/* The one state-size function: the paper's Table 1, and the bytes that states really take. */
#include "support/mixer_case.h"
#include "support/test.h"

#include "base/status.h"
#include "blurry/model.h"
#include "mixers/mixer.h"

#include <string.h>

typedef struct size_case {
    const char *options;
    int64_t length, elements;
} size_case;

/* H (Dk + Dv) min(w, L) and so on, worked out by hand. d = 128. */
static const size_case table[] = {
    {"mixer=softmax width=128 heads=2", 512, 2 * (64 + 64) * 512},
    {"mixer=softmax width=128 heads=4 kv_heads=1", 100, 1 * (32 + 32) * 100},
    {"mixer=softmax width=128 heads=2", 0, 0},
    {"mixer=swa width=128 heads=2 window=64", 512, 2 * (64 + 64) * 64},
    {"mixer=swa width=128 heads=2 window=64", 20, 2 * (64 + 64) * 20},
    {"mixer=gla width=128 heads=2", 512, 2 * 32 * 64},
    {"mixer=gla width=128 heads=4 expand_k=2 expand_v=1", 512, 4 * 64 * 32},
    {"mixer=gdn width=128 heads=2", 512, 2 * 64 * 64},
    {"mixer=gdn width=128 heads=4 expand_k=0.5 expand_v=8", 512, 4 * 16 * 128},
    {"mixer=gsa width=128 heads=2 slots=63", 512, 2 * (64 + 64) * 63},
    {"mixer=gsa width=128 heads=2 slots=63 expand_k=0.5", 512, 2 * (32 + 64) * 63},
    {"mixer=abc width=128 heads=2 slots=64", 512, 2 * (32 + 64) * 64 + 2 * 64},
    {"mixer=s4d width=128 state=64", 512, 128 * 64},
    {"mixer=blurry width=128 heads=2 modes=32", 512, 2 * (64 + 64) * 63},
    {"mixer=blurry width=128 heads=4 kv_heads=2 modes=16", 512, 2 * (32 + 32) * 31},
    /* short convolution: 3 tokens of every stream */
    {"mixer=gla width=128 heads=2 conv=true", 512, 2 * 32 * 64 + 3 * (64 + 64 + 128)},
    {"mixer=gdn width=128 heads=2 conv=true", 512, 2 * 64 * 64 + 3 * 3 * 128},
    {"mixer=s4d width=128 state=64 conv=true", 512, 128 * 64 + 3 * 128},
    {"mixer=blurry width=128 heads=4 kv_heads=2 modes=16 conv=true", 512,
     2 * (32 + 32) * 31 + 3 * (128 + 64 + 64)},
};

static void table_one(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        blurry_settings *settings = settings_from(table[i].options);
        int64_t elements = -1, model = -1;
        assert_ok(blurry_state_size(settings, settings_values(settings)->mixer, table[i].length, &elements));
        if (elements != table[i].elements)
            fail_msg("%s: %lld elements, expected %lld", table[i].options, (long long)elements,
                     (long long)table[i].elements);
        assert_ok(blurry_settings_assign(settings, "layers=3"));
        assert_ok(blurry_state_size_model(settings, table[i].length, &model));
        assert_int_equal(model, 3 * elements);
        blurry_settings_destroy(&settings);
    }
}

/* What the operator's own state adds to the slots: its header, the ring of tokens not yet folded in, their
 * weights, and padding to 64 bytes. */
static size_t blurry_overhead(const mixer_case *c)
{
    const mixer_config *m = &c->layer.config;
    blurry_attn_desc desc;
    blurry_attn_plan_desc(c->layer.plan, &desc);
    size_t ring = (size_t)desc.fold * (size_t)(m->heads_kv * (m->dim_k + m->dim_v));
    size_t weights = (size_t)desc.fold * (size_t)(m->heads_kv * (2 * m->modes + 31));
    return 192 + (ring + weights) * c->dev->element + 6 * 64;
}

/* Every region of these states is a multiple of 64 bytes, so bytes are elements times their size, exactly;
 * blurry adds what is stated above, no more. A state for B sequences is B times one. */
static void bytes_are_elements(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        for (int kind = CASE_FAST_F64; kind <= CASE_FAST_F32; kind += CASE_FAST_F32 - CASE_FAST_F64) {
            mixer_case c;
            int64_t capacity = table[i].length;
            mixer_case_open(&c, (case_device)kind, table[i].options, 3, 8, capacity);
            size_t plain = (size_t)table[i].elements * c.dev->element, bytes = c.sizes.state / 3;
            assert_int_equal(c.sizes.state % 3, 0);
            if (c.layer.config.type == &mixer_blurry) {
                assert_true(bytes >= plain && bytes <= plain + blurry_overhead(&c));
                assert_int_equal(blurry_attn_state_elements(c.layer.plan) * (int64_t)c.dev->element +
                                     (int64_t)(bytes - blurry_attn_state_bytes(c.layer.plan)),
                                 (int64_t)plain);
            } else if (bytes != plain) {
                fail_msg("%s: %zu bytes, expected %zu", table[i].options, bytes, plain);
            }
            mixer_case_close(&c);
        }
}

static void mixers_are_listed(void **state)
{
    (void)state;
    const char *const names[] = {"softmax", "swa", "abc", "gsa", "gla", "gdn", "s4d", "blurry"};
    assert_int_equal(blurry_mixer_count(), 8);
    for (int i = 0; i < 8; i++) {
        assert_string_equal(blurry_mixer_name(i), names[i]);
        assert_true(strlen(blurry_mixer_summary(i)) > 10);
    }
    assert_null(blurry_mixer_name(-1));
    assert_null(blurry_mixer_name(8));
}

typedef struct refusal {
    const char *options, *text;
} refusal;

static void bad_options_are_refused(void **state)
{
    (void)state;
    static const refusal cases[] = {
        {"mixer=sofmax", "mixer is 'sofmax': give one of softmax, swa"},
        {"mixer=softmax width=10 heads=3", "heads is 3: give a divisor of 10"},
        {"mixer=softmax width=12 heads=4 kv_heads=3", "kv_heads is 3: give a divisor of heads, which is 4"},
        {"mixer=gla width=6 heads=2", "heads is 2: give a divisor of 3"},
        {"mixer=gla width=8 heads=2 expand_v=0.01", "expand_v is 0.01"},
        {"mixer=s4d state=7", "state is 7: give an even number"},
        {"mixer=blurry decay=true grid=relative", "decay is true with grid relative"},
        {"mixer=blurry heads=2 period=3,4,5", "period"},
        {"mixer=blurry heads=4 kv_heads=2 resolution=1,2,3,4", "resolution"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        blurry_settings *settings = settings_from(cases[i].options);
        int64_t elements;
        assert_fails(blurry_state_size(settings, settings_values(settings)->mixer, 10, &elements),
                     BLURRY_E_INVALID, cases[i].text);
        blurry_settings_destroy(&settings);
    }
    blurry_settings *settings = settings_from("");
    int64_t elements;
    assert_fails(blurry_state_size(settings, "swa", -1, &elements), BLURRY_E_INVALID, "length is -1");
    assert_fails(blurry_state_size(NULL, "swa", 1, &elements), BLURRY_E_INVALID, "settings is NULL");
    assert_fails(blurry_state_size(settings, NULL, 1, &elements), BLURRY_E_INVALID, "mixer is NULL");
    blurry_settings_destroy(&settings);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(table_one),
        cmocka_unit_test(bytes_are_elements),
        cmocka_unit_test(mixers_are_listed),
        cmocka_unit_test(bad_options_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
