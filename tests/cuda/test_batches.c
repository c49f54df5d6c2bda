/* Batches of mqar made on the CUDA device against those of the task, token for token: at places in any order,
 * looked up in the call before or not, and with draws that reject words. */
#include "support/mixer_case.h"
#include "support/test.h"

#include "base/order.h"
#include "device/device.h"
#include "tasks/task.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct setup {
    device *dev;
    blurry_task *task;
    blurry_samples *samples;
    mqar_args args;
    uint64_t *first_place;
    double *log_weight;
    int64_t indices[64];
} setup;

static void *on_device(device *dev, size_t bytes)
{
    void *memory;
    assert_ok(device_alloc(dev, bytes, &memory));
    return memory;
}

static setup open_setup(const char *options, int64_t batch)
{
    setup s = {0};
    blurry_settings *settings = settings_from(options);
    const struct settings *v = settings_values(settings);
    blurry_task_info info;
    int64_t places;
    assert_ok(blurry_task_create(&s.task, settings));
    blurry_task_describe(s.task, &info);
    assert_ok(blurry_samples_create(&s.samples, s.task, batch));
    assert_ok(device_create(&s.dev, &(device_options){.kind = DEVICE_CUDA, .dtype = BLURRY_F32}));
    const double *log_weight = task_mqar_weights(s.task, &places);
    s.log_weight = on_device(s.dev, (size_t)places * sizeof(double));
    assert_ok(device_upload(s.dev, s.log_weight, log_weight, (size_t)places * sizeof(double)));
    s.first_place = on_device(s.dev, sizeof(uint64_t));
    s.args = (mqar_args){.batch = batch,
                         .length = v->length,
                         .pairs = v->pairs,
                         .vocab = v->vocab,
                         .places = places,
                         .samples = info.samples[BLURRY_TRAIN],
                         .data_seed = (uint64_t)v->data_seed,
                         .order_seed = (uint64_t)v->seed,
                         .purpose = RNG_MQAR + BLURRY_TRAIN,
                         .random_filler = v->filler == SETTINGS_filler_random,
                         .log_weight = s.log_weight,
                         .first_place = s.first_place,
                         .step = batch,
                         .ahead = on_device(s.dev, (size_t)batch * sizeof(mqar_ahead)),
                         .place = on_device(s.dev, (size_t)(batch * v->length) * sizeof(int64_t)),
                         .ids = on_device(s.dev, (size_t)(batch * v->length) * sizeof(int32_t)),
                         .rows = on_device(s.dev, (size_t)(batch * v->pairs) * sizeof(int64_t)),
                         .targets = on_device(s.dev, (size_t)(batch * v->pairs) * sizeof(int32_t))};
    blurry_settings_destroy(&settings);
    return s;
}

static void close_setup(setup *s)
{
    void *all[] = {s->log_weight, s->first_place, s->args.ahead,  s->args.ids,
                   s->args.place, s->args.rows,   s->args.targets};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) device_free(s->dev, all[i]);
    device_destroy(&s->dev);
    blurry_samples_destroy(&s->samples);
    blurry_task_destroy(&s->task);
}

static void expect(setup *s, const void *device_memory, const void *host, size_t bytes)
{
    void *copy = malloc(bytes);
    assert_ok(device_download(s->dev, copy, device_memory, bytes));
    assert_ok(device_sync(s->dev));
    assert_memory_equal(copy, host, bytes);
    free(copy);
}

/* The batch that starts at a place of the order. */
static void check_batch(setup *s, uint64_t place)
{
    const mqar_args *a = &s->args;
    assert_ok(device_upload(s->dev, s->first_place, &place, sizeof place));
    device_mqar(s->dev, a);
    for (int64_t i = 0; i < a->batch; i++)
        s->indices[i] = order_sample(a->order_seed, a->samples, (int64_t)place + i);
    assert_ok(blurry_task_fill(s->task, BLURRY_TRAIN, s->indices, a->batch, 0, s->samples));
    assert_int_equal(s->samples->row_count, a->batch * a->pairs);
    expect(s, a->ids, s->samples->tokens, (size_t)(a->batch * a->length) * sizeof(int32_t));
    expect(s, a->rows, s->samples->rows, (size_t)(a->batch * a->pairs) * sizeof(int64_t));
    expect(s, a->targets, s->samples->labels, (size_t)(a->batch * a->pairs) * sizeof(int32_t));
    int64_t tokens = a->batch * a->length, *place_of = malloc((size_t)tokens * sizeof *place_of);
    for (int64_t i = 0; i < tokens; i++) place_of[i] = -1;
    for (int64_t i = 0; i < s->samples->row_count; i++) place_of[s->samples->rows[i]] = i;
    expect(s, a->place, place_of, (size_t)tokens * sizeof *place_of);
    free(place_of);
    mqar_ahead ahead;
    assert_ok(device_download(s->dev, &ahead, a->ahead + a->batch - 1, sizeof ahead));
    assert_int_equal(ahead.end, (int64_t)place + a->batch + a->step);
    assert_int_equal(ahead.sample, order_sample(a->order_seed, a->samples, ahead.end - 1));
}

static void any_shape(void **state)
{
    (void)state;
    static const char *const tasks[] = {"length=4 pairs=1 vocab=4",
                                        "length=64 pairs=16 vocab=34",
                                        "length=66 pairs=16 vocab=35 filler=random",
                                        "length=512 pairs=64 vocab=8192 power=0",
                                        "length=1400 pairs=133 vocab=777 filler=random power=2",
                                        "length=2600 pairs=300 vocab=700 seed=5 data_seed=3"};
    for (size_t i = 0; i < sizeof tasks / sizeof tasks[0]; i++) {
        char options[128];
        snprintf(options, sizeof options, "task=mqar train_samples=23 %s", tasks[i]);
        setup s = open_setup(options, 3);
        for (int step = 0; step < 4; step++) check_batch(&s, (uint64_t)(3 * step));
        close_setup(&s);
    }
}

/* What was looked up is for another place after a jump, as when a run is resumed or steps are repeated. */
static void any_order(void **state)
{
    (void)state;
    static const uint64_t places[] = {0, 5, 5, 10, 0, 1000000000000, 1000000000005, 7, 2};
    setup s = open_setup("task=mqar length=32 pairs=4 vocab=64 train_samples=1000", 5);
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) check_batch(&s, places[i]);
    close_setup(&s);
}

/* Whether a draw of keys or values of sample `index` rejects its word. */
static int rejects(const mqar_args *a, int64_t index)
{
    int rejected = 0;
    for (int64_t n = 0; n < 2 * a->pairs; n++) {
        uint32_t word[4], range = (uint32_t)(n < a->pairs ? a->vocab / 2 - 1 - n
                                                          : a->vocab - a->vocab / 2 - (n - a->pairs));
        rng_block(a->data_seed, a->purpose, (uint64_t)index, (uint64_t)(n / 4), word);
        rejected |= (uint32_t)(word[n % 4] * (uint64_t)range) < (0u - range) % range;
    }
    return rejected;
}

static void rejected_words(void **state)
{
    (void)state;
    setup s = open_setup("task=mqar length=256 pairs=60 vocab=16000001 train_samples=1000 filler=random", 1);
    int found = 0;
    for (int64_t place = 0; place < 1000 && found < 2; place++)
        if (rejects(&s.args, order_sample(s.args.order_seed, s.args.samples, place))) {
            check_batch(&s, (uint64_t)place);
            found++;
        }
    assert_int_equal(found, 2);
    close_setup(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(any_shape), cmocka_unit_test(any_order),
                                       cmocka_unit_test(rejected_words)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
