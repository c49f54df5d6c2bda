/* Training on the CUDA device: batches made there, recorded steps against the CPU's, resumed runs, losses
 * that are not finite, several models at once. */
#include "support/mixer_case.h"
#include "support/test.h"

#include "base/order.h"
#include "blurry/train.h"
#include "model/model.h"
#include "tasks/task.h"
#include "train/recorded.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The emulator is a thousand times slower than a GPU: less of everything there. */
#ifdef BLURRY_TEST_GPU
enum { ON_GPU = 1, TRACE = 50, UNWATCHED = 20, WIDTH = 32 };
static const char small_task[] =
    "length=32 pairs=4 vocab=64 batch=8 layers=2 width=32 steps=60 lr=0.003 threads=2";
#else
enum { ON_GPU = 0, TRACE = 3, UNWATCHED = 4, WIDTH = 16 };
static const char small_task[] =
    "length=16 pairs=2 vocab=16 batch=2 layers=2 width=16 steps=60 lr=0.003 threads=2";
#endif

static blurry_trainer *trainer_from(const char *options)
{
    blurry_settings *settings = settings_from(options);
    blurry_trainer *trainer = NULL;
    assert_ok(blurry_trainer_create(settings, &trainer));
    blurry_settings_destroy(&settings);
    return trainer;
}

/* ---- batches ---- */
static void check_batches(const char *options, int steps)
{
    blurry_trainer *t = trainer_from(options);
    assert_non_null(t->recorded);
    const struct settings *s = settings_values(t->settings);
    network *net = &t->model->net;
    int64_t tokens = s->batch * s->length, labels = s->batch * s->pairs;
    int32_t *ids = malloc((size_t)tokens * sizeof *ids), *targets = malloc((size_t)labels * sizeof *targets);
    int64_t *rows = malloc((size_t)labels * sizeof *rows), *place = malloc((size_t)tokens * sizeof *place);
    for (int step = 0; step < steps; step++) {
        assert_ok(blurry_trainer_step(t, NULL));
        assert_ok(device_download(net->dev, ids, net->ids, (size_t)tokens * sizeof *ids));
        assert_ok(device_download(net->dev, rows, net->rows, (size_t)labels * sizeof *rows));
        assert_ok(device_download(net->dev, targets, net->targets, (size_t)labels * sizeof *targets));
        assert_ok(device_download(net->dev, place, net->row_place, (size_t)tokens * sizeof *place));
        for (int64_t i = 0; i < s->batch; i++)
            t->indices[i] =
                order_sample((uint64_t)s->seed, t->info.samples[BLURRY_TRAIN], step * s->batch + i);
        assert_ok(blurry_task_fill(t->task, BLURRY_TRAIN, t->indices, s->batch, 0, t->parts[0]));
        assert_int_equal(t->parts[0]->row_count, labels);
        assert_memory_equal(ids, t->parts[0]->tokens, (size_t)tokens * sizeof *ids);
        assert_memory_equal(rows, t->parts[0]->rows, (size_t)labels * sizeof *rows);
        assert_memory_equal(targets, t->parts[0]->labels, (size_t)labels * sizeof *targets);
        for (int64_t r = 0, next = 0; r < tokens; r++)
            assert_int_equal(place[r], next < labels && rows[next] == r ? next++ : -1);
    }
    free(ids), free(targets), free(rows), free(place);
    blurry_trainer_destroy(&t);
}

static void batches_are_the_hosts(void **state)
{
    (void)state;
    const char *common = "device=cuda mixer=blurry modes=2 layers=1 width=16 mlp=none train_samples=11 ";
    static const char *const tasks[] = {"length=16 pairs=2 vocab=16 batch=3",
                                        "length=64 pairs=16 vocab=40 batch=2 seed=9",
                                        "length=30 pairs=3 vocab=37 batch=4 filler=random data_seed=5",
                                        "length=512 pairs=64 vocab=8192 batch=1 power=1.5"};
    for (int i = 0; i < 4; i++) {
        char options[256];
        snprintf(options, sizeof options, "%s%s", common, tasks[i]);
        check_batches(options, ON_GPU ? 20 : 2);
    }
}

/* ---- the CPU's losses ---- */
static void trace(const char *options, const char *where, int steps, blurry_step *list)
{
    char text[512];
    snprintf(text, sizeof text, "%s %s", options, where);
    blurry_trainer *t = trainer_from(text);
    for (int i = 0; i < steps; i++) assert_ok(blurry_trainer_step(t, &list[i]));
    blurry_trainer_destroy(&t);
}

static void losses_are_the_cpus(void **state)
{
    (void)state;
    static const char *const models[] = {
        "mixer=blurry heads=2 modes=4", "mixer=blurry modes=4 decay=true conv=true mlp=gelu",
        "mixer=blurry heads=2 modes=3 norm=layernorm position=learned tied=false dropout=0.1",
        "mixer=softmax heads=2 mlp=none",
        /* With a rate of 0.003 gla's gradient here depends on the last bits: the CPU's f32 is then 13% from
         * its own f64 after 28 steps. */
        "mixer=swa,gla,gsa layers=3 heads=2 window=9 slots=8 lr=0.001",
        "mixer=abc,gdn,s4d layers=3 heads=2 slots=8 state=8",
        "mixer=blurry modes=3 learned_period=true accumulate=2",
        "mixer=blurry modes=10 decay=true learned_period=true"};
    for (size_t m = 0; m < sizeof models / sizeof models[0]; m++) {
        blurry_step cpu[TRACE], gpu[TRACE];
        char options[512];
        snprintf(options, sizeof options, "%s %s", small_task, models[m]);
        trace(options, "device=cpu", TRACE, cpu);
        trace(options, "device=cuda", TRACE, gpu);
        for (int i = 0; i < TRACE; i++) {
            double apart = fabs(gpu[i].loss - cpu[i].loss) / cpu[i].loss;
            if (!(apart < 1e-5) || fabs(gpu[i].grad_norm - cpu[i].grad_norm) > 1e-4 * cpu[i].grad_norm ||
                gpu[i].lr != cpu[i].lr || gpu[i].step != cpu[i].step || gpu[i].tokens != cpu[i].tokens)
                fail_msg("%s, step %d: loss %.8g on the GPU, %.8g on the CPU; norms %.6g, %.6g", models[m],
                         i + 1, gpu[i].loss, cpu[i].loss, gpu[i].grad_norm, cpu[i].grad_norm);
        }
    }
}

/* Batches from the host: sequences and lists of labels are padded. */
static void padded_batches_are_the_cpus(void **state)
{
    (void)state;
    blurry_step cpu[TRACE], gpu[TRACE];
    char options[512];
    snprintf(options, sizeof options,
             "%s task=regbench automata=40 val_samples=5 mixer=blurry modes=4 layers=1", small_task);
    trace(options, "device=cpu", TRACE, cpu);
    trace(options, "device=cuda", TRACE, gpu);
    for (int i = 0; i < TRACE; i++)
        if (!(fabs(gpu[i].loss - cpu[i].loss) < 1e-5 * cpu[i].loss) ||
            !(fabs(gpu[i].grad_norm - cpu[i].grad_norm) < 1e-4 * cpu[i].grad_norm) ||
            gpu[i].tokens != cpu[i].tokens)
            fail_msg("step %d: loss %.8g on the GPU, %.8g on the CPU; norms %.6g, %.6g; tokens %lld, %lld",
                     i + 1, gpu[i].loss, cpu[i].loss, gpu[i].grad_norm, cpu[i].grad_norm,
                     (long long)gpu[i].tokens, (long long)cpu[i].tokens);
}

/* bf16 follows, at its own accuracy. */
static void bf16_learns_alike(void **state)
{
    (void)state;
    blurry_step cpu[TRACE], gpu[TRACE], again[TRACE];
    trace(small_task, "mixer=blurry heads=2 modes=4", TRACE, cpu);
    trace(small_task, "mixer=blurry heads=2 modes=4 device=cuda precision=bf16", TRACE, gpu);
    trace(small_task, "mixer=blurry heads=2 modes=4 device=cuda precision=bf16", TRACE, again);
    for (int i = 0; i < TRACE; i++) {
        if (!(fabs(gpu[i].loss - cpu[i].loss) < 2e-2 * cpu[i].loss))
            fail_msg("step %d: loss %.6g in bf16, %.6g on the CPU", i + 1, gpu[i].loss, cpu[i].loss);
        assert_true(gpu[i].loss == again[i].loss && gpu[i].grad_norm == again[i].grad_norm);
    }
}

/* Steps that nobody waits for end where those do that are waited for. */
static void unwatched_steps_are_the_same(void **state)
{
    (void)state;
    char options[512];
    snprintf(options, sizeof options, "%s mixer=blurry modes=4 device=cuda precision=bf16", small_task);
    blurry_trainer *watched = trainer_from(options), *alone = trainer_from(options);
    blurry_step a, b;
    for (int i = 0; i < UNWATCHED; i++) {
        assert_ok(blurry_trainer_step(watched, &a));
        assert_ok(blurry_trainer_step(alone, i == UNWATCHED - 1 ? &b : NULL));
    }
    assert_memory_equal(&a, &b, sizeof a);
    blurry_trainer_destroy(&watched);
    blurry_trainer_destroy(&alone);
}

/* A step starts with no gradient, whatever was computed between it and the one before. */
static void other_gradients_are_forgotten(void **state)
{
    (void)state;
    char options[512];
    snprintf(options, sizeof options, "%s mixer=blurry modes=4 device=cuda", small_task);
    blurry_trainer *t[2] = {trainer_from(options), trainer_from(options)};
    blurry_step report[2][4];
    memset(report, 0, sizeof report);
    for (int step = 0; step < 4; step++)
        for (int i = 0; i < 2; i++) {
            blurry_samples *p = t[i]->parts[0];
            t[i]->indices[0] = t[i]->indices[1] = step;
            assert_ok(blurry_task_fill(t[i]->task, BLURRY_TRAIN, t[i]->indices, 2, 0, p));
            blurry_batch batch = {.sequences = p->count,
                                  .length = p->length,
                                  .tokens = p->tokens,
                                  .row_count = p->row_count,
                                  .rows = p->rows,
                                  .labels = p->labels};
            if (i) assert_ok(blurry_model_gradient(t[i]->model, &batch, 1, 0, NULL));
            assert_ok(blurry_trainer_step(t[i], &report[i][step]));
        }
    assert_memory_equal(report[0], report[1], sizeof report[0]);
    for (int i = 0; i < 2; i++) blurry_trainer_destroy(&t[i]);
}

/* What runs at once changes no bit, as steps are queued and as they are recorded. */
static void overlap_changes_nothing(void **state)
{
    (void)state;
    static const char *const models[] = {"mixer=blurry modes=4 precision=bf16 mlp=none",
                                         "mixer=blurry modes=4 heads=2 precision=bf16 conv=true tied=false",
                                         "mixer=softmax,gla,swa layers=3 window=9 heads=2 norm=layernorm",
                                         "mixer=gsa,gdn heads=2 slots=8 accumulate=2",
                                         "mixer=abc,s4d heads=2 slots=8 state=8 mlp=gelu position=learned",
                                         "mixer=gsa,abc,gla layers=3 slots=8 mlp=none precision=bf16",
                                         "mixer=gdn,s4d,softmax layers=3 state=8 mlp=none precision=bf16"};
    static const char *const overlaps[] = {"none", "branches", "starts"};
    for (size_t m = 0; m < sizeof models / sizeof models[0]; m++) {
        blurry_step list[3][4];
        for (int i = 0; i < 3; i++) {
            char options[512];
            snprintf(options, sizeof options, "%s %s device=cuda overlap=%s", small_task, models[m],
                     overlaps[i]);
            memset(list[i], 0, sizeof list[i]);
            trace(options, "", 4, list[i]);
            if (memcmp(list[i], list[0], sizeof list[i]))
                fail_msg("%s: overlap %s ends with loss %.9g, none with %.9g", models[m], overlaps[i],
                         list[i][3].loss, list[0][3].loss);
        }
    }
}

/* Few slots with T = 2 S have gates near 0 so often that other kernels take over; a learned period moves away
 * from there, and the notes must still fit. */
static void learned_period_changes_kernels(void **state)
{
    (void)state;
    char options[512];
    blurry_step list[8];
    snprintf(options, sizeof options,
             "%s mixer=blurry modes=3 resolution=2 decay=true learned_period=true %s", small_task,
             "mlp=none precision=bf16 lr=0.1 device=cuda");
    trace(options, "", 8, list);
    assert_true(isfinite(list[7].loss));
}

/* ---- the last layer at the labelled rows alone ---- */
static double *parameter_values(blurry_model *model, int64_t k)
{
    size_t bytes = (size_t)model->parameter[k].elements * sizeof(double);
    double *values = malloc(bytes);
    assert_ok(blurry_model_read_parameter(model, k, values, bytes));
    return values;
}

/* Steps at these rows and at all rows end alike, queued (accumulate=2) and recorded. */
static void picked_rows_end_alike(void **state)
{
    (void)state;
    static const char *const models[] = {"mixer=blurry heads=2 modes=4",
                                         "mixer=blurry modes=4 conv=true mlp=gelu norm=layernorm",
                                         "mixer=softmax,gla layers=2 heads=2 mlp=none",
                                         "mixer=swa,gsa layers=2 window=9 heads=2 slots=8",
                                         "mixer=gdn,abc layers=2 heads=2 slots=8",
                                         "mixer=s4d layers=1 state=8 accumulate=2",
                                         "mixer=blurry modes=4 heads=2 precision=bf16"};
    for (size_t m = 0; m < sizeof models / sizeof models[0]; m++) {
        char options[512];
        snprintf(options, sizeof options, "%s %s device=cuda eval_samples=5", small_task, models[m]);
        blurry_trainer *some = trainer_from(options), *all = trainer_from(options);
        int rough = strstr(models[m], "bf16") != NULL;
        blurry_step a, b;
        assert_true(some->model->net.picks);
        all->model->net.picks = 0;
        for (int i = 0; i < 3; i++) {
            assert_ok(blurry_trainer_step(some, &a));
            assert_ok(blurry_trainer_step(all, &b));
            if (!(fabs(a.loss - b.loss) <= (rough ? 1e-2 : 2e-6) * b.loss) ||
                !(fabs(a.grad_norm - b.grad_norm) <= (rough ? 3e-2 : 1e-5) * b.grad_norm))
                fail_msg("%s, step %d: loss %.9g at picked rows, %.9g at all; norms %.7g, %.7g", models[m],
                         i + 1, a.loss, b.loss, a.grad_norm, b.grad_norm);
        }
        blurry_metrics own, other;
        assert_ok(blurry_trainer_evaluate(some, "val", &own));
        assert_ok(blurry_trainer_evaluate(all, "val", &other));
        if (!(fabs(own.loss - other.loss) <= (rough ? 1e-2 : 2e-5) * other.loss) ||
            (!rough && own.exact_match != other.exact_match))
            fail_msg("%s: evaluated loss %.9g at picked rows, %.9g at all; exact %g, %g", models[m], own.loss,
                     other.loss, own.exact_match, other.exact_match);
        for (int64_t k = 0; k < all->model->parameter_count && !rough; k++) {
            double *x = parameter_values(some->model, k), *y = parameter_values(all->model, k);
            double error = relative_error(x, y, all->model->parameter[k].elements);
            if (!(error <= 1e-4))
                fail_msg("%s, %s: relative error %g", models[m], all->model->parameter[k].name, error);
            free(x), free(y);
        }
        blurry_trainer_destroy(&some), blurry_trainer_destroy(&all);
    }
}

/* ---- not finite ---- */
static void bad_steps_are_named(void **state)
{
    (void)state;
    char options[512];
    snprintf(options, sizeof options, "%s mixer=blurry modes=4 device=cuda", small_task);
    blurry_trainer *t = trainer_from(options);
    blurry_step step;
    for (int i = 0; i < 3; i++) assert_ok(blurry_trainer_step(t, &step));
    int64_t place = blurry_model_find_parameter(t->model, "layers.1.mixer.o.weight");
    size_t bytes = WIDTH * WIDTH * sizeof(double);
    double *values = malloc(bytes), *after = malloc(bytes);
    assert_ok(blurry_model_read_parameter(t->model, place, values, bytes));
    values[7] = NAN;
    assert_ok(blurry_model_write_parameter(t->model, place, values, bytes));
    for (int i = 0; i < 5; i++) assert_ok(blurry_trainer_step(t, NULL)); /* nobody looks */
    assert_fails(blurry_trainer_step(t, &step), BLURRY_E_NUMERIC, "layers.1.mixer.o.weight");
    assert_non_null(strstr(blurry_last_error(), "step 4"));
    assert_int_equal(t->step, 3);
    assert_ok(blurry_model_read_parameter(t->model, place, after, bytes));
    assert_memory_equal(values, after, bytes);
    free(values), free(after);
    blurry_trainer_destroy(&t);
}

/* ---- resumed runs ---- */
static int stop_after(void *context, const blurry_progress *p)
{
    return p->event == BLURRY_EVENT_STEP && p->step >= *(const int64_t *)context;
}

static char *read_file(const char *folder, const char *name, size_t *bytes)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    fseek(file, 0, SEEK_END);
    *bytes = (size_t)ftell(file);
    rewind(file);
    char *data = malloc(*bytes);
    assert_int_equal(fread(data, 1, *bytes, file), *bytes);
    fclose(file);
    return data;
}

/* Stopped in the middle and continued, a run ends with the same bits as one that was never stopped. */
static void resumed_runs_end_alike(void **state)
{
    (void)state;
    char options[512], root[] = "/tmp/blurry-cuda-XXXXXX", whole[64], parts[64];
    assert_non_null(mkdtemp(root));
    snprintf(whole, sizeof whole, "%s/whole", root);
    snprintf(parts, sizeof parts, "%s/parts", root);
    for (int bf16 = 0; bf16 < 2; bf16++) {
        snprintf(options, sizeof options,
                 "%s mixer=blurry modes=4 device=cuda precision=%s steps=%d eval_every=3 eval_samples=4 "
                 "log_every=1 seed=%d",
                 small_task, bf16 ? "bf16" : "f32", ON_GPU ? 40 : 6, bf16);
        blurry_settings *settings = settings_from(options);
        int64_t middle = ON_GPU ? 17 : 4;
        assert_ok(blurry_train(settings, whole, NULL, NULL));
        assert_int_equal(blurry_train(settings, parts, stop_after, &middle), BLURRY_E_CANCELLED);
        assert_ok(blurry_train(settings, parts, NULL, NULL));
        size_t a_bytes, b_bytes;
        char *a = read_file(whole, "model.safetensors", &a_bytes),
             *b = read_file(parts, "model.safetensors", &b_bytes);
        assert_int_equal(a_bytes, b_bytes);
        assert_memory_equal(a, b, a_bytes);
        free(a), free(b);
        blurry_settings_destroy(&settings);
        whole[strlen(whole) - 1]++, parts[strlen(parts) - 1]++; /* other folders */
    }
    snprintf(options, sizeof options, "rm -r '%s'", root);
    assert_int_equal(system(options), 0);
}

/* ---- several models at once ---- */
typedef struct one_of_many {
    char options[512];
    blurry_step last;
} one_of_many;

static void *train_one(void *context)
{
    one_of_many *one = context;
    blurry_trainer *t = trainer_from(one->options);
    for (int i = 0; i < 12; i++) assert_ok(blurry_trainer_step(t, i == 11 ? &one->last : NULL));
    blurry_trainer_destroy(&t);
    return NULL;
}

static void several_models_at_once(void **state)
{
    (void)state;
    enum { MODELS = 4 };
    if (!ON_GPU) skip(); /* the emulator has one device for one thread */
    one_of_many alone[MODELS], together[MODELS];
    pthread_t thread[MODELS];
    for (int i = 0; i < MODELS; i++) {
        snprintf(alone[i].options, sizeof alone[i].options,
                 "%s mixer=blurry modes=%d seed=%d device=cuda precision=%s", small_task, 2 + i, i,
                 i % 2 ? "bf16" : "f32");
        together[i] = alone[i];
        train_one(&alone[i]);
    }
    for (int i = 0; i < MODELS; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, train_one, &together[i]), 0);
    for (int i = 0; i < MODELS; i++) pthread_join(thread[i], NULL);
    for (int i = 0; i < MODELS; i++)
        assert_memory_equal(&alone[i].last, &together[i].last, sizeof alone[i].last);
}

/* ---- out of memory: the process goes on ---- */
static void memory_that_is_not_there(void **state)
{
    (void)state;
    /* On a GPU activations that do not fit beside few parameters; the emulator has no room for either. */
    blurry_settings *settings =
        settings_from(ON_GPU ? "mixer=softmax device=cuda batch=64 length=65536 width=512 layers=8 pairs=2"
                             : "mixer=softmax device=cuda batch=64 length=65536 width=4096 layers=8 pairs=2");
    blurry_trainer *t = NULL;
    assert_int_equal(blurry_trainer_create(settings, &t), BLURRY_E_MEMORY);
    assert_null(t);
    blurry_settings_destroy(&settings);
    blurry_step step;
    trace(small_task, "mixer=blurry modes=2 device=cuda", 1, &step);
    trace(small_task, "mixer=blurry modes=2 device=cpu", 1, &step);
}

static void refused_precisions(void **state)
{
    (void)state;
    device *dev = NULL;
    assert_fails(device_create(&dev, &(device_options){.kind = DEVICE_CUDA, .dtype = BLURRY_F64}),
                 BLURRY_E_UNSUPPORTED, "f64");
    assert_null(dev);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(batches_are_the_hosts),
        cmocka_unit_test(losses_are_the_cpus),
        cmocka_unit_test(padded_batches_are_the_cpus),
        cmocka_unit_test(bf16_learns_alike),
        cmocka_unit_test(unwatched_steps_are_the_same),
        cmocka_unit_test(overlap_changes_nothing),
        cmocka_unit_test(learned_period_changes_kernels),
        cmocka_unit_test(picked_rows_end_alike),
        cmocka_unit_test(bad_steps_are_named),
        cmocka_unit_test(several_models_at_once),
        cmocka_unit_test(resumed_runs_end_alike),
        cmocka_unit_test(refused_precisions),
        cmocka_unit_test(memory_that_is_not_there),
        cmocka_unit_test(other_gradients_are_forgotten),
    };
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
