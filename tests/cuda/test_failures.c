/* A GPU that is too old, launches that are refused, kernels that go wrong: a status and a message that names
 * the remedy, and the process goes on. The emulator plays these machines; a real GPU cannot be asked to. */
#include "support/mixer_case.h"
#include "support/test.h"

#include "base/status.h"
#include "blurry/device.h"
#include "blurry/sweep.h"
#include "blurry/train.h"
#include "device/device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#ifdef BLURRY_TEST_GPU
enum { ON_GPU = 1 };
#else
enum { ON_GPU = 0 };
#endif

static const char small_task[] =
    "length=16 pairs=2 vocab=16 batch=2 layers=1 width=16 modes=2 steps=9 threads=1";

static blurry_status train_a_little(const char *where)
{
    char options[256];
    snprintf(options, sizeof options, "%s device=%s", small_task, where);
    blurry_settings *settings = settings_from(options);
    blurry_trainer *t = NULL;
    blurry_step step;
    blurry_status status = blurry_trainer_create(settings, &t);
    for (int i = 0; i < 3 && status == BLURRY_OK; i++) status = blurry_trainer_step(t, &step);
    char message[512];
    snprintf(message, sizeof message, "%s", blurry_last_error());
    blurry_trainer_destroy(&t);
    blurry_settings_destroy(&settings);
    return status == BLURRY_OK ? status : status_fail(status, "%s", message);
}

static void an_old_gpu(void **state)
{
    (void)state;
    if (ON_GPU) skip();
    setenv("EMULATOR_CAPABILITY", "7.5", 1);
    device *dev = NULL;
    const device_options options = {.kind = DEVICE_CUDA};
    assert_fails(device_create(&dev, &options), BLURRY_E_DEVICE, "compute capability 7.5, too old");
    assert_null(dev);
    assert_fails(blurry_device_check(BLURRY_DEVICE_CUDA), BLURRY_E_DEVICE, "7.5, too old: 8.0 is needed");
    assert_fails(train_a_little("cuda"), BLURRY_E_DEVICE, "use device=cpu");
    assert_ok(train_a_little("cpu"));
    setenv("EMULATOR_CAPABILITY", "8.0", 1);
    assert_ok(train_a_little("cuda"));
    unsetenv("EMULATOR_CAPABILITY");
}

/* A launch that is refused is that training's failure alone, whichever launch it is. */
static void refused_launches(void **state)
{
    (void)state;
    if (ON_GPU) skip();
    for (int bf16 = 0; bf16 < 2; bf16++) {
        const char *where = bf16 ? "cuda precision=bf16" : "cuda";
        for (int n = 1; n < 100; n += n < 20 ? 1 : 7) { /* the last ones are recorded, not run */
            char which[16];
            snprintf(which, sizeof which, "%d", n);
            setenv("EMULATOR_REFUSE_LAUNCH", which, 1);
            assert_fails(train_a_little(where), BLURRY_E_DEVICE, "too many resources requested for launch");
            assert_non_null(strstr(blurry_last_error(), "use device=cpu"));
            unsetenv("EMULATOR_REFUSE_LAUNCH");
            assert_ok(train_a_little("cpu"));
        }
        assert_ok(train_a_little(where));
    }
}

/* A kernel that goes wrong takes the process's GPU with it, as it does on the hardware, but not the process.
 */
static int in_a_broken_process(const char *which)
{
    setenv("EMULATOR_FAIL_LAUNCH", which, 1);
    if (train_a_little("cuda") != BLURRY_E_DEVICE) return 1;
    if (!strstr(blurry_last_error(), "unspecified launch failure")) return 2;
    if (!strstr(blurry_last_error(), "use device=cpu")) return 3;
    if (train_a_little("cuda") != BLURRY_E_DEVICE) return 4;
    if (!strstr(blurry_last_error(), "start again, or use device=cpu")) return 5;
    return train_a_little("cpu") == BLURRY_OK ? 0 : 6;
}

static void kernels_that_go_wrong(void **state)
{
    (void)state;
    if (ON_GPU) skip();
    static const char *const which[] = {"1", "2", "9", "100"}; /* the last one in a recorded step */
    for (int i = 0; i < 4; i++) {
        pid_t child = fork();
        if (child == 0) _exit(in_a_broken_process(which[i]));
        int status = 0;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), 0);
    }
}

/* ---- sweeps ---- */
typedef struct ends {
    int done, failed;
    char reason[512];
} ends;

static int watch(void *context, const blurry_sweep_progress *p)
{
    ends *e = context;
    if (p->event != BLURRY_SWEEP_FINISHED) return 0;
    if (!strcmp(p->state, "done")) e->done++;
    if (!strcmp(p->state, "failed")) {
        e->failed++;
        snprintf(e->reason, sizeof e->reason, "%s", p->reason);
    }
    return 0;
}

/* One of several runs on the GPU has a kernel that goes wrong: it fails with the reason, the others end. */
static void one_bad_run_of_a_sweep(void **state)
{
    (void)state;
    if (ON_GPU) skip();
    static const char text[] =
        "base: {task: mqar, length: 16, pairs: 2, vocab: 16, layers: 1, width: 16, modes: 2, steps: 4, "
        "eval_every: 4, val_samples: 4, eval_samples: 4, threads: 1}\n"
        "axes: {batch: [2, 29, 3, 4]}\n";
    char folder[] = "/tmp/blurry-failures-XXXXXX", path[64];
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/r.db", folder);
    setenv("EMULATOR_FAIL_BLOCKS", "29", 1); /* samples are made by as many blocks as there are */
    for (int jobs = 1; jobs <= 4; jobs += 3) {
        blurry_sweep *sweep = NULL;
        blurry_sweep_summary summary = {0};
        ends e = {0};
        blurry_sweep_options options = {
            .database = path, .device = "cuda", .jobs = jobs, .progress = watch, .context = &e};
        assert_ok(blurry_sweep_parse(&sweep, text, strlen(text), "bad", &(blurry_sweep_choice){0}));
        assert_ok(blurry_sweep_run(sweep, &options, &summary));
        blurry_sweep_destroy(&sweep);
        assert_int_equal(e.done, 3);
        assert_int_equal(e.failed, 1);
        assert_int_equal(summary.failed, 1);
        assert_non_null(strstr(e.reason, "unspecified launch failure"));
        assert_int_equal(unlink(path), 0);
    }
    unsetenv("EMULATOR_FAIL_BLOCKS");
    assert_int_equal(rmdir(folder), 0);
}

/* Nothing is tried where no run could do anything. */
static void a_sweep_without_a_gpu(void **state)
{
    (void)state;
    if (ON_GPU) skip();
    static const char text[] = "base: {task: mqar, length: 16, pairs: 2, vocab: 16}\naxes: {seed: [0, 1]}\n";
    char folder[] = "/tmp/blurry-failures-XXXXXX", path[64];
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/r.db", folder);
    setenv("EMULATOR_DEVICES", "0", 1);
    blurry_sweep *sweep = NULL;
    blurry_sweep_summary summary;
    blurry_sweep_options options = {.database = path, .device = "cuda", .jobs = 2};
    assert_ok(blurry_sweep_parse(&sweep, text, strlen(text), "none", &(blurry_sweep_choice){0}));
    assert_fails(blurry_sweep_run(sweep, &options, &summary), BLURRY_E_DEVICE, "use device=cpu");
    blurry_sweep_destroy(&sweep);
    unsetenv("EMULATOR_DEVICES");
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(folder), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_old_gpu),
        cmocka_unit_test(refused_launches),
        cmocka_unit_test(kernels_that_go_wrong),
        cmocka_unit_test(one_bad_run_of_a_sweep),
        cmocka_unit_test(a_sweep_without_a_gpu),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
