/* The training engine: accumulation, clipping, decay groups, stops, and checkpoints killed while they are
 * written. */
#include "support/test.h"

#include "base/file.h"
#include "model/model.h"
#include "train/checkpoint.h"
#include "train/run.h"

#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static const char base_yaml[] =
    "task: mqar\nlength: 32\npairs: 4\nvocab: 64\nlayers: 2\nwidth: 16\nmodes: 4\nslots: 6\n"
    "window: 8\nstate: 8\nbatch: 8\nsteps: 50\nlr: 0.01\nwarmup: 0\ntrain_samples: 100\n"
    "val_samples: 16\nthreads: 2\n";

static blurry_settings *make_settings(const char *more)
{
    blurry_settings *settings = NULL;
    assert_ok(blurry_settings_create(&settings));
    assert_ok(blurry_settings_parse_yaml(settings, base_yaml, strlen(base_yaml), "base"));
    if (*more) assert_ok(blurry_settings_parse_yaml(settings, more, strlen(more), "more"));
    return settings;
}

static blurry_trainer *make_trainer(const char *more)
{
    blurry_settings *settings = make_settings(more);
    blurry_trainer *trainer = NULL;
    assert_ok(blurry_trainer_create(settings, &trainer));
    blurry_settings_destroy(&settings);
    return trainer;
}

/* All parameters one after another, as double. */
static double *weights_of(const blurry_trainer *t)
{
    double *all = calloc((size_t)t->optimiser.elements, sizeof *all);
    for (int64_t i = 0; i < t->optimiser.tensors; i++)
        assert_ok(blurry_model_read_parameter(t->model, i, all + t->optimiser.offset[i],
                                              (size_t)t->optimiser.parameters[i].elements * sizeof *all));
    return all;
}

static double largest_difference(const blurry_trainer *a, const blurry_trainer *b)
{
    double *x = weights_of(a), *y = weights_of(b), worst = 0;
    assert_int_equal(a->optimiser.elements, b->optimiser.elements);
    for (int64_t i = 0; i < a->optimiser.elements; i++) worst = fmax(worst, fabs(x[i] - y[i]));
    free(x);
    free(y);
    return worst;
}

/* Also where micro-batches differ in their number of labels, as documents of regbench do. */
static void accumulation_equals_one_batch(void **state)
{
    (void)state;
    static const char *const tasks[] = {"precision: f64\n",
                                        "precision: f64\ntask: regbench\nautomata: 40\nval_samples: 5\n"
                                        "test_samples: 5\n"};
    for (int k = 0; k < 2; k++) {
        char split[256];
        snprintf(split, sizeof split, "%saccumulate: 4\n", tasks[k]);
        blurry_trainer *whole = make_trainer(tasks[k]), *parts = make_trainer(split);
        blurry_step a, b;
        assert_true(largest_difference(whole, parts) == 0);
        for (int i = 0; i < 3; i++) {
            assert_ok(blurry_trainer_step(whole, &a));
            assert_ok(blurry_trainer_step(parts, &b));
            assert_true(fabs(a.loss - b.loss) < 1e-12 &&
                        fabs(a.grad_norm - b.grad_norm) < 1e-12 * a.grad_norm);
            assert_int_equal(a.tokens, b.tokens);
        }
        assert_true(largest_difference(whole, parts) <
                    1e-9); /* AdamW's first steps magnify rounding of tiny gradients */
        blurry_trainer_destroy(&whole);
        blurry_trainer_destroy(&parts);
    }
    blurry_settings *settings = make_settings("accumulate: 3\n");
    blurry_trainer *none = NULL;
    assert_fails(blurry_trainer_create(settings, &none), BLURRY_E_INVALID, "accumulate is 3");
    assert_null(none);
    blurry_settings_destroy(&settings);
}

/* Samples of regbench differ in length, those of a batch are padded. */
static void padding_is_not_counted(void **state)
{
    (void)state;
    blurry_trainer *t = make_trainer("task: regbench\nautomata: 40\nval_samples: 5\ntest_samples: 5\n");
    int64_t all = 0, padding = 0;
    for (int i = 0; i < 3; i++) {
        blurry_step step;
        int64_t tokens = 0;
        assert_ok(blurry_trainer_step(t, &step));
        const blurry_samples *s = t->parts[0];
        for (int64_t k = 0; k < s->count; k++) tokens += s->lengths[k];
        assert_int_equal(step.tokens, tokens);
        all += tokens, padding += s->count * s->length - tokens;
        assert_ok(blurry_trainer_step(t, NULL)); /* counts as well */
        for (int64_t k = 0; k < s->count; k++) all += s->lengths[k];
        assert_int_equal(t->tokens, all);
    }
    assert_true(padding > 0);
    blurry_trainer_destroy(&t);
}

static double moment_norm(const blurry_trainer *t)
{
    const double *m = t->optimiser.m; /* precision f64 on the CPU */
    double sum = 0;
    for (int64_t i = 0; i < t->optimiser.elements; i++) sum += m[i] * m[i];
    return sqrt(sum);
}

/* After one step the first moment is (1 - beta1) times the clipped gradient. */
static void clipping_limits_the_norm(void **state)
{
    (void)state;
    static const double limits[] = {0, 1e-3, 0.02, 1e6};
    for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++) {
        char more[64];
        snprintf(more, sizeof more, "precision: f64\nclip: %g\n", limits[i]);
        blurry_trainer *t = make_trainer(more);
        blurry_step step;
        assert_ok(blurry_trainer_step(t, &step));
        double want = limits[i] > 0 ? fmin(limits[i], step.grad_norm) : step.grad_norm;
        assert_true(fabs(moment_norm(t) / (1 - 0.9) - want) < 1e-9 * want);
        blurry_trainer_destroy(&t);
    }
}

/* With gradients of zero only decay moves a weight: p -> p (1 - lr wd) for linear maps and embeddings, p -> p
 * for norms, biases, convolutions and the mixers' special parameters. */
static void only_linear_maps_decay(void **state)
{
    (void)state;
    static const char *const mixers[] = {"blurry", "gdn", "s4d", "gla", "abc"};
    for (size_t k = 0; k < sizeof mixers / sizeof mixers[0]; k++) {
        char more[256];
        snprintf(more, sizeof more,
                 "mixer: %s\nnorm: layernorm\nprecision: f64\nweight_decay: 0.5\nconv: true\n%s", mixers[k],
                 !strcmp(mixers[k], "blurry") ? "learned_period: true\n" : "");
        blurry_trainer *t = make_trainer(more);
        double *before = weights_of(t), norm;
        assert_ok(blurry_model_zero_gradient(t->model));
        assert_ok(optimiser_measure(&t->optimiser, &norm));
        assert_true(norm == 0);
        assert_ok(optimiser_apply(&t->optimiser, 1, 0.1));
        double *after = weights_of(t);
        for (int64_t i = 0; i < t->optimiser.tensors; i++) {
            const blurry_parameter *p = &t->optimiser.parameters[i];
            size_t length = strlen(p->name);
            int decays =
                p->rank == 2 && !strcmp(p->name + length - 7, ".weight") && !strstr(p->name, "conv_");
            assert_int_equal(p->decay, decays);
            for (int64_t e = t->optimiser.offset[i]; e < t->optimiser.offset[i] + p->elements; e++) {
                double want = before[e] * (decays ? 1 - 0.1 * 0.5 : 1);
                assert_true(fabs(after[e] - want) <= 1e-15 + 1e-14 * fabs(want));
            }
        }
        free(before);
        free(after);
        blurry_trainer_destroy(&t);
    }
}

static void a_bad_loss_stops_before_the_update(void **state)
{
    (void)state;
    blurry_trainer *t = make_trainer("");
    blurry_step step;
    assert_ok(blurry_trainer_step(t, &step));
    int64_t place = blurry_model_find_parameter(t->model, "layers.1.norm1.weight");
    assert_true(place >= 0);
    double values[16];
    assert_ok(blurry_model_read_parameter(t->model, place, values, sizeof values));
    values[3] = NAN;
    assert_ok(blurry_model_write_parameter(t->model, place, values, sizeof values));
    assert_fails(blurry_trainer_step(t, &step), BLURRY_E_NUMERIC, "step 2: the loss is");
    assert_non_null(strstr(blurry_last_error(), "first bad tensor: "));
    assert_non_null(strstr(blurry_last_error(), "layers.1"));
    assert_int_equal(t->step, 1);
    blurry_trainer_destroy(&t);
}

/* ---- checkpoints ---- */
static char folder[] = "/tmp/blurry-test-train-XXXXXX";

static void fill_with(blurry_trainer *t, float value)
{
    for (int64_t i = 0; i < t->optimiser.tensors; i++)
        for (int64_t e = 0; e < t->optimiser.parameters[i].elements; e++)
            ((float *)t->optimiser.parameters[i].data)[e] = value;
    for (int64_t e = 0; e < t->optimiser.elements; e++) {
        ((float *)t->optimiser.m)[e] = value + 0.25f;
        ((float *)t->optimiser.v)[e] = value + 0.5f;
    }
}

static void check_filled_with(const blurry_trainer *t, float value)
{
    double *weights = weights_of(t);
    for (int64_t e = 0; e < t->optimiser.elements; e++) {
        assert_true(weights[e] == value);
        assert_true(((float *)t->optimiser.m)[e] == value + 0.25f &&
                    ((float *)t->optimiser.v)[e] == value + 0.5f);
    }
    free(weights);
}

/* Saves checkpoint after checkpoint, every number in it telling its step, until it is killed. */
static void save_forever(blurry_trainer *t, run_state *state)
{
    for (;;) {
        state->step = ++t->step;
        fill_with(t, (float)t->step);
        if (checkpoint_save(folder, t, state) != BLURRY_OK) _exit(1);
    }
}

static void a_kill_while_saving_never_mixes(void **state)
{
    (void)state;
    enum { KILLS = 200 };
    blurry_trainer *t = make_trainer("steps: 100000000\nlayers: 1\n");
    run_state saved = {.best = NAN};
    assert_ok(checkpoint_fingerprint(t->settings, t->task, saved.data));
    fill_with(t, 0);
    double begin = run_now();
    for (int i = 0; i < 4; i++) assert_ok(checkpoint_save(folder, t, &saved));
    /* Microseconds: one save and a half here; from there it follows what the child gets done, which shares
     * the machine with others. */
    int longest = 1 + (int)((run_now() - begin) / 4 * 1.5e6);
    srand(12345);
    int64_t last = 0, advanced = 0;
    for (int i = 0; i < KILLS; i++) {
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) save_forever(t, &saved);
        usleep((useconds_t)(rand() % longest));
        kill(child, SIGKILL);
        int status = 0;
        waitpid(child, &status, 0);
        assert_true(WIFSIGNALED(status));
        assert_ok(checkpoint_resume(folder, t, &saved));
        assert_true(saved.step >= last);
        int done = saved.step > last;
        longest += done ? -longest / 16 : longest / 8 + 1;
        advanced += done;
        last = saved.step;
        check_filled_with(t, (float)saved.step);
    }
    assert_true(advanced > KILLS / 10); /* the kills did fall among saves */
    blurry_trainer_destroy(&t);
}

static void broken_checkpoints_are_refused(void **state)
{
    (void)state;
    blurry_trainer *t = make_trainer("layers: 1\n");
    run_state saved = {.best = NAN};
    assert_ok(checkpoint_fingerprint(t->settings, t->task, saved.data));
    assert_ok(checkpoint_save(folder, t, &saved));
    run_state found = saved;
    assert_ok(checkpoint_resume(folder, t, &found));

    strcpy(found.data, "other data");
    assert_fails(checkpoint_resume(folder, t, &found), BLURRY_E_INVALID, "training data");

    blurry_trainer *other = make_trainer("layers: 1\nlr: 0.02\n");
    found = saved;
    assert_fails(checkpoint_resume(folder, other, &found), BLURRY_E_INVALID, "setting lr differs");
    blurry_trainer_destroy(&other);

    char *moments = file_join(folder, "optimiser-0.safetensors"),
         *model = file_join(folder, CHECKPOINT_MODEL);
    assert_int_equal(truncate(moments, 1000), 0);
    assert_fails(checkpoint_resume(folder, t, &found), BLURRY_E_FORMAT, "optimiser-0.safetensors");
    assert_int_equal(unlink(moments), 0);
    assert_fails(checkpoint_resume(folder, t, &found), BLURRY_E_IO, "optimiser-0.safetensors");
    assert_int_equal(truncate(model, 100), 0);
    assert_fails(checkpoint_resume(folder, t, &found), BLURRY_E_FORMAT, CHECKPOINT_MODEL);
    free(moments);
    free(model);
    blurry_trainer_destroy(&t);
}

static void the_log_is_cut_back(void **state)
{
    (void)state;
    char *path = file_join(folder, "cut.jsonl");
    static const char text[] =
        "{\"event\":\"start\",\"step\":0}\n{\"event\":\"train\",\"step\":1}\n{\"event\":\"eval\",\"step\":1}"
        "\n"
        "{\"event\":\"train\",\"step\":2}\n{\"event\":\"end\",\"step\":2}\n{\"event\":\"tra";
    static const struct {
        int64_t step;
        int ended, lines;
    } cases[] = {{5, 1, 5}, {2, 1, 5}, {2, 0, 4}, {1, 1, 3}, {0, 0, 1}, {-1, 0, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_ok(file_save_bytes(path, text, sizeof text - 1));
        run_log log;
        assert_ok(run_log_open(&log, path));
        assert_ok(run_log_rewind(&log, cases[i].step, cases[i].ended));
        int lines = 0;
        for (int64_t b = 0; b < log.bytes; b++) lines += text[b] == '\n';
        assert_int_equal(lines, cases[i].lines);
        assert_true(log.bytes == 0 || text[log.bytes - 1] == '\n');
        assert_ok(run_log_append(&log, "{}"));
        run_log_close(&log);
    }
    unlink(path);
    free(path);
}

static void a_directory_serves_one_process(void **state)
{
    (void)state;
    blurry_settings *settings = make_settings("");
    char *path = file_join(folder, "run");
    run_folder first, second;
    assert_ok(run_folder_open(&first, path, settings));
    assert_fails(run_folder_open(&second, path, settings), BLURRY_E_INVALID, "in use by another");
    run_folder_close(&first);
    assert_ok(run_folder_open(&second, path, settings));
    run_folder_close(&second);
    assert_ok(blurry_settings_set(settings, "threads", "1"));
    assert_ok(run_folder_open(&second, path, settings)); /* how it is run may change, what is run may not */
    run_folder_close(&second);
    assert_ok(blurry_settings_set(settings, "width", "32"));
    assert_fails(run_folder_open(&second, path, settings), BLURRY_E_INVALID,
                 "its width is '16', here it is '32'");
    free(path);
    blurry_settings_destroy(&settings);
}

/* A model saved by hand is a checkpoint like any other: same weights, same score, its task's data named. */
static void an_exported_model_is_a_checkpoint(void **state)
{
    (void)state;
    blurry_trainer *t = make_trainer("precision: f64\n");
    blurry_step report;
    blurry_metrics before, after;
    blurry_settings *settings = NULL;
    blurry_model *model = NULL;
    char *path = file_join(folder, "exported.safetensors");
    for (int i = 0; i < 3; i++) assert_ok(blurry_trainer_step(t, &report));
    assert_ok(blurry_trainer_evaluate(t, "val", &before));
    assert_ok(blurry_checkpoint_save(path, t->model, t->settings));
    assert_ok(blurry_evaluate(path, "val", NULL, &after));
    assert_true(before.loss == after.loss && before.accuracy == after.accuracy);
    assert_ok(blurry_checkpoint_settings(path, &settings));
    assert_null(blurry_settings_difference(settings, t->settings, BLURRY_SETTINGS_ALL));
    assert_ok(blurry_checkpoint_load(path, settings, 1, &model));
    for (int64_t i = 0; i < blurry_model_parameter_count(model); i++) {
        blurry_parameter p;
        double a[4096], b[4096];
        assert_ok(blurry_model_parameter(model, i, &p));
        assert_ok(blurry_model_read_parameter(model, i, a, (size_t)p.elements * sizeof *a));
        assert_ok(blurry_model_read_parameter(t->model, i, b, (size_t)p.elements * sizeof *b));
        assert_memory_equal(a, b, (size_t)p.elements * sizeof *a);
    }
    assert_ok(blurry_settings_set(settings, "modes", "5"));
    assert_fails(blurry_checkpoint_save(path, model, settings), BLURRY_E_INVALID,
                 "modes is not what the model was made with");
    assert_fails(blurry_checkpoint_save(NULL, model, settings), BLURRY_E_INVALID, "path is NULL");
    assert_fails(blurry_checkpoint_save("/no/such/folder/x", t->model, t->settings), BLURRY_E_IO, "/no/such");
    blurry_model_destroy(&model);
    blurry_settings_destroy(&settings);
    blurry_trainer_destroy(&t);
    free(path);
}

static int make_folder(void **state)
{
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(accumulation_equals_one_batch),
        cmocka_unit_test(padding_is_not_counted),
        cmocka_unit_test(clipping_limits_the_norm),
        cmocka_unit_test(only_linear_maps_decay),
        cmocka_unit_test(a_bad_loss_stops_before_the_update),
        cmocka_unit_test(a_kill_while_saving_never_mixes),
        cmocka_unit_test(broken_checkpoints_are_refused),
        cmocka_unit_test(the_log_is_cut_back),
        cmocka_unit_test(a_directory_serves_one_process),
        cmocka_unit_test(an_exported_model_is_a_checkpoint),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
