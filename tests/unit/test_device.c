/* The device itself: memory, scratch, and blurry attention over its plan, with failures kept until
 * device_sync. */
#include "device/device.h"
#include "support/test.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

static device *created(blurry_dtype dtype, int reference)
{
    device *dev = NULL;
    assert_ok(device_create(&dev, &(device_options){.dtype = dtype, .threads = 2, .reference = reference}));
    return dev;
}

static void memory_and_scratch(void **state)
{
    (void)state;
    device *dev = created(BLURRY_F32, 0);
    void *memory = NULL;
    assert_ok(device_alloc(dev, 1000, &memory));
    assert_int_equal((uintptr_t)memory % 64, 0);
    char text[8] = "blurry", back[8] = "";
    assert_ok(device_upload(dev, memory, text, sizeof text));
    device_copy(dev, (char *)memory + 500, memory, sizeof text);
    assert_ok(device_download(dev, back, (char *)memory + 500, sizeof back));
    assert_string_equal(back, text);
    device_zero(dev, memory, 1000);
    assert_ok(device_download(dev, back, memory, sizeof back));
    assert_int_equal(back[0], 0);
    size_t before = dev->run.scratch_bytes;
    assert_ok(device_reserve(dev, 10));
    assert_int_equal(dev->run.scratch_bytes, before);
    assert_ok(device_reserve(dev, before + 12345));
    assert_true(dev->run.scratch_bytes >= before + 12345 && (uintptr_t)dev->run.scratch % 64 == 0);
    void *too_much = NULL;
    assert_fails(device_alloc(dev, SIZE_MAX - 5, &too_much), BLURRY_E_MEMORY, "device memory");
    assert_null(too_much);
    device_free(dev, memory);
    device_destroy(&dev);
    assert_null(dev);
}

enum { B = 2, L = 37, H = 2, D = 8, N = B * L * H * D };

typedef struct blurry_run {
    double q[N], k[N], v[N], d_o[N], o[N], d_q[N], d_k[N], d_v[N], d_period[H];
} blurry_run;

/* Forward and backward on one device; gradients and output into r. */
static void run_blurry(device *dev, blurry_run *r)
{
    blurry_attn_desc desc;
    blurry_attn_desc_init(&desc);
    desc.batch = B, desc.length = L, desc.heads = H, desc.dim_k = D, desc.modes = 3;
    blurry_attn_plan *plan = NULL;
    assert_ok(device_blurry_plan(dev, &desc, &plan));
    kernel_sizes sizes;
    device_blurry_sizes(dev, plan, &sizes);
    assert_ok(device_reserve(dev, sizes.scratch));
    assert_int_equal(sizes.state, B * blurry_attn_state_bytes(plan));
    void *saved = NULL, *x[8];
    assert_ok(device_alloc(dev, sizes.saved, &saved));
    double *host[] = {r->q, r->k, r->v, r->d_o, r->o, r->d_q, r->d_k, r->d_v};
    for (int i = 0; i < 8; i++) {
        assert_ok(device_alloc(dev, N * dev->element, &x[i]));
        for (int e = 0; i < 4 && e < N; e++) {
            host[i][e] = sin(1.7 * e + i);
            if (dev->element == 4)
                ((float *)x[i])[e] = (float)host[i][e];
            else
                ((double *)x[i])[e] = host[i][e];
        }
    }
    blurry_args a = {.plan = plan,
                     .q = x[0],
                     .k = x[1],
                     .v = x[2],
                     .d_o = x[3],
                     .o = x[4],
                     .d_q = x[5],
                     .d_k = x[6],
                     .d_v = x[7],
                     .saved = saved,
                     .d_period = r->d_period};
    device_blurry_forward(dev, &a);
    device_blurry_backward(dev, &a);
    assert_ok(device_sync(dev));
    for (int i = 4; i < 8; i++)
        for (int e = 0; e < N; e++)
            host[i][e] = dev->element == 4 ? (double)((float *)x[i])[e] : ((double *)x[i])[e];
    for (int i = 0; i < 8; i++) device_free(dev, x[i]);
    device_free(dev, saved);
    blurry_attn_plan_destroy(&plan);
}

static void blurry_agrees_on_every_device(void **state)
{
    (void)state;
    static blurry_run truth, other;
    device *exact = created(BLURRY_F64, 1);
    run_blurry(exact, &truth);
    device_destroy(&exact);
    for (int i = 0; i < 3; i++) {
        device *dev = created(i < 2 ? BLURRY_F32 : BLURRY_F64, i == 0);
        run_blurry(dev, &other);
        double tolerance = dev->element == 4 ? 2e-5 : 1e-12;
        for (int e = 0; e < N; e++) {
            assert_true(fabs(other.o[e] - truth.o[e]) < tolerance);
            assert_true(fabs(other.d_q[e] - truth.d_q[e]) < tolerance);
            assert_true(fabs(other.d_k[e] - truth.d_k[e]) < tolerance);
            assert_true(fabs(other.d_v[e] - truth.d_v[e]) < tolerance);
        }
        device_destroy(&dev);
    }
}

static void failures_wait_for_sync(void **state)
{
    (void)state;
    device *dev = created(BLURRY_F32, 0);
    blurry_attn_desc desc;
    blurry_attn_desc_init(&desc);
    blurry_attn_plan *plan = NULL;
    assert_ok(device_blurry_plan(dev, &desc, &plan));
    device_blurry_forward(dev, &(blurry_args){.plan = plan}); /* no tensors */
    device_blurry_step(dev, &(blurry_step_args){.plan = plan, .count = -1});
    assert_int_equal(device_sync(dev), BLURRY_E_INVALID);
    assert_ok(device_sync(dev));
    blurry_attn_plan_destroy(&plan);
    device_destroy(&dev);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_and_scratch),
        cmocka_unit_test(blurry_agrees_on_every_device),
        cmocka_unit_test(failures_wait_for_sync),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
