/* Sessions: what is drawn, constant memory over many tokens, saving and restoring. */
#include "support/test.h"

#include "blurry/generate.h"
#include "blurry/settings.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { VOCABULARY = 16 };

static blurry_model *make_model(const char *more)
{
    static const char yaml[] =
        "vocab: 16\nlength: 32\nlayers: 2\nwidth: 8\nheads: 2\nmodes: 3\nslots: 4\nwindow: 6\nstate: 4\n"
        "batch: 1\nthreads: 1\n";
    blurry_settings *settings = NULL;
    blurry_model *model = NULL;
    assert_ok(blurry_settings_create(&settings));
    assert_ok(blurry_settings_parse_yaml(settings, yaml, strlen(yaml), "yaml"));
    assert_ok(blurry_settings_parse_yaml(settings, more, strlen(more), "more"));
    assert_ok(blurry_model_create(&model, settings, 0));
    blurry_settings_destroy(&settings);
    return model;
}

static blurry_session *make_session(const blurry_model *model, double temperature, double top_p,
                                    uint64_t seed)
{
    blurry_session *session = NULL;
    blurry_sampling sampling = {.temperature = temperature, .top_p = top_p, .seed = seed};
    assert_ok(blurry_session_create(&session, model, &sampling, 0));
    int32_t first = 1;
    assert_ok(blurry_session_feed(session, &first, 1));
    return session;
}

/* With an embedding of zeros all tokens are equally probable. */
static void make_uniform(blurry_model *model)
{
    double zeros[VOCABULARY * 8] = {0};
    int64_t place = blurry_model_find_parameter(model, "embed.weight");
    assert_true(place >= 0);
    assert_ok(blurry_model_write_parameter(model, place, zeros, sizeof zeros));
}

static void draws_are_uniform_where_all_is_equal(void **state)
{
    (void)state;
    enum { DRAWS = 8000 };
    blurry_model *model = make_model("mixer: blurry\n");
    make_uniform(model);
    static const struct {
        double top_p;
        int tokens;
    } cases[] = {{1, 16}, {0.5, 8}, {0.26, 5}, {0.25, 4}, {1e-6, 1}};
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        blurry_session *session = make_session(model, 0.7, cases[c].top_p, 3);
        double count[VOCABULARY] = {0}, chi = 0, expected = (double)DRAWS / cases[c].tokens;
        for (int i = 0; i < DRAWS; i++) {
            int32_t token;
            assert_ok(blurry_session_next(session, &token));
            assert_in_range(token, 0, cases[c].tokens - 1); /* of equals the lowest are kept */
            count[token]++;
        }
        for (int k = 0; k < cases[c].tokens; k++)
            chi += (count[k] - expected) * (count[k] - expected) / expected;
        assert_true(chi < 45); /* at most 15 degrees of freedom: beyond with probability 1e-4 */
        blurry_session_destroy(&session);
    }
    blurry_model_destroy(&model);
}

static long resident_kib(void)
{
    long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%*d %ld", &pages), 1);
    fclose(file);
    return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

/* Pages that may come and go. A sanitizer keeps freed memory and shadows of its own, so there it is more. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SLACK_KIB = 1024 };
#else
enum { SLACK_KIB = 64 };
#endif

static void memory_stays_flat(void **state)
{
    (void)state;
    enum { WARM = 2000, TOKENS = 100000 };
    for (int m = 0; m < blurry_mixer_count(); m++) {
        char more[64];
        if (!strcmp(blurry_mixer_name(m), "softmax")) continue; /* its state grows by definition */
        snprintf(more, sizeof more, "mixer: %s\nlayers: 1\nmlp: none\nconv: true\n", blurry_mixer_name(m));
        blurry_model *model = make_model(more);
        blurry_session *session = make_session(model, 1, 1, 1);
        long before = 0;
        for (int i = 0; i < TOKENS; i++) {
            int32_t token;
            assert_ok(blurry_session_next(session, &token));
            if (i == WARM) before = resident_kib();
        }
        if (resident_kib() > before + SLACK_KIB)
            fail_msg("%s: %ld KiB after %d tokens, %ld KiB after %d", blurry_mixer_name(m), resident_kib(),
                     TOKENS, before, WARM);
        blurry_session_destroy(&session);
        blurry_model_destroy(&model);
    }
}

static void a_softmax_session_ends_at_its_room(void **state)
{
    (void)state;
    blurry_model *model = make_model("mixer: softmax\n");
    blurry_session *session = make_session(model, 1, 1, 1);
    int32_t token;
    for (int i = 0; i < 32; i++) assert_ok(blurry_session_next(session, &token));
    assert_true(blurry_session_next(session, &token) != BLURRY_OK);
    blurry_session_destroy(&session);
    blurry_model_destroy(&model);
}

static void restored_sessions_continue(void **state)
{
    (void)state;
    char path[] = "/tmp/blurry-test-session-XXXXXX";
    close(mkstemp(path));
    for (int m = 0; m < blurry_mixer_count(); m++) {
        char more[64];
        snprintf(more, sizeof more, "mixer: %s\nconv: true\n", blurry_mixer_name(m));
        blurry_model *model = make_model(more), *other = make_model("mixer: blurry\nseed: 9\n");
        for (int split = 0; split < 12; split++) {
            blurry_session *whole = make_session(model, 0.9, 0.95, 5), *second = make_session(model, 1, 1, 0),
                           *wrong;
            int32_t a, b;
            for (int i = 0; i < split; i++) assert_ok(blurry_session_next(whole, &a));
            assert_ok(blurry_session_save(whole, path));
            assert_ok(blurry_session_restore(second, path));
            for (int i = split; i < 14; i++) {
                assert_ok(blurry_session_next(whole, &a));
                assert_ok(blurry_session_next(second, &b));
                assert_int_equal(a, b);
            }
            wrong = make_session(other, 1, 1, 0);
            assert_true(blurry_session_restore(wrong, path) != BLURRY_OK);
            assert_ok(blurry_session_next(wrong, &a)); /* a refused restore leaves the session usable */
            blurry_session_destroy(&whole);
            blurry_session_destroy(&second);
            blurry_session_destroy(&wrong);
        }
        blurry_model_destroy(&model);
        blurry_model_destroy(&other);
    }
    unlink(path);
}

static void mistakes_are_named(void **state)
{
    (void)state;
    blurry_model *model = make_model("mixer: blurry\n");
    blurry_session *session = NULL;
    blurry_sampling sampling = {.temperature = -1, .top_p = 1};
    assert_fails(blurry_session_create(&session, model, &sampling, 0), BLURRY_E_INVALID, "temperature is -1");
    sampling = (blurry_sampling){.temperature = 1, .top_p = NAN};
    assert_fails(blurry_session_create(&session, model, &sampling, 0), BLURRY_E_INVALID, "top_p is");
    assert_null(session);
    sampling.top_p = 1;
    assert_ok(blurry_session_create(&session, model, &sampling, 0));
    int32_t token = VOCABULARY;
    assert_fails(blurry_session_next(session, &token), BLURRY_E_INVALID, "no token was fed");
    assert_fails(blurry_session_feed(session, &token, 1), BLURRY_E_INVALID, "tokens[0] is 16");
    assert_fails(blurry_session_feed(session, NULL, 1), BLURRY_E_INVALID, "tokens");
    blurry_session_destroy(&session);
    blurry_session_destroy(&session);
    blurry_model_destroy(&model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(draws_are_uniform_where_all_is_equal),
        cmocka_unit_test(memory_stays_flat),
        cmocka_unit_test(a_softmax_session_ends_at_its_room),
        cmocka_unit_test(restored_sessions_continue),
        cmocka_unit_test(mistakes_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
